"""Reading a log: from a position on, in batches or record by record, also while a writer appends.

There are three modes. `tail`: a torn end is the end. `strict`: a torn end is an error. `salvage`: damage is skipped,
and reported (`skipped`). In the first two modes damage before the end is an error: `DamagedState`, with file, offset,
found and expected.

What may happen while a reader looks, and the rule that makes it harmless:

1. *Half a group.* The writer is in the middle of writing it. Rule: an invalid group in the last segment is the end for
   now, unless a later group says that this place was durable (`form`). It is checked again at the next call.
2. *The end moves while it is read.* One part was read before a write and one part after it. Rule: before anything is
   called damage, it is read again; a group that calls it durable was written when it was whole.
3. *The writer rolls.* Rule: the header of the next segment names the length of this one, and exists only when that
   length is durable. So all of this segment is read first, then the next one is opened.
4. *A purge.* Rule: a segment is held while it is read; a purge deletes the oldest first and stops at a held one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.arguments import named
from penstock.errors import OptionError, UsageError
from penstock.storage import locate
from penstock.wal.form import checked_position
from penstock.wal.salvage import Salvage, Skipped
from penstock.wal.segment import check_directory
from penstock.wal.walk import Walk

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from penstock.storage import Storage
    from penstock.wal.form import LogBatch, Position

MODES = ("tail", "strict", "salvage")


@named
class Reader:
    """Reads the log in `directory` from `start` (its first record by default). Not shared between threads.

    `NotThere` if there is no directory, `UsageError` if it contains something other than a log; a new one, without a
    segment, is an empty log. Iterating ends at the end of the log; iterating again, or `advance`, continues there with
    what was appended since.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        start: Position | None = None,
        *,
        mode: str = "tail",
        storage: Storage | None = None,
    ) -> None:
        if mode not in MODES:
            msg = f"mode={mode!r} is not a way to read a log: expected one of {', '.join(MODES)}"
            raise OptionError(msg)
        self._storage, self._directory = locate(directory, storage=storage)
        self._mode = mode
        self._closed = False
        self.skipped: list[Skipped] = []
        self._walk = self._nowhere()
        self._batch: LogBatch | None = None  # the batch of the next record, whose index is `_index`
        self._records: list[bytes] = []
        self._index = 0
        self._got: bytes | None = None
        if start is None:
            check_directory(self._storage, self._directory)
        else:
            self.seek(start)

    # -- what users call -------------------------------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """Return the position of the next record; at the end, where the next one will be."""
        if self._batch is not None and self._index < self._batch.count:
            return self._batch.position(self._index)
        return self._walk.position

    @property
    def log(self) -> bytes:
        """Return the id of the log; a log that was begun again has another id. `b""` before anything of it was found."""
        segment = self._walk.segment
        return segment.header.log if segment and segment.header else b""

    @property
    def sequence(self) -> int:
        """Return the sequence number of the next record: how many records were ever appended before it."""
        if self._batch is not None and self._index < self._batch.count:
            return self._batch.sequence + self._index
        return self._walk.sequence

    def seek(self, position: Position) -> None:
        """Go to a position that the log gave; `PositionError` if neither a record nor the end of the log is there.

        Offset 0 of a segment is its beginning, wherever its first record is. `DamagedState` if the record is damaged,
        or if damage before it makes the position uncertain. A position that a writer returned exists in the log when
        everything appended before it is flushed; if that never was, the position is invalid, or that of another record.
        The end of the last purged segment is the beginning of the first one that is left. After an error the reader is
        where it was.
        """
        self._check_open()
        walk = self._nowhere()
        try:
            batch = walk.seek(checked_position(position))
            records = batch.records() if batch else []
        except BaseException:  # whatever is raised, nothing stays open
            walk.let_go()
            raise
        before, self._walk = self._walk, walk  # the old one is kept until the new one is ready
        self._batch, self._records, self._index, self._got = batch, records, 0, None
        before.let_go()

    def advance(self) -> bool:
        """Go on to the next record; False at the end of the log."""
        while self._closed or self._batch is None or self._index >= self._batch.count:
            if not self._take():
                self._got = None
                return False
            self._records = self._batch.records() if self._batch else []
        self._got = self._records[self._index]
        self._index += 1
        return True

    def get(self) -> bytes:
        """Return the record that `advance` went to."""
        if self._got is None:
            self._walk.refuse(self.position, "there is no record before the first `advance`, or after one that failed")
        return self._got

    def __iter__(self) -> Iterator[bytes]:
        """Yield records up to the end of the log."""
        while self.advance():
            yield self._records[self._index - 1]

    def batches(self) -> Iterator[LogBatch]:
        """Yield the remaining records group by group, which is the fast way."""
        while (self._batch is not None and not self._closed) or self._take():
            batch = self._batch
            if batch is not None and self._index < batch.count:
                yield batch.rest(self._index)
            self._batch = None

    def close(self) -> None:
        """Close the log. Idempotent. The reader still knows its place; reading on is a `UsageError`."""
        self._closed = True
        self._walk.let_go()

    def __enter__(self) -> Reader:
        """Return itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""
        self.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _nowhere(self) -> Walk:
        if self._mode == "salvage":
            return Salvage(self._storage, self._directory, self.skipped)
        return Walk(self._storage, self._directory, strict=self._mode == "strict")

    def _check_open(self) -> None:
        if self._closed:
            msg = f"this reader of {self._directory!r} was closed: open another one, at its position"
            raise UsageError(msg)

    def _take(self) -> bool:
        """Go to the next batch of records; False at the end of the log. `UsageError` if the reader was closed."""
        self._check_open()
        batch = self._walk.next()
        if batch is None:
            return False
        self._batch, self._index = batch, 0
        return True
