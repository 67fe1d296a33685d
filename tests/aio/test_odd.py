"""Code that nobody should write and somebody will: each case has one clear outcome, and nothing else is disturbed."""

from __future__ import annotations

import asyncio
import builtins
import copy
import pickle
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row as SparkRow

from penstock.aio.carry import id_of
from penstock.aio.function import Adapted, AsyncFunction, Call, in_threads, outputs_of
from penstock.aio.outcome import Failure, RowOutcome
from penstock.aio.retry import Retry
from penstock.aio.rows import Columns, Shape
from penstock.errors import OptionError
from tests.aio.driven import Told, drive
from tests.support.effort import effort
from tests.support.wait import PATIENCE_SECONDS


class Silent(Exception):
    """An error without a message."""

    def __str__(self) -> str:
        raise RuntimeError


class Exits(Exception):
    """Ends whoever asks for its message."""

    def __str__(self) -> str:
        raise SystemExit(1)


def messages(told: Told) -> dict[int, str]:
    return {one.index: one.failure.message for one in told.outcomes if one.failure}


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
        (GeneratorExit(), "GeneratorExit"),
        (asyncio.CancelledError(), "RuntimeError: the call was cancelled, and not by a time-out"),
        (StopIteration(1), "StopIteration"),
        (StopAsyncIteration(), "StopAsyncIteration: "),
        (MemoryError(), "MemoryError: "),
        (Silent(), "Silent: (its message cannot be had: RuntimeError)"),
        (Exits(), "Exits: (its message cannot be had: SystemExit)"),
        (OSError("a\udcffb"), "OSError: a\\udcffb"),
    ],
)
@pytest.mark.parametrize("style", ["async", "callback", "thread"])
def test_any_error_is_its_rows_own(error: BaseException, says: str, style: str) -> None:
    """Raised, passed to `call.fail`, or raised in a thread: the row fails with it, the others have their results, and nothing hangs."""

    async def call(row: int) -> Any:
        if row == 1:
            raise error
        return (row,)

    def completing(row: int, call: Call) -> None:
        if row == 1:
            call.fail(error)
        else:
            call.collect((row,))

    def blocking(row: int) -> Any:
        if row == 1:
            raise error
        return (row,)

    if style == "thread":
        told = drive_threads(blocking)
    else:
        told = drive(call if style == "async" else completing, range(4), on_error="column", capacity=2)
    assert sorted(told.outs) == [0, 2, 3]
    assert messages(told).keys() == {1}
    assert says in messages(told)[1]
    pa.array([messages(told)[1]])  # the message can be stored in a column


def drive_threads(fn: Callable[[int], Any]) -> Told:
    """Run a blocking function, opened and closed."""
    threads = in_threads(fn, threads=2)
    asyncio.run(threads.open(None))  # type: ignore[arg-type]  # it needs no context
    try:
        return drive(threads, range(4), on_error="column", capacity=2)
    finally:
        asyncio.run(threads.close())


GROUP: Any = getattr(builtins, "ExceptionGroup", None)  # Python 3.10 has none


@pytest.mark.skipif(
    GROUP is None, reason="Python 3.10 has neither such errors nor asyncio.TaskGroup, which raises them"
)
def test_a_group_of_errors_says_what_they_are() -> None:
    """A function that asks two services at a time: what went wrong is in the group, which itself has no more than its number."""

    async def ask(row: int) -> None:
        await asyncio.sleep(row)
        raise ConnectionError(row)

    async def call(row: int) -> Any:
        async with asyncio.TaskGroup() as group:  # type: ignore[attr-defined]  # Python 3.10 has none
            group.create_task(ask(row))
        return (row,)

    told = drive(call, [1], on_error="column", retry=Retry(3, delay=0.0, on=ConnectionError))
    assert told.counts.calls == 3
    assert messages(told)[0] == "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception); ConnectionError: 1"

    async def mixed(row: int) -> Any:
        inner = GROUP("some", [ConnectionError(row)])
        raise GROUP("many", [inner, *(KeyError(each) for each in range(9))])  # noqa: EM101 - no string to format

    told = drive(mixed, [1], on_error="column", retry=Retry(3, delay=0.0, on=(ConnectionError,)))
    assert told.counts.calls == 1
    assert messages(told)[0] == (
        "ExceptionGroup: many (10 sub-exceptions); ConnectionError: 1; KeyError: 0; KeyError: 1"
    )


def test_a_cancellation_is_not_the_next_rows() -> None:
    """A function cancels its own task and ends before that takes effect: the row has its result, and so has the one behind it."""

    async def call(row: int) -> Any:
        if row % 2 == 0:
            current = asyncio.current_task()
            assert current is not None
            current.cancel()
        else:
            await asyncio.sleep(1)
        return (row,)

    for capacity in (1, 2, 3):
        told = drive(call, range(8), capacity=capacity, on_error="column", timeout=50.0, attempt_timeout=5.0)
        assert (told.outs, told.kinds) == ([*range(8)], {})


@pytest.mark.parametrize("wrong", ["text", 7, ValueError])
def test_call_fail_takes_anything(wrong: Any) -> None:
    """A value passed instead of an exception also fails the row, and the message shows it."""

    def failing(row: int, call: Call) -> None:
        call.fail(wrong)

    told = drive(failing, [0], on_error="column")
    assert "ValueError" in messages(told)[0] or repr(wrong) in messages(told)[0]


@pytest.mark.parametrize("returned", [{"out": 1}, (1,), [(1,)], "coroutine"])
def test_a_plain_function_that_returns_its_result_is_told_so(returned: Any) -> None:
    """`async` was forgotten, or lost in a decorator: nothing would ever complete the call, so the row fails at once."""

    async def forgotten() -> Any:
        return (1,)

    def plain(row: int, call: Call) -> Any:
        return forgotten() if returned == "coroutine" else returned

    told = drive(plain, [0], on_error="column")
    assert "the function is not an `async def`" in messages(told)[0]


async def agen(row: Any, call: Any) -> Any:
    yield (1,)


def gen(row: Any, call: Any) -> Any:
    yield (1,)


class Yields(AsyncFunction):
    async def invoke(self, row: Any, call: Call) -> Any:
        yield (1,)


@pytest.mark.parametrize("fn", [agen, gen, Yields()])
def test_generators_are_refused(fn: Any) -> None:
    """Calling a generator function runs nothing: it is refused when it is given, with what to write instead."""
    with pytest.raises(OptionError, match="is a generator"):
        Adapted(fn)


async def with_default(row: Any, client: Any = "mine") -> Any:
    return (client,)


async def with_call(row: Any, call: Any = None) -> Any:
    return (call.attempt,)


async def any_number(*arguments: Any) -> Any:
    return (len(arguments),)


@pytest.mark.parametrize(
    ("fn", "out"),
    [
        (with_default, "mine"),
        (partial(with_default, client="ours"), "ours"),
        (with_call, 1),
        (any_number, 2),
        (partial(any_number, "first"), 3),
    ],
)
def test_a_parameter_with_a_default_is_the_users_own(fn: Any, out: Any) -> None:
    """The second parameter gets the call if it has no default or has that name; otherwise its default stays."""
    assert drive(fn, [1]).outs == [out]


async def takes_nothing() -> Any: ...


async def takes_three(row: Any, call: Any, client: Any) -> Any: ...


class Odd(AsyncFunction):
    """An object with one part that cannot be called as it will be."""

    def __init__(self, part: str, with_: Any) -> None:
        setattr(self, part, with_)

    async def invoke(self, row: Any, call: Any) -> Any: ...


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (takes_nothing, r"fn=takes_nothing does not take \(row\): too many positional arguments"),
        (takes_three, r"fn=takes_three does not take \(row, call\): missing a required argument: 'client'"),
        (Odd("invoke", with_=takes_nothing), r"fn=Odd does not take \(row, call\)"),
        (Odd("open", with_=takes_nothing), r"Odd.open does not take \(ctx\)"),
        (Odd("close", with_=with_call), r"Odd.close does not take \(\)"),
        (Odd("timed_out", with_=takes_nothing), r"Odd.timed_out does not take \(row, call\)"),
        (Odd("timed_out", with_={"out": None}), r"Odd.timed_out does not take \(row, call\): it is a dict"),
    ],
)
def test_what_cannot_be_called_is_refused_when_it_is_given(fn: Any, says: str) -> None:
    """Such an object would fail every row, on the executors, so it is refused at once."""
    with pytest.raises(OptionError, match=says):
        Adapted(fn)


@pytest.mark.parametrize(
    ("fn", "threads"), [(with_call, 1), (Odd("x", 1), 1), (None, 1), (len, 0), (len, True), (len, "3")]
)
def test_what_threads_cannot_run_is_refused(fn: Any, threads: Any) -> None:
    """An asynchronous function, something that is not a function, or not a number: refused when it is given."""
    with pytest.raises(OptionError, match="in_threads: "):
        in_threads(fn, threads=threads)


def test_functions_of_partials_and_threads_have_their_own_names() -> None:
    """Ids are made from the names: two functions wrapped in the same way must not share them."""
    assert Adapted(partial(with_default, client=1)).name == "tests.aio.test_odd.with_default"
    assert Adapted(in_threads(partial(takes, 1))).name == "tests.aio.test_odd.takes"


def takes(first: Any, row: Any) -> Any: ...


def test_a_predicate_that_raises_fails_its_row() -> None:
    """`on_result` or `on` raises: the row fails with that error, and no further attempt hides it."""

    async def call(row: int) -> Any:
        return (row,)

    def broken(outputs: list[Any]) -> bool:
        raise KeyError(outputs[0][0])

    told = drive(call, range(2), on_error="column", retry=Retry(5, on_result=broken))
    assert (messages(told), told.counts.calls) == ({0: "KeyError: 0", 1: "KeyError: 1"}, 2)

    async def fail(row: int) -> Any:
        raise OSError(row)

    told = drive(fail, range(2), on_error="column", retry=Retry(5, on=lambda error: 1 / error.args[0] > 1))
    assert messages(told) == {0: "ZeroDivisionError: division by zero", 1: "OSError: 1"}


def test_on_error_that_exits_is_a_failure() -> None:
    """`on_error` raises SystemExit: the operator fails with it; the loop, which others use too, continues."""

    async def call(row: int) -> Any:
        raise OSError

    def leave(row: Any, error: BaseException) -> Any:
        raise SystemExit(3)

    told = drive(call, [0], on_error=leave)
    assert told.failure is not None
    assert told.failure.message == "on_error failed: SystemExit: 3; it was asked about: OSError: "


# -- any mixture -------------------------------------------------------------------------------------------------

BEHAVIOURS = ["quick", "slow", "never", "deaf", "fails", "fails once", "exits", "late", "none", "many"]


class Anything:
    """Behaves as the row says; records how many calls run at once."""

    def __init__(self) -> None:
        self.asked: Counter[Any] = Counter()
        self.running = 0
        self.most = 0
        self.by_key: Counter[int] = Counter()
        self.overlap = False

    async def __call__(self, row: Any, call: Call) -> Any:
        """The call for one row."""
        index, behaviour, key = row
        self.asked[index] += 1
        self.running += 1
        self.by_key[key] += 1
        self.overlap |= self.by_key[key] > 1
        self.most = max(self.most, self.running)
        try:
            return await self._behave(behaviour, index, call)
        finally:
            self.running -= 1
            self.by_key[key] -= 1

    async def _behave(self, behaviour: str, index: int, call: Call) -> Any:
        if behaviour in {"slow", "never", "deaf", "late"}:
            seconds = {"slow": 0.5, "never": 1e6, "deaf": 20.0, "late": 5.0}[behaviour]
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                if behaviour != "deaf":
                    raise
                await asyncio.sleep(0.3)
        if behaviour == "fails" or (behaviour == "fails once" and self.asked[index] == 1):
            raise OSError(behaviour)
        if behaviour == "exits":
            raise SystemExit
        return {"none": [], "many": [(index,), (index,)]}.get(behaviour, (index,))


@pytest.mark.slow
@settings(max_examples=effort(50, 3000))
@given(
    rows=st.lists(st.tuples(st.sampled_from(BEHAVIOURS), st.integers(0, 2)), max_size=12),
    capacity=st.integers(1, 5),
    ordered=st.booleans(),
    keyed=st.booleans(),
    shared=st.booleans(),
    retry=st.sampled_from([None, Retry(2, delay=0.2), Retry(3, delay=1.0, on=OSError)]),
    attempt_timeout=st.sampled_from([None, 0.4, 3.0]),
    rate=st.sampled_from([None, 5.0]),
    arrive=st.sampled_from([0.0, 0.3]),
)
def test_any_mixture_has_one_outcome_a_row(
    rows: list[tuple[str, int]],
    capacity: int,
    ordered: bool,
    keyed: bool,
    shared: bool,
    retry: Any,
    arrive: float,
    **more: Any,
) -> None:
    """Rows of every kind under any settings: one outcome each, never more calls than places, keys in order, nothing left over."""
    numbered = [(index, behaviour, key) for index, (behaviour, key) in enumerate(rows)]
    service = Anything()
    told = drive(
        service,
        numbered,
        capacity=capacity,
        ordered=ordered,
        retry=retry,
        timeout=4.0,
        on_error="column",
        key=(lambda row: row[2]) if keyed else None,
        share=(lambda row: row[1:]) if shared else None,
        arrive=arrive,
        **more,
    )
    assert told.failure is None
    found = [one.index for one in told.outcomes]
    assert sorted(found) == list(range(len(rows)))
    assert not ordered or found == sorted(found)
    assert service.most <= capacity
    assert not (keyed and service.overlap)
    assert told.stuck == service.running == 0
    assert told.counts.calls == sum(service.asked.values())
    for one in told.outcomes:
        behaviour = rows[one.index][0]
        assert one.failure or behaviour not in {"fails", "exits", "never", "late"}
        assert one.failure or shared or len(one.outputs) == {"none": 0, "many": 2}.get(behaviour, 1)


def test_a_row_that_waits_for_its_key_times_out() -> None:
    """A row that times out while it waits never had a turn to pass on: the next waits for the running call, whose end is no error."""

    async def call(row: int) -> Any:
        began.append(row)
        await asyncio.sleep(1e6 if row == 0 else 0)
        return (row,)

    began: list[int] = []
    told = drive(call, range(4), capacity=2, timeout=4.0, arrive=1.0, on_error="column", key=lambda _: 0)
    assert (sorted(told.kinds), told.outs, began) == ([0], [1, 2, 3], [0, 1, 2, 3])
    told = drive(call, [0] * 9, capacity=3, timeout=4.0, on_error="column", key=lambda _: 0)
    assert (len(told.kinds), told.ended) == (9, 12.0)  # each row frees its place
    began.clear()
    told = drive(call, range(3), capacity=2, timeout=4.0, on_error="column", key=lambda _: 0)
    assert (sorted(told.kinds), told.outs) == ([0, 1], [2])


def test_what_timed_out_says_is_not_shared() -> None:
    """The result of `timed_out` is for its own row: a row that shared the call gets its own call, or its own `timed_out`."""

    class Slow(AsyncFunction):
        async def invoke(self, row: int, call: Call) -> Any:
            await asyncio.sleep(1e6 if row == 0 else 0)
            return (row,)

        async def timed_out(self, row: int, call: Call) -> Any:
            return (-100 - row,)

    told = drive(Slow(), range(3), timeout=4.0, arrive=1.0, share=lambda _: 0)
    assert (told.outs, told.counts.calls, told.counts.shared) == ([-100, 1, 1], 2, 1)
    told = drive(Slow(), range(3), timeout=4.0, share=lambda _: 0)
    assert told.outs == [-100, -101, -102]


# -- values ------------------------------------------------------------------------------------------------------

LONG = pa.int64()


class Pair(NamedTuple):
    b: int
    a: int


class Half(Enum):
    """Numbers with names."""

    WHOLE = 1
    HALF = 0.5


class Name(Enum):
    """A text with a name."""

    A = "a"


@dataclass
class Point:
    """A dataclass, to be the value of a struct."""

    a: Any
    b: Any = None


class Shown(pydantic.BaseModel):
    """The same of pydantic, whose dump has the members of an Enum as they are."""

    a: Half
    b: list[int]


MOMENTS = pa.timestamp("us", tz="UTC")
AB = pa.struct([pa.field("a", LONG), pa.field("b", pa.list_(LONG))])
LOST = [
    (LONG, Decimal("1.5"), "a fraction"),
    (LONG, np.float32(1.5), "a fraction"),
    (LONG, float("nan"), "a fraction"),
    (pa.list_(LONG), [1, 1.5], "a fraction"),
    (pa.list_(LONG), np.array([0.5]), "a fraction"),
    (pa.map_(pa.string(), LONG), {"k": 1.5}, "a fraction"),
    (pa.struct([pa.field("a", LONG)]), {"a": 1.5}, "a fraction"),
    (pa.struct([pa.field("a", LONG)]), (1.5,), "a fraction"),
    (pa.struct([pa.field("a", LONG)]), {"a": 1, "b": 2}, "the unknown field 'b'"),
    (pa.struct([pa.field("a", LONG), pa.field("b", LONG)]), SparkRow(b=1, a=2), "its fields in another order (b, a)"),
    (pa.list_(pa.struct([pa.field("a", LONG), pa.field("b", LONG)])), [Pair(1, 2)], "in another order"),
    (pa.date32(), datetime(2026, 1, 2, 3, tzinfo=timezone.utc), "a time of day"),
    (pa.date32(), 1.5, "a fraction"),
    (MOMENTS, 1764281234.5, "a fraction"),  # seconds, as `time.time` has them
    (pa.list_(MOMENTS), [float("nan")], "a fraction"),
    (pa.float32(), 1e300, "a number that is too large"),
    (pa.list_(pa.float32()), [1.0, np.float64(-1e39)], "a number that is too large"),
    (pa.list_(LONG), [Half.WHOLE, Half.HALF], "a fraction"),
    (AB, Point(1, threading.Lock()), "expected struct"),  # which cannot be copied, and so gives no fields
    (pa.list_(pa.string()), "text", "a str, which is not a list"),
    (pa.list_(LONG), b"text", "a bytes, which is not a list"),
    (pa.map_(pa.string(), pa.list_(pa.string())), {"k": "text"}, "a str, which is not a list"),
]
KEPT = [
    (LONG, np.int32(7), 7),
    (LONG, Decimal(7), 7),
    (pa.list_(LONG), np.array([1, 2]), [1, 2]),
    (pa.map_(pa.string(), LONG), {"k": None}, [("k", None)]),
    (pa.struct([pa.field("a", LONG), pa.field("b", pa.list_(pa.string()))]), {"a": 1.0}, {"a": 1, "b": None}),
    (pa.date32(), date(2026, 1, 2), date(2026, 1, 2)),
    (pa.decimal128(5, 2), Decimal("1.50"), Decimal("1.50")),
    (MOMENTS, datetime(2026, 1, 2, tzinfo=timezone.utc), datetime(2026, 1, 2, tzinfo=timezone.utc)),
    (pa.float32(), float("-inf"), float("-inf")),
    (pa.float32(), 3.4e38, float(np.float32(3.4e38))),
    (pa.float64(), Half.HALF, 0.5),
    (pa.list_(LONG), {Half.WHOLE}, [1]),
    (pa.map_(pa.string(), pa.float64()), {Name.A: Half.HALF}, [("a", 0.5)]),
    (pa.list_(AB), [Point(1, [2, Half.WHOLE]), {"a": Half.WHOLE}], [{"a": 1, "b": [2, 1]}, {"a": 1, "b": None}]),
    (AB, Shown(a=Half.WHOLE, b=[]), {"a": 1, "b": []}),
]


def of_one(kind: pa.DataType, value: Any) -> tuple[Any, Failure | None]:
    """Return the output and the failure of a row whose output is this value."""
    shape = Shape(pa.schema([pa.field("out", kind)]), keep_input=False, with_error=True)
    (row,) = Columns(pa.record_batch({"n": [1]})).rows()
    (batch,) = shape.batches([RowOutcome(0, row, [(value,)], None, 1)], "column")
    (found,) = batch.to_pylist()
    return found["out"], found["_error"]


@pytest.mark.parametrize(("kind", "value", "says"), LOST)
def test_nothing_is_cut_off_a_value(kind: pa.DataType, value: Any, says: str) -> None:
    """Arrow would accept the value and drop a part of it, also when nested: instead the row fails, with what would be lost."""
    out, error = of_one(kind, value)
    assert out is None
    assert error is not None
    assert says in error["message"]  # type: ignore[index]  # as a column has it


@pytest.mark.parametrize(("kind", "value", "same"), KEPT)
def test_values_of_other_types_that_lose_nothing_fit(kind: pa.DataType, value: Any, same: Any) -> None:
    """NumPy numbers, whole decimals, mappings: the value is kept as it was given."""
    assert of_one(kind, value) == (same, None)


@pytest.mark.parametrize("kind", [SparkRow, Pair])
def test_named_outputs_are_taken_by_their_names(kind: Any) -> None:
    """Spark rows and named tuples are matched by column name if they have the schema's columns in another order."""
    assert outputs_of(kind(b=1, a=2), ("a", "b")) == [(2, 1)]
    assert outputs_of([kind(b=1, a=2)], ("x", "y")) == [(1, 2)]
    assert outputs_of(SparkRow("x", "y"), ("a", "b")) == [("x", "y")]


def test_rows_travel_to_other_processes() -> None:
    """A pickled or copied row is equal, and does not contain the rest of its batch."""
    batch = pa.record_batch({"n": list(range(10_000)), "items": [[n] for n in range(10_000)]})
    row = Columns(batch, [f"id-{n}" for n in range(10_000)]).rows()[7]
    pickled = pickle.dumps(row)
    assert len(pickled) < 2000
    unpickled = pickle.loads(pickled)  # noqa: S301 - made above
    for same in (unpickled, copy.copy(row), copy.deepcopy(row)):
        assert (same, same.n, same["items"]) == (row, 7, [7])
        assert id_of(same) == "id-7"


def test_keys_are_equal_where_sql_says_so() -> None:
    """One zero, one NaN, also inside of arrays and structs; and two instants of the hour that a clock goes through twice."""
    zone = pa.timestamp("us", tz="America/New_York")
    first = 1730611800_000000
    batch = pa.record_batch(
        {
            "x": [0.0, -0.0, float("nan"), float("nan"), None],
            "at": pa.array([first, first + 3600_000000, first, first, None], pa.int64()).cast(zone),
            "xs": [[0.0], [-0.0], [float("nan")], [float("nan")], None],
            "s": [{"x": [-0.0]}, {"x": [0.0]}, {"x": [float("nan")]}, {"x": [float("nan")]}, {"x": None}],
        }
    )
    columns = Columns(batch)
    assert columns["at"][0] == columns["at"][1]
    assert [len(set(columns.comparable(name))) for name in ("x", "at", "xs", "s")] == [3] * 4


@pytest.mark.parametrize("places", [[0, 1, 2, 3], [0, 2, 1, 3], [3, 1], [1, 1, 3], [2, 0, 2], []])
def test_outputs_have_the_columns_of_their_own_row(places: list[int]) -> None:
    """In whichever order rows ended, and however many outputs each has."""
    rows = Columns(pa.record_batch({"n": list(range(10))}).slice(3)).rows()
    shape = Shape(pa.schema([pa.field("out", LONG)]), keep_input=True, with_error=False)
    made = shape.batches([RowOutcome(place, rows[place], [(place + 3,)]) for place in places], "fail")
    assert [tuple(row.values()) for batch in made for row in batch.to_pylist()] == [(at + 3, at + 3) for at in places]


def test_a_schema_without_columns() -> None:
    """A function that is called only for its effect: the input is emitted, and the error if it is requested."""
    batch = pa.record_batch({"n": [1, 2]})
    first, second = Columns(batch).rows()
    shape = Shape(pa.schema([]), keep_input=True, with_error=True)
    failed = RowOutcome(1, second, [], Failure("error", "no", 1, 0), 1)
    (found,) = shape.batches([RowOutcome(0, first, [()], None, 1), failed], "column")
    assert [(row["n"], row["_error"] and row["_error"]["kind"]) for row in found.to_pylist()] == [
        (1, None),
        (2, "error"),
    ]


# -- batches of calls --------------------------------------------------------------------------------------------


@settings(max_examples=effort(40, 3000))
@given(
    rows=st.lists(
        st.tuples(st.sampled_from(["quick", "slow", "fails", "fails once", "whole"]), st.integers(0, 2)), max_size=12
    ),
    capacity=st.integers(3, 6),
    batch_size=st.integers(2, 3),
    batch_wait=st.sampled_from([0.0, 0.1, 5.0]),
    ordered=st.booleans(),
    keyed=st.booleans(),
    retry=st.sampled_from([None, Retry(2, delay=0.2)]),
    arrive=st.sampled_from([0.0, 0.1]),
)
def test_any_mixture_in_batches_has_one_outcome_a_row(
    rows: list[tuple[str, int]], keyed: bool, ordered: bool, batch_size: int, arrive: float, **more: Any
) -> None:
    """F-A8, F-A10: rows collected by number and by time, also at the same instant: one outcome each, in order, one at a time for a key."""
    asked: Counter[int] = Counter()
    running: Counter[int] = Counter()
    sizes, together = {1}, {1}

    async def call(some: list[Any], calls: list[Call]) -> Any:
        sizes.add(len(some))
        asked.update(index for index, _, _ in some)
        running.update(key for _, _, key in some)
        together.add(max(running.values()))
        try:
            await asyncio.sleep(0.5 if any(behaviour == "slow" for _, behaviour, _ in some) else 0)
            if any(behaviour == "whole" for _, behaviour, _ in some):
                raise OSError
            return [
                OSError(behaviour)
                if behaviour == "fails" or (behaviour == "fails once" and asked[index] == 1)
                else (index,)
                for index, behaviour, _ in some
            ]
        finally:
            running.subtract(key for _, _, key in some)

    numbered = [(index, behaviour, key) for index, (behaviour, key) in enumerate(rows)]
    told = drive(
        call,
        numbered,
        ordered=ordered,
        batch_size=batch_size,
        arrive=arrive,
        on_error="column",
        key=(lambda row: row[2]) if keyed else None,
        **more,
    )
    found = [one.index for one in told.outcomes]
    assert told.failure is None
    assert sorted(found) == list(range(len(rows)))
    assert not ordered or found == sorted(found)
    assert all(one.outputs == [(one.index,)] for one in told.outcomes if not one.failure)
    assert all(one.failure for one in told.outcomes if rows[one.index][0] in {"fails", "whole"})
    assert max(sizes) <= batch_size
    assert not keyed or together == {1}


def test_batches_completed_by_threads() -> None:
    """B2: each call of a batch is completed from its own thread, in any order; each result goes to its row."""

    def call(rows: list[int], calls: list[Call]) -> None:
        def complete() -> None:
            for row, one in reversed(list(zip(rows, calls, strict=True))):
                one.collect({"out": 3 * row})

        thread = threading.Thread(target=complete)
        thread.start()
        thread.join()

    told = drive(call, [1, 2, 3, 4], batch_size=2)
    assert (told.outs, told.counts.calls) == ([3, 6, 9, 12], 2)


# -- ends --------------------------------------------------------------------------------------------------------


def test_calls_that_complete_while_the_operator_ends() -> None:
    """A15, F-A12: a failure ends the operator; other calls complete later, in reverse: no output, no second failure, no log message."""
    completed: list[int] = []

    async def call(row: int) -> Any:
        if row == 2:
            await asyncio.sleep(1)
            raise OSError
        try:
            await asyncio.sleep(9)
        except asyncio.CancelledError:
            await asyncio.sleep(0.5 - row / 10)
            completed.append(row)
        if row == 1:
            raise ValueError
        return []

    told = drive(call, range(4), capacity=4)
    assert told.failure is not None
    assert (told.failure.message, told.outs, completed, told.stuck) == ("OSError: ", [], [3, 1, 0], 0)


FORK = """
import os, pyarrow as pa
from penstock.aio import runtime
from penstock.aio.function import Adapted, AsyncFunction
from penstock.aio.rows import Shape
from penstock.aio.settings import Settings
from penstock.aio.stage import Place, Plan, run

class Living(AsyncFunction):
    async def open(self, ctx): print("open", os.getpid() == parent, flush=True)
    async def invoke(self, row, call): return (row.n,)

parent = os.getpid()
plan = Plan("f", Adapted(Living()), Settings(), Shape(pa.schema([pa.field("out", pa.int64())]), True, False), "fail")
def rows(): return sum(b.num_rows for b in run(plan, Place("q", 0, "q-"), iter([pa.record_batch({"n": [1, 2]})])))
print(rows(), flush=True)
child = os.fork()
if child == 0:
    print(rows(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(rows(), flush=True)
"""


@pytest.mark.slow
def test_a_fork_has_a_loop_of_its_own() -> None:
    """F-A22: a process's loop does not run in its fork; the fork makes its own when it needs one, and the parent's continues."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    assert done.stdout.split("\n") == ["open True", "2", "open False", "2", "2", ""]


def test_a_row_cannot_be_changed() -> None:
    """A7, F-A7: changes that a function makes to its argument do not reach the output."""
    batch = pa.record_batch({"n": [1], "tags": [["a"]]})
    (row,) = Columns(batch).rows()
    with pytest.raises(AttributeError):
        row.n = 2  # type: ignore[attr-defined]  # what a user might try
    with pytest.raises(TypeError):
        row["n"] = 2
    row.tags.append("b")
    shape = Shape(pa.schema([pa.field("out", LONG)]), keep_input=True, with_error=False)
    (found,) = shape.batches([RowOutcome(0, row, [(1,)], None, 1)], "fail")
    assert found.to_pylist() == [{"n": 1, "tags": ["a"], "out": 1}]


class Record:
    """As asyncpg's: not a mapping by its class, and iteration gives its values."""

    def __init__(self, **values: Any) -> None:
        self._values = values

    def keys(self) -> Any:
        return self._values.keys()

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values.values())

    def __len__(self) -> int:
        return len(self._values)


class Model:
    """As pydantic's: iteration gives its fields with their names."""

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        yield "a", "b"


def test_records_of_a_driver_are_mappings() -> None:
    """A record alone, in a list, and with columns that are not those of the schema."""
    assert outputs_of(Record(b=2, a=1), ("a", "b")) == [(1, 2)]
    assert outputs_of([Record(a=1, b=2), {"b": 4, "a": 3}], ("a", "b")) == [(1, 2), (3, 4)]
    with pytest.raises(ValueError, match="an output has the columns a, c; expected a, b"):
        outputs_of(Record(a=1, c=2), ("a", "b"))


def test_what_stands_for_no_row_is_called_by_its_name() -> None:
    """A model without fields of its own, and a class in place of an instance: told as what they are."""
    with pytest.raises(TypeError, match=r"an output is a RootModel\[.*; expected a mapping"):
        outputs_of(pydantic.RootModel[list[int]]([1, 2]), ("a",))
    for kind in (dict, Record, Point):
        with pytest.raises(TypeError, match="returned a type; expected a mapping"):
            outputs_of(kind, ("a", "b"))
    assert outputs_of(pydantic.RootModel[dict[str, int]]({"a": 1}), ("a",)) == [(1,)]


def test_a_model_is_no_list_of_its_fields() -> None:
    """With two text columns, a model's (name, value) pairs would be taken for output rows."""
    with pytest.raises(TypeError, match="returned a Model; expected a mapping"):
        outputs_of(Model(), ("a", "b"))


MAP = pa.map_(pa.string(), pa.int64())
DEEP = pa.list_(pa.struct([pa.field("m", MAP), pa.field("n", pa.int64())]))


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (MAP, [[("a", 1), ("b", None)], [], None], [{"a": 1, "b": None}, {}, None]),
        (DEEP, [[{"m": [("a", 1)], "n": 2}, None], None], [[{"m": {"a": 1}, "n": 2}, None], None]),
        (pa.map_(pa.int32(), MAP), [[(1, [("a", 1)]), (2, None)]], [{1: {"a": 1}, 2: None}]),
        (pa.map_(pa.date32(), pa.list_(MAP)), [[(0, [[("a", 1)]])]], [{date(1970, 1, 1): [{"a": 1}]}]),
        (MAP, [[("a", 1), ("a", 2)]], [{"a": 2}]),
        (
            pa.map_(pa.struct([("x", pa.int64()), ("y", pa.string())]), MAP),
            [[({"x": 1, "y": "z"}, [("a", 1)])]],
            [{(1, "z"): {"a": 1}}],
        ),
        (pa.map_(pa.list_(pa.int64()), pa.int64()), [[([1, 2], 3)]], [{(1, 2): 3}]),
    ],
    ids=str,
)
def test_a_map_is_a_dict(kind: pa.DataType, given: list[Any], expected: list[Any]) -> None:
    """A column of maps, at any depth, reaches the function as dicts, as in Spark; and a returned dict becomes a map again."""
    column = pa.array(given, kind)
    rows = Columns(pa.record_batch([column], names=["m"])).rows()
    assert [row.m for row in rows] == [row["m"] for row in rows] == [dict(row)["m"] for row in rows] == expected
    if not pa.types.is_nested(getattr(kind, "key_type", pa.int64())):
        schema = pa.schema([("back", kind)])
        outcomes = [RowOutcome(n, row, [(row.m,)]) for n, row in enumerate(rows)]
        (batch,) = Shape(schema, keep_input=False, with_error=False).batches(outcomes, "fail")
        assert Columns(batch)["back"] == expected
