"""An event loop whose time passes only when there is nothing to do: tests of asynchronous code need not sleep."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

_T = TypeVar("_T")
_THREADS_SECONDS = 5.0  # how long a test may wait for a thread when nothing else is left


class _Selector(selectors.DefaultSelector):
    """Moves the loop's time on to the next timer instead of waiting."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        ready: list[Any] = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:  # only a thread can wake it
            ready = super().select(_THREADS_SECONDS)
            if not ready:
                msg = "nothing will ever happen: no timer is armed, and no thread calls"
                raise RuntimeError(msg)
            return ready
        self.loop.advance(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose `time()` stands still until everything that can be done is done, and then jumps to the next timer.

    For code without real I/O: a socket's answer takes real time, and timers would not wait for it.
    """

    def __init__(self) -> None:
        self._virtual = 0.0
        selector = _Selector()
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        """Return the virtual seconds since the beginning."""
        return self._virtual

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._virtual += seconds


def run_virtual(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end on a `VirtualLoop`; tasks that it leaves running are cancelled."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
