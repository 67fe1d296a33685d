"""A checkpoint that was put back from an older copy is not gone on with when files that it has not read were cleaned. Without Spark."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from penstock import clock, failpoints
from penstock.errors import FilesCleaned
from penstock.query.offset import summed
from penstock.source.cleaned import Marks, Reached, check_not_cleaned_since, home_of
from penstock.storage import LocalStorage
from penstock.testing import FakeClock
from tests.source.test_clean import Query, archiving, put, there
from tests.support.follows import follows

SOURCES = ("archive", "delete")


def query(src: Path, old: Path, mode: str, **options: str) -> Query:
    """Return a query of one file a batch, which cleans in this mode."""
    options = {"maxFilesPerTrigger": "1", **options}
    return archiving(src, old, **options) if mode == "archive" else Query(src, cleanSource="delete", **options)


def five(src: Path) -> None:
    """Put five files, each a second newer than the one before."""
    for number in range(5):
        put(src / f"f{number}", f"{number}\n", 1_000_000_000 + number)


def put_back(query: Query, batches: int) -> None:
    """Put output and checkpoint back as they were after this many batches, and start again."""
    query.log = query.log[:batches]
    query.rows = query.rows[:batches]
    query.restart()


def marks(src: Path) -> list[str]:
    """Return the notes of how far readers are cleaned."""
    return sorted(path.name for path in (src / "_penstock-readers").glob("*/cleaned-*"))


@pytest.mark.parametrize("mode", SOURCES)
@pytest.mark.parametrize("in_flight", [False, True])
def test_output_and_checkpoint_that_were_put_back_together_are_refused(
    src: Path, old: Path, mode: str, *, in_flight: bool
) -> None:
    """Failure 1: the rows of files that were cleaned since the copy would be in no output. Nothing is written of a batch in flight."""
    five(src)
    source = query(src, old, mode)
    assert source.run() == ["0", "1", "2", "3", "4"]
    assert there(src) == []
    put_back(source, 2)
    for _ in range(2):
        with pytest.raises(
            FilesCleaned, match="found 2 files planned, expected 5 or more; it was put back from an older copy"
        ):
            source.read() if in_flight else source.plan()
    assert marks(src) == ["cleaned-0-5"]


@follows("PST-206")
@pytest.mark.parametrize("mode", SOURCES)
def test_files_that_are_put_back_are_read(src: Path, old: Path, mode: str) -> None:
    """PST-206's advice: once the files are back and the note is removed, every row is read, once, as from then on."""
    five(src)
    copy = shutil.copytree(src, src.with_name("copy"))
    source = query(src, old, mode)
    source.run()
    put_back(source, 2)
    with pytest.raises(FilesCleaned) as refused:
        source.plan()
    quoted = refused.value.message.split("'")[1::2]
    named = [Path(name) for name in quoted if name.startswith(f"{old}/")]
    assert [path.name for path in named] == (["f2", "f3", "f4"] if mode == "archive" else [])
    for name in ("f2", "f3", "f4"):
        shutil.move(old / name if mode == "archive" else copy / name, src / name)
    for name in quoted:
        if Path(name).name.startswith("cleaned-"):
            Path(name).unlink()
    assert source.run() == ["2", "3", "4"]
    put(src / "g", "5\n", 1_000_000_009)
    source.restart()
    assert source.run() == ["5"]
    assert there(src) == []
    assert marks(src) == ["cleaned-0-6"]


def test_only_files_that_the_query_selects_are_named(src: Path, old: Path) -> None:
    """Failure 1: an archive may hold files of several readers; a message names ten of many, and counts the others."""
    for number in range(15):
        put(src / f"f{number:02}", seconds=1_000_000_000 + number)
    source = query(src, old, "archive", pathGlobFilter="f*")
    source.run()
    put(old / "other", seconds=1_000_000_020)
    put_back(source, 2)
    with pytest.raises(FilesCleaned, match=r"\(13 files in '.*/f02', .*/f11' and 3 more\)") as refused:
        source.plan()
    assert "other'" not in refused.value.message


@pytest.mark.parametrize("mode", SOURCES)
def test_a_query_that_goes_on_with_what_it_knows_is_never_refused(src: Path, old: Path, mode: str) -> None:
    """Failures 3 and 9 to 11: a replay of the last batch, a new checkpoint, an input that was put back, too, and one without marks."""
    five(src)
    source = query(src, old, mode)
    copies: list[Path] = []
    while source.plan():
        source.read()
        copies.append(shutil.copytree(src, src.with_name(f"copy-{len(copies)}")))
        source.restart()
        if mode == "archive":
            source.read()  # Spark's commit log has lost its last entry
    put_back(source, 3)
    shutil.rmtree(src)
    copies[2].rename(src)
    if mode == "archive":  # for the copy has it again
        (old / "f2").unlink()
    source.read()
    assert source.run() == ["3", "4"]
    new = query(src, old, mode)
    put(src / "g", "5\n", 1_000_000_009)
    assert new.run() == ["5"]
    for mark in src.glob("_penstock-readers/*/cleaned-*"):
        mark.unlink()
    put_back(source, 1)
    assert source.run() == ["5"], "f1 to f4 were cleaned by a version that put no marks"


def test_a_late_driver_does_not_set_a_mark_back(src: Path) -> None:
    """Failure 4: of two drivers of a query, the one that stood still marks the batch that it has in hand after the other has gone on."""
    storage, late, next_one = LocalStorage(), Marks(LocalStorage(), str(src)), Marks(LocalStorage(), str(src))
    home = src / "_penstock-readers/r"
    home.mkdir(parents=True)
    late.mark("r", Reached(0, 3))
    next_one.mark("r", Reached(0, 9))
    late.mark("r", Reached(0, 4))
    assert marks(src) == ["cleaned-0-9"]
    (home / "cleaned-0-4").touch()  # it had listed the marks before the other put one
    reader = {"reader": "r", "resets": 0}
    with pytest.raises(FilesCleaned):
        check_not_cleaned_since(storage, str(src), summed({"v": 1, "cursor": None, "read": [8, 0]} | reader))
    next_one.mark("r", Reached(1, 0))
    assert marks(src) == ["cleaned-1-0"]


@pytest.mark.parametrize(
    "name", ["cleaned-", "cleaned-1", "cleaned-0-9.tmp", ".cleaned-0-9", "cleaned-0-x", "Cleaned-0-9"]
)
def test_what_is_no_mark_says_nothing(src: Path, old: Path, name: str) -> None:
    """A temporary file, or one that somebody has put there, is not taken for a mark, and stays."""
    five(src)
    source = query(src, old, "delete")
    source.plan()
    put(src / "_penstock-readers" / json.loads(source.log[0])["reader"] / name)
    source.read()
    source.restart()
    assert source.run() == ["1", "2", "3", "4"]
    assert len(list(src.glob(f"_penstock-readers/*/{name}"))) == 1


@pytest.mark.parametrize("mode", SOURCES)
def test_a_mark_is_there_before_a_file_goes(src: Path, old: Path, mode: str) -> None:
    """Failure 1: the driver dies when the first file of a batch is gone; and if the mark cannot be put, no file goes."""
    five(src)
    source = query(src, old, mode)
    source.plan()
    source.read()
    failpoints.arm("source.clean.marked=error")
    with pytest.raises(OSError, match="failpoint"):
        source.plan()
    failpoints.arm("")
    assert (len(there(src)), marks(src)) == (5, ["cleaned-0-1"])


def test_a_mark_comes_after_what_makes_the_offset_log_durable(
    src: Path, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failure 2: a power cut must not leave the mark of a batch whose offset it has taken: the next start would be refused."""
    seen: list[list[str]] = []
    monkeypatch.setattr(LocalStorage, "persist_all", lambda _: seen.append(marks(src)))
    five(src)
    query(src, old, "delete", maxFilesPerTrigger="3").run()
    assert seen == [[], ["cleaned-0-3"]]


@pytest.mark.parametrize("mode", SOURCES)
def test_what_another_reader_takes_away_is_marked_for_both(src: Path, old: Path, mode: str) -> None:
    """Failure 5: the file goes with the second reader's batch; the first one's checkpoint is put back to before it had read it."""
    five(src)
    first, second = (query(src, old, mode, maxFilesPerTrigger=str(limit)) for limit in (2, 5))
    for source in (first, second):  # both say that they clean before anything is read
        source.plan()
        source.read()
    first.run()
    second.run()
    first.restart()
    first.run()
    assert there(src) == []
    assert marks(src) == ["cleaned-0-5"] * 2
    put_back(first, 1)
    with pytest.raises(FilesCleaned):
        first.plan()
    second.restart()
    assert second.run() == []


@pytest.mark.parametrize("batches", [1, 2])
def test_a_copy_that_has_read_all_that_was_cleaned_is_gone_on_with(src: Path, old: Path, batches: int) -> None:
    """Failures 6 and 7: files wait for `retention`. What was cleaned is marked, not what was read; later notes say nothing."""
    with clock.use(FakeClock(2_000_000_000)):
        five(src)
        source = query(src, old, "delete", retention="1h")
        for _ in range(3):
            source.plan()
            source.read()
        clock.sleep(3000)
        source.run()  # files 2 to 4 are noted later
        clock.sleep(1000)
        source.plan()
        assert (there(src), marks(src)) == (["f2", "f3", "f4"], ["cleaned-0-2"])
        put_back(source, batches)
        if batches == 1:
            with pytest.raises(FilesCleaned):
                source.plan()
            return
        clock.sleep(4000)  # so that what was noted after the copy would be cleaned now
        assert source.run() == ["2", "3", "4"]
        assert there(src) == ["f2", "f3", "f4"], "the time counts from when they were read by the query that goes on"
        clock.sleep(4000)
        source.plan()
        assert there(src) == []


def test_a_copy_is_refused_also_if_the_query_does_not_clean_any_more(src: Path, old: Path) -> None:
    """Failure 1, and the user takes `cleanSource` off when the copy is put back, as a precaution: the files are as gone."""
    five(src)
    source = query(src, old, "delete")
    source.run()
    source.log = source.log[:2]
    source.given.pop("cleanSource")
    source.restart()
    with pytest.raises(FilesCleaned):
        source.plan()


def test_a_mark_of_another_is_made_durable_and_then_known(src: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who put the mark may have died before it was durable, so it is synced; this process then knows it, and touches nothing."""
    at = Reached(0, 3)
    LocalStorage().make_directory(home_of(str(src), "r"))
    Marks(LocalStorage(), str(src)).mark("r", at)
    synced: list[list[str]] = []
    monkeypatch.setattr(LocalStorage, "persist", lambda _self, _home, names: synced.append(names))
    second = Marks(LocalStorage(), str(src))
    second.mark("r", at)
    assert synced == [[at.mark]]
    monkeypatch.delattr(LocalStorage, "names")
    second.mark("r", at)
    second.mark("r", Reached(0, 2))


def test_what_was_planned_before_a_reset_says_nothing_about_later() -> None:
    """A query that was set back has planned nothing since then of what it had planned before."""
    assert Reached(1, 3).covers(Reached(1, 2))
    assert not Reached(1, 3).covers(Reached(1, 4))
    assert not Reached(1, 3).covers(Reached(0, 2))
    assert not Reached(0, 3).covers(Reached(1, 2))


@pytest.mark.parametrize("resets", [0, 1])
def test_a_reset_is_told_only_where_there_was_one(src: Path, resets: int) -> None:
    """The message compares numbers of files; if the reader was set back since, they count from there, and it says so."""
    LocalStorage().make_directory(home_of(str(src), "r"))
    Marks(LocalStorage(), str(src)).mark("r", Reached(resets, 3))
    with pytest.raises(FilesCleaned) as caught:
        check_not_cleaned_since(LocalStorage(), str(src), {"reader": "r", "resets": 0, "read": [1, 1]})
    assert ("after it was set back" in caught.value.message) == bool(resets)
