"""A stream made of a function whose results can be read only once: a queue, a poll, a socket.

A batch of it is a *window*: what one call of the function returned, saved before anybody sees it. The offset is the number of the
window, so a batch that is repeated is read from the store. The engine calls `latest(start)` only when the batch that ended at `start`
is committed. Then upstream is told that it may forget that batch (`acknowledge`), and only after that is the function called again.

The failures, and the rule that prevents each:

1. The function returns items, the batch runs, the driver dies; upstream does not have these items any more. Rule: they are durable
   before their offset is given to the engine.
2. The items are saved; the driver dies before the engine has their offset. Rule: if the store has a window after `start`, that window
   is handed out before anything is read.
3. Upstream is told that it may forget the items; the driver dies, and the batch is repeated. Rule: upstream is told when the batch is
   committed, and the window is kept until the next one is committed, too.
4. The items are saved and not acknowledged; the driver dies; upstream gives them again, to the next driver, which also has them in the
   store. Rule: the function is called only when all that it returned before is committed and acknowledged.
5. The acknowledgement is lost, or the driver dies before it. Rule: the last window is acknowledged again at each start. So upstream
   must accept an acknowledgement twice.
6. The driver dies between the return of the function and the end of `save`. Nobody has seen the items, and upstream has not been told.
   So upstream must give them again. If upstream forgets what it hands out, the items are lost at this point, whoever reads them.
7. The engine's checkpoint is lost or restored and the store is not, or the other way round: windows would be left out, or other windows
   would come under their numbers. Rule: the store ends with the window of `start` or with the next one, else `CheckpointMismatch`.
8. As 7, and the store was written on since, by a query with another checkpoint, so that the numbers fit again. Rule: an offset has the
   checksum of its window, which is compared when the window is acknowledged or read again.

The engine's own word for "committed" comes one batch late, and never for the last batch of a run that ends. `latest` is called for
every batch, before the next read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import xxhash

from penstock import failpoints
from penstock.errors import CheckpointMismatch, DamagedState
from penstock.windows.store import NO_WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.wal import Position
    from penstock.windows.store import WindowStore

VERSION = 1


class Replay:
    """The stream of one query over its store. Lives in the driver, as long as the query; not shared between threads.

    `read(last)` is given what it returned last, in this run or an earlier one, and `None` at first. It returns `None` if there is
    nothing new. `acknowledge(window)` is given what `read` returned. It is called once that is committed, in order, and again at each
    start.
    """

    def __init__(
        self,
        store: WindowStore,
        read: Callable[[bytes | None], bytes | None],
        acknowledge: Callable[[bytes], object] | None = None,
    ) -> None:
        self._store = store
        self._read = read
        self._acknowledge = acknowledge
        # The window up to which upstream was told in this run; `_last` is its artifact.
        self._committed: int | None = None
        self._last: bytes | None = None
        self._offset: dict[str, Any] | None = None  # the last one that was planned in this run

    @staticmethod
    def initial() -> dict[str, Any]:
        """Return the offset before the first window."""
        return {"v": VERSION, "window": NO_WINDOW}

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        """Return the offset of the window after `start`, whose batch is committed; `start` itself if there is nothing new."""
        window, saved = _window(start), self._store.largest_completed([0])
        if saved not in {window, window + 1}:
            msg = (
                f"the checkpoint is at window {window} and the store ends with window {saved}, expected {window} or {window + 1}: "
                "they are of different times; put both back as they were, or give a new checkpoint a new store"
            )
            raise CheckpointMismatch(msg)
        if window != self._committed:
            self._check(start)
            self._commit(window)
        artifact = self._store.load(window + 1) if saved != window else self._read(self._last)
        if artifact is None:
            return start
        if saved == window:
            failpoints.hit("windows.read")
            self._store.save(window + 1, artifact)
            failpoints.hit("windows.saved")
        self._offset = {"v": VERSION, "window": window + 1, "check": _check_of(artifact)}
        return dict(self._offset)

    def position(self, end: dict[str, Any]) -> Position:
        """Return where the window that ends at this offset is, for `windows.artifact_at` in a task; `DamagedState` if it is gone."""
        at = self._store.position(_window(end))
        if at is None:
            msg = f"window {_window(end)}, which the checkpoint asks for, is not in the store; restore it with the checkpoint"
            raise DamagedState(msg)
        self._check(end)
        return at

    def _commit(self, window: int) -> None:
        """Acknowledge the window upstream, and forget what no replay can ask for."""
        self._last = self._store.load(window)
        if self._last is not None:
            if self._acknowledge is not None:
                self._acknowledge(self._last)
            failpoints.hit("windows.acknowledged")
            self._store.committed(window, lazily=True)
        self._committed = window

    def _check(self, offset: dict[str, Any]) -> None:
        """Raise `CheckpointMismatch` if the store has another window than an offset of an earlier run; older ones do not tell."""
        if offset == self._offset or "check" not in offset:
            return
        check = _check_of(self._store.load(_window(offset)) or b"")
        if check != offset["check"]:
            msg = (
                f"window {_window(offset)} of the store is another one than the checkpoint's: found the checksum {check}, expected "
                f"{offset['check']}: the store was put back and written on by another query; put both back as they were, or give a new "
                "checkpoint a new store"
            )
            raise CheckpointMismatch(msg)


def _check_of(artifact: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(artifact)


def _window(offset: Any) -> int:  # noqa: ANN401 - whatever JSON the checkpoint has
    window = offset.get("window") if isinstance(offset, dict) and offset.get("v") == VERSION else None
    if type(window) is not int or window < NO_WINDOW:
        msg = f"the checkpoint has the offset {offset!r}, expected one such as {{'v': {VERSION}, 'window': 7}}; restore it from a copy"
        raise DamagedState(msg)
    return window
