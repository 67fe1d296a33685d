"""The log of a recoverable operator: the records that it applied in each window, handed back after a crash.

An operator applies records, window by window (a window is what the engine counts: a batch, a checkpoint interval). Now
and then its state is saved elsewhere: it is *checkpointed* up to a window. When
every part of the engine has passed a window, it is *committed*. The log holds what came after the checkpoint:

1. `append` each record that is applied; 2. `end_window(w)`: all of it is durable; 3. the state may be checkpointed at
   `w`; 4. `committed(w)`: what is no longer needed is deleted, by whole segments.

After a crash two numbers decide: `c`, the window of the last checkpoint of the state, and `f`, the window that was
flushed here last.

- `c < f`: `restore(c)` hands back the windows after `c`, in order, up to `f`. The operator continues with the window
  after `f`.
- `c == f`: there is nothing to hand back.
- `c > f`: the log has lost what it acknowledged, or belongs to another state: `DamagedState`.

That is a replay to the last *window*. Some engines take the operator back to its checkpoint and repeat what came after
it. For them the replay is to the last *checkpoint* (`to="checkpoint"`): what the operator's own state lacks up to `c`
is handed back, and what was flushed after `c` is dropped, so that its windows can end again. `set_start` tells, by a
position, where the state was saved.

*Form.* The first byte of a record of the log says what it is. 0: a record of the operator. 1: the end of a window: its
number (8 bytes, little-endian), how many of the records before it belong to the window (8), and the number of the
previous window (8, signed like the first). 2: a drop, in the same form: the window that the log was taken back to, 0,
and the window that was flushed last. The count makes a window all or nothing: if the end of a window was not written,
its records are followed by those of the repeated window, whose count does not include them. The number of the previous
window distinguishes a gap from a purge: committed windows are gone, and a state that was checkpointed before them
cannot be restored. A drop is a record like any other: nothing is cut, and after a crash before it is durable, the
windows are still there, to be dropped by the next restart.

*Memory.* Opening reads the log once and keeps only the place of each window; `restore` reads what it hands back. A
`recover` that takes a record gets one at a time, whatever the size of the window; one that takes a window and its
records gets them as a list.
"""

from __future__ import annotations

import inspect
import struct
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.arguments import check_arguments, check_doing, check_done, named, signature_of, whole
from penstock.errors import DamagedState, OptionError, PositionError, UsageError
from penstock.storage import locate
from penstock.wal.form import checked_position
from penstock.wal.log import Log
from penstock.wal.reader import Reader
from penstock.wal.writer import Writer, as_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from penstock.storage import Storage
    from penstock.wal.form import Position

NO_WINDOW = -1
MODES = ("window", "checkpoint")
_RECORD = b"\0"
_ENDS, _DROPS = 1, 2
_MARK = struct.Struct("<BqQq")
_NUMBERS_END = 1 << 63


class Serializer(Protocol):
    """Converts a record to bytes and back: a module such as `json` or `pickle`, or an object with both functions."""

    def dumps(self, record: Any, /) -> bytes | str:  # noqa: ANN401 - whatever its user appends
        """Return the record as bytes, or as text, which is kept as UTF-8."""

    def loads(self, data: bytes, /) -> Any:  # noqa: ANN401 - what `dumps` was given
        """Return the record."""


class _Window(NamedTuple):
    """A window that has ended: how many records belong to it, where its end is, and the window before it.

    Before its own records are `skipped` records of windows that never ended, after the mark at `mark_before` (`None`: from
    the beginning of the log). `skipped` is negative if a purge removed some of its own records.
    """

    number: int
    own: int
    skipped: int
    end: Position
    before: int
    mark_before: Position | None


@named
class Manager:
    """The log in `directory`, for an operator that `restore` hands records back to. Not shared between threads.

    `recover(record)` is called for each record, one at a time, or `recover(window, records)` for each window; its
    parameters decide which. Records are bytes, or what `serializer` converts to bytes. Temporaries that a crash has
    left are removed.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        recover: Callable[..., object],
        *,
        segment_size: str | int = "64m",
        serializer: Serializer | None = None,
        storage: Storage | None = None,
    ) -> None:
        self._singly = _takes_a_record(recover)
        if serializer is not None:
            check_arguments("serializer.dumps", getattr(serializer, "dumps", None), "record")
            check_arguments("serializer.loads", getattr(serializer, "loads", None), "data")
        self._storage, self._directory = locate(directory, storage=storage)
        self._recover = recover
        self._serializer = serializer
        self._segment_size = segment_size
        self._open()

    def _open(self) -> None:
        self._writer = Writer(self._directory, segment_size=self._segment_size, storage=self._storage)
        self._begin = self._writer.sequence  # of the open window
        self._start: _Window | None = None
        self.flushed = NO_WINDOW
        try:
            # The windows that are not committed, the last mark, and how many records of unfinished windows come after
            # it.
            self._windows, self._last_mark, self._left = self._ended()
            self.flushed = max(self._windows, default=self.flushed)
        except BaseException:  # whatever is raised, the lock must not outlive it
            self._writer.close()
            raise

    def setup(self) -> None:
        """Open the log again, as a restart does: an open window is discarded. The constructor has opened it already."""
        self.close()
        self._open()

    @property
    def position(self) -> Position:
        """The position of the next record. After `end_window`, a state that is saved now includes everything before it; see `set_start`."""
        return self._writer.position

    def set_start(self, position: Position) -> None:
        """Have `restore` begin with the window at this position, which `end_window` or `position` returned when the state was saved.

        `PositionError` if it lies inside a window, or is no longer in the log. Call it before `restore`.
        """
        with Reader(self._directory, start=checked_position(position), storage=self._storage) as reader:
            for ahead, (at, record) in enumerate(_placed(reader)):
                if record[:1] == _RECORD:
                    continue
                mark = self._mark(record, at)
                window = self._windows.get(mark.number)
                if mark.drops or window is None:
                    break
                if ahead < mark.own:
                    msg = (
                        f"{position} lies inside window {mark.number} of {self._directory!r}, after {mark.own - ahead} of its records; "
                        "expected a position that end_window gave"
                    )
                    raise PositionError(msg)
                if window.end != at:
                    break  # this one was dropped; its number has ended again, and others may have ended before that
                self._start = window
                return
        later = [window for window in self._windows.values() if window.end >= position]
        self._start = min(later, key=lambda window: window.end) if later else _nothing(position)

    def restore(self, checkpointed: int = NO_WINDOW, *, to: str = "window") -> int:
        """Call `recover` for what the state lacks; return the window after which the operator continues.

        `to="window"`: for each window after the one that the state was checkpointed at, up to the last flushed one.
        `to="checkpoint"`: for each window up to that one; what was flushed after it is dropped, durably, and ends
        again. The first window may be set by `set_start`. Called once, before the first `append`, even if nothing was
        ever written; and again after `setup`. `DamagedState` if the log lacks a window, `UsageError` after an `append`.
        """
        checkpointed = whole(checkpointed, name="window", example=7)
        if to not in MODES:
            msg = f"to={to!r}; expected {' or '.join(map(repr, MODES))}: how far the log is replayed"
            raise OptionError(msg)
        if self._writer.sequence != self._begin:
            early = self._writer.sequence - self._begin
            msg = (
                f"{early} records of a window that is open are in {self._directory!r} already, and a replay would drop them; call "
                "restore before the first append"
            )
            raise UsageError(msg)
        if checkpointed > self.flushed:
            msg = (
                f"{self._directory!r} ends with window {self.flushed}, expected {checkpointed}, at which the state was "
                "checkpointed: the log has lost its end, or belongs to another state; restore both from one time"
            )
            raise DamagedState(msg)
        chosen = self._chosen(checkpointed, to)
        if to == "checkpoint" and checkpointed < self.flushed:
            self._drop_after(checkpointed)
        self._hand_back(chosen)
        return self.flushed

    def append(self, record: Any) -> Position:  # noqa: ANN401 - bytes, or what the serializer takes
        """Append a record to the open window; it is durable when the window has ended. Return its position, valid from then on."""
        data = record
        if self._serializer is not None:
            data = _encoded(self._serializer.dumps(record))
        try:
            marked = _RECORD + data
        except TypeError:
            marked = _RECORD + as_bytes(data)
        return self._writer.append(marked)

    def end_window(self, window: int) -> Position:
        """Make the window durable; on return it is. Return the position after it, which `set_start` accepts.

        `UsageError` if its number is not higher than the last one's, or needs 64 bits.
        """
        window = whole(window, name="window", example=self.flushed + 1)
        if window <= self.flushed:
            msg = f"window {window} of {self._directory!r} has ended before: expected one after {self.flushed}"
            raise UsageError(msg)
        if window >= _NUMBERS_END:
            msg = f"window {window} cannot be ended: expected a number below 2^63, which is what a record has room for"
            raise UsageError(msg)
        own = self._writer.sequence - self._begin
        end = self._writer.append(_MARK.pack(_ENDS, window, own, self.flushed))
        self._writer.flush()
        self._windows[window] = _Window(window, own, self._left, end, self.flushed, self._last_mark)
        self._begin, self.flushed = self._writer.sequence, window
        self._last_mark, self._left = end, 0
        return self._writer.position

    def committed(self, window: int) -> list[int]:
        """Drop what is no longer needed now that this window is committed; return the deleted segments."""
        window = whole(window, name="window", example=7)
        ends = [ended.end for number, ended in self._windows.items() if number <= window]
        self._windows = {number: ended for number, ended in self._windows.items() if number > window}
        return Log(self._directory, storage=self._storage).purge(max(ends)) if ends else []

    def close(self) -> None:
        """Close the log. An open window is discarded."""
        self._writer.close()

    def __enter__(self) -> Manager:
        """Return itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""
        self._writer.__exit__(*exc)

    # -- what is there ---------------------------------------------------------------------------------------------

    def _ended(self) -> tuple[dict[int, _Window], Position | None, int]:
        """Return the windows that have ended and were not dropped, in order, by their numbers; none of their records is kept.

        Also return the last mark, and how many records come after it.
        """
        windows: dict[int, _Window] = {}
        mark_at: Position | None = None
        records = 0  # since the last mark
        with Reader(self._directory, storage=self._storage) as reader:
            for at, record in _placed(reader):
                if record[:1] == _RECORD:
                    records += 1
                    continue
                mark = self._mark(record, at)
                if mark.drops:
                    windows = {number: ended for number, ended in windows.items() if number <= mark.number}
                else:
                    skipped = records - mark.own
                    windows[mark.number] = _Window(mark.number, mark.own, skipped, at, mark.before, mark_at)
                mark_at, records = at, 0
        return windows, mark_at, records

    def _mark(self, record: bytes, at: Position) -> _Mark:
        """Return the mark in a record that is not an operator's. `DamagedState` if it is not a mark."""
        if len(record) == _MARK.size and record[0] in {_ENDS, _DROPS}:
            return _Mark(*_MARK.unpack(record))
        msg = (
            f"{self._directory!r} has a record at {at} that is not a manager's: found "
            f"{record[:1]!r}, expected {_RECORD!r}, {bytes([_ENDS])!r} or {bytes([_DROPS])!r}; it is a log of something else"
        )
        raise DamagedState(msg)

    # -- replay ----------------------------------------------------------------------------------------------------

    def _chosen(self, checkpointed: int, to: str) -> list[_Window]:
        """Return the windows to hand back. `DamagedState` if one is missing between what the state has and the first of them."""
        ended, last = list(self._windows.values()), NO_WINDOW
        if self._start is not None:
            ended = [window for window in ended if window.end >= self._start.end]
            last = self._start.before
        elif to == "window":
            ended, last = [window for window in ended if window.number > checkpointed], checkpointed
        chosen = ended if to == "window" else [window for window in ended if window.number <= checkpointed]
        self._check_no_gap(chosen, last)
        return chosen

    def _check_no_gap(self, windows: list[_Window], last: int) -> None:
        """Raise `DamagedState` if the first of the windows does not follow `last`, or one of them lacks records."""
        for window in windows:
            if window.before > last or window.skipped < 0:
                msg = (
                    f"{self._directory!r} begins after window {last}, the last one that the state has, with "
                    f"window {window.number}: those between were committed and purged; restore a later state"
                )
                raise DamagedState(msg)
            last = window.number

    def _drop_after(self, window: int) -> None:
        """Take the log back to the end of this window; on return that is durable."""
        self._last_mark, self._left = self._writer.append(_MARK.pack(_DROPS, window, 0, self.flushed)), 0
        self._writer.flush()
        self._windows = {number: ended for number, ended in self._windows.items() if number <= window}
        self._begin, self.flushed = self._writer.sequence, window

    def _hand_back(self, windows: list[_Window]) -> None:
        if not windows:
            return
        with Reader(self._directory, storage=self._storage) as reader:
            at: Position | None = None  # the last mark that the reader has passed
            for window in windows:
                if window.mark_before != at and window.mark_before is not None:
                    reader.seek(window.mark_before)
                    reader.advance()
                records = self._own(reader, window)
                if self._singly:
                    for record in records:
                        check_done("recover", self._recover(record))
                else:
                    check_done("recover", self._recover(window.number, list(records)))
                at = window.end

    def _own(self, reader: Reader, window: _Window) -> Iterator[Any]:
        """Yield the window's own records, as they were appended, and leave the reader after its end."""
        for _ in range(window.skipped):
            reader.advance()
        for _ in range(window.own):
            at = reader.position
            reader.advance()
            yield self._loaded(reader.get()[1:], at)
        reader.advance()

    def _loaded(self, data: bytes, at: Position) -> Any:  # noqa: ANN401 - what the serializer returns
        if self._serializer is None:
            return data
        try:
            return self._serializer.loads(data)
        except Exception as error:  # a user's function may raise anything
            msg = (
                f"the record at {at} of {self._directory!r} ({data[:40]!r}) cannot be read by the serializer's loads: "
                f"{type(error).__name__}: {error}; give the serializer that it was written with"
            )
            raise DamagedState(msg) from error


class _Mark(NamedTuple):
    """The end of a window, or a drop, as it is in the log."""

    kind: int
    number: int
    own: int
    before: int

    @property
    def drops(self) -> bool:
        """Whether the log was taken back to the end of this window."""
        return self.kind == _DROPS


def _placed(reader: Reader) -> Iterator[tuple[Position, bytes]]:
    """Yield the remaining records, each with its position."""
    for batch in reader.batches():
        for index, record in enumerate(batch.records()):
            yield batch.position(index), record


def _nothing(position: Position) -> _Window:
    """Return a placeholder for the window after the last one that has ended."""
    return _Window(_NUMBERS_END, 0, 0, position, NO_WINDOW, None)


def _encoded(data: Any) -> Any:  # noqa: ANN401 - what a user's function returns
    """Return text as UTF-8, and anything else unchanged. `OptionError` for half of a surrogate pair."""
    try:
        return data.encode() if isinstance(data, str) else data
    except UnicodeEncodeError as error:
        msg = f"serializer.dumps returned text that is not UTF-8 ({error}); have it return bytes, or escape such characters"
        raise OptionError(msg) from error


def _takes_a_record(recover: Any) -> bool:  # noqa: ANN401 - it is checked here
    """Tell whether `recover` accepts a record, and not a window and its records. `OptionError` if it accepts neither."""
    signature = signature_of(recover) if callable(recover) else None
    if signature is not None and _binds(signature, "record"):
        needed = [p for p in signature.parameters.values() if p.default is p.empty and p.kind in _POSITIONAL]
        if needed or not _binds(signature, "window", "records"):
            check_doing("recover", recover, "record")
            return True
    check_doing("recover", recover, "window", "records")
    return False


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _binds(signature: inspect.Signature, *given: str) -> bool:
    """Tell whether a function can be called with these arguments."""
    try:
        signature.bind(*given)
    except TypeError:
        return False
    return True
