"""A task's rows through a runtime: real threads, a real loop, Arrow in and out."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest

from penstock.aio import interpreter, operator, runtime, slots, stage
from penstock.aio.function import Adapted, AsyncFunction, in_threads
from penstock.aio.operator import Operator
from penstock.aio.rows import Columns, Shape
from penstock.aio.settings import Settings
from penstock.aio.stage import Place, Plan, run
from penstock.errors import CallFailed
from tests.support.wait import PATIENCE_SECONDS

SCHEMA = pa.schema([pa.field("out", pa.int64())])


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Leave no runtime, no thread and no task."""
    yield
    runtime.close_all()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (left := [t for t in threading.enumerate() if t.name == "penstock-loop"]) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left == []


def batches(rows: int, size: int = 100) -> Iterator[pa.RecordBatch]:
    """Return rows with the columns `n` and `text`."""
    for start in range(0, rows, size):
        numbers = range(start, min(start + size, rows))
        yield pa.record_batch({"n": pa.array(numbers, pa.int64()), "text": [f"row {n}" for n in numbers]})


def plan(fn: Any, *, name: str = "f", keep_input: bool = True, on_error: Any = "fail", **settings: Any) -> Plan:
    """Return a plan whose outputs are one integer."""
    return Plan(name, Adapted(fn), Settings(**settings), Shape(SCHEMA, keep_input, on_error == "column"), on_error)


def outputs(made: Plan, rows: int = 10, **how: Any) -> list[dict[str, Any]]:
    """Return the outputs for this many rows."""
    return [row for batch in run(made, Place("q", 0, "q-"), batches(rows), **how) for row in batch.to_pylist()]


async def double(row: Any) -> dict[str, int]:
    await asyncio.sleep(0)
    return {"out": 2 * row.n}


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(("rows", "capacity"), [(0, 1), (1, 1), (1000, 7), (1000, 1000), (20_000, 100)])
def test_every_row_is_there_once_with_its_columns(rows: int, capacity: int, ordered: bool) -> None:
    """Any number of rows with any capacity: each with its own columns, in order if required."""
    found = outputs(plan(double, capacity=capacity, ordered=ordered), rows)
    expected = [{"n": n, "text": f"row {n}", "out": 2 * n} for n in range(rows)]
    assert (found if ordered else sorted(found, key=lambda row: row["n"])) == expected


def test_a_column_that_nobody_asks_for_is_never_made_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only columns that the function accesses become Python objects."""
    asked: set[str] = set()
    real = Columns.__getitem__

    def get(self: Columns, name: str) -> Any:
        asked.add(name)
        return real(self, name)

    monkeypatch.setattr(Columns, "__getitem__", get)
    assert len(outputs(plan(double))) == 10
    assert asked == {"n"}


def test_no_thread_is_made_for_a_row() -> None:
    """Two threads serve any number of rows: the loop's and the watchdog's."""
    before, most = threading.active_count(), 0

    async def count(row: Any) -> Any:
        nonlocal most
        most = max(most, threading.active_count())
        await asyncio.sleep(0.001)
        return (row.n,)

    assert len(outputs(plan(count, capacity=500), 2000)) == 2000
    assert most <= before + 2


class Living(AsyncFunction):
    """Records its life cycle."""

    def __init__(self) -> None:
        self.life: list[str] = []

    async def open(self, ctx: Any) -> None:
        self.life.append("open")

    async def invoke(self, row: Any, call: Any) -> Any:
        self.life.append(call.id)
        return (row.n,)

    async def close(self) -> None:
        self.life.append("close")


def test_one_instance_for_many_tasks_of_a_query() -> None:
    """The first task opens it, the next one uses it, and it is closed once at the end; another query has its own."""
    first, copy, other = Living(), Living(), Living()
    outputs(plan(first), 2)
    outputs(plan(copy), 1)
    outputs(plan(other, name="g"), 1)
    assert first.life == ["open", "q-0", "q-1", "q-0"]
    runtime.close_all()
    assert first.life[-1] == "close"
    assert (copy.life, other.life) == ([], ["open", "q-0", "close"])


def test_a_runtime_that_nobody_uses_closes_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark kills an idle worker without a warning, so the function is closed before that; the next task opens it again."""
    monkeypatch.setattr(runtime, "IDLE_SECONDS", 0.05)
    fn = Living()
    outputs(plan(fn), 1)
    wait_for(lambda: fn.life[-1] == "close")
    outputs(plan(fn), 1)
    assert fn.life[2:] == ["close", "open", "q-0"]


def wait_for(holds: Any) -> None:
    """Wait until the condition holds; fail if it never does."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Broken(AsyncFunction):
    """Raises in the given method."""

    def __init__(self, where: str) -> None:
        self.where = where

    async def open(self, ctx: Any) -> None:
        if self.where == "open":
            raise OSError(self.where)
        if self.where == "stop in open":
            asyncio.get_running_loop().stop()
            await asyncio.sleep(3600)

    async def invoke(self, row: Any, call: Any) -> Any:
        if self.where == "leave":
            self.left = asyncio.create_task(asyncio.sleep(3600))
        if self.where == "stop" and row.n == 5:
            asyncio.get_running_loop().stop()
        return (row.n,)

    async def close(self) -> None:
        if self.where == "close":
            raise OSError(self.where)


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("open", "could not be opened: OSError: open"),
        ("stop", "event loop has ended"),
        ("stop in open", "event loop has ended"),
    ],
)
def test_a_function_that_cannot_run_fails_the_task(where: str, says: str) -> None:
    """A clear failure, not a hang; the next task starts anew."""
    for _ in range(2):
        with pytest.raises(CallFailed, match=says):
            outputs(plan(Broken(where), capacity=2))
    assert len(outputs(plan(Broken(""), capacity=2))) == 10


@pytest.mark.parametrize(
    ("where", "says"), [("close", "close() of the function failed"), ("leave", "left 10 tasks behind")]
)
def test_what_goes_wrong_at_the_end_is_logged(where: str, says: str, caplog: pytest.LogCaptureFixture) -> None:
    """Every row has its output by then, and nobody waits for the end, so the error is logged."""
    assert len(outputs(plan(Broken(where)))) == 10
    runtime.close_all()
    assert says in caplog.text


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()])
def test_a_function_that_exits_when_it_is_closed(raised: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged as any failure: the function that is closed behind it is closed, too, and what it left is cancelled at once."""

    class Exits(Broken):
        async def close(self) -> None:
            raise raised

    last = Living()
    outputs(plan(Exits("leave"), name="exits"))
    outputs(plan(last, name="last"))
    runtime.close_all()
    assert "close() of the function failed" in caplog.text
    assert "left 10 tasks behind" in caplog.text
    assert last.life[-1] == "close"


def test_a_blocked_loop_is_reported_with_its_stack(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F-A21: a function that blocks the loop stops every call; the log names the line."""
    monkeypatch.setattr(runtime, "_REPORT_SECONDS", 0.05)
    wait = threading.Event()

    async def block(row: Any) -> Any:
        wait.wait(10)
        return (row.n,)

    def go_on() -> None:
        wait_for(lambda: "in block" in caplog.text)
        wait.set()

    reported = threading.Thread(target=go_on)
    reported.start()
    assert len(outputs(plan(block), 3)) == 3
    reported.join()
    assert "wait.wait(10)" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("where", ["open", "invoke"])
def test_a_loop_that_stays_blocked_fails_the_task(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Never a hang: a loop that is blocked for long fails the task, and the next task gets a new loop."""
    monkeypatch.setattr(runtime, "_REPORT_SECONDS", 0.05)
    monkeypatch.setattr(runtime, "BLOCKED_SECONDS", 0.1)
    wait = threading.Event()

    class Blocks(AsyncFunction):
        async def open(self, ctx: Any) -> None:
            assert where != "open" or wait.wait(30)

        async def invoke(self, row: Any, call: Any) -> Any:
            wait.wait(30)
            return (row.n,)

    with pytest.raises(CallFailed, match="did not answer.*in wait"):
        outputs(plan(Blocks()), 3)
    assert len(outputs(plan(double), 3)) == 3
    wait.set()


def test_an_open_that_never_returns_fails_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never a hang: `open` has a time limit, and the task fails after it."""
    monkeypatch.setattr(runtime, "OPEN_SECONDS", 0.1)

    class Waiting(Living):
        async def open(self, ctx: Any) -> None:
            await asyncio.sleep(3600)

    with pytest.raises(CallFailed, match="open.. of the function did not return within 0.1 s"):
        outputs(plan(Waiting()))
    assert len(outputs(plan(double))) == 10


def test_calls_that_do_not_end_are_reported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Without a time-out nothing ends a call that never completes; the log reports that nothing progresses."""
    monkeypatch.setattr(stage, "_SILENT_SECONDS", 0.05)

    async def wait(row: Any) -> Any:
        while "no call has ended" not in caplog.text:  # noqa: ASYNC110 - another thread writes it
            await asyncio.sleep(0.01)
        return (row.n,)

    assert len(outputs(plan(wait))) == 10


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["timeout", "attempt_timeout"])
def test_calls_that_never_end_fail_the_task_when_nothing_goes_on(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """F-A4: they hold their places, and if they hold all of them the later rows would wait for ever."""
    monkeypatch.setattr(stage, "_SILENT_SECONDS", 0.2)
    monkeypatch.setattr(stage, "GRACE_SECONDS", 0.05)
    monkeypatch.setattr(slots, "GRACE_SECONDS", 0.05)
    monkeypatch.setattr(operator, "GRACE_SECONDS", 0.05)
    go = threading.Event()
    options: dict[str, Any] = {"capacity": 2, "on_error": "column", limit: 0.05}
    try:
        with pytest.raises(CallFailed, match="every place is held by a call whose time is over"):
            outputs(plan(in_threads(lambda row: go.wait(20)), **options), 5)
    finally:
        go.set()


def test_output_leaves_while_calls_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """F-A23: finished outputs are passed on after a while, even if other calls take much longer."""
    monkeypatch.setattr(stage, "EMIT_SECONDS", 0.05)
    given = threading.Event()

    async def slow(row: Any) -> Any:
        while row.n == 9 and not given.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.01)
        return (row.n,)

    found = run(plan(slow, ordered=False), Place("q", 0, "q-"), batches(10))
    first = next(found)
    assert 9 not in first.column("n").to_pylist()
    given.set()
    assert sum(batch.num_rows for batch in found) + first.num_rows == 10


def test_large_outputs_leave_in_batches_of_a_fair_size() -> None:
    """All calls end at once: output batches are a few megabytes each, and no column is larger than Arrow allows."""

    async def large(row: Any) -> Any:
        await asyncio.sleep(0.2)
        return (bytes(1_000_000),)

    shape = Shape(pa.schema([pa.field("out", pa.binary())]), keep_input=True, with_error=False)
    made = Plan("f", Adapted(large), Settings(capacity=64), shape, "fail")
    sizes = [batch.nbytes for batch in run(made, Place("q", 0, "q-"), batches(64))]
    assert sum(sizes) > 64_000_000
    assert max(sizes) < 20_000_000


@pytest.mark.slow
@pytest.mark.parametrize("bytes_", [stage._AHEAD_BYTES, 1])
def test_input_is_read_only_a_little_ahead(monkeypatch: pytest.MonkeyPatch, bytes_: int) -> None:
    """F-A24: input is read only for rows that have a slot or will soon have one; of large rows, only one batch waits."""
    monkeypatch.setattr(stage, "_AHEAD_BYTES", bytes_)
    ahead = 2 * 30 if bytes_ > 1 else 30
    read: list[int] = []
    ended: list[int] = []

    def counted() -> Iterator[pa.RecordBatch]:
        for batch in batches(3000, 10):
            assert sum(read) < ahead + 30 + len(ended)
            read.append(batch.num_rows)
            yield batch

    async def slow(row: Any) -> Any:
        await asyncio.sleep(0.001)
        ended.append(row.n)
        return (row.n,)

    made = plan(slow, capacity=30)
    assert sum(batch.num_rows for batch in run(made, Place("q", 0, "q-"), counted())) == 3000


@pytest.mark.slow
def test_a_consumer_that_stops_cancels_what_runs() -> None:
    """F-A11: if it is closed in the middle (a limit, a killed task), calls are cancelled, and the runtime serves the next task."""
    cancelled = []

    async def slow(row: Any) -> Any:
        try:
            await asyncio.sleep(0 if row.n < 5 else 3600)
        except asyncio.CancelledError:
            cancelled.append(row.n)
            raise
        return (row.n,)

    made = plan(slow, capacity=10)
    found = run(made, Place("q", 0, "q-"), batches(10))
    assert next(found).num_rows == 5
    found.close()
    assert sorted(cancelled) == [5, 6, 7, 8, 9]
    assert len(outputs(made, 5)) == 5


def test_input_that_fails_ends_the_task() -> None:
    """Errors from reading the input come through, and no call stays running."""

    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches(10)
        raise OSError("upstream")  # noqa: EM101 - a stand-in for any

    with pytest.raises(OSError, match="upstream"):
        list(run(plan(double), Place("q", 0, "q-"), failing()))


@pytest.mark.parametrize("bad", ["text", 1.5, 2**70, [1]])
def test_values_that_do_not_fit_are_their_rows_failure(bad: Any) -> None:
    """A value that is not of the column's type fails its own row, and no value is changed to fit."""

    async def one_bad(row: Any) -> Any:
        return (bad if row.n == 3 else row.n,)

    found = outputs(plan(one_bad, on_error="column"))
    assert [row["out"] for row in found] == [0, 1, 2, None, 4, 5, 6, 7, 8, 9]
    assert found[3]["_error"]["kind"] == "result"
    assert "column 'out': expected bigint" in found[3]["_error"]["message"]
    with pytest.raises(CallFailed, match="row 3 of partition 0 .call q-3, 1 attempt,"):
        outputs(plan(one_bad))


def test_a_null_where_none_may_be_is_a_failure() -> None:
    """NOT NULL is enforced, except for rows that failed."""

    async def none(row: Any) -> Any:
        return (None,)

    shape = Shape(pa.schema([pa.field("out", pa.int64(), nullable=False)]), keep_input=False, with_error=True)
    made = Plan("f", Adapted(none), Settings(), shape, "column")
    (row,) = outputs(made, 1)
    assert (row["out"], row["_error"]["kind"]) == (None, "result")


def test_counts_are_told_also_after_a_failure() -> None:
    """The `ended` callback gets the operator at the end, with the number of calls and their durations."""

    async def fail(row: Any) -> Any:
        raise OSError

    told: list[Operator] = []
    with pytest.raises(CallFailed):
        outputs(plan(fail, capacity=1), 5, ended=told.append)
    assert (told[0].counts.calls, told[0].counts.failed) == (1, 1)
    assert sum(told[0].latencies.values()) == 1


def lives(made: list[Living], *, digests: str, runs: str = "", function: str = "f") -> list[str]:
    """Run tasks in turn, of functions with these digests, in runs with these names; return which functions were opened and closed."""
    for digest, run_ in zip(digests, runs or "r" * len(digests), strict=True):
        living = Living()
        made.append(living)
        shape = Shape(SCHEMA, keep_input=False, with_error=False)
        adapted = Adapted(living)
        adapted.name = function
        of_task = Plan(digest, adapted, Settings(), shape, "fail")
        assert len(list(run(of_task, Place("q", 0, "q-", run_), batches(2)))) > 0
    return ["".join(word[0] for word in living.life if word in {"open", "close"}) for living in made]


@pytest.mark.parametrize(
    ("digests", "runs", "expected"),
    [
        ("aaaa", "", ["o", "", "", ""]),  # made anew for each batch, and equal: the first one serves all
        ("aaaa", "rrss", ["o", "", "o", ""]),  # another run of the query may have another password
        ("abab", "", ["o", "o", "", ""]),  # two operators of one class alternate in a worker
        ("abcd", "", ["oc", "oc", "o", "o"]),  # a new one in each batch: the last is kept, next to the active one
    ],
)
def test_one_client_a_worker_and_function(digests: str, runs: str, expected: list[str]) -> None:
    """A function is identified by its digest within a run: opened once, and if unused it is closed sooner than after a minute."""
    made: list[Living] = []
    try:
        found = lives(made, digests=digests, runs=runs)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while found != expected:
            assert time.monotonic() < deadline, found
            time.sleep(0.01)
            found = lives(made, digests="")
    finally:
        runtime.close_all()


def test_a_rate_is_shared_by_the_tasks_of_a_process() -> None:
    """Two tasks in turn: the second does not start with a burst of its own."""
    times: list[float] = []

    async def now(row: Any) -> Any:
        times.append(asyncio.get_running_loop().time())
        return (row.n,)

    made = plan(now, rate=50.0)
    outputs(made, 3)
    outputs(made, 3)
    assert len(times) == 6
    assert times[5] - times[0] >= 0.099


@pytest.mark.parametrize("usual", [700, 0, 1_000_000])
def test_the_interpreter_is_left_as_it_was(usual: int) -> None:
    """Running tasks shorten thread turns and make garbage collection rarer, by the largest setting; never more frequent, nor if off."""
    found, turn = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(usual, *found[1:])
    seen = []
    try:
        with ExitStack() as second:
            with ExitStack() as first:
                first.enter_context(interpreter.tuned(1000))
                seen.append(gc.get_threshold()[0])
                second.enter_context(interpreter.tuned(5000))
                seen.append(gc.get_threshold()[0])
            seen.append(gc.get_threshold()[0])
            assert sys.getswitchinterval() == pytest.approx(0.001)
        seen.append(gc.get_threshold()[0])
    finally:
        gc.set_threshold(*found)
    assert sys.getswitchinterval() == turn
    assert seen == {700: [20_000, 100_000, 100_000, 700], 0: [0] * 4, 1_000_000: [1_000_000] * 4}[usual]


def test_a_loop_beyond_the_descriptors_of_select() -> None:
    """In a process with a thousand open files timers still work, and calls from threads still wake its loop."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    held = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while held[-1] < 1100:
            held.append(os.dup(held[0]))
        assert outputs(plan(in_a_thread)) == outputs(plan(double, name="g"))
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        runtime.close_all()


async def in_a_thread(row: Any) -> dict[str, int]:
    await asyncio.sleep(0.001)
    return {"out": await asyncio.get_running_loop().run_in_executor(None, lambda: 2 * row.n)}
