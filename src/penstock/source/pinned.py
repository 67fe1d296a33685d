"""What a batch first found at each path that its rows name: notes, so that a replay reads the same bytes or fails by name.

A row that names a file need not say which version of it is meant, and no plan does: the stream is somebody else's. The failure
this answers:

  1. A task looks at `a.json`, and its records are read; the driver dies before the batch is committed.
  2. `a.json` is rewritten, or one comes that was missing and was set aside.
  3. The replay looks again, and reads other rows under the same batch id.

Rule: what is found is noted, durably, before any byte of it is read; what is noted counts, whoever looks again. A note is put once,
for the paths of one chunk of rows, under a name that follows from them::

    <stateLocation>/<query id>/<batch>/<run>-<partition>-<digest of the paths>

Within a run of a query a partition of a batch always has the same rows, so a task that is tried again, and a copy of it, read the notes
of their own partition. Another run may spread the same rows otherwise: it reads those of all partitions of the runs before,
of which it keeps what it asks for. Two notes that disagree mean that the file changed within the batch: then nothing can be told.

A batch may name millions of files, in a thousand chunks: to read all notes for each chunk takes a million readings. So a task keeps, of
each path that is noted, eight bytes of its digest and the number of the note, and reads the notes that may have one of a chunk's.

A batch is never replayed once the one behind the next has begun, and its notes go then.
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

    # [size, modification time, identity] of a version; or why there is no file to read
    Sight: TypeAlias = list[Any] | str

_KEPT_BATCHES = 2  # this one and the one before
_NOTES_AT_HAND = 8  # that were read last


@dataclass(frozen=True)
class Moment:
    """When rows are looked at: in which partition of which batch, by which run of which query."""

    query: str
    batch: int
    partition: int
    run: str


class Pins:
    """The notes of one task. `place`: a storage, and a directory that is this query's own."""

    def __init__(self, place: tuple[Storage, str], moment: Moment) -> None:
        self._storage, directory = place
        self._query = f"{directory}/{moment.query}"
        self._moment = moment
        self.directory = f"{self._query}/{moment.batch:012}"
        self._mine = f"{moment.run}-{moment.partition}-"
        self._noted: _Noted | None = None
        self._note = lru_cache(_NOTES_AT_HAND)(self._read)

    def agreed(self, sights: Mapping[str, Sight], *, reasons: bool) -> dict[str, list[Sight]]:
        """Return for each path what this batch first found there; what nobody found before is noted now, durably.

        More than one where notes disagree. `reasons`: whether a note that there was no file counts; where that fails a batch, it
        has failed then, and looks again. Raises `DamagedState` for a note that is not as it was put.
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
        """Return what the notes have that count for the rows of this task."""
        noted = _Noted()
        for name in sorted(names_at(self._storage, self.directory)):
            is_of_this_run = name.startswith(f"{self._moment.run}-")
            if not name.startswith(TEMPORARY) and (name.startswith(self._mine) or not is_of_this_run):
                noted.add(name, self._read(name))
        return noted

    def _put(self, sights: dict[str, Sight]) -> tuple[str, dict[str, Sight]]:
        """Note what was found; return the note's name and what it has. What a copy of this task noted before of the same paths counts."""
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
    """Which notes may have a path: by 64 bits of its digest, in sorted runs of which each is longer than the next one."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._runs: list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32]]] = []

    def add(self, name: str, paths: Collection[str]) -> None:
        """Take in the paths of a note."""
        digests, numbers = _digests(paths), np.full(len(paths), len(self._names), np.int32)
        self._names.append(name)
        while self._runs and len(self._runs[-1][0]) <= len(digests):
            more = self._runs.pop()
            digests, numbers = np.concatenate((more[0], digests)), np.concatenate((more[1], numbers))
        order = np.argsort(digests)
        self._runs.append((digests[order], numbers[order]))

    def having(self, paths: Collection[str]) -> list[str]:
        """Return the notes that may have one of these paths, in the order in which they were taken in."""
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
    """Return the notes of a task; the first partition forgets those of old batches."""
    notes = Pins(place, moment)
    if not moment.partition:
        notes.forget()
    return notes


def _enter(agreed: dict[str, list[Sight]], sights: Mapping[str, Sight]) -> None:
    for path, sight in sights.items():
        known = agreed.setdefault(path, [])
        if sight not in known:
            known.append(sight)
