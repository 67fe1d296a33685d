"""What is planned, in which order, and that the offset alone is enough to continue: without Spark."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from penstock import clock
from penstock.errors import DamagedState, FileTooLate, NotThere, OptionError
from penstock.options import SOURCE, parse
from penstock.query.offset import summed
from penstock.source import sides
from penstock.source.plan import Planner
from penstock.storage import TEMPORARY, LocalStorage
from penstock.testing import CrashHdfs, FakeClock, ObjectStore
from penstock.testing.objects import StoredObject, StoreImage

SECOND = 1_000_000_000


class Folder:
    """A source directory with files whose times the test sets, and planners over it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def put(self, name: str, seconds: float, data: bytes = b"x\n") -> None:
        """Write a file whose modification time is `seconds` after the epoch."""
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        os.utime(file, ns=(int(seconds * SECOND),) * 2)

    def planner(self, *, divisible: bool = True, state: str | None = None, **options: Any) -> Planner:
        """Return a new planner, as a starting driver would have."""
        checked = parse(SOURCE, {"path": str(self.path), "lateness": "100s", **options}, what="source")
        beside = (LocalStorage(), state) if state else None
        return Planner(LocalStorage(), str(self.path), checked, divisible=lambda _: divisible, state=beside)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "in")


def names(planner: Planner, offset: dict[str, Any]) -> list[str]:
    """Return the files of a batch."""
    return [split.file.path for split in planner.splits(offset)]


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    """Return the offset as it comes back from Spark's log."""
    back: dict[str, Any] = json.loads(json.dumps(offset))
    return back


def batches(planner: Planner, start: dict[str, Any] | None = None) -> list[list[str]]:
    """Plan until nothing is left; return the files of each batch."""
    at = start or planner.initial()
    found = []
    while (end := through_json(planner.latest(at))) != at:
        found.append(names(planner, end))
        at = end
    return found


def fail_listing(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Make the listing with this number fail."""
    names_of, calls = LocalStorage.names, []

    def failing(self: LocalStorage, path: str) -> Any:
        calls.append(path)
        if len(calls) == call:
            msg = "lost"
            raise NotThere(msg)
        return names_of(self, path)

    monkeypatch.setattr(LocalStorage, "names", failing)


def test_files_come_by_time_then_by_name(folder: Folder) -> None:
    """E1000 C2000 A3000 B4000 D5000 come in that order; F, G and H of one time, then I and J, come as F G H I J."""
    for name, time in {"A": 3000, "B": 4000, "C": 2000, "D": 5000, "E": 1000}.items():
        folder.put(name, time)
    planner = folder.planner()
    first = planner.latest(planner.initial())
    assert names(planner, first) == ["E", "C", "A", "B", "D"]
    for name, time in {"H": 6000, "J": 8000, "G": 6000, "I": 7000, "F": 6000}.items():
        folder.put(name, time)
    second = planner.latest(first)
    assert names(planner, second) == ["F", "G", "H", "I", "J"]
    assert planner.latest(second) is second


def test_restart_between_files_of_one_time(folder: Folder) -> None:
    """After a restart from a cursor at (6000, F), G H I J come again and F does not."""
    for name, time in {"F": 6000, "G": 6000, "H": 6000, "I": 7000, "J": 8000}.items():
        folder.put(name, time)
    planner = folder.planner(maxFilesPerTrigger="1")
    at_f = through_json(planner.latest(planner.initial()))
    assert at_f["cursor"] == [6000 * SECOND, "F"]
    restarted = folder.planner()
    assert names(restarted, restarted.latest(at_f)) == ["G", "H", "I", "J"]


def test_greater_name_of_the_cursors_time_arrives_later(folder: Folder) -> None:
    """HZ-1: a file with the cursor's own time and a greater name is new."""
    folder.put("B", 6000)
    planner = folder.planner()
    end = planner.latest(planner.initial())
    folder.put("C", 6000)
    assert names(planner, planner.latest(end)) == ["C"]


@pytest.mark.parametrize("restart", [False, True])
def test_smaller_name_of_the_cursors_time_arrives_later(folder: Folder, restart: bool) -> None:
    """HZ-2: a file with the cursor's own time and a smaller name is behind the cursor, but is read nonetheless."""
    folder.put("B", 6000)
    planner = folder.planner()
    end = through_json(planner.latest(planner.initial()))
    folder.put("A", 6000)
    planner = folder.planner() if restart else planner
    assert names(planner, planner.latest(end)) == ["A"]


@pytest.mark.parametrize("restart", [False, True])
def test_late_file_within_lateness_is_read_once(folder: Folder, restart: bool) -> None:
    """HZ-6: a renamed file with a time a little behind the cursor is read once, and the cursor stays."""
    folder.put("B", 6000)
    planner = folder.planner()
    end = through_json(planner.latest(planner.initial()))
    folder.put("late", 5950)
    planner = folder.planner() if restart else planner
    end = through_json(planner.latest(end))
    assert names(planner, end) == ["late"]
    assert end["cursor"] == [6000 * SECOND, "B"]
    assert planner.latest(end) is end
    assert folder.planner().latest(end) == end


@pytest.mark.parametrize("restart", [False, True])
def test_file_that_was_away_is_read_once(folder: Folder, tmp_path: Path, restart: bool) -> None:
    """A file that was read, moved away and put back is the same; one with the same time and another size is new (HZ-15)."""
    folder.put("a", 6000)
    folder.put("b", 6001)
    planner = folder.planner()
    end = through_json(planner.latest(planner.initial()))
    (folder.path / "a").rename(tmp_path / "away")
    assert planner.latest(end) == end
    (tmp_path / "away").rename(folder.path / "a")
    planner = folder.planner() if restart else planner
    assert planner.latest(end) == end
    folder.put("a", 6000, b"written anew within a tick\n")
    planner = folder.planner() if restart else planner
    assert names(planner, planner.latest(end)) == ["a"]


def test_lateness_is_exact(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    """SPK-5: a file exactly `lateness` behind the cursor is read, one a nanosecond further behind is reported."""
    folder.put("B", 6000)
    planner = folder.planner(lateness="100s")
    end = planner.latest(planner.initial())
    for name, time in {"at": 5900 * SECOND, "behind": 5900 * SECOND - 1}.items():
        (folder.path / name).write_bytes(b"x\n")
        os.utime(folder.path / name, ns=(time, time))
    with caplog.at_level(logging.WARNING, "penstock.source"):
        assert names(planner, planner.latest(end)) == ["at"]
    assert "'behind'" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 300])
@pytest.mark.parametrize(("before", "after"), [("10s", "1d"), ("1d", "10s"), ("0", "1h"), ("1h", "0")])
def test_lateness_may_change(
    folder: Folder, before: str, after: str, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """HZ-20: after a restart with more or less lateness nothing is read twice; files that came meanwhile are read or reported."""
    for i in range(count):
        folder.put(f"f{i}", 6000 - i)
    clock.sleep(0.03)  # the kernel's clock ticks
    planner = folder.planner(lateness=before)
    end = through_json(planner.latest(planner.initial()))
    restarted = folder.planner(lateness=after)
    assert restarted.latest(end) is end
    folder.put("late", 5990.5)
    folder.put("new", 7000)
    with caplog.at_level(logging.WARNING, "penstock.source"):
        end = through_json(folder.planner(lateness=after).latest(end))
    found = names(planner, end)
    assert found in (["late", "new"], ["new"])
    assert ("'late'" in caplog.text) == ("late" not in found)
    assert ("late" in found) == ("0" not in {before, after})
    assert folder.planner(lateness=after).latest(end) == end


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("data", [b"as long\n", b"longer than before\n", b""])
def test_file_that_is_rewritten_is_read_again(folder: Folder, data: bytes, restart: bool) -> None:
    """APX-30, APX-45, APX-46, HZ-18: a later time makes a new version, even with the same size and inode."""
    folder.put("a", 1000, b"written\n")
    inode = (folder.path / "a").stat().st_ino
    planner = folder.planner()
    end = through_json(planner.latest(planner.initial()))
    folder.put("a", 2000, data)
    assert (folder.path / "a").stat().st_ino == inode
    planner = folder.planner() if restart else planner
    end = through_json(planner.latest(end))
    assert [(s.file.path, s.start, s.end) for s in planner.splits(end)] == [("a", 0, len(data))]
    assert planner.latest(end) == end


def test_names_of_one_file_are_files(folder: Folder) -> None:
    """HZ-18: a hard link and a symbolic link to a file are separate files: path and time define a file."""
    folder.put("a", 1000)
    (folder.path / "b").hardlink_to(folder.path / "a")
    (folder.path / "c").symlink_to(folder.path / "a")
    assert batches(folder.planner()) == [["a", "b", "c"]]


def test_directory_may_be_renamed(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    """HZ-20: plans hold relative paths: after a rename they replay and the query continues; failure 8: a warning says so."""
    folder.put("a/b", 1000)
    planner = folder.planner(recursiveFileLookup="true")
    end = through_json(planner.latest(planner.initial()))
    folder.path = folder.path.rename(folder.path.with_name("elsewhere"))
    folder.put("a/c", 2000)
    moved = folder.planner(recursiveFileLookup="true")
    assert moved.splits(end) == planner.splits(end)
    assert "another path" not in caplog.text
    end = through_json(moved.latest(end))
    assert names(moved, end) == ["a/c"]
    assert "the checkpoint was written for another path" in caplog.text
    caplog.clear()
    again = folder.planner(recursiveFileLookup="true")
    assert again.latest(end) == end
    assert "another path" not in caplog.text


def test_idle_trigger_lists_nothing(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPK-8, HZ-32: one listing serves many batches, and a directory that has not changed for long is not listed again."""
    for i in range(41):
        folder.put(f"f{i}", 1000 + i)
    fail_listing(monkeypatch, 2)
    with clock.use(FakeClock(clock.now_ns() / SECOND + 10)):
        assert [len(batch) for batch in batches(folder.planner(maxFilesPerTrigger="10"))] == [10, 10, 10, 10, 1]


@pytest.mark.parametrize("restart", [False, True])
def test_later_than_lateness_is_reported(folder: Folder, restart: bool, caplog: pytest.LogCaptureFixture) -> None:
    """HZ-6, HZ-7: a file further behind the cursor than lateness is named in a warning, never dropped in silence."""
    folder.put("B", 6000)
    planner = folder.planner()
    end = through_json(planner.latest(planner.initial()))
    clock.sleep(0.03)  # a restart decides by the kernel's time of the file's arrival, which ticks
    folder.put("ancient", 1000)
    planner = folder.planner() if restart else planner
    with caplog.at_level(logging.WARNING, "penstock.source"):
        told = through_json(planner.latest(end))
    assert not names(planner, told)
    assert planner.latest(told) == told
    assert "'ancient'" in caplog.text
    assert "'B'" not in caplog.text


def test_later_than_lateness_can_fail(folder: Folder) -> None:
    """With tooLate=fail such a file stops the query by name, and nothing has moved."""
    folder.put("B", 6000)
    planner = folder.planner(tooLate="fail")
    end = planner.latest(planner.initial())
    clock.sleep(0.03)  # a directory is trusted once it has not changed for a while
    folder.put("ancient", 1000)
    folder.put("new", 7000)
    for _ in range(2):
        with pytest.raises(FileTooLate, match="'ancient'"):
            planner.latest(end)
    (folder.path / "ancient").unlink()
    assert names(planner, planner.latest(end)) == ["new"]


def test_future_file_hides_nothing(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    """HZ-8: a file dated in the future waits and is reported; the files after it are read as they come."""
    folder.put("future", clock.now_ns() / SECOND + 3600)
    folder.put("a", 1000)
    planner = folder.planner()
    with caplog.at_level(logging.WARNING, "penstock.source"):
        end = planner.latest(planner.initial())
    assert names(planner, end) == ["a"]
    assert "'future'" in caplog.text
    folder.put("b", 2000)
    end = planner.latest(end)
    assert names(planner, end) == ["b"]
    folder.put("future", 3000)  # the clock that dated it was corrected
    assert names(planner, planner.latest(end)) == ["future"]


def test_clock_that_steps_back_loses_nothing(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    """HZ-9: while the storage's clock is behind, new files wait and are reported; once it has caught up they are read."""
    time = FakeClock()
    with clock.use(time):
        folder.put("a", time.seconds - 5)
        planner = folder.planner()
        end = planner.latest(planner.initial())
        time.seconds -= 3600
        folder.put("b", time.seconds + 3600 - 4)
        with caplog.at_level(logging.WARNING, "penstock.source"):
            end = planner.latest(end)
        assert not names(planner, end)
        assert end["held"] == [1, 1]
        assert "'b'" in caplog.text
        time.seconds += 3600
        assert names(planner, planner.latest(end)) == ["b"]


@pytest.mark.parametrize("restart", [False, True])
def test_times_before_and_at_the_epoch(folder: Folder, restart: bool) -> None:
    """HZ-10: modification times that are negative, zero or within one second are valid times."""
    for name, time in {"a": -100, "b": 0, "c": -100.5, "d": 5, "e": 5.25}.items():
        folder.put(name, time)
    planner = folder.planner(maxFilesPerTrigger="1")
    at, found = planner.initial(), []
    while (end := through_json(planner.latest(at))) != at:
        found += names(planner, end)
        at, planner = end, folder.planner(maxFilesPerTrigger="1") if restart else planner
    assert found == ["c", "a", "b", "d", "e"]
    assert batches(folder.planner(startingFrom="1969-12-31T23:58:20Z")) == [["a", "b", "d", "e"]]


def test_unsettled_files_wait(folder: Folder) -> None:
    """A file that changed less than `settle` ago waits until it has settled."""
    folder.put("fresh", clock.now_ns() / SECOND)
    planner = folder.planner(settle="300ms")
    start = planner.initial()
    assert planner.latest(start) is start
    clock.sleep(0.35)
    assert names(planner, planner.latest(start)) == ["fresh"]


def test_file_that_keeps_growing_is_planned_as_it_settles(folder: Folder) -> None:
    """HZ-12, HZ-13: a file first seen empty is planned with its size once it stops changing."""
    folder.put("a", clock.now_ns() / SECOND, b"")
    planner = folder.planner(settle="200ms")
    start = planner.initial()
    assert planner.latest(start) is start
    folder.put("a", clock.now_ns() / SECOND, b"grown\n")
    clock.sleep(0.25)
    assert planner.splits(planner.latest(start))[0].end == 6


def test_limits_cut_a_group_of_one_time(folder: Folder) -> None:
    """HZ-4: 1,000 files with one modification time, 300 per batch, across a restart: each once."""
    for i in range(1000):
        folder.put(f"f{i:04}", 5000)
    planner = folder.planner(maxFilesPerTrigger="300")
    first = through_json(planner.latest(planner.initial()))
    rest = batches(folder.planner(maxFilesPerTrigger="300"), first)
    assert [len(batch) for batch in rest] == [300, 300, 100]
    assert sorted([*names(planner, first), *(name for batch in rest for name in batch)]) == [
        f"f{i:04}" for i in range(1000)
    ]


def test_files_per_trigger(folder: Folder) -> None:
    """SPK-1: two files per trigger: 1..3 make {1,2},{3}; then 4..7 exactly two batches, 8..12 three."""
    planner = folder.planner(maxFilesPerTrigger="2")
    at = planner.initial()
    for first, last, sizes in ((1, 3, [2, 1]), (4, 7, [2, 2]), (8, 12, [2, 2, 1])):
        for i in range(first, last + 1):
            folder.put(f"{i:02}", 1000 + i)
        found = []
        while (end := planner.latest(at)) != at:
            found.append(len(names(planner, end)))
            at = end
        assert found == sizes


def test_byte_limit_cuts_inside_a_file(folder: Folder) -> None:
    """A 40-byte file with a 16-byte limit takes three batches with consecutive ranges, also across a restart."""
    folder.put("big", 1000, b"0123456789" * 4)
    folder.put("next", 2000)
    planner = folder.planner(maxBytesPerTrigger="16")
    at, ranges, left = planner.initial(), [], []
    while (end := through_json(planner.latest(at))) != at:
        ranges.append([(s.file.path, s.start, s.end) for s in planner.splits(end)])
        left.append(end["left"])
        at, planner = end, folder.planner(maxBytesPerTrigger="16")
    assert left == [[2, 26], [2, 10], [0, 0]]
    assert ranges == [[("big", 0, 16)], [("big", 16, 32)], [("big", 32, 40), ("next", 0, 2)]]


def test_whole_files_are_not_cut(folder: Folder) -> None:
    """A file that cannot be cut is a batch of its own if it exceeds the limit, and waits for the next batch if it is not the first."""
    folder.put("a", 1000, b"12345")
    folder.put("b", 2000, b"x" * 100)
    folder.put("c", 3000, b"1")
    assert batches(folder.planner(divisible=False, maxBytesPerTrigger="16")) == [["a"], ["b"], ["c"]]


def test_replay_reads_the_plan_not_the_directory(folder: Folder) -> None:
    """APX-23: a batch replayed after the directory changed has the same splits."""
    folder.put("a", 1000)
    planner = folder.planner()
    end = through_json(planner.latest(planner.initial()))
    planned = planner.splits(end)
    folder.put("b", 1000)
    (folder.path / "a").unlink()
    assert folder.planner().splits(end) == planned


def test_replay_under_other_options_keeps_the_plan(folder: Folder) -> None:
    """HZ-20: limit, pattern and packing may change between crash and replay; the plan does not."""
    folder.put("a", 1000, b"12345678")
    planner = folder.planner()
    end = through_json(planner.latest(planner.initial()))
    other = folder.planner(maxBytesPerTrigger="1", pattern="zzz", splitSize="3")
    assert other.splits(end) == planner.splits(end)
    tasks = [(s.start, s.end) for task in other.tasks(end) for s in task]
    assert tasks == [(0, 3), (3, 6), (6, 8)]


def test_idle_trigger_returns_the_same_offset(folder: Folder) -> None:
    """HZ-32: with nothing new the start offset itself is returned, also in a new process."""
    folder.put("a", 1000)
    planner = folder.planner()
    end = planner.latest(planner.initial())
    assert planner.latest(end) is end
    start = through_json(end)
    assert folder.planner().latest(start) is start


def test_empty_files_move_the_cursor(folder: Folder) -> None:
    """HZ-13: an empty file is planned as a split without bytes, and is then done."""
    folder.put("empty", 1000, b"")
    planner = folder.planner()
    end = planner.latest(planner.initial())
    assert [(s.start, s.end) for s in planner.splits(end)] == [(0, 0)]
    assert planner.latest(end) is end


def test_recursive_lookup_finds_new_files_in_new_directories(folder: Folder) -> None:
    """APX-1, APX-3, APX-31: directories are entered on request, even empty ones; a new file in a new directory is found."""
    folder.put("top", 1000)
    folder.put("a/b/deep", 2000)
    (folder.path / "a/empty").mkdir()
    assert batches(folder.planner()) == [["top"]]
    planner = folder.planner(recursiveFileLookup="true")
    end = planner.latest(planner.initial())
    assert names(planner, end) == ["top", "a/b/deep"]
    folder.put("a/new/f", 3000)
    assert names(planner, planner.latest(end)) == ["a/new/f"]


def test_a_single_file_is_a_source(folder: Folder) -> None:
    """APX-19, APX-20: the path of one file is read once; rewritten with a later time it is read again, as a whole (APX-30)."""
    folder.put("one", 1000, b"a\n")
    file = Folder.__new__(Folder)
    file.path = folder.path / "one"
    planner = file.planner()
    end = planner.latest(planner.initial())
    assert [(s.file.path, s.end) for s in planner.splits(end)] == [("", 2)]
    assert planner.latest(end) is end
    folder.put("one", 2000, b"a\nb\n")
    end = planner.latest(end)
    assert [(s.file.path, s.end) for s in planner.splits(end)] == [("", 4)]
    assert planner.latest(end) is end


def test_changed_mode_of_a_single_file_is_no_new_version(folder: Folder) -> None:
    """`chmod`, or a new link to the file, changes neither time nor size: it is not read again."""
    folder.put("one", 1000)
    file = Folder.__new__(Folder)
    file.path = folder.path / "one"
    planner = file.planner()
    end = planner.latest(planner.initial())
    file.path.chmod(0o600)
    (folder.path / "link").hardlink_to(file.path)
    assert planner.latest(end) is end


def test_hidden_and_unfinished_names_are_never_read(folder: Folder) -> None:
    """Names with a leading dot or underscore, or with endings of unfinished files, are not read, nor are those within such directories."""
    for name in (".a", "_b", "c._COPYING_", "d.tmp", "e.inprogress", "_dir/f", ".dir/g", "ok", "x_COPYING_"):
        folder.put(name, 1000)
    assert batches(folder.planner(recursiveFileLookup="true")) == [["ok", "x_COPYING_"]]


def test_glob_and_pattern_must_both_match(folder: Folder) -> None:
    """pathGlobFilter and pattern (full match) both apply to the file's name."""
    for name in ("a1.json", "a2.csv", "b1.json", "a1.json.bak"):
        folder.put(name, 1000)
    assert batches(folder.planner(pathGlobFilter="*.json", pattern="a.*")) == [["a1.json"]]
    assert batches(folder.planner(pattern="a1")) == []


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("*.{json,csv}", ["a.json", "b.csv"]),
        ("{a,b*}.{json,c{sv,at}}", ["a.json", "b.csv"]),
        ("[^a]*", ["b.csv", "c.txt", "{,}.[x]"]),
        ("[!a-b]*", ["c.txt", "{,}.[x]"]),
        ("?.json", ["a.json"]),
        ("*.JSON", []),
        ("a\\.js*n", ["a.json"]),
        ("\\{,}.\\[x]", ["{,}.[x]"]),
        ("a.json*", ["a.json"]),
        ("[^/]*", ["a.json", "b.csv", "c.txt", "{,}.[x]"]),
        ("{a,b}", []),
    ],
)
def test_globs_are_those_of_spark(folder: Folder, glob: str, expected: list[str]) -> None:
    """Alternatives in braces, sets, and escaped characters work as in the `pathGlobFilter` of Spark's own source."""
    for name in ("a.json", "b.csv", "c.txt", "{,}.[x]"):
        folder.put(name, 1000)
    assert [name for batch in batches(folder.planner(pathGlobFilter=glob)) for name in batch] == expected


@pytest.mark.parametrize("glob", ["{a,b", "[b-a]", "*.{json", "[a", "in/*.json", "{a,b/c}", "a/", "[/]/*"])
def test_globs_that_are_none_are_refused(folder: Folder, glob: str) -> None:
    """An invalid glob could match nothing by mistake: it is refused, not taken literally; so is a glob with a slash, which no name has."""
    with pytest.raises(OptionError, match="pathGlobFilter"):
        folder.planner(pathGlobFilter=glob)


def test_patterns_match_any_name(folder: Folder) -> None:
    """HZ-25: `.*` and `*` match every possible name, also with line breaks and bytes that are not UTF-8."""
    for name in ("a\nb", "\udcff"):
        folder.put(name, 1000)
    assert batches(folder.planner(pattern=".*")) == [["a\nb", "\udcff"]]
    for glob in ("*", "{a,[^a-z]}*"):
        assert batches(folder.planner(pathGlobFilter=glob)) == [["a\nb", "\udcff"]]


def test_odd_names_sort_by_bytes(folder: Folder) -> None:
    """HZ-25: names with blanks, quotes, controls, other scripts and invalid UTF-8 are read, sorted by their bytes."""
    odd = [
        "-rf",
        " lead",
        "a b",
        "50%",
        "a,b",
        "#x",
        "what?",
        "a:b",
        "a\nb",
        "ü",
        "\U0001f600",
        "\uffff",
        "\udcff\udc80",
    ]
    odd.append("n" * 255)
    for name in odd:
        folder.put(name, 1000)
    planner = folder.planner()
    end = through_json(planner.latest(planner.initial()))
    assert names(planner, end) == sorted(odd, key=os.fsencode)
    assert folder.planner().latest(end) == end


def test_symlink_loops_end(folder: Folder) -> None:
    """HZ-18: a directory that links to its parent is entered once, and its files are read once."""
    folder.put("a/f", 1000)
    (folder.path / "a/loop").symlink_to(folder.path, target_is_directory=True)
    assert batches(folder.planner(recursiveFileLookup="true")) == [["a/f"]]


def test_directories_of_two_disks_are_two(folder: Folder) -> None:
    """HZ-18: a directory with the same inode number on another disk is another directory, and no loop."""
    storage = LocalStorage()
    assert os.stat("/proc").st_ino == os.stat("/sys").st_ino
    assert storage.stat("/proc").identity != storage.stat("/sys").identity
    assert storage.stat(str(folder.path)).identity == storage.stat(f"{folder.path}/.").identity


def test_only_files_are_read(folder: Folder) -> None:
    """A pipe or socket in the directory is not opened: that would wait forever."""
    folder.put("a", 1000)
    os.mkfifo(folder.path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(folder.path / "socket"))
        assert batches(folder.planner(settle="0")) == [["a"]]


def test_link_that_leads_nowhere_may_come_to(folder: Folder, tmp_path: Path) -> None:
    """HZ-18: a symbolic link is read once its target exists, once, even if the target came later than the link."""
    (folder.path / "link").symlink_to(tmp_path / "later")
    folder.put("a", 1000)
    planner = folder.planner(followSymlinks="true")
    end = planner.latest(planner.initial())
    assert names(planner, end) == ["a"]
    with clock.use(
        FakeClock(clock.now_ns() / SECOND + 10)
    ):  # a directory that has not changed for long is not listed again
        assert planner.latest(end) is end
        (tmp_path / "later").write_bytes(b"x\n")
        os.utime(tmp_path / "later", (2000, 2000))
        end = planner.latest(end)
        assert names(planner, end) == ["link"]
        assert planner.latest(end) is end


def test_directory_that_is_made_anew_goes_on(folder: Folder) -> None:
    """HZ-26: a source directory that was removed and created again has new files; old files are not read again."""
    folder.put("a", 1000)
    planner = folder.planner()
    end = planner.latest(planner.initial())
    shutil.rmtree(folder.path)
    folder.path.mkdir()
    folder.put("a", 1000)
    folder.put("b", 2000)
    assert names(planner, planner.latest(end)) == ["b"]


def test_listing_that_fails_later_repeats_nothing(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """HZ-26: after several batches, a listing that fails halfway neither loses nor repeats a file."""
    for i in range(5):
        folder.put(f"d{i}/f", 1000 + 100 * i)
    clock.sleep(0.03)  # the kernel's clock ticks
    planner = folder.planner(recursiveFileLookup="true", tooLate="fail")
    end = through_json(planner.latest(planner.initial()))
    folder.put("d3/g", 1401)
    fail_listing(monkeypatch, 3)
    with pytest.raises(NotThere):
        planner.latest(end)
    assert names(planner, planner.latest(end)) == ["d3/g"]


def test_failed_listing_moves_nothing(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """HZ-26: a listing that fails halfway raises, and the next one finds everything."""
    for i in range(5):
        folder.put(f"d{i}/f", 1000)
    planner = folder.planner(recursiveFileLookup="true")
    start = planner.initial()
    fail_listing(monkeypatch, 4)
    with pytest.raises(NotThere):
        planner.latest(start)
    assert len(names(planner, planner.latest(start))) == 5


def test_available_now_stops_at_what_was_there(folder: Folder) -> None:
    """HZ-30: files that arrive during the run wait for the next run; the last batch is marked as the last."""
    for i in range(3):
        folder.put(f"f{i}", 1000 + i)
    planner = folder.planner(maxFilesPerTrigger="2")
    planner.prepare_available_now()
    first = planner.latest(planner.initial())
    folder.put("during", 5000)
    second = planner.latest(first)
    assert (names(planner, first), names(planner, second)) == (["f0", "f1"], ["f2"])
    assert (first.get("last"), second.get("last")) == (None, True)
    assert planner.latest(second) is second
    assert batches(folder.planner(), through_json(second)) == [["during"]]


def test_available_now_skips_what_went_before_it_was_planned(folder: Folder) -> None:
    """HZ-30: a file that is deleted before its batch is planned is not in the plan, although the run counted on it."""
    for i in range(3):
        folder.put(f"f{i}", 1000 + i)
    planner = folder.planner(maxFilesPerTrigger="1")
    planner.prepare_available_now()
    first = planner.latest(planner.initial())
    (folder.path / "f1").unlink()
    second = planner.latest(first)
    assert names(planner, second) == ["f2"]


def test_available_now_waits_for_files_to_settle(folder: Folder) -> None:
    """A file written just before an AvailableNow run is part of it."""
    folder.put("fresh", clock.now_ns() / SECOND)
    planner = folder.planner(settle="300ms")
    planner.prepare_available_now()
    assert names(planner, planner.latest(planner.initial())) == ["fresh"]


def test_replayed_batch_was_all_there_is(folder: Folder) -> None:
    """Failure 6: a dead run's batch is replayed, and there is nothing else: an empty batch says that it is the last."""
    folder.put("a", 1000)
    before = folder.planner()
    start = before.initial()
    planned = through_json(before.latest(start))
    assert "last" not in planned
    planner = folder.planner()
    planner.prepare_available_now()
    assert [len(task) for task in planner.tasks(planned)] == [1]
    end = through_json(planner.latest(planned))
    assert (names(planner, end), end["last"], end["read"]) == ([], True, [1, 2])
    assert planner.latest(end) is end
    again = folder.planner()
    again.prepare_available_now()
    assert again.latest(end) is end
    folder.put("b", 2000)
    assert batches(folder.planner(), end) == [["b"]]


def test_run_ends_although_its_last_files_went(folder: Folder) -> None:
    """Failure 6, in another way: the files of the last batch are deleted before it is planned."""
    folder.put("a", 1000)
    folder.put("b", 2000)
    planner = folder.planner(maxFilesPerTrigger="1")
    planner.prepare_available_now()
    first = planner.latest(planner.initial())
    (folder.path / "b").unlink()
    second = planner.latest(first)
    assert (first.get("last"), second["last"], names(planner, second)) == (None, True, [])
    assert planner.latest(second) is second


def test_run_that_finds_nothing_has_no_batch(folder: Folder) -> None:
    """APX-33: failure 6 needs no batch if none was planned before: the directory is empty."""
    planner = folder.planner()
    planner.prepare_available_now()
    start = planner.initial()
    assert planner.latest(start) is start


def test_once_ignores_the_limit(folder: Folder) -> None:
    """SPK-3: Trigger.Once plans everything in one batch, and that is the last."""
    for i in range(5):
        folder.put(f"f{i}", 1000 + i)
    planner = folder.planner(maxFilesPerTrigger="1")
    end = planner.latest(planner.initial(), limited=False)
    assert (len(names(planner, end)), end["last"]) == (5, True)


def test_batch_boundary_file(folder: Folder) -> None:
    """batchBoundary=file ends each batch at the end of a file, whatever the limits."""
    folder.put("a", 1000, b"x" * 100)
    folder.put("b", 2000)
    assert batches(folder.planner(batchBoundary="file", maxBytesPerTrigger="10")) == [["a"], ["b"]]


def test_starting_from_latest_skips_what_is_there(folder: Folder) -> None:
    """startingFrom=latest reads only files that come later, even with a time a little before the start."""
    folder.put("old", 1000)
    now = clock.now_ns() / SECOND
    folder.put("recent", now - 20)
    planner = folder.planner(startingFrom="latest", settle="0")
    end = through_json(planner.latest(through_json(planner.initial())))
    assert names(planner, end) == []
    assert planner.latest(end) == end
    folder.put("renamed-in", now - 10)
    folder.put("new", clock.now_ns() / SECOND)
    assert names(planner, planner.latest(end)) == ["renamed-in", "new"]


@pytest.mark.parametrize("bounded", [True, False])
def test_run_from_latest_that_finds_nothing_keeps_where_it_started(folder: Folder, *, bounded: bool) -> None:
    """Spark keeps no offset without a batch: without this batch the next run would start after the files that came in between."""
    folder.put("old", 1000)
    first = folder.planner(startingFrom="latest", settle="0")
    start = through_json(first.initial())
    if bounded:
        first.prepare_available_now()
    kept = through_json(first.latest(start))
    assert kept != start, "Spark takes equal offsets for no batch"
    assert first.latest(kept) == kept
    folder.put("came-between", clock.now_ns() / SECOND)
    second = folder.planner(startingFrom="latest", settle="0")
    if bounded:
        second.prepare_available_now()
    assert names(second, second.latest(kept)) == ["came-between"]


def test_starting_from_a_time(folder: Folder) -> None:
    """startingFrom=<time> reads the files from that time on, and never an older one."""
    folder.put("old", 999)
    folder.put("at", 1000)
    planner = folder.planner(startingFrom="1970-01-01T00:16:40Z")
    end = through_json(planner.latest(planner.initial()))
    assert names(planner, end) == ["at"]
    folder.put("older", 990)
    assert folder.planner(startingFrom="1970-01-01T00:16:40Z").latest(end) == end


@pytest.mark.slow
def test_offset_is_small_after_many_files(folder: Folder) -> None:
    """After 5,000 files the offset of a one-file batch is under 6 KB and still tells new files from old ones."""
    for i in range(5000):
        folder.put(f"f{i}", 5000 + i / 1000)
    planner = folder.planner(maxFilesPerTrigger="10000")
    end = planner.latest(planner.initial())
    folder.put("one more", 5006)
    end = through_json(planner.latest(end))
    assert len(json.dumps(end)) < 6144
    for i in range(30):
        folder.put(f"late{i}", 5000)
    for i in range(10):
        (folder.path / f"f{i}").unlink()
    restarted = folder.planner()
    assert sorted(names(restarted, restarted.latest(end))) == sorted(f"late{i}" for i in range(30))


def test_more_changes_than_the_offset_can_tell_apart(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    """When hundreds of read files disappear while no query runs, arrival times decide: nothing is read twice or lost."""
    for i in range(1000):
        folder.put(f"f{i}", 5000)
    clock.sleep(0.03)  # the kernel's clock ticks
    planner = folder.planner()
    end = through_json(planner.latest(planner.initial()))
    for i in range(500):
        (folder.path / f"f{i}").unlink()
    assert folder.planner().latest(end) == end
    folder.put("behind", 5000)
    with caplog.at_level(logging.WARNING, "penstock.source"):
        assert not names(planner, folder.planner().latest(end))
    assert "1 file" in caplog.text
    assert "'behind'" in caplog.text


@pytest.mark.slow
def test_long_plans_go_beside_the_offset(folder: Folder, tmp_path: Path) -> None:
    """APX-54: a plan of thousands of files goes to a record in `state` that the offset names; it is deleted when the batch is done."""
    for i in range(4000):
        folder.put(f"file-{i:05}", 1000 + i)
    state = str(tmp_path / "state")
    planner = folder.planner(state=state, maxFilesPerTrigger="2000")
    first = through_json(planner.latest(planner.initial()))
    assert len(json.dumps(first)) < 6144
    assert len(names(folder.planner(state=state), first)) == 2000
    second = through_json(planner.latest(first))
    own = f"{state}/{second['beside']}"
    assert len(os.listdir(own)) == 2
    planner.committed(second)
    assert [f"{second['beside']}/{name}" for name in os.listdir(own)] == [second["plan"]["file"]]


@pytest.mark.parametrize("limits", [("1", "2"), ("1", "1")], ids=["other plans", "the same plans"])
@pytest.mark.parametrize("restarts", [False, True])
def test_two_sources_that_were_given_one_place_for_their_plans(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: tuple[str, str], restarts: bool
) -> None:
    """HZ-21: one of them removed the other's plan, also where both had the same one, and what the other was about to put."""
    monkeypatch.setattr(sides, "INLINE_BYTES", 10)
    for name in "abc":
        folder.put(name, 1000 + ord(name))
    state = tmp_path / "state"
    first, second = (folder.planner(state=str(state), maxFilesPerTrigger=limit) for limit in limits)
    kept = through_json(second.latest(second.initial()))
    begun = state / kept["beside"] / f"{TEMPORARY}half"
    begun.write_bytes(b"half")
    end = through_json(first.latest(first.initial()))
    if restarts:
        first = folder.planner(state=str(state), maxFilesPerTrigger=limits[0])
        assert names(first, end) == ["a"]
    first.committed(end)
    after = through_json(first.latest(end))
    first.committed(after)
    assert os.listdir(state / end["beside"]) == [os.path.basename(after["plan"]["file"])]
    assert names(folder.planner(state=str(state)), kept) == ["a", "b"][: int(limits[1])]
    assert begun.read_bytes() == b"half"
    second.committed(kept)
    assert not begun.exists()


def test_a_long_plan_of_an_earlier_version_is_read_and_left(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its offset names no directory, and its plan lies where those of others may lie, too: it is read from there, and stays."""
    monkeypatch.setattr(sides, "INLINE_BYTES", 10)
    folder.put("a", 1000)
    folder.put("b", 1001)
    state = tmp_path / "state"
    planner = folder.planner(state=str(state), maxFilesPerTrigger="1")
    end = through_json(planner.latest(planner.initial()))
    own = end.pop("beside")
    (state / end["plan"]["file"]).rename(state / "plan.json")
    end["plan"]["file"] = "plan.json"
    end = summed({name: value for name, value in end.items() if name != "sum"})
    restarted = folder.planner(state=str(state))
    assert names(restarted, end) == ["a"]
    after = through_json(restarted.latest(end))
    restarted.committed(end)
    restarted.committed(after)
    assert names(restarted, after) == ["b"]
    assert sorted(os.listdir(state)) == sorted([own, after["beside"], "plan.json"])


def test_a_checkpoint_that_was_copied_loses_its_plan_to_the_original(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HZ-21: the original removes the plan of the copy: that is told with its cause; in a place of its own it is planned anew."""
    monkeypatch.setattr(sides, "INLINE_BYTES", 10)
    folder.put("a", 1000)
    folder.put("b", 1001)
    state = str(tmp_path / "state")
    planner = folder.planner(state=state, maxFilesPerTrigger="1")
    copied = through_json(planner.latest(planner.initial()))
    planner.committed(through_json(planner.latest(copied)))
    with pytest.raises(DamagedState, match=r"is missing; restore .* give each a stateLocation of its own"):
        folder.planner(state=state).splits(copied)
    assert batches(folder.planner(state=str(tmp_path / "own"))) == [["a", "b"]]


def test_ten_thousand_names_in_one_offset() -> None:
    """SPK-12: 10,000 files are one batch, which comes back from a log as it was."""
    keys = [f"file-{number:05}" for number in range(10_000)]
    store = ObjectStore(StoreImage(tuple((f"in/{key}", StoredObject(b"x", 1000 * SECOND)) for key in keys)))
    checked = parse(SOURCE, {"path": "/in", "settle": "0", "maxFilesPerTrigger": "10000"}, what="source")
    planner = Planner(store.storage(), "/in", checked, divisible=lambda _: True)
    assert names(planner, through_json(planner.latest(planner.initial()))) == keys


def test_upload_that_began_before_the_last_scan(caplog: pytest.LogCaptureFixture) -> None:
    """HZ-11: a store dates an object by when its upload began: completed after a scan it is read within lateness, and reported beyond."""
    store = ObjectStore(StoreImage((("in/first", StoredObject(b"x\n", 1000 * SECOND)),)))
    checked = parse(SOURCE, {"path": "/in", "settle": "0", "lateness": "100s"}, what="source")
    planner = Planner(store.storage(), "/in", checked, divisible=lambda _: True)
    assert batches(planner) == [["first"]]
    first = through_json(planner.latest(planner.initial()))
    store._objects["in/within"] = StoredObject(b"x\n", 900 * SECOND)
    store._objects["in/beyond"] = StoredObject(b"x\n", 899 * SECOND)
    with caplog.at_level(logging.WARNING, "penstock.source"):
        assert batches(planner, first) == [["within"]]
    assert "'beyond'" in caplog.text


@pytest.mark.parametrize("store", [CrashHdfs, ObjectStore])
def test_root_of_a_storage(store: type[CrashHdfs | ObjectStore]) -> None:
    """IBM-4: the root of a file system or of a bucket is a directory as any other; what lies deeper is not read unless asked for."""
    storage = store().storage()
    storage.make_directory("/d")
    for name in ("/a", "/b", "/d/c"):
        storage.put_if_absent(name, b"x\n")
    for deep, found in (("false", ["a", "b"]), ("true", ["a", "b", "d/c"])):
        options = {"path": "/", "settle": "0", "recursiveFileLookup": deep}
        planner = Planner(storage, "/", parse(SOURCE, options, what="source"), divisible=lambda _: True)
        assert sorted(names(planner, planner.latest(planner.initial()))) == found


def test_offset_of_another_source_is_refused(folder: Folder) -> None:
    """An offset that this source did not write is refused."""
    folder.put("a", 1000)
    for offset in ({"logOffset": 3}, {"v": 99, "cursor": None}, {"v": 1, "cursor": 7}):
        with pytest.raises(DamagedState):
            folder.planner().latest(offset)


def test_source_directory_that_vanishes_is_an_error(folder: Folder) -> None:
    """HZ-26: a directory that is gone is an error, not an empty listing."""
    planner = folder.planner()
    start = planner.initial()
    shutil.rmtree(folder.path)
    with pytest.raises(NotThere):
        planner.latest(start)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("divisible", [True, False])
def test_no_task_is_left_over_for_a_difference_of_bytes(folder: Folder, *, count: int, divisible: bool) -> None:
    """Of four files of almost the same size, two tasks left so much that a third one took the last file, after the two."""
    sizes = [25_025, 25_056, 25_134, 25_148, 70_000, 300_000, 1, 25_000]
    for number, size in enumerate(sizes):
        folder.put(f"f{number}", number + 1, b"x" * (size - 1) + b"\n")
        planner = folder.planner(tasks=str(count), divisible=divisible)
        end = planner.latest(planner.initial())
        tasks = planner.tasks(end)
        assert 1 <= len(tasks) <= count
        assert sum(split.end - split.start for task in tasks for split in task) == sum(sizes[: number + 1])


@pytest.mark.parametrize(
    ("size", "given", "weights"),
    [
        (1000, {"sessionCores": "2"}, [500, 500]),
        (1000, {"sessionCores": "8"}, [125] * 8),
        (1000, {"sessionCores": "100"}, [32] * 31 + [8]),  # as without: no task is smaller than splitSize
        (40, {"sessionCores": "2"}, [32, 8]),
        (3000, {"sessionCores": "2"}, [500] * 6),  # three times two tasks: what a failed task has done is done again
        (1000, {"sessionCores": "2", "splitSize": "500m"}, [500, 500]),
        (100, {"sessionCores": "2", "splitSize": "32m"}, [32, 32, 32, 4]),
        (100, {"sessionCores": "2", "tasks": "5"}, [20] * 5),
        (100, {}, [32, 32, 32, 4]),
    ],
)
def test_a_batch_is_shared_out_among_the_cores_of_a_local_session(
    folder: Folder, size: int, given: dict[str, str], weights: list[int]
) -> None:
    """Each core gets an equal share, of 32 to 512 MiB, unless the user has said how large or how many tasks are; sizes in MiB."""
    folder.put("f", 1000, b"")
    os.truncate(folder.path / "f", size << 20)
    os.utime(folder.path / "f", (1000, 1000))
    options: dict[str, Any] = {"maxBytesPerTrigger": "100g", **given}
    planner = folder.planner(**options)
    tasks = planner.tasks(planner.latest(planner.initial()))
    assert [round(sum(s.end - s.start for s in task) / (1 << 20)) for task in tasks] == weights


def test_tasks_follow_the_number_asked_for(folder: Folder) -> None:
    """With `tasks` a batch is packed into that many tasks of about equal weight, without losing or repeating a byte."""
    for i in range(10):
        folder.put(f"f{i}", 1000 + i, b"x" * 1_000_000)
    planner = folder.planner(tasks="3")
    end = planner.latest(planner.initial())
    tasks = planner.tasks(end)
    assert len(tasks) == 3
    weights = [sum(s.end - s.start for s in task) for task in tasks]
    assert sum(weights) == 10_000_000
    assert max(weights) < 3_600_000
