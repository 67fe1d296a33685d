"""The log of a recoverable operator: what it applied in each window, handed back after a crash.

An operator applies records, window by window (a window is what the engine counts: a batch, a checkpoint interval). Now and
then its state is saved elsewhere: it is *checkpointed* up to a window. When everybody has a window behind them it is *committed*.
The log holds what came after the checkpoint:

1. `append` each record that is applied; 2. `end_window(w)`: all of it is durable; 3. the state may be checkpointed at `w`;
4. `committed(w)`: what is needed no more goes, by whole segments.

After a crash two numbers decide: what the state was last checkpointed at, `c`, and what was last flushed here, `f`.

- `c < f`: `restore(c)` hands back the windows behind `c`, in order, up to `f`. The operator goes on with the one behind `f`.
- `c == f`: there is nothing to hand back.
- `c > f`: the log has lost what it acknowledged, or belongs to another state: `DamagedState`.

*Form.* A record of the log is a byte that says what it is, and then: 0, a record of the operator; or 1, the end of a window: its
number (8 bytes, little-endian), how many of the records before it are its own (8), and the window before it (8, signed as the
first). That count is what makes a window whole or nothing: records of a window whose end was not written are followed by
those of the window that was done anew, which does not count them in. The window before it tells a gap from a purge: what is
committed is gone, and a state that was checkpointed before that cannot be restored.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from penstock.arguments import check_done, check_plain, named, whole
from penstock.errors import DamagedState, UsageError
from penstock.storage import locate
from penstock.wal.log import Log
from penstock.wal.reader import Reader
from penstock.wal.writer import Writer, as_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from penstock.storage import Storage
    from penstock.wal.form import Position

NO_WINDOW = -1
_RECORD = b"\0"
_END = struct.Struct("<BqQq")
_NUMBERS_END = 1 << 63


class _Window(NamedTuple):
    """A window that has ended: its records (`None` if a purge took some of them), where its end is, and the window before it."""

    number: int
    records: list[bytes] | None
    end: Position
    before: int


@named
class Manager:
    """The log in `directory`; `recover(window, records)` is called by `restore` for each window. Not shared between threads."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        recover: Callable[[int, list[bytes]], object],
        *,
        segment_size: str | int = "64m",
        storage: Storage | None = None,
    ) -> None:
        check_plain("recover", recover, "window", "records")
        self._storage, self._directory = locate(directory, storage=storage)
        self._recover = recover
        self._segment_size = segment_size
        self._open()

    def _open(self) -> None:
        self._writer = Writer(self._directory, segment_size=self._segment_size, storage=self._storage)
        self._begin = self._writer.sequence  # of the window that is open
        self._ends: dict[int, Position] = {}  # of windows that are not committed: where they end
        self.flushed = NO_WINDOW
        try:
            for window in self._windows():
                self._ends[window.number] = window.end
                self.flushed = window.number
        except BaseException:  # whatever it is, the lock must not outlive it
            self._writer.close()
            raise

    def setup(self) -> None:
        """Open the log anew, as a restart does: a window that is open is nothing. The constructor has opened it."""
        self.close()
        self._open()

    def restore(self, checkpointed: int = NO_WINDOW) -> int:
        """Call `recover` for each window behind the one that the state was checkpointed at; return the last one flushed.

        Called once, before the first `append`, also when nothing was ever written; and again behind `setup`.
        """
        checkpointed = whole(checkpointed, name="window", example=7)
        if checkpointed > self.flushed:
            msg = (
                f"{self._directory!r} ends with window {self.flushed}, expected {checkpointed}, at which the state was "
                "checkpointed: the log has lost its end, or belongs to another state; restore both from one time"
            )
            raise DamagedState(msg)
        last = checkpointed
        for window in self._windows():
            if window.number <= checkpointed:
                continue
            if window.before > last or window.records is None:
                msg = (
                    f"{self._directory!r} begins behind window {checkpointed}, at which the state was checkpointed, with "
                    f"window {window.number}: what is between was committed and purged; restore a later state"
                )
                raise DamagedState(msg)
            check_done("recover", self._recover(window.number, window.records))
            last = window.number
        return self.flushed

    def append(self, record: bytes) -> None:
        """Append a record of the window that is open; it is durable when the window has ended."""
        try:
            marked = _RECORD + record
        except TypeError:
            marked = _RECORD + as_bytes(record)
        self._writer.append(marked)

    def end_window(self, window: int) -> None:
        """Make the window durable; on return it is. `UsageError` if its number is not higher than the last one's, or has 64 bits."""
        window = whole(window, name="window", example=self.flushed + 1)
        if window <= self.flushed:
            msg = f"window {window} of {self._directory!r} has ended before: expected one behind {self.flushed}"
            raise UsageError(msg)
        if window >= _NUMBERS_END:
            msg = f"window {window} cannot be ended: expected a number below 2^63, which is what a record has room for"
            raise UsageError(msg)
        self._ends[window] = self._writer.append(
            _END.pack(1, window, self._writer.sequence - self._begin, self.flushed)
        )
        self._writer.flush()
        self._begin, self.flushed = self._writer.sequence, window

    def committed(self, window: int) -> list[int]:
        """Forget what is needed no more now that this window is committed; return the segments that went."""
        window = whole(window, name="window", example=7)
        behind = [end for number, end in self._ends.items() if number <= window]
        self._ends = {number: end for number, end in self._ends.items() if number > window}
        return Log(self._directory, storage=self._storage).purge(max(behind)) if behind else []

    def close(self) -> None:
        """Let the log go. A window that is open is nothing."""
        self._writer.close()

    def __enter__(self) -> Manager:
        """Return itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""
        self._writer.__exit__(*exc)

    def _windows(self) -> Iterator[_Window]:
        """Yield the windows that have ended, in order."""
        records: list[bytes] = []
        with Reader(self._directory, storage=self._storage) as reader:
            for batch in reader.batches():
                for index, record in enumerate(batch.records()):
                    if record[:1] == _RECORD:
                        records.append(record[1:])
                        continue
                    yield self._ended(record, records, batch.position(index))
                    records = []

    def _ended(self, record: bytes, records: list[bytes], at: Position) -> _Window:
        """Return the window whose end this record is; `records` are all since the end before it. `DamagedState` if it is no end."""
        kind, number, count, before = _END.unpack(record) if len(record) == _END.size else 4 * (-1,)
        if kind != 1:
            msg = (
                f"{self._directory!r} has a record at {at} that is none of a manager: found "
                f"{record[:1]!r}, expected {_RECORD!r} or {bytes([1])!r}; it is a log of something else"
            )
            raise DamagedState(msg)
        own = records[len(records) - count :] if count <= len(records) else None
        return _Window(number, own, at, before)
