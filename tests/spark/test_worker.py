"""How much memory a Python worker of Spark keeps after its task has ended; without Spark."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock.query.batch import Task
from penstock.session import worker
from penstock.source.cursor import FileVersion, Split
from penstock.spark.datasource import PenstockDataSource, SplitsPartition
from penstock.storage import LocalStorage
from tests.support.blocks import FEW_PAGES, only_where_it_can_be_said

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

MB = 1 << 20
STRUCT = StructType([StructField("id", LongType()), StructField("text", StringType())])
ROWS = 20_000
BATCHES = 12
BEGUN = """
import sys
sys.path[:] = sys.argv[1:]
from penstock.session import worker
from tests.support.blocks import new_pages

worker.settle_writer()
print(new_pages())
"""
KEPT_MAX = 50  # megabytes; tasks like these keep 80 if nothing is given back


def resident() -> int:
    """Return how many bytes of memory this process uses."""
    return int(psutil.Process().memory_info().rss)


def settled() -> int:
    """Return how many bytes this process uses once the memory of earlier tests is given back."""
    worker.KeptMemory(worked_seconds=0).give_back()
    return resident()


def grown(before: int) -> int:
    """Return by how many megabytes the process has grown."""
    return (resident() - before) // MB


def texts() -> list[str]:
    """Return strings that are hard to compress."""
    chance = random.Random(3)  # noqa: S311 - test data
    return [chance.randbytes(60).hex() for _ in range(ROWS)]


def batches() -> Iterator[pa.RecordBatch]:
    """Yield rows of 90 MB that are all in memory at once, as the rows of several parts may be."""
    values, ids = texts(), range(ROWS)
    yield from [
        pa.record_batch({"id": pa.array(ids, pa.int64()), "text": pa.array(values)}) for _ in range(BATCHES * 3)
    ]


def whole(path: Path) -> SplitsPartition:
    """Return a task that reads a whole file."""
    entry = LocalStorage().stat(str(path))
    file = FileVersion(path.name, entry.size, entry.modified_ns, entry.identity)
    return SplitsPartition((Split(file, 0, entry.size),), "UTC")


@pytest.fixture(autouse=True)
def _worked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each task count as one that has worked for long."""
    monkeypatch.setattr(worker, "KEPT", worker.KeptMemory(worked_seconds=0))


def test_a_writer_that_waits_holds_what_its_task_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that wrote Parquet gives back the memory of its pages, since Spark keeps its process but may use another one next time."""
    monkeypatch.setattr("penstock.session.task.task_batch", lambda: Task("q", 0, 0))
    monkeypatch.setattr("penstock.sink.keeper._start", lambda _: 0)
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id": "q"}')
    (checkpoint / "offsets" / "0").write_text("v1\n{}\n{}")
    options = {"path": str(tmp_path / "out"), "format": "parquet", "checkpointLocation": str(checkpoint)}
    writer = PenstockDataSource(options).streamWriter(STRUCT, overwrite=False)
    writer.__getstate__()
    writer.write(iter(()))  # imports
    before = settled()
    writer.write(batches())
    assert grown(before) < KEPT_MAX


def test_a_reader_that_waits_holds_what_its_task_took(tmp_path: Path) -> None:
    """A task that read JSON gives back the memory of its columns."""
    path = tmp_path / "in" / "a.json"
    path.parent.mkdir()
    lines = "".join(f'{{"id": {number}, "text": "{text}"}}\n' for number, text in enumerate(texts()))
    path.write_text(lines * BATCHES)
    first = path.with_name("first.json")
    first.write_text(lines[: lines.index("\n") + 1])
    reader = PenstockDataSource({"path": str(path.parent), "format": "json"}).streamReader(STRUCT)
    list(reader.read(whole(first)))  # imports
    before = settled()
    rows = sum(batch.num_rows for batch in reader.read(whole(path)))
    assert rows == ROWS * BATCHES
    assert grown(before) < KEPT_MAX


@only_where_it_can_be_said
def test_blocks_take_the_memory_of_those_before() -> None:
    """A writer puts its next blocks where the last ones were, and not into new memory that the machine has to clear page by page."""
    program = [sys.executable, "-c", BEGUN, *sys.path]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert int(done.stdout) < FEW_PAGES
