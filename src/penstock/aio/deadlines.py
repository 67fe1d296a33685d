"""Deadlines that all have the same length, so that they come in the order in which they began, and one timer serves all."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.aio.element import Element, Slot

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

_T = TypeVar("_T", Element, Slot)


class Deadlines(Generic[_T]):
    """Things that have `seconds` from when they were armed; `expire` is called for each whose time is over. On the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, expire: Callable[[_T], None]) -> None:
        self._loop = loop
        self.seconds = seconds
        self._expire: Callable[[_T], None] = expire
        self._due: dict[_T, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def arm(self, who: _T, began: float) -> None:
        """Count from `began`, which must not be earlier than that of the previous call."""
        due = self._due[who] = began + self.seconds
        if self._timer is None:
            self._wind(due)

    def disarm(self, who: _T) -> None:
        """Forget a deadline. The timer stays, and finds nothing to do."""
        self._due.pop(who, None)

    def of(self, who: _T) -> float | None:
        """Return when the time is over; None if it is not armed."""
        return self._due.get(who)

    def _ring(self) -> None:
        now, self._timer = self._loop.time(), None
        expired = list(takewhile(lambda item: item[1] <= now, self._due.items()))
        for who, _ in expired:
            del self._due[who]
        for who, _ in expired:
            self._expire(who)
        for due in self._due.values():
            self._wind(due)
            break

    def _wind(self, due: float) -> None:
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._ring)

    def close(self) -> None:
        """Cancel the timer."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
