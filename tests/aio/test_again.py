"""Calls that are repeated, or not made at all: waits that a function decides, retry budgets, cached results."""

from __future__ import annotations

import asyncio
import builtins
import dataclasses
from datetime import datetime, timedelta, timezone
from email.message import Message
from email.utils import format_datetime
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import pydantic
import pytest

import penstock
from penstock import clock
from penstock.aio.commons import Budget, Kept
from penstock.aio.function import AsyncFunction, Call, outputs_of
from penstock.aio.retry import Retry, retry_after
from penstock.errors import OptionError
from tests.aio.driven import drive


class HttpError(Exception):
    """As httpx and requests raise it."""

    def __init__(self, headers: dict[str, str]) -> None:
        super().__init__("503")
        self.response = SimpleNamespace(headers=headers)


class Boto(Exception):
    """As botocore raises it."""

    def __init__(self, headers: dict[str, str]) -> None:
        super().__init__("SlowDown")
        self.response = {"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPHeaders": headers}}


class ClientError(Exception):
    """As aiohttp raises it."""

    def __init__(self, headers: dict[str, str]) -> None:
        super().__init__("429")
        self.headers = headers


def wrapped(error: Exception) -> Exception:
    """Return an error of the user's own, raised because of `error`."""
    own = RuntimeError("cannot score")
    own.__cause__ = error
    return own


# -- how long ----------------------------------------------------------------------------------------------------------


def test_a_function_says_how_long_to_wait() -> None:
    """The function gets the number of the attempt and its error, and the wait is exactly what it returns."""
    asked: list[tuple[int, str]] = []
    times: list[float] = []

    def delay(attempt: int, error: BaseException | None) -> float:
        asked.append((attempt, str(error)))
        return attempt * 100.0  # more than `max_delay`

    async def fails(row: int) -> Any:
        times.append(asyncio.get_running_loop().time())
        raise ValueError(row)

    told = drive(fails, [7], on_error="column", retry=Retry(3, delay=delay))
    assert asked == [(1, "7"), (2, "7")]
    assert [later - earlier for earlier, later in pairwise(times)] == [100.0, 200.0]
    assert told.kinds == {0: "error"}


def test_an_unwanted_result_has_no_error() -> None:
    """If `on_result` asks for another attempt, the function gets None as the error."""
    asked: list[BaseException | None] = []

    async def answers(_: int) -> Any:
        return {"out": None}

    def delay(_: int, error: BaseException | None) -> float:
        asked.append(error)
        return 0.0

    retry = Retry(2, delay=delay, on_result=lambda outputs: outputs == [(None,)])
    assert drive(answers, [1], retry=retry).outs == [None]
    assert asked == [None]


def test_rows_of_a_batch_wait_for_the_longest_of_their_errors() -> None:
    """A call for many rows is repeated once, and not earlier than any of its rows asked for."""
    times: list[float] = []

    async def both(rows: list[int]) -> list[Any]:
        times.append(asyncio.get_running_loop().time())
        return [ClientError({"Retry-After": str(row)}) if len(times) == 1 else {"out": row} for row in rows]

    told = drive(both, [3, 50], batch_size=2, retry=Retry(2, delay=retry_after()))
    assert told.outs == [3, 50]
    assert times[1] - times[0] == 50.0


@pytest.mark.parametrize("wrong", [-1.0, None, "1s", float("inf"), float("nan"), True])
def test_a_wait_that_is_none_fails_the_row(wrong: Any) -> None:
    """If the function returns something other than seconds, the row fails with a message; the stream neither stops nor spins."""

    async def fails(_: int) -> Any:
        raise KeyError

    told = drive(fails, [1], on_error="column", retry=Retry(9, delay=lambda *_: wrong))
    assert told.counts.calls == 1
    assert told.outcomes[0].failure is not None
    assert "delay returned" in told.outcomes[0].failure.message


def test_a_wait_that_raises_fails_the_row() -> None:
    """The row fails with the error of the function that should return the wait, also for the rows of a batch."""

    async def fails(rows: list[int]) -> Any:
        raise KeyError(rows)

    def delay(attempt: int, error: BaseException | None) -> float:
        raise LookupError(attempt, error)

    told = drive(fails, [1, 2], batch_size=2, on_error="column", retry=Retry(9, delay=delay))
    assert [outcome.failure.message[:11] for outcome in told.outcomes if outcome.failure] == ["LookupError"] * 2


class ExitsAsOutput:
    """An iterable of outputs that exits the process when its first item is requested."""

    def __iter__(self) -> Any:
        raise SystemExit(3)


@pytest.mark.parametrize("place", ["delay", "on", "on_result", "outputs"])
def test_what_decides_on_another_attempt_exits(place: str) -> None:
    """A user's function that exits the process fails its row; the others have their outputs, and nothing waits for ever."""

    def leave(*_: object) -> Any:
        raise SystemExit(3)

    async def call(row: int) -> Any:
        if row and place in {"delay", "on"}:
            raise ValueError(row)
        return ExitsAsOutput() if row and place == "outputs" else (row,)

    given: dict[str, Any] = {"on_result": lambda outputs: outputs[0][0] and leave()} if place == "on_result" else {}
    given |= {place: leave} if place in {"delay", "on"} else {}
    told = drive(call, [0, 1, 0], on_error="column", retry=Retry(2, **given) if given else None)
    assert (told.outs, list(told.kinds)) == ([0, 0], [1])
    assert told.outcomes[1].failure is not None


@pytest.mark.parametrize("made", [HttpError, ClientError, Boto])
@pytest.mark.parametrize("name", ["Retry-After", "retry-after"])
def test_retry_after_is_found_in_errors_of_every_client(made: Any, name: str) -> None:
    """It is found as seconds, in any spelling of the header, also in the cause of the error."""
    says = retry_after(delay=1.0)
    assert says(1, made({name: " 17 "})) == 17.0
    assert says(1, wrapped(made({name: "17"}))) == 17.0
    assert says(1, made({name: "1.5"})) == 1.5  # some services write it so, although the standard has whole seconds


def test_retry_after_is_found_in_errors_of_urllib() -> None:
    """Python's own client has headers that are not a mapping: they were not searched."""
    message = Message()
    message["retry-after"] = "17"
    assert retry_after(delay=1.0)(1, HTTPError("http://x", 429, "busy", message, None)) == 17.0


@pytest.mark.skipif(not hasattr(builtins, "ExceptionGroup"), reason="Python 3.10 has no groups of errors")
def test_retry_after_of_a_group_is_the_longest() -> None:
    """Of several requests at a time each may have been refused; an error that is caused by a group is looked into, too."""
    made: Any = vars(builtins)["ExceptionGroup"]
    group = made(
        "two", [ClientError({"Retry-After": "3"}), made("one", [wrapped(HttpError({"Retry-After": "17"}))]), KeyError()]
    )
    assert retry_after(delay=1.0)(1, group) == retry_after(delay=1.0)(1, wrapped(group)) == 17.0
    assert retry_after(delay=1.0)(1, made("none", [KeyError()])) == 1.0


def test_retry_after_may_be_a_date() -> None:
    """Where the answer does not say when it was made, it is waited until then by our clock; a date that has passed is no wait."""
    now = datetime.fromtimestamp(clock.now_ns() / 1e9, timezone.utc)
    for away, least, most in ((30, 25.0, 31.0), (-30, 0.0, 0.0)):
        date = format_datetime(now + timedelta(seconds=away), usegmt=True)
        assert least <= retry_after()(1, HttpError({"Retry-After": date})) <= most


@pytest.mark.parametrize("made", [HttpError, ClientError, Boto])
@pytest.mark.parametrize("apart", [timedelta(hours=1), timedelta(hours=-1)])
def test_a_date_of_a_service_whose_clock_is_another(made: Any, apart: timedelta) -> None:
    """Both dates of an answer are of one clock: the wait is what lies between them, however wrong ours is."""
    theirs = datetime.fromtimestamp(clock.now_ns() / 1e9, timezone.utc) + apart
    dates = [format_datetime(theirs + timedelta(seconds=later), usegmt=True) for later in (0, 20, -20)]
    says = retry_after()
    assert says(1, made({"date": dates[0], "Retry-After": dates[1]})) == 20.0
    assert says(1, made({"Date": dates[0], "Retry-After": dates[2]})) == 0.0
    assert says(1, made({"Date": dates[0], "Retry-After": "7"})) == 7.0


NO_YEAR = "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"
NO_ZONE = "Mon, 01 Jan 2020 00:00:00 +999999999999999"


@pytest.mark.parametrize("value", ["soon", "", "-3", "1e9", "٣", "1.", ".5", "1.5.2", "nan", "inf", NO_YEAR, NO_ZONE])
def test_what_no_retry_after_says_is_backed_off(value: str) -> None:
    """For an invalid header, an error without one, and a result, the wait is the configured one."""
    says = retry_after(delay=1.0, backoff=3.0, max_delay=8.0)
    assert [says(attempt, HttpError({"Retry-After": value})) for attempt in (1, 2, 3)] == [1.0, 3.0, 8.0]
    assert says(2, None) == says(2, ValueError("x")) == 3.0


def test_an_answer_that_cannot_be_looked_at_says_nothing() -> None:
    """If a client's error has no response and raises on access, the normal back-off applies; the row keeps the client's own error."""

    class Closed(Exception):
        @property
        def response(self) -> Any:
            raise ConnectionError

    assert retry_after(delay=1.0)(1, Closed()) == 1.0


def test_retry_after_has_its_limit() -> None:
    """A service that asks for a day does not delay a batch for a day."""
    assert retry_after(longest=60.0)(1, HttpError({"Retry-After": "86400"})) == 60.0
    with pytest.raises(OptionError, match="longest"):
        retry_after(longest=-1)


# -- how often ---------------------------------------------------------------------------------------------------------


def test_a_service_that_is_down_is_not_asked_again_by_every_row() -> None:
    """With a budget there are as many calls as rows, plus a tenth, plus ten; without one, three times as many as rows."""

    async def down(_: int) -> Any:
        raise ConnectionError

    told = drive(down, range(1000), on_error="column", retry=Retry(3, delay=0.0, budget=0.1))
    assert 1100 <= told.counts.calls <= 1110
    assert told.counts.over_budget == 1000 - sum(1 for outcome in told.outcomes if outcome.attempts == 3)
    assert len(told.kinds) == 1000
    assert drive(down, range(1000), on_error="column", retry=Retry(3, delay=0.0)).counts.calls == 3000


def test_little_traffic_is_retried_as_without_a_budget() -> None:
    """At first, the budget holds ten further attempts."""

    async def down(_: int) -> Any:
        raise ConnectionError

    assert drive(down, range(5), on_error="column", retry=Retry(3, delay=0.0, budget=0.0)).counts.calls == 15


def test_a_batch_costs_one_token() -> None:
    """A call for many rows costs as much as one call."""

    async def down(_: list[int]) -> Any:
        raise ConnectionError

    told = drive(down, range(50), batch_size=10, on_error="column", retry=Retry(3, delay=0.0, budget=0.0))
    assert told.counts.calls == 15


def test_a_budget_saves_up_to_a_hundred() -> None:
    """A long time without errors pays for one bad moment, but for no more."""
    budget = Budget(1.0)
    budget.earn(10_000)
    spent = 0
    while budget.has_one:
        budget.spend()
        spent += 1
    assert spent == 100


# -- not at all --------------------------------------------------------------------------------------------------------


def test_equal_rows_take_a_result_that_is_kept() -> None:
    """There is one call for each value, also if the first one ended long ago."""
    asked: list[int] = []

    async def answers(row: int) -> Any:
        asked.append(row % 3)
        return {"out": row % 3}

    told = drive(answers, range(9), share=lambda row: row % 3, arrive=1.0, cache=penstock.Cache(ttl=60.0))
    assert told.outs == [0, 1, 2] * 3
    assert asked == [0, 1, 2]
    assert told.counts.cached == 6


def test_a_result_that_is_too_old_is_asked_for_again() -> None:
    """A result as old as `ttl` is requested again."""
    asked: list[int] = []

    async def answers(row: int) -> Any:
        asked.append(row)
        return {"out": len(asked)}

    told = drive(answers, range(5), share=lambda _: 0, arrive=10.0, cache=penstock.Cache(ttl="15s"))
    assert told.outs == [1, 1, 2, 2, 3]


def test_failures_and_what_stands_for_them_are_not_kept() -> None:
    """Failures, results made by `on_error`, and results whose retries ran out are not kept."""
    asked: list[int] = []

    async def fails(row: int) -> Any:
        asked.append(row)
        raise ValueError

    drive(fails, range(3), share=lambda _: 0, arrive=1.0, cache=penstock.Cache(60.0), on_error=lambda *_: {"out": 0})
    assert asked == [0, 1, 2]

    async def unwanted(row: int) -> Any:
        asked.append(row)
        return []

    retry = Retry(2, delay=0.0, on_result=lambda outputs: not outputs)
    drive(unwanted, range(3), share=lambda _: 0, arrive=1.0, cache=penstock.Cache(60.0), retry=retry)
    assert asked[3:] == [0, 0, 1, 1, 2, 2]


def test_no_outputs_are_a_result() -> None:
    """An empty result is kept too, and emits nothing again."""
    asked: list[int] = []

    async def nothing(row: int) -> Any:
        asked.append(row)
        return []

    assert drive(nothing, range(4), share=lambda _: 0, arrive=1.0, cache=penstock.Cache(60.0)).outs == []
    assert asked == [0]


def test_results_that_are_kept_are_so_many() -> None:
    """The result that was not used for the longest time is dropped first."""
    kept = Kept(penstock.Cache(10.0, size=2))
    kept.put("a", [(1,)], 0.0)
    kept.put("b", [(2,)], 0.0)
    assert kept.get("a", 1.0) == [(1,)]
    kept.put("c", [(3,)], 1.0)
    assert [kept.get(key, 2.0) for key in "abc"] == [[(1,)], None, [(3,)]]
    assert kept.get("a", 10.0) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"ttl": 0},
        {"ttl": "soon"},
        {"ttl": None},
        {"ttl": True},
        {"ttl": 1, "size": 0},
        {"ttl": float("nan")},
        {"ttl": 10**400},
    ],
)
def test_caches_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    """Invalid cache settings are refused with the name of the value, when they are given."""
    with pytest.raises(OptionError, match="cache: (ttl|size)="):
        penstock.Cache(**wrong)


# -- results -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Place:
    """A dataclass, to be nested in another."""

    city: str


@dataclasses.dataclass(frozen=True)
class Score:
    """A typed result of a client."""

    score: float
    place: Place


class Model(pydantic.BaseModel):
    """The same with pydantic; it is iterable, but not a list of outputs."""

    score: float
    place: dict[str, str]


@pytest.mark.parametrize("model", [Score(0.5, Place("Ulm")), Model(score=0.5, place={"city": "Ulm"})])
def test_models_are_outputs(model: Any) -> None:
    """Models match the output columns by the names of their fields, alone and in a list; one with other fields is an error."""
    assert outputs_of(model, ("place", "score")) == [({"city": "Ulm"}, 0.5)]
    assert outputs_of([model, model], ("score", "place")) == [(0.5, {"city": "Ulm"})] * 2
    with pytest.raises(ValueError, match="an output has the columns score, place; expected rate"):
        outputs_of(model, ("rate",))


class Callback(AsyncFunction):
    """A function that times out for every row; `complete` is what it does then."""

    def __init__(self, complete: Any) -> None:
        self.complete = complete

    async def invoke(self, row: int, call: Call) -> Any:
        """Take too long."""
        await asyncio.sleep(1000)

    def timed_out(self, row: int, call: Call) -> None:
        """Complete the call, now or later."""
        self.complete(call, row)


@pytest.mark.parametrize(
    "complete",
    [
        lambda call, row: call.collect({"out": row}),
        lambda call, row: asyncio.get_running_loop().call_later(1.0, call.collect, {"out": row}),
    ],
    ids=["now", "later"],
)
def test_timed_out_may_complete_the_call(complete: Any) -> None:
    """As Flink's `timeout` does: what it collects is the output."""
    assert drive(Callback(complete), [4], timeout=5.0).outs == [4]


def test_timed_out_may_fail_the_call() -> None:
    """The row fails with the reason that `timed_out` gives."""
    told = drive(Callback(lambda call, _: call.fail(KeyError("gone"))), [4], timeout=5.0, on_error="column")
    assert told.outcomes[0].failure is not None
    assert told.outcomes[0].failure.message == "timed_out: KeyError: 'gone'"


def test_an_asynchronous_timed_out_may_complete_the_call() -> None:
    """It may complete by the time it returns; if it returns None without that, the error comes at once, not after another time-out."""

    class Late(Callback):
        async def timed_out(self, row: int, call: Call) -> None:  # type: ignore[override]
            self.complete(call, row)

    assert drive(Late(lambda call, row: call.collect({"out": row})), [4], timeout=5.0).outs == [4]
    told = drive(Late(lambda *_: None), [4], timeout=5.0, on_error="column")
    assert told.outcomes[0].failure is not None
    assert "returned None" in told.outcomes[0].failure.message
    assert told.ended < 6.0


@pytest.mark.parametrize("then", ["returns", "raises"])
@pytest.mark.parametrize("first", ["collect", "fail"])
def test_what_timed_out_says_first_counts(first: str, then: str) -> None:
    """As of a call itself: it completes the call, and what it returns or raises behind that is late."""

    class Twice(Callback):
        async def timed_out(self, row: int, call: Call) -> Any:  # type: ignore[override]
            self.complete(call, row)
            if then == "raises":
                raise ValueError(row)
            return {"out": -1}

    complete = {
        "collect": lambda call, row: call.collect({"out": row}),
        "fail": lambda call, _: call.fail(KeyError("gone")),
    }
    told = drive(Twice(complete[first]), [4], timeout=5.0, on_error="column")
    assert told.counts.late == 1
    if first == "collect":
        assert told.outs == [4]
    else:
        assert told.outcomes[0].failure is not None
        assert told.outcomes[0].failure.message == "timed_out: KeyError: 'gone'"


def test_public_names_are_there() -> None:
    """The names for annotations of a user's function, and for the errors that a query raises, are exported."""
    assert penstock.Call is Call
    assert issubclass(penstock.CallFailed, penstock.PenstockError)
    assert penstock.Context("q", 1).task == 1
