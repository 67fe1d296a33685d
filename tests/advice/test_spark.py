"""The advice of errors of calls, inputs and checkpoints is followed, with Spark: the stream goes on, every line once."""

from __future__ import annotations

import re
import shutil
import sys
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.errors import (
    CallFailed,
    CheckpointMismatch,
    DependencyError,
    OptionError,
    PenstockError,
    StorageError,
    TemplateError,
    UsageError,
    of,
)
from penstock.storage import _hdfs_native, locate
from tests.support.advice import Lines
from tests.support.advice import penstock as command
from tests.support.follows import follows


@pytest.fixture
def place(tmp_path: Path) -> Lines:
    """Return an input and an output."""
    return Lines(tmp_path)


@follows("PST-000")
def test_transform_that_fails(spark: SparkSession, place: Lines) -> None:
    """`PenstockError`: once the failing transform is fixed, the same command has every row once."""

    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows:
            msg = "not today"
            raise ValueError(msg)
        return batch

    place.put("a", "1", "2")
    with pytest.raises(PenstockError, match="not today; mend it, and run the same command again") as caught:
        penstock.ingest(spark, place.src, place.dst, transform=fail)
    assert caught.value.code == "PST-000"
    assert not place.lines()
    penstock.ingest(spark, place.src, place.dst, transform=lambda batch: batch)
    assert place.is_whole()


@follows("PST-100")
def test_directory_that_is_no_output(spark: SparkSession, place: Lines) -> None:
    """`UsageError`: with the directory that was written, the command works."""
    place.put("a", "1")
    penstock.ingest(spark, place.src, place.dst)
    status, said = command("status", place.src)
    assert status == 2
    assert f"[{UsageError.code}]" in said
    assert "name the directory that was written" in " ".join(said.split())
    assert command("status", place.dst)[0] == 0


@follows("PST-101")
def test_option_that_is_misspelt(spark: SparkSession, place: Lines) -> None:
    """`OptionError`: the option that the message names works."""
    place.put("a", "1", "2", "3")
    with pytest.raises(OptionError) as caught:
        penstock.ingest(spark, place.src, place.dst, sink={"rolRows": 1})
    meant = re.search(r"did you mean '(\w+)'", caught.value.message)
    assert meant is not None
    penstock.ingest(spark, place.src, place.dst, sink={meant[1]: 1})
    assert place.is_whole()
    assert len(place.files()) == 3


@follows("PST-101")
def test_data_that_the_format_cannot_hold(spark: SparkSession, place: Lines) -> None:
    """`OptionError` of a running query: with a column cast as the message says, the same checkpoint goes on."""
    place.put("a", "1", "2")
    lines = spark.readStream.format("penstock").load(str(place.src))

    def run(*columns: str) -> None:
        writer = lines.selectExpr(*columns).writeStream.format("penstock").option("format", "json")
        writer = writer.option("checkpointLocation", str(place.root / "checkpoint")).trigger(availableNow=True)
        writer.start(str(place.dst)).awaitTermination()

    with pytest.raises(Exception, match="PST-101") as caught:
        run("value", "array() AS x")
    error = of(caught.value)
    assert isinstance(error, OptionError)
    cast = re.search(r"such as (array<\w+>)", error.message)
    assert cast is not None
    run("value", f"CAST(array() AS {cast[1]}) AS x")
    assert place.lines() == {'{"value":"1","x":[]}': 1, '{"value":"2","x":[]}': 1}


@follows("PST-102")
def test_template_of_no_column(spark: SparkSession, place: Lines) -> None:
    """`TemplateError`: a column that the message names works."""
    place.put("a", "1", "2")
    with pytest.raises(TemplateError) as caught:
        penstock.ingest(spark, place.src, place.dst, sink={"bucketBy": "v={val}"})
    known = re.search(r"the data has (\w+)", caught.value.message)
    assert known is not None
    penstock.ingest(spark, place.src, place.dst, sink={"bucketBy": f"v={{{known[1]}}}"})
    assert place.is_whole()


@follows("PST-102")
def test_value_too_long_for_a_directory(spark: SparkSession, place: Lines) -> None:
    """`TemplateError` of a running query: with a shorter bucket the same checkpoint goes on, and the failed batch is there once."""
    place.put("a", "1", "2")
    penstock.ingest(spark, place.src, place.dst, sink={"bucketBy": "{value}"})
    place.put("b", "3", "x" * 300)
    with pytest.raises(TemplateError, match="bucket by something shorter"):
        penstock.ingest(spark, place.src, place.dst, sink={"bucketBy": "{value}"})

    def shortened(batch: pa.RecordBatch) -> pa.RecordBatch:
        bucket = pc.utf8_slice_codeunits(batch.column("value"), 0, 1)
        return pa.RecordBatch.from_arrays([batch.column("value"), bucket], names=["value", "bucket"])

    sink = {"bucketBy": "{bucket}", "dropBucketColumns": True}
    penstock.ingest(spark, place.src, place.dst, sink=sink, transform=shortened)
    assert place.is_whole()


@pytest.mark.slow
@follows("PST-103")
def test_library_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """`DependencyError`: the command in the message installs the missing libraries."""
    with monkeypatch.context() as patched:
        for name in [name for name in sys.modules if name.partition(".")[0] == "hdfs_native"]:
            patched.delitem(sys.modules, name)
        patched.setitem(sys.modules, "hdfs_native", None)
        with pytest.raises(DependencyError) as caught:
            locate("hdfs://127.0.0.1:1/x")[0].stat("/x")
    command_line = re.search(r"pip install '?penstock\[(\w+)\]'?", caught.value.message)
    assert command_line is not None
    installed = [each.replace('"', "'") for each in requires("penstock") or []]
    assert [each for each in installed if "hdfs-native" in each and f"extra == '{command_line[1]}'" in each]
    monkeypatch.setattr(_hdfs_native, "_CONTACT_TRIES", {"dfs.client.failover.max.attempts": "1"})
    with pytest.raises(StorageError, match="no NameNode"):
        locate("hdfs://127.0.0.1:1/x")[0].stat("/x")


@pytest.mark.parametrize("remedy", ["that checkpoint", "restored", "another DST"])
@follows("PST-302")
def test_checkpoint_that_is_lost(spark: SparkSession, place: Lines, remedy: str) -> None:
    """`CheckpointMismatch` of an ingest: each of the three ways in its message leaves every line there once."""
    place.put("a", "1", "2")
    checkpoint, moved = place.root / "checkpoint", place.root / "moved"
    penstock.ingest(spark, place.src, place.dst, checkpoint=checkpoint)
    place.put("b", "3")
    if remedy == "restored":
        checkpoint.rename(moved)
    with pytest.raises(CheckpointMismatch, match="go on with that checkpoint, restore it, or choose another DST"):
        penstock.ingest(spark, place.src, place.dst, checkpoint=None if remedy != "restored" else checkpoint)
    if remedy == "restored":
        shutil.rmtree(checkpoint, ignore_errors=True)
        moved.rename(checkpoint)
    if remedy == "another DST":
        place.dst = place.root / "other"
        checkpoint = place.root / "another"
    penstock.ingest(spark, place.src, place.dst, checkpoint=checkpoint)
    assert place.is_whole()


@follows("PST-500")
def test_output_that_cannot_be_made(spark: SparkSession, place: Lines) -> None:
    """`StorageError`: the message names the cause; an output that can be created has every line once."""
    place.put("a", "1", "2")
    with pytest.raises(StorageError, match=r"'/sys/[^']*': \w+") as caught:
        penstock.ingest(spark, place.src, "/sys/penstock-out", checkpoint=place.root / "checkpoint")
    assert type(caught.value) is StorageError
    assert isinstance(caught.value.__cause__, OSError)
    penstock.ingest(spark, place.src, place.dst, checkpoint=place.root / "checkpoint")
    assert place.is_whole()


@pytest.mark.parametrize("remedy", ["mended", "reported"])
@follows("PST-600")
def test_call_that_fails(spark: SparkSession, place: Lines, remedy: str) -> None:
    """`CallFailed`: once the service is fixed, or with its failures reported, the same checkpoint goes on, every row once."""
    place.put("a", "1", "2", "3")

    async def broken(row: Any) -> dict[str, str]:
        if row.value == "2":
            msg = "no such user"
            raise LookupError(msg)
        return {"out": row.value}

    async def mended(row: Any) -> dict[str, str]:
        return {"out": row.value}

    sink = {"format": "json"}
    with pytest.raises(CallFailed, match="no such user"):
        penstock.ingest(
            spark, place.src, place.dst, sink=sink, transform=penstock.AsyncMap(broken, schema="out string")
        )
    calls = {
        "mended": penstock.AsyncMap(mended, schema="out string"),
        "reported": penstock.AsyncMap(broken, schema="out string", on_error="column"),
    }
    done = penstock.ingest(spark, place.src, place.dst, sink=sink, transform=calls[remedy])
    assert done.rows == 3
    values = [re.search(r'"value":"(\d)"', line) for line in place.lines().elements()]
    assert sorted(match[1] for match in values if match) == ["1", "2", "3"]


class Client(penstock.AsyncFunction):
    """A client of a service that is up when its file exists."""

    def __init__(self, service: Path) -> None:
        self.service = str(service)

    async def open(self, _: Any) -> None:
        """Connect."""
        with open(self.service):  # noqa: ASYNC230 - a connection, to a test
            pass

    async def invoke(self, row: Any, _: Any) -> dict[str, str]:
        """Answer."""
        return {"out": row.value}


@follows("PST-600")
def test_service_that_is_away(spark: SparkSession, place: Lines) -> None:
    """`CallFailed` of a function that cannot be opened: once its service is up, the same command has every row once."""
    place.put("a", "1", "2")
    function = penstock.AsyncMap(Client(place.root / "service"), schema="out string", keep_input=False)
    with pytest.raises(CallFailed, match="mend it, or what it connects to, and start again"):
        penstock.ingest(spark, place.src, place.dst, transform=function)
    (place.root / "service").touch()
    penstock.ingest(spark, place.src, place.dst, transform=function)
    assert place.is_whole()
