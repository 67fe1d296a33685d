"""Calls of the user's function, for a row or for a batch of rows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any

from penstock.aio.function import Call, results_of
from penstock.aio.outcome import Misfit

if TYPE_CHECKING:
    from penstock.aio.commons import Budget
    from penstock.aio.deadlines import Deadlines
    from penstock.aio.element import Element
    from penstock.aio.function import Adapted
    from penstock.aio.state import OperatorState


class Calling:
    """Makes the calls of one operator. A call's id is `identify` of its row or, without `identify`, `prefix` and the row's number."""

    def __init__(
        self,
        state: OperatorState,
        loop: asyncio.AbstractEventLoop,
        function: Adapted,
        deadlines: Deadlines[Element] | None,
        *,
        batched: bool,
        prefix: str,
        identify: Callable[[Any], str] | None,
        budget: Budget | None,
    ) -> None:
        self._state = state
        self._loop = loop
        self._function = function
        self._deadlines = deadlines
        self._batched = batched
        self._prefix = prefix
        self._identify = identify
        self._budget = budget

    def attempt(self, flight: list[Element]) -> Awaitable[Any]:
        """Make one call; return an awaitable of its result."""
        self._state.counts.calls += 1
        if self._budget is not None and not flight[0].attempts:
            self._budget.earn(1)
        for element in flight:
            element.attempts += 1
        return self._batch_called(flight) if self._batched else self._called(flight[0])

    def call(self, element: Element) -> Call:
        """Return the `Call` that the function gets."""
        deadline = None if self._deadlines is None else self._deadlines.of(element)
        id_ = self._identify(element.row) if self._identify else f"{self._prefix}{element.index}"
        return Call(id_, element.attempts, deadline, self._loop, self._late)

    def _called(self, element: Element) -> Awaitable[Any]:
        """Call the function for a row; return an awaitable of its result."""
        function = self._function
        answer: Awaitable[Any]
        if not function.takes_call:
            answer = function.call(element.row)
        elif function.is_async:
            call = element.call = self.call(element)
            answer = self._first_of(function.call(element.row, call), call)
        else:
            call = element.call = self.call(element)
            answer = call.expect()
            self._begin(element.row, call, [call])
        return answer

    def _begin(self, row: Any, call: Any, calls: list[Call]) -> None:  # noqa: ANN401 - the user's, or a list of them
        """Call a plain function; an error that it raises after it has completed all its calls is late."""
        try:
            returned: object = self._function.call(row, call)
            _refuse_output(returned)
            if isinstance(returned, asyncio.Future):
                returned.add_done_callback(partial(_fail_with, calls))
        except BaseException:  # whatever the user's function raises
            if not all(each.is_completed for each in calls):
                raise
            self._late()

    async def _first_of(self, answer: Awaitable[Any], call: Call) -> Any:  # noqa: ANN401 - the user's
        """Return what an `async def` returns; if it has completed its call by then, that came first, and counts."""
        try:
            result = await answer
        except (asyncio.CancelledError, GeneratorExit):  # nothing more can be awaited: see `Call.said`
            raise
        except BaseException:  # the user's function may raise anything; its row may have its outcome already
            if not call.ended_without():
                self._late()
                return await call.completion()
            raise
        if call.ended_without():
            return result
        if result is not None:
            self._late()
        return await call.completion()

    async def _first_of_each(self, answers: Awaitable[Any], calls: list[Call]) -> Any:  # noqa: ANN401 - the user's
        """Return what an `async def` returns or raises for a batch; for rows whose calls it has completed by then, what came first."""
        failure: BaseException | None = None
        try:
            given = results_of(await answers, len(calls))
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - the user's function may raise anything; some rows may have their outcomes already
            failure, given = error, [error] * len(calls)
        completed = [not call.ended_without() for call in calls]
        if failure is not None and not any(completed):
            raise failure
        waiting = (call.completion() for call, is_completed in zip(calls, completed, strict=True) if is_completed)
        return self._joined(given, completed, await asyncio.gather(*waiting, return_exceptions=True))

    def _joined(self, given: list[Any], completed: list[bool], came_first: list[Any]) -> list[Any]:
        """Return the results of a batch; for each call that was completed earlier, the result that came first."""
        first = iter(came_first)
        for place in (place for place, is_completed in enumerate(completed) if is_completed):
            if given[place] is not None and not isinstance(given[place], Misfit):
                self._late()
            given[place] = next(first)
        return given

    def _batch_called(self, flight: list[Element]) -> Awaitable[Any]:
        """Call the function for a batch; return an awaitable of its results."""
        function = self._function
        rows = [element.row for element in flight]
        answers: Awaitable[Any]
        if not function.takes_call:
            answers = function.call(rows)
        elif function.is_async:
            calls = self._calls(flight)
            answers = self._first_of_each(function.call(rows, calls), calls)
        else:
            calls = self._calls(flight)
            waiting = [call.expect() for call in calls]
            self._begin(rows, calls, calls)
            answers = asyncio.gather(*waiting, return_exceptions=True)
        return answers

    def _calls(self, flight: list[Element]) -> list[Call]:
        """Return the `Call`s of a batch that the function gets."""
        for element in flight:
            element.call = self.call(element)
        return [element.call for element in flight if element.call is not None]

    def _late(self) -> None:
        self._state.counts.late += 1


def _fail_with(calls: list[Call], work: asyncio.Future[Any]) -> None:
    """Fail the calls that a task has not completed: it has failed, so it never will."""
    error = RuntimeError("the task that the function returned was cancelled") if work.cancelled() else work.exception()
    for call in calls:
        if error is not None and not call.is_completed:
            call.fail(error)


def _refuse_output(returned: Any) -> None:  # noqa: ANN401 - the user's
    """Refuse an output or coroutine that a plain function returned instead of completing its call: nobody would ever complete it."""
    if isinstance(returned, (dict, tuple, list, Mapping)) or iscoroutine(returned):
        if iscoroutine(returned):
            returned.close()
        msg = f"the function is not an `async def` and returned a {type(returned).__name__}; make it one, or complete `call`"
        raise TypeError(msg)
