"""The interpreter of a process that has many calls in flight: its event loop, its garbage collector, the turns of its threads."""

from __future__ import annotations

import asyncio
import gc
import select
import selectors
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_YOUNG_OBJECTS = 20  # that may have come, for each row in flight, before the garbage collector looks
_OBJECTS_MAX = (1 << 31) - 1  # that the garbage collector can count to
_TURN_SECONDS = 0.001  # that a thread has when another one waits
_SELECTABLE = 1024  # file descriptors below are for `select`

_in_flight: list[int] = []  # of the tasks at work
_usual: list[float] = []  # the garbage collector's thresholds when none is, and the seconds of a thread's turn
_lock = threading.Lock()


class _Punctual(selectors.DefaultSelector):
    """Waits to the microsecond: epoll alone rounds up to whole milliseconds, a tenth of a call that takes ten."""

    def select(self, timeout: float | None = None) -> list[Any]:
        """Return what is ready, once something is or the time is over."""
        if timeout is not None and timeout > 0 and self.fileno() < _SELECTABLE:
            select.select([self], [], [], timeout)
            timeout = 0
        ready: list[Any] = super().select(timeout)
        return ready


def new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop for many short calls."""
    return asyncio.SelectorEventLoop(_Punctual()) if sys.platform == "linux" else asyncio.new_event_loop()


@contextmanager
def tuned(in_flight: int) -> Iterator[None]:
    """Set the interpreter for a task with so many rows in flight, while it is at work.

    *Garbage collector.* It looks at all young objects whenever there are some hundred more of them. A row in flight has about ten, all
    young, so a thousand of them would be looked at again for every hundred rows that come: a third of a task's time. Now garbage
    may wait until there is as much of it as belongs to twice the rows in flight.

    *Threads.* The loop's and the task's take turns of five milliseconds if nothing makes them wait: half a call of ten, in which no
    call ends and no other begins. Now it is one.
    """
    with _lock:
        if not _in_flight:
            _usual[:] = *gc.get_threshold(), sys.getswitchinterval()
        _in_flight.append(in_flight)
        _tune()
    try:
        yield
    finally:
        with _lock:
            _in_flight.remove(in_flight)
            _tune()


def _tune() -> None:
    first, second, third, turn = _usual
    if first:  # else it does not look at all
        objects = max(first, *(_YOUNG_OBJECTS * rows for rows in _in_flight), 0)
        gc.set_threshold(int(min(objects, _OBJECTS_MAX)), int(second), int(third))
    sys.setswitchinterval(min(turn, _TURN_SECONDS) if _in_flight else turn)
