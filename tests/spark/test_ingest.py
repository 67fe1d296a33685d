"""`penstock.ingest`: source, transform and sink in one stage, on a real Spark."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.errors import (
    BadRecord,
    CheckpointMismatch,
    DamagedState,
    Fenced,
    NoSpace,
    OptionError,
    PenstockError,
    TemplateError,
    of,
)
from penstock.ingestion.earlier import Earlier
from penstock.session import functions
from penstock.verify import verify
from tests.support.follows import follows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.ingestion.ingested import Ingested
    from tests.support.stage import Stage

DDL = "id bigint, ts timestamp, country string"


def put_json(stage: Stage, name: str, ids: range) -> None:
    """Write JSON lines."""
    rows = ({"id": i, "ts": f"2026-01-{1 + i % 3:02}T12:00:00Z", "country": "de" if i % 2 else None} for i in ids)
    stage.put(name, *(json.dumps(row) for row in rows))


def run(spark: SparkSession, stage: Stage, **options: Any) -> Ingested:
    """Ingest the stage's input."""
    return penstock.ingest(spark, str(stage.src), str(stage.dst), **options)


def upper(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A transform that changes rows and schema."""
    return pa.RecordBatch.from_arrays(
        [pc.multiply(batch.column("id"), 2), pc.utf8_upper(batch.column("country"))], names=["twice", "country"]
    )


def test_json_to_bucketed_parquet(spark: SparkSession, stage: Stage) -> None:
    """JSON becomes Parquet by day; pyarrow, DuckDB and polars read it with a plain glob, and agree."""
    for n in range(4):
        put_json(stage, f"f{n}.json", range(n * 100, n * 100 + 100))
    sink = {"format": "parquet", "bucketBy": "dt={ts:%Y-%m-%d}"}
    done = run(spark, stage, source={"format": "json", "schema": DDL}, sink=sink)
    assert (done.rows, done.input_files, done.left_files, done.open_rows) == (400, 4, 0, 0)
    assert {path.parent.name for path in stage.files()} == {f"dt=2026-01-0{d}" for d in (1, 2, 3)}
    glob = f"{stage.dst}/dt=*/*.parquet"
    assert sorted(pl.scan_parquet(glob, hive_partitioning=False).collect()["id"].to_list()) == list(range(400))
    counts = duckdb.execute(f"select count(*), count(distinct id), count(country) from '{glob}'").fetchall()
    assert counts == [(400, 400, 200)]
    assert sum(pq.read_table(path, partitioning=None).num_rows for path in stage.files()) == 400


def test_driver_that_was_killed_in_its_first_write(spark: SparkSession, stage: Stage) -> None:
    """A killed driver left a first write in Spark's offset log, which holds no batch yet: the next run still starts its first batch."""
    stage.put("a", "1")
    unfinished = stage.dst / "_penstock/checkpoint/offsets/.0.6f3a1c0e-7f3b-4f9a-9a3b-1b5cf6b0a3e1.tmp"
    unfinished.parent.mkdir(parents=True)
    unfinished.touch()
    assert run(spark, stage).rows == 1
    assert stage.lines() == {"1": 1}


def test_spark_makes_nothing_that_a_checkpoint_begins_with(spark: SparkSession, stage: Stage) -> None:
    """Spark wrote the name of the query and made the directories of its logs, and started a process four times to set permissions."""
    stage.put("a", "1")
    done = run(spark, stage, transform=lambda batch: batch)
    checkpoint = stage.dst / "_penstock/checkpoint"
    assert json.loads((checkpoint / "metadata").read_text()) == {"id": done.query}
    assert not (checkpoint / ".metadata.crc").exists()
    assert (checkpoint / "offsets/0").exists(), "the query of Spark went on under this name"
    stage.put("b", "2")
    assert run(spark, stage, transform=lambda batch: batch).query == done.query


def test_same_call_again_takes_only_what_is_new(spark: SparkSession, stage: Stage) -> None:
    """A second call without new files changes nothing; with new files it takes only those."""
    stage.put("a", "1")
    run(spark, stage)
    before = stage.files()
    assert run(spark, stage).rows == 1
    assert stage.files() == before
    stage.put("b", "2")
    assert run(spark, stage).rows == 2
    assert stage.lines() == {"1": 1, "2": 1}


@follows("PST-302")
def test_other_input_under_the_checkpoint_of_one_is_refused(spark: SparkSession, stage: Stage) -> None:
    """A cursor says nothing about another directory, whose older files would be skipped; a renamed directory goes on."""
    stage.put("a", "1")
    run(spark, stage)
    other = stage.root / "other"
    other.mkdir()
    (other / "a").write_bytes(b"2\n")
    shutil.copystat(stage.src / "a", other / "a")
    with pytest.raises(CheckpointMismatch, match="belongs to an ingest from .*in.*a separate checkpoint"):
        penstock.ingest(spark, other, stage.dst)
    penstock.ingest(spark, other, stage.dst, checkpoint=stage.root / "checkpoint-of-other")
    renamed = stage.src.rename(stage.root / "renamed")
    (renamed / "b").write_bytes(b"3\n")
    assert penstock.ingest(spark, renamed, stage.dst).rows == 2
    assert stage.lines() == {"1": 1, "2": 1, "3": 1}


@pytest.mark.parametrize(
    ("log", "change", "found"),
    [
        ("offsets/1", "cut", "offsets/1' is damaged or missing: .*restore the checkpoint from a copy"),
        ("commits/1", "emptied", "Spark cannot read the checkpoint.*Failed to read log.*restore it from a copy"),
        ("offsets/0", "gone", "Spark cannot read the checkpoint.*batch 0.*restore it from a copy"),
    ],
)
@follows("PST-400")
def test_damaged_checkpoint_is_told(spark: SparkSession, stage: Stage, log: str, change: str, found: str) -> None:
    """A damaged checkpoint file, which holds our plans, is `DamagedState`, also where only Spark has seen it; nothing is changed."""
    query = {"queryName": "orders"}  # who names a query has one, and Spark reads its checkpoint
    for name in ("a", "b", "c"):
        stage.put(name, name)
        if name != "c":
            run(spark, stage, sink=query)
    path = stage.dst / "_penstock" / "checkpoint" / log
    data = path.read_bytes()
    path.unlink()
    if change != "gone":
        path.write_bytes(b"" if change == "emptied" else data[:-3])
    with pytest.raises(DamagedState, match=found):
        run(spark, stage, sink=query)
    assert stage.lines() == {"a": 1, "b": 1}
    path.write_bytes(data)
    run(spark, stage, sink=query)
    assert stage.lines() == {"a": 1, "b": 1, "c": 1}


@follows("PST-302")
def test_new_checkpoint_where_the_input_was_ingested_is_refused(spark: SparkSession, stage: Stage) -> None:
    """Under a new checkpoint, also after the old one was lost, files that were read would be doubled and are refused; others are taken."""
    stage.put("a", "1")
    run(spark, stage)
    with pytest.raises(
        CheckpointMismatch, match="has what was ingested.*would be there twice; go on with that checkpoint"
    ):
        run(spark, stage, checkpoint=stage.root / "other")
    run(spark, stage, checkpoint=stage.root / "other", source={"startingFrom": "latest"})
    (stage.src / "a").unlink()
    stage.put("b", "2")
    run(spark, stage, checkpoint=stage.root / "new-files")
    shutil.rmtree(stage.root / "new-files")
    with pytest.raises(CheckpointMismatch):
        run(spark, stage, checkpoint=stage.root / "new-files")
    assert stage.lines() == {"1": 1, "2": 1}


@follows("PST-302")
def test_two_first_runs_at_one_moment(spark: SparkSession, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """B ingests everything after A has found no rows of anybody: the first batch of A is refused, as it would be before the run."""
    stage.put("a", "1")
    check = Earlier.check

    def then_b(self: Earlier) -> None:
        check(self)
        monkeypatch.setattr(Earlier, "check", check)
        run(spark, stage, checkpoint=stage.root / "b")

    monkeypatch.setattr(Earlier, "check", then_b)
    with pytest.raises(
        CheckpointMismatch, match="has what was ingested.*would be there twice; go on with that checkpoint"
    ):
        run(spark, stage, checkpoint=stage.root / "a")
    with pytest.raises(CheckpointMismatch, match="there twice"):
        run(spark, stage, checkpoint=stage.root / "a")
    assert stage.lines() == {"1": 1}


@pytest.mark.parametrize("times", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_deleted_commit_is_replayed_without_a_trace(spark: SparkSession, stage: Stage, times: int) -> None:
    """checkpoint/commits/<last> is deleted and new files land, once and twice in a row: the same call loses and doubles nothing."""
    for i in range(4):
        stage.put(f"f{i}", f"line {i}")
    run(spark, stage, source={"maxFilesPerTrigger": 2})
    for round_ in range(times):
        commits = stage.dst / "_penstock" / "checkpoint" / "commits"
        last = max(commits.glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)
        stage.put(f"new{round_}", f"new {round_}")
        run(spark, stage, source={"maxFilesPerTrigger": 2})
    assert stage.lines() == {f"line {i}": 1 for i in range(4)} | {f"new {r}": 1 for r in range(times)}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a directory on a disk of three megabytes. Mounting the disk takes root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["/bin/mount", "-t", "tmpfs", "-o", "size=3m", "none", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system of its own can be mounted: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["/bin/umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("checkpoint", [pytest.param(None, marks=pytest.mark.soak), "elsewhere"])
def test_disk_that_is_full(spark: SparkSession, stage: Stage, small_disk: Path, checkpoint: str | None) -> None:
    """A full disk fails the whole batch, whether Spark's checkpoint is on it or not; once there is space the same call goes on."""
    stage.dst = small_disk / "out"
    for i in range(8):
        stage.put(f"f{i}", *(f"{i} {j:05} {'x' * 90}" for j in range(2000)))
    options: dict[str, Any] = {"source": {"maxFilesPerTrigger": 1}, "sink": {"rollSize": "300k"}}
    options["checkpoint"] = checkpoint and str(stage.root / checkpoint)
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 2_000_000)
    with pytest.raises(NoSpace if checkpoint else PenstockError, match=r"No space left|full|space"):
        run(spark, stage, **options)
    visible = stage.lines()
    assert set(visible.values()) <= {1}
    ballast.unlink()
    run(spark, stage, **options)
    assert stage.lines() == {f"{i} {j:05} {'x' * 90}": 1 for i in range(8) for j in range(2000)}


def test_three_hundred_files_under_odd_names(spark: SparkSession, stage: Stage) -> None:
    """HZ-25: names with blanks, %, #, ?, quotes, other scripts, a leading dash, bytes that are not UTF-8: each line is there once."""
    odd = [
        " ",
        "%20",
        "#",
        "?",
        "'",
        '"',
        "ü",
        "\U0001f600",
        "-",
        "=",
        ":",
        "a\nb",
        "{x}",
        "*",
        "\\",
        "\udcff",
        "\u2028",
    ]
    names = [f"{odd[i % len(odd)]}{i}" for i in range(300)]
    for name in names:
        stage.put(name, f"line of {names.index(name)}")
    run(spark, stage)
    assert stage.lines() == {f"line of {i}": 1 for i in range(300)}


def test_transform_function(spark: SparkSession, stage: Stage) -> None:
    """A function on record batches, defined in this module, runs on the executors; its schema becomes the output's."""
    put_json(stage, "a.json", range(10))
    run(spark, stage, source={"format": "json", "schema": DDL}, sink={"format": "json"}, transform=lambda b: upper(b))
    rows = [json.loads(line) for line in stage.lines()]
    assert sorted(row["twice"] for row in rows) == list(range(0, 20, 2))
    assert {row.get("country") for row in rows} == {"DE", None}


def test_transform_on_polars(spark: SparkSession, stage: Stage) -> None:
    """A transform annotated with a polars DataFrame receives one; it may drop rows."""

    def odd(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.filter(pl.col("id") % 2 == 1).select("id", pl.col("country").alias("c"))

    put_json(stage, "a.json", range(10))
    done = run(spark, stage, source={"format": "json", "schema": DDL}, sink={"format": "csv"}, transform=odd)
    assert stage.lines() == {f"{i},de": 1 for i in (1, 3, 5, 7, 9)}
    assert done.rows == 5


def test_transform_that_is_not_one(spark: SparkSession, stage: Stage) -> None:
    """A transform that cannot be found, or that returns something else, is refused before anything starts."""
    stage.put("a", "1")
    for transform, message in (
        ("no.such:thing", "cannot be loaded"),
        ("", "cannot be loaded"),
        ("__main__:upper", "cannot be loaded: .* put it in a module of its own"),
        (lambda batch: 7, "expected a pyarrow.RecordBatch"),
        (lambda batch: pa.Table.from_batches([batch]), "returned Table; expected a pyarrow.RecordBatch"),
        (lambda batch: batch.nothing, "fails on an empty batch.*AttributeError"),
        (lambda batch: batch.column("value")[0], "fails on an empty batch.*IndexError"),
    ):
        with pytest.raises(OptionError, match=message):
            run(spark, stage, transform=transform)
    assert not stage.dst.exists()


def test_transform_of_a_module_that_workers_have_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pickling passes on only the name of a function in a module next to a script; workers cannot import it. The error says what to do."""
    (tmp_path / "beside_a_script.py").write_text("def keep(batch):\n    return batch\n")
    monkeypatch.syspath_prepend(tmp_path)
    text = functions.packed(importlib.import_module("beside_a_script").keep)
    assert functions.unpacked(text).__name__ == "keep"
    monkeypatch.undo()  # as in a worker
    monkeypatch.delitem(sys.modules, "beside_a_script")
    with pytest.raises(OptionError, match="needs 'beside_a_script', which Spark's workers cannot import: .*PYTHONPATH"):
        functions.unpacked(text)


def test_transform_that_fails_is_told(spark: SparkSession, stage: Stage) -> None:
    """An exception of a transform becomes one line of an error, and the same call goes on with the fixed transform."""

    def broken(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows:
            msg = "no such\ncountry"
            raise ValueError(msg)
        return batch

    stage.put("a", "1")
    with pytest.raises(
        PenstockError, match=r"the transform failed on a batch of 1 rows: ValueError: no such country;.*again"
    ):
        run(spark, stage, transform=broken)
    run(spark, stage, transform=lambda batch: batch)
    assert stage.lines() == {"1": 1}


@pytest.mark.parametrize(
    "compression", ["gzip", *(pytest.param(name, marks=pytest.mark.soak) for name in ("none", "zstd"))]
)
def test_csv_to_json_to_parquet_and_back(spark: SparkSession, stage: Stage, compression: str) -> None:
    """Rows pass through every format and compression unchanged."""
    stage.put("a.csv", "id,name", *(f'{i},"n ""{i}"", x"' for i in range(50)))
    schema = "id bigint, name string"
    steps: list[tuple[dict[str, Any], str]] = [
        ({"format": "csv", "header": True}, "json"),
        ({"format": "json"}, "parquet"),
        ({"format": "parquet"}, "csv"),
        ({"format": "csv"}, "json"),
    ]
    for source, target in steps:
        settings = {"format": target} | ({"compression": compression} if target != "parquet" else {})
        run(spark, stage, source=source | {"schema": schema}, sink=settings)
        stage.src, stage.dst = stage.dst, stage.root / f"{target}{steps.index((source, target))}"
    rows = [json.loads(line) for path in stage_files(stage) for line in read_text(path).splitlines()]
    assert sorted((row["id"], row["name"]) for row in rows) == [(i, f'n "{i}", x') for i in range(50)]


def stage_files(stage: Stage) -> list[str]:
    """Return the visible files that are now the input."""
    return [str(path) for path in stage.src.iterdir() if path.is_file()]


def read_text(path: str) -> str:
    """Return a text file's contents, decompressed according to its name."""
    with pa.input_stream(path, compression="detect") as stream:
        text: str = stream.read().decode()
    return text


@follows("PST-201")
def test_bad_record_is_named_and_mended(spark: SparkSession, stage: Stage) -> None:
    """A malformed record fails the batch with file and offset, and nothing is visible; once it is fixed, the same call loses nothing."""
    put_json(stage, "a.json", range(5))
    stage.put("b.json", '{"id": 7}', '{"id": "x"', '{"id": 9}')
    options = {"source": {"format": "json", "schema": DDL}, "sink": {"format": "json"}}
    with pytest.raises(BadRecord, match=r"b\.json', byte 10") as raised:
        run(spark, stage, **options)
    assert "Traceback" not in raised.value.message
    assert stage.files() == []
    stage.put("b.json", '{"id": 7}', '{"id": 8}', '{"id": 9}')
    done = run(spark, stage, **options)
    assert (done.rows, done.input_files) == (8, 2)
    assert sorted(json.loads(line)["id"] for line in stage.lines()) == [0, 1, 2, 3, 4, 7, 8, 9]


@pytest.mark.parametrize("change", ["delete", "grow"])
@follows("PST-203")
def test_batch_that_was_never_committed_is_planned_anew_when_its_files_changed(
    spark: SparkSession, stage: Stage, change: str
) -> None:
    """If a planned file vanished or grew before its batch was committed, the same command still goes on."""
    stage.put("a", "1")
    stage.put("b", "2")
    stage.put("bad.json", "x")
    options = {"source": {"format": "json", "schema": "value string"}, "sink": {"format": "json"}}
    with pytest.raises(BadRecord):
        run(spark, stage, **options)
    for name in ("a", "b", "bad.json"):
        stage.put(name, '{"value": "ok"}')
    if change == "delete":
        (stage.src / "a").unlink()
    run(spark, stage, **options)
    assert stage.lines() == {'{"value":"ok"}': 2 if change == "delete" else 3}


def test_bad_record_mended_in_place(spark: SparkSession, stage: Stage) -> None:
    """If a record is fixed without changing its file's size and time, the planned batch goes on and nothing is lost."""
    stage.put("a.json", '{"id": 1}', '{"id": x}')
    path = stage.src / "a.json"
    info = path.stat()
    options = {"source": {"format": "json", "schema": DDL}, "sink": {"format": "json"}}
    with pytest.raises(BadRecord):
        run(spark, stage, **options)
    with path.open("r+") as file:
        file.write('{"id": 1}\n{"id": 2}\n')
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    run(spark, stage, **options)
    assert stage.lines() == {'{"id":1}': 1, '{"id":2}': 1}


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"source": {"form": "json"}}, OptionError, "did you mean 'format'"),
        ({"source": {"format": "json"}}, OptionError, "needs a schema"),
        ({"source": {"format": "json", "schema": "id bigfoot"}}, OptionError, "'bigfoot' is not a type"),
        ({"source": {"format": "json", "schema": ""}}, OptionError, "no column to read"),
        ({"source": {"format": "json", "schema": 5}}, OptionError, "schema is a int"),
        ({"source": {"path": "/etc"}}, OptionError, "takes that from src and dst"),
        ({"source": {"TASKS": 1}}, OptionError, "takes that from the session's cores"),
        (
            {"source": {"emit": "files", "metadataColumn": "m"}, "sink": {"format": "json"}},
            OptionError,
            "metadataColumn is about the contents of files, found emit=files",
        ),
        ({"source": {"metadataColumn": "value"}, "sink": {"format": "json"}}, OptionError, "several columns"),
        ({"sink": {"path": "/elsewhere"}}, OptionError, "takes that from src and dst"),
        ({"sink": {"checkpointLocation": "/elsewhere"}}, OptionError, "takes that from checkpoint"),
        ({"sink": {"rollRows": 1, "rollrows": 2}}, OptionError, "rollRows is given twice"),
        ({"checkpoint": ""}, OptionError, "checkpoint is empty"),
        ({"sink": {"rollSize": "-5"}}, OptionError, "rollSize='-5'"),
        ({"sink": {"format": "xml"}}, OptionError, "format='xml'"),
        ({"sink": {"bucketBy": "{nope}"}}, TemplateError, "no column 'nope'"),
        ({"sink": {"compression": "snappy"}}, OptionError, "for format=parquet"),
        ({"sink": {"format": "parquet", "growing": True, "fileName": "a.parquet"}}, OptionError, "growing"),
    ],
)
def test_bad_calls_are_refused_at_once(
    spark: SparkSession, stage: Stage, options: dict[str, Any], kind: type[PenstockError], message: str
) -> None:
    """An impossible call is refused before a query starts, with the value found and the values expected."""
    stage.put("a", "1")
    with pytest.raises(kind, match=message):
        run(spark, stage, **options)
    assert not stage.dst.exists()


def test_output_inside_the_input_is_refused(spark: SparkSession, stage: Stage) -> None:
    """An output below the input, the input below the output, and a missing input are refused."""
    stage.put("a", "1")
    (stage.root / "link").symlink_to(stage.src)
    outputs = stage.src / "out", stage.src, stage.root, stage.root / "link" / "out"
    for dst in outputs:
        with pytest.raises(OptionError, match="lies in"):
            penstock.ingest(spark, stage.src, dst)
    with pytest.raises(OptionError, match="checkpoint=.* lies in SRC"):
        penstock.ingest(spark, stage.src, stage.dst, checkpoint=stage.src / "checkpoint")
    (stage.root / "file").touch()
    with pytest.raises(OptionError, match="is a file; expected a directory"):
        penstock.ingest(spark, stage.src, stage.root / "file")
    with pytest.raises(OptionError, match="does not exist"):
        penstock.ingest(spark, str(stage.root / "missing"), str(stage.dst))


def test_progress_is_reported(spark: SparkSession, stage: Stage) -> None:
    """The callback receives the progress, and at last that everything is done."""
    for i in range(6):
        stage.put(f"f{i}", "x" * 100)
    heard: list[Ingested] = []
    run(spark, stage, source={"maxFilesPerTrigger": 2}, progress=heard.append)
    assert (heard[-1].input_files, heard[-1].input_bytes, heard[-1].rows, heard[-1].batch) == (6, 606, 6, 2)
    assert [h.input_files for h in heard] == sorted(h.input_files for h in heard)


def test_ingest_whose_checkpoint_another_driver_writes_is_fenced(spark: SparkSession, stage: Stage) -> None:
    """Where the other driver plans first, Spark stops this one before our ledger does: that is Fenced, too."""
    offsets = stage.dst / "_penstock" / "checkpoint" / "offsets"

    def other_driver(state: Ingested) -> None:
        if state.rows:
            shutil.copy(offsets / "0", offsets / "1")
            stage.put("b", "2")

    stage.put("a", "1")
    with pytest.raises(Fenced, match="another driver uses the checkpoint .*when that has ended$"):
        run(spark, stage, watch=True, progress=other_driver, sink={"rollBatches": 1})
    assert stage.lines() == {"1": 1}


def test_one_file_and_growing_output(spark: SparkSession, stage: Stage) -> None:
    """A growing output is one file that gains the lines of each run."""
    stage.put("a", "1", "2")
    run(spark, stage, sink={"growing": True, "fileName": "all.log"})
    stage.put("b", "3")
    run(spark, stage, sink={"growing": True, "fileName": "all.log"})
    assert [path.name for path in stage.files()] == ["all.log"]
    assert stage.lines() == {"1": 1, "2": 1, "3": 1}


def test_big_file_is_cut_over_batches(spark: SparkSession, stage: Stage) -> None:
    """A file larger than the byte limit is read in several batches, each line once."""
    stage.put("a", *(f"{i:06} {'x' * 50}" for i in range(5000)))
    done = run(spark, stage, source={"maxBytesPerTrigger": "60k"})
    assert done.batch == 4
    assert set(stage.lines().values()) == {1}
    assert sum(stage.lines().values()) == 5000


def test_file_that_was_cut_is_mended(spark: SparkSession, stage: Stage) -> None:
    """The advice of PST-201 for an ingest works when the bad record is in the last batch of its file: the same command goes on."""
    lines = [f'{{"id": {number}}}' for number in range(1000, 1300)]
    stage.put("big.json", *lines[:-1], "{")
    options: dict[str, Any] = {"source": {"format": "json", "schema": "id bigint", "maxBytesPerTrigger": "1500"}}
    options["sink"] = {"format": "json", "rollBatches": 1}
    for _ in range(2):
        with pytest.raises(BadRecord, match="start again: an ingest then plans the file anew by itself"):
            run(spark, stage, **options)
    assert 200 < len(stage.lines()) < 299
    stage.put("big.json", *lines)
    run(spark, stage, **options)
    assert stage.lines() == {line.replace(" ", ""): 1 for line in lines}


def test_columns_of_directories(spark: SparkSession, stage: Stage) -> None:
    """An ingest, too, reads `dt` from `dt=...` if the schema has it, and `verify` knows where the values come from."""
    for day in ("2026-01-01", "2026-01-02"):
        (stage.src / f"dt={day}").mkdir()
        stage.put(f"dt={day}/a.json", '{"id": 1}', '{"id": 2}')
    options: dict[str, Any] = {"source": {"format": "json", "schema": "id bigint, dt date"}, "sink": {"format": "json"}}
    assert run(spark, stage, **options).rows == 4
    assert stage.lines() == {f'{{"id":{i},"dt":"2026-01-0{day}"}}': 1 for i in (1, 2) for day in (1, 2)}
    assert verify(str(stage.dst), str(stage.src)).ok


def test_what_caused_an_error_of_spark_is_told() -> None:
    """If the abort after a failed commit fails, too, Spark says only "Writing job failed": the ingest gives the commit's error."""

    class Failed(Exception):
        def __init__(self, text: str, cause: Exception | None = None) -> None:
            super().__init__(text)
            self._cause = cause

    error = Failed("[STREAM_FAILED] Writing job failed.", Failed("Writing job failed.", Failed("[PST-503] quota")))
    assert type(of(error)) is NoSpace


@pytest.mark.parametrize("call", [penstock.register, lambda session: penstock.ingest(session, "/in", "/out")])
def test_what_is_no_session_is_told(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, call: Callable[[Any], Any]
) -> None:
    """None, a name or a stopped session in place of a session is one of our errors, not an internal one of Python."""
    for session in (None, "local[2]"):
        with pytest.raises(OptionError, match="expected a session, such as penstock.local_session"):
            call(session)
    monkeypatch.setattr(spark.sparkContext, "_jsc", None)
    with pytest.raises(OptionError, match="the session was stopped; make a new one"):
        call(spark)


def test_what_was_ingested_is_archived_and_verified(spark: SparkSession, stage: Stage) -> None:
    """The end of a run archives the files of its last batch, and so does a later run; `verify` proves the output against the archive."""
    old = stage.root / "archive of what was read"
    source = {"cleanSource": "archive", "sourceArchiveDir": str(old), "maxFilesPerTrigger": "2"}
    for name in ("a b%20.txt", "b.txt", "c.txt"):
        stage.put(name, name, f"{name} again")
    run(spark, stage, source=source)
    assert ([path for path in stage.src.iterdir() if path.name[0] != "_"], len(list(old.glob("*.txt")))) == ([], 3)
    stage.put("b.txt", "another b")
    run(spark, stage, source=source)
    assert len(list(old.glob("*.txt"))) == 4
    assert len(stage.lines()) == 7
    proved = verify(str(stage.dst), str(stage.src))
    assert proved.ok
    assert proved.source is not None
    assert (proved.source.proved, proved.source.files, proved.source.notes) == (True, 4, ())
    (old / "c.txt").write_text("damaged\n")
    assert not verify(str(stage.dst), str(stage.src)).ok
    with pytest.raises(OptionError, match="lie in one another"):
        run(spark, stage, source=source | {"sourceArchiveDir": str(stage.dst / "old")})


def test_what_was_ingested_is_deleted(spark: SparkSession, stage: Stage) -> None:
    """cleanSource=delete leaves no input file, and `verify --source` says that there is nothing to compare with."""
    stage.put("a", "1")
    run(spark, stage, source={"cleanSource": "delete"})
    assert [path.name for path in stage.src.iterdir()] == ["_penstock-readers"]
    assert stage.lines() == {"1": 1}
    answer = verify(str(stage.dst), str(stage.src)).source
    assert answer is not None
    assert (answer.proved, "nothing to compare with" in answer.reason) == (False, True)


def test_growing_files_are_ingested_line_by_line_over_rotations(spark: SparkSession, stage: Stage) -> None:
    """Each run takes the whole lines of logs that are still being written; `verify` proves them, whatever file they are in by now."""
    source = {"follow": "true", "maxBytesPerTrigger": "20"}
    log = stage.src / "app.log"
    log.write_text("".join(f"{n}\n" for n in range(20)) + "ha")
    run(spark, stage, source=source)
    assert stage.lines() == {str(n): 1 for n in range(20)}
    assert verify(str(stage.dst), str(stage.src)).ok
    log.rename(stage.src / "app.log.1")
    with (stage.src / "app.log.1").open("a") as file:
        file.write("lf\n")
    log.write_text("another\n")
    run(spark, stage, source=source)
    shutil.copyfile(log, stage.src / "app.log.2")
    os.truncate(log, 0)
    with log.open("a") as file:
        file.write("anew\n")
    run(spark, stage, source=source)
    assert stage.lines() == {**{str(n): 1 for n in range(20)}, "half": 1, "another": 1, "anew": 1}
    proved = verify(str(stage.dst), str(stage.src))
    assert proved.source is not None
    assert (proved.ok, proved.source.proved, proved.source.files) == (True, True, 3), proved.source
    (stage.src / "app.log.1").unlink()
    assert not verify(str(stage.dst), str(stage.src)).ok
