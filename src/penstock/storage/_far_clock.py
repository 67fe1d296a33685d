"""The clock of a server, derived from this machine's clock: once a minute the server is asked how far its clock is ahead.

Failure: *this machine's clock is set.*
  1. The server is asked, and this machine's clock is then put forward by half a minute: by NTP, or because the machine was
     asleep.
  2. The derived time is half a minute ahead until the server is asked again, so files that are being written count as settled.
  Rule: the server is asked again if this machine's clock has not advanced by the same amount as the monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock import clock
from penstock.clock import SECOND_NS

if TYPE_CHECKING:
    from collections.abc import Callable

_BELIEVED_NS = 60 * SECOND_NS


@dataclass
class FarClock:
    """A server's clock: how far it was ahead, and when that was asked, by this machine's wall clock and by its monotonic clock."""

    ahead_ns: int = 0
    asked_ns: int | None = None
    asked_at: float = 0.0

    def now_ns(self, ahead: Callable[[], int]) -> int:
        """Return the server's time; `ahead` asks how many nanoseconds its clock is ahead of this machine's."""
        if not self._is_believed():
            self.ahead_ns = ahead()
            self.asked_ns, self.asked_at = clock.now_ns(), clock.monotonic()
        return clock.now_ns() + self.ahead_ns

    def _is_believed(self) -> bool:
        if self.asked_ns is None:
            return False
        passed_ns = clock.now_ns() - self.asked_ns
        set_ns = passed_ns - (clock.monotonic() - self.asked_at) * SECOND_NS
        return 0 <= passed_ns < _BELIEVED_NS and abs(set_ns) < SECOND_NS
