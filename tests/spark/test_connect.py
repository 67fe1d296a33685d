"""Spark Connect: what works with a remote server, what needs a local driver and says so, and that our errors come through."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.errors import OptionError
from tests.support.stage import run_python
from tests.support.wait import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.stage import Stage

SERVER = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
builder = builder.config("spark.connect.grpc.binding.address", "127.0.0.1").config("spark.connect.grpc.binding.port", sys.argv[1])
spark = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2").getOrCreate()
print("up", flush=True)
sys.stdin.read()
spark.stop()
"""

CLIENT = """
import json, sys, penstock
from penstock.errors import of
from pyspark.sql import SparkSession
address, src, dst = sys.argv[1:]
spark = SparkSession.builder.remote(address).getOrCreate()
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
def write(frame, name, **options):
    writer = frame.writeStream.format("penstock").options(**options).trigger(availableNow=True)
    writer.option("checkpointLocation", dst + name + "-ck").start(dst + name).awaitTermination()
    return sorted(row.value for row in spark.read.text(dst + name).collect())
async def twice(row):
    return {"twice": row.value * 2}
def read(last):
    return [{"value": "fed"}] if last is None else None
def upper(batch):
    import pyarrow.compute as pc
    return batch.set_column(0, "value", pc.utf8_upper(batch.column(0)))
def ingested():
    done = [penstock.ingest(spark, src, dst + "-in", transform=upper) for _ in range(2)]
    return [done[0].rows, done[1].rows, done[1].open_rows], sorted(row.value for row in spark.read.text(dst + "-in").collect())
form = {"format": "json"}
lines = spark.readStream.format("penstock").load(src)
calls = penstock.async_map(lines, twice, schema="twice string", keep_input=False)
batch = penstock.async_map(spark.createDataFrame([("a",), ("b",)], "value string"), twice, schema="twice string", ordered=False)
names = spark.readStream.format("penstock").option("emit", "files").load(src)
print(json.dumps({
    "refused": run(rolSize="1"),
    "nothing": run(),
    "ingest": ingested(),
    "by name": penstock.ingest(spark, src, dst + "-named", source={"files": names}).rows,
    "calls": write(calls, "-calls"),
    "batch": sorted(row.twice for row in batch.collect()),
    "files": write(penstock.read_files(names, keep_input=False), "-files"),
    "fed": write(penstock.replayable(read, dst + "-store", schema="value string", spark=spark), "-fed", rollBatches="1"),
    "drain": refused(lambda: penstock.async_map(lines, twice, schema="twice string", timeout=9.0, drain=1.0)),
    "bad": refused(lambda: penstock.ingest(spark, src, dst + "-bad", source=form | {"schema": "id bigint"}, sink=form)),
    "seconds": in_zone(),
}))
spark.stop()
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a Spark Connect server in a separate process; yield its address."""
    for module in ("grpc", "grpc_status"):
        pytest.importorskip(module, reason="Spark Connect needs pyspark[connect]: grpcio and grpcio-status")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", SERVER, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield f"sc://127.0.0.1:{port}"
        process.stdin.close()
        process.wait(PATIENCE_SECONDS)


@pytest.mark.soak  # a server, a client, and ten queries
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_all_that_works_over_spark_connect(server: str, stage: Stage) -> None:
    """With a remote server, streams, ingests, calls, named files and feeds work in the session's zone, and our errors come through."""
    stage.put("a.txt", "one", "two")
    times = stage.dst.with_name(f"{stage.dst.name}-times")
    times.mkdir()
    (times / "a.json").write_text('{"t": "2026-07-01T12:00:00"}\n')
    os.utime(times / "a.json", (1, 1))
    done = run_python(CLIENT, server, str(stage.src), str(stage.dst))
    assert done.stdout, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert "did you mean 'rollSize'" in told["refused"]
    assert told["nothing"] is None
    assert stage.lines() == {"one": 1, "two": 1}
    assert told["ingest"] == [[2, 2, 0], ["ONE", "TWO"]]
    assert told["by name"] == 2
    assert told["calls"] == ["oneone", "twotwo"]
    assert told["batch"] == ["aa", "bb"]
    assert told["files"] == ["one", "two"]
    assert told["fed"] == ["fed"]
    assert told["drain"].startswith("[PST-101] async_map with drain needs a session with its driver")
    assert "a.txt" in told["bad"]
    assert told["bad"].startswith("[PST-2")
    assert told["seconds"] == ["1782887400"], "12:00 in Kolkata: a registered session's zone is known over Connect, too"
    assert "Exception ignored" not in done.stderr


def remote() -> Any:
    """Return an object that looks like a Spark Connect session."""
    return type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()


CALLS: dict[str, Callable[[], object]] = {
    "serve_metrics": lambda: penstock.serve_metrics(remote()),
    "call_counts": lambda: penstock.call_counts(remote()),
}


@pytest.mark.parametrize("what", CALLS)
def test_what_needs_the_driver_says_so(what: str) -> None:
    """A call that needs a local driver refuses a Spark Connect session, and says what to do instead."""
    with pytest.raises(
        OptionError, match=rf"^\[PST-101\] {what} needs a session with its driver .*; (serve|the counts)"
    ):
        CALLS[what]()
