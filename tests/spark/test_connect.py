"""Spark Connect: streams work, what needs the driver says so, and errors come out of it, too."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.errors import OptionError
from tests.support.stage import run_python

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.stage import Stage

REMOTE = """
import json, sys, penstock
from penstock.errors import of
from pyspark.sql import SparkSession
src, dst = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
penstock.register(spark)
penstock.register(spark)
def run(**options):
    frame = spark.readStream.format("penstock").load(src)
    writer = frame.writeStream.format("penstock").options(**options).trigger(availableNow=True)
    try:
        writer.option("checkpointLocation", dst + "/_penstock/ck").start(dst).awaitTermination()
    except Exception as error:
        return str(of(error))
def in_zone():
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    frame = spark.readStream.format("penstock").option("format", "json").schema("t timestamp").load(dst + "-times")
    writer = frame.selectExpr("cast(cast(t as bigint) as string) t").writeStream.format("penstock").trigger(availableNow=True)
    writer.option("checkpointLocation", dst + "-ck").start(dst + "-seconds").awaitTermination()
    return [row.value for row in spark.read.text(dst + "-seconds").collect()]
def refused(call):
    try:
        call()
    except penstock.PenstockError as error:
        return str(error)
print(json.dumps([run(rolSize="1"), run(), refused(lambda: penstock.ingest(spark, src, dst)), in_zone()]))
spark.stop()
"""


@pytest.mark.spark
def test_a_stream_over_spark_connect(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Spark Connect a stream is read and written, in the session's zone; errors of ours come out; an ingest needs the driver."""
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio, grpcio-status and googleapis-common-protos")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    stage.put("a.txt", "one")
    times = stage.dst.with_name(f"{stage.dst.name}-times")
    times.mkdir()
    (times / "a.json").write_text('{"t": "2026-07-01T12:00:00"}\n')
    os.utime(times / "a.json", (1, 1))
    done = run_python(REMOTE, str(stage.src), str(stage.dst))
    assert done.stdout, done.stderr[-3000:]
    refused, nothing, ingest, seconds = json.loads(done.stdout.splitlines()[-1])
    assert "did you mean 'rollSize'" in refused
    assert nothing is None
    assert ingest.startswith("[PST-101] ingest needs a session with its driver")
    assert stage.lines() == {"one": 1}
    assert seconds == ["1782887400"], "12:00 in Kolkata: a registered session's zone is known over Connect, too"
    assert "Exception ignored" not in done.stderr


def remote() -> Any:
    """Return what looks like a session of Spark Connect."""
    return type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()


CALLS: dict[str, Callable[[], object]] = {
    "ingest": lambda: penstock.ingest(remote(), "/in", "/out"),
    "call_counts": lambda: penstock.call_counts(remote()),
}


@pytest.mark.parametrize("what", CALLS)
def test_what_needs_the_driver_says_so(what: str) -> None:
    """A call that needs the driver here says so of a session of Spark Connect, and what does work with it."""
    with pytest.raises(OptionError, match=rf"^\[PST-101\] {what} needs a session with its driver .* do work"):
        CALLS[what]()
