"""The limits at which a part is closed: size, rows, age, idleness and batches.

The task checks size and rows (`parts`): it closes a part before the record that would pass the limit. The driver checks time: a
batch uses one time, taken when it began, so that all its tasks, and a replay of a task, agree. A part whose time is up is closed
*without* the rows of the new batch, because it should have been closed before they came; they open another part. A part without
rows does not exist, so none is ever closed for its time. What a batch wrote counts as written when it is committed: if it counted
from the beginning, a stream whose batches take longer than the limit of idleness would never be idle, and leave a file each time.

*A clock that was ahead* by a year, and was set right: the parts that it opened or wrote to would look young for a year, and stay
hidden as long if their bucket gets no more rows. Rule: a part is also closed if its times are in the future by more than the
limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.options import Options
    from penstock.sink.ledger import OpenPart

_NEVER = 1 << 62


@dataclass(frozen=True)
class Limits:
    """When to close a part; `None` means never. Sizes are in bytes, times in nanoseconds."""

    size: int
    rows: int | None
    interval_ns: int
    inactivity_ns: int
    batches: int | None

    @staticmethod
    def of(options: Options) -> Limits:
        """Return the limits that the sink options set."""
        return Limits(
            options["rollSize"],
            options["rollRows"],
            options["rollInterval"],
            options["rollInactivity"],
            options["rollBatches"],
        )

    @staticmethod
    def never() -> Limits:
        """Return limits that never close a part, for growing files."""
        return Limits(_NEVER, None, _NEVER, _NEVER, None)

    def expires_ns(self, part: OpenPart) -> int:
        """Return the time at which age or idleness closes the part, by a correct clock."""
        return min(part.opened_ns + self.interval_ns, part.written_ns + self.inactivity_ns)

    def expired(self, part: OpenPart, now_ns: int) -> bool:
        """Tell whether age or idleness closes the part at `now_ns`, or whether its times come from a clock that was ahead."""
        return self.expiring(now_ns)(part)

    def expiring(self, now_ns: int) -> Callable[[OpenPart], bool]:
        """Return the function `expired` for one moment, to call for many parts."""
        old_ns, idle_ns = now_ns - self.interval_ns, now_ns - self.inactivity_ns
        ahead_ns, later_ns = now_ns + self.interval_ns, now_ns + self.inactivity_ns
        return lambda part: not (old_ns < part.opened_ns < ahead_ns and idle_ns < part.written_ns < later_ns)

    def ends_with(self, first_batch: int, batch: int) -> bool:
        """Tell whether a part that was opened in `first_batch` is closed at the end of `batch`."""
        return self.batches is not None and batch - first_batch + 1 >= self.batches

    def next_look_ns(self, parts: Iterable[OpenPart], now_ns: int) -> int | None:
        """Return when the next part expires, not before `now_ns`; `None` if none is open."""
        expired = self.expiring(now_ns)
        return min((now_ns if expired(part) else self.expires_ns(part) for part in parts), default=None)
