"""The slots of an operator: coroutines that take rows, make their calls one attempt after the other, and bring them to their outcome."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from penstock.aio.deadlines import Deadlines
from penstock.aio.element import Slot

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from penstock.aio.calling import Calling
    from penstock.aio.element import Element
    from penstock.aio.intake import Intake
    from penstock.aio.pace import Pace
    from penstock.aio.queues import Queues
    from penstock.aio.settings import Settings
    from penstock.aio.settling import Settling
    from penstock.aio.state import OperatorState

GRACE_SECONDS = 1.0  # within which a cancelled attempt must end, or its row is given up


class Slots:
    """Up to `capacity` slots, which are made when there is something for them to do."""

    def __init__(
        self,
        state: OperatorState,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        *,
        intake: Intake,
        calling: Calling,
        settling: Settling,
        queues: Queues,
        pace: Pace | None,
    ) -> None:
        self._state = state
        self._settings = settings
        self._loop = loop
        self._intake = intake
        self._calling = calling
        self._settling = settling
        self._queues = queues
        self._pace = pace
        self._deadlines = Deadlines(loop, settings.attempt_timeout, self._expired) if settings.attempt_timeout else None
        self._slots: set[Slot] = set()

    def flights(self) -> list[list[Element]]:
        """Return the rows of each slot that has rows."""
        return [slot.flight for slot in self._slots if slot.flight]

    def fill(self) -> None:
        """Start or wake as many slots as may have something to do."""
        state = self._state
        if state.closed or state.failure is not None:
            return
        wanted = self._intake.wanted()
        while wanted > 0 and state.parked:
            parked = state.parked.popleft()
            if not parked.done():
                parked.set_result(None)
                wanted -= 1
        while wanted > 0 and len(self._slots) < self._settings.capacity:
            slot = Slot()
            self._slots.add(slot)
            slot.task = self._loop.create_task(self._serve(slot))
            slot.task.add_done_callback(self._broken)
            wanted -= 1

    def cancel(self) -> list[asyncio.Task[None]]:
        """Cancel all slots; return their tasks."""
        if self._deadlines is not None:
            self._deadlines.close()
        for slot in self._slots:
            slot.end_grace()
        tasks = [slot.task for slot in self._slots if slot.task]
        for task in tasks:
            task.cancel()
        return tasks

    async def _serve(self, slot: Slot) -> None:
        """Run a slot: bring rows to their outcomes until the operator ends."""
        # The loop over attempts is part of this coroutine: a coroutine of its own would cost half a microsecond per
        # row.
        state, intake, calling, settling, deadlines = (
            self._state,
            self._intake,
            self._calling,
            self._settling,
            self._deadlines,
        )
        cancelling = getattr(slot.task, "cancelling", int)  # Python 3.10 does not count
        try:
            while not state.closed and state.failure is None:
                flight = intake.next()
                if flight is None:
                    parked = self._loop.create_future()
                    state.parked.append(parked)
                    await parked
                    continue
                slot.flight = flight
                for element in flight:
                    element.slot = slot
                left = flight
                while left:
                    try:
                        if self._pace is not None:
                            await self._pace.turn(self._loop)
                        slot.calling = True
                        answer = calling.attempt(left)
                        results = await (answer if deadlines is None else self._limited(deadlines, slot, answer))
                        left = settling.answered(left, results)
                    except asyncio.CancelledError as error:
                        left = settling.broken_off(left, self._cancelled(slot, error))
                    except BaseException as error:  # noqa: BLE001 - anything that the function raises is the row's failure
                        left = settling.broken_off(left, error)
                    slot.calling = False
                    if left:
                        left = await self._paused(slot, left)
                self._freed(slot)
                if cancelling():
                    await slot.shed()
        finally:
            self._slots.discard(slot)

    def _freed(self, slot: Slot) -> None:
        """Note that a slot has brought its rows to their outcomes, and none of their calls is on the wire."""
        if slot.cancelled:
            slot.revive()
        flight, slot.flight = slot.flight, []
        for element in flight:
            self._queues.ended(element)

    def _broken(self, task: asyncio.Task[None]) -> None:
        """End the operator with an error of a slot itself."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._state.break_off(error)

    async def _paused(self, slot: Slot, flight: list[Element]) -> list[Element]:
        """Wait for the next attempt; return the rows that it is for."""
        retry = self._settings.retry
        assert retry is not None  # noqa: S101 - without it no call is made again
        self._state.counts.retries += 1
        # The rows of a batch may have failed with different errors.
        of_errors = {id(element.error): element for element in flight}
        try:
            await asyncio.sleep(max(retry.pause(element.attempts, element.error) for element in of_errors.values()))
        except asyncio.CancelledError as error:
            self._cancelled(slot, error)
        except BaseException as error:  # noqa: BLE001 - the user's `delay` may raise anything; an exit would end the loop
            for element in flight:
                self._settling.settle(element, [], error)
        return [element for element in flight if not element.decided]

    def _cancelled(self, slot: Slot, error: BaseException) -> BaseException:
        """Return what a cancellation means for rows that are not decided; raise it again if the operator is ending."""
        if self._state.closed:
            raise error
        slot.revive()
        if slot.expired:
            return TimeoutError(f"an attempt took longer than attempt_timeout={self._settings.attempt_timeout:g} s")
        return RuntimeError("the call was cancelled, and not by a time-out")

    # -- attempts with a limit of their own ------------------------------------------------------------------------

    async def _limited(self, deadlines: Deadlines[Slot], slot: Slot, answer: Awaitable[Any]) -> Any:  # noqa: ANN401 - the user's result
        deadlines.arm(slot, self._loop.time())
        slot.expired = False
        try:
            return await answer
        finally:
            deadlines.disarm(slot)
            if slot.grace is not None:
                slot.end_grace()
                slot.revive()  # the function may have swallowed the cancellation

    def _expired(self, slot: Slot) -> None:
        """Cancel the attempt; if it does not end soon, its rows fail, and the slot stays taken until it ends."""
        slot.expired = True
        slot.cancel()
        slot.grace = self._loop.call_later(GRACE_SECONDS, self._give_up, slot)

    def _give_up(self, slot: Slot) -> None:
        for element in slot.flight:
            if not element.decided:
                limit = f"attempt_timeout={self._settings.attempt_timeout:g} s"
                error = TimeoutError(f"an attempt took longer than {limit}, and does not end when it is cancelled")
                self._settling.settle(element, [], error)
