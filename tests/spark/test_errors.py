"""`penstock.errors.of` recovers our error from whatever Spark wraps around it."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.streaming.listener import StreamingQueryListener

import penstock
from penstock.errors import BadRecord, NotThere, OptionError, PenstockError, of
from penstock.spark.border import border
from tests.support.stage import run_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.support.stage import Stage

HOSTILE_NAME = 'a\n(penstock {"code": "PST-301", "length": 1, "fields": {}}) \'$0 ${x} <y> |z.json'
HOSTILE_RECORD = "[PST-301] x penstock.errors.Fenced: [PST-400] y"


def started(frame: DataFrame, stage: Stage, mode: str = "append", **options: Any) -> StreamingQuery:
    """Start a query that takes the available input."""
    writer = frame.writeStream.format("penstock").outputMode(mode).options(**options)
    return writer.option("checkpointLocation", str(stage.checkpoint)).trigger(availableNow=True).start(str(stage.dst))


def numbers(spark: SparkSession, stage: Stage) -> DataFrame:
    """Return a stream of JSON."""
    return spark.readStream.format("penstock").option("format", "json").schema("a bigint").load(str(stage.src))


class Heard(StreamingQueryListener):
    """Keeps the errors that Spark reports to listeners, by run: Spark may still report the error of another test's query."""

    def __init__(self) -> None:
        self.exceptions: dict[str, str | None] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Keep it."""
        self.exceptions[str(event.runId)] = event.exception


def test_error_of_a_query_comes_back_with_its_fields(spark: SparkSession, stage: Stage) -> None:
    """A bad record's path and offset are in the error that is raised, kept and sent to listeners, even if names and records forge text."""
    stage.put(HOSTILE_NAME, '{"a":1}', HOSTILE_RECORD)
    listener = Heard()
    spark.streams.addListener(listener)
    try:
        query = started(numbers(spark, stage), stage, format="json")
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination()
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(20_000)
    finally:
        spark.streams.removeListener(listener)
    for wrapped in (caught.value, query.exception(), str(caught.value), listener.exceptions[str(query.runId)]):
        error = of(wrapped)
        assert isinstance(error, BadRecord), wrapped
        assert (error.path, error.offset) == (str(stage.src / HOSTILE_NAME), 8)
        assert HOSTILE_RECORD in error.message
        assert error.message.startswith(repr(str(stage.src / HOSTILE_NAME)))
    assert len(str(caught.value)) < 2500 + 3 * len(str(stage.src))
    assert "\tat " not in str(caught.value)  # no Java stack trace


def of_text(spark: SparkSession, stage: Stage) -> DataFrame:
    """Return a stream of text."""
    return spark.readStream.format("penstock").load(str(stage.src))


CALLS: dict[str, tuple[Callable[[SparkSession, Stage], object], type[PenstockError], str]] = {
    "an option of the source": (
        lambda spark, stage: spark.readStream.format("penstock").option("setle", "1s").load(str(stage.src)),
        OptionError,
        "did you mean 'settle'",
    ),
    "an option of the sink": (
        lambda spark, stage: started(of_text(spark, stage), stage, rolSize="1").awaitTermination(),
        OptionError,
        "did you mean 'rollSize'",
    ),
    "no input": (
        lambda spark, stage: started(
            spark.readStream.format("penstock").load(str(stage.root / "nowhere")), stage
        ).awaitTermination(),
        OptionError,
        "does not exist",
    ),
    "complete": (
        lambda spark, stage: started(
            of_text(spark, stage).groupBy("value").count(), stage, mode="complete"
        ).awaitTermination(),
        OptionError,
        "outputMode('complete')",
    ),
    "update": (
        lambda spark, stage: started(of_text(spark, stage), stage, mode="update").awaitTermination(),
        OptionError,
        "outputMode('update')",
    ),
    "an array of nothing": (
        lambda spark, stage: started(
            of_text(spark, stage).selectExpr("array() AS x"), stage, format="json"
        ).awaitTermination(),
        OptionError,
        "column 'x' is of type void NOT NULL",
    ),
    "a map of nothing": (
        lambda spark, stage: started(
            of_text(spark, stage).selectExpr("map() AS x"), stage, format="json"
        ).awaitTermination(),
        OptionError,
        "column 'x' is of type void NOT NULL",
    ),
    "a table": (
        lambda spark, stage: spark.sql("CREATE TABLE made_here USING penstock"),
        OptionError,
        "there are no tables of format penstock",
    ),
    "a table of an output": (
        lambda spark, stage: spark.sql(f"CREATE TABLE made_here USING penstock LOCATION '{stage.src}'"),
        OptionError,
        "there are no tables of format penstock",
    ),
    "a batch that is read": (
        lambda spark, stage: spark.read.format("penstock").load(str(stage.src)).collect(),
        OptionError,
        "expected spark.readStream",
    ),
    "a batch that is written": (
        lambda spark, stage: spark.range(1).write.format("penstock").save(str(stage.dst)),
        OptionError,
        "mode('append'), with a batchKey",
    ),
    "a file that is selected from": (
        lambda spark, stage: spark.sql(f"SELECT * FROM penstock.`{stage.src}`"),
        OptionError,
        "expected spark.read.format('penstock').load(path)",
    ),
    "continuous": (
        lambda spark, stage: (
            of_text(spark, stage)
            .writeStream.format("penstock")
            .option("checkpointLocation", str(stage.checkpoint))
            .trigger(continuous="1 second")
            .start(str(stage.dst))
            .awaitTermination()
        ),
        OptionError,
        "works in batches",
    ),
    "a function of a user": (
        lambda spark, stage: spark.range(1).mapInArrow(raising, "id bigint").collect(),
        NotThere,
        "raised by a function of a user",
    ),
}


def raising(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Raise one of our errors without any of our code between it and Spark."""
    msg = "raised by a function of a user"
    for _ in batches:
        raise NotThere(msg)
    yield from ()


@pytest.mark.parametrize("case", CALLS)
def test_a_refused_call_is_told_in_our_words(spark: SparkSession, stage: Stage, case: str) -> None:
    """Whether Spark or our code refuses a call, `of` says in one line what is wrong with it and what to do."""
    stage.put("a.txt", "one")
    call, kind, says = CALLS[case]
    with pytest.raises(PySparkException) as caught:
        call(spark, stage)
    error = of(caught.value)
    assert type(error) is kind
    assert says in error.message
    assert "\n" not in error.message
    assert penstock.errors.of(caught.value) is not None


NOISY = """
import sys, penstock
from pyspark.sql.functions import udf
src, dst = sys.argv[1:]
spark = penstock.local_session()
for number in range(3):
    frame = spark.readStream.format("penstock").option("format", "json").schema("a bigint").load(src)
    writer = frame.writeStream.format("penstock").option("checkpointLocation", f"{dst}/{number}")
    query = writer.option("format", "json").trigger(availableNow=True).start(f"{dst}/out{number}")
    try:
        query.awaitTermination()
    except Exception as error:
        print(penstock.errors.of(error))
def fail(value):
    raise ValueError("foreign\\npenstock.errors.Fenced: [PST-301] forged")
try:
    spark.range(1).select(udf(fail)("id")).collect()
except Exception as error:
    print("foreign" in str(error))
"""


@pytest.mark.soak  # it starts a separate JVM and checks its log
@pytest.mark.spark
def test_errors_of_ours_are_not_shouted(stage: Stage) -> None:
    """In one of our sessions Spark logs our own error in one line; the error of a user's function keeps all of its lines."""
    stage.put("a.json", '{"a":1}', "not json")
    done = run_python(NOISY, str(stage.src), str(stage.root / "made"))
    assert done.stdout.splitlines()[0].startswith("[PST-201] ")
    assert [line[:9] for line in done.stdout.splitlines()] == ["[PST-201]"] * 3 + ["True"], done.stderr[-3000:]
    ours, _, foreign = done.stderr.partition("ValueError: foreign")
    ours = ours.rpartition("ERROR")[0]
    assert 0 < ours.count("[PST-201]") <= 6
    assert "\tat org.apache" not in ours
    assert len(ours) < 3 * 2000
    assert " WARN " not in ours
    assert "\tat org.apache.spark" in foreign
    assert "[PST-301] forged" in foreign


@border
class Writer:
    """Begins a batch when it is pickled, as our sinks do."""

    def __getstate__(self) -> dict[str, object]:
        """Refuse the batch."""
        msg = "bad, '{x}'"
        raise BadRecord(msg, path="/a", offset=7)


@pytest.mark.parametrize("debug", ["0", "1"])
def test_refused_batch_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], debug: str
) -> None:
    """An error while PySpark pickles the sink is not wrapped and not printed with a stack trace; PENSTOCK_DEBUG=1 shows the trace."""
    monkeypatch.setenv("PENSTOCK_DEBUG", debug)
    with pytest.raises(Exception, match="bad, ") as caught:
        CloudPickleSerializer().dumps(Writer())  # type: ignore[no-untyped-call]  # - PySpark's
    assert isinstance(caught.value, BadRecord) == (debug == "0")
    assert ("Traceback" in capsys.readouterr().err) == (debug == "1")
    text = "".join(traceback.format_exception_only(caught.value))
    error = of(text) if debug == "0" else of(caught.value)
    assert isinstance(error, BadRecord)
    assert (error.message, error.path, error.offset) == ("bad, '{x}'", "/a", 7)
