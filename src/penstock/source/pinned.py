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

A batch is never replayed once the one behind the next has begun, and its notes go then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import xxhash

from penstock.errors import AlreadyThere
from penstock.query.records import checked_at, signed
from penstock.storage import TEMPORARY, names_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import TypeAlias

    from penstock.storage import Storage

    # [size, modification time, identity] of a version; or why there is no file to read
    Sight: TypeAlias = list[Any] | str

_KEPT_BATCHES = 2  # this one and the one before


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

    def agreed(self, sights: Mapping[str, Sight], *, reasons: bool) -> dict[str, list[Sight]]:
        """Return for each path what this batch first found there; what nobody found before is noted now, durably.

        More than one where notes disagree. `reasons`: whether a note that there was no file counts; where that fails a batch, it
        has failed then, and looks again. Raises `DamagedState` for a note that is not as it was put.
        """
        agreed: dict[str, list[Sight]] = {}
        for note in self._earlier():
            known = {path: sight for path, sight in note.items() if path in sights}
            _enter(agreed, {path: sight for path, sight in known.items() if reasons or not isinstance(sight, str)})
        if new := {path: sight for path, sight in sights.items() if path not in agreed}:
            _enter(agreed, self._put(new))
        return agreed

    def forget(self) -> None:
        """Delete the notes of batches that are never replayed. Called by one task of a batch, at any time."""
        oldest = f"{self._moment.batch - _KEPT_BATCHES + 1:012}"
        for batch in names_at(self._storage, self._query):
            if batch < oldest:
                for name in names_at(self._storage, f"{self._query}/{batch}"):
                    self._storage.delete(f"{self._query}/{batch}/{name}")
                self._storage.delete(f"{self._query}/{batch}")

    def _earlier(self) -> Iterator[dict[str, Sight]]:
        """Yield the notes that count for the rows of this task."""
        for name in sorted(names_at(self._storage, self.directory)):
            is_of_this_run = name.startswith(f"{self._moment.run}-")
            if not name.startswith(TEMPORARY) and (name.startswith(self._mine) or not is_of_this_run):
                yield self._read(name)

    def _put(self, sights: dict[str, Sight]) -> dict[str, Sight]:
        """Note what was found, and return it; what a copy of this task has noted of the same paths counts before."""
        digest = xxhash.xxh3_128_hexdigest("\0".join(sorted(sights)).encode("utf-8", "surrogatepass"))
        name = f"{self._mine}{digest}"
        try:
            self._storage.make_directory(self.directory)
            self._storage.put_if_absent(f"{self.directory}/{name}", signed({"files": sights}))
        except AlreadyThere:
            return self._read(name)
        return sights

    def _read(self, name: str) -> dict[str, Sight]:
        path = f"{self.directory}/{name}"
        sights: dict[str, Sight] = checked_at(self._storage, path)["files"]
        return sights


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
