"""`penstock adopt`: an output of Spark's file sink is taken over completely, once, and reversibly. Without Spark.

The log is written here as Spark 4.3 writes it; in `tests/spark/test_adopt.py` Spark itself writes it.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

import penstock as public
from penstock.errors import DamagedState, OptionError, UsageError
from penstock.verify import verify
from tests.support.damage import tree
from tests.support.dying import dying

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Pipeline, Said


class Theirs:
    """An output of Spark's file sink: its files, and its log, whose paths begin with `base`."""

    def __init__(self, root: Path) -> None:
        self.root, self.base = root, root
        self.log = root / "_spark_metadata"
        self.log.mkdir(parents=True)

    def put(self, path: str, rows: int = 10) -> dict[str, object]:
        """Write a file under its final name, as a task does; return its entry for the log."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        table = pa.table({"id": list(range(rows))})
        if path.endswith(".parquet"):
            pq.write_table(table, file)
        elif path.endswith(".orc"):
            orc.write_table(table, file)
        else:
            file.write_text("x\n" * rows, encoding="utf-8")
        return self.entry(path)

    def entry(self, path: str, action: str = "add") -> dict[str, object]:
        """Return the entry of a file as Spark spells it."""
        size = (self.root / path).stat().st_size if (self.root / path).exists() else 1
        uri = "file://" + quote(os.fsencode(str(self.base / path)), safe="/=")
        return {
            "path": uri,
            "size": size,
            "isDir": False,
            "modificationTime": 1,
            "blockReplication": 1,
            "blockSize": 33554432,
            "action": action,
        }

    def commit(self, name: str, *entries: dict[str, object]) -> None:
        """Write one file of the log."""
        (self.log / name).write_text("\n".join(["v1", *map(json.dumps, entries)]), encoding="utf-8")
        (self.log / f".{name}.crc").write_bytes(b"crc")


@pytest.fixture
def theirs(tmp_path: Path) -> Theirs:
    """Return an output of four batches, with the first three compacted in the log and with the leftovers of a killed batch."""
    made = Theirs(tmp_path / "out")
    first, second = made.put("k=1/part-0.snappy.parquet"), made.put("k=2/part-1.snappy.parquet", 20)
    gone = made.put("k=1/old.snappy.parquet")
    made.commit("0", first)
    made.commit("2.compact", first, second, gone)
    made.commit("3", made.put("k=a%2Fb/part-2.snappy.parquet", 5), made.entry("k=1/old.snappy.parquet", "delete"))
    os.unlink(made.root / "k=1/old.snappy.parquet")
    made.put("k=2/left.snappy.parquet")
    return made


LISTED = ["k=1/part-0.snappy.parquet", "k=2/part-1.snappy.parquet", "k=a%2Fb/part-2.snappy.parquet"]
LEFT = "k=2/left.snappy.parquet"


def files(said: Said) -> dict[str, int | None]:
    """Return the finished files with their row counts, as `penstock files` prints them."""
    return {file["path"]: file["rows"] for file in said.facts["files"]}


def test_unlisted_files_are_decided_by_the_user(penstock: Callable[..., Said], theirs: Theirs) -> None:
    """Unlisted files would become visible to all readers: without the user's decision nothing changes; a dry run names the files."""
    before = tree(theirs.root)
    said = penstock("adopt", theirs.root)
    assert (said.status, f"does not list: '{LEFT}'" in said.err, "--unlisted aside" in said.err) == (2, True, True)
    said = penstock("adopt", theirs.root, "--dry-run", "--json")
    assert (said.status, said.facts["unlisted"], said.facts["done"]) == (0, [LEFT], False)
    assert tree(theirs.root) == before
    with pytest.raises(UsageError):
        public.adopt(theirs.root)


@pytest.mark.parametrize(("path", "why"), [("nowhere", "nothing of that name"), ("file", "it is a file")])
def test_what_is_no_directory_is_refused(penstock: Callable[..., Said], tmp_path: Path, path: str, why: str) -> None:
    """A misspelt name is a usage error, as for the other commands, not a storage failure."""
    (tmp_path / "file").write_text("x")
    said = penstock("adopt", tmp_path / path)
    assert (said.status, why in said.err) == (2, True)


def test_output_is_adopted(penstock: Callable[..., Said], theirs: Theirs) -> None:
    """Listed files are finished, with size and rows; the log and unlisted files are set aside; all commands work, also a second adopt."""
    facts = penstock("adopt", theirs.root, "--unlisted", "aside", "--json").facts
    assert (facts["ok"], facts["files"], facts["rows"], facts["rows_unknown"]) == (True, 3, 35, 0)
    assert (facts["aside"], facts["unlisted"], facts["missing"]) == ([LEFT], [], [])
    assert not theirs.log.exists()
    assert not (theirs.root / LEFT).exists()
    assert os.path.exists(f"{facts['kept_unlisted']}/{LEFT}")
    assert sorted(os.listdir(facts["kept_log"])) == [".0.crc", ".2.compact.crc", ".3.crc", "0", "2.compact", "3"]
    said = penstock("files", theirs.root, "--json")
    assert files(said) == dict(zip(LISTED, (10, 20, 5), strict=True))
    assert [file["batches"] for file in said.facts["files"]] == [[0, 2], [0, 2], [3, 3]]
    assert penstock("status", theirs.root, "--json").facts["sinks"][0]["files"] == 3
    assert penstock("verify", theirs.root).status == 0
    assert penstock("finish", theirs.root).out == "nothing was open\n"
    assert penstock("clean", theirs.root).out == "nothing to remove\n"
    before = tree(theirs.root)
    for _ in range(2):
        again = penstock("adopt", theirs.root, "--json")
        assert (again.status, again.facts["files"], again.facts["done"]) == (0, 3, True)
    assert tree(theirs.root) == before


def test_damage_after_an_adoption_is_noticed(penstock: Callable[..., Said], theirs: Theirs) -> None:
    """verify reports adopted files that are missing or have another length, files that stayed unlisted, and a log that came back."""
    penstock("adopt", theirs.root, "--unlisted", "keep")
    os.unlink(theirs.root / LISTED[0])
    (theirs.root / LISTED[1]).write_bytes(b"short")
    theirs.log.mkdir()
    theirs.commit("4", theirs.put("k=1/new.snappy.parquet"))
    problems = {
        problem["path"]: problem["kind"]
        for problem in penstock("verify", theirs.root, "--json").facts["output"]["problems"]
    }
    assert problems == {
        LISTED[0]: "missing",
        LISTED[1]: "cut",
        LEFT: "foreign",
        "k=1/new.snappy.parquet": "foreign",
        "_spark_metadata": "shadowed",
    }


def test_query_goes_on_in_the_directory(penstock: Callable[..., Said], pipeline: Callable[..., Pipeline]) -> None:
    """Our sink refuses to write next to a log, and says what to do. After that its rows are verified, together with the adopted ones."""
    line = pipeline()
    theirs = Theirs(line.dst)
    theirs.commit("0", theirs.put("part-0.txt"))
    line.put("a", "one", "two")
    with pytest.raises(UsageError, match="penstock adopt"):
        line.sink().check(pa.schema([("value", pa.string())]))
    assert penstock("adopt", line.dst).status == 0
    line.sink().check(pa.schema([("value", pa.string())]))
    line.run()
    found = verify(str(line.dst), str(line.src))
    assert found.ok
    assert found.source is not None
    assert (found.source.proved, found.source.output_records) == (True, 2)
    listing = files(penstock("files", line.dst, "--json"))
    assert listing["part-0.txt"] is None
    assert sorted(rows for rows in listing.values() if rows is not None) == [2]
    facts = penstock("adopt", line.dst, "--json").facts
    assert (facts["done"], facts["unlisted"], facts["rows_unknown"]) == (True, [], 1)


@pytest.mark.slow
def test_killed_at_each_step(penstock: Callable[..., Said], theirs: Theirs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before or after each change and run again, the result equals that of one run; the log is complete until it is removed."""
    steps = 0
    while True:
        verbs = ("put_if_absent", "make_directory", "publish", "move_directory", "delete")
        with dying(monkeypatch, steps, verbs):
            status = penstock("adopt", theirs.root, "--unlisted", "aside").status
        if theirs.log.exists():
            assert len(os.listdir(theirs.log)) == 6
        if status == 0:
            break
        assert status == 130
        steps += 1
    assert steps > 5
    facts = penstock("adopt", theirs.root, "--json").facts
    assert (facts["done"], facts["files"], facts["rows"], facts["unlisted"]) == (True, 3, 35, [])
    assert penstock("verify", theirs.root).status == 0
    assert files(penstock("files", theirs.root, "--json")) == dict(zip(LISTED, (10, 20, 5), strict=True))


def test_log_that_grew_is_adopted_again(penstock: Callable[..., Said], theirs: Theirs) -> None:
    """If a Spark query is started again all the same, it begins a new log; after a second adoption its files are in the ledger too."""
    penstock("adopt", theirs.root, "--unlisted", "aside")
    theirs.log.mkdir()
    theirs.commit("4", theirs.put("k=1/new.snappy.parquet", 7))
    facts = penstock("adopt", theirs.root, "--json").facts
    assert (facts["done"], facts["files"], facts["rows"]) == (True, 4, 42)
    assert facts["kept_log"].endswith("_spark_metadata-2")
    assert penstock("verify", theirs.root).status == 0


def test_adoption_can_be_taken_back(penstock: Callable[..., Said], theirs: Theirs) -> None:
    """The documented way back: with the log and unlisted files moved back and the ledger removed, the output is as before."""
    before = sorted(str(path.relative_to(theirs.root)) for path in theirs.root.rglob("*"))
    facts = penstock("adopt", theirs.root, "--unlisted", "aside", "--json").facts
    os.rename(facts["kept_log"], theirs.log)
    os.rename(f"{facts['kept_unlisted']}/{LEFT}", theirs.root / LEFT)
    os.system(f"rm -r {theirs.root}/_penstock/spark-file-sink && rmdir {theirs.root}/_penstock")  # noqa: S605 - as a user would
    assert sorted(str(path.relative_to(theirs.root)) for path in theirs.root.rglob("*")) == before


def test_output_that_was_moved(penstock: Callable[..., Said], theirs: Theirs, tmp_path: Path) -> None:
    """The log has the paths from before the move; the files are found all the same."""
    theirs.root.rename(tmp_path / "moved")
    facts = penstock("adopt", tmp_path / "moved", "--unlisted", "keep", "--json").facts
    assert (facts["ok"], facts["files"], facts["missing"]) == (True, 3, [])


def test_listed_files_that_are_gone(penstock: Callable[..., Said], theirs: Theirs) -> None:
    """A listed file that is missing or has another size is reported, and not taken for finished."""
    os.unlink(theirs.root / LISTED[0])
    (theirs.root / LISTED[1]).write_bytes(b"short")
    facts = penstock("adopt", theirs.root, "--unlisted", "keep", "--json").facts
    assert (facts["missing"], facts["files"]) == (LISTED[:2], 1)


@pytest.mark.parametrize("damage", ["version", "json", "entry", "gap", "none"])
def test_damaged_logs(theirs: Theirs, damage: str) -> None:
    """A log that is truncated, altered or lacks a batch is an error that names the file, and nothing changes."""
    if damage == "gap":
        theirs.commit("5", theirs.put("k=1/five.snappy.parquet"))
    elif damage == "none":
        for path in theirs.log.iterdir():
            path.unlink()
        theirs.log.rmdir()
    else:
        texts = {"version": "v2\n", "json": 'v1\n{"path": "fi', "entry": 'v1\n{"path": 3, "size": 1}'}
        (theirs.log / "3").write_text(texts[damage])
    before = tree(theirs.root)
    with pytest.raises(OptionError if damage == "none" else DamagedState, match="_spark_metadata"):
        public.adopt(theirs.root, unlisted="aside")
    assert tree(theirs.root) == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a b.txt", "ü%20.txt", "new\nline.txt", "\udcff.txt", "x#y?z.txt", "part.orc"])
def test_hostile_names(penstock: Callable[..., Said], tmp_path: Path, name: str) -> None:
    """File names that a URI has to escape are recovered as they were."""
    theirs = Theirs(tmp_path / "out dir")
    theirs.commit("0", theirs.put(name))
    facts = penstock("adopt", theirs.root, "--json").facts
    assert (facts["ok"], facts["missing"], facts["files"]) == (True, [], 1)
    assert list(files(penstock("files", theirs.root, "--json"))) == [name]
    assert penstock("verify", theirs.root).status == 0


def test_bad_calls(theirs: Theirs) -> None:
    """Invalid values of flags are refused with the valid ones."""
    with pytest.raises(OptionError, match="expected 'aside' or 'keep'"):
        public.adopt(theirs.root, unlisted="delete")
    with pytest.raises(OptionError, match="did you mean 'unlisted'"):
        public.adopt(theirs.root, unlistd="keep")  # type: ignore[call-arg]
