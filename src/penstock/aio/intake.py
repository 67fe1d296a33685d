"""The entry of rows: they are admitted one by one while there is room, gathered into batches, and given to the slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.aio.element import Element
from penstock.aio.outcome import Carried

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from penstock.aio.deadlines import Deadlines
    from penstock.aio.outlet import Outlet
    from penstock.aio.queues import Queues
    from penstock.aio.settings import Settings
    from penstock.aio.state import OperatorState


def _never_due(element: Element, began: float) -> None:
    """Let a row take any time."""


class Intake:
    """Decides what a slot does next. `deadlines` are those of rows, if rows have deadlines."""

    def __init__(
        self,
        state: OperatorState,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        outlet: Outlet,
        queues: Queues,
        deadlines: Deadlines[Element] | None,
    ) -> None:
        self._state = state
        self._settings = settings
        self._loop = loop
        self._outlet = outlet
        self._queues = queues
        self._arm: Callable[[Element, float], None] = deadlines.arm if deadlines is not None else _never_due
        self._batched = settings.batch_size > 1
        self._admitted = 0
        self.ended = False  # no rows will be added
        self._gathered: list[Element] = []
        self._gather_timer: asyncio.TimerHandle | None = None

    @property
    def gathers(self) -> bool:
        """Tell whether some rows wait for a batch to be full."""
        return self._gather_timer is not None

    def wanted(self) -> int:
        """Return how many slots may have something to do."""
        state = self._state
        room = min(self._settings.capacity - state.held, len(state.backlog))
        return room + len(state.ready) + (self.ended and bool(self._gathered))

    def next(self) -> list[Element] | None:
        """Return what a slot does next; None if there is nothing."""
        ready = self._state.ready
        while ready:
            flight = [element for element in ready.popleft() if not element.decided]
            if flight:
                return flight
        if self._batched:
            return self._next_batch()
        element = self._admit()
        return None if element is None else [element]

    def _next_batch(self) -> list[Element] | None:
        size, gathered = self._settings.batch_size, self._gathered
        while len(gathered) < size and (element := self._admit()) is not None:
            gathered.append(element)
        is_last = self.ended and not self._state.backlog
        if len(gathered) == size or (gathered and is_last):
            return self._flush()
        if gathered:
            self._wait_for_more()
        return None

    def _wait_for_more(self) -> None:
        """Have the gathered rows sent when their time is over, counted from the first of them."""
        if self._gather_timer is None:
            self._gather_timer = self._loop.call_later(self._settings.batch_wait, self._waited)

    def _flush(self) -> list[Element] | None:
        self.close()
        gathered, self._gathered = self._gathered, []
        return [element for element in gathered if not element.decided] or None

    def _waited(self) -> None:
        flight = self._flush()
        if flight:
            self._state.ready.append(flight)
            self._state.fill()

    def close(self) -> None:
        """Cancel the timer."""
        if self._gather_timer is not None:
            self._gather_timer.cancel()
            self._gather_timer = None

    def _admit(self) -> Element | None:
        """Admit the next row that can be called now, if there is one and there is room."""
        # Every row passes through here, and most pass all of these checks; a function call for each check would cost
        # time for all rows.
        state, outlet, settings = self._state, self._outlet, self._settings
        backlog, capacity = state.backlog, settings.capacity
        while backlog and state.held < capacity and len(outlet.out) < capacity:
            if outlet.bytes + state.held * outlet.typical > settings.bytes_max and self._is_too_heavy():
                return None
            element = Element(self._admitted, backlog.popleft(), self._loop.time())
            self._admitted += 1
            state.held += 1
            outlet.enter(element)
            if type(element.row) is not Carried:
                state.counts.rows += 1
            elif self._resumed(element, element.row):
                continue
            if settings.cache is not None and self._is_known(element):
                continue
            self._arm(element, element.began)
            if self._queues.used and self._queues.waits(element):
                continue
            return element
        return None

    def _is_too_heavy(self) -> bool:
        """Tell whether more rows would have more outputs than may be in memory; one row at a time is always allowed."""
        if self._outlet.out:
            self._state.notify()
            return True
        return bool(self._state.held)

    def _is_known(self, element: Element) -> bool:
        """Give a row the outputs of an earlier call for its values, if they are kept; tell whether they were."""
        outputs = self._queues.kept_for(element, element.began)
        if outputs is None:
            return False
        self._state.counts.cached += 1
        element.outputs = list(outputs)
        self._settled(element)
        return True

    def _settled(self, element: Element) -> None:
        """Note that a row only has to be emitted."""
        element.decided = element.settled = True
        element.holds = 1
        self._outlet.settled(element)

    def _resumed(self, element: Element, carried: Carried) -> bool:
        """Restore a carried row's past; tell whether it only has to be emitted."""
        element.row = carried.row
        element.attempts = carried.attempts
        element.began -= carried.age
        if carried.outcome is None:
            return False
        element.attempts = carried.outcome.attempts
        element.outputs, element.failure = carried.outcome.outputs, carried.outcome.failure
        self._settled(element)
        return True
