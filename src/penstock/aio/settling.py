"""The decision about a row after an attempt, or when its time is over: another attempt, or its one outcome."""

from __future__ import annotations

import asyncio
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from penstock.aio.function import outputs_of, results_of
from penstock.aio.outcome import ERROR, RESULT, TIMEOUT, Failure, FallbackError, Misfit, described, message_of
from penstock.errors import without_credentials

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.aio.calling import Calling
    from penstock.aio.commons import Commons
    from penstock.aio.deadlines import Deadlines
    from penstock.aio.element import Element
    from penstock.aio.function import Adapted
    from penstock.aio.latency import Latencies
    from penstock.aio.outlet import Outlet
    from penstock.aio.queues import Queues
    from penstock.aio.settings import Settings
    from penstock.aio.state import OperatorState


class Settling:
    """Gives rows their outcomes. `settle` is the only place where a row gets its outcome, and it accepts only the first.

    `names` are the columns of an output. `on_error` is `fail`, `column` or a function of (row, error): see `Operator`.
    """

    def __init__(  # noqa: PLR0913 - the parts that a row meets on its way out
        self,
        state: OperatorState,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        function: Adapted,
        names: tuple[str, ...],
        on_error: str | Callable[[Any, BaseException], Any],
        *,
        calling: Calling,
        deadlines: Deadlines[Element] | None,
        outlet: Outlet,
        queues: Queues,
        latencies: Latencies,
        commons: Commons,
    ) -> None:
        self._state = state
        self._settings = settings
        self._loop = loop
        self._function = function
        self._names = names
        self._on_error = on_error
        self._calling = calling
        self._deadlines = deadlines
        self._outlet = outlet
        self._queues = queues
        self._latencies = latencies
        self._budget, self._kept = commons.budget, commons.kept
        self._batched = settings.batch_size > 1
        # For rows whose time is over: running calls of `timed_out`.
        self.fallbacks: set[asyncio.Task[None]] = set()

    # -- after an attempt ------------------------------------------------------------------------------------------

    def broken_off(self, flight: list[Element], error: BaseException) -> list[Element]:
        """Decide what a failed attempt means for its rows, unless their calls were completed; return those that are called again."""
        return self._paid([element for element in flight if not element.decided and self._breaks_off(element, error)])

    def _breaks_off(self, element: Element, error: BaseException) -> bool:
        completion = element.call and element.call.said()
        if not completion:
            return self._comes_again(element, error)
        outputs, failure = completion
        if isinstance(failure, asyncio.CancelledError):
            failure = error  # it says more
        return self._again(element, outputs if failure is None else failure)

    def answered(self, flight: list[Element], results: Any) -> list[Element]:  # noqa: ANN401 - the user's
        """Give the rows their results; return those that are called again."""
        if not self._batched:
            return self._paid(flight) if self._again(flight[0], results) else []
        given = zip(flight, results_of(results, len(flight)), strict=True)
        return self._paid([element for element, result in given if self._again(element, result)])

    def _paid(self, again: list[Element]) -> list[Element]:
        """Return these rows, whose next attempt is one call; it costs one token of the budget of retries, if there is a budget."""
        if again and self._budget is not None:
            self._budget.spend()
        return again

    def _affordable(self) -> bool:
        """Tell whether the budget of retries, if there is one, allows a further attempt for a row that wants one."""
        if self._budget is None or self._budget.has_one:
            return True
        self._state.counts.over_budget += 1
        return False

    def _comes_again(self, element: Element, error: BaseException) -> bool:
        retry = self._settings.retry
        try:
            wanted = retry is not None and not isinstance(error, Misfit) and retry.after_error(element.attempts, error)
            if wanted and self._affordable():
                element.error = error
                return True
        except BaseException as own:  # noqa: BLE001 - the user's `on` may raise anything; an exit would end the loop, and with it all rows
            error = own
        self.settle(element, [], error)
        return False

    def _again(self, element: Element, result: Any) -> bool:  # noqa: ANN401 - the user's
        """Give the row its result; tell whether it is called again instead."""
        if element.decided:
            self._state.counts.late += 1
            return False
        if isinstance(result, BaseException):  # in a batch: this row's own error
            return self._comes_again(element, result)
        try:
            outputs = outputs_of(result, self._names)
        except BaseException as error:  # noqa: BLE001 - a user's iterator may raise anything, even an exit
            return self._comes_again(element, Misfit(str(error)))
        retry = self._settings.retry
        try:
            unwanted = retry is not None and retry.after_result(element.attempts, outputs)
            if unwanted and self._affordable():
                element.error = None
                return True
        except BaseException as own:  # noqa: BLE001 - the user's `on_result` may raise anything; see `_comes_again`
            self.settle(element, [], own)
        else:
            gave_up = (
                retry is not None and retry.on_result is not None and (unwanted or retry.is_last(element.attempts))
            )
            self.settle(element, outputs, None, keep=not gave_up)
        return False

    # -- when its time is over -------------------------------------------------------------------------------------

    def expired(self, element: Element) -> None:
        """Decide a row whose time is over; its call is cancelled unless it still serves other rows."""
        if element.decided:
            return  # decided by a row that it waited for, whose time was over at the same moment
        slot = element.slot
        completion = element.call and slot and slot.calling and element.call.said()
        element.decided = True
        if completion:  # in time, and the function goes on
            self._outcome(element, *self._outputs_of(*completion))
        else:
            self._timed_out(element)
        if slot is None:
            self._queues.ended(element)  # it was waiting for its turn
        elif all(other.decided for other in slot.flight):
            slot.cancel()

    def _timed_out(self, element: Element) -> None:
        self._state.counts.timeouts += 1
        error = TimeoutError(f"no outcome within timeout={self._settings.timeout:g} s")
        if self._function.timed_out is None:
            self._outcome(element, [], error)
            return
        task = self._loop.create_task(self._fall_back(element, error))
        self.fallbacks.add(task)
        task.add_done_callback(self.fallbacks.discard)

    def _outputs_of(
        self,
        result: Any,  # noqa: ANN401 - the user's
        failure: BaseException | None,
    ) -> tuple[list[tuple[Any, ...]], BaseException | None]:
        """Return a result as outputs, or the error if it has none."""
        if failure is not None:
            return [], failure
        try:
            return outputs_of(result, self._names), None
        except BaseException as misfit:  # noqa: BLE001 - a user's iterator may raise anything, even an exit
            return [], Misfit(str(misfit))

    async def _fall_back(self, element: Element, error: BaseException) -> None:
        """Let the function decide what a row that timed out becomes, within the same time again. Never leads to another attempt."""
        result: Any = None
        failure: BaseException | None = None
        try:
            result, failure = await asyncio.wait_for(self._asked(element), self._settings.timeout)
        except asyncio.TimeoutError:
            failure = TimeoutError(f"{error}, and none from timed_out within as long again")
        except asyncio.CancelledError as own:  # caused by `timed_out` itself, unless the operator ends
            if self._state.closed:
                raise
            failure = FallbackError(f"timed_out: {described(own)}")
        self._outcome(element, *self._outputs_of(result, failure), own=True)

    async def _asked(self, element: Element) -> tuple[Any, BaseException | None]:
        """Return the first of these: what `timed_out` completed a row's call with, returned or raised. An error is the row's failure.

        A plain `def` that returns None completes the call, now or later. An `async def` has completed it by its end, or
        its result is None.
        """
        assert self._function.timed_out is not None  # noqa: S101 - asked by the caller
        call = self._calling.call(element)
        completion = call.expect()
        result: Any = None
        failure: BaseException | None = None
        may_come = False
        try:
            result = self._function.timed_out(element.row, call)
            may_come = result is None
            if isawaitable(result):
                result = await result
                may_come = False
        except asyncio.CancelledError:
            raise
        except BaseException as own:  # noqa: BLE001 - the user's function may raise anything
            failure = own
        if may_come or call.is_completed:
            self._state.counts.late += failure is not None or result is not None
            result, failure = await self._completed(completion)
        completion.cancel()  # a completion from now on is late
        if failure is None:
            return result, None
        error = FallbackError(f"timed_out: {described(failure)}")
        error.__cause__ = failure
        return None, error

    @staticmethod
    async def _completed(completion: asyncio.Future[Any]) -> tuple[Any, BaseException | None]:
        """Return what a call was completed with, or is going to be."""
        try:
            return await completion, None
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - what the user's function failed the call with
            return None, error

    # -- the outcome -----------------------------------------------------------------------------------------------

    def settle(
        self, element: Element, outputs: list[tuple[Any, ...]], error: BaseException | None, *, keep: bool = False
    ) -> None:
        """Decide the row; the first decision counts. `keep`: later rows with the same values may take these outputs."""
        if element.decided:
            self._state.counts.late += 1
            return
        element.decided = True
        if self._deadlines is not None:
            self._deadlines.disarm(element)
        if keep and self._kept is not None and element.share is not None:
            self._kept.put(element.share, outputs, self._loop.time())
        self._outcome(element, outputs, error)

    def _outcome(
        self, element: Element, outputs: list[tuple[Any, ...]], error: BaseException | None, *, own: bool = False
    ) -> None:
        """Give a decided row its outcome, and emit what is in order by now. `own`: the outcome is not shared with other rows."""
        elapsed = self._loop.time() - element.began
        self._latencies.add(elapsed)
        if error is not None:
            outputs, element.failure = self._answer(element, error, elapsed)
        element.outputs = outputs
        element.settled = True
        element.call = None  # the outcome may live for long
        if element.failure is not None and self._on_error == "fail":
            self._state.fail(element)
        self._outlet.settled(element)
        if element.share is not None:
            self._pass_on(element, outputs, ok=error is None and not own)

    def _answer(
        self, element: Element, error: BaseException, elapsed: float
    ) -> tuple[list[tuple[Any, ...]], Failure | None]:
        """Return what `on_error` makes of a failed row."""
        counts = self._state.counts
        counts.failed += 1
        kind = RESULT if isinstance(error, Misfit) else TIMEOUT if isinstance(error, TimeoutError) else ERROR
        counts.rejected += kind == RESULT
        message = message_of(error) if isinstance(error, (Misfit, FallbackError)) else described(error)
        if callable(self._on_error):
            try:
                return outputs_of(self._on_error(element.row, error), self._names), None
            except BaseException as own:  # noqa: BLE001 - the user's function may raise anything, and nothing else can decide
                self._on_error = "fail"
                message = f"on_error failed: {described(own)}; it was asked about: {message}"
        return [], Failure(kind, without_credentials(message), element.attempts, round(elapsed * 1000), error)

    def _pass_on(self, element: Element, outputs: list[tuple[Any, ...]], *, ok: bool) -> None:
        """Give the rows that waited for this one its outputs; after a failure the first of them is called itself."""
        if not ok:
            self._queues.promote(element)
            return
        for follower in self._queues.followers(element):
            if not follower.decided:
                self._state.counts.shared += 1
                self.settle(follower, list(outputs), None)
                self._queues.ended(follower)
