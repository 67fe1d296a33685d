"""Notes of what a batch first found at each path that its rows name, so that a replay reads the same bytes or fails with a clear error.

A row that names a file need not say which version of it is meant, and there is no plan that says it, because the stream belongs to
another source. The failure that this prevents:

1. A task looks at `a.json`, and its records are read; the driver dies before the batch is committed.
2. `a.json` is rewritten, or a file appears that was missing and was set aside.
3. The replay looks again, and reads other rows under the same batch id.

Rule: what is found is noted, durably, before any byte of it is read; the note counts for everyone who looks again. A note is put once,
for the paths of one chunk of rows, under a name that follows from them::

    <stateLocation>/<query id>/<batch>/<run>-<partition>-<digest of the paths>

Within a run of a query a partition of a batch always has the same rows, so a task that is tried again, or a speculative copy of it,
reads the notes of its own partition. Another run may distribute the same rows differently: it reads the notes of all partitions of
earlier runs, and uses those for its own paths. Two notes that disagree mean that the file changed within the batch: then nobody can
tell which version was read.

A batch may name millions of files, in a thousand chunks: reading all notes for each chunk would take a million reads. So for each noted
path a task keeps eight bytes of its digest and the number of its note, and reads only the notes that may have a path of the current
chunk.

A batch is never replayed once the second batch after it has begun; its notes are deleted then.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from penstock.errors import AlreadyThere
from penstock.query.records import checked_at, signed
from penstock.storage import TEMPORARY, names_at

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import TypeAlias

    import numpy.typing as npt

    from penstock.storage import Storage

    # [size, modification time, identity] of a version; or the reason why there is no file to read
    Sight: TypeAlias = list[Any] | str

_KEPT_BATCHES = 2  # the current one and the one before
_NOTES_AT_HAND = 8  # the notes that were read last


@dataclass(frozen=True)
class Moment:
    """When rows are looked at: the query, its run, the batch and the partition."""

    query: str
    batch: int
    partition: int
    run: str


class Pins:
    """The notes of one task. `place`: a storage, and a directory that belongs to this query alone."""

    def __init__(self, place: tuple[Storage, str], moment: Moment) -> None:
        self._storage, directory = place
        self._query = f"{directory}/{moment.query}"
        self._moment = moment
        self.directory = f"{self._query}/{moment.batch:012}"
        self._mine = f"{moment.run}-{moment.partition}-"
        self._noted: _Noted | None = None
        self._note = lru_cache(_NOTES_AT_HAND)(self._read)

    def agreed(self, sights: Mapping[str, Sight], *, reasons: bool) -> dict[str, list[Sight]]:
        """Return for each path what this batch first found there; for new paths, note what is found now, durably.

        A path has several sights if notes disagree. `reasons`: whether a note that there was no file counts; if a missing file fails
        the batch, the batch has failed then, and looks again. Raises `DamagedState` for a note that is not as it was put.
        """
        agreed: dict[str, list[Sight]] = {}
        if self._noted is None:
            self._noted = self._earlier()
        for name in self._noted.having(sights):
            note = self._note(name)
            known = {path: note[path] for path in sights if path in note}
            _enter(agreed, {path: sight for path, sight in known.items() if reasons or not isinstance(sight, str)})
        if new := {path: sight for path, sight in sights.items() if path not in agreed}:
            name, first = self._put(new)
            self._noted.add(name, first)
            _enter(agreed, first)
        return agreed

    def forget(self) -> None:
        """Delete the notes of batches that are never replayed. Called by one task of a batch, at any time."""
        oldest = f"{self._moment.batch - _KEPT_BATCHES + 1:012}"
        for batch in names_at(self._storage, self._query):
            if batch < oldest:
                for name in names_at(self._storage, f"{self._query}/{batch}"):
                    self._storage.delete(f"{self._query}/{batch}/{name}")
                self._storage.delete(f"{self._query}/{batch}")

    def _earlier(self) -> _Noted:
        """Return the paths of the notes that count for the rows of this task."""
        noted = _Noted()
        for name in sorted(names_at(self._storage, self.directory)):
            is_of_this_run = name.startswith(f"{self._moment.run}-")
            if not name.startswith(TEMPORARY) and (name.startswith(self._mine) or not is_of_this_run):
                noted.add(name, self._read(name))
        return noted

    def _put(self, sights: dict[str, Sight]) -> tuple[str, dict[str, Sight]]:
        """Put a note of what was found; return its name and contents. If a copy of this task put it before, that note counts."""
        digest = xxhash.xxh3_128_hexdigest("\0".join(sorted(sights)).encode("utf-8", "surrogatepass"))
        name = f"{self._mine}{digest}"
        try:
            self._storage.make_directory(self.directory)
            self._storage.put_if_absent(f"{self.directory}/{name}", signed({"files": sights}))
        except AlreadyThere:
            return name, self._read(name)
        return name, sights

    def _read(self, name: str) -> dict[str, Sight]:
        path = f"{self.directory}/{name}"
        sights: dict[str, Sight] = checked_at(self._storage, path)["files"]
        return sights


class _Noted:
    """Which notes may have a path: 64 bits of its digest, in sorted runs, each of which is longer than the next one."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._runs: list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32]]] = []

    def add(self, name: str, paths: Collection[str]) -> None:
        """Add the paths of a note."""
        digests, numbers = _digests(paths), np.full(len(paths), len(self._names), np.int32)
        self._names.append(name)
        while self._runs and len(self._runs[-1][0]) <= len(digests):
            more = self._runs.pop()
            digests, numbers = np.concatenate((more[0], digests)), np.concatenate((more[1], numbers))
        order = np.argsort(digests)
        self._runs.append((digests[order], numbers[order]))

    def having(self, paths: Collection[str]) -> list[str]:
        """Return the notes that may have one of these paths, in the order in which they were added."""
        wanted, chosen = np.unique(_digests(paths)), set[int]()
        for digests, numbers in self._runs:
            begins = np.searchsorted(digests, wanted)
            counts = np.searchsorted(digests, wanted, side="right") - begins
            places = np.arange(counts.sum()) + np.repeat(begins - np.cumsum(counts) + counts, counts)
            chosen.update(np.unique(numbers[places]).tolist())
        return [self._names[number] for number in sorted(chosen)]


def _digests(paths: Collection[str]) -> npt.NDArray[np.uint64]:
    digests = (xxhash.xxh3_64_intdigest(path.encode("utf-8", "surrogatepass")) for path in paths)
    return np.fromiter(digests, np.uint64, len(paths))


def pins(place: tuple[Storage, str], moment: Moment) -> Pins:
    """Return the notes of a task; the task of the first partition deletes those of old batches."""
    notes = Pins(place, moment)
    if not moment.partition:
        notes.forget()
    return notes


def _enter(agreed: dict[str, list[Sight]], sights: Mapping[str, Sight]) -> None:
    for path, sight in sights.items():
        known = agreed.setdefault(path, [])
        if sight not in known:
            known.append(sight)
