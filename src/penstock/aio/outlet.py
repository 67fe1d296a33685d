"""The exit of rows with an outcome: in order if that was asked for, weighed, and handed over when there are enough."""

from __future__ import annotations

from collections import deque
from sys import getsizeof
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection

    from penstock.aio.element import Element
    from penstock.aio.outcome import RowOutcome
    from penstock.aio.state import OperatorState

_LARGE = 64 << 10
_SAMPLE = 16  # one in so many small outputs is weighed


class Outlet:
    """Where admitted rows leave. `enter` is called for each row when it is admitted, `settled` when it has its outcome."""

    def __init__(self, state: OperatorState, loop: asyncio.AbstractEventLoop, *, ordered: bool, enough: int) -> None:
        self._state = state
        self._loop = loop
        self._enough = enough
        self._order: deque[Element] = deque()  # rows not emitted yet, if they are emitted in order,
        self._open: dict[Element, None] = {}  # and if they are not
        self._inside: Collection[Element] = self._order if ordered else self._open
        self.enter: Callable[[Element], None] = self._order.append if ordered else self._open.setdefault
        self.settled: Callable[[Element], None] = self._emit_in_order if ordered else self._emit_at_once
        self.out: deque[RowOutcome] = deque()
        self.bytes = 0  # of outputs that were not taken yet
        self.typical = 0  # bytes of one row's recent outputs
        self._notified = False

    @property
    def empty(self) -> bool:
        """Tell whether every admitted row was emitted. Any thread."""
        return not self._inside

    def inside(self) -> list[Element]:
        """Return the rows that were admitted and not yet emitted, in order of admission."""
        return list(self._inside)

    def take(self, most: int) -> list[RowOutcome]:
        """Return up to `most` emitted outcomes; any thread, but one at a time."""
        out = self.out
        taken = [out.popleft() for _ in range(min(len(out), most))]
        if taken:
            self._loop.call_soon_threadsafe(self._took, len(taken))
        return taken

    def _took(self, rows: int) -> None:
        self.bytes = max(self.bytes - self.typical * rows, 0) if self.out else 0
        self._notified = False
        self._notify_of_enough()
        self._state.fill()

    def _emit_at_once(self, element: Element) -> None:
        del self._open[element]
        self._emit(element)

    def _emit_in_order(self, element: Element) -> None:  # noqa: ARG002 - it does not matter which row: the head decides
        order = self._order
        while order and order[0].settled:
            self._emit(order.popleft())

    def _emit(self, element: Element) -> None:
        """Emit a settled row."""
        if self.typical > _LARGE or not element.index % _SAMPLE:
            weight = sum(getsizeof(value) for output in element.outputs for value in output)
            self.typical = max(weight, self.typical * 7 // 8)
        self.bytes += self.typical
        self.out.append(element)
        element.holds -= 1
        if not element.holds:
            self._state.let_go()
        if not self._notified:
            self._notify_of_enough()

    def _notify_of_enough(self) -> None:
        """Notify once, immediately: the loop may bring a thousand rows to their outcomes before its next turn."""
        if self.out and (len(self.out) >= self._enough or not self._inside):
            self._notified = True  # until some are taken
            self._state.notify()
