"""`async_map(..., drain=)`: rows that are carried from batch to batch, on a real Spark."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import penstock
from penstock.aio.carry import Form
from penstock.errors import OptionError
from penstock.spark import calls as asynchronous
from penstock.spark import lanes
from penstock.spark.draining import Draining
from tests.support.follows import follows
from tests.support.lookup import Lookup
from tests.support.service import Service
from tests.support.stage import Stage, run_python
from tests.support.wait import PATIENCE_SECONDS

ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
PARTITIONS = "spark.sql.shuffle.partitions"
SETTINGS = {"spark.sql.streaming.stateStore.providerClass": ROCKS, PARTITIONS: "2"}
EVERY = "400 milliseconds"  # while rows are carried every interval runs a batch, which costs half a second of processor time
PARTS = {"rollBatches": "1"}
ONE_FILE = {"growing": "true", "fileName": "all"}


@pytest.fixture
def rocks(spark: SparkSession) -> Iterator[SparkSession]:
    """Yield the shared session, set up for Python state in one lane, and restore it."""
    for name, value in (SETTINGS | {PARTITIONS: "1"}).items():
        spark.conf.set(name, value)
    yield spark
    for query in spark.streams.active:
        query.stop()
    for name in (*SETTINGS, FORMAT):
        spark.conf.unset(name)


class Gate(penstock.AsyncFunction):
    """Answers at once, except for rows that begin with `slow`, which wait for a file. Notes its calls."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)

    async def invoke(self, row: Any, call: Any) -> Any:
        note(self.root, f"{row.value} {call.id} {call.attempt}")
        while not is_open(self.root, row.value):  # noqa: ASYNC110 - another process makes the file
            await asyncio.sleep(0.01)
        return {"call": call.id}


def note(root: str, what: str) -> None:
    with open(f"{root}/calls", "a") as calls:
        calls.write(f"{what}\n")


def is_open(root: str, value: str) -> bool:
    return not value.startswith("slow") or os.path.exists(f"{root}/open-{value}")


def lines(spark: SparkSession, stage: Stage) -> DataFrame:
    return spark.readStream.format("penstock").options(maxFilesPerTrigger=1).load(str(stage.src))


def gated(spark: SparkSession, stage: Stage, **options: Any) -> DataFrame:
    options = {"drain": 0.1, "timeout": 600.0} | options
    return penstock.async_map(lines(spark, stage), Gate(stage.root), schema="call string", **options)


def start(frame: DataFrame, stage: Stage, options: Any = PARTS, **trigger: Any) -> StreamingQuery:
    writer = frame.selectExpr("concat_ws(' ', value, call) as value").writeStream.format("penstock")
    writer = writer.options(checkpointLocation=str(stage.checkpoint), **options)
    return writer.trigger(**trigger or {"processingTime": EVERY}).start(str(stage.dst))


def values(stage: Stage) -> list[str]:
    return sorted(line.split()[0] for line in stage.lines().elements())


def calls(stage: Stage) -> dict[str, list[str]]:
    """Return the ids and attempts of the calls by row, as the function noted them."""
    found: dict[str, list[str]] = {}
    noted = stage.root / "calls"
    for line in noted.read_text().splitlines() if noted.exists() else ():
        value, what = line.split(" ", 1)
        found.setdefault(value, []).append(what)
    return found


def wait_for(holds: Callable[[], Any], query: StreamingQuery) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert query.exception() is None, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_idle_stream_finishes_what_it_holds(rocks: SparkSession, stage: Stage) -> None:
    """F-A16, F-A17: batches end without the slow rows; when their answers come there is no more input, but a batch still emits them."""
    stage.put("a", "1", "slow-2", "3", "slow-4")
    stage.put("b", "5", "6")
    query = start(gated(rocks, stage, ordered=False), stage)
    wait_for(lambda: values(stage) == ["1", "3", "5", "6"], query)
    (stage.root / "open-slow-4").touch()
    wait_for(lambda: values(stage) == ["1", "3", "5", "6", "slow-4"], query)
    (stage.root / "open-slow-2").touch()
    wait_for(lambda: "slow-2" in values(stage), query)
    query.stop()
    assert values(stage) == ["1", "3", "5", "6", "slow-2", "slow-4"]
    made = calls(stage)
    assert {value: len(made[value]) for value in ("1", "3", "5", "6")} == dict.fromkeys(("1", "3", "5", "6"), 1)
    assert len(made["slow-2"]) > 1
    assert set(made["slow-2"]) == {f"{made['slow-2'][0].split()[0]} 1"}
    assert all(made[value][0].split()[0] == call for value, call in (line.split() for line in stage.lines()))


def test_order_is_kept_over_batches_and_restarts(rocks: SparkSession, stage: Stage) -> None:
    """F-A6, F-A16: rows that finish after a slow row wait in the state, survive a restart, and are not called again."""
    stage.put("a", "0", "slow-1", "2", "3")
    query = start(gated(rocks, stage), stage, ONE_FILE)
    wait_for(lambda: values(stage) == ["0"], query)
    stage.put("b", "4", "5")
    wait_for(lambda: "5" in calls(stage), query)
    query.stop()
    assert values(stage) == ["0"]
    (stage.root / "open-slow-1").touch()
    stage.put("c", "6")
    query = start(gated(rocks, stage), stage, ONE_FILE)
    wait_for(lambda: len(values(stage)) == 7, query)
    query.stop()
    (file,) = stage.files()
    written = [line.split()[0] for line in file.read_text().splitlines()]
    assert written == ["0", "slow-1", "2", "3", "4", "5", "6"]
    made = calls(stage)
    assert {len(set(what)) for what in made.values()} == {1}
    assert [len(made[value]) for value in ("0", "2", "3")] == [1, 1, 1]


@pytest.mark.parametrize(("ordered", "version"), [(True, "1"), pytest.param(False, "2", marks=pytest.mark.soak)])
def test_a_repeated_batch_emits_what_it_did_though_other_calls_end(
    rocks: SparkSession, stage: Stage, ordered: bool, version: str
) -> None:
    """Failure 1 of `penstock.spark.lanes`: the sink has batch 1 and Spark, which was killed, repeats it; this time other calls end.

    A sink that drops the repeated batch and one that takes it have the same rows of it, and each row once in all. This holds for
    each version of Spark's state format.
    """
    rocks.conf.set(FORMAT, version)
    given: list[tuple[int, list[str]]] = []

    def take(frame: DataFrame, batch: int) -> None:
        given.append((batch, [row.value for row in frame.collect()]))

    def begin(period: str) -> StreamingQuery:
        writer = gated(rocks, stage, ordered=ordered).writeStream.foreachBatch(take)
        return writer.option("checkpointLocation", str(stage.checkpoint)).trigger(processingTime=period).start()

    def run_batch(number: int, *ends: str) -> None:
        for row in range(1, 6):
            (stage.root / f"open-slow-{row}").unlink(missing_ok=True)
        for end in ends:
            (stage.root / f"open-slow-{end}").touch()
        query = begin("10000 days")  # one batch
        wait_for(lambda: (stage.checkpoint / "commits" / str(number)).exists(), query)
        query.stop()

    stage.put("a", "slow-1", "slow-2", "slow-3")
    run_batch(0, "1", "2")
    stage.put("b", "slow-4", "slow-5")
    run_batch(1, "3", "4")
    for name in ("1", ".1.crc"):
        (stage.checkpoint / "commits" / name).unlink(missing_ok=True)
    run_batch(1, "5")
    assert given == [(0, []), (1, ["slow-1", "slow-2"]), (1, ["slow-1", "slow-2"])]
    for row in (3, 4):
        (stage.root / f"open-slow-{row}").touch()
    stage.put("c", "6")
    query = begin(EVERY)
    wait_for(lambda: "6" in given[-1][1], query)
    query.stop()
    rows = [value for _, batch in sorted(dict(given).items()) for value in batch]
    every = [f"slow-{row}" for row in range(1, 6)] + ["6"]
    assert (rows if ordered else sorted(rows)) == (every if ordered else sorted(every))
    assert {len({one.split()[0] for one in what}) for what in calls(stage).values()} == {1}


@pytest.mark.soak  # it checks carried rows, and that no batch runs without data
def test_a_run_of_all_that_is_there_leaves_its_last_batch_to_the_next(rocks: SparkSession, stage: Stage) -> None:
    """F-A17: `availableNow` ends where Spark runs no batches without data; the next run emits what finished in the last batch."""
    rocks.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    try:
        for number, expected in enumerate((["1"], ["1", "2", "3"])):
            stage.put(f"{number}-a", str(2 * number + 1))
            stage.put(f"{number}-b", str(2 * number + 2))
            query = start(gated(rocks, stage), stage, availableNow=True)
            assert query.awaitTermination(PATIENCE_SECONDS)
            assert values(stage) == expected
    finally:
        rocks.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")
    assert {len(what) for what in calls(stage).values()} == {1}


class Dozing(penstock.AsyncFunction):
    """Answers at once, except for rows that begin with `slow`, which take longer than a batch waits."""

    async def invoke(self, row: Any, call: Any) -> Any:
        await asyncio.sleep(0.5 if row.value.startswith("slow") else 0.0)
        return {"call": call.id}


def dozing(spark: SparkSession, stage: Stage, **options: Any) -> DataFrame:
    return penstock.async_map(lines(spark, stage), Dozing(), schema="call string", drain=0.1, timeout=600.0, **options)


@pytest.mark.parametrize(
    ("ordered", "turns"), [(True, 1), *(pytest.param(ordered, 2, marks=pytest.mark.soak) for ordered in (True, False))]
)
def test_a_run_of_all_that_is_there_ends_when_all_has_come_out(
    rocks: SparkSession, stage: Stage, ordered: bool, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-A17: an `availableNow` run that carries rows ends by itself; every row is in the output once, and every batch is committed."""
    rocks.conf.set(PARTITIONS, "2")
    expected: list[str] = []
    for turn in range(turns):
        for number in range(2):
            names = [f"{turn}{number}a", f"slow-{turn}{number}b", f"{turn}{number}c"]
            stage.put(f"f{turn}{number}", *names)
            expected += names
        query = start(dozing(rocks, stage, ordered=ordered), stage, availableNow=True)
        assert query.awaitTermination(PATIENCE_SECONDS)
        assert query.exception() is None
        assert values(stage) == sorted(expected)
        offsets, commits = (
            {path.name for path in (stage.checkpoint / log).iterdir() if path.name.isdecimal()}
            for log in ("offsets", "commits")
        )
        assert offsets - commits <= {str(len(commits))}  # one batch may be planned; none was interrupted
        assert held(query) == 0
        monkeypatch.setattr(asynchronous, "_totals", {})  # another process would not know the totals of the first run
    query = start(dozing(rocks, stage, ordered=ordered), stage, availableNow=True)
    assert query.awaitTermination(PATIENCE_SECONDS)
    assert values(stage) == sorted(expected)  # though it runs a planned batch, in which no lane has anything to do


@pytest.mark.soak  # a test below checks, without Spark, how often it asks for the trigger
def test_a_stream_that_goes_on_is_not_ended(rocks: SparkSession, stage: Stage) -> None:
    """An idle stream with another trigger carries nothing for many batches, and still takes new input."""
    stage.put("a", "1", "slow-2")
    query = start(dozing(rocks, stage), stage)
    wait_for(lambda: values(stage) == ["1", "slow-2"], query)
    last = number_of(query)
    wait_for(lambda: number_of(query) > last + 2, query)
    stage.put("b", "3")
    wait_for(lambda: values(stage) == ["1", "3", "slow-2"], query)
    query.stop()


def number_of(query: StreamingQuery) -> int:
    """Return the number of the last batch."""
    progress = query.lastProgress
    return -1 if progress is None else progress.batchId


class Told:
    """Stands for a session with one query, as far as the query's end is concerned; `ended` counts how often that end was requested."""

    def __init__(self, trigger: str) -> None:
        self.runId, self.ended, self.asked = "run", 0, 0
        self.trigger = trigger
        self.streams = self
        self._jvm = None  # the code needs it to stop the query
        self._jsq = self

    def get(self, id_: str) -> Told:
        self.asked += 1
        return self

    def streamingQuery(self) -> Any:  # noqa: N802 - Spark's name
        return SimpleNamespace(trigger=lambda: SimpleNamespace(toString=lambda: self.trigger))

    def stop(self) -> None:
        self.ended += 1


def batch(held: list[int], *, new: bool = False, watermark: str | None = None, run: str = "run") -> Any:
    operators = [SimpleNamespace(operatorName="transformWithStateInPandasExec", numRowsTotal=rows) for rows in held]
    operators.append(
        SimpleNamespace(operatorName="stateStoreSave", numRowsTotal=7)
    )  # of a window, which ends by itself
    sources = [
        SimpleNamespace(startOffset="1", endOffset="1"),
        SimpleNamespace(startOffset="1", endOffset="2" if new else "1"),
    ]
    times = {} if watermark is None else {"watermark": watermark}
    return SimpleNamespace(id="query", runId=run, batchId=3, eventTime=times, stateOperators=operators, sources=sources)


@pytest.mark.parametrize(
    ("batches", "ended"),
    [
        ([batch([0]), batch([0])], 1),
        ([batch([0])], 0),
        ([batch([0], new=True), batch([0], new=True)], 0),
        ([batch([1]), batch([1])], 0),
        ([batch([0]), batch([1]), batch([0])], 0),
        ([batch([0]), batch([0], new=True), batch([0])], 0),
        ([batch([0, 1]), batch([0, 1])], 0),  # a user's own processor holds something
        ([batch([]), batch([])], 0),
        ([batch([0], watermark="1"), batch([0], watermark="2")], 0),  # windows come out with the next one
        ([batch([0], watermark="1"), batch([0], watermark="2"), batch([0], watermark="2")], 1),
    ],
)
def test_what_ends_a_run_of_all_that_is_there(batches: list[Any], ended: int) -> None:
    """Two batches in a row with nothing new, nothing held and one watermark end a run; a query with another trigger goes on."""
    session, draining = Told("AvailableNowTrigger"), Draining()
    for each in batches:
        draining.heard(cast("Any", session), each)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while session.ended < ended:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert session.ended == ended
    going_on, draining = Told("ProcessingTimeTrigger(100)"), Draining()
    for each in batches * 3:
        draining.heard(cast("Any", going_on), each)
    assert (going_on.ended, going_on.asked <= 1) == (0, True)


def test_rows_of_a_key_have_one_lane(rocks: SparkSession, stage: Stage) -> None:
    """F-A20: a row waits for an earlier row of its key that the state carries; other keys go on; columns may have any type."""
    rocks.conf.set(PARTITIONS, "2")
    for i, some in enumerate((("slow-a", "b", "a"), ("a-2", "b-2"))):
        stage.put(f"f{i}", *some)
    frame = lines(rocks, stage).selectExpr(
        "value",
        "named_struct('k', right(split_part(replace(value, 'slow-', ''), '-', 1), 1), 'd', 1.5bd, 'x', double('NaN')) as `a.``key`",
        "timestamp'9999-12-31 23:59:59.999999' + interval 24 hours as at",
    )
    made = penstock.async_map(
        frame, Gate(stage.root), schema="call string", key="a.`key", ordered=False, drain=0.1, timeout=600.0
    ).selectExpr("concat(value, ' ', `a.``key`.d, ' ', cast(at as string)) as value", "call")
    query = start(made, stage)
    wait_for(lambda: values(stage) == ["b", "b-2"], query)
    assert not {"a", "a-2"} & calls(stage).keys()
    (stage.root / "open-slow-a").touch()
    wait_for(lambda: len(values(stage)) == 5, query)
    query.stop()
    assert [value for value in calls(stage) if value in {"a", "a-2"}] == ["a", "a-2"]
    assert all(" 1.5 +10000-01-01 23:59:59.999999 " in line for line in stage.lines())


def test_lanes_have_partitions_of_their_own(spark: SparkSession) -> None:
    """Our hash of each lane's key equals Spark's: no two lanes share a task."""
    numbers = spark.range(-50, 1000).selectExpr("cast(id as int) as n", "hash(cast(id as int)) as h")
    assert all(lanes._hash(row.n) == row.h for row in numbers.collect())
    for partitions in (1, 2, 7, 200):
        assert [lanes._hash(key) % partitions for key in lanes._lanes(partitions)] == list(range(partitions))


def test_chunks_are_put_in_order() -> None:
    """The shuffle may deliver the chunks of several partitions in any order: those of each partition are put back in order."""
    made = [(source, number, b"%d-%d" % (source, number)) for source in (0, 1) for number in range(4)]
    for shuffled in (made, made[::-1], made[1::2] + made[::2]):
        columns = dict(zip(("source", "number", "chunk"), zip(*shuffled, strict=True), strict=True))
        found = list(lanes._in_order([columns]))
        for source in (b"0", b"1"):
            assert [chunk for chunk in found if chunk[:1] == source] == [source + b"-%d" % n for n in range(4)]


def test_another_key_is_another_form(rocks: SparkSession, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Carried rows lie in the lanes of their key: a program with another key would call equal keys at the same time."""
    forms: list[str] = []

    def carried_map(frame: DataFrame, form: Form, *_: Any, **__: Any) -> DataFrame:
        forms.append(form.columns)
        return frame

    monkeypatch.setattr(lanes, "carried_map", carried_map)
    for key in (None, "value", ["value", "n"]):
        frame = lines(rocks, stage).selectExpr("value", "1 as n")
        penstock.async_map(frame, Gate(stage.root), schema="call string", drain=1.0, timeout=9.0, key=key)
    whole = "struct<value:string,n:int> -> struct<value:string,n:int,call:string>"
    assert forms == [whole, f"{whole} by value", f"{whole} by value, n"]


@follows("PST-400")
def test_carried_rows_of_another_program_come_out_of_their_own(
    rocks: SparkSession, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program with another key raises `DamagedState`; once the first program has emitted its carried rows, it goes on, each row once."""
    stage.put("a", "1", "slow-2")
    query = start(gated(rocks, stage, ordered=False), stage)
    wait_for(lambda: values(stage) == ["1"], query)
    query.stop()
    stage.put("b", "3")
    with pytest.raises(PySparkException) as caught:
        start(gated(rocks, stage, ordered=False, key="value"), stage, availableNow=True).awaitTermination()
    error = penstock.errors.of(caught.value)
    assert isinstance(error, penstock.errors.DamagedState)
    assert "run the program that carried them once more until all has come out" in error.message
    monkeypatch.setattr(asynchronous, "_totals", {})  # another process would not know the totals of that run
    (stage.root / "open-slow-2").touch()
    start(gated(rocks, stage, ordered=False), stage, availableNow=True).awaitTermination(PATIENCE_SECONDS)
    stage.put("c", "4")
    start(gated(rocks, stage, ordered=False, key="value"), stage, availableNow=True).awaitTermination(PATIENCE_SECONDS)
    assert values(stage) == ["1", "3", "4", "slow-2"]


def test_where_nothing_can_be_carried_drain_is_refused(rocks: SparkSession, stage: Stage) -> None:
    """F-A18: a batch frame, a watermark before it, another state store, no time-out, an ingest: each is refused with the reason."""
    frame = lines(rocks, stage)
    late = frame.selectExpr("value", "now() as at").withWatermark("at", "1 minute")
    cases: list[tuple[DataFrame, dict[str, Any], str]] = [
        (rocks.range(1), {}, "a batch DataFrame has no next batch"),
        (late, {}, "column 'at' has a watermark"),
        (frame, {"timeout": None}, "needs a timeout"),
        (frame, {"drain": -1}, "drain=-1"),
    ]
    for bad, options, says in cases:
        with pytest.raises(OptionError) as caught:
            penstock.async_map(bad, Gate(stage.root), schema="call string", **{"drain": 1.0, "timeout": 9.0} | options)
        assert says in caught.value.message
    calls = penstock.AsyncMap(Gate(stage.root), schema="call string", drain=1.0, timeout=9.0)
    with pytest.raises(OptionError, match="drain: an ingest waits for the calls of a batch"):
        penstock.ingest(rocks, str(stage.src), str(stage.dst), transform=calls)
    rocks.conf.unset("spark.sql.streaming.stateStore.providerClass")
    with pytest.raises(OptionError, match="RocksDBStateStoreProvider"):
        gated(rocks, stage)


QUERY = """
import sys
import penstock
from tests.spark.test_drain import SETTINGS, enrich
root, port, order = sys.argv[1:]
spark = penstock.local_session("local[2]", config=SETTINGS)
enrich(spark, root, int(port), order).awaitTermination()
"""
KILLS = [
    "sink.ledger.after-put=kill-jvm@2",
    "sink.write.staged=kill-jvm",
    "sink.ledger.after-put=kill-jvm@3",
    "source.read=kill-jvm",
    "sink.ledger.before-put=kill-jvm@3",
]


def enrich(spark: SparkSession, root: str, port: int, order: str) -> StreamingQuery:
    """Ask the service about each line, two files a batch; ordered output goes to one file, other output to parts."""
    frame = spark.readStream.format("penstock").options(maxFilesPerTrigger=2).load(f"{root}/in")
    lookup = Lookup(port)
    made = penstock.async_map(
        frame, lookup, schema="out long, call string", capacity=16, ordered=order == "ordered", timeout=60.0, drain=0.2
    )
    writer = made.selectExpr("concat_ws(' ', value, out) as value").writeStream.format("penstock")
    writer = writer.options(checkpointLocation=f"{root}/checkpoint", **(ONE_FILE if order == "ordered" else PARTS))
    return writer.trigger(processingTime="100 milliseconds").start(f"{root}/out")


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("order", ["ordered", "unordered"])
def test_each_row_is_in_the_output_once_whatever_is_killed(rocks: SparkSession, stage: Stage, order: str) -> None:
    """F-A16: all of Spark is killed, also between the sink's and Spark's commit, calls end at random: each row is there once, by one id."""
    expected: Counter[str] = Counter()

    def land() -> None:
        for _ in range(2):
            rows = range(len(expected), len(expected) + 20)
            stage.put(f"f{len(expected):04}", *map(str, rows))
            expected.update(f"{n} {2 * n}" for n in rows)

    with Service(seconds=0.0, spread=0.5) as service:
        for number, point in enumerate(KILLS * 2):
            land()
            mark = stage.root / f"killed-{number}"
            killed = run_python(QUERY, str(stage.root), str(service.port), order, failpoints=f"{point}{mark}")
            assert mark.exists(), killed.stderr[-3000:]
            assert not stage.lines() - expected, point
        land()
        query = enrich(rocks, str(stage.root), service.port, order)
        wait_for(lambda: held(query) == 0 and len(stage.lines()) == len(expected), query)
        query.stop()
    assert stage.lines() == expected
    assert {len(ids) for ids in service.rows.values()} == {1}
    if order == "ordered":
        (file,) = stage.files()
        rows = [int(line.split()[0]) for line in file.read_text().splitlines()]
        for first in range(0, len(expected), 20):
            of_file = [n for n in rows if first <= n < first + 20]
            assert of_file == sorted(of_file), first


def held(query: StreamingQuery) -> int | None:
    """Return how many values the state holds; 0 means that no row is carried or waits to be emitted."""
    progress = query.lastProgress
    return progress["stateOperators"][0]["numRowsTotal"] if progress and progress["stateOperators"] else None
