"""Windows and their artifacts, on a log: one frame a window and owner, durable when `save` returns.

A *window* is what an engine counts (a batch, a checkpoint interval), an *owner* one of those that work on it side by side (a
partition), an *artifact* what the owner must have to do the window again: what it read, or where.

*Form.* A frame is one record of the log: a byte, 2; the window, the owner, and the first window that was not forgotten when it was
written (8 bytes each, little-endian, signed); then the artifact. Because it is one record, a window is whole or not there. What
`committed` writes is the frame of a window before that first one, of owner -2^63, whom nobody can be: it is forgotten as it is read.

The failures, and the rule that kills each:

1. A crash between the number of a window and its artifact leaves a window without one. Rule: one frame.
2. A process dies behind `save`'s write and before its sync; its successor hands the window out; the power fails, and the window is
   gone that somebody has used. Rule: whoever opens the log makes its end durable before it reads it (`wal.writer`, failure 8).
3. A window is saved, a crash takes the acknowledgement, and it is saved again: with the same artifact that is nothing; with
   another one somebody may have seen the first. Rule: that is refused; look first (`load`).
4. A window was saved by one owner and not by the other, and the run that follows has another number of owners. Rule: a
   window is complete when every owner that there was has it (`largest_completed`).
5. What was forgotten comes back, because whole segments go and a part of one stays. Rule: every frame says what was forgotten
   before it.
6. Windows are committed and nothing is saved behind that; the store is opened again, and they are there. Rule: `committed` writes a
   frame of its own, and makes it durable before the first segment goes: a purge that deletes the last frame that knew leaves this one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from contextlib import closing
from types import NoneType
from typing import TYPE_CHECKING

from penstock.arguments import flag, named, whole
from penstock.errors import DamagedState, OptionError, UsageError
from penstock.storage import locate
from penstock.wal import Log, Reader, Writer
from penstock.wal.writer import as_bytes

if TYPE_CHECKING:
    import os

    from penstock.storage import Storage
    from penstock.wal import Position

NO_WINDOW = -1
_FRAME = struct.Struct("<Bqqq")
_KIND = 2
_NOBODY = -(1 << 63)  # owner of the frame of a window that is forgotten by that frame: what `committed` writes
_NUMBERS_END = 1 << 63


@named
class WindowStore:
    """The windows in `directory`, which is made if need be. Not shared between threads; `Locked` if another process has it open."""

    def __init__(
        self, directory: str | os.PathLike[str], *, segment_size: str | int = "64m", storage: Storage | None = None
    ) -> None:
        self._storage, self._directory = locate(directory, storage=storage)
        self._at: dict[int, dict[int, Position]] = {}  # window -> owner -> its frame
        self._last: dict[int, int] = {}  # owner -> its last window
        self._first = 0  # of those that are not forgotten
        whole = not self._storage.reads_open  # so that what is saved can be loaded while the store is open
        self._writer = Writer(self._directory, segment_size=segment_size, whole=whole, storage=self._storage)
        try:
            self._find()
        except BaseException:  # whatever it is, the lock must not outlive it
            self._writer.close()
            raise

    def save(self, window: int, artifact: bytes, owner: int = 0) -> None:
        """Keep the artifact; it is durable on return. `UsageError` if the owner has saved this window or a later one.

        The same artifact again for its last window is no error. Behind a failure (`StorageError`) the window may be kept or not, and
        nothing more can be saved: open the store again, and look.
        """
        window, owner, artifact = _window(window), _owner(owner), as_bytes(artifact)
        if max(window, owner, -owner) >= _NUMBERS_END:
            msg = f"window {window} of owner {owner} cannot be saved: expected numbers below 2^63, which is what a frame has room for"
            raise UsageError(msg)
        last = self._last.get(owner, NO_WINDOW)
        if window == last and self.load(window, owner) == artifact:
            return
        if window <= max(last, self._first - 1):
            msg = (
                f"window {window} of owner {owner} cannot be saved in {self._directory!r}: expected one behind "
                f"{max(last, self._first - 1)}, the last that was saved or forgotten; load it instead"
            )
            raise UsageError(msg)
        at = self._writer.append(_FRAME.pack(_KIND, window, owner, self._first) + artifact)
        self._writer.flush()
        self._keep(window, owner, at)

    def load(self, window: int, owner: int = 0) -> bytes | None:
        """Return the artifact; `None` if the owner has not saved the window, or it is forgotten."""
        at = self.position(window, owner)
        return None if at is None else artifact_at(self._directory, at, storage=self._storage)

    def load_all(self, window: int) -> dict[int, bytes]:
        """Return what each owner has saved of a window, by owner, in order."""
        kept = sorted(self._at.get(_window(window), {}).items())
        return {owner: artifact_at(self._directory, at, storage=self._storage) for owner, at in kept}

    def position(self, window: int, owner: int = 0) -> Position | None:
        """Return where the artifact is, for `artifact_at` in another process; `None` as `load`."""
        return self._at.get(_window(window), {}).get(_owner(owner))

    def largest_completed(self, owners: Iterable[int] | None = None) -> int:
        """Return the last window that every owner has saved, that is the smallest of their last ones; `NO_WINDOW` if one has none.

        `owners` are those of the run that saved: one of them that has saved nothing has completed nothing. Without it, they are
        all that have saved a window that is not forgotten. So it is asked after a change of their number: one that is gone still
        counts, until its windows are forgotten, and one that is new does not.
        """
        given: object = owners
        if not isinstance(given, (Iterable, NoneType)):
            msg = f"owners={owners!r}; expected several, such as [{owners!r}]"
            raise OptionError(msg)
        asked = self._last if owners is None else map(_owner, owners)
        return min((self._last.get(owner, NO_WINDOW) for owner in asked), default=NO_WINDOW)

    def committed(self, window: int, *, lazily: bool = False) -> list[int]:
        """Forget the windows before this one, for all owners; return the segments that went. On return they do not come back.

        That takes a flush. `lazily` leaves it to the next `save`: until then a restart may find them again, and whoever has them
        forgotten again at each start, as `Replay` does, loses nothing by that. Raises as `save` does behind a failure.
        """
        window = _window(window)
        if window > self._first:
            if window >= _NUMBERS_END:
                msg = f"window {window} cannot be committed: expected a number below 2^63, which is what a frame has room for"
                raise UsageError(msg)
            if not flag(lazily, name="lazily"):
                self._writer.append(_FRAME.pack(_KIND, window - 1, _NOBODY, window))
                self._writer.flush()
            self._forget(window)
        kept = [at for saved in self._at.values() for at in saved.values()]
        return Log(self._directory, storage=self._storage).purge(min(kept, default=self._writer.position))

    def close(self) -> None:
        """Let the store go. Idempotent."""
        self._writer.close()

    def __enter__(self) -> WindowStore:
        """Return itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""
        self._writer.__exit__(*exc)

    def _find(self) -> None:
        with closing(Reader(self._directory, storage=self._storage)) as reader:
            for batch in reader.batches():
                for index, record in enumerate(batch.records()):
                    self._take_in(record, batch.position(index))

    def _take_in(self, record: bytes, at: Position) -> None:
        """Note the frame that this record is, and what it forgets; `DamagedState` if it is none."""
        kind, window, owner, first = _FRAME.unpack_from(record) if len(record) >= _FRAME.size else 4 * (-1,)
        if kind != _KIND:
            msg = (
                f"{self._directory!r} has a record at {at} that is no window: found {record[:1]!r}, "
                f"expected {bytes([_KIND])!r}; it is a log of something else, give the windows a directory of their own"
            )
            raise DamagedState(msg)
        self._keep(window, owner, at)
        self._forget(first)

    def _keep(self, window: int, owner: int, at: Position) -> None:
        self._at.setdefault(window, {})[owner] = at
        self._last[owner] = window

    def _forget(self, first: int) -> None:
        if first > self._first:
            self._first = first
            self._at = {window: saved for window, saved in self._at.items() if window >= first}
            self._last = {owner: last for owner, last in self._last.items() if last >= first}


def _window(number: object) -> int:
    return whole(number, name="window", example=7)


def _owner(number: object) -> int:
    return whole(number, name="owner", example=0)


def artifact_at(directory: str, position: Position, *, storage: Storage | None = None) -> bytes:
    """Return the artifact whose frame is at this position, without opening the store; `PositionError` if it is forgotten."""
    with Reader(directory, position, storage=storage) as reader:
        reader.advance()
        return reader.get()[_FRAME.size :]
