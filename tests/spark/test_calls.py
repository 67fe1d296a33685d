"""`async_map` on a real Spark, against real HTTP services."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timezone
from decimal import Decimal
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import LongType, StructType

import penstock
from penstock import Retry
from penstock.errors import CallFailed, DependencyError, OptionError
from penstock.spark.calls import AsyncMap
from tests.support.interpreter import Interpreter
from tests.support.lookup import Lookup
from tests.support.service import Service
from tests.support.stage import Stage, run_python
from tests.support.wait import PATIENCE_SECONDS

REPOSITORY = Path(__file__).resolve().parents[2]


async def double(row: Any) -> dict[str, int]:
    await asyncio.sleep(0.001 * (row.id % 3))
    return {"out": 2 * row.id}


def numbers(spark: SparkSession, stage: Stage, **options: Any) -> DataFrame:
    """Return the lines of the stage's input as a stream."""
    return spark.readStream.format("penstock").options(**options).load(str(stage.src))


def write(frame: DataFrame, stage: Stage) -> StreamingQuery:
    """Write call ids and results as lines, and wait for the end."""
    lines = frame.selectExpr("concat_ws(' ', value, out, call) as value")
    writer = lines.writeStream.format("penstock").option("checkpointLocation", str(stage.checkpoint))
    query = writer.trigger(availableNow=True).start(str(stage.dst))
    query.awaitTermination()
    return query


def test_calls_of_a_module_that_workers_have_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of a module beside a script travels by its name, which a worker cannot import: our error says what to do."""
    (tmp_path / "calls_beside_a_script.py").write_text("async def score(row):\n    return {'s': 1}\n")
    monkeypatch.syspath_prepend(tmp_path)
    calls = AsyncMap(importlib.import_module("calls_beside_a_script").score, schema="s int", capacity=7)
    sent = cloudpickle.dumps(calls)  # type: ignore[no-untyped-call]  # - PySpark's copy has no types
    arrived = cloudpickle.loads(sent)
    assert arrived.user_function is calls.user_function
    assert arrived._plan.settings == calls._plan.settings
    monkeypatch.undo()  # as in a worker
    monkeypatch.delitem(sys.modules, "calls_beside_a_script")
    with pytest.raises(
        OptionError, match="needs 'calls_beside_a_script', which Spark's workers cannot import: .*PYTHONPATH"
    ):
        cloudpickle.loads(sent)


@pytest.mark.parametrize("ordered", [True, False])
def test_batch_frame_has_its_outputs(spark: SparkSession, ordered: bool) -> None:
    """Every row of a batch frame has its output next to its input columns, in order or in any order."""
    rows = penstock.async_map(spark.range(0, 500, 1, 2), double, schema="out long", ordered=ordered).collect()
    found = [(row.id, row.out) for row in rows]
    assert (found if ordered else sorted(found)) == [(i, 2 * i) for i in range(500)]


def test_columns_that_no_call_asks_for_stay_arrow(spark: SparkSession) -> None:
    """A column that Python could not even represent is carried through; without `keep_input` only the outputs remain."""
    frame = spark.sql(
        "select id, timestamp'9999-12-31 23:59:59.999999' + interval 24 hours as at, array(id) as a from range(9)"
    )
    made = penstock.async_map(frame, double, schema="out long")
    assert made.columns == ["id", "at", "a", "out"]
    assert made.selectExpr("max(cast(at as string))", "sum(out)", "sum(a[0])").first() == (
        "+10000-01-01 23:59:59.999999",
        72,
        36,
    )
    assert penstock.async_map(frame, double, schema="out long", keep_input=False).columns == ["out"]


async def several(row: Any) -> list[tuple[int]]:
    return [(row.id,)] * (row.id % 3)


def test_none_one_and_many_outputs(spark: SparkSession) -> None:
    """A row is emitted once for each of its outputs, with its input columns repeated."""
    rows = penstock.async_map(spark.range(9), several, schema="out long").collect()
    assert Counter((row.id, row.out) for row in rows) == {(i, i): i % 3 for i in range(9) if i % 3}


async def fussy(row: Any) -> Any:
    kinds: dict[int, Any] = {
        1: None,
        2: {"other": 1},
        3: {"out": "text"},
        4: (1, 2),
        5: {"out": 2**70},
        6: "text",
        7: {"out": 1.5},
    }
    if row.id == 8:
        msg = "eight at http://user:secret@host/"
        raise ValueError(msg)
    if row.id == 9:
        asyncio.get_running_loop().close()
    return kinds.get(row.id, {"out": row.id})


def test_errors_as_a_column(spark: SparkSession) -> None:
    """`on_error="column"`: every failure of a row goes to that row's `_error`, and `split_errors` separates the failed rows."""
    made = penstock.async_map(spark.range(0, 12, 1, 2), fussy, schema="out int", on_error="column").cache()
    good, failed = penstock.split_errors(made)
    assert [tuple(row) for row in good.orderBy("id").collect()] == [(0, 0), (10, 10), (11, 11)]
    errors = {row.id: row._error for row in failed.collect()}
    assert {i: error.kind for i, error in errors.items()} == dict.fromkeys(range(1, 8), "result") | {
        8: "error",
        9: "error",
    }
    assert "returned None" in errors[1].message
    assert "column 'out': expected int" in errors[3].message
    assert errors[8].message == "ValueError: eight at http://***@host/"
    made.unpersist()


def test_errors_by_a_function(spark: SparkSession) -> None:
    """When `on_error` is a function, it supplies the output of every failed row, including a row whose result has a wrong type."""
    made = penstock.async_map(spark.range(12), fussy, schema="out int", on_error=lambda row, error: {"out": -row.id})
    assert [row.out for row in made.collect()] == [0, *range(-1, -10, -1), 10, 11]


@pytest.mark.parametrize(
    ("bad", "says"), [(1, "returned None"), (3, "column 'out': expected int"), (8, "ValueError: eight")]
)
def test_a_failure_names_the_row(spark: SparkSession, bad: int, says: str) -> None:
    """`on_error="fail"`: the task fails and names the code, the place and the reason."""
    frame = spark.range(0, 20, 1, 1).where(f"id = {bad} or id > 9")
    with pytest.raises(PySparkException) as caught:
        penstock.async_map(frame, fussy, schema="out int").collect()
    found = penstock.errors.of(caught.value)
    assert isinstance(found, CallFailed)
    assert "row 0 of partition 0" in found.message
    assert says in found.message
    assert "secret" not in str(caught.value)


class Broken(penstock.AsyncFunction):
    """Fails at the given place."""

    def __init__(self, where: str) -> None:
        self.where = where

    async def open(self, ctx: Any) -> None:
        if self.where == "open":
            msg = "no service"
            raise OSError(msg)

    async def invoke(self, row: Any, call: Any) -> Any:
        if self.where == "stop":
            asyncio.get_running_loop().stop()
        return (row.id,)


@pytest.mark.parametrize(
    ("where", "says"), [("open", "could not be opened: OSError: no service"), ("stop", "loop has ended")]
)
def test_a_function_that_cannot_run_fails_the_task(spark: SparkSession, where: str, says: str) -> None:
    """`open` raises, or a call stops the event loop: the task fails clearly and does not hang; the same workers run the next query."""
    with pytest.raises(PySparkException, match=says):
        penstock.async_map(spark.range(5), Broken(where), schema="out long").collect()
    assert penstock.async_map(spark.range(5), Broken(""), schema="out long").count() == 5


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"capacity": 0}, "capacity=0"),
        ({"timeout": -1.0}, "timeout=-1.0"),
        ({"timeout": "5"}, "timeout='5'"),
        ({"attempt_timeout": 0}, "attempt_timeout=0"),
        ({"key": "uid"}, "key: there is no column 'uid'; expected one of id"),
        ({"share": ["id", "x"]}, "share: there is no column 'x'"),
        ({"key": 3}, "key=3"),
        ({"rate": "500"}, "rate='500'"),
        ({"rate": "0/s"}, "rate='0/s'"),
        ({"retry": 3}, "retry=3; expected a penstock.Retry"),
        ({"ordered": "yes"}, "ordered='yes'"),
        ({"on_error": "ignore"}, "on_error='ignore'"),
        ({"schema": "id long"}, "two columns 'id'"),
        ({"schema": "_error long", "on_error": "column"}, "two columns '_error'"),
        ({"schema": "no such type"}, "'such' is not a type"),
        ({"schema": "int"}, "column 'int' has no type"),
        ({"schema": LongType()}, "schema is a LongType; expected DDL"),
        ({"schema": StructType}, "schema is a type; expected DDL"),
        ({"batch_size": 200}, "batch_size=200 is more than capacity=100"),
        ({"on_error": several}, "on_error=<function several"),
        ({"on_error": len}, "on_error does not take (row, error)"),
        ({"df": None}, "df is a NoneType; expected Spark's DataFrame"),
        ({"df": double}, "df is a function; expected Spark's DataFrame"),
    ],
)
def test_what_makes_no_sense_is_refused_on_the_driver(spark: SparkSession, options: dict[str, Any], says: str) -> None:
    """The call checks every parameter, and reports the value that it found and what it expects."""
    with pytest.raises(OptionError) as caught:
        penstock.async_map(**{"df": spark.range(1), "fn": double, "schema": "out long", **options})
    assert says in caught.value.message


def test_what_asks_for_pandas_is_refused_without_it(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster's own PySpark may lack pandas: calls and named files then say what to install, instead of showing PySpark's stack trace."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    frame = spark.range(1).selectExpr("'/a' as path")

    async def call(row: Any) -> Any:
        return row

    made: list[Callable[[], DataFrame]] = [
        lambda: penstock.read_files(frame),
        lambda: penstock.async_map(frame, call, schema="a string"),
    ]
    for make in made:
        with pytest.raises(DependencyError, match=r"PySpark needs pandas .*\(.*\); pip install 'pandas>="):
            make()


def test_every_parameter_is_told_with_its_default() -> None:
    """`help(penstock.async_map)` lists all parameters, as `AsyncMap` does."""
    told = inspect.signature(penstock.async_map).parameters
    assert list(told) == ["df", *inspect.signature(penstock.AsyncMap).parameters]
    assert (told["capacity"].default, told["ordered"].default, told["on_error"].default) == (100, True, "fail")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"capcity": 5}, "async_map: unknown parameter 'capcity'; did you mean 'capacity'?"),
        ({"drains": 5}, "async_map: unknown parameter 'drains'; did you mean 'drain'?"),
        ({"onError": "column"}, "async_map: unknown parameter 'onError'; did you mean 'on_error'?"),
        ({"concurrency": 5}, "async_map: unknown parameter 'concurrency'; expected one of df, fn, schema, keep_input,"),
    ],
)
def test_unknown_parameters_are_refused(spark: SparkSession, options: dict[str, Any], says: str) -> None:
    """An unknown parameter is refused, never ignored, and the error names the parameter that was probably meant."""
    with pytest.raises(OptionError) as caught:
        penstock.async_map(spark.range(1), double, schema="out long", **options)
    assert says in caught.value.message


@pytest.mark.usefixtures("spark")
def test_what_is_missing_is_told() -> None:
    """Errors name a missing schema of a function, and a misspelt parameter of `AsyncMap` or of the functions that look at its results."""
    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
        (penstock.AsyncMap, (double,), {}, "AsyncMap: missing a required "),
        (
            penstock.AsyncMap,
            (double,),
            {"schema": "out long", "retires": 3},
            "AsyncMap: unknown parameter 'retires'; did you mean 'retry'?",
        ),
        (penstock.async_map, (), {"fn": double, "schema": "out long"}, "async_map: missing a required argument: 'df'"),
        (penstock.split_errors, (), {"frame": 1}, "split_errors: unknown parameter 'frame'; expected one of df"),
        (penstock.call_counts, (), {}, "call_counts: missing a required argument: 'spark'"),
    ]
    for made, given, options, says in calls:
        with pytest.raises(OptionError) as caught:
            made(*given, **options)
        assert says in caught.value.message


def test_rows_of_a_key_and_equal_rows(spark: SparkSession) -> None:
    """Keys of any type, NaN and lists too, are compared by value; equal rows in flight share one call."""
    frame = spark.sql("select id, double('NaN') as x, array(id % 2) as a from range(0, 40, 1, 1)")
    made = penstock.async_map(frame, _count, schema="calls int", share=["x", "a"], capacity=40, timeout=20.0)
    assert {row.calls for row in made.collect()} == {1, 2}
    keyed = penstock.async_map(frame, _alone, schema="most int", key=["x", "a"], capacity=40)
    assert {row.most for row in keyed.collect()} == {1}


_made = 0
_running: Counter[str] = Counter()


async def _count(row: Any) -> tuple[int]:
    global _made  # noqa: PLW0603 - counts the calls of this worker process
    _made += 1
    mine = _made
    await asyncio.sleep(0.3)
    return (mine,)


async def _alone(row: Any) -> tuple[int]:
    _running[str(row.a)] += 1
    await asyncio.sleep(0.001)
    most = _running[str(row.a)]
    _running[str(row.a)] -= 1
    return (most,)


async def _when(row: Any) -> tuple[float]:
    return (time.monotonic(),)


def test_a_rate_is_shared_by_the_tasks_of_a_query(spark: SparkSession) -> None:
    """All tasks together keep to the rate: each has its share of it, and spreads its calls evenly."""
    part = 40 / spark.sparkContext.defaultParallelism
    made = penstock.async_map(spark.range(0, 12, 1, 2), _when, schema="at double", rate="40/s")
    times = sorted((row.id // 6, row.at) for row in made.collect())
    assert all(times[6 * task + 5][1] - times[6 * task][1] >= 5 / part - 0.001 for task in (0, 1))


def test_ids_are_the_same_for_attempts_and_replays(
    spark: SparkSession, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """F-A14: each row keeps its id through refused attempts, and through the replay of a batch whose commit was deleted."""
    caplog.set_level(logging.INFO, "penstock.aio")
    for i in range(4):
        stage.put(f"f{i}", *(str(100 * i + j) for j in range(20)))
    with Service(refuse_first=1) as service:
        frame = penstock.async_map(
            numbers(spark, stage, maxFilesPerTrigger=2),
            Lookup(service.port),
            schema="out long, call string",
            capacity=8,
            retry=Retry(max_attempts=3, delay=0.01, on=ConnectionError),
        )
        query = write(frame, stage)
        assert set(service.ids.values()) == {2}
        last = stage.checkpoint / "commits/1"
        last.unlink()
        last.with_name(".1.crc").unlink(missing_ok=True)
        write(frame, stage)
    assert {len(ids) for ids in service.rows.values()} == {1}
    assert len(service.ids) == 80
    assert sorted(set(service.ids.values())) == [2, 3]
    rows = [line.split() for line in stage.lines().elements()]
    assert sorted((int(n), int(out)) for n, out, _ in rows) == [
        (n, 2 * n) for i in range(4) for n in range(100 * i, 100 * i + 20)
    ]
    counts = penstock.call_counts(spark)[str(query.id)]
    assert (counts.rows, counts.retries, counts.failed) == (120, 80, 0)
    assert counts.p99 is not None
    deadline = time.monotonic() + PATIENCE_SECONDS
    while f"query {query.id}, batch 1: CallCounts(rows=120" not in caplog.text:  # Spark notifies listeners with a delay
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_ids_in_foreach_batch_name_the_query_and_the_batch(spark: SparkSession, stage: Stage) -> None:
    """Rows of a batch frame in `foreachBatch` get the ids of its stream, and the same ids when the batch is replayed."""
    stage.put("a", "1", "2")
    seen: list[list[str]] = []

    def each(batch: DataFrame, number: int) -> None:
        made = penstock.async_map(batch, _own_id, schema="call string")
        seen.append([row.call for row in made.collect()])

    for _ in range(2):
        writer = (
            numbers(spark, stage).writeStream.foreachBatch(each).option("checkpointLocation", str(stage.checkpoint))
        )
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        (stage.checkpoint / "commits/0").unlink()
        (stage.checkpoint / "commits/.0.crc").unlink(missing_ok=True)
    assert seen[0] == seen[1]
    assert [call.rpartition("-")[2] for call in seen[0]] == ["0", "1"]
    assert all(call.startswith(f"{query.id}-") and call.endswith(f"-0-0-{i}") for i, call in enumerate(seen[0]))


def test_foreach_batch_opens_one_client_a_worker_and_function(spark: SparkSession, stage: Stage) -> None:
    """Whether the function is made once or for each batch, as an instance or a closure, a worker opens it once for all batches."""
    opened = stage.root / "opened"

    class Client(penstock.AsyncFunction):
        def __init__(self, name: str, options: dict[str, Any]) -> None:
            self.name, self.options = name, options

        async def open(self, ctx: Any) -> None:
            with opened.open("a") as file:
                print(self.name, os.getpid(), file=file)

        async def invoke(self, row: Any, call: Any) -> Any:
            return (f"{self.name} {os.getpid()}",)

    once = Client("once", {"a": 1, "b": {2, 3}})
    pids: list[set[str]] = []

    def each(batch: DataFrame, number: int) -> None:
        anew = Client("anew", {"a": 1, "b": {2, 3}})
        frames = [
            penstock.async_map(batch, fn, schema="out string", rate="9000/s").select("out") for fn in (once, anew)
        ]
        pids.append({row.out for frame in frames for row in frame.collect()})

    batches = 10
    for number in range(batches):
        stage.put(f"{number}", "a", "b")
    stream = numbers(spark, stage, maxFilesPerTrigger=1).coalesce(1)
    writer = stream.writeStream.foreachBatch(each).option("checkpointLocation", str(stage.checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert len(pids) == batches
    used = set().union(*pids)
    assert sorted(opened.read_text().splitlines()) == sorted(used)
    assert len(used) < 2 * batches  # two functions in as many workers as take turns, and not opened again in each batch


class Locked(penstock.AsyncFunction):
    """Holds an object that cannot be pickled."""

    def __init__(self) -> None:
        self.name, self.guard = "locked", threading.Lock()

    async def invoke(self, row: Any, call: Any) -> Any:
        return (1,)


def test_what_cannot_be_sent_is_told_with_where_to_make_it(spark: SparkSession, stage: Stage) -> None:
    """A lock made in `__init__` or held by a closure is named, and where each worker can make its own; an ingest says the same."""
    stage.put("a", "1")
    lock = threading.Lock()

    async def guarded(row: Any) -> Any:
        return (lock.locked(),)

    uses: list[tuple[Any, ...]] = [
        (
            lambda: penstock.async_map(spark.range(1), Locked(), schema="out int"),
            "Locked",
            "its attribute 'guard'",
            "in `open`",
        ),
        (
            lambda: penstock.async_map(spark.range(1), guarded, schema="out boolean"),
            "guarded",
            "its variable 'lock'",
            "in the worker",
        ),
        (
            lambda: penstock.ingest(
                spark, str(stage.src), str(stage.dst), transform=penstock.AsyncMap(Locked(), schema="out int")
            ),
            "Locked",
            "its attribute 'guard'",
            "in `open`",
        ),
    ]
    for use, name, holder, advice in uses:
        with pytest.raises(OptionError) as caught:
            use()
        assert all(
            words in caught.value.message for words in (name, holder, advice, "cannot be sent to Spark's workers")
        )

    class Opening(Locked):
        def __init__(self) -> None:
            self.name = "opening"

        async def open(self, ctx: Any) -> None:
            self.guard = threading.Lock()

    assert penstock.async_map(spark.range(3), Opening(), schema="out int").count() == 3  # the advice, followed


def test_a_map_reaches_the_function_as_a_dict(spark: SparkSession) -> None:
    """A function receives as a dict what Spark gives to Python as a dict, also inside arrays and structs, and may return one."""

    async def look(row: Any) -> Any:
        assert row.m == {"a": row.id, "b": None}, row.m
        assert row.deep == [{"m": {1: {"x": row.id}}}], row.deep
        return {"back": row.m, "sum": sum(filter(None, row.m.values()))}

    frame = spark.range(3).selectExpr(
        "id", "map('a', id, 'b', null) as m", "array(named_struct('m', map(1, map('x', id)))) as deep"
    )
    rows = penstock.async_map(frame, look, schema="back map<string, bigint>, sum bigint").collect()
    assert [(row.back, row.sum) for row in rows] == [({"a": n, "b": None}, n) for n in range(3)]
    assert [row.m for row in rows] == [row.back for row in rows]


async def _own_id(row: Any, call: Any) -> tuple[str]:
    return (call.id,)


@pytest.mark.usefixtures("spark")
def test_calls_are_not_made_outside_of_a_query() -> None:
    """`penstock verify --source` repeats an ingest but must not call a service again: it is refused."""
    calls = penstock.AsyncMap(double, schema="out long")
    batch = pa.record_batch({"id": pa.array([1])})
    with pytest.raises(OptionError, match="tasks of a query"):
        list(calls.stream(iter([batch]), operator="o"))


def test_async_map_is_a_transform_of_an_ingest(spark: SparkSession, stage: Stage) -> None:
    """An `AsyncMap` is the transform of an ingest: rows never leave Python, ids name the batch and the row."""
    stage.put("a", *(str(n) for n in range(50)))
    with Service() as service:
        calls = penstock.AsyncMap(Lookup(service.port), schema="out long, call string", capacity=8, rate="5000/s")
        done = penstock.ingest(spark, str(stage.src), str(stage.dst), sink={"format": "json"}, transform=calls)
    assert done.rows == 50
    assert len(service.ids) == 50
    assert all(f'"out":{2 * n}' in line.replace(" ", "") for n, line in enumerate(stage.lines()))


def test_async_map_is_named_as_a_transform(spark: SparkSession, stage: Stage) -> None:
    """Each worker imports the `module:name` of an `AsyncMap`, and has no session that could read DDL: the schema is a StructType."""
    stage.put("a", "one", "two")
    named = "tests.support.calls:calls"
    penstock.ingest(spark, str(stage.src), str(stage.dst), sink={"format": "text"}, transform=named)
    assert sorted(stage.lines()) == ["ONE", "TWO"]


@pytest.mark.slow
def test_ddl_where_no_session_runs_is_refused() -> None:
    """The error says what to do, and does not claim that the schema is wrong."""
    code = "import penstock\nasync def f(row): return row\npenstock.AsyncMap(f, schema='out varchar(9)')"
    done = run_python(code)
    assert "no session runs in this process; give a StructType here" in done.stderr


async def plus(row: Any) -> dict[str, int]:
    await asyncio.sleep(0.002 * (row.a % 3))
    return {"b": row.a + 1}


def test_two_async_maps_in_one_query(spark: SparkSession) -> None:
    """A5: one map feeds the other in one task, first in order, then as calls finish; each has its own ids, and no row is lost."""
    numbers = spark.range(5, 500, 1, 2)
    first = penstock.async_map(numbers, doubled, schema="a long, one string", capacity=6)
    both = penstock.async_map(first, plus, schema="b long", capacity=3, ordered=False)
    last = penstock.async_map(
        both, doubled_again, schema="c long, two string", keep_input=True, capacity=3, ordered=False
    )
    rows = last.collect()
    assert sorted((row.id, row.a, row.b, row.c) for row in rows) == [
        (n, 2 * n, 2 * n + 1, 4 * n + 2) for n in range(5, 500)
    ]
    assert len({row.one for row in rows} | {row.two for row in rows}) == 2 * len(rows)


async def doubled(row: Any, call: Any) -> tuple[int, str]:
    return (2 * row.id, call.id)


async def doubled_again(row: Any, call: Any) -> tuple[int, str]:
    return (2 * row.b, call.id)


ODD = """
a decimal(38, 6), b array<struct<t: timestamp, n: timestamp_ntz>>, c map<string, array<int>>, d date, e binary,
f struct<g: struct<h: double>>, `i.j k` string
"""


async def odd(row: Any) -> Any:
    when = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)
    values: dict[int, Any] = {
        0: (Decimal("12.345678"), [{"t": when, "n": when.replace(tzinfo=None)}], {"k": [1, None]}, when.date(), b"x"),
        1: (None, [], {}, None, b""),
        2: (Decimal("0.1234567"), None, None, None, None),
        3: (None, None, {"k": [1.5]}, None, None),
    }
    return (*values[row.id], {"g": {"h": 0.5}}, "v")


def test_nested_values_and_odd_names(spark: SparkSession) -> None:
    """Decimals, times, maps and structs come out as they were given, or fail only their own row; columns may have any name."""
    rows = penstock.async_map(spark.range(0, 4, 1, 1), odd, schema=ODD, on_error="column").collect()
    assert rows[0].a == Decimal("12.345678")
    assert rows[0].b[0].n == datetime(2026, 1, 2, 3, 4, 5, 678901)
    assert (rows[0].c, rows[0].e, rows[0]["i.j k"]) == ({"k": [1, None]}, bytearray(b"x"), "v")
    assert (rows[1].b, rows[1].c, rows[1].f.g.h) == ([], {}, 0.5)
    assert [row._error and row._error.kind for row in rows] == [None, None, "result", "result"]
    assert "column 'a'" in rows[2]._error.message
    assert "column 'c'" in rows[3]._error.message


async def every(row: Any) -> tuple[str]:
    return (" ".join(f"{name}={value}" for name, value in row.items()),)


def test_columns_of_any_name(spark: SparkSession) -> None:
    """Input columns, key columns too, may have dots and backticks in their names; names may repeat if the input is not kept."""
    frame = spark.sql("select 1 as `a.b`, named_struct('b', 2) as a, 3 as `c``d`, 4 as c0")
    made = penstock.async_map(frame, every, schema="`e.f` string", key="a.b", share=["c`d"])
    assert made.columns == ["a.b", "a", "c`d", "c0", "e.f"]
    assert made.first() == (1, (2,), 3, 4, "a.b=1 a={'b': 2} c`d=3 c0=4")
    twice = spark.sql("select 1 as a, 2 as a, 3 as b")
    assert penstock.async_map(twice, only_b, schema="out int", keep_input=False).collect() == [(3,)]


async def only_b(row: Any) -> tuple[int]:
    return (row.b,)


async def effect(row: Any) -> tuple[()]:
    return ()


def test_no_columns_at_all(spark: SparkSession) -> None:
    """Rows without columns would be lost on the way, so they are refused; a function may be called only for its effect."""
    with pytest.raises(OptionError, match="the DataFrame has no columns"):
        penstock.async_map(spark.range(7).select(), effect, schema="out int")
    empty = StructType([])
    assert penstock.async_map(spark.range(7), effect, schema=empty).count() == 7
    with pytest.raises(OptionError, match="no columns"):
        penstock.async_map(spark.range(7), effect, schema=empty, keep_input=False)


def test_keys_with_nulls_and_names_by_case(spark: SparkSession) -> None:
    """Nulls are equal as keys; a column is named as the frame names it; two names that Spark would confuse are refused."""
    frame = spark.sql("select id, if(id % 2 = 0, null, id % 3) as Part, id as `_x` from range(0, 30, 1, 1)")
    made = penstock.async_map(frame, _alone_by_part, schema="most int", key=["Part"], capacity=30)
    assert {row.most for row in made.collect()} == {1}
    with pytest.raises(OptionError, match="there is no column 'part'; expected one of id, Part, _x"):
        penstock.async_map(frame, _alone_by_part, schema="most int", key="part")
    with pytest.raises(OptionError, match="two columns 'Part'"):
        penstock.async_map(frame, _alone_by_part, schema="PART int")


async def _alone_by_part(row: Any) -> tuple[int]:
    _running[str(row.Part)] += 1
    await asyncio.sleep(0.001)
    most = _running[str(row.Part)]
    _running[str(row.Part)] -= 1
    return (most,)


IDLE = """
import asyncio, penstock
spark = penstock.local_session("local[1]", config={
    "spark.sql.execution.pyspark.udf.idleTimeoutSeconds": "3", "spark.sql.execution.pyspark.udf.killOnIdleTimeout": "true"})
async def slow(row):
    await asyncio.sleep(1.0)
    return (row.id,)
print("ROWS", penstock.async_map(spark.range(0, 10, 1, 1), slow, schema="out long", capacity=2).count())
"""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.xdist_group("programs")
def test_a_slow_task_is_no_idle_task(python: Interpreter) -> None:
    """F-A23: finished output reaches Spark while other calls still run, so that Spark's idle time-out does not kill the worker."""
    done = python.run(IDLE)
    assert "ROWS 10" in done.stdout, done.stderr[-3000:]


# Workers of a warm JVM cannot import this module: the client is pickled together with the function.
LOSE = """
import os, sys, penstock
sys.path.append(sys.argv[3])
from pyspark.cloudpickle import register_pickle_by_value
from tests.support import lookup
from tests.support.lookup import Lookup
register_pickle_by_value(lookup)
MARK = sys.argv[2]
class Once(Lookup):
    async def invoke(self, row, call):
        made = await super().invoke(row, call)
        if row.id == 45:
            try:
                os.close(os.open(MARK, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), 9)
            except FileExistsError:
                pass
        return made
spark = penstock.local_session("local[2,4]")
frame = spark.range(0, 60, 1, 2).selectExpr("id", "id as value")
calls = penstock.async_map(frame, Once(int(sys.argv[1])), schema="out long, call string", capacity=4)
print("SUM", calls.selectExpr("sum(out)").first()[0])
"""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.xdist_group("programs")
def test_ids_are_the_same_when_a_task_is_killed(tmp_path: Path, python: Interpreter) -> None:
    """F-A14: the worker is killed in the middle of a task and Spark repeats the task: some calls are made twice, with the same id."""
    with Service() as service:
        done = python.run(LOSE, str(service.port), str(tmp_path / "once"), str(REPOSITORY))
    assert f"SUM {60 * 59}" in done.stdout, done.stderr[-3000:]
    assert {len(ids) for ids in service.rows.values()} == {1}
    assert max(service.ids.values()) == 2


QUERY = """
import sys, penstock
from tests.support.lookup import Lookup
src, dst, port = sys.argv[1:]
spark = penstock.local_session("local[2]")
frame = spark.readStream.format("penstock").option("maxFilesPerTrigger", 2).load(src)
rich = penstock.async_map(frame, Lookup(int(port)), schema="out long, call string", capacity=16, ordered=False)
writer = rich.selectExpr("concat_ws(' ', value, out) as value").writeStream.format("penstock").trigger(availableNow=True)
writer = writer.option("rollBatches", 1)
writer.option("checkpointLocation", dst + "/_penstock/checkpoint").start(dst).awaitTermination()
print("DONE")
"""
STEPS = [
    "sink.ledger.after-put=kill-jvm@2",
    "sink.write.staged=kill-jvm@2",
    "source.read=kill-jvm@2",
    "storage.publish.linked=kill-jvm",
]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.soak  # every run kills a task, in the test above
@pytest.mark.parametrize("kills", [1, 10])
def test_each_input_is_in_the_output_once_whatever_is_killed(stage: Stage, kills: int) -> None:
    """Source, calls to a real service, sink; all of Spark is killed at varying steps: no row is lost or doubled, and each has one id."""
    files = 5 * kills
    for i in range(files):
        stage.put(f"f{i:02}", *(str(100 * i + j) for j in range(100)))
    expected = Counter({f"{n} {2 * n}": 1 for n in range(100 * files)})
    with Service() as service:
        for point in islice(cycle(STEPS), kills):
            killed = run_python(QUERY, str(stage.src), str(stage.dst), str(service.port), failpoints=point)
            assert "DONE" not in killed.stdout, f"{point} was never reached"
            assert not stage.lines() - expected, point
        final = run_python(QUERY, str(stage.src), str(stage.dst), str(service.port))
    assert "DONE" in final.stdout, final.stderr[-3000:]
    assert stage.lines() == expected
    assert {len(ids) for ids in service.rows.values()} == {1}
