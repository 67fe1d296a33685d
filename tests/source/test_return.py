"""Files that go away and come back, and files that only seem to: each is read once, or reported. Without Spark."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock import clock
from penstock.errors import FileTooLate, StorageError
from penstock.query.offset import summed
from penstock.source import recent
from penstock.source.cursor import FileVersion
from penstock.storage import LocalStorage
from tests.source.test_plan import Folder, names, through_json
from tests.support.follows import follows


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "in")


def run(folder: Folder, at: dict[str, Any] | None, **options: Any) -> tuple[list[str], dict[str, Any]]:
    """Do one run of a query: a new planner, batches until nothing is left; return the files and the end offset."""
    planner = folder.planner(**options)
    at = at or planner.initial()
    files: list[str] = []
    while (end := through_json(planner.latest(at))) != at:
        files += names(planner, end)
        at = end
    return files, at


def shell(*command: str | Path) -> None:
    """Run a command as a user would."""
    subprocess.run([str(word) for word in command], check=True)


def tick() -> None:
    """Let the kernel's clock, which stamps the arrival of files, advance."""
    clock.sleep(0.03)


def test_file_that_was_away_during_a_restart_is_read_once(folder: Folder, tmp_path: Path) -> None:
    """a, b, c are read; b is moved away, d is read; b is put back with its time: it is not read again."""
    for i, name in enumerate("abc"):
        folder.put(name, 6000 + i)
    files, at = run(folder, None)
    assert files == ["a", "b", "c"]
    (folder.path / "b").rename(tmp_path / "b")
    folder.put("d", 6003)
    files, at = run(folder, at)
    assert files == ["d"]
    (tmp_path / "b").rename(folder.path / "b")
    assert run(folder, at) == ([], at)
    folder.put("e", 6004)
    files, at = run(folder, at)
    assert files == ["e"]
    folder.put("b", 6001, b"another\n")
    assert run(folder, at)[0] == ["b"]


@pytest.mark.parametrize("count", [3, 300])
def test_directory_that_was_away_during_restarts_is_read_once(folder: Folder, tmp_path: Path, count: int) -> None:
    """A directory of 3 or of up to 40 files is moved away, stays away for three runs with batches, and comes back."""
    for i in range(count):
        folder.put(f"x/f{i}", 6000)
    folder.put("a", 6001)
    away = min(count, 40)  # as many as the table can tell apart
    for i in range(away):
        folder.put(f"y/f{i}", 6000)
    files, at = run(folder, None, recursiveFileLookup="true")
    assert len(files) == count + away + 1
    (folder.path / "y").rename(tmp_path / "y")
    for i in range(3):
        folder.put(f"new{i}", 6002 + i)
        files, at = run(folder, at, recursiveFileLookup="true")
        assert files == [f"new{i}"]
    (tmp_path / "y").rename(folder.path / "y")
    assert run(folder, at, recursiveFileLookup="true")[0] == []
    folder.put("y/late", 6000)
    assert run(folder, at, recursiveFileLookup="true")[0] == ["y/late"]


def test_file_that_was_renamed_and_back_is_read_under_each_name_once(folder: Folder) -> None:
    """A new name is a new file; when the old name exists again, it is the old file."""
    folder.put("a", 6000)
    folder.put("z", 6001)
    _, at = run(folder, None)
    for expected in (["b"], [], []):
        source, target = ("a", "b") if (folder.path / "a").exists() else ("b", "a")
        (folder.path / source).rename(folder.path / target)
        files, at = run(folder, at)
        assert files == expected


def test_file_is_away_while_the_process_lives_and_back_after_a_restart(folder: Folder, tmp_path: Path) -> None:
    """What went away before the last batch was planned need not be found by comparison: the offset itself has it."""
    folder.put("a", 6000)
    folder.put("b", 6001)
    planner = folder.planner()
    at = through_json(planner.latest(planner.initial()))
    (folder.path / "a").rename(tmp_path / "a")
    folder.put("c", 6002)
    at = through_json(planner.latest(at))
    assert names(planner, at) == ["c"]
    (tmp_path / "a").rename(folder.path / "a")
    assert run(folder, at) == ([], at)


def test_file_that_is_back_may_go_again(folder: Folder, tmp_path: Path) -> None:
    """Away, back, away and back, in one process and across restarts, in any order: never read again."""
    for i in range(70):  # enough for a table instead of a list
        folder.put(f"f{i}", 6000 + i / 100)
    planner = folder.planner()
    at = through_json(planner.latest(planner.initial()))
    draw = random.Random(5)  # noqa: S311 - which files go is no secret
    away: set[str] = set()
    for step in range(60):
        name = f"f{draw.randrange(12)}"
        if name in away:
            (tmp_path / name).rename(folder.path / name)
            away.discard(name)
        else:
            (folder.path / name).rename(tmp_path / name)
            away.add(name)
        expected = []
        if step % 3 == 0:
            expected = [f"new{step}"]
            folder.put(expected[0], 6001 + step / 100)
        if draw.random() < 0.5:
            planner = folder.planner()
        end = through_json(planner.latest(at))
        assert (names(planner, end) if end != at else []) == expected
        at = end


def test_what_is_away_is_forgotten_after_lateness(folder: Folder) -> None:
    """The offset remembers missing files for as long as lateness requires, and no longer."""
    for i in range(100):
        folder.put(f"f{i}", 6000)
        if i < 30:
            (folder.path / f"f{i}").rename(folder.path.parent / f"f{i}") if i % 2 else None
    planner = folder.planner()
    at = through_json(planner.latest(planner.initial()))
    for i in range(40):
        (folder.path / f"f{i}").unlink(missing_ok=True)
    folder.put("near", 6050)
    _, at = run(folder, at)
    assert len(at["recent"]["gone"]) > 20 * 21
    folder.put("far", 6101)
    _, at = run(folder, at)
    assert "gone" not in at["recent"]


def test_more_is_away_than_the_offset_keeps(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    """A consumer took 2,000 files away: the offset knows the newest; for older ones a warning says that it cannot tell."""
    for i in range(2100):
        folder.put(f"f{i:04}", 6000 + i / 100)
    planner = folder.planner(maxFilesPerTrigger="10000")
    at = through_json(planner.latest(planner.initial()))
    for i in range(2000):
        (folder.path / f"f{i:04}").unlink()
    folder.put("next", 6022)
    at = through_json(planner.latest(at))
    assert len(json.dumps(at)) < 20_000
    tick()
    folder.put("f1999", 6019.99)  # one of the newest that went: known
    folder.put("new", 6019.995)  # not older than those
    folder.put("f0000", 6000)  # one that the offset no longer has
    with caplog.at_level(logging.WARNING, "penstock.source"):
        files, at = run(folder, at)
    assert files == ["new"]
    assert "'f0000' (1 file)" in caplog.text
    assert "nobody can tell which" in caplog.text
    assert "f1999" not in caplog.text


def test_difference_too_large_to_tell_and_then_something_comes_back(
    folder: Folder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Hundreds of files disappear while no query runs; when they come back they are reported, and never read twice."""
    for i in range(1000):
        folder.put(f"f{i}", 6000)
    tick()
    _, at = run(folder, None)
    for i in range(500):
        (folder.path / f"f{i}").rename(tmp_path / f"f{i}")
    folder.put("a", 6001)
    tick()
    files, at = run(folder, at)
    assert files == ["a"]
    tick()
    for i in range(500):
        (tmp_path / f"f{i}").rename(folder.path / f"f{i}")
    folder.put("b", 6002)
    with caplog.at_level(logging.WARNING, "penstock.source"):
        files, at = run(folder, at)
    assert files == ["b"]
    assert "(500 files)" in caplog.text
    folder.put("late", 6001.5)  # behind the current cursor, but not behind the former one
    assert run(folder, at)[0] == ["late"]


def test_late_file_that_waits_is_not_taken_for_read(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    """A late file waits for its batch when the driver dies and a hundred files disappear: it is reported, not skipped."""
    for i in range(200):
        folder.put(f"f{i}", 6000)
    tick()
    planner = folder.planner(maxFilesPerTrigger="200")
    at = through_json(planner.latest(planner.initial()))
    for name in ("late1", "late2"):
        folder.put(name, 5999)
    planner = folder.planner(maxFilesPerTrigger="1")
    at = through_json(planner.latest(at))
    assert names(planner, at) == ["late1"]
    for i in range(100):
        (folder.path / f"f{i}").unlink()
    tick()
    with caplog.at_level(logging.WARNING, "penstock.source"):
        assert run(folder, at)[0] == []
    assert "'late2'" in caplog.text


def test_late_files_of_a_bounded_run_are_of_the_next(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    """Files that appear behind the cursor during an AvailableNow run are read, or reported, by the next run."""
    for i in range(3):
        folder.put(f"f{i}", 6000 + i)
    tick()
    planner = folder.planner(maxFilesPerTrigger="1")
    planner.prepare_available_now()
    at = through_json(planner.latest(planner.initial()))
    folder.put("late", 5950)
    folder.put("too late", 1000)
    while (end := through_json(planner.latest(at))) != at:
        assert names(planner, end)[0].startswith("f")
        at = end
    tick()
    with caplog.at_level(logging.WARNING, "penstock.source"):
        assert run(folder, at)[0] == ["late"]
    assert "'too late'" in caplog.text
    caplog.clear()
    planner.prepare_available_now()  # with the same planner, in case it lives on
    assert names(planner, planner.latest(at)) == ["late"]


def test_directory_with_old_files_is_moved_in_while_no_query_runs(
    folder: Folder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """HZ-7: an old tree is moved in unchanged: its files, whose inodes nobody touched, are reported, however many there are."""
    folder.put("a", 6000)
    elsewhere = Folder(tmp_path / "elsewhere")
    for i in range(100):
        elsewhere.put(f"tree/deep/f{i}", 1000)
        elsewhere.put(f"near/f{i}", 5990)
    tick()
    _, at = run(folder, None, recursiveFileLookup="true")
    tick()
    (elsewhere.path / "tree").rename(folder.path / "tree")
    with caplog.at_level(logging.WARNING, "penstock.source"):
        assert run(folder, at, recursiveFileLookup="true")[0] == []
    assert "(100 files): appeared, older than the cursor" in caplog.text
    for i in range(100):  # now the offset has tables, and can tell neither kind apart
        folder.put(f"old{i}", 1001)
        folder.put(f"new{i}", 6001)
    _, at = run(folder, at, recursiveFileLookup="true")
    for i in range(100):
        (folder.path / f"new{i}").unlink()
    caplog.clear()
    tick()
    (elsewhere.path / "near").rename(folder.path / "near")
    with caplog.at_level(logging.WARNING, "penstock.source"):
        assert run(folder, at, recursiveFileLookup="true")[0] == []
    assert "(100 files): appeared before the cursor, or were read" in caplog.text


def test_another_directory_takes_the_place(folder: Folder, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another directory with 200 old files is moved to the path: its files are reported, and not taken for read."""
    for i in range(100):
        folder.put(f"f{i}", 6000)
    other = Folder(tmp_path / "other")
    for i in range(100):
        other.put(f"e{i}", 6000)
        other.put(f"h{i}", 1000)
    tick()
    _, at = run(folder, None)
    folder.path.rename(tmp_path / "before")
    other.path.rename(folder.path)
    with caplog.at_level(logging.WARNING, "penstock.source"):
        assert run(folder, at)[0] == []
    assert "(100 files): appeared before the cursor, or were read" in caplog.text
    assert "(100 files): appeared, older than the cursor" in caplog.text


def test_pattern_that_lets_in_what_was_passed_over(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    """HZ-20: files that another pattern admits are read within lateness and reported otherwise; read files are not read again."""
    for i in range(3):
        folder.put(f"{i}.json", 6000 + i)
        folder.put(f"{i}.csv", 6000 + i)
        folder.put(f"old{i}.csv", 1000 + i)
        folder.put(f"old{i}.json", 1000 + i)
    tick()
    files, at = run(folder, None, pattern=r".*\.json")
    assert len(files) == 6
    with caplog.at_level(logging.WARNING, "penstock.source"):
        files, at = run(folder, at)
    assert files == ["0.csv", "1.csv", "2.csv"]
    assert "(3 files): appeared, older than the cursor" in caplog.text
    files, at = run(folder, at, pattern=r".*\.csv")
    folder.put("3.csv", 6005)
    files, at = run(folder, at, pattern=r".*\.csv")
    assert files == ["3.csv"]
    assert run(folder, at)[0] == []


def test_pattern_that_lets_in_more_than_can_be_told(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    """If another pattern admits hundreds, arrival times do not help: those files were there, but not checked. They are reported."""
    for i in range(200):
        folder.put(f"{i}.json", 6000)
        folder.put(f"{i}.csv", 6000)
    tick()
    files, at = run(folder, None, pattern=r".*\.json")
    assert len(files) == 200
    with caplog.at_level(logging.WARNING, "penstock.source"):
        assert run(folder, at)[0] == []
    assert "(400 files): appeared before the cursor, or were read" in caplog.text


def touched_by(change: str, path: Path) -> None:
    """Change the inode of a file, but nothing that makes it another version."""
    if change == "chmod":
        path.chmod(0o640)
    elif change == "chown":
        shell("chown", f"{os.getuid()}:{os.getgid()}", path)
    elif change == "hard link":
        (path.parent.parent / f"{path.name}.link").hardlink_to(path)
    else:  # as restored from a backup, with another inode
        kept = path.with_name(f".{path.name}")
        shutil.copy2(path, kept)
        kept.replace(path)


@pytest.mark.slow
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("count", [3, 300])
@pytest.mark.parametrize("change", ["chmod", "chown", "hard link", "restored"])
def test_file_that_was_read_is_never_late(folder: Folder, change: str, count: int, restart: bool) -> None:
    """With tooLate=fail: what makes no new version (`chmod`, `chown`, links, a copy with its time) makes no file late."""
    for i in range(count):
        folder.put(f"old{i}", 1000 + i / 100)
        folder.put(f"near{i}", 5990 + i / 100)
    planner = folder.planner(tooLate="fail")
    at = through_json(planner.latest(planner.initial()))
    tick()
    for file in folder.path.iterdir():
        touched_by(change, file)
    planner = folder.planner(tooLate="fail") if restart else planner
    for _ in range(3):
        assert planner.latest(at) == at
    folder.put("next", 6001)
    assert names(planner, planner.latest(at)) == ["next"]


@pytest.mark.slow
def test_old_files_are_deleted_by_the_thousand(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    """Deleting files older than lateness leaves files within it decidable, and makes no file late."""
    for i in range(1000):
        folder.put(f"old{i}", 1000)
        folder.put(f"near{i}", 6000)
    tick()
    _, at = run(folder, None, tooLate="fail")
    for i in range(900):
        (folder.path / f"old{i}").unlink()
    for i in range(20):
        (folder.path / f"near{i}").unlink()
    tick()
    folder.put("late", 5999)
    with caplog.at_level(logging.WARNING, "penstock.source"):
        assert run(folder, at, tooLate="fail")[0] == ["late"]
    assert caplog.text == ""


@follows("PST-204")
def test_advice_of_a_late_file(folder: Folder) -> None:
    """PST-204's advice: after `touch`, a file that came too late is read once, and nothing else is."""
    for i in range(3):
        folder.put(f"f{i}", 6000 + i)
    _, at = run(folder, None, tooLate="fail")
    folder.put("ancient", 1000)
    with pytest.raises(FileTooLate, match="'ancient'.*touch them to have them read as new"):
        run(folder, at, tooLate="fail")
    shell("touch", "-d", "@7000", folder.path / "ancient")
    files, at = run(folder, at, tooLate="fail")
    assert files == ["ancient"]
    assert run(folder, at, tooLate="fail") == ([], at)


@follows("PST-204")
def test_advice_where_it_cannot_be_told(folder: Folder, tmp_path: Path) -> None:
    """PST-204's advice if late and read files cannot be told apart: look, touch the missing ones, report once."""
    for i in range(500):
        folder.put(f"f{i}", 6000)
    tick()
    output, at = run(folder, None, tooLate="fail")
    for i in range(150):
        (folder.path / f"f{i}").rename(tmp_path / f"f{i}")
    tick()
    for i in range(100, 150):
        (tmp_path / f"f{i}").rename(folder.path / f"f{i}")
    folder.put("late", 5999)
    with pytest.raises(
        FileTooLate,
        match=r"\(51 files\).*nobody can tell which.*have those that are missing read.*touch.*tooLate=report",
    ):
        run(folder, at, tooLate="fail")
    missing = sorted(file for file in os.listdir(folder.path) if file not in output)
    assert missing == ["late"]
    shell("touch", "-d", "@7000", folder.path / "late")
    files, at = run(folder, at, tooLate="report")
    assert files == ["late"]
    assert run(folder, at, tooLate="fail") == ([], at)


def test_told_files_are_told_once(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    """A file that was reported as late is not reported again by each run after the next batch."""
    folder.put("a", 6000)
    _, at = run(folder, None)
    tick()
    folder.put("ancient", 1000)
    folder.put("b", 6001)
    with caplog.at_level(logging.WARNING, "penstock.source"):
        _, at = run(folder, at)
        assert caplog.text.count("'ancient'") == 1
        folder.put("c", 6002)
        _, at = run(folder, at)
    assert caplog.text.count("'ancient'") == 1


def test_directory_is_unmounted_for_a_while(folder: Folder, tmp_path: Path) -> None:
    """In one process all files disappear for some triggers and return, however old: none is late, none is read again."""
    for i in range(300):
        folder.put(f"d/old{i}", 1000)
        folder.put(f"d/near{i}", 6000)
    options: dict[str, Any] = {"recursiveFileLookup": "true", "tooLate": "fail"}
    planner = folder.planner(**options)
    at = through_json(planner.latest(planner.initial()))
    (folder.path / "d").rename(tmp_path / "d")
    for i in range(3):
        folder.put(f"e/new{i}", 6001 + 30 * i)
        at = through_json(planner.latest(at))
        assert names(planner, at) == [f"e/new{i}"]
    (tmp_path / "d").rename(folder.path / "d")
    assert planner.latest(at) == at


@pytest.mark.parametrize("restart", [False, True])
def test_directory_that_may_not_be_listed_for_a_while(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, restart: bool
) -> None:
    """HZ-26: permission is lost and restored: an error in between, and nothing twice, lost or late."""
    for i in range(100):
        folder.put(f"{i % 5}/f{i}", 6000 + i / 100)
        folder.put(f"{i % 5}/old{i}", 1000)
    options: dict[str, Any] = {"recursiveFileLookup": "true", "tooLate": "fail"}
    planner = folder.planner(**options)
    at = through_json(planner.latest(planner.initial()))
    folder.put("3/late", 5999)
    names_of: Callable[..., Any] = LocalStorage.names

    def closed(self: LocalStorage, path: str) -> Any:
        if path.endswith("/3"):
            msg = "Permission denied"
            raise StorageError(msg)
        return names_of(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "names", closed)
        for _ in range(2):
            planner = folder.planner(**options) if restart else planner
            with pytest.raises(StorageError):
                planner.latest(at)
    assert names(planner, planner.latest(at)) == ["3/late"]


def test_file_that_comes_back_before_its_newer_version_is_read(folder: Folder) -> None:
    """A rewrite of `a` is undone before it was planned: what was read stays read, and no missing version is planned."""
    folder.put("a", 6000)
    planner = folder.planner()
    at = through_json(planner.latest(planner.initial()))
    folder.put("a", clock.now_ns() / 1e9, b"rewritten\n")
    assert planner.latest(at) == at  # it has not settled yet
    folder.put("a", 6000)
    assert planner.latest(at) == at
    folder.put("b", 6001)
    assert names(planner, planner.latest(at)) == ["b"]


def test_offsets_of_before_are_gone_on_from(folder: Folder, tmp_path: Path) -> None:
    """An offset of the previous version, without times and without missing or older files, keeps its meaning."""
    for many in (3, 300):
        for i in range(many):
            folder.put(f"{many}-{i}", 6000 + i / 100)
        _, at = run(folder, None)
        old = {name: value for name, value in at.items() if name not in {"sum", "sure"}}
        old["recent"] = {
            name: at["recent"][name] for name in ("from", "keys", "cells", "count") if name in at["recent"]
        }
        at = through_json(summed(old))
        (folder.path / f"{many}-1").rename(tmp_path / "away")
        folder.put("late", 5999)
        folder.put("next", 6010)
        files, at = run(folder, at)
        assert files == ["late", "next"]
        (tmp_path / "away").rename(folder.path / f"{many}-1")
        assert run(folder, at)[0] == []
        shutil.rmtree(folder.path)
        folder.path.mkdir()


def test_tables_tell_what_sets_tell(folder: Folder) -> None:
    """Any additions, departures and returns, across any restarts: the offset's tables answer exactly as plain sets would."""
    draw = random.Random(7)  # noqa: S311 - a seed, no secret
    more = count()
    for size in (0, 1, 59, 60, 61, 400):
        memory = recent.Recent(from_ns=1000)
        there: set[int] = set()
        away: set[int] = set()
        for number in range(size):
            memory.add([version(number)])
            there.add(number)
        for _ in range(6):
            for number in draw.sample(sorted(there), min(len(there), 5)):
                memory.leave([version(number)])
                there.discard(number)
                away.add(number)
            for number in draw.sample(sorted(away), min(len(away), 3)):
                memory.add([version(number)])
                away.discard(number)
                there.add(number)
            form = through_json(memory.to_json())
            left = set(draw.sample(sorted(there), min(len(there), 6)))
            back = set(draw.sample(sorted(away), min(len(away), 2)))
            new = {size + next(more) for _ in range(draw.randrange(5))}
            now = {version(number).key: version(number).modified_ns for number in (there - left) | back | new}
            answer = recent.recall(form, now, (), 10**12)
            assert answer.near == {version(number).key for number in new}
            assert answer.away.keys() == {version(number).key for number in (away - back) | left}
            times = {version(number).key: version(number).modified_ns for number in away | left}
            assert all(0 <= answer.away[key] - times[key] < 10**9 for key in answer.away)
            memory = recent.Recent(1000, answer.away, answer.away_from_ns)
            there = (there - left) | back | new
            away = (away - back) | left
            memory.add(version(number) for number in there)


def version(number: int) -> FileVersion:
    """Return a file version."""
    return FileVersion(f"f{number}", number, 10**11 + number * 7_777_777, "")


@pytest.mark.parametrize("cursor", [-(10**10), 0, 10**9, 10**18, 4_294_967_296 * 10**9 + 5])
def test_times_of_what_is_away_are_kept_to_the_second(cursor: int) -> None:
    """HZ-10: 32 bits of seconds mean the latest such time up to the cursor, on both sides of the epoch and of the year 2106."""
    files = [FileVersion(f"f{ago}", 1, cursor - ago, "") for ago in (0, 1, 999_999_999, 10**9, 10**15)]
    memory = recent.Recent()
    memory.add(files)
    memory.leave(files)
    answer = recent.recall(through_json(memory.to_json()), {}, (), cursor)
    assert answer.away.keys() == {file.key for file in files}
    assert all(0 <= answer.away[file.key] - file.modified_ns < 10**9 for file in files)
