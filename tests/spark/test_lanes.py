"""What a lane emits when one of several tries of a batch counts: the real processor, on a state that rolls back as Spark's does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from copy import deepcopy
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.aio import runtime
from penstock.aio.carry import Form, dumped, loaded
from penstock.aio.function import Adapted
from penstock.aio.rows import Shape
from penstock.aio.settings import Settings
from penstock.aio.stage import Carrying, Place, Plan, run
from penstock.errors import CallFailed
from penstock.spark import lanes

INPUT = pa.schema([pa.field("n", pa.int64())])
SHAPE = Shape(
    pa.schema([pa.field("out", pa.int64()), pa.field("call", pa.string())]), keep_input=True, with_error=False
)
_numbers = count()  # of lanes: each has its own function
MISFIT = 99
PATIENT = 0.3  # seconds: a call that ends has ended by then, also on a busy machine
BOTH = pytest.mark.parametrize("ordered", [True, False])


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Stop the runtime after the test."""
    yield
    runtime.close_all()


class State:
    """What Spark keeps for one lane, with the Python interface of `StatefulProcessorHandle`, value state and map state."""

    def __init__(self) -> None:
        self.value: tuple[bytes] | None = None
        self.map: dict[tuple[int], tuple[bytes]] = {}
        self.timer: int | None = None

    def getValueState(self, name: str, schema: str) -> State:  # noqa: N802 - Spark's
        return self

    def getMapState(self, name: str, key: str, value: str) -> Map:  # noqa: N802 - Spark's
        return Map(self.map)

    def registerTimer(self, at: int) -> None:  # noqa: N802 - Spark's
        self.timer = at

    def get(self) -> tuple[bytes] | None:
        return self.value

    def update(self, value: tuple[bytes]) -> None:
        self.value = value

    def clear(self) -> None:
        self.value = None


class Map:
    def __init__(self, values: dict[tuple[int], tuple[bytes]]) -> None:
        self.getValue = values.__getitem__
        self.updateValue = values.__setitem__
        self.clear = values.clear


class Lane:
    """Batches through one lane. The calls of the rows in `ends` end after the given seconds; other calls never end."""

    def __init__(self, *, shape: Shape = SHAPE, seconds: float = 0.0, **options: Any) -> None:
        made = Settings(**{"capacity": 20, "timeout": 100.0, "drain": 0.02} | options)
        self.plan = Plan(f"{next(_numbers)}", Adapted(self.call), made, shape, "column" if shape.with_error else "fail")
        self.seconds = seconds
        self.ends: set[int] = set()
        self.called: list[int] = []
        self.committed = self.tried = State()
        self.batch = 0

    async def call(self, row: Any, call: Any) -> Any:
        self.called.append(row.n)
        if row.n < 0:
            msg = "no"
            raise ValueError(msg)
        while row.n not in self.ends:  # noqa: ASYNC110 - for ever
            await asyncio.sleep(100)
        await asyncio.sleep(self.seconds)
        return ("no number" if row.n == MISFIT else 2 * row.n, call.id)

    def attempt(self, rows: Iterable[int], ends: Iterable[int], *, others: bool = False) -> list[dict[str, Any]]:
        """Try the batch that follows the committed one; return what it emits. It has input if there are rows, or if `others` is true."""
        self.tried, self.ends = deepcopy(self.committed), set(ends)
        self.tried.timer = None
        form = Form(self.plan.shape, "n -> out")
        lane = lanes._Lanes(
            form,
            self.plan.settings.drain or 0.0,
            lambda batches, carrying: run(self.plan, Place("q", 0, "q-"), batches, carrying=carrying),
            lambda: None,
        )
        lane.init(self.tried)  # type: ignore[arg-type]  # stands for Spark's
        numbers = list(rows)
        fresh = form.fresh(pa.record_batch([numbers], schema=INPUT), f"q-{self.batch}-", pa.array(range(len(numbers))))
        chunks = iter([dumped([fresh])] if numbers else []) if numbers or others else None
        frames = list(lane._serve((0,), chunks, 7))
        found = [
            row for frame in frames for chunk in frame["chunk"] for made in loaded(chunk) for row in made.to_pylist()
        ]
        assert (self.tried.timer == 8) == (self.tried.value is not None)
        return found

    def commit(self) -> None:
        """Let the last try count."""
        self.committed = self.tried
        self.batch += 1

    def run(self, rows: Iterable[int], ends: Iterable[int]) -> list[int]:
        """Try and commit; return what the batch emits."""
        found = self.attempt(rows, ends)
        self.commit()
        return [row["n"] for row in found]


@BOTH
def test_a_repeated_batch_emits_what_it_did_though_other_calls_end(ordered: bool) -> None:
    """Failure 1 of the module: the sink has a batch's first try, the state is the second try's: no row is lost or doubled."""
    lane = Lane(ordered=ordered, drain=PATIENT)
    assert lane.run([1, 2, 3], {1, 2}) == []
    first = lane.attempt([4, 5], {3, 4})
    second = lane.attempt([4, 5], {5})
    assert first == second
    assert [row["n"] for row in first] == [1, 2]
    lane.commit()
    every = {1, 2, 3, 4, 5}
    assert sorted(lane.run([], every) + lane.run([], every)) == [3, 4, 5]
    assert (lane.committed.value, lane.committed.map) == (None, {})


@pytest.mark.slow
@BOTH
@settings(max_examples=5)
@given(
    script=st.lists(
        st.tuples(st.integers(0, 4), st.lists(st.sets(st.integers(0, 15)), min_size=1, max_size=3)), max_size=4
    )
)
def test_each_row_is_emitted_once_whichever_try_counts(ordered: bool, script: list[tuple[int, list[set[int]]]]) -> None:
    """Each batch is tried several times, and other calls end in each try: all tries emit the same rows, and all batches each row once."""
    lane = Lane(ordered=ordered)
    emitted: list[dict[str, Any]] = []
    rows = 0
    for many, tries in script:
        numbers = range(rows, rows + many)
        rows += many
        found = [lane.attempt(numbers, ends) for ends in tries]
        assert all(one == found[0] for one in found)
        emitted += found[0]
        lane.commit()
    while lane.committed.value is not None:
        emitted += lane.attempt([], range(rows))
        lane.commit()
    found_rows = [row["n"] for row in emitted]
    assert (found_rows if ordered else sorted(found_rows)) == list(range(rows))
    assert len({row["call"] for row in emitted}) == rows
    assert lane.committed.map == {}


@pytest.mark.slow
def test_a_call_that_takes_longer_than_drain_ends() -> None:
    """A call that starts again in each batch would never end: a batch without input gives it twice the time of the one before."""
    lane = Lane(seconds=0.3)
    assert lane.run([1], {1}) == []
    while not (found := lane.run([], {1})):
        assert lane.batch < 10
    assert found == [1]


def test_a_carried_row_times_out() -> None:
    """F-A19: a row's age is that of all its batches; the rows after it go on."""
    lane = Lane(shape=Shape(SHAPE.schema, keep_input=True, with_error=True), timeout=1.0, drain=PATIENT)
    assert lane.run([1, 2], {2}) == []
    while not (found := lane.attempt([], ())):
        lane.commit()
        assert lane.batch < 20
    assert [(row["n"], row["out"], row["_error"] and row["_error"]["kind"]) for row in found] == [
        (1, None, "timeout"),
        (2, 4, None),
    ]
    assert found[0]["_error"]["elapsed_ms"] >= 1000
    assert lane.called.count(1) > 1


def test_no_row_is_left_before_it_was_called() -> None:
    """A batch ends when it has admitted all its rows, however long that takes: the state holds no more than `capacity`."""
    lane = Lane(capacity=2, seconds=0.05)
    lane.run(range(1, 7), range(1, 7))
    assert set(lane.called) == set(range(1, 7))


def test_what_ended_is_not_called_again() -> None:
    """In ordered output, rows that wait for a slow one keep their outcome in the state."""
    lane = Lane(drain=PATIENT)
    assert lane.run([1, 2, 3], {2, 3}) == []
    assert lane.run([4], {4}) == []
    assert lane.run([], {1}) == []
    assert lane.run([], ()) == [1, 2, 3, 4]
    assert sorted(lane.called) == [1, 1, 1, 2, 3, 4]


def test_a_failed_row_fails_the_try_and_leaves_the_state() -> None:
    """The next try emits what was due."""
    lane = Lane(drain=PATIENT)
    assert lane.run([1], {1}) == []
    with pytest.raises(CallFailed, match="no"):
        lane.attempt([-2], ())
    assert lane.run([2], {2}) == [1]
    assert lane.run([], ()) == [2]


def test_a_result_that_does_not_fit_fails_the_try_that_made_it() -> None:
    """If it finished after a slow row, it would be put into the state and fail every later batch."""
    lane = Lane(drain=PATIENT)
    with pytest.raises(CallFailed, match="column 'out': expected bigint"):
        lane.attempt([1, MISFIT], {MISFIT})
    assert lane.run([1, 2], {1, 2}) == []
    assert lane.run([], ()) == [1, 2]


def test_failures_as_a_column_are_held_like_any_output() -> None:
    """A failure that waits for a slow row before it is kept, without the input's columns, and the next batch emits it, in order."""
    lane = Lane(shape=Shape(SHAPE.schema, keep_input=False, with_error=True), drain=PATIENT)
    assert lane.attempt([-1, 2, -3, 4], {4}) == []
    lane.commit()
    (first,) = lane.attempt([], {2})
    lane.commit()
    assert (first["out"], first["call"], first["_error"]["message"]) == (None, None, "ValueError: no")
    rest = lane.attempt([], ())
    assert [(row["out"], row["_error"] and row["_error"]["attempts"]) for row in rest] == [
        (4, None),
        (None, 1),
        (8, None),
    ]
    assert sorted(lane.called) == [-3, -1, 2, 2, 4]


@pytest.mark.slow
def test_an_idle_lane_waits_longer_but_not_when_it_has_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch without input waits as long as its oldest row is old, up to a limit; finished output does not wait."""
    given: list[float] = []

    def carrying(*arguments: Any) -> Carrying:
        given.append(arguments[-1])
        return Carrying(*arguments)

    monkeypatch.setattr(lanes, "Carrying", carrying)
    monkeypatch.setattr(lanes, "_IDLE_SECONDS", 0.1)
    lane = Lane(ordered=False)
    lane.run([1, 2], {2})
    assert lane.run([], ()) == [2]
    for _ in range(4):
        lane.run([], ())
    lane.run([3], ())
    lane.attempt([], (), others=True)
    assert given[:2] == [0.02, 0.02]
    assert 0.02 < given[2] <= given[5] == 0.1
    assert given[6:] == [0.02, 0.02]
    assert lane.run([], {1, 3}) == []
    assert lane.run([], ()) == [1, 3]


def test_a_partition_with_rows_tells_every_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of rows are numbered for their lane, and each other lane gets an empty one; an idle batch without rows sends none."""
    monkeypatch.setattr(lanes, "task_batch", lambda: ("q", 3, 1, 0))

    def pieces(*sizes: int) -> list[dict[str, Any]]:
        batches = iter([pa.record_batch([list(range(size))], schema=INPUT) for size in sizes])
        packed = lanes._packed(batches, Form(SHAPE, "n -> out"), "o", keyed=False)
        return [piece for batch in packed for piece in batch.to_pylist()]

    found = pieces(2, 0, 1)
    assert {piece["lane"] for piece in found} == set(lanes._lanes(200))
    assert [(piece["number"], len(loaded(piece["chunk"])[0])) for piece in found if piece["chunk"]] == [(0, 2), (1, 1)]
    assert len(found) == 201
    assert {piece["number"] for piece in found if not piece["chunk"]} == {0}
    assert pieces() == pieces(0) == []
