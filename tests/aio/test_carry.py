"""Operators that end before their rows, and later operators that continue those rows: on virtual time, and through their Arrow form."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from decimal import Decimal
from enum import Enum
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import clock
from penstock.aio.carry import Form, dumped, id_of, loaded
from penstock.aio.function import Adapted, AsyncFunction, Call
from penstock.aio.operator import Operator
from penstock.aio.outcome import Carried, Failure, RowOutcome
from penstock.aio.retry import Retry
from penstock.aio.rows import Shape
from penstock.aio.settings import Settings
from penstock.errors import DamagedState, OptionError
from penstock.testing import FakeClock, run_virtual
from tests.aio.driven import NAMES
from tests.support.effort import effort

BOTH = pytest.mark.parametrize("ordered", [True, False])


class Batches:
    """Rows through one operator after another; each operator but the last is ended `drain` seconds after its input."""

    def __init__(
        self,
        fn: Any,
        *,
        drain: float = 1.0,
        on_error: Any = "column",
        key: Any = None,
        share: Any = None,
        **settings: Any,
    ) -> None:
        self.settings = Settings(**{"timeout": 100.0} | settings, drain=drain)
        self.fn, self.on_error, self.key, self.share = fn, on_error, key, share
        self.left: list[Carried] = []
        self.outs: list[list[Any]] = []
        self.failures: dict[Any, Failure] = {}
        self.counts: list[Any] = []

    def run(
        self, rows: list[Any], *, last: bool = False, changed: Settings | None = None, pause: float = 0.0
    ) -> list[Any]:
        """Run a batch, `pause` seconds after the previous one; return what it emitted."""

        async def main() -> list[RowOutcome]:
            loop = asyncio.get_running_loop()
            woken = asyncio.Event()
            operator = Operator(
                Adapted(self.fn),
                NAMES,
                changed or self.settings,
                notify=woken.set,
                on_error=self.on_error,
                key=self.key,
                share=self.share,
                identify=lambda row: f"q-{row}",
                carried=[replace(one, age=one.age + pause) for one in self.left],
            )
            operator.feed(rows)
            operator.end()
            await asyncio.sleep(0.001)  # until as many rows as possible are admitted
            taken: list[RowOutcome] = []
            over: float | None = None
            while not operator.done and (last or over is None or loop.time() < over):
                taken += operator.take(1000)
                if over is None and not operator.backlog:
                    over = loop.time() + (self.settings.drain or 0.0)
                woken.clear()
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(woken.wait(), 0.25 if over is None or last else over - loop.time())
            self.left = await operator.carry()
            taken += operator.take(1000)
            self.counts.append(operator.counts)
            return taken

        outcomes = run_virtual(main())
        self.failures |= {one.row: one.failure for one in outcomes if one.failure}
        self.outs.append([value for one in outcomes for (value,) in one.outputs])
        return self.outs[-1]


class Service:
    """Answers row n with 2n: its first call takes `seconds[n]`, and any later call is answered at once."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self.seconds = seconds
        self.asked: Counter[int] = Counter()
        self.attempts: list[tuple[str, int]] = []

    async def __call__(self, row: int, call: Call) -> Any:
        """Answer; a second call for the same row is answered at once."""
        self.asked[row] += 1
        self.attempts.append((call.id, call.attempt))
        await asyncio.sleep(self.seconds.get(row, 0.0) if self.asked[row] == 1 else 0.0)
        return (2 * row,)


@BOTH
def test_what_is_left_is_taken_up_first(ordered: bool) -> None:
    """A6: a batch ends during calls; the next batch makes them again, before its own rows: each row is emitted once."""
    service = Service({1: 50.0, 2: 50.0})
    batches = Batches(service, ordered=ordered, capacity=4)
    assert batches.run([0, 1, 2, 3]) == ([0] if ordered else [0, 6])
    assert [one.row for one in batches.left] == ([1, 2, 3] if ordered else [1, 2])
    assert batches.run([4, 5]) == ([2, 4, 6, 8, 10] if ordered else [2, 4, 8, 10])
    assert batches.left == []
    assert service.attempts.count(("q-1", 1)) == 2


def test_a_finished_row_after_a_slow_head_is_not_called_again() -> None:
    """Its outcome, also a failure, is carried and emitted when the head has its own outcome: in order (F-A6, F-A19)."""

    async def call(row: int) -> Any:
        asked[row] += 1
        if row == 0 and asked[0] < 3:
            await asyncio.sleep(50)
        if row == 2:
            msg = "no"
            raise ValueError(msg)
        return (2 * row,)

    asked: Counter[int] = Counter()
    batches = Batches(call, capacity=10)
    assert batches.run([0, 1, 2, 3]) == []
    assert batches.run([4]) == []
    assert batches.run([5]) == [0, 2, 6, 8, 10]
    assert asked == {0: 3, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1}
    assert batches.failures.keys() == {2}


def test_finished_rows_that_are_taken_up_leave_their_places() -> None:
    """A finished row holds a place until it is emitted, and no longer: with a lower capacity the rows after it are still called."""
    service = Service({0: 50.0})
    batches = Batches(service, capacity=4)
    assert batches.run([0, 1, 2, 3]) == []
    lower = replace(batches.settings, capacity=3)
    assert batches.run([4, 5, 6, 7], changed=lower) == [2 * row for row in range(8)]


@BOTH
@pytest.mark.parametrize("capacity", [1, 2])
def test_more_is_taken_up_than_there_are_places(ordered: bool, capacity: int) -> None:
    """F-A6: the capacity was lowered: all rows are admitted in order, without a deadlock, and never more at a time."""
    service = Service(dict.fromkeys(range(6), 50.0))
    batches = Batches(service, ordered=ordered, capacity=6)
    assert batches.run(list(range(6))) == []
    lower = replace(batches.settings, capacity=capacity)
    assert batches.run([6, 7], changed=lower) == [2 * row for row in range(8)]
    assert max(service.asked.values()) == 2


def test_rows_of_a_key_stay_in_line_over_batches() -> None:
    """F-A20: a row waits for a running call of its key, also in the next batch."""
    began: list[int] = []

    async def call(row: int) -> Any:
        began.append(row)
        await asyncio.sleep(50 if began.count(0) == row + 1 else 0)
        return (row,)

    batches = Batches(call, ordered=False, capacity=10, key=lambda row: row % 2)
    assert batches.run([0, 2, 1]) == [1]
    assert batches.run([4]) == [0, 2, 4]
    assert [row for row in began if row % 2 == 0] == [0, 0, 2, 4]


def test_attempts_that_were_made_count_and_interrupted_ones_do_not() -> None:
    """Two of three attempts failed and the third is interrupted twice: it is made again as the third, which is the last."""
    attempts: list[int] = []

    async def call(row: int, call: Call) -> Any:
        attempts.append(call.attempt)
        if len(attempts) in {3, 4}:
            await asyncio.sleep(50)
        msg = "no"
        raise OSError(msg)

    batches = Batches(call, retry=Retry(3, delay=0.1))
    for _ in range(3):
        batches.run([] if attempts else [7])
    assert attempts == [1, 2, 3, 3, 3]
    assert batches.failures[7].attempts == 3


def test_a_pause_between_attempts_is_cut_short_by_the_end_of_a_batch() -> None:
    """A row that waits for its next attempt has used the earlier ones; the next batch makes the attempt at once."""
    attempts: list[int] = []

    async def call(row: int, call: Call) -> Any:
        attempts.append(call.attempt)
        if call.attempt == 1:
            msg = "no"
            raise OSError(msg)
        return (row,)

    batches = Batches(call, retry=Retry(3, delay=30.0))
    assert batches.run([7]) == []
    assert batches.run([]) == [7]
    assert attempts == [1, 2]


def test_a_row_ages_over_batches() -> None:
    """F-A19: the time-out counts from the first admission, over batches and the time between them, and ends a carried row."""
    service = Service({0: 1e9})

    async def never(row: int, call: Call) -> Any:
        await service(row, call)
        await asyncio.sleep(1e9)

    batches = Batches(never, timeout=10.0)
    assert [batches.run([0], pause=0.0), batches.run([], pause=3.0), batches.run([], pause=3.0)] == [[], [], []]
    assert batches.left[0].age == pytest.approx(9.0, abs=0.01)
    assert batches.run([], pause=0.5, last=True) == []
    assert (batches.failures[0].kind, batches.left) == ("timeout", [])
    assert batches.failures[0].elapsed_ms == 10_000


def test_timed_out_is_waited_for() -> None:
    """A timed-out row's `timed_out` is running when the batch ends: it is not a call, and it does not run twice."""

    class Fallback(AsyncFunction):
        asked = 0

        async def invoke(self, row: int, call: Call) -> Any:
            await asyncio.sleep(1e9)

        async def timed_out(self, row: int, call: Call) -> Any:
            self.asked += 1
            await asyncio.sleep(9)
            return (-row,)

    fallback = Fallback()
    batches = Batches(fallback, timeout=10.0, drain=9.0)
    assert batches.run([1, 2]) == []
    assert batches.run([]) == [-1, -2]
    assert (fallback.asked, batches.left) == (2, [])


def test_batches_of_calls_are_carried() -> None:
    """Rows of an interrupted batch call, and a finished row after them, are carried, and called in a batch again."""

    async def call(rows: list[int], calls: list[Call]) -> Any:
        asked.append(rows)
        await asyncio.sleep(50 if len(asked) == 1 else 0)
        return [(row,) for row in rows]

    asked: list[list[int]] = []
    batches = Batches(call, batch_size=2, capacity=10)
    assert batches.run([1, 2, 3]) == []
    assert batches.run([4]) == [1, 2, 3, 4]
    assert asked == [[1, 2], [3], [1, 2], [4]]


def test_shared_rows_are_carried() -> None:
    """Rows that share a call are carried with it, and share it again."""
    service = Service({7: 50.0})
    batches = Batches(service, share=lambda row: row)
    assert batches.run([7, 7, 7]) == []
    assert batches.run([7]) == [14] * 4
    assert (service.asked[7], batches.counts[1].shared) == (2, 3)


def test_an_answer_after_the_end_is_late() -> None:
    """A call that ignores its cancellation and answers is dropped: its row is carried, and so emitted once."""

    async def deaf(row: int) -> Any:
        asked.append(row)
        if len(asked) == 1:
            try:
                await asyncio.sleep(50)
            except asyncio.CancelledError:
                return (99,)
        return (row,)

    asked: list[int] = []
    batches = Batches(deaf, ordered=False)
    assert batches.run([7]) == []
    assert batches.counts[0].late == 1
    assert batches.run([]) == [7]


@pytest.mark.slow
@settings(max_examples=effort(15, 1000))
@given(
    rows=st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=5),
    capacity=st.integers(1, 6),
    ordered=st.booleans(),
    keyed=st.booleans(),
)
def test_each_row_is_emitted_once_whatever_is_carried(
    rows: list[list[int]], capacity: int, ordered: bool, keyed: bool
) -> None:
    """Any batches of rows, each interrupted any number of times: every row is emitted once, in order if required, also within its key."""
    numbered = [[(batch, place, times) for place, times in enumerate(some)] for batch, some in enumerate(rows)]
    asked: Counter[Any] = Counter()

    async def call(row: Any) -> Any:
        asked[row] += 1
        await asyncio.sleep(50 if asked[row] <= row[2] else 0)
        return (row,)

    batches = Batches(
        call, ordered=ordered, capacity=capacity, timeout=1000.0, key=(lambda row: row[2] % 2) if keyed else None
    )
    for some in numbered:
        batches.run(some)
    batches.run([], last=True)
    out = [row for some in batches.outs for row in some]
    every = [row for some in numbered for row in some]
    assert sorted(out) == every
    if ordered:
        assert out == every
    if keyed:
        assert all([row for row in out if row[2] % 2 == k] == [row for row in every if row[2] % 2 == k] for k in (0, 1))


def test_drain_asks_for_a_timeout() -> None:
    """Without a time-out nothing would end a carried row; the drain must be shorter than it, and must be a number."""
    with pytest.raises(OptionError, match="drain=1 needs a timeout"):
        Settings(drain=1.0)
    for bad in (-1, "1", True, float("nan")):
        with pytest.raises(OptionError, match="drain="):
            Settings(drain=bad, timeout=1.0)  # type: ignore[arg-type]  # what a user might give
    with pytest.raises(OptionError, match="drain=2 is not below timeout=2: no call would be left"):
        Settings(drain=2.0, timeout=2.0)


# -- the Arrow form ----------------------------------------------------------------------------------------------

INPUT = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("origin", pa.string()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("nested", pa.struct([pa.field("d", pa.decimal128(38, 6)), pa.field("l", pa.list_(pa.int32()))])),
        pa.field("map", pa.map_(pa.string(), pa.float64())),
    ]
)
FORM = Form(Shape(INPUT, keep_input=True, with_error=True), "a -> b")
VALUES = (
    7,
    None,
    datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone.utc),
    {"d": Decimal("1.500000"), "l": [1, None]},
    [("k", 0.5)],
)


def fresh(rows: int, origin: str = "q-o-3-0-") -> pa.RecordBatch:
    """Return rows of the input as they arrive after transport."""
    batch = pa.RecordBatch.from_pylist([dict(zip(INPUT.names, VALUES, strict=True)) for _ in range(rows)], schema=INPUT)
    (travelled,) = loaded(dumped([FORM.fresh(batch, origin, pa.array(range(5, 5 + rows)))]))
    return travelled


def test_rows_travel_with_their_ids() -> None:
    """A lane gets the input, unchanged, and the ids of its rows."""
    columns = FORM.opened(fresh(2))
    assert columns.batch.schema.equals(INPUT)
    assert [id_of(row) for row in columns.rows()] == ["q-o-3-0-5", "q-o-3-0-6"]


class Level(Enum):
    """Numbers with names."""

    LOW = 1
    HIGH = 2


@dataclass
class Place:
    """A dataclass, to be inside an output."""

    city: str
    level: Level


def test_all_that_a_row_has_survives_the_state() -> None:
    """Rows of several batches, with outcomes of any type, failures, or none: in order, by their ids, with their columns."""
    first, second = FORM.opened(fresh(3)).rows(), FORM.opened(fresh(1, "q-o-4-1-")).rows()
    failure = Failure("error", "no", 2, 30)
    left = [
        Carried(first[2], 1, 2.5),
        Carried(first[0], 3, 2.0, RowOutcome(0, first[0], [VALUES, VALUES], None, 3)),
        Carried(second[0], 1, 1.0, RowOutcome(1, second[0], [], None, 1)),
        Carried(first[1], 2, 0.5, RowOutcome(2, first[1], [], failure, 2)),
    ]
    with clock.use(FakeClock()):
        found = FORM.taken_up(FORM.kept(left, 0, "run"), "run")[0]
    assert [id_of(one.row) for one in found] == ["q-o-3-0-7", "q-o-3-0-5", "q-o-4-1-5", "q-o-3-0-6"]
    assert [(one.attempts, one.age) for one in found] == [(1, 2.5), (3, 2.0), (1, 1.0), (2, 0.5)]
    assert [one.outcome and (one.outcome.outputs, one.outcome.failure) for one in found] == [
        None,
        ([VALUES, VALUES], None),
        ([], None),
        ([], failure),
    ]
    assert all(dict(one.row) == dict(first[0]) for one in found)
    again, finished = FORM.taken_up(FORM.kept(found, 7, "run"), "run")
    assert finished == 7
    assert [id_of(one.row) for one in again] == [id_of(one.row) for one in found]


def test_outputs_that_arrow_does_not_know_survive_the_state() -> None:
    """What becomes a column of the output becomes one of the state: members of an Enum, and models, at any depth."""
    place = pa.struct([pa.field("city", pa.string()), pa.field("level", pa.int64())])
    shape = Shape(
        pa.schema([pa.field("level", pa.int64()), pa.field("places", pa.list_(place))]),
        keep_input=True,
        with_error=True,
    )
    form = Form(shape, "n bigint -> level bigint, places")
    (row,) = form.opened(fresh(1)).rows()
    left = Carried(row, 1, 0.0, RowOutcome(0, row, [(Level.HIGH, [Place("Ulm", Level.LOW)])], None, 1))
    ((found,), _) = form.taken_up(form.kept([left], 0, "run"), "run")
    assert found.outcome is not None
    assert found.outcome.outputs == [(2, [{"city": "Ulm", "level": 1}])]


def test_ages_by_the_wall_clock() -> None:
    """F-A27: time passes between batches; setting the clock does not change an age, which is never negative; a restart resets it."""
    (row,) = FORM.opened(fresh(1)).rows()
    fake = FakeClock()
    with clock.use(fake):
        kept = FORM.kept([Carried(row, 1, 2.0)], 0, "run")

        def age(run: str) -> float:
            ((one,), _) = FORM.taken_up(kept, run)
            return one.age

        fake.seconds += 10
        assert age("run") == 12.0
        assert age("another") == 0.0
        for ahead in (3600, -7200):
            fake.jump(ahead)
            assert age("run") == 12.0, "of a clock that was set meanwhile"
        fake.seconds -= 30
        assert age("run") == 0.0


def test_rows_of_another_program_are_refused() -> None:
    """If the columns changed while rows were carried or output was held, there is a clear error, not a wrong row."""
    (row,) = FORM.opened(fresh(1)).rows()
    for kept in (FORM.kept([Carried(row)], 0, "run"), FORM.kept([], 3, "run")):
        with pytest.raises(DamagedState, match="found version 1, a -> b; expected version 1, a -> c"):
            Form(FORM.shape, "a -> c").taken_up(kept, "run")


def test_output_alone_is_held() -> None:
    """If every call has ended, the state has no rows, and still holds the number of chunks that wait to be emitted."""
    assert FORM.taken_up(FORM.kept([], 3, "run"), "run") == ([], 3)
