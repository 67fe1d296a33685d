"""Wrong arguments and results of asynchronous calls: refused when they are given, or a failure of the row, of the right kind."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import numpy as np
import pytest

from penstock.aio.function import AsyncFunction, Call, in_threads
from penstock.aio.interpreter import tuned
from penstock.aio.retry import Retry
from penstock.aio.settings import Settings
from penstock.errors import OptionError
from tests.aio.driven import Told, drive

HUGE = 10**400


class Slow(AsyncFunction):
    """A call that never ends; the outcome of the row is `said`, called and awaited."""

    def __init__(self, said: Any) -> None:
        self.said = said

    async def invoke(self, row: Any, call: Call) -> Any:
        await asyncio.sleep(1e6)

    async def timed_out(self, row: Any, call: Call) -> Any:
        said = self.said()
        return await said if asyncio.iscoroutine(said) else said


def failed(fn: Any, **settings: Any) -> Told:
    """Return the outcome of one row that fails, with the failure in a column."""
    told = drive(fn, [1], on_error="column", **settings)
    assert list(told.kinds) == [0]
    return told


def raising(error: BaseException) -> Any:
    """Raise it."""
    raise error


async def hanging() -> None:
    """Take longer than any limit."""
    await asyncio.sleep(1e6)


@pytest.mark.parametrize(
    ("said", "kind", "says"),
    [
        (lambda: None, "result", "the function returned None; return an output, or [] to emit nothing"),
        (lambda: 5, "result", "the function returned a int; expected a mapping"),
        (lambda: (1, 2), "result", "an output has 2 values; expected 1: out"),
        (lambda: {"other": 1}, "result", "an output has the columns other; expected out"),
        (lambda: raising(ValueError("own")), "error", "timed_out: ValueError: own"),
        (lambda: raising(TimeoutError("of a client")), "error", "timed_out: TimeoutError: of a client"),
        (lambda: raising(SystemExit(3)), "error", "timed_out: SystemExit: 3"),
        (
            hanging,
            "timeout",
            "TimeoutError: no outcome within timeout=2 s, and none from timed_out within as long again",
        ),
    ],
)
def test_what_timed_out_does_wrong_has_its_own_kind(said: Any, kind: str, says: str) -> None:
    """An unfit return value is a result error and an exception is an error; only if `timed_out` itself takes too long, it is a time-out."""
    told = failed(Slow(said), timeout=2.0)
    (outcome,) = told.outcomes
    assert outcome.failure is not None
    assert (outcome.failure.kind, says in outcome.failure.message) == (kind, True), outcome.failure.message
    assert (told.counts.timeouts, told.counts.failed, told.counts.rejected) == (1, 1, kind == "result")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (None, "RuntimeError: the call failed, and no reason was given"),
        ("text", "RuntimeError: the call failed with 'text'"),
        (3, "RuntimeError: the call failed with 3"),
        (KeyError, "KeyError: "),
        (StopIteration(), "RuntimeError: the call failed with StopIteration()"),
    ],
)
def test_a_call_that_fails_without_an_error_fails(error: Any, says: str) -> None:
    """`call.fail(None)` is a failure without a reason, not a None result; the same holds for anything that is not an exception."""

    def invoke(row: Any, call: Call) -> None:
        call.fail(error)

    told = failed(invoke)
    (outcome,) = told.outcomes
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.message) == ("error", says)


def test_a_result_that_was_not_awaited_is_a_result_of_the_wrong_kind() -> None:
    """If an `async def` or an `on_error` returns another coroutine, the row fails with what to do, and there is no warning."""

    async def forgot(row: Any) -> Any:
        return hanging()

    told = failed(forgot)
    assert "returned a coroutine; await it" in (told.outcomes[0].failure or raising(AssertionError())).message
    told = drive(forgot, [1], on_error=lambda row, error: hanging())
    assert told.failure is not None
    assert "on_error failed: TypeError: the function returned a coroutine; await it" in told.failure.message
    gc.collect()  # a coroutine that nobody closed would warn now


@pytest.mark.parametrize("where", ["on", "on_result"])
def test_a_predicate_that_would_have_to_be_awaited(where: str) -> None:
    """A predicate that returns a coroutine has given no answer, although Python calls it true: the row fails, without endless calls."""

    async def later(_: Any) -> bool:
        return False

    async def call(row: Any) -> Any:
        return raising(OSError("no")) if where == "on" else (row,)

    predicate: dict[str, Any] = {where: lambda _: later(_)}
    told = failed(call, retry=Retry(5, delay=0.0, **predicate))
    assert (told.counts.calls, told.counts.retries) == (1, 0)
    assert f"retry: {where} returned a coroutine" in (told.outcomes[0].failure or raising(AssertionError())).message


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        *(
            ({name: wrong}, f"{name}=")
            for name in ("capacity", "batch_size")
            for wrong in (None, True, "5", 1.0, -1, 0, [1])
        ),
        *(
            ({name: wrong}, f"{name}=")
            for name in ("timeout", "attempt_timeout")
            for wrong in (True, False, "5", "5s", 0, -0.5, float("nan"), HUGE, [1])
        ),
        *(({"batch_wait": wrong}, "batch_wait=") for wrong in (None, True, "1ms", -1, float("nan"), HUGE)),
        *(({"drain": wrong, "timeout": 9.0}, "drain=") for wrong in (True, "1s", -1, float("nan"), HUGE)),
        (
            {"attempt_timeout": 6.0, "timeout": 5.0},
            "attempt_timeout=6 is above timeout=5: no attempt would ever take that long",
        ),
    ],
)
def test_a_setting_that_is_no_such_number(settings: dict[str, Any], says: str) -> None:
    """Text, booleans, None, NaN, negative numbers, too large numbers, and limits that contradict each other: the error has the name."""
    with pytest.raises(OptionError, match=says):
        Settings(**settings)


def test_settings_at_their_limits() -> None:
    """Reasonable settings are accepted: equal limits, no limit, NumPy numbers, and more places than a garbage collector can count."""
    Settings(attempt_timeout=5.0, timeout=5.0, batch_wait=9.0)
    Settings(timeout=float("inf"), attempt_timeout=1, capacity=np.int64(5), batch_size=np.int32(5))
    before = gc.get_threshold()
    with tuned(1 << 40):
        assert gc.get_threshold()[0] == (1 << 31) - 1
    assert gc.get_threshold() == before


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: Retry(delay=60.0), "retry: delay=60.0; expected at most max_delay=30.0: raise max_delay"),
        (lambda: Retry(delay=1.0, max_delay=0.5), "retry: delay=1.0; expected at most max_delay=0.5"),
        (lambda: Retry(max_attempts=HUGE, delay=HUGE), "retry: delay="),
        (lambda: Retry(on=lambda: True), "retry: on does not take (error)"),  # type: ignore[arg-type, misc]
        (lambda: Retry(delay=lambda: 1.0), "retry: delay does not take (attempt, error)"),  # type: ignore[arg-type, misc]
        (lambda: Retry(on_result=lambda one, two: True), "retry: on_result does not take (outputs)"),  # type: ignore[arg-type, misc]
        (lambda: Retry(attempts=3), "Retry: unknown parameter 'attempts'; did you mean 'max_attempts'?"),  # type: ignore[call-arg]
        (lambda: Retry(retries=3), "Retry: unknown parameter 'retries'; expected one of max_attempts, delay,"),  # type: ignore[call-arg]
        (lambda: in_threads(print, thread=3), "in_threads: unknown parameter 'thread'; did you mean 'threads'?"),  # type: ignore[call-arg]
        (lambda: in_threads(), "in_threads: missing a required argument: 'fn'; it takes (fn, threads)"),  # type: ignore[call-arg]
    ],
)
def test_what_retries_and_threads_are_made_of(made: Any, says: str) -> None:
    """For a misspelt parameter, or one that contradicts another, the error names the right one."""
    with pytest.raises(OptionError) as caught:
        made()
    assert says in caught.value.message


def test_equal_delays_are_taken() -> None:
    """A delay equal to the longest delay is valid; so is a Retry with the defaults, also with positional arguments."""
    assert Retry(4, 2.0, 1.0, 2.0).pause(3) == 2.0
    assert Retry() == Retry(max_attempts=3, delay=0.1)
