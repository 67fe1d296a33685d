"""A clock for tests."""

from __future__ import annotations

from penstock.clock import SECOND_NS


class FakeClock:
    """A clock that stands still until it is moved; sleeping moves it. Use it with `penstock.clock.use`."""

    def __init__(self, seconds: float = 1_000_000.0) -> None:
        self.seconds = seconds
        self.set_by = 0.0

    def jump(self, seconds: float) -> None:
        """Set the clock ahead by `seconds`, or back: no time passes, and `monotonic` does not change."""
        self.set_by += seconds

    def now_ns(self) -> int:
        """Return the time in nanoseconds since the epoch."""
        return round((self.seconds + self.set_by) * SECOND_NS)

    def monotonic(self) -> float:
        """Return the time in seconds."""
        return self.seconds

    def sleep(self, seconds: float) -> None:
        """Move on by `seconds` at once."""
        self.seconds += seconds
