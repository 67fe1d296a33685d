"""Settings of the interpreter for a process with many calls in flight: event loop, garbage collector, switching of threads."""

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

_YOUNG_OBJECTS = 20  # new objects, for each row in flight, before the garbage collector runs
_OBJECTS_MAX = (1 << 31) - 1  # that the garbage collector can count to
_TURN_SECONDS = 0.001  # for which a thread may run when another one waits
_SELECTABLE = 1024  # file descriptors below are for `select`

_in_flight: list[int] = []  # of each running task
# The original thresholds of the garbage collector, and the original switch interval in seconds.
_usual: list[float] = []
_lock = threading.Lock()


class _Punctual(selectors.DefaultSelector):
    """Waits with microsecond precision: epoll alone rounds up to whole milliseconds, a tenth of a call that takes ten."""

    def select(self, timeout: float | None = None) -> list[Any]:
        """Return what is ready, as soon as something is, or the time is over."""
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
    """Set the interpreter up for a task with so many rows in flight, while the task runs.

    *Garbage collector.* It examines all young objects whenever a few hundred new ones have come. A row in flight has
    about ten objects, all young. So a thousand rows would be examined again for every hundred rows that come, which is
    a third of a task's time. With this setting garbage may accumulate up to the amount that belongs to twice the rows
    in flight.

    *Threads.* The loop's thread and the task's thread switch every five milliseconds if neither has to wait. That is
    half of a call of ten milliseconds, in which no call ends and no other begins. With this setting they switch every
    millisecond.
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
    if first:  # 0 means that it is switched off
        objects = max(first, *(_YOUNG_OBJECTS * rows for rows in _in_flight), 0)
        gc.set_threshold(int(min(objects, _OBJECTS_MAX)), int(second), int(third))
    sys.setswitchinterval(min(turn, _TURN_SECONDS) if _in_flight else turn)
