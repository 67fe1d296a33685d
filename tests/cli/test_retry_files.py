"""Mended bad files and changed files: each is taken in once, and rows that are in the output already are not repeated."""

from __future__ import annotations

import gzip
import os
import shutil
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from penstock import failpoints
from penstock.errors import StorageError
from penstock.source import configured
from penstock.verify.retry import retry
from tests.cli.test_aside import CSV, SCHEMA, aside, raw, rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Pipeline, Said

TABLES: dict[str, Any] = {
    "schema": SCHEMA, "source": {"format": "parquet", "badFiles": "quarantine"}, "sink_options": {"format": "json"}
}  # fmt: skip


def table(path: Path, first: int, count: int) -> bytes:
    """Return a Parquet file that DuckDB wrote."""
    duckdb.sql(
        f"COPY (SELECT range AS id, 'n' || range AS name FROM range({first}, {first + count})) TO '{path}' (FORMAT parquet)"
    )
    return path.read_bytes()


def test_a_mended_gz_and_a_replaced_table_are_taken_in_once(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said], tmp_path: Path
) -> None:
    """A directory of mended copies is matched by the paths in the source, each taken in once; verify proves it only with that directory."""
    made = pipeline(**TABLES)
    (made.src / "deep").mkdir()
    data, other = table(tmp_path / "a", 0, 500), table(tmp_path / "b", 500, 100)
    for name, content in {"a.parquet": data[:-50], "deep/b.parquet": b"none", "c.parquet": other}.items():
        raw(made, name, content)
    made = pipeline(**TABLES | {"source": TABLES["source"] | {"recursiveFileLookup": "true"}})
    made.run()
    assert len(rows(made.dst)) == 100
    copies = tmp_path / "mended"
    (copies / "deep").mkdir(parents=True)
    (copies / "a.parquet").write_bytes(data)
    said = penstock("retry", made.dst, "--mended", copies)
    assert "took in 0 records and 1 file, 500 rows" in said.out, said
    assert len(rows(made.dst)) == 600
    assert penstock("retry", made.dst, "--mended", copies, "--json").facts["files"] == 0
    (copies / "deep" / "b.parquet").write_bytes(table(tmp_path / "d", 1000, 10))
    assert penstock("retry", made.dst, "--mended", copies, "--json").facts["rows"] == 10
    assert len(rows(made.dst)) == 610
    assert "2 bad files (2 of them taken in since)" in penstock("status", made.dst).out
    said = penstock("verify", made.dst, "--source", made.src, "--mended", copies)
    assert said.status == 0, said.out
    said = penstock("verify", made.dst, "--source", made.src)
    assert said.status == 1
    assert "--mended DIR" in said.out
    (copies / "a.parquet").write_bytes(data + b"x")
    assert penstock("verify", made.dst, "--source", made.src, "--mended", copies).status == 1


def with_a_file_cut_off(pipeline: Callable[..., Pipeline]) -> tuple[Pipeline, bytes]:
    """Return a pipeline that has met a truncated file, and the complete file."""
    made = pipeline(source={"badFiles": "quarantine"})
    whole = gzip.compress(b"one\ntwo\n")
    raw(made, "a.gz", whole[:-3])
    made.run()
    return made, whole


def test_a_copy_that_is_bad_itself_is_named_and_the_advice_works(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said], tmp_path: Path
) -> None:
    """The message names the copy, not the original file; mended as it says, the copy is taken in by the same command."""
    made, whole = with_a_file_cut_off(pipeline)
    copy = tmp_path / "mended" / "a.gz"
    copy.parent.mkdir()
    copy.write_bytes(whole[:-2])
    said = penstock("retry", made.dst, "--mended", copy.parent)
    assert f"1 file still cannot be read: '{copy}': " in said.out
    assert "mend or remove the file and run penstock retry again" in said.out
    copy.write_bytes(whole)
    assert penstock("retry", made.dst, "--mended", copy.parent, "--json").facts["rows"] == 2
    said = penstock("verify", made.dst, "--mended", copy.parent)
    assert said.status == 2
    assert "--source" in said.err


def test_a_file_that_can_be_read_by_now_is_taken_in_as_it_is(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said], tmp_path: Path
) -> None:
    """If the damage is gone but size and time are unchanged, an ingest sees no new version: retry takes the file in, verify agrees."""
    made = pipeline(**TABLES)
    data = table(tmp_path / "a", 0, 300)
    path = raw(made, "a.parquet", bytes(len(data)))
    raw(made, "b.parquet", table(tmp_path / "b", 300, 10))
    at = path.stat().st_mtime_ns
    made.run()
    said = penstock("retry", made.dst, "--json")
    assert (said.facts["files"], said.facts["files_left"]) == (0, 1)
    assert penstock("verify", made.dst, "--source", made.src).status == 0
    path.write_bytes(data)
    os.utime(path, ns=(at, at))
    made.run()
    assert len(rows(made.dst)) == 10
    assert penstock("retry", made.dst, "--json").facts["rows"] == 300
    assert penstock("retry", made.dst, "--json").facts["rows"] == 0
    said = penstock("verify", made.dst, "--source", made.src)
    assert said.status == 0, said.out


def test_a_file_that_was_mended_in_its_place_is_left_to_the_ingest(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said], tmp_path: Path
) -> None:
    """Only the next run takes in another version in the source, whatever copies exist: never twice."""
    made, whole = with_a_file_cut_off(pipeline)
    raw(made, "a.gz", whole)
    (tmp_path / "mended").mkdir()
    (tmp_path / "mended" / "a.gz").write_bytes(whole)
    for option in ([], ["--mended", tmp_path / "mended"]):
        said = penstock("retry", made.dst, *option)
        assert "1 file in the source by now in another version, which the next ingest takes in" in said.out, said
    made.owner = "another"
    made.run()
    assert rows(made.dst) == ["one", "two"]
    said = penstock("verify", made.dst, "--source", made.src)
    assert said.status == 0, said.out


def test_a_planned_version_that_is_put_back_is_taken_in(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranges set aside because the file was gone are read as planned once it is back, and no other ranges of it."""
    made = pipeline(source={"changedFiles": "quarantine", "maxBytesPerTrigger": "6"})
    path = raw(made, "a.txt", b"one\ntwo\nthree\nfour\n")
    carried = configured.carried
    made.run()
    before = rows(made.dst)
    assert 0 < len(before) < 4

    def meanwhile(splits: Any, zone: str) -> Any:
        if path.exists():
            shutil.move(path, made.root / "away")
        return carried(splits, zone)

    monkeypatch.setattr(configured, "carried", meanwhile)
    for _ in range(4):
        made.run()
    monkeypatch.undo()
    assert rows(made.dst) == before
    assert aside(made.dst)
    assert penstock("retry", made.dst, "--json").facts["files_left"] == len(aside(made.dst))
    shutil.move(made.root / "away", path)
    made.owner = "another"
    made.run()
    said = penstock("retry", made.dst, "--json")
    assert said.facts["rows"] == 4 - len(before), said
    assert rows(made.dst) == sorted(["one", "two", "three", "four"])
    assert penstock("retry", made.dst, "--json").facts["rows"] == 0
    said = penstock("verify", made.dst, "--source", made.src)
    assert said.status == 0, said.out


def test_bad_records_of_a_mended_file_are_set_aside_and_mended_in_turn(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said], tmp_path: Path
) -> None:
    """A bad record in a mended file is set aside on a line like any other, and can be mended and taken in too."""
    source: Any = CSV["source"]
    made = pipeline(**CSV | {"source": source | {"badFiles": "quarantine", "header": "true"}})
    raw(made, "a.csv.gz", gzip.compress(b"id,name\n1,a\nx,b\n")[:-1])
    made.run()
    copies = tmp_path / "mended"
    copies.mkdir()
    (copies / "a.csv.gz").write_bytes(gzip.compress(b"name,id\na,1\nb,x\n"))
    assert penstock("retry", made.dst, "--mended", copies, "--json").facts["rows"] == 1
    assert rows(made.dst) == ["1,a"]
    assert [line["code"] for line in aside(made.dst)] == ["PST-202", "retried", "PST-201"]
    lines = tmp_path / "lines"
    (quarantine,) = made.dst.glob("_penstock/*/quarantine/*2*.json")
    lines.write_text(quarantine.read_text().splitlines()[-1].replace("b,x", "b,2") + "\n")
    said = penstock("retry", made.dst, "--mended", lines, "--json")
    assert said.facts["rows"] == 1, said
    assert rows(made.dst) == ["1,a", "2,b"]
    said = penstock("verify", made.dst, "--source", made.src, "--mended", copies)
    assert said.status == 0, said.out


def test_files_with_columns_of_their_directories(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said], tmp_path: Path
) -> None:
    """A copy is read under the name of its original file, so partition values come from the original's directory."""
    schema = SCHEMA.replace("]", ',{"metadata":{},"name":"dt","nullable":true,"type":"string"}]')
    made = pipeline(**TABLES | {"schema": schema})
    (made.src / "dt=1").mkdir()
    data = table(tmp_path / "a", 0, 3)
    raw(made, "dt=1/a.parquet", data[:-1])
    made.run()
    copies = tmp_path / "mended" / "dt=1"
    copies.mkdir(parents=True)
    (copies / "a.parquet").write_bytes(data)
    assert penstock("retry", made.dst, "--mended", copies.parent, "--json").facts["rows"] == 3
    assert rows(made.dst)[0] == '{"id":0,"name":"n0","dt":"1"}'
    said = penstock("verify", made.dst, "--source", made.src, "--mended", copies.parent)
    assert said.status == 0, said.out


@pytest.mark.parametrize("fault", ["error", "nospace"])
def test_a_retry_of_files_that_fails_between_any_two_steps(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said], tmp_path: Path, fault: str
) -> None:
    """Stopped anywhere, a retry of files is completed by the next one: the rows of each file are there once."""
    points = ("sink.write.staged", "sink.ledger.before-put", "sink.ledger.after-put", "sink.publish.one", "sink.forget")
    made = pipeline(**TABLES)
    copies = tmp_path / "mended"
    copies.mkdir()
    for number in range(len(points)):
        raw(made, f"{number}.parquet", table(copies / f"{number}.parquet", number * 10, 10)[:-1])
    made.run()
    for number, point in enumerate(points):
        one = tmp_path / point
        one.mkdir()
        shutil.copy2(copies / f"{number}.parquet", one)
        failpoints.arm(f"{point}={fault}")
        with pytest.raises((OSError, StorageError)):
            retry(str(made.dst), mended=str(one))
        failpoints.arm("")
        retry(str(made.dst), mended=str(one))
        assert made.sink().ledger.head().aside.retried == number + 1
    made.sink().finish()
    assert len(rows(made.dst)) == 10 * len(points)
    assert penstock("verify", made.dst, "--source", made.src, "--mended", copies).status == 0
