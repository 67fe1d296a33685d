"""`penstock ingest --dry-run`: what would be read and written; and afterwards not a byte or a time of the tree has changed."""

from __future__ import annotations

import csv
import gzip
import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as public
from penstock.errors import OptionError
from penstock.storage import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Pipeline, Said

DDL = "id bigint, day date, note string"


def state(root: Path) -> dict[str, tuple[int, ...]]:
    """Return, for every path, all that a write would change, including the times that nobody can set back."""
    stats = {str(path): path.lstat() for path in [root, *root.rglob("*")]}
    return {
        path: (s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_mode, s.st_nlink) for path, s in stats.items()
    }


@pytest.fixture
def dry(penstock: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Return the command; it may change nothing below the test's directory, nor ask the storage to."""

    def refused(*_: object, **__: object) -> None:
        msg = "a dry run writes"
        raise AssertionError(msg)

    def run(*arguments: object) -> Said:
        before = state(tmp_path)
        with monkeypatch.context() as patch:
            for verb in ("create", "extend", "publish", "put_if_absent", "persist", "delete", "make_directory", "lock"):
                patch.setattr(LocalStorage, verb, refused)
            said = penstock("ingest", *arguments, "--dry-run")
        assert state(tmp_path) == before
        return said

    return run


def rows(path: Path, ids: range) -> Path:
    """Write JSON lines to a file that has settled."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps({"id": i, "day": f"2026-01-{1 + i % 3:02}", "note": "x" * 20}) + "\n" for i in ids)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    long_ago = path.stat().st_mtime - 100 + ids.start / 1000
    os.utime(path, (long_ago, long_ago))
    return path


def test_new_ingest_is_foretold(dry: Callable[..., Said], tmp_path: Path) -> None:
    """It shows batches under the limits, skipped files and why, columns, types, and the buckets of a sample; DST is not even created."""
    src, dst = tmp_path / "in", tmp_path / "out"
    for n in range(5):
        rows(src / f"f{n}.json", range(n * 30, n * 30 + 30))
    rows(src / "z.json.gz", range(150, 180))
    (src / "fresh.json").write_text("{}\n")
    os.utime(rows(src / "ahead.json", range(3)), (4e9, 4e9))
    rows(src / "_hidden.json", range(3))
    rows(src / "a.tmp", range(3))
    rows(src / "notes.md", range(3))
    rows(src / "deep/x.json", range(3))
    (src / "out").symlink_to(tmp_path)
    os.mkfifo(src / "pipe.json")
    flags = (
        "--format",
        "json",
        "--schema",
        DDL,
        "--to",
        "parquet",
        "--bucket-by",
        "day={day}",
        "--max-files",
        "4",
        "--source-option",
        "pathGlobFilter=*.{json,gz}",
        "--source-option",
        "settle=10s",
    )
    facts = dry(src, dst, *flags, "--json").facts
    assert (facts["ok"], facts["files"]) == (True, 6)
    assert facts["bytes"] == sum(
        (src / name).stat().st_size for name in ("z.json.gz", *(f"f{n}.json" for n in range(5)))
    )
    assert [(b["number"], b["files"], b["first"], b["last"]) for b in facts["batches"]] == [
        (0, 4, "f0.json", "f3.json"),
        (1, 2, "f4.json", "z.json.gz"),
    ]
    told = {why: group["examples"] for why, group in facts["left_out"].items()}
    assert told == {
        "held": ["fresh.json"],
        "future": ["ahead.json"],
        "hidden": ["_hidden.json", "a.tmp"],
        "name": ["notes.md"],
        "directory": ["deep"],
        "link": ["out"],
        "no file": ["pipe.json"],
    }
    sample = facts["sample"]
    assert sample["columns"] == {"id": "bigint", "day": "date", "note": "string"}
    assert (sample["rows"], sample["files"]) == (180, 6)
    assert sample["buckets"] == {f"day=2026-01-0{d}": 60 for d in (1, 2, 3)}
    assert not dst.exists()
    shown = dry(src, dst, *flags)
    assert "would read 6 files" in shown.out
    assert "  batch 0: 4 files" in shown.out
    assert "would write the columns id bigint, day date, note string" in shown.out
    assert shown.out.endswith("nothing was written\n")


@pytest.mark.slow
def test_big_files_are_cut_and_sampled_at_their_beginning(dry: Callable[..., Said], tmp_path: Path) -> None:
    """A byte limit cuts the plan as it would cut the batches; the sample is only the beginning of the data."""
    src = tmp_path / "in"
    rows(src / "big.json", range(100_000))
    size = (src / "big.json").stat().st_size
    facts = dry(src, tmp_path / "out", "--format", "json", "--schema", DDL, "--max-bytes", "2m", "--json").facts
    assert len(facts["batches"]) == -(-size // (2 << 20))
    assert facts["bytes"] == size
    assert 0 < facts["sample"]["rows"] < 100_000


def test_what_would_fail_is_told(dry: Callable[..., Said], tmp_path: Path) -> None:
    """A bad record in the sample would end the ingest: it is reported with its place, and the status is 1."""
    rows(tmp_path / "in/a.json", range(3)).write_text('{"id": 1}\nnot json\n')
    os.utime(tmp_path / "in/a.json", (1e9, 1e9))
    said = dry(tmp_path / "in", tmp_path / "out", "--format", "json", "--schema", DDL, "--json")
    assert (said.status, said.facts["ok"]) == (1, False)
    assert "[PST-201]" in said.facts["problem"]
    assert "byte 10" in said.facts["problem"]
    assert dry(tmp_path / "in", tmp_path / "out", "--format", "json").status == 2
    assert dry(tmp_path / "no", tmp_path / "out").status == 2
    assert dry(tmp_path / "in", tmp_path / "out", "--watch").status == 2


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_files_of_others_are_sampled(dry: Callable[..., Said], tmp_path: Path, kind: str) -> None:
    """Tables that Python's csv module and pyarrow wrote are planned and sampled as JSON lines are."""
    src = tmp_path / "in"
    src.mkdir()
    if kind == "csv":
        with (src / "a.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["id", "note"], *([str(i), 'a "q"\nb'] for i in range(50))])
        flags = ["--source-option", "header=true"]
    else:
        pq.write_table(pa.table({"id": list(range(50)), "note": ["x"] * 50}), src / "a.parquet")
        flags = []
    os.utime(next(src.iterdir()), (1e9, 1e9))
    facts = dry(src, tmp_path / "out", "--format", kind, "--schema", "id bigint, note string", *flags, "--json").facts
    assert (facts["ok"], facts["sample"]["rows"]) == (True, 50)


def test_what_would_be_set_aside_is_told(dry: Callable[..., Said], tmp_path: Path) -> None:
    """With `badRecords=quarantine` a bad record does not stop the run: the sample says how many would be set aside."""
    src = tmp_path / "in"
    path = rows(src / "a.json", range(20))
    path.write_text(path.read_text() + '{"id": 1\n')
    os.utime(path, (1e9, 1e9))
    said = dry(src, tmp_path / "out", "--format", "json", "--schema", DDL, "--source-option", "badRecords=quarantine")
    assert said.status == 0
    assert "of a sample of 1 file" in said.out
    assert "20 rows, 1 set aside" in said.out
    assert dry(src, tmp_path / "out", "--format", "json", "--schema", DDL).status == 1


def test_ingest_that_goes_on(dry: Callable[..., Said], pipeline: Callable[..., Pipeline]) -> None:
    """After committed batches only new files would be read; a batch in flight comes first, and late files are reported."""
    query = pipeline()
    query.put("a", "one")
    query.run()
    flags = (query.src, query.dst, "--checkpoint", query.checkpoint, "--sink-option", "sinkId=q", "--json")
    facts = dry(*flags).facts
    assert (facts["batches"], facts["left_out"]["read"]["examples"]) == ([], ["a"])
    query.put("b", "two", "three")
    old = query.put("old", "four")
    os.utime(old, (1e6, 1e6))
    facts = dry(*flags).facts
    assert [(b["number"], b["first"], b["again"]) for b in facts["batches"]] == [(1, "b", False)]
    assert facts["left_out"]["late"] == {"files": 1, "bytes": 5, "examples": ["old"]}
    facts = dry(*flags, "--source-option", "tooLate=fail").facts
    assert (facts["ok"], [b["first"] for b in facts["batches"]]) == (False, ["b"])
    assert "[PST-204] 1 file too late" in facts["problem"]
    query.run()
    assert dry(*flags, "--source-option", "tooLate=fail").facts["ok"]
    (query.checkpoint / "commits/1").unlink()
    facts = dry(*flags).facts
    assert [(b["number"], b["first"], b["again"]) for b in facts["batches"]] == [(1, "b", True)]


@pytest.mark.parametrize("command", ["reset", "late"])
def test_what_a_command_has_put_before_the_next_batch(
    dry: Callable[..., Said], penstock: Callable[..., Said], pipeline: Callable[..., Pipeline], command: str
) -> None:
    """After `reset --yes` or `late --accept` the batch in flight reads nothing, and what follows it is shown; it was an IndexError."""
    query = pipeline(owner=f"{socket.gethostname()}:999999999:1:q")
    query.put("a", "one")
    query.run()
    os.utime(query.put("old", "four"), (1e6, 1e6))
    query.run()
    assert penstock(command, query.src, query.dst, "--yes" if command == "reset" else "--accept").status == 0
    facts = dry(query.src, query.dst, "--checkpoint", query.checkpoint, "--sink-option", "sinkId=q", "--json").facts
    told = [(b["files"], b["first"], b["last"], b["again"]) for b in facts["batches"]]
    assert told == ([(2, "old", "a", False)] if command == "reset" else [(1, "old", "old", False)])
    assert facts["problem"] is None


@pytest.mark.slow
def test_python_without_spark(tmp_path: Path) -> None:
    """`penstock.dry_run` returns the same, with a function as transform, in a process that has not started Java."""
    for n in range(3):
        rows(tmp_path / f"in/f{n}.json", range(n * 10, n * 10 + 10))
    code = f"""
import psutil, penstock, pyarrow as pa
def evens(batch):
    return batch.filter(pa.compute.equal(pa.compute.bit_wise_and(batch["id"], 1), 0)).select(["id"])
import pyarrow.compute
done = penstock.dry_run({str(tmp_path / "in")!r}, {str(tmp_path / "out")!r}, transform=evens,
    source={{"format": "json", "schema": {DDL!r}}}, sink={{"format": "parquet"}})
print(done.files, done.sample.rows, dict(done.sample.columns), psutil.Process().children())
"""
    before = state(tmp_path)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "3 15 {'id': 'bigint'} []\n"
    assert state(tmp_path) == before


def test_misspelt_parameter(tmp_path: Path) -> None:
    """A parameter that no ingest has is refused as the ingest refuses it."""
    with pytest.raises(OptionError, match="did you mean 'rollSize'"):
        public.dry_run(tmp_path, tmp_path.parent / "out", sink={"rollsizes": "1"})


@pytest.mark.slow
def test_an_inferred_schema_is_told_and_not_noted(dry: Callable[..., Said], tmp_path: Path) -> None:
    """With schema=infer the notes give the columns of the first start; nothing is recorded, so the next run infers again."""
    rows(tmp_path / "in/a.json", range(3))
    flags = ("--format", "json", "--schema", "infer", "--to", "parquet")
    facts = dry(tmp_path / "in", tmp_path / "out", *flags, "--json").facts
    assert facts["ok"] is True
    assert facts["sample"]["columns"] == {"day": "string", "id": "bigint", "note": "string"}
    assert facts["notes"][0] == "the schema was inferred: day string, id bigint, note string"
    rows(tmp_path / "in/b.json", range(3, 4)).write_text('{"id": 1.5}\n')
    assert dry(tmp_path / "in", tmp_path / "out", *flags, "--json").facts["sample"]["columns"]["id"] == "double"


def test_a_file_that_a_glob_in_the_path_leaves_out_is_told_as_a_file(dry: Callable[..., Said], tmp_path: Path) -> None:
    """The file is not reported as missing: its name does not match the path's pattern."""
    for name in ("a.txt", "b.txt"):
        rows(tmp_path / "in" / name, range(3))
    said = dry(tmp_path / "in" / "[a]*.txt", tmp_path / "out")
    assert "of other names than asked for (path, pattern, pathGlobFilter): b.txt" in said.out, said
    assert "no files" not in said.out


@pytest.mark.parametrize("names", ["*.nope", "no*/a.txt"])
def test_a_glob_that_matches_nothing_is_told_and_no_failure(
    dry: Callable[..., Said], tmp_path: Path, names: str
) -> None:
    """An ingest with it succeeds and reads later matches; so does its dry run, which notes that SRC matches no file."""
    rows(tmp_path / "in/a.txt", range(3))
    said = dry(tmp_path / "in" / names, tmp_path / "out")
    assert "would read nothing" in said.out
    assert "note: SRC names no file that is there: such files are read once they come" in said.out
    assert "recursiveFileLookup" not in said.out, "that would not have it read"
    assert not (tmp_path / "out").exists()
