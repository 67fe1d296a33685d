"""Times without a zone are in the zone of the session, the option or the plan; on a real Spark, compared with its own readers."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadMaxFiles
from pyspark.sql.types import StructField, StructType, TimestampType

import penstock
from penstock.errors import OptionError
from penstock.formats.zones import zone_name
from penstock.options import parse
from penstock.options.internal import LIVE_SOURCE
from penstock.query.offset import summed
from penstock.session import worker
from penstock.spark.datasource import PenstockStreamReader
from tests.support.stage import Stage

SCHEMA = "i bigint, t timestamp, n timestamp_ntz, d date"
TIMES = [
    "2026-07-01T12:00:00",
    "2026-01-01 12:00:00.25",
    "2026-03-29T02:30:00",  # does not exist in Berlin
    "2026-10-25T02:30:00",  # exists twice there
    "2026-07-01",
    "1890-01-01T00:00:00",
    "2026-07-01T12:00:00Z",
    "2026-07-01T12:00:00+05:00",
]


def lines(form: str) -> str:
    """Return a record for each time."""
    records = [(number, time, time.removesuffix("Z").removesuffix("+05:00")) for number, time in enumerate(TIMES)]
    if form == "csv":
        return "".join(f"{number},{time},{local},{local}\n" for number, time, local in records)
    return "".join(f'{{"i":{number},"t":"{time}","n":"{local}","d":"{local}"}}\n' for number, time, local in records)


def put(stage: Stage, form: str) -> None:
    """Write an input file that has settled."""
    path = stage.src / f"a.{form}"
    path.write_text(lines(form))
    os.utime(path, (1, 1))


def in_zone(spark: SparkSession, name: str) -> SparkSession:
    """Return a session of the same application in another zone."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", name)
    return session


def shown(rows: Any) -> list[tuple[Any, ...]]:
    """Return Spark's rows with instants as text in UTC."""
    columns = "i", "cast(cast(t as decimal(30, 6)) as string) t", "cast(n as string) n", "cast(d as string) d"
    return sorted(tuple(row) for row in rows.selectExpr(*columns).collect())


@pytest.mark.parametrize("form", ["json", "csv"])
def test_times_are_those_of_the_session(spark: SparkSession, stage: Stage, form: str) -> None:
    """An ingest under Europe/Berlin reads what Spark reads there, times in gaps and overlaps included, and reads back what it wrote."""
    session = in_zone(spark, "Europe/Berlin")
    put(stage, form)
    source = {"format": form, "schema": SCHEMA}
    penstock.ingest(session, stage.src, stage.dst, source=source, sink={"format": form})
    theirs = shown(session.read.schema(SCHEMA).format(form).load(str(stage.src)))
    assert shown(session.read.schema(SCHEMA).format(form).load(str(stage.dst))) == theirs
    assert shown(in_zone(spark, "Asia/Kolkata").read.schema(SCHEMA).format(form).load(str(stage.dst))) == theirs


def test_a_plain_query_reads_times_in_its_session_or_as_it_is_told(spark: SparkSession, stage: Stage) -> None:
    """A plain query uses the zone of its registered session, or the option; without either it is refused, and the advice works."""
    session = in_zone(spark, "Europe/Berlin")
    penstock.register(session)
    put(stage, "json")
    table = stage.dst

    def run(name: str, *, said: bool = True, **options: str) -> list[tuple[Any, ...]]:
        reader = session.readStream.format("penstock")
        reader = reader if said else session.readStream.__class__(session)
        if not said:
            reader._jreader.format("penstock")  # as PySpark does it, when nothing has passed on the zone
        frame = reader.options(path=str(stage.src), format="json", **options).schema(SCHEMA).load()
        writer = frame.writeStream.format("penstock").option("format", "parquet").trigger(availableNow=True)
        query = writer.option("checkpointLocation", f"{stage.checkpoint}-{name}").start(f"{table}/{name}")
        query.awaitTermination()
        return shown(session.read.parquet(f"{table}/{name}"))

    def theirs(**options: str) -> list[tuple[Any, ...]]:
        return shown(session.read.schema(SCHEMA).options(**options).json(str(stage.src)))

    assert run("session") == theirs()
    assert run("option", timeZone="Asia/Kolkata") == theirs(timeZone="Asia/Kolkata")
    with pytest.raises(Exception, match="a time that says no zone") as caught:
        run("unsaid", said=False)
    told = penstock.errors.of(caught.value)
    assert isinstance(told, OptionError)
    assert "zone of Spark's session is Europe/Berlin; call penstock.register(spark)" in told.message
    assert run("unsaid", said=False, timeZone="UTC") == theirs(timeZone="UTC")  # as advised, from the same checkpoint


# -- without Spark: what a plan says


def reader(stage: Stage, **options: str) -> PenstockStreamReader:
    """Return the source of one query."""
    given = {"path": str(stage.src), "format": "json", "settle": "0s", **options}
    schema = StructType([StructField("t", TimestampType())]).json()
    return PenstockStreamReader(parse(LIVE_SOURCE, given, what="source"), schema)


def instants(source: PenstockStreamReader, end: dict[str, Any]) -> list[str]:
    """Return the times of a batch in UTC."""
    batches = [batch for part in source.partitions({}, end) for batch in source.read(part)]
    return [str(value) for batch in batches for value in batch.column(0).cast(pa.timestamp("s")).to_pylist()]


@pytest.fixture
def one_time(stage: Stage) -> Stage:
    (stage.src / "a.json").write_text('{"t":"2026-07-01T12:00:00"}\n')
    os.utime(stage.src / "a.json", (1, 1))
    return stage


def test_a_replay_is_in_the_zone_of_its_plan(one_time: Stage) -> None:
    """A replay reads a plan in the plan's zone, whatever the zone of its session is, and whatever its options say."""
    first = reader(one_time, sessionTimeZone="Europe/Berlin")
    end = first.latestOffset(first.initialOffset(), ReadMaxFiles(1))
    assert end["zone"] == "Europe/Berlin"
    for again in (reader(one_time), reader(one_time, sessionTimeZone="Asia/Kolkata"), reader(one_time, timeZone="UTC")):
        assert instants(again, end) == ["2026-07-01 10:00:00"]
    assert reader(one_time, sessionTimeZone="Asia/Kolkata", timeZone="+01:00").initialOffset()["zone"] == "+01:00"


def test_an_old_plan_means_utc(one_time: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan from before plans had a zone was read in UTC, and still is in any session."""
    monkeypatch.setattr(worker, "_is_utc_here", lambda: False)
    source = reader(one_time, sessionTimeZone="Europe/Berlin")
    end = source.latestOffset(source.initialOffset(), ReadMaxFiles(1))
    old = summed({name: value for name, value in end.items() if name not in {"zone", "sum"}})
    assert instants(source, old) == ["2026-07-01 12:00:00"]


def test_where_nobody_says_a_zone(one_time: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a zone, a machine in UTC uses UTC; on any other, where Spark's session has that zone, only times with a zone are read."""
    source = reader(one_time)
    end = source.latestOffset(source.initialOffset(), ReadMaxFiles(1))
    assert end["zone"] is None
    assert instants(reader(one_time, timeZone="Europe/Berlin"), end) == ["2026-07-01 10:00:00"]
    monkeypatch.setattr(worker, "_is_utc_here", lambda: True)
    assert instants(source, end) == ["2026-07-01 12:00:00"]
    monkeypatch.setattr(worker, "_is_utc_here", lambda: False)
    with pytest.raises(
        OptionError, match=r"the zone of Spark's session is that of this machine; call penstock\.register"
    ):
        instants(source, end)
    (one_time.src / "a.json").write_text('{"t":"2026-07-01T12:00:00Z"}\n{}\n{"t":"2026-7-1 1:0:0 +01"}\n')
    os.utime(one_time.src / "a.json", (2, 2))
    end = source.latestOffset(source.initialOffset(), ReadMaxFiles(1))
    assert instants(source, end) == ["2026-07-01 12:00:00", "None", "2026-07-01 00:00:00"]


def test_the_zone_that_is_asked_for_is_one(stage: Stage) -> None:
    """An invalid zone is refused, and the error names who set it."""
    for name, said_by in (("timeZone", "timeZone"), ("sessionTimeZone", r"spark\.sql\.session\.timeZone")):
        with pytest.raises(OptionError, match=f"{said_by}='Mars/Olympus' is not a time zone"):
            reader(stage, **{name: "Mars/Olympus"})


def test_a_session_in_a_zone_with_a_short_name(spark: SparkSession, stage: Stage) -> None:
    """`PST`, `JST` and the like, in which Spark sessions may be, were no zones to the source: it refused every query of theirs."""
    names = spark._jvm.java.time.ZoneId.SHORT_IDS  # type: ignore[union-attr]
    for name in names:
        assert zone_name(name, "timeZone") in {name, names[name]}
    put(stage, "json")
    theirs = in_zone(spark, "PST")
    reader = theirs.readStream.format("penstock").option("format", "json").option("settle", "0").schema(SCHEMA)
    reader.load(str(stage.src)).writeStream.format("memory").queryName("pst").trigger(
        availableNow=True
    ).start().awaitTermination()
    assert sorted(shown(theirs.table("pst"))) == sorted(shown(theirs.read.schema(SCHEMA).json(str(stage.src))))
