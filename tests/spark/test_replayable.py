"""Streams of a function whose data can be read only once, on a real Spark: each item once, acknowledged after its commit."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import penstock
from penstock import unique
from penstock.errors import CheckpointMismatch, DamagedState, OptionError
from penstock.formats.schema import to_spark
from penstock.session import functions
from penstock.spark.replayable import ReplayableStreamReader
from penstock.windows import WindowStore
from tests.support.hdfs import MiniHdfs
from tests.support.stage import Stage, run_python

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from tests.support.interpreter import Interpreter

SCHEMA = "n int, t string"
STEPS = ("windows.read=kill-jvm@2", "windows.saved=kill-jvm@2", "windows.acknowledged=kill-jvm@3")

QUEUE = """
import json, os, sys, penstock
root, items = sys.argv[1], int(sys.argv[2])
acknowledged = root + "/acknowledged"

def told():
    return int(open(acknowledged).read()) if os.path.exists(acknowledged) else 0

def read(last):
    print("read", told(), file=open(root + "/reads", "a"))
    return [(n, f"item {n}") for n in range(told(), min(told() + 3, items))]

def acknowledge(items):
    with open(acknowledged + ".new", "w") as file:
        file.write(str(max(told(), items["n"][-1].as_py() + 1)))
    os.replace(acknowledged + ".new", acknowledged)

spark = penstock.local_session("local[2]")
frame = penstock.replayable(read, root + "/store", schema="n int, t string", acknowledge=acknowledge)
writer = frame.writeStream.format("penstock").option("format", "json").option("rollBatches", "1")
writer.trigger(availableNow=True).option("checkpointLocation", root + "/checkpoint").start(root + "/out").awaitTermination()
print("DONE")
"""


def arrived(stage: Stage) -> list[int]:
    """Return the numbers of the items that a reader sees, in order."""
    return sorted(json.loads(line)["n"] for line in stage.lines().elements())


def run(spark: SparkSession, stage: Stage, upto: int, store: str = "") -> None:
    """Run a query over the numbers below `upto`, two a batch; files record its reads and acknowledgements."""
    root, out = str(stage.root), str(stage.dst)

    def read(last: pa.Table | None) -> list[dict[str, Any]] | None:
        first = 0 if last is None else last["n"][-1].as_py() + 1
        return [{"n": n, "t": None} for n in range(first, min(first + 2, upto))]

    def acknowledge(items: pa.Table) -> None:
        lines = [line for path in Path(out).glob("*.json") for line in path.read_text().splitlines()]
        with Path(root, "acknowledged").open("a") as file:
            print(items["n"].to_pylist(), len(lines), file=file)

    store = store or f"{root}/store"
    frame = penstock.replayable(read, store, schema=SCHEMA, acknowledge=acknowledge, spark=spark)
    writer = frame.writeStream.format("penstock").option("format", "json").option("rollBatches", "1")
    writer = writer.option("checkpointLocation", str(stage.checkpoint)).trigger(availableNow=True)
    writer.start(out).awaitTermination()


def goes_on(spark: SparkSession, stage: Stage, store: str = "") -> None:
    """Run a query, delete its last commit, and run it again with more to read."""
    run(spark, stage, 5, store)
    told = (stage.root / "acknowledged").read_text().splitlines()
    assert told == ["[0, 1] 2", "[2, 3] 4", "[4] 5"]
    (stage.checkpoint / "commits" / "2").unlink()
    run(spark, stage, 7, store)
    told = (stage.root / "acknowledged").read_text().splitlines()
    assert told[3:] == ["[4] 5", "[5, 6] 7"]  # the last one again: nobody knows whether upstream had received it
    assert arrived(stage) == list(range(7))


def test_each_read_is_a_batch_and_acknowledged_when_it_is_done(spark: SparkSession, stage: Stage) -> None:
    """Every batch, the last one too, is acknowledged once its rows are visible; a restart goes on, and a replay adds nothing."""
    goes_on(spark, stage)


@pytest.mark.soak  # as above, on HDFS
def test_a_store_on_hdfs(spark: SparkSession, stage: Stage, hdfs: MiniHdfs) -> None:
    """The same with the store on HDFS: tasks read the file that the driver has open there, and a restart takes it over."""
    goes_on(spark, stage, f"{hdfs.url}/{unique.token()}")


@pytest.mark.spark
@pytest.mark.xdist_group("programs")
@pytest.mark.timeout(300)
@pytest.mark.soak  # every run kills `examples/replay_feed.py`
@pytest.mark.parametrize("points", [STEPS], ids=len)
def test_killed_at_each_step_and_started_again(stage: Stage, python: Interpreter, points: tuple[str, ...]) -> None:
    """SIGKILL after the read, the save and the acknowledgement: each item is there once; only a read that was not saved is repeated."""
    for point in points:
        killed = run_python(QUEUE, str(stage.root), "30", failpoints=point)
        assert "DONE" not in killed.stdout, f"{point} was never reached"
        items = arrived(stage)
        assert items == list(range(len(items))), point
    final = python.run(QUEUE, str(stage.root), "30")
    assert "DONE" in final.stdout, final.stderr[-3000:]
    assert arrived(stage) == list(range(30))
    assert (stage.root / "acknowledged").read_text() == "30"
    reads = (stage.root / "reads").read_text().split("read ")[1:]
    assert len(reads) == len(set(reads)) + 1  # items that were read but not saved are read again; nothing else is


class Calls:
    """Spark's calls to a source, made by hand."""

    def __init__(self, root: Path, read: Callable[[pa.Table | None], Any]) -> None:
        schema = to_spark(pa.schema([("n", pa.int32()), ("t", pa.string())]))
        self.reader = ReplayableStreamReader(str(root / "store"), functions.packed((read, None)), schema)
        self.start = self.reader.initialOffset()

    def batch(self) -> list[dict[str, Any]] | None:
        """Return the rows of the next batch; None if there is none."""
        start, self.start = self.start, self.reader.latestOffset(self.start, ReadAllAvailable())
        parts = [list(self.reader.read(part)) for part in self.reader.partitions(start, self.start)]
        return [row for batches in parts for batch in batches for row in batch.to_pylist()] if parts else None


ROWS = [{"n": 1, "t": "a"}, {"n": 2, "t": None}]
TAKEN: dict[str, Callable[[], Any]] = {
    "mappings": lambda: ROWS,
    "tuples": lambda: iter([(1, "a"), (2, None)]),
    "one": lambda: {"n": 1, "t": "a"},
    "table": lambda: pa.table({"t": ["a", None], "n": pa.array([1, 2], pa.int8())}),
    "record batch": lambda: pa.RecordBatch.from_pylist(ROWS, schema=pa.schema([("n", pa.int32()), ("t", pa.string())])),
    "polars": lambda: pl.DataFrame(ROWS, schema={"n": pl.Int32, "t": pl.String}),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_read_may_return(tmp_path: Path, name: str) -> None:
    """Rows as Python objects or as Arrow, with the schema's types; then no rows, in each of the forms for that."""
    made = TAKEN[name]()
    nothing = [None, [], pa.table({"n": pa.array([], pa.int32()), "t": pa.array([], pa.string())})]
    calls = Calls(tmp_path, lambda last: made if last is None else nothing.pop())
    assert calls.batch() == (ROWS[:1] if name == "one" else ROWS)
    assert [calls.batch() for _ in range(3)] == [None, None, None]
    with pytest.raises(IndexError):  # the function raises it
        calls.batch()
    calls.reader.stop()


async def waits(*_: Any) -> list[Any]:
    """Be a coroutine function, which the source must not call without awaiting."""
    return []


WRONG: dict[str, Any] = {
    "another column": pa.table({"n": pa.array([1], pa.int32()), "t": ["a"], "more": [0]}),
    "another column of a batch": pa.record_batch({"n": pa.array([1], pa.int32()), "t": ["a"], "more": [0]}),
    "another column of polars": pl.DataFrame({"n": [1], "t": ["a"], "more": [0]}),
    "another case": pa.table({"N": pa.array([1], pa.int32()), "t": ["a"]}),
    "a column twice": pa.table([pa.array([1], pa.int32()), ["a"], ["b"]], names=["n", "t", "t"]),
    "another column of no rows": pa.table({"n": pa.array([], pa.int32()), "t": pa.array([], pa.string()), "more": []}),
    "another key": [{"n": 1, "t": "a", "more": 0}],
    "text": "a",
    "number": 3,
    "a column is missing": [{"n": 1}],
    "a fraction": [(1.5, "a")],
    "too large": [(1 << 40, "a")],
    "another type": pa.table({"n": ["a"], "t": ["b"]}),
    "too few values": [(1,)],
}


@pytest.mark.parametrize("name", WRONG)
def test_what_read_may_not_return(tmp_path: Path, name: str) -> None:
    """Rows that do not fit the schema are refused before they are saved, and the next call starts from the same state."""
    calls = Calls(tmp_path, lambda last: WRONG[name])
    with pytest.raises(OptionError):
        calls.batch()
    calls.reader.stop()
    good = Calls(tmp_path, lambda last: ROWS if last is None else None)
    assert good.batch() == ROWS
    good.reader.stop()


def test_a_column_that_the_schema_has_not_is_named(tmp_path: Path) -> None:
    """A column that would be dropped is named, at any depth, with advice; nothing is saved, and without the column the next read works."""
    kind = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.struct([("c", pa.int64())])))])
    wider = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.struct([("c", pa.int64()), ("d", pa.int64())])))])
    value = {"a": 1, "b": [{"c": 2, "d": 3}]}
    cases: list[tuple[Any, str]] = [
        (pa.table({"s": pa.array([value], wider)}), "'s.b.d'"),
        (pa.table({"s": pa.array([value], kind), "x": [1], "y": [2]}), "'x', 'y'"),
    ]
    given: list[Any] = []
    reader = ReplayableStreamReader(
        str(tmp_path / "store"), functions.packed((lambda last: given.pop(), None)), to_spark(pa.schema([("s", kind)]))
    )
    reader._stream()._read = lambda last: reader._packed(given.pop())  # the pickled functions have a separate list
    for made, names in cases:
        given.append(made)
        with pytest.raises(OptionError, match=f"read returned .*{names}.*name them in schema, or drop them"):
            reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    given.append(pa.table({"s": pa.array([value], kind)}))
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable())["window"] == 0
    reader.stop()


@pytest.mark.parametrize("where", ["read", "acknowledge"])
def test_what_has_to_be_awaited_is_refused_where_it_is_called(tmp_path: Path, where: str) -> None:
    """A function that returns a coroutine has done nothing: it is an error, and the batch does not count as acknowledged."""
    asked: dict[str, Any] = {"read": lambda last: ROWS, "acknowledge": lambda table: None}
    asked[where] = lambda table: waits()
    made = ReplayableStreamReader(
        str(tmp_path / "store"),
        functions.packed((asked["read"], asked["acknowledge"])),
        to_spark(pa.schema([("n", pa.int32()), ("t", pa.string())])),
    )

    def run_two_batches() -> None:
        offset = made.latestOffset(made.initialOffset(), ReadAllAvailable())
        made.latestOffset(offset, ReadAllAvailable())

    with pytest.raises(OptionError, match=f"{where} returned a coroutine, which nobody awaits"):
        run_two_batches()
    made.stop()


def test_a_store_and_a_checkpoint_of_different_times(tmp_path: Path) -> None:
    """Failure 7: a checkpoint or a store that was lost or restored from a backup is refused, and nothing is read."""
    calls = Calls(tmp_path, lambda last: ROWS)
    for _ in range(3):
        assert calls.batch() == ROWS
    offset = calls.start
    for window in (-1, 0, 3, 9):
        calls.start = {"v": 1, "window": window}
        with pytest.raises(CheckpointMismatch, match=f"at window {window} and the store ends with window 2"):
            calls.batch()
    for gone in (-1, 0, 7):
        with pytest.raises(DamagedState, match="is not in the store"):
            calls.reader.partitions(offset, {"v": 1, "window": gone})
    for damaged in ({}, {"v": 2, "window": 1}, {"v": 1, "window": "1"}):
        with pytest.raises(DamagedState, match="expected one such as"):
            calls.reader.latestOffset(damaged, ReadAllAvailable())
    calls.reader.stop()
    with WindowStore(str(tmp_path / "store")) as store:
        assert [store.load(window) is None for window in range(4)] == [True, False, False, True]


def test_what_replayable_refuses(spark: SparkSession, tmp_path: Path) -> None:
    """A store in an impossible place, and an invalid schema, are refused before a query starts."""
    for store, schema in (("ftp://host/store", SCHEMA), ("", SCHEMA), (str(tmp_path), "n nothing")):
        with pytest.raises(OptionError):
            penstock.replayable(lambda last: None, store, schema=schema, spark=spark)
    wrong: Any = 5
    with pytest.raises(OptionError, match="read=5 is not a function"):
        penstock.replayable(wrong, str(tmp_path), schema=SCHEMA, spark=spark)
    with pytest.raises(OptionError, match="acknowledge=5 is not a function"):
        penstock.replayable(lambda last: None, str(tmp_path), schema=SCHEMA, acknowledge=wrong, spark=spark)
    lock, root = threading.Lock(), str(tmp_path)
    good: dict[str, Any] = {"read": lambda last: None, "store": root, "schema": SCHEMA, "spark": spark}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"read": waits}, "read is a coroutine function"),
        ({"acknowledge": waits}, "acknowledge is a coroutine function"),
        ({"read": lambda: None}, r"read does not take \(last\)"),
        ({"acknowledge": lambda: None}, r"acknowledge does not take \(table\)"),
        ({"read": lambda last: lock.locked()}, "cannot be sent to Spark's workers: its variable 'lock'"),
        ({"acknowlege": print}, "replayable: unknown parameter 'acknowlege'; did you mean 'acknowledge'?"),
        ({"schema": None}, "schema is a NoneType; expected DDL"),
        ({"store": None}, "store=None: expected a path"),
        ({"spark": 5}, "spark=5"),
    ]
    for options, says in cases:
        with pytest.raises(OptionError, match=says.replace("?", r"\?")):
            penstock.replayable(**(good | options))
