"""The operator on virtual time: order, capacity, time-outs, retries. No test sleeps."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter, defaultdict
from contextlib import suppress
from typing import Any

import pytest

from penstock.aio.function import Adapted, AsyncFunction, Call, Context, in_threads
from penstock.aio.operator import Operator
from penstock.aio.retry import Retry
from penstock.aio.settings import Settings
from penstock.errors import OptionError
from penstock.testing import run_virtual
from tests.aio.driven import drive

BOTH = pytest.mark.parametrize("ordered", [True, False])


async def double(row: int) -> dict[str, int]:
    """Answer at once."""
    return {"out": 2 * row}


class Slow:
    """A service that answers row `n` with 2n after `seconds[n]`, and records how many calls ran at once."""

    def __init__(self, seconds: dict[int, float] | float) -> None:
        self.seconds = seconds
        self.running = 0
        self.most = 0
        self.asked: list[int] = []

    async def __call__(self, row: int) -> tuple[int]:
        """Answer one call."""
        self.asked.append(row)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.seconds if isinstance(self.seconds, float) else self.seconds.get(row, 0.0))
        finally:
            self.running -= 1
        return (2 * row,)


# -- order and capacity ------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("capacity", [1, 2, 6, 100])
def test_every_row_has_its_outputs(capacity: int, ordered: bool) -> None:
    """More rows than places, fewer, or none: each row has its outputs, once (A1, A2, A3, A4, A5, A39)."""
    for rows in ([], [1], list(range(8))):
        told = drive(double, rows, capacity=capacity, ordered=ordered)
        assert sorted(told.outs) == [2 * row for row in rows]
        assert told.counts.calls == len(rows)


def test_ordered_rows_come_in_order_whatever_their_calls_take() -> None:
    """The head is slow: the rows after it wait, and all are emitted in order when it is done (Q1)."""
    told = drive(Slow({0: 5.0, 1: 1.0, 2: 3.0}), range(4), capacity=4)
    assert (told.outs, told.times) == ([0, 2, 4, 6], [5.0] * 4)


def test_unordered_rows_come_as_they_finish() -> None:
    """Each outcome is emitted when its call ends."""
    told = drive(Slow({0: 5.0, 1: 1.0, 2: 3.0, 3: 2.0}), range(4), capacity=4, ordered=False)
    assert (told.outs, told.times) == ([2, 6, 4, 0], [1.0, 2.0, 3.0, 5.0])


@BOTH
def test_never_more_calls_than_capacity(ordered: bool) -> None:
    """As many calls run as there are places, and not one more; the other rows wait for admission."""
    service = Slow(1.0)
    told = drive(service, range(10), capacity=3, ordered=ordered)
    assert (service.most, told.ended, len(told.outs)) == (3, 4.0, 10)


def test_finished_rows_after_a_slow_head_hold_their_places() -> None:
    """Ordered, capacity 3: while the head runs, only two other rows are called (Q3, Q5)."""
    service = Slow({0: 10.0})

    async def look(_: Operator) -> None:
        await asyncio.sleep(9)
        assert service.asked == [0, 1, 2]

    told = drive(service, range(6), capacity=3, meanwhile=look)
    assert told.outs == [0, 2, 4, 6, 8, 10]
    assert service.asked == [0, 1, 2, 3, 4, 5]


def test_rows_of_one_key_run_one_after_another_in_order() -> None:
    """Rows with equal keys queue; other rows run meanwhile; the answers of one key are in order even in unordered mode (F-A20)."""
    running: Counter[str] = Counter()

    async def call(row: tuple[str, int]) -> tuple[Any]:
        running[row[0]] += 1
        assert running[row[0]] == 1
        await asyncio.sleep(3 - row[1] if row[0] == "a" else 0.5)
        running[row[0]] -= 1
        return (row,)

    rows = [("a", 0), ("a", 1), ("b", 0), ("a", 2), ("b", 1)]
    told = drive(call, rows, capacity=5, ordered=False, key=lambda row: row[0])
    assert [row for row in told.outs if row[0] == "a"] == [("a", 0), ("a", 1), ("a", 2)]
    assert told.outs[:2] == [("b", 0), ("b", 1)]
    assert told.ended == 6.0


def test_a_key_whose_call_failed_goes_on() -> None:
    """A failure or a time-out of one row frees its key for the next one."""

    async def call(row: int) -> tuple[int]:
        if row == 0:
            msg = "no"
            raise ValueError(msg)
        await asyncio.sleep(9 if row == 1 else 0)
        return (row,)

    told = drive(call, range(4), capacity=4, key=lambda _: "k", on_error="column", timeout=5.0, arrive=3.0)
    assert (told.outs, told.kinds) == ([2, 3], {0: "error", 1: "timeout"})


# -- outputs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "outs"),
    [
        ({"out": 1}, [1]),
        ((1,), [1]),
        ([], []),
        ([(1,), {"out": 2}], [1, 2]),
        (({"out": n} for n in range(3)), [0, 1, 2]),
        ((None,), [None]),
    ],
)
def test_a_result_is_one_output_or_many(result: Any, outs: list[Any]) -> None:
    """A mapping, a row and a tuple are one output; any other iterable is as many as it has items; an empty one gives no row (F-A30)."""

    async def call(_: int) -> Any:
        return result

    assert drive(call, [0]).outs == outs


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (None, "returned None; return an output, or []"),
        ("text", "returned a str"),
        (7, "returned a int"),
        ({"other": 1}, "has the columns other; expected out"),
        ({"out": 1, "more": 2}, "has the columns out, more; expected out"),
        (defaultdict(int, other=1), "has the columns other; expected out"),
        (Counter(other=1), "has the columns other; expected out"),
        ((1, 2), "has 2 values; expected 1: out"),
        ([None], "an output is None"),
        ([1], "an output is a int"),
    ],
)
def test_a_result_that_does_not_fit_says_so(result: Any, says: str) -> None:
    """The message says what is wrong and what was expected; only this row has that outcome."""

    async def call(row: int) -> Any:
        return (row,) if row else result

    told = drive(call, range(3), on_error="column", retry=Retry(5))
    assert (told.outs, told.kinds, told.counts.calls) == ([1, 2], {0: "result"}, 3)
    assert (told.counts.failed, told.counts.rejected) == (1, 1)
    failure = told.outcomes[0].failure
    assert failure is not None
    assert says in failure.message


async def deafly(seconds: int) -> None:
    """Sleep that long, in steps of a second, and ignore cancellations."""
    for _ in range(seconds):
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(1)


# -- time-outs ---------------------------------------------------------------------------------------------------


async def never(_: int) -> tuple[int]:
    """Never answer."""
    await asyncio.Event().wait()
    return (0,)


@BOTH
@pytest.mark.parametrize("retry", [None, Retry(5, delay=3)])
def test_a_call_that_never_ends_fails_at_its_time(ordered: bool, retry: Retry | None) -> None:
    """After 10 s the operator fails, with the time-out as the cause, and closing it does not hang (A8, A13)."""
    told = drive(never, [1], timeout=10.0, ordered=ordered, retry=retry)
    assert told.failure is not None
    assert (told.failure.kind, told.ended, told.stuck) == ("timeout", 10.0, 0)
    assert isinstance(told.failure.cause, TimeoutError)


class Fallback(AsyncFunction):
    """Each call takes as many seconds as the row's number; for a row that timed out, the result is three times the row."""

    def __init__(self) -> None:
        self.fallbacks = 0

    async def invoke(self, row: int, call: Call) -> Any:
        """Take long."""
        await asyncio.sleep(row)
        return (2 * row,)

    async def timed_out(self, row: int, call: Call) -> Any:
        """Return something else."""
        self.fallbacks += 1
        return (3 * row,)


def test_timed_out_gives_the_output() -> None:
    """The row that took too long has the result of `timed_out`, the other its answer (A9)."""
    told = drive(Fallback(), [20, 5], timeout=10.0, capacity=2)
    assert (told.outs, told.counts.timeouts, told.failure) == ([60, 10], 1, None)


def test_an_answer_in_time_that_is_emitted_late_is_no_time_out() -> None:
    """Ordered, and the head takes longer than the limit of the rows after it: those were in time (A11)."""
    function = Fallback()
    told = drive(function, [9, 1, 2], timeout=9.5, arrive=0.2, capacity=3)
    assert (told.outs, function.fallbacks) == ([18, 2, 4], 0)


async def cancelled(row: int) -> Any:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    "broken",
    [
        lambda row, call: None,
        lambda row, call: 1 / 0,
        lambda row, call: never(row),
        lambda row, call: cancelled(row),
        lambda row, call: sys.exit(1),
    ],
)
def test_a_broken_timed_out_is_the_rows_failure(broken: Any) -> None:
    """`timed_out` returns nothing, raises, or never ends: the row fails, is not called again, and the slot is free (A19, F-A3)."""

    class Broken(Fallback):
        timed_out = staticmethod(broken)

    told = drive(Broken(), [20, 5], timeout=10.0, capacity=1, on_error="column", retry=Retry(3))
    assert (told.outs, told.counts.calls) == ([10], 2)
    assert set(told.kinds) == {0}


def test_time_outs_count_from_admission_over_all_attempts() -> None:
    """Two attempts of 501 ms and the pause between them exceed a second: there is no third one (A18)."""

    class Failing(Fallback):
        async def invoke(self, row: int, call: Call) -> Any:
            await asyncio.sleep(0.501)
            msg = "no"
            raise OSError(msg)

        async def timed_out(self, row: int, call: Call) -> Any:
            return (-1,)

    told = drive(Failing(), [1, 2], timeout=1.0, retry=Retry(6, delay=0.1, backoff=1))
    assert (told.outs, told.ended, told.counts.calls) == ([-1, -1], 1.0, 4)


def test_a_time_out_ends_a_pause() -> None:
    """The row times out while it waits for its next attempt, which is never made (A21, F-A2)."""
    calls = []

    async def failing(row: int) -> Any:
        calls.append(row)
        msg = "no"
        raise OSError(msg)

    told = drive(failing, [1], timeout=5.0, on_error="column", retry=Retry(9, delay=3, backoff=1), arrive=30.0)
    assert (told.kinds, told.times, len(calls)) == ({0: "timeout"}, [5.0], 2)


@pytest.mark.parametrize("delay", [1.0, 0.999, 1.001])
def test_a_time_out_and_a_retry_at_one_instant_are_one_outcome(delay: float) -> None:
    """The pause and the time-out end together: there is one outcome, whichever comes first (A20, F-A1)."""

    async def failing(_: int) -> Any:
        msg = "no"
        raise OSError(msg)

    told = drive(failing, range(50), timeout=1.0, on_error="column", retry=Retry(2, delay=delay))
    assert sorted(outcome.index for outcome in told.outcomes) == list(range(50))


def test_an_attempt_that_takes_too_long_is_made_again() -> None:
    """The first attempt is cancelled at its limit, and the second one answers."""
    attempts = []

    async def call(row: int, call: Call) -> Any:
        attempts.append(call.attempt)
        await asyncio.sleep(10 if call.attempt == 1 else 0)
        return (row,)

    told = drive(call, [7], attempt_timeout=1.0, retry=Retry(2, delay=0.5))
    assert (told.outs, told.ended, attempts, told.counts.retries) == ([7], 1.5, [1, 2], 1)


def test_each_attempt_is_told_how_long_its_row_still_has() -> None:
    """The deadline belongs to the row and is the same for each attempt; the remaining time shrinks; without a time-out both are None."""
    told: list[tuple[int, float | None, float | None]] = []

    async def call(row: int, call: Call) -> Any:
        told.append((call.attempt, call.deadline, call.remaining()))
        await asyncio.sleep(1.0)
        if call.attempt == 1:
            msg = "no"
            raise OSError(msg)
        return (row,)

    assert drive(call, [7], timeout=10.0, retry=Retry(2, delay=0.5)).outs == [7]
    assert told == [(1, 10.0, 10.0), (2, 10.0, 8.5)]
    told.clear()
    assert drive(call, [7], retry=Retry(2, delay=0.5)).outs == [7]
    assert told == [(1, None, None), (2, None, None)]
    told.clear()

    class Over(AsyncFunction):
        async def invoke(self, row: int, call: Call) -> Any:
            await asyncio.sleep(1000)

        async def timed_out(self, row: int, call: Call) -> Any:
            told.append((call.attempt, call.deadline, call.remaining()))
            return (row,)

    assert drive(Over(), [7], timeout=10.0).outs == [7]
    assert told == [(1, None, None)]


def test_an_attempt_that_does_not_end_is_given_up() -> None:
    """The attempt ignores its cancellation: its row fails after a grace period, and its slot stays taken until it really ends (F-A4)."""
    running = []

    async def deaf(row: int) -> Any:
        if row:
            return (row,)
        running.append(row)
        await deafly(20)
        running.clear()
        return (row,)

    async def look(operator: Operator) -> None:
        await asyncio.sleep(8)
        assert running
        assert operator.counts.calls == 1

    told = drive(deaf, [0, 1], capacity=1, attempt_timeout=2.0, on_error="column", retry=Retry(3), meanwhile=look)
    assert (told.kinds, told.outs, told.counts.late) == ({0: "timeout"}, [1], 1)


@pytest.mark.parametrize("limit", ["timeout", "attempt_timeout"])
def test_a_call_that_took_too_long_leaves_nothing_to_the_next_row(limit: str) -> None:
    """The cancellation ends with the call, even if the function swallowed it: a cancellation of the next row is its own."""

    async def call(row: int) -> Any:
        if row == 0:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1e6)
        if row == 2:
            raise asyncio.CancelledError
        return (getattr(asyncio.current_task(), "cancelling", int)(),)

    told = drive(call, range(3), capacity=1, on_error="column", **{limit: 1.0})  # type: ignore[arg-type]  # a number
    assert (told.outs[-1], told.kinds.get(2)) == (0, "error")


def test_a_call_that_was_given_up_holds_its_place() -> None:
    """A row that timed out has its outcome at once; the next row waits until the call has ended (F-A4, F-A5)."""

    async def deaf(row: int) -> Any:
        if row == 0:
            await deafly(10)
        return (row,)

    told = drive(deaf, [0, 1], capacity=1, timeout=3.0, on_error="column")
    assert (told.kinds, told.outs, told.times[0]) == ({0: "timeout"}, [1], 3.0)
    assert told.times[1] >= 9.0
    assert told.counts.late == 1


@pytest.mark.slow
def test_no_timer_is_left() -> None:
    """100,000 limits that were armed and not reached leave nothing in the loop (A10)."""
    left = []

    async def look(_: Operator) -> None:
        while True:
            left.append(len(asyncio.get_running_loop()._scheduled))  # type: ignore[attr-defined]
            await asyncio.sleep(0)

    told = drive(double, range(100_000), timeout=3600.0, attempt_timeout=60.0, meanwhile=look)
    assert len(told.outs) == 100_000
    assert max(left) <= 2


# -- failures and retries ----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("retry", [None, Retry(3, on=KeyError)])
def test_the_first_failure_is_told_at_once(ordered: bool, retry: Retry | None) -> None:
    """The failure does not wait for a slow row before it (A12)."""

    async def call(row: int) -> Any:
        await asyncio.sleep(1 if row else 100)
        msg = "broken"
        raise ValueError(msg)

    told = drive(call, range(3), ordered=ordered, retry=retry)
    assert told.failure is not None
    assert (told.ended, told.failure.kind, told.failure.message) == (1.0, "error", "ValueError: broken")


def test_attempts_are_counted_in_all() -> None:
    """`max_attempts=3` means three calls in total, with growing pauses between them (B6, B7, F-A28)."""
    times = []

    async def failing(_: int) -> Any:
        times.append(asyncio.get_running_loop().time())
        msg = "no"
        raise OSError(msg)

    told = drive(failing, [1], on_error="column", retry=Retry(3, delay=1, backoff=2))
    assert (times, told.counts.retries, told.kinds) == ([0.0, 1.0, 3.0], 2, {0: "error"})
    failure = told.outcomes[0].failure
    assert failure is not None
    assert (failure.attempts, failure.elapsed_ms) == (3, 3000)


@pytest.mark.parametrize("on", [KeyError, (KeyError, IndexError), lambda error: "again" in str(error)])
def test_errors_that_are_not_worth_it_are_not_tried_again(on: Any) -> None:
    """`on` selects the errors that are retried, by type or by a function (B8)."""

    async def failing(_: int) -> Any:
        msg = "no"
        raise ValueError(msg)

    assert drive(failing, [1], on_error="column", retry=Retry(3, on=on)).counts.calls == 1


def test_results_can_be_tried_again() -> None:
    """Odd rows always get an empty result, which counts after two attempts; even rows get a full one (A16)."""

    async def call(row: int) -> Any:
        return [] if row % 2 else [(2 * row,)]

    told = drive(call, range(1, 7), retry=Retry(2, delay=0.01, on_result=lambda outputs: not outputs))
    assert (told.outs, told.counts.calls) == ([4, 8, 12], 9)


def test_a_result_after_the_time_out_is_not_tried_again() -> None:
    """A19: regardless of what `on_result` says about it."""

    async def deaf(row: int) -> Any:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(1e6)
        return (row,)

    told = drive(deaf, [7], timeout=1.0, on_error="column", retry=Retry(5, delay=0.0, on_result=lambda _: True))
    assert (told.kinds, told.counts.calls, told.counts.late) == ({0: "timeout"}, 1, 1)


def test_on_error_makes_outputs() -> None:
    """A function of the row and its error gives the outputs; if it fails itself, the operator ends."""

    async def failing(row: int) -> Any:
        msg = f"no {row}"
        raise OSError(msg)

    told = drive(failing, [1, 2], on_error=lambda row, error: {"out": f"{row}: {error}"})
    assert told.outs == ["1: no 1", "2: no 2"]
    told = drive(failing, [1], on_error=lambda row, error: 1 / 0)
    assert told.failure is not None
    assert "ZeroDivisionError" in told.failure.message


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()])
def test_whatever_is_raised_is_the_rows_failure(error: BaseException) -> None:
    """Not only exceptions: nothing that is raised ends the loop or loses the row."""

    async def call(row: int) -> Any:
        if row == 0:
            raise error
        return (row,)

    told = drive(call, range(3), on_error="column", capacity=1)
    assert (told.outs, told.kinds) == ([1, 2], {0: "error"})


# -- the callback style ------------------------------------------------------------------------------------------


def test_calls_are_completed_by_callbacks() -> None:
    """A plain function returns at once and completes the call later; only the first completion counts (A17, F-A5)."""

    def call(row: int, call: Call) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(1.0, call.collect, [(2 * row,)])
        loop.call_later(1.5, call.collect, [(3 * row,)])
        loop.call_later(2.0, call.fail, ValueError("late"))

    told = drive(call, [1, 2], capacity=1)
    assert (told.outs, told.failure) == ([2, 4], None)
    assert told.counts.late >= 2


@pytest.mark.parametrize("ending", ["returns", "returns None", "raises"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_an_async_function_may_complete_its_call(ending: str, batch_size: int) -> None:
    """The completion counts because it came first: `fail` used to be ignored, and the row emitted what was returned later."""

    def say(row: int, call: Call) -> None:
        if row == 1:
            call.fail(LookupError("said"))
        else:
            call.collect([(10 * row,)])
        call.collect([(-row,)])

    async def one(row: int, call: Call) -> Any:
        say(row, call)
        if ending == "raises":
            raise ValueError(row)
        return (row,) if ending == "returns" else None

    async def several(rows: list[int], calls: list[Call]) -> Any:
        for row, call in zip(rows, calls, strict=True):
            say(row, call)
        if ending == "raises":
            raise ValueError(rows)
        return [(row,) for row in rows] if ending == "returns" else None

    told = drive(one if batch_size == 1 else several, [0, 1, 2], on_error="column", batch_size=batch_size)
    assert (told.outs, told.kinds) == ([0, 20], {1: "error"})
    assert told.outcomes[1].failure is not None
    assert "said" in told.outcomes[1].failure.message
    assert told.counts.late == (3 if ending == "returns None" else 6)


@pytest.mark.parametrize("limit", [{"timeout": 5.0}, {"attempt_timeout": 5.0, "retry": Retry(3)}])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_call_that_was_completed_in_time_does_not_time_out(limit: dict[str, Any], batch_size: int) -> None:
    """Its function continues and is stopped at the time-out: the row used to time out, or was called again (FLINK-22573)."""

    async def one(row: int, call: Call) -> None:
        if row:
            call.fail(LookupError("said"))
        else:
            call.collect([(row,)])
        await asyncio.sleep(60)

    async def several(rows: list[int], calls: list[Call]) -> None:
        for row, call in zip(rows, calls, strict=True):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(one(row, call), 0.1)
        await asyncio.sleep(60)

    fn = one if batch_size == 1 else several
    retry = {"retry": Retry(3, on=ZeroDivisionError)} if "retry" in limit else {}
    told = drive(fn, [0, 1], batch_size=batch_size, on_error="column", **(limit | retry))
    assert (told.outs, told.kinds, told.counts.timeouts, told.ended) == ([0], {1: "error"}, 0, 5.0)
    assert told.counts.calls == 2 // batch_size


def test_rows_that_share_a_call_that_was_completed_in_time_have_its_result() -> None:
    """The time-out of all of them is the same moment, and each has one outcome."""

    async def call(row: int, call: Call) -> None:
        call.collect([(row,)])
        await asyncio.sleep(60)

    told = drive(call, [7, 7, 7], timeout=5.0, share=lambda row: row)
    assert (told.outs, told.counts.calls, told.counts.shared) == ([7, 7, 7], 1, 2)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_task_that_fails_fails_the_calls_that_it_has_not_completed(batch_size: int) -> None:
    """A plain function returns the task that will complete its call: the row used to wait for ever, and the error was lost."""

    async def complete(row: Any, call: Any) -> None:
        await asyncio.sleep(0.1)
        for each, completed in [(row, call)] if batch_size == 1 else zip(row, call, strict=True):
            if each == 1:
                raise LookupError(each)
            completed.collect([(each,)])

    def begin(row: Any, call: Any) -> Any:
        return asyncio.get_running_loop().create_task(complete(row, call))

    told = drive(begin, [0, 2, 1], batch_size=batch_size, on_error="column", timeout=9.0)
    assert (told.outs, told.kinds, told.ended, told.counts.late) == ([0, 2], {2: "error"}, 0.1, 0)
    failure = told.outcomes[2].failure
    assert failure is not None
    assert failure.message == "LookupError: 1"


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, BaseException])
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_what_is_raised_after_a_completion_is_late(error: type[BaseException], is_async: bool, batch_size: int) -> None:
    """Whatever is raised, and by whichever kind of function: the completion came first and counts."""

    def begun(row: Any, call: Any) -> None:
        if batch_size == 1:
            row, call = [row], [call]
        for each, completed in zip(row, call, strict=True):
            completed.collect([(each,)])
        raise error

    async def awaited(row: Any, call: Any) -> None:
        begun(row, call)

    told = drive(awaited if is_async else begun, [1, 2], batch_size=batch_size)
    assert (told.outs, told.failure) == ([1, 2], None)
    assert told.counts.late


def test_what_comes_after_the_end_of_an_async_function_is_late() -> None:
    """The function returned, or raised, without completing its call: a later callback of it is only counted."""

    async def call(row: int, call: Call) -> Any:
        asyncio.get_running_loop().call_later(0.5, call.collect, [(-1,)])
        if row:
            raise ValueError(row)
        return (row,)

    async def slow(row: int, call: Call) -> Any:
        if row < 2:
            return await call_(row, call)
        await asyncio.sleep(3)
        return (row,)

    call_ = call
    told = drive(slow, [0, 1, 2], on_error="column")
    assert (told.outs, told.kinds, told.counts.late) == ([0, 2], {1: "error"}, 2)


def test_a_row_of_an_async_batch_may_complete_its_call_alone() -> None:
    """The other rows have the results that were returned for them."""

    async def call(rows: list[int], calls: list[Call]) -> Any:
        calls[1].fail(LookupError("said"))
        return [(row,) for row in rows]

    told = drive(call, [0, 1, 2], on_error="column", batch_size=3)
    assert (told.outs, told.kinds) == ([0, 2], {1: "error"})


@pytest.mark.parametrize("attempts", [1, 2])
def test_an_async_batch_that_raises_fails_only_rows_that_it_has_not_completed(attempts: int) -> None:
    """What was completed first counts; the other rows are called again if `retry` allows it, one at a time."""
    asked: list[list[int]] = []

    async def call(rows: list[int], calls: list[Call]) -> Any:
        asked.append(rows)
        for row, call in zip(rows, calls, strict=True):
            if row == 0:
                call.collect([(row,)])
            if row == 1:
                call.fail(KeyError("said"))
        raise LookupError

    retry = Retry(attempts, delay=0.0, on=LookupError if attempts > 1 else ValueError)
    told = drive(call, [0, 1, 2, 3], on_error="column", batch_size=4, retry=retry)
    assert (told.outs, told.kinds) == ([0], {1: "error", 2: "error", 3: "error"})
    failures = [outcome.failure.message for outcome in told.outcomes if outcome.failure]
    assert failures == ["KeyError: 'said'", "LookupError: ", "LookupError: "]
    assert asked[1:] == [[1, 2, 3]] * (attempts - 1)


def test_a_completion_of_an_older_attempt_is_late() -> None:
    """The first attempt timed out; its later answer is not the result of the second."""

    def call(row: int, call: Call) -> None:
        asyncio.get_running_loop().call_later(3.0 if call.attempt == 1 else 4.0, call.collect, (call.attempt,))

    told = drive(call, [1], attempt_timeout=2.5, retry=Retry(2, delay=0.0), on_error="column")
    assert (told.kinds, told.counts.late) == ({0: "timeout"}, 1)


class Opened(AsyncFunction):
    """A blocking function in threads, which are created at its first call."""

    def __init__(self, fn: Any, threads: int) -> None:
        self._inner = in_threads(fn, threads=threads)
        self._open = False

    async def invoke(self, row: Any, call: Call) -> Any:
        if not self._open:
            self._open = True
            await self._inner.open(Context())
        return await self._inner.invoke(row, call)


def test_in_threads() -> None:
    """A blocking function runs in threads; an exception that it raises is the row's failure."""

    def blocking(row: int) -> Any:
        if row == 2:
            msg = "no"
            raise ValueError(msg)
        return (2 * row,)

    told = drive(Opened(blocking, threads=2), range(4), on_error="column", capacity=2)
    assert (told.outs, told.kinds) == ([0, 2, 6], {2: "error"})


def test_a_call_that_no_thread_was_free_for_is_not_made_after_its_time() -> None:
    """Its row has timed out, so the service is not called in vain; a call that a thread has started is waited for."""
    asked: list[int] = []

    def blocking(row: int) -> Any:
        asked.append(row)
        threading.Event().wait(0.05)  # real time, not virtual time
        return (row,)

    told = drive(Opened(blocking, threads=1), range(3), capacity=3, timeout=1.0, on_error="column")
    assert (asked, told.kinds) == ([0], dict.fromkeys(range(3), "timeout"))


def test_a_generator_in_threads_works_there() -> None:
    """A generator that blocks runs in the thread, not in the loop."""
    threads = []

    def blocking(row: int) -> Any:
        threads.append(threading.current_thread().name)
        yield (row,)
        yield (row + 1,)

    assert drive(Opened(blocking, threads=1), [7]).outs == [7, 8]
    assert threads[0].startswith("penstock-call")


# -- rate, sharing, batches --------------------------------------------------------------------------------------


def test_calls_are_spread_by_the_rate() -> None:
    """Ten calls at five a second take 1.8 s, whatever the capacity; retries count as calls."""
    times = []

    async def call(row: int) -> Any:
        times.append(round(asyncio.get_running_loop().time(), 6))
        return (row,)

    drive(call, range(10), rate=5.0)
    assert times == [round(n / 5, 6) for n in range(10)]


def test_rows_that_time_out_in_the_line_use_no_turns() -> None:
    """More rows than the rate allows: those that wait too long fail, and the calls still use the full rate."""
    times = []

    async def call(row: int) -> Any:
        times.append(round(asyncio.get_running_loop().time(), 6))
        return (row,)

    told = drive(call, range(100), rate=10.0, capacity=40, timeout=1.05, on_error="column")
    assert times == [round(n / 10, 6) for n in range(len(times))]
    assert times[-1] > told.ended - 0.2
    assert len(times) == len(told.outs) > 20


def test_equal_rows_share_a_call_while_it_is_in_flight() -> None:
    """Three rows, one call; after it has ended, the next equal row makes a new call."""
    service = Slow(1.0)
    told = drive(service, [1, 1, 2, 1], capacity=4, share=lambda row: row)
    assert (told.outs, sorted(service.asked), told.counts.shared) == ([2, 2, 4, 2], [1, 2], 2)
    service = Slow(1.0)
    told = drive(service, [1, 1, 1], capacity=1, share=lambda row: row)
    assert len(service.asked) == 3
    service = Slow(1.0)
    told = drive(service, [1] * 20, capacity=4, share=lambda row: row)  # rows that shared the call free their places
    assert (len(told.outs), len(service.asked)) == (20, 5)


def test_a_failed_call_does_not_poison_those_that_share_it() -> None:
    """Only the row whose call fails fails; the next of the waiting rows makes a call of its own (F-A25)."""
    calls = []

    async def call(row: int) -> Any:
        calls.append(row)
        await asyncio.sleep(1)
        if len(calls) == 1:
            msg = "no"
            raise OSError(msg)
        return (row,)

    told = drive(call, [5, 5, 5], capacity=3, share=lambda row: row, on_error="column")
    assert (told.kinds, told.outs, len(calls), told.counts.shared) == ({0: "error"}, [5, 5], 2, 1)


def test_a_row_whose_shared_call_failed_keeps_its_place_in_its_key() -> None:
    """It then makes its own call, before the later rows of its key."""
    calls = []

    async def call(row: tuple[int, str]) -> Any:
        calls.append(row)
        await asyncio.sleep(1)
        if len(calls) == 1:
            msg = "no"
            raise OSError(msg)
        return (row[0],)

    rows = [(0, "a"), (1, "a"), (2, "b"), (3, "a")]
    told = drive(call, rows, key=lambda _: 0, share=lambda row: row[1], on_error="column")
    assert (calls, told.outs) == ([(0, "a"), (1, "a"), (2, "b")], [1, 2, 1])


@pytest.mark.parametrize(("rows", "sizes"), [(5, [3, 2]), (0, []), (3, [3]), (1, [1])])
def test_rows_are_called_in_batches(rows: int, sizes: list[int]) -> None:
    """All batches are full, except the last one (B1, B3)."""
    found = []

    async def call(rows: list[int], calls: list[Call]) -> Any:
        found.append(len(rows))
        assert len({one.id for one in calls}) == len(rows)
        return [(2 * row,) for row in rows]

    told = drive(call, range(rows), batch_size=3, capacity=9)
    assert (found, told.outs) == (sizes, [2 * row for row in range(rows)])


def test_what_was_gathered_is_called_when_the_input_ends() -> None:
    """A batch does not wait for more rows then, however long its wait would be (B1)."""
    service = Slow(0.0)

    async def call(rows: list[int], calls: list[Call]) -> Any:
        return [await service(row) for row in rows]

    told = drive(call, range(2), batch_size=3, batch_wait=1000.0, arrive=1.0)
    assert (told.outs, told.ended) == ([0, 2], 2.0)


def test_a_batch_that_does_not_fill_is_called_after_its_wait() -> None:
    """One row, and nothing follows for long: it is called after `batch_wait`; the wait starts anew for each batch (B5)."""
    calls: list[tuple[float, int]] = []

    async def call(rows: list[int], _: list[Call]) -> Any:
        calls.append((asyncio.get_running_loop().time(), len(rows)))
        return [(row,) for row in rows]

    drive(call, range(3), arrive=10.0, batch_size=2, batch_wait=4.0, capacity=4)
    assert calls == [(4.0, 1), (14.0, 1), (24.0, 1)]
    calls.clear()
    drive(call, range(4), arrive=3.0, batch_size=2, batch_wait=4.0, capacity=4)
    assert calls == [(3.0, 2), (9.0, 2)]
    calls.clear()
    drive(call, range(9), arrive=1.5, batch_size=10, batch_wait=4.0)
    assert calls == [(4.0, 3), (8.5, 3), (13.0, 3)]
    calls.clear()
    told = drive(call, range(2), arrive=3.0, batch_size=2, batch_wait=4.0, timeout=2.0, on_error="column")
    assert (calls, told.kinds) == ([(3.0, 1)], {0: "timeout"})  # a row that timed out while it waited is not called


def test_a_row_of_a_batch_that_times_out_leaves_the_others_their_call() -> None:
    """The row was admitted before the others; their call continues."""

    async def call(rows: list[int], _: list[Call]) -> Any:
        await asyncio.sleep(1.5)
        return [(row,) for row in rows]

    told = drive(call, range(2), arrive=1.0, batch_size=2, batch_wait=9.0, timeout=2.0, on_error="column")
    assert (told.outs, told.kinds, told.counts.late) == ([1], {0: "timeout"}, 1)


@pytest.mark.parametrize("results", [[], [(1,)], [(1,), (2,), (3,)], None, 7, {0: (1,), 1: (2,)}, {(1,), (2,)}, "ab"])
def test_a_batch_with_another_number_of_results_fails_whole(results: Any) -> None:
    """No result is assigned by a guess (F-A9)."""

    async def call(_: list[int], __: list[Call]) -> Any:
        return results

    told = drive(call, range(2), batch_size=2, on_error="column")
    assert told.kinds == {0: "result", 1: "result"}
    assert all("for 2 rows; expected a result for each" in one.failure.message for one in told.outcomes if one.failure)


def test_a_row_of_a_batch_can_fail_alone() -> None:
    """An exception in the place of a result fails only that row; only that row is called again."""
    asked = []

    async def call(rows: list[int], _: list[Call]) -> Any:
        asked.append(rows)
        return [ValueError("no") if row == 1 and len(asked) == 1 else (row,) for row in rows]

    told = drive(call, range(3), batch_size=3, retry=Retry(2))
    assert (told.outs, asked) == ([0, 1, 2], [[0, 1, 2], [1]])


# -- limits and ids ----------------------------------------------------------------------------------------------


@BOTH
def test_nothing_goes_on_before_somebody_takes(ordered: bool) -> None:
    """Outcomes that nobody takes stop the rows after them; once they are taken, everything continues."""

    async def main() -> tuple[int, list[Any]]:
        woken = asyncio.Event()
        made = Settings(capacity=4, ordered=ordered)
        operator = Operator(Adapted(double), ("out",), made, notify=woken.set)
        operator.feed(range(100))
        operator.end()
        await asyncio.sleep(1)
        before, taken = operator.counts.calls, []
        while not operator.done or operator.take(0):
            await woken.wait()
            woken.clear()
            taken += operator.take(3)
        return before, taken + operator.take(1000)

    before, taken = run_virtual(main())
    assert before <= 2 * 4
    assert [outcome.index for outcome in taken] == list(range(100))


def test_large_outputs_are_admitted_by_their_bytes() -> None:
    """Once outputs prove to be 10 MB each, only as many calls run as fit the limit, plus one (F-A32)."""
    service = Slow(1.0)

    async def look(_: Operator) -> None:
        await asyncio.sleep(1.5)  # after the first wave, whose size was unknown
        assert service.most == 20
        service.most = service.running

    async def call(row: int) -> Any:
        await service(row)
        return (bytes(10_000_000),)

    told = drive(call, range(40), capacity=20, bytes_max=50_000_000, meanwhile=look)
    assert len(told.outs) == 40
    assert 1 < service.most <= 6


async def kilobyte(row: int) -> Any:
    """Answer at once with a kilobyte, except for row 1."""
    await asyncio.sleep(10.0 if row == 1 else 0.0)
    return (bytes(1000),)


def test_large_outputs_that_nobody_takes_hold_up_the_rows_after_them() -> None:
    """The limit covers the outputs that wait, even if calls take no time (F-A32)."""

    async def at_once(row: int) -> Any:
        return (bytes(1000),)

    async def main() -> list[int]:
        made = Settings(capacity=50, ordered=False, bytes_max=10_000)
        operator = Operator(Adapted(at_once), ("out",), made, notify=lambda: None)
        operator.feed(range(100))
        calls = []
        for _ in range(3):
            await asyncio.sleep(1)
            calls.append(operator.counts.calls)
            operator.take(1)
        operator.take(100)
        await asyncio.sleep(1)
        await operator.close()
        return [*calls, operator.counts.calls]

    first, second, third, last = run_virtual(main())
    assert 9 <= first < second < third <= 14
    assert last >= third + 9


def test_whoever_takes_is_told_when_nothing_goes_on_before() -> None:
    """There are fewer outcomes than `enough`, but no room for the rows after them."""

    async def main() -> tuple[float, list[int]]:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        made = Settings(capacity=2, ordered=False, bytes_max=1500)
        operator = Operator(Adapted(kilobyte), ("out",), made, notify=woken.set, enough=2)
        operator.feed(range(4))
        operator.end()
        found: list[int] = []
        while len(found) < 2:
            await woken.wait()
            woken.clear()
            found += [outcome.index for outcome in operator.take(9)]
        at = loop.time()
        await operator.close()
        return at, found

    at, found = run_virtual(main())
    assert (at < 1.0, found) == (True, [0, 2])


def test_whoever_takes_is_told_of_the_last_ones() -> None:
    """It is notified of the last outcomes, however few, because no more will come."""

    async def main() -> int:
        woken = asyncio.Event()
        operator = Operator(Adapted(kilobyte), ("out",), Settings(), notify=woken.set, enough=10)
        operator.feed([0, 2, 3])
        await asyncio.wait_for(woken.wait(), 5)
        await operator.close()
        return len(operator.take(9))

    assert run_virtual(main()) == 3


def test_the_end_of_the_operator_is_no_failure_to_try_again() -> None:
    """An operator that is closed during a call makes no more calls."""

    async def main() -> tuple[int, int]:
        made = Settings(retry=Retry(5, delay=0.0))
        operator = Operator(Adapted(never), ("out",), made, notify=lambda: None)
        operator.feed([1])
        await asyncio.sleep(1)
        return await operator.close(), operator.counts.calls

    assert run_virtual(main()) == (0, 1)


def test_ids_stay_the_same_over_attempts() -> None:
    """A call's id is that of the row: the same in every attempt, and different from all others (F-A14)."""
    ids: Counter[str] = Counter()

    async def call(row: int, call: Call) -> Any:
        ids[call.id] += 1
        if call.attempt < 3:
            msg = "no"
            raise OSError(msg)
        return (row,)

    drive(call, range(5), retry=Retry(3))
    assert ids == {f"q-0-{n}": 3 for n in range(5)}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"capacity": 0}, "capacity=0; expected a whole number of at least 1, 100 for example"),
        ({"capacity": 1.5}, "capacity=1.5"),
        ({"timeout": -1}, "timeout=-1; expected a number above 0"),
        ({"attempt_timeout": 0}, "attempt_timeout=0"),
        ({"rate": 0}, "rate=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_wait": -1}, "batch_wait=-1"),
        ({"batch_size": 200}, "batch_size=200 is more than capacity=100"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], says: str) -> None:
    """Each error has what was found and what is expected."""
    with pytest.raises(OptionError, match=says.replace("(", r"\(")):
        Settings(**settings)


async def _asks(_: Any) -> bool:
    return True


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("max_attempts", wrong) for wrong in (0, True, 2.0, "3")),
        *(("delay", wrong) for wrong in (-1, "1s", None, True, float("nan"), float("inf"), _asks)),
        *(("budget", wrong) for wrong in (-0.1, "10%", True, float("nan"))),
        *(("backoff", wrong) for wrong in (0.5, "2", float("inf"))),
        *(("max_delay", wrong) for wrong in (-1, "30s", None)),
        *(("jitter", wrong) for wrong in (2, -0.1, "0")),
        *(("on", wrong) for wrong in (None, (), int, [KeyError], KeyError("k"), (KeyError, "x"), _asks)),
        *(("on_result", wrong) for wrong in (True, _asks)),
    ],
)
def test_retries_that_make_no_sense_are_refused(name: str, value: Any) -> None:
    """Each is refused with the name of the value, when it is given."""
    with pytest.raises(OptionError, match=f"retry: {name}="):
        Retry(**{name: value})


def test_pauses_grow_up_to_a_limit() -> None:
    """Pauses start at `delay` and grow by the factor; jitter makes a pause shorter, never longer."""
    steady = Retry(9, delay=1.0, backoff=2.0, max_delay=5.0)
    assert [steady.pause(attempts) for attempts in range(1, 6)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    pauses = [Retry(9, delay=1.0, jitter=0.25).pause(1) for _ in range(100)]
    assert 0.75 <= min(pauses) < max(pauses) <= 1.0


@pytest.mark.parametrize(("delay", "pause"), [(0.1, 30.0), (0.0, 0.0)])
def test_any_number_of_attempts_has_its_pause(delay: float, pause: float) -> None:
    """After a thousand attempts the power of the factor exceeds a float; the pause is still finite."""
    assert Retry(10_000, delay=delay).pause(5000) == pause
