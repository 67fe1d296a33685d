"""A walk through a log that skips damage, and records what it skipped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import DamagedState
from penstock.wal import form
from penstock.wal.order import numbers
from penstock.wal.segment import path_of
from penstock.wal.walk import Walk

if TYPE_CHECKING:
    from penstock.storage import Storage
    from penstock.wal.form import LogBatch
    from penstock.wal.segment import LogSegment


@dataclass(frozen=True)
class Skipped:
    """What a salvage skipped: bytes [start, end) of a segment."""

    path: str
    start: int
    end: int


class Salvage(Walk):
    """A `Walk` that continues after damage. What it skips is appended to `skipped`, each piece once."""

    def __init__(self, storage: Storage, directory: str, skipped: list[Skipped]) -> None:
        super().__init__(storage, directory)
        self._skipped = skipped

    def _first(self) -> LogSegment | None:
        return self._following(0)

    def _after_gap(self) -> LogBatch | None:
        """Return the next valid group anywhere after this place."""
        segment = self.segment
        if segment is None:
            return None
        segment.refresh()
        batch = self._right() or segment.find(self.at, self.sequence)
        self._skip(segment.path, self.at, batch.at if batch else segment.size)
        if batch is not None:
            return batch
        following = self._following(segment.number)
        if following is None or following.header is None:
            return None
        self._enter(following, following.header.sequence)
        return self._right() or self._after_gap()

    def _end_before(self, segment: LogSegment, offset: int) -> int:
        """Continue from the end of the valid groups up to this offset, or until no valid group follows; return where that is."""
        until = offset - form.GROUP_HEAD_BYTES
        while self.at < until and (batch := self._right() or segment.find(self.at, self.sequence)) is not None:
            self._pass(batch)
        return self.at

    def _following(self, number: int) -> LogSegment | None:
        """Return the next segment that has a header, held; segments with a damaged header are skipped."""
        for later in numbers(self._storage, self._directory):
            if later > number:
                try:
                    if segment := self._open(later):
                        return segment
                except DamagedState:
                    path = path_of(self._directory, later)
                    self._skip(path, 0, self._storage.stat(path).size)
        return None

    def _skip(self, path: str, start: int, end: int) -> None:
        skipped = Skipped(path, start, end)
        if start < end and skipped not in self._skipped:
            self._skipped.append(skipped)
