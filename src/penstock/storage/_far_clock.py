"""The clock of a server, by this machine's: asked once a minute by how much it is ahead.

Failure: *this machine's clock is set.*
  1. It is asked, and this machine's clock is then put forward by half a minute: NTP, or a machine that was asleep.
  2. The server's is told half a minute ahead, until it is asked again: what is being written counts as settled.
  Rule: it is asked again where this machine's clock has not gone on as the time has that only goes on.
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
    """What is known of a server's clock: by how much it was ahead, and when it was asked, by this machine's clock and by the other one."""

    ahead_ns: int = 0
    asked_ns: int | None = None
    asked_at: float = 0.0

    def now_ns(self, ahead: Callable[[], int]) -> int:
        """Return the server's time; `ahead` asks by how much it is ahead of this machine's."""
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
