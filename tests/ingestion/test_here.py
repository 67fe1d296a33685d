"""An ingest without Spark: what it writes, what it leaves when it dies, and that Spark continues from there."""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import polars as pl
import psutil
import pytest

import penstock
from penstock import failpoints
from penstock.errors import (
    BadFile,
    BadRecord,
    CheckpointMismatch,
    Fenced,
    FileChanged,
    OptionError,
    PenstockError,
    StorageError,
)
from penstock.formats import families
from penstock.formats import lines as formatlines
from penstock.ingestion import workers
from penstock.ingestion.call import IngestCall
from penstock.ingestion.here import QueryHere
from penstock.ingestion.ingest import carried_out, here
from penstock.ingestion.taskcalls import WorkersEnded
from penstock.ingestion.workers import Workers
from penstock.query import driver as drivers
from penstock.query.offset import summed
from penstock.session import processors
from penstock.sink.sink import Sink
from penstock.storage import LocalStorage
from tests.ingestion.tasks import (
    breaks,
    dies,
    dies_in_its_answer,
    either,
    is_imported,
    looks_for_pandas,
    refuses,
    sleeps,
)
from tests.support.blocks import FEW_PAGES, new_pages, only_where_it_can_be_said
from tests.support.wait import PATIENCE_SECONDS, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from penstock.ingestion.ingested import Ingested
    from penstock.ingestion.jobhere import JobHere
    from tests.cli.conftest import Said
    from tests.support.forked import Commands
    from tests.support.interpreter import Interpreter

ROWS = 3_000
COMMAND = [sys.executable, "-m", "penstock.cli", "ingest"]


def lines(directory: Path) -> list[str]:
    """Return all lines of the finished text files, in order."""
    files = [path for path in directory.rglob("*.txt") if "_penstock" not in path.parts]
    return sorted(line for path in files for line in path.read_text().splitlines())


def texts(directory: Path, files: int, rows: int = ROWS, digits: int = 6) -> list[str]:
    """Write this number of old files, unless they exist; return all lines, in order."""
    directory.mkdir(exist_ok=True)
    for number in range(files):
        path = directory / f"{number}.txt"
        if path.exists():
            continue
        path.write_text("".join(f"{number}-{row:0{digits}d}\n" for row in range(rows)))
        os.utime(path, (time.time() - 100 + number,) * 2)
    return sorted(f"{number}-{row:0{digits}d}" for number in range(files) for row in range(rows))


def much(directory: Path) -> list[str]:
    """Write enough input for two processes. Long lines supply the bytes, because each line costs test time."""
    return texts(directory, 4, rows=6_000, digits=1_000)


def _spawned(parent: psutil.Process) -> list[psutil.Process]:
    return [child for child in parent.children() if child.cmdline()[1:3] == ["-c", workers._PROGRAM]]


def ingest(src: Path, dst: Path, source: dict[str, str] | None = None, sink: dict[str, str] | None = None) -> Ingested:
    """Run an ingest without Spark."""
    run = here(IngestCall(str(src), str(dst), source=source or {}, sink={"format": "text"} | (sink or {})))
    assert run is not None
    return carried_out(run, None)


def test_each_record_once_over_several_batches_and_runs(tmp_path: Path) -> None:
    """Batches, open parts across them, a second run, and a run without input: the result is that of a Spark query."""
    src, dst = tmp_path / "in", tmp_path / "out"
    expected = texts(src, 5)
    done = ingest(src, dst, {"maxFilesPerTrigger": "2"}, {"rollRows": "4000"})
    assert (done.batch, done.input_files, done.rows, done.open_parts) == (2, 5, len(expected), 0)
    assert lines(dst) == expected
    for number in (5, 6):
        (src / f"{number}.txt").write_text(f"{number}\n")
        os.utime(src / f"{number}.txt", (time.time() - 10,) * 2)
    assert ingest(src, dst).batch == done.batch + 1
    assert lines(dst) == sorted([*expected, "5", "6"])


def test_the_error_of_a_commit_is_told_though_cleaning_up_fails_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails under a commit also fails under what cleans up after it: the first error says what is wrong."""
    src, dst = tmp_path / "in", tmp_path / "out"
    expected = texts(src, 1)

    def fails(*_: object) -> None:
        msg = "the second error"
        raise StorageError(msg)

    with monkeypatch.context() as patched:
        patched.setattr(Sink, "abort", fails)
        failpoints.arm("sink.ledger.before-put=error@2")
        try:
            with pytest.raises(PenstockError, match=r"failpoint sink\.ledger\.before-put"):
                ingest(src, dst)
        finally:
            failpoints.arm("")
    ingest(src, dst)
    assert lines(dst) == expected


@pytest.mark.parametrize("name", ["json", "csv", "parquet"])
def test_files_of_other_makers(tmp_path: Path, name: str) -> None:
    """Rows of `csv`, `json` and polars come out as they went in."""
    src, dst = tmp_path / "in", tmp_path / "out"
    src.mkdir()
    rows = [{"id": number, "name": f'n{number}, "ü"' if number % 3 else None} for number in range(500)]
    path = src / f"a.{name}"
    if name == "json":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif name == "csv":
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerows([row["id"], row["name"]] for row in rows)
    else:
        pl.DataFrame(rows).write_parquet(path)
    os.utime(path, (1e9, 1e9))
    source = {"format": name, "schema": "id bigint, name string"} | ({"escape": '"'} if name == "csv" else {})
    ingest(src, dst, source, {"format": "parquet"})
    read = pl.concat(pl.read_parquet(file) for file in dst.glob("*.parquet")).sort("id")
    assert read.to_dicts() == rows


@pytest.mark.parametrize(
    ("source", "sink"),
    [
        ({"follow": "true"}, {}),
        ({"cleanSource": "delete"}, {}),
        ({}, {"onPublish": "tests.ingestion.test_here:ingest"}),
        ({"files": __file__, "follow": "true"}, {}),
    ],
)
def test_what_needs_spark(tmp_path: Path, source: dict[str, str], sink: dict[str, str]) -> None:
    """Growing files and lists, files that are removed, and user functions need Spark's processes."""
    texts(tmp_path / "in", 1, rows=1)
    assert (
        here(IngestCall(str(tmp_path / "in"), str(tmp_path / "out"), source=source, sink={"format": "text"} | sink))
        is None
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"\xef\xbb\xbfa\n\n\nb", ["a", "b"]),
        (b"./a\n././b\n.hidden\n", ["a", "b", "hidden"]),
        (b"a\n./a\nb\n", ["a", "a", "b"]),
        (b"sub//c\nsub/../a\n", ["a", "c"]),
        (b"a \n", "a ' does not exist"),
        (b"#a\n", "#a' does not exist"),
        (b"*\n", r"\*' does not exist"),
        (b"sub/\n", "is a directory"),
        (b"../list\n", "leads out of"),
        (b"/a\n", "leads out of"),
        (b"a\0\n", "is not a path"),
    ],
)
def test_each_line_of_a_list_is_a_name_as_it_stands(tmp_path: Path, text: bytes, expected: list[str] | str) -> None:
    """Blanks, signs and wildcards are part of a name; empty lines are ignored; a name that is there twice is read twice."""
    (tmp_path / "in/sub").mkdir(parents=True)
    for name in ("a", "b", ".hidden", "sub/c"):
        (tmp_path / "in" / name).write_text(name.removeprefix("sub/").removeprefix(".") + "\n")
    (tmp_path / "list").write_bytes(text)
    os.utime(tmp_path / "list", (1000, 1000))
    source = {"files": str(tmp_path / "list")}
    if isinstance(expected, list):
        ingest(tmp_path / "in", tmp_path / "out", source)
        assert lines(tmp_path / "out") == expected
        return
    with pytest.raises(PenstockError, match=expected):
        ingest(tmp_path / "in", tmp_path / "out", source)
    assert not lines(tmp_path / "out")


@pytest.mark.parametrize("files", ["lists", "published"])
def test_files_that_are_named(tmp_path: Path, files: str) -> None:
    """Lists, and another output's published files: each name is read once, over several batches and runs; other files are not read."""
    src, named, dst = tmp_path / "in", tmp_path / "named", tmp_path / "out"
    expected: list[str] = []
    for number in (3, 5):
        if files == "lists":
            texts(src, number)
            names, limit = str(tmp_path / "lists"), {"maxBytesPerTrigger": "8"}
            Path(names).mkdir(exist_ok=True)
            (Path(names) / f"{number}").write_text("".join(f"{each}.txt\n" for each in range(number - 2, number)))
            os.utime(Path(names) / f"{number}", (1e9 + number,) * 2)
            expected += [f"{each}-{row:06d}" for each in range(number - 2, number) for row in range(ROWS)]
        else:
            names, limit = "published", {"maxFilesPerTrigger": "2"}
            expected = texts(named, number)
            ingest(named, src, sink={"rollRows": "2000"})
        for _ in range(2):
            assert ingest(src, dst, {"files": names} | limit).rows == len(expected)
        assert lines(dst) == expected
    assert len(list((dst / "_penstock/checkpoint/offsets").iterdir())) > 2
    assert len(list((dst / "_penstock/checkpoint/penstock/named").rglob("*-0-*"))) <= 2


@pytest.mark.parametrize("source", [{"files": "lists"}, {"follow": "true"}], ids=["lists", "follow"])
def test_completeness_by_the_cursor_of_other_files(tmp_path: Path, source: dict[str, str]) -> None:
    """The times of lists are not those of the files that they name, so a day was complete too early; growing files have no order at all."""
    texts(tmp_path / "in", 1, rows=1)
    (tmp_path / "lists").write_text("0.txt\n")
    given = {name: str(tmp_path / value) if name == "files" else value for name, value in source.items()}
    sink = {"bucketBy": "dt={time:%Y-%m-%d}", "partitionReady": "event", "partitionReadyBy": "cursor"}
    with pytest.raises(OptionError, match="partitionReadyBy=cursor goes by .* or partitionReadyBy=data"):
        ingest(tmp_path / "in", tmp_path / "out", given, sink)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (
            b"0.txt\n" + b"x" * 5000 + b"\n",
            "byte 6: found a record of more than 1000 B, expected a separator before that",
        ),
        (b"0.txt\n\xff\n", "byte 6: found .* after '', expected UTF-8"),
    ],
    ids=["long", "binary"],
)
def test_what_a_list_has_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, found: str) -> None:
    """A line without an end was once reported as not being text: now the error says what it is."""
    texts(tmp_path / "in", 1, rows=1)
    names = tmp_path / "names"
    names.write_bytes(data)
    os.utime(names, (1e9, 1e9))
    monkeypatch.setattr(families, "BLOCK_BYTES", 100)
    monkeypatch.setitem(formatlines.blocks.__kwdefaults__ or {}, "record_bytes_max", 1000)
    with pytest.raises(BadRecord, match=found) as caught:
        ingest(tmp_path / "in", tmp_path / "out", {"files": str(names)})
    assert "a list of names, text in UTF-8 with one name on each line" in str(caught.value)
    assert "lineSep" not in str(caught.value)


@pytest.mark.parametrize("name", ["x" * 300, "/".join(["d" * 200] * 3000)], ids=["name", "path"])
def test_a_name_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    """A list's line that is longer than a file name or path can be names no file, and is set aside as such."""
    texts(tmp_path / "in", 1, rows=1)
    names = tmp_path / "names"
    names.write_text(f"0.txt\n{name}\n")
    os.utime(names, (1e9, 1e9))
    with pytest.raises(BadFile, match="'(xxx|ddd)") as caught:
        ingest(tmp_path / "in", tmp_path / "out", {"files": str(names)})
    assert len(str(caught.value)) < 2000
    done = ingest(tmp_path / "in", tmp_path / "out", {"files": str(names), "badFiles": "quarantine"})
    assert (done.rows, done.aside_files) == (1, 1)


@pytest.mark.parametrize("lost", ["its last batch", "all of it"])
def test_output_that_was_put_back_is_told_though_nothing_is_new(tmp_path: Path, commands: Commands, lost: str) -> None:
    """Every run reports it, a dry run too, and not only the next run that has a batch, which may come weeks later."""
    src, dst = tmp_path / "in", tmp_path / "out"
    texts(src, 1, rows=2)
    ingest(src, dst)
    older = tmp_path / "older"
    shutil.copytree(dst, older)
    texts(src, 2, rows=2)
    ingest(src, dst)
    for sink in filter(lambda path: path.name != "checkpoint", (dst / "_penstock").iterdir()):
        shutil.rmtree(sink)
        if lost == "its last batch":
            shutil.copytree(older / "_penstock" / sink.name, sink)
    told = "ends with batch 0" if lost == "its last batch" else "has none of it"
    with pytest.raises(CheckpointMismatch, match=f"batch 2 of query .* {told}: the output directory was emptied"):
        ingest(src, dst)
    assert told in commands.run("ingest", src, dst, "--dry-run", check=False).stderr


@pytest.mark.parametrize("again", ["output", "checkpoint"])
def test_one_of_two_runs_of_the_same_length_is_told_though_nothing_is_new(tmp_path: Path, again: str) -> None:
    """Output and checkpoint were put back and read on, and then one of them alone was put back as it had been, in the same process."""
    src, dst, copy = tmp_path / "in", tmp_path / "out", tmp_path / "copy"
    texts(src, 1, rows=2)
    ingest(src, dst)
    shutil.copytree(dst, copy)
    for run in ("first", "second"):
        shutil.rmtree(dst)
        shutil.copytree(copy, dst)
        (src / run).write_text(f"{run}\n")
        os.utime(src / run, (time.time() - 50,) * 2)
        assert ingest(src, dst).batch == 1
        shutil.copytree(dst, tmp_path / run)
        (src / run).unlink()
    for state in (dst / "_penstock").iterdir():
        if (state.name == "checkpoint") == (again == "checkpoint"):
            shutil.rmtree(state)
            shutil.copytree(tmp_path / "first/_penstock" / state.name, state)
    with pytest.raises(CheckpointMismatch, match="other offsets"):
        ingest(src, dst)


def test_a_batch_in_flight_is_repeated(tmp_path: Path) -> None:
    """A batch that is in the ledger but not in Spark's log: nothing is read twice; the next batch follows it."""
    src, dst = tmp_path / "in", tmp_path / "out"
    expected = texts(src, 1)
    ingest(src, dst)
    (dst / "_penstock/checkpoint/commits/0").unlink()
    assert ingest(src, dst).batch == 0
    assert lines(dst) == expected
    assert ingest(src, dst).rows == len(expected)


def test_a_batch_in_flight_of_a_driver_that_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two drivers of one batch still follow the rules that a start with Spark has for them."""
    src, dst = tmp_path / "in", tmp_path / "out"
    texts(src, 1)
    ingest(src, dst)
    (dst / "_penstock/checkpoint/commits/0").unlink()
    monkeypatch.setattr(drivers, "lives", lambda driver: ":" in driver)
    monkeypatch.setattr(drivers, "owner", lambda *_: "another")
    assert here(IngestCall(str(src), str(dst), source={}, sink={"format": "text"})) is None


def test_a_planned_file_that_has_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A batch that was never committed is planned anew after its file was fixed, as at a start with Spark."""
    src, dst = tmp_path / "in", tmp_path / "out"
    src.mkdir()
    bad = src / "a.json"
    source = {"format": "json", "schema": "id bigint", "badRecords": "fail"}
    bad.write_text('{"id": 1}\n{"id": "no"}\n')
    os.utime(bad, (1e9, 1e9))
    with pytest.raises(PenstockError, match=r"a\.json"):
        ingest(src, dst, source, {"format": "json"})
    bad.write_text('{"id": 1}\n{"id": 2}\n')
    os.utime(bad, (1.1e9, 1.1e9))
    assert ingest(src, dst, source, {"format": "json"}).rows == 2
    assert "it is planned anew" in caplog.text


def test_two_that_begin_at_the_same_time(tmp_path: Path) -> None:
    """Two drivers of one checkpoint begin at once: one of them has the batch, the other is `Fenced`."""
    src, dst = tmp_path / "in", tmp_path / "out"
    expected = texts(src, 2)
    one, other = (here(IngestCall(str(src), str(dst), source={}, sink={"format": "text"})) for _ in range(2))
    assert one is not None
    assert other is not None
    carried_out(one, None)
    texts(src, 3)
    planned = cast("JobHere", other._describe()).begin()
    (dst / "_penstock/checkpoint/offsets/1").write_text("v1\n{}\nof another driver")
    with pytest.raises(Fenced, match="another driver uses the checkpoint"):
        QueryHere._plan(planned, 1, {})
    assert lines(dst) == expected


@pytest.mark.parametrize("anew", [True, False], ids=["planned-anew", "taken-out"])
def test_a_plan_that_another_driver_has_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anew: bool) -> None:
    """A driver that stood still after its plan does not commit its rows under the plan that another driver has made."""
    src, dst = tmp_path / "in", tmp_path / "out"
    expected = texts(src, 1)
    ingest(src, dst)
    texts(src, 2)
    entry = dst / "_penstock/checkpoint/offsets/1"

    def overtaken(point: str) -> None:
        if point == "ingest.here.planned":
            *settings, offset = entry.read_text().splitlines()
            entry.unlink()
            other = {name: value for name, value in json.loads(offset).items() if name != "sum"} | {"left": [7, 7]}
            if anew:
                entry.write_text("\n".join([*settings, json.dumps(summed(other))]))

    monkeypatch.setattr(failpoints, "hit", overtaken)
    with pytest.raises(Fenced, match="another driver uses the checkpoint"):
        ingest(src, dst)
    assert lines(dst) == expected


@pytest.mark.parametrize(("name", "wanted"), [("a.txt", 0), ("a.txt.gz", 2), ("a.parquet", 2)])
def test_what_packed_files_hold_may_be_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, wanted: int
) -> None:
    """A short file that unpacks to gigabytes was once read in this process, which could not be stopped meanwhile."""
    asked: list[int] = []
    each = Workers.each

    def looked_at(self: Workers, *given: Any, processes: int) -> list[Any]:
        asked.append(processes)
        return each(self, *given, processes=0)

    monkeypatch.setattr(Workers, "each", looked_at)
    src = tmp_path / "in"
    src.mkdir()
    rows = [os.urandom(50).hex() for _ in range(30_000)]
    text = "".join(f"{row}\n" for row in rows).encode()
    if name.endswith(".parquet"):
        pl.DataFrame({"value": rows}).write_parquet(src / name)
    else:
        (src / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    os.utime(src / name, (1e9, 1e9))
    source = {"format": "parquet", "schema": "value string"} if name.endswith(".parquet") else {}
    assert ingest(src, tmp_path / "out", source).rows == len(rows)
    assert asked == [wanted]


def test_a_batch_that_read_nothing_is_in_the_ledger(tmp_path: Path) -> None:
    """A first run over an empty directory: the ledger has the batch that the checkpoint committed, or the next run would be refused."""
    src, dst = tmp_path / "in", tmp_path / "out"
    src.mkdir()
    for _ in range(2):
        assert ingest(src, dst).rows == 0
    expected = texts(src, 1)
    ingest(src, dst)
    assert lines(dst) == expected


def test_bad_records_end_it_with_nothing_visible(tmp_path: Path) -> None:
    """An error in a task is raised, with one process and with several; after the record is fixed the next run takes everything."""
    src, dst = tmp_path / "in", tmp_path / "out"
    src.mkdir()
    path = src / "a.json"
    path.write_text('{"id": 1}\n{"id": "no"}\n')
    os.utime(path, (1e9, 1e9))
    source = {"format": "json", "schema": "id bigint", "badRecords": "fail"}
    with pytest.raises(PenstockError, match=r"a\.json"):
        ingest(src, dst, source, {"format": "json"})
    assert not list(dst.glob("*.json"))


@pytest.mark.slow
def test_much_is_written_by_several_processes_which_end(tmp_path: Path) -> None:
    """Each processor gets a process, and no process is left over."""
    src, dst = tmp_path / "in", tmp_path / "out"
    expected = much(src)
    done = ingest(src, dst)
    assert done.rows == len(expected)
    assert lines(dst) == expected
    assert not _spawned(psutil.Process())


STEPS = [
    "ingest.here.planned=kill",
    "ingest.here.planned=kill@2",
    "sink.write.staged=kill@2",
    "sink.ledger.before-put=kill@3",
    "sink.ledger.after-put=kill@3",
    "sink.publish.one=kill",
    "sink.publish.before-note=kill",
    "ingest.here.committed=kill@2",
]


@pytest.mark.timeout(900)
def test_killed_at_each_step_and_gone_on_from_by_spark(spark: SparkSession, commands: Commands, on_disk: Path) -> None:
    """Each step meets the state after another crash; the next run, with Spark or without, repeats the batch in flight. Each line once."""
    src, dst = on_disk / "in", on_disk / "out"
    run = "ingest", src, dst, "--max-files", "2"
    for number, points in enumerate(STEPS):
        expected = texts(src, 4 * (number + 1), rows=200)
        killed = commands.run(*run, "--roll-rows", "300", points=points, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        seen = lines(dst)
        assert len(seen) == len(set(seen))
        assert set(seen) <= set(expected)
        if number % 4 == 1:
            penstock.ingest(spark, src, dst, source={"maxFilesPerTrigger": 2}, sink={"format": "text"})
        else:
            assert "without Spark" in commands.run(*run).stdout
        assert lines(dst) == expected, points


@pytest.mark.timeout(900)
def test_names_of_a_batch_that_was_killed(spark: SparkSession, commands: Commands, on_disk: Path) -> None:
    """The version that a run first found, with Spark or without, binds the other: a rewritten file is refused; restored, it is read."""
    src, dst, names = on_disk / "in", on_disk / "out", on_disk / "names"
    source = {"files": str(names)}
    run = "ingest", src, dst, "--source-option", f"files={names}"
    expected = texts(src, 1, rows=2)
    names.write_text("0.txt\n")
    os.utime(names, (1e9, 1e9))
    assert commands.run(*run, points="sink.write.staged=kill", check=False).returncode == -signal.SIGKILL
    whole = (src / "0.txt").read_bytes(), (src / "0.txt").stat().st_mtime_ns
    (src / "0.txt").write_text("another\n")
    with pytest.raises(FileChanged, match="is not what this batch first found there"):
        penstock.ingest(spark, src, dst, source=source, sink={"format": "text"})
    told = commands.run(*run, check=False)
    assert told.returncode == 1
    assert "is not what this batch first found there" in " ".join(told.stderr.split())
    (src / "0.txt").write_bytes(whole[0])
    os.utime(src / "0.txt", ns=(whole[1],) * 2)
    penstock.ingest(spark, src, dst, source=source, sink={"format": "text"})
    assert lines(dst) == expected
    expected = texts(src, 2, rows=2)
    names.write_text("1.txt\n")
    os.utime(names, (1.1e9, 1.1e9))
    assert "without Spark" in commands.run(*run).stdout
    assert lines(dst) == expected


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_spark_and_this_process_take_turns(python: Interpreter, on_disk: Path) -> None:
    """Each of the two continues from what the other has committed."""
    src, dst = on_disk / "in", on_disk / "out"
    turns: list[tuple[str, ...]] = [(), ("--master", "local[2]"), (), ()]
    for number, more in enumerate(turns):
        expected = texts(src, number + 1)
        done = python.penstock("ingest", "in", "out", *more, cwd=on_disk)
        assert done.returncode == 0, done.stderr
        assert ("without Spark" in done.stdout) == (not more)
        assert lines(dst) == expected


@pytest.mark.slow
def test_killed_while_its_processes_write(on_disk: Path) -> None:
    """The processes of a killed driver once waited for ever: they end with the process that started them."""
    src, dst = on_disk / "in", on_disk / "out"
    much(src)
    environment = os.environ | {"PENSTOCK_FAILPOINTS": "sink.write.staged=sleep:600"}
    with subprocess.Popen([*COMMAND, src, dst], env=environment, stderr=subprocess.DEVNULL) as process:
        parent = psutil.Process(process.pid)
        wait_for(lambda: len(_spawned(parent)) > 1, "two processes")
        children = parent.children()
        process.kill()
    gone, alive = psutil.wait_procs(children, timeout=PATIENCE_SECONDS)
    assert gone
    assert not alive
    assert lines(dst) == []


def test_stopped_in_its_first_batch(tmp_path: Path, commands: Commands) -> None:
    """A user who stops it is not told that there is nothing to read."""
    src, dst = tmp_path / "in", tmp_path / "out"
    texts(src, 1)
    running = commands.begin("ingest", src, dst, points="ingest.here.planned=sleep:2")
    wait_for((dst / "_penstock/checkpoint/offsets/0").exists, "a plan")
    running.signal(signal.SIGTERM)
    done = running.ended(check=False)
    assert done.returncode == 128 + signal.SIGTERM
    assert "stopped" in done.stdout
    assert "nothing to read" not in done.stdout


def test_stopped_twice_at_once(tmp_path: Path, commands: Commands) -> None:
    """A second signal comes before the first is answered: the exit status is still that of the signal."""
    src, dst = tmp_path / "in", tmp_path / "out"
    texts(src, 1)
    running = commands.begin("ingest", src, dst, points="ingest.here.planned=sleep:2")
    wait_for((dst / "_penstock/checkpoint/offsets/0").exists, "a plan")
    running.signal(signal.SIGTERM)
    time.sleep(0.02)
    running.signal(signal.SIGTERM)
    assert running.ended(check=False).returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("place", [0, 1], ids=["first", "last"])
@pytest.mark.parametrize(
    ("call", "error", "killed"),
    [
        (dies, WorkersEnded, True),
        (dies_in_its_answer, WorkersEnded, True),
        (refuses, OptionError, None),
        (breaks, PenstockError, None),
    ],
    ids=["dies", "dies-in-its-answer", "refuses", "breaks"],
)
@pytest.mark.slow
def test_one_of_several_processes_fails(
    call: Callable[..., Any], error: type[Exception], killed: bool | None, place: int
) -> None:
    """The error of one process is raised at once, without waiting for the others; once, a process was not checked until its turn."""
    began = time.monotonic()
    tasks = [(sleeps, 600.0)]
    tasks.insert(place, (call, 0.0))
    with Workers(2, threading.Event(), sleeps.__module__) as several, pytest.raises(error) as raised:
        several.each(either, tasks, processes=2)
    assert getattr(raised.value, "killed", None) is killed
    assert time.monotonic() < began + 300


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.slow
def test_all_are_asked_to_end_while_they_begin(number: int) -> None:
    """Ctrl-C, a closed terminal, or a supervisor, signals all processes: only the driver answers, from the processes' first moment on."""
    over = threading.Event()

    def interrupt() -> None:
        while not over.wait(0.01):
            with contextlib.suppress(psutil.NoSuchProcess):  # they may have ended already
                for child in _spawned(psutil.Process()):
                    child.send_signal(number)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    try:
        with Workers(2, threading.Event(), sleeps.__module__) as several:
            assert several.each(sleeps, [(0.5,), (0.4,)], processes=2) == [0.5, 0.4]
    finally:
        over.set()
        interrupting.join()


@pytest.mark.parametrize("by", ["file", "stdin"])
@pytest.mark.slow
def test_a_program_of_ones_own_that_runs_the_command(tmp_path: Path, by: str) -> None:
    """A program without a check of `__name__`, or without a file, was once run again by its processes: nothing runs it again."""
    src, dst, program = tmp_path / "in", tmp_path / "out", tmp_path / "mine.py"
    expected = much(src)
    program.write_text(
        f"import sys\nprint('once')\nsys.argv[1:] = ['ingest', {str(src)!r}, {str(dst)!r}]\n"
        "from penstock.cli import main\nmain()\n"
    )
    given = [program] if by == "file" else ["-"]
    text = None if by == "file" else program.read_text()
    done = subprocess.run([sys.executable, *given], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("once") == 1
    assert lines(dst) == expected


@pytest.mark.slow
def test_asked_to_end_while_processes_work() -> None:
    """Nobody waits for work whose result no longer counts."""
    ending = threading.Event()
    threading.Timer(1.0, ending.set).start()
    with Workers(2, ending, sleeps.__module__) as several, pytest.raises(WorkersEnded) as raised:
        several.each(sleeps, [(600.0,), (600.0,)], processes=2)
    assert not raised.value.killed


@pytest.mark.slow
def test_in_their_order_and_again_in_the_same_processes() -> None:
    """The results are in the order of the tasks, however long each took."""
    with Workers(2, threading.Event(), sleeps.__module__) as several:
        assert several.each(sleeps, [(0.3,), (0.0,), (0.1,)], processes=2) == [0.3, 0.0, 0.1]
        assert several.each(sleeps, [(0.0,), (0.1,)], processes=0) == [0.0, 0.1]


@pytest.mark.slow
@pytest.mark.parametrize("module", ["wave", "no_such.module"])
def test_a_process_has_imported_what_its_tasks_need_before_the_first_arrives(module: str) -> None:
    """It imports while the driver plans. If a module cannot be imported, the task that needs it fails."""
    with Workers(1, threading.Event(), module) as one:
        assert one.each(is_imported, [(module,)], processes=1) == [module == "wave"]


@pytest.mark.slow
def test_a_process_imports_no_pandas_for_its_arrays() -> None:
    """pyarrow would import pandas for the first array of Python values. Code that needs pandas still gets it."""
    pytest.importorskip("pandas")
    with Workers(1, threading.Event(), sleeps.__module__) as one:
        assert one.each(looks_for_pandas, [([1, 2],)], processes=1) == [(False, [1, 2])]


@pytest.mark.slow
def test_this_process_imports_no_pandas_for_the_arrays_of_its_tasks(tmp_path: Path) -> None:
    """Sorting rows into buckets makes NumPy arrays, for which pyarrow would look for pandas."""
    pytest.importorskip("pandas")
    src, dst = tmp_path / "in", tmp_path / "out"
    src.mkdir()
    (src / "a.csv").write_text("1,de\n2,fr\n")
    source = {"format": "csv", "schema": "id int, country string"}
    sink = {"format": "parquet", "bucketBy": "{country}"}
    program = (
        "import sys\nfrom penstock.ingestion.call import IngestCall\nfrom penstock.ingestion.ingest import carried_out, here\n"
        f"done = carried_out(here(IngestCall({str(src)!r}, {str(dst)!r}, {source!r}, {sink!r})), None)\n"
        "print(done.rows, 'pandas' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["2", "False"], done.stderr


@pytest.mark.slow
@only_where_it_can_be_said
def test_blocks_take_the_memory_of_those_before() -> None:
    """A task's next blocks use the memory of the last ones, and not new memory that the machine has to clear page by page."""
    with Workers(1, threading.Event(), sleeps.__module__) as one:
        assert one.each(new_pages, [()], processes=1)[0] < FEW_PAGES


def test_times_are_read_in_the_zone_of_our_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time without a zone is in UTC, as in the session that the command starts, whatever the zone of the machine."""
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    src, dst = tmp_path / "in", tmp_path / "out"
    src.mkdir()
    path = src / "a.json"
    path.write_text('{"at": "2026-01-01 00:00:00"}\n')
    os.utime(path, (1e9, 1e9))
    ingest(src, dst, {"format": "json", "schema": "at timestamp"}, {"format": "parquet"})
    (file,) = dst.glob("*.parquet")
    assert pl.read_parquet(file)["at"].dt.timestamp("ms").to_list() == [1767225600000]


def test_processors_within_a_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group with a quota of one and a half processors has two; without a limit the machine's processors count."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for text, expected in (("150000 100000\n", 2), ("max 100000\n", 8), ("50000 100000\n", 1)):
        monkeypatch.setattr(LocalStorage, "read", lambda *_, text=text: text.encode())
        assert processors.cores() == expected


def test_one_of_several_paths_stands_for_all_of_them(tmp_path: Path, penstock: Callable[..., Said]) -> None:
    """`verify --source` compares all paths of an ingest, whichever of them it is given; two of them are a usage error."""
    places = [tmp_path / name for name in ("a", "b", "c")]
    for place in places:
        texts(place, 1, rows=3)
    assert penstock("ingest", *places, tmp_path / "out").status == 0
    for place in places:
        said = penstock("verify", tmp_path / "out", "--source", place, "--json")
        assert (said.status, said.facts["source"]["source_records"]) == (0, 9), place
    twice = penstock("verify", tmp_path / "out", "--source", places[0], "--source", places[1])
    assert (twice.status, "--source is given twice" in twice.err) == (2, True)


@pytest.mark.parametrize("points", ["sink.publish.one=nospace", "sink.publish.one=kill"])
def test_what_a_run_decided_at_its_end_is_published_by_the_next_one(
    tmp_path: Path, commands: Commands, points: str
) -> None:
    """A follower has committed its batches, and fails or dies while it publishes: the next one publishes, though nothing is new."""
    src, middle, dst = tmp_path / "in", tmp_path / "middle", tmp_path / "out"
    texts(src, 1)
    commands.run("ingest", src, middle)
    follower = ["ingest", middle, dst, "--source-option", "files=published"]
    assert commands.run(*follower, points=points, check=False).returncode != 0
    assert lines(dst) == []
    for _ in range(2):
        commands.run(*follower)
        assert lines(dst) == lines(middle) != []
