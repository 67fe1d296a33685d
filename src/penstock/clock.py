"""The clock: the only place that asks what time it is.

Wall-clock times are nanoseconds since the epoch (`int`), the unit of file systems; they are used for
ages and names, never to decide what is committed. Tests put their own clock in with `use`.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

SECOND_NS = 1_000_000_000


class Clock(Protocol):
    """What Penstock needs from a clock."""

    def now_ns(self) -> int:
        """Return the wall-clock time in nanoseconds since the epoch."""

    def monotonic(self) -> float:
        """Return seconds from a clock that never goes back; only differences have a meaning."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's clock."""

    def now_ns(self) -> int:
        """Return the wall-clock time in nanoseconds since the epoch."""
        return time.time_ns()

    def monotonic(self) -> float:
        """Return seconds from a clock that never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


_current: Clock = SystemClock()


def now_ns() -> int:
    """Return the wall-clock time in nanoseconds since the epoch."""
    return _current.now_ns()


def monotonic() -> float:
    """Return seconds from a clock that never goes back; only differences have a meaning."""
    return _current.monotonic()


def sleep(seconds: float) -> None:
    """Wait `seconds`."""
    _current.sleep(seconds)


def spent() -> float:
    """Return the processor seconds of this process; only differences have a meaning. Not part of `Clock`: no code waits for it."""
    return time.process_time()


@contextmanager
def use(clock: Clock) -> Iterator[None]:
    """Replace the clock of this process for the length of the block (tests only)."""
    global _current  # noqa: PLW0603 - one clock a process is the point of this module
    before, _current = _current, clock
    try:
        yield
    finally:
        _current = before
