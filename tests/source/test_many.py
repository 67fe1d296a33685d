"""Directories with very many files: the cost of a look, counted in calls, not in time. Without Spark."""

from __future__ import annotations

import gc
import random
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from penstock.source import arrivals
from penstock.source.backlog import Backlog
from penstock.source.cursor import FileVersion
from penstock.source.recent import Recalled, recall
from penstock.storage import LocalStorage
from tests.source.test_plan import Folder, batches, names, through_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.storage import Entry

FEW, MANY = 600, 1_000  # more than a scan checks again at once
STATEMENTS = 24  # per file, in Python calls; they were 29


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "in")


class Counted(LocalStorage):
    """A local disk that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def names(self, path: str) -> dict[str, int]:
        self.asked["names"] += 1
        return super().names(path)

    def stat(self, path: str) -> Entry:
        self.asked["stat"] += 1
        return super().stat(path)


def calls(action: Callable[[], object]) -> int:
    """Return how many Python functions an action calls."""
    counted, before = Counter[str](), sys.getprofile()
    sys.setprofile(lambda _frame, event, _argument: counted.update([event]))
    try:
        action()
    finally:
        sys.setprofile(before)
    return counted["call"]


def finished(folder: Folder, files: int) -> dict[str, Any]:
    """Make this many files, all read; return the offset after them."""
    for number in range(files):
        folder.put(f"f{number}", 1000 + number / 10)
    planner = folder.planner(maxFilesPerTrigger="100000")
    return through_json(planner.latest(planner.initial()))


def test_look_of_a_new_driver_takes_few_steps_a_file(folder: Folder) -> None:
    """An ingest without new files looks at each file that it has read: 100,000 of them took two seconds of needless steps."""
    at, looks = finished(folder, FEW), list[int]()
    for _ in range(2):
        planner = folder.planner()
        looks.append(calls(lambda planner=planner, at=at: planner.is_ahead(at)))  # type: ignore[misc]  # - it is called at once
        at = finished(folder, MANY)
    assert looks[1] - looks[0] <= STATEMENTS * (MANY - FEW)


def test_look_of_a_new_driver_asks_the_disk_once_a_file(folder: Folder) -> None:
    """It lists each directory once and looks at each file once, plus at the few that a trigger checks again, whatever it decides."""
    at = finished(folder, MANY)
    disk = Counted()
    planner = folder.planner()
    planner._storage = disk
    assert not planner.is_ahead(at)
    assert disk.asked["names"] <= 2  # the directory has just changed
    assert disk.asked["stat"] <= MANY + 2 * 500 + 4
    disk.asked.clear()
    assert planner.latest(at) == at
    assert disk.asked["stat"] <= 500 + 4


@pytest.mark.parametrize(("name", "looks"), [("g", 10), ("a", MANY + 10)], ids=["rising", "among others"])
def test_a_newer_file_ends_the_look(folder: Folder, name: str, looks: int) -> None:
    """The first newer file shows that Spark must start: the look meets it first if names rise, and otherwise at some point."""
    at = finished(folder, MANY)
    folder.put(name, 1200)
    (folder.path / "z").symlink_to("nowhere")
    disk, planner = Counted(), folder.planner()
    planner._storage = disk
    assert planner.is_ahead(at)
    assert disk.asked["stat"] <= looks
    assert names(planner, planner.latest(at)) == [name]


def test_a_file_that_comes_after_the_look_is_read(folder: Folder) -> None:
    """The check before Spark starts passes nothing on: a source that starts after it looks for itself."""
    at = finished(folder, FEW)
    folder.put("g", 1200)
    assert folder.planner().is_ahead(at)
    folder.put("h", 1201)
    folder.put("f0", 1202, b"rewritten\n")
    planner = folder.planner()
    assert names(planner, planner.latest(at)) == ["g", "h", "f0"]


def test_what_a_driver_recalls_is_put_together_once(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """16,000 files that came behind the cursor while nothing ran: for each of them a set of 16,000 keys was built again."""
    asked: list[Recalled] = []

    class Asked(Recalled):
        @property
        def new(self) -> set[bytes]:
            asked.append(self)
            return super().new

    def recalled(*arguments: Any) -> Recalled:
        return Asked(**vars(recall(*arguments)))

    folder.put("first", 1050)
    planner = folder.planner()
    at = through_json(planner.latest(planner.initial()))
    for number in range(FEW):
        folder.put(f"older-{number}", 1000 + number / 10)
    monkeypatch.setattr(arrivals, "recall", recalled)
    planner = folder.planner()
    assert sorted(names(planner, planner.latest(at))) == sorted(f"older-{number}" for number in range(FEW))
    assert len(asked) == 1


def test_nobody_looks_for_garbage_meanwhile(folder: Folder) -> None:
    """Hundreds of thousands of objects stay, and each garbage collection scans them: it is off meanwhile, and restored afterwards."""
    at, looked, was_on = finished(folder, 3_000), list[str](), gc.isenabled()
    gc.enable()
    gc.callbacks.append(lambda phase, _facts: looked.append(phase))
    try:
        planner = folder.planner()
        looked.clear()
        assert not planner.is_ahead(at)
        assert looked.count("start") <= 2
        assert gc.isenabled()
        gc.disable()
        batches(folder.planner(), at)
        assert not gc.isenabled()
    finally:
        gc.callbacks.pop()
        (gc.enable if was_on else gc.disable)()


def test_versions_are_told_apart_by_what_they_are() -> None:
    """A version is a tuple, for speed; its key consists of path, time and size, its order of time and path."""
    version = FileVersion("a", 1, 2, "x")
    assert version.key == FileVersion("a", 1, 2, "y").key
    assert len({version.key, *(FileVersion(*other, "x").key for other in (("b", 1, 2), ("a", 2, 2), ("a", 1, 3)))}) == 4
    assert version.order == (2, b"a")


def test_a_batch_does_not_look_at_what_waits() -> None:
    """Each batch added up the sizes of all files that wait, and sought the oldest: 100 batches of 1,000 files looked at 5,000,000."""
    backlog = Backlog()
    for number in range(MANY):
        backlog.hold(FileVersion(f"f{number}", 1, number, ""))
    backlog.settle(MANY)
    assert calls(lambda: (backlog.waiting(), backlog.oldest_ns())) < 10


def test_what_waits_is_counted_as_if_added_up() -> None:
    """The count, the bytes and the oldest of what waits are those of its files, whatever came, went, changed and was taken."""
    chance = random.Random(random.getrandbits(32))  # noqa: S311 - repeatable, by the seed at the head of the report
    for _ in range(300):
        backlog, there = Backlog(), dict[str, FileVersion]()
        for step in range(30):
            name = f"f{chance.randrange(6)}"
            file = FileVersion(name, chance.randrange(9), chance.randrange(5), str(step))
            match chance.randrange(4):
                case 0:
                    backlog.hold(file)
                case 1:
                    backlog.settle(chance.randrange(6))
                case 2:
                    backlog.drop(there.get(name, file))
                case _:
                    backlog.take(backlog.next(chance.randrange(3), None))
            there[name] = file
            files = backlog.files()
            assert backlog.waiting() == (len(files), sum(each.size for each in files)), step
            assert backlog.oldest_ns() == min((each.modified_ns for each in files), default=None), step
