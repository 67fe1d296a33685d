"""Windows and their artifacts, on a log: one frame a window and owner, durable when `save` returns.

A *window* is what an engine counts (a batch, a checkpoint interval), an *owner* is one of the workers that process it in parallel (a
partition), an *artifact* is what the owner needs to process the window again: what it read, or where.

*Form.* A frame is one record of the log: a byte, 2; the window, the owner, and the first window that was not forgotten when the frame
was written (8 bytes each, little-endian, signed); then the artifact. Because it is one record, a window is whole or not there.
`committed` writes a frame of the window before that first one, for owner -2^63, a number that no owner can have. Reading this frame
forgets its own window.

The failures, and the rule that prevents each:

1. A crash between the number of a window and its artifact leaves a window without one. Rule: one frame.
2. A process dies after the write of `save` and before its sync; its successor hands the window out; the power fails, and a window that
   somebody has used is gone. Rule: whoever opens the log makes its end durable before it reads it (`wal.writer`, failure 8).
3. A window is saved, a crash prevents the acknowledgement, and it is saved again. With the same artifact this changes nothing; with
   another one, somebody may have seen the first. Rule: another artifact is refused; the caller must look first (`load`).
4. A window was saved by one owner and not by the other, and the next run has another number of owners. Rule: a window is complete when
   every owner of the run that saved it has saved it (`largest_completed`).
5. A forgotten window comes back, because only whole segments are deleted. Rule: every frame says which windows were forgotten before it
   was written.
6. Windows are committed and nothing is saved afterwards; the store is opened again, and the windows are back. Rule: `committed` writes
   a frame of its own, and makes it durable before the first segment is deleted. If the purge deletes every other frame that knew, this
   one is left.
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
_NOBODY = -(1 << 63)  # owner of the frame that `committed` writes, whose own window it forgets
_NUMBERS_END = 1 << 63


@named
class WindowStore:
    """The windows in `directory`, which is created if needed. Not shared between threads; `Locked` if another process has it open."""

    def __init__(
        self, directory: str | os.PathLike[str], *, segment_size: str | int = "64m", storage: Storage | None = None
    ) -> None:
        self._storage, self._directory = locate(directory, storage=storage)
        self._at: dict[int, dict[int, Position]] = {}  # window -> owner -> its frame
        self._last: dict[int, int] = {}  # owner -> its last window
        self._first = 0  # the first window that is not forgotten,
        self._noted = 0  # and the first one that is not, according to what is durable
        whole = not self._storage.reads_open  # so that what is saved can be loaded while the store is open
        self._writer = Writer(self._directory, segment_size=segment_size, whole=whole, storage=self._storage)
        try:
            self._find()
        except BaseException:  # whatever the error is, the lock must not outlive it
            self._writer.close()
            raise

    def save(self, window: int, artifact: bytes, owner: int = 0) -> None:
        """Keep the artifact; it is durable on return. `UsageError` if the owner has saved this window or a later one.

        The same artifact again for its last window is no error. After a failure (`StorageError`) the window may or may not be kept, and
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
                f"window {window} of owner {owner} cannot be saved in {self._directory!r}: expected one after "
                f"{max(last, self._first - 1)}, the last that was saved or forgotten; load it instead"
            )
            raise UsageError(msg)
        at = self._writer.append(_FRAME.pack(_KIND, window, owner, self._first) + artifact)
        self._writer.flush()
        self._noted = self._first
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
        """Return the last window that every owner has saved: the smallest of their last windows; `NO_WINDOW` if an owner has saved none.

        `owners` are the owners of the run that saved: one of them that has saved nothing has completed nothing. Without `owners`, all
        count that have saved a window that is not forgotten. So give `owners` after their number has changed: without it, an owner that
        is gone still counts until its windows are forgotten, and a new owner does not.
        """
        given: object = owners
        if not isinstance(given, (Iterable, NoneType)):
            msg = f"owners={owners!r}; expected several, such as [{owners!r}]"
            raise OptionError(msg)
        asked = self._last if owners is None else map(_owner, owners)
        return min((self._last.get(owner, NO_WINDOW) for owner in asked), default=NO_WINDOW)

    def committed(self, window: int, *, lazily: bool = False) -> list[int]:
        """Forget the windows before this one, for all owners; return the segments that were deleted. Forgotten windows do not come back.

        This takes a flush. `lazily` leaves the flush to the next `save`: until then a restart may find the windows again. A caller that
        has them forgotten again at each start, as `Replay` does, loses nothing by that. Raises as `save` does after a failure.
        """
        window = _window(window)
        if window >= _NUMBERS_END:
            msg = (
                f"window {window} cannot be committed: expected a number below 2^63, which is what a frame has room for"
            )
            raise UsageError(msg)
        first = max(window, self._first)
        if not flag(lazily, name="lazily") and window > self._noted:
            self._writer.append(_FRAME.pack(_KIND, first - 1, _NOBODY, first))
            self._writer.flush()
            self._noted = first
        self._forget(window)
        kept = [at for saved in self._at.values() for at in saved.values()]
        return Log(self._directory, storage=self._storage).purge(min(kept, default=self._writer.position))

    def close(self) -> None:
        """Close the store. Idempotent."""
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
        """Note the frame in this record, and the windows that it forgets; `DamagedState` if the record is not a frame."""
        kind, window, owner, first = _FRAME.unpack_from(record) if len(record) >= _FRAME.size else 4 * (-1,)
        if kind != _KIND:
            msg = (
                f"{self._directory!r} has a record at {at} that is not a window: found {record[:1]!r}, "
                f"expected {bytes([_KIND])!r}; it is a log of something else, give the windows a directory of their own"
            )
            raise DamagedState(msg)
        self._keep(window, owner, at)
        self._forget(first)
        self._noted = self._first

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
