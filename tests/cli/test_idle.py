"""An ingest that has nothing to do ends without Spark, but only if a Spark run would find the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

import penstock as public
from penstock.ingestion import newer
from penstock.ingestion.call import IngestCall
from penstock.ingestion.ingest import idle
from penstock.ingestion.job import Job
from penstock.ingestion.newer import has_newer
from penstock.storage import LocalStorage
from tests.support.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.ingestion.ingested import Ingested
    from penstock.storage import Entry
    from tests.cli.conftest import Pipeline, Said


def look(query: Pipeline, **source: str) -> Ingested | None:
    """Return the state of an ingest that continues this pipeline if it has nothing to do, and None if Spark has to run."""
    given, sink = query.source | source, {"sinkId": query.query} | query.sink_options
    return idle(IngestCall(str(query.src), str(query.dst), given, sink, checkpoint=str(query.checkpoint)))


def dated(path: Path, seconds: float) -> None:
    """Make a file this many seconds old."""
    os.utime(path, (time.time() - seconds,) * 2)


def a_file_has_come(query: Pipeline) -> None:
    query.put("c", "three")


def a_file_has_changed(query: Pipeline) -> None:
    dated(query.put("b", "another"), 30)


def a_file_is_too_new(query: Pipeline) -> None:
    (query.src / "c").write_text("three\n")


def a_file_is_of_the_future(query: Pipeline) -> None:
    dated(query.put("c", "three"), -4000)


def a_file_is_late(query: Pipeline) -> None:
    dated(query.put("c", "three"), 1e7)


def a_batch_is_in_flight(query: Pipeline) -> None:
    (query.checkpoint / "commits/0").unlink()


def a_batch_is_open(query: Pipeline) -> None:
    query.put("c", "three")
    query.run(finish=False)


def files_are_not_visible(query: Pipeline) -> None:
    """The state after a power cut: the note that everything is visible is gone, so the output has to be examined."""
    (note,) = sorted((query.dst / "_penstock/q").rglob("*.published"))[-1:]
    note.unlink()


def the_output_is_gone(query: Pipeline) -> None:
    query.dst.rename(query.root / "away")
    query.dst.mkdir()
    (query.dst / "_penstock").mkdir()
    (query.root / "away/_penstock/checkpoint-q").rename(query.checkpoint)


def an_offset_is_damaged(query: Pipeline) -> None:
    (query.checkpoint / "offsets/0").write_text("v1\n{}\n{}\n")


def the_checkpoint_is_new(query: Pipeline) -> None:
    query.checkpoint.rename(query.root / "kept")


@pytest.mark.slow
@pytest.mark.parametrize(
    "event",
    [
        a_file_has_come,
        a_file_has_changed,
        a_file_is_too_new,
        a_file_is_of_the_future,
        a_file_is_late,
        a_batch_is_in_flight,
        a_batch_is_open,
        files_are_not_visible,
        the_output_is_gone,
        an_offset_is_damaged,
        the_checkpoint_is_new,
    ],
    ids=lambda event: event.__name__,
)
def test_spark_is_asked_where(pipeline: Callable[..., Pipeline], event: Callable[[Pipeline], None]) -> None:
    """Whatever has happened since the last run: if there is anything to do or to report, Spark runs."""
    query = pipeline(source={"settle": "10s"})
    query.put("a", "one")
    query.put("b", "two")
    assert look(query) is None  # before the first run
    query.run()
    state = look(query)
    assert state is not None
    assert (state.batch, state.rows, state.output_files, state.input_files, state.open_rows) == (0, 2, 1, 2, 0)
    event(query)
    assert look(query) is None


@pytest.mark.parametrize(
    "options",
    [{"cleanSource": "delete"}, {"format": "json", "schema": "note varchar(3)"}],
    ids=["clean", "schema"],
)
def test_what_only_spark_can_do(pipeline: Callable[..., Pipeline], options: dict[str, str]) -> None:
    """Only a Spark run removes files that were read, and only Spark parses some DDL, so Spark runs in these cases."""
    query = pipeline()
    query.put("a", "one")
    query.run()
    assert look(query) is not None
    assert look(query, **options) is None


def test_a_function_that_is_told_what_was_published(pipeline: Callable[..., Pipeline]) -> None:
    """The last call of the function may have failed, and only a start repeats it."""
    query = pipeline()
    query.put("a", "one")
    query.run()
    assert look(query) is not None
    query.sink_options["onPublish"] = "catalogue:register"
    assert look(query) is None


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_input_and_output_that_are_exchanged(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said], dry: list[str]
) -> None:
    """SRC and DST exchanged: each record would be written next to the file it was read from. It is refused, and nothing is created."""
    query = pipeline()
    query.put("a", "one")
    query.run()
    before = os.listdir(query.src)
    said = penstock("ingest", query.dst, query.src, *dry)
    assert (said.status, os.listdir(query.src)) == (2, before)
    assert f"SRC={str(query.dst)!r} has what was ingested from DST={str(query.src)!r}" in said.err
    elsewhere = penstock("ingest", query.dst, query.root / "next", "--dry-run")  # a chain is allowed
    assert elsewhere.status == 0


def test_a_batch_that_was_planned_since_is_seen(pipeline: Callable[..., Pipeline]) -> None:
    """The waiting state is asked of Spark once a second; a batch that began in the meantime is still seen."""
    query = pipeline()
    query.put("a", "one")
    query.run()
    sink = {"sinkId": query.query} | query.sink_options
    job = Job(str(query.src), str(query.dst), {"schema": "value string"} | query.source, sink, str(query.checkpoint))
    job.describe(None, tasks=1)
    assert job.state(waiting=True).waiting
    (query.checkpoint / "commits/0").unlink()
    assert not job.state(waiting=True).waiting


def test_late_files_that_are_noted(pipeline: Callable[..., Pipeline]) -> None:
    """A batch reports a late file once; after that it is no work."""
    query = pipeline()
    query.put("a", "one")
    query.run()
    a_file_is_late(query)
    assert look(query) is None
    query.run()
    state = look(query)
    assert state is not None
    assert state.late_files == 1


@pytest.mark.spark
def test_nothing_new_needs_no_java(spark: SparkSession, tmp_path: Path) -> None:
    """Without Java, the command reports the same about a finished ingest as Spark's run does; it also reads a new file without Java."""
    stage = Stage(tmp_path)
    stage.put("a.json", '{"id":1}', '{"id":2,"x":3}')
    source, sink = {"format": "json", "schema": "id bigint"}, {"format": "parquet"}
    public.ingest(spark, stage.src, stage.dst, source=source, sink=sink)
    again = public.ingest(spark, stage.src, stage.dst, source=source, sink=sink)
    flags = ("--format", "json", "--schema", "id bigint", "--to", "parquet", "--json")
    command = [sys.executable, "-m", "penstock.cli", "ingest", str(stage.src), str(stage.dst), *flags]
    without = os.environ | {"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)}

    def run(*more: str) -> tuple[int, dict[str, Any]]:
        ended = subprocess.run([*command, *more], env=without, capture_output=True, text=True, check=False)
        facts: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
        return ended.returncode, facts

    status, facts = run()
    assert (status, facts["event"], facts["start_seconds"], facts["new"]["rows"]) == (0, "done", 0, 0)
    expected = json.loads(json.dumps(vars(again)))
    assert {name: facts[name] for name in expected} == expected
    stage.put("b.json", '{"id":3}')
    assert run("--master", "local[1]")[0] != 0
    status, facts = run()
    assert (status, facts["event"], facts["start_seconds"], facts["new"]["rows"]) == (0, "done", 0, 1)


def sees(query: Pipeline, **source: str) -> bool:
    """Return the answer of the first look, before anything large is imported."""
    given = query.source | source
    return has_newer([str(query.src)], str(query.dst), source=given, checkpoint=str(query.checkpoint))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "sure"),
    [
        (None, False),
        (a_file_has_come, True),
        (a_file_has_changed, True),
        (a_batch_is_in_flight, True),
        (a_file_is_too_new, False),
        (a_file_is_of_the_future, False),
        (a_file_is_late, False),
        (an_offset_is_damaged, False),
        (the_checkpoint_is_new, False),
    ],
)
def test_spark_is_begun_where_a_first_look_is_sure(
    pipeline: Callable[..., Pipeline], event: Callable[[Pipeline], None] | None, *, sure: bool
) -> None:
    """If the first look says that there is work, the full look agrees, so a JVM is never started in vain."""
    query = pipeline(source={"settle": "10s"})
    dated(query.put("a", "one"), 60)
    dated(query.put("b", "two"), 40)
    query.run()
    if event is not None:
        event(query)
        if sure and event is a_file_has_come:
            dated(query.src / "c", 20)
    assert sees(query) is sure
    assert not sure or look(query) is None


def test_a_first_look_needs_no_arrow() -> None:
    """The first look comes before the imports that run while a JVM starts."""
    code = "import sys, penstock.cli.early, penstock.ingestion.newer; print({'pyarrow', 'numpy', 'pyspark'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", ">&- 2>&-", "2>&-"])
def test_closed_streams_are_nobody_elses(pipeline: Callable[..., Pipeline], closed: str) -> None:
    """With standard streams closed, as under schedulers, new files and pipes could get their numbers; the start is still reached."""
    query = pipeline(source={"settle": "10s"})
    dated(query.put("a", "one"), 60)
    query.run()
    dated(query.put("b", "two"), 30)
    assert sees(query)
    command = [
        sys.executable,
        "-m",
        "penstock",
        "ingest",
        str(query.src),
        str(query.dst),
        "--checkpoint",
        str(query.checkpoint),
        "--master",
        "local[1]",
    ]
    without = os.environ | {"JAVA_HOME": "/nowhere"}
    ended = subprocess.run(["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *command], env=without, check=False)
    assert ended.returncode == 2  # there is no Java, as the start reports


@pytest.mark.slow
def test_a_first_look_asks_for_few_files(pipeline: Callable[..., Pipeline], monkeypatch: pytest.MonkeyPatch) -> None:
    """If it finds nothing, a full look follows: so it checks only some of many files, and none in a directory that has not changed."""
    query = pipeline(source={"settle": "10s"})
    for number in range(900):
        dated(query.put(f"f{number:04}", "one"), 60)
    query.run()
    asked: list[str] = []
    stat = LocalStorage.stat

    def noted(self: LocalStorage, path: str) -> Entry:
        asked.append(path)
        return stat(self, path)

    monkeypatch.setattr(LocalStorage, "stat", noted)
    assert not sees(query)
    assert len(asked) < 600
    monkeypatch.setattr(newer, "_COARSE_NS", 0)  # a directory then counts as unchanged however recent its listing is
    asked.clear()
    assert not sees(query)
    assert asked == [str(query.src)]
    query.put("new", "two")
    dated(query.src / "new", 20)
    assert sees(query)
