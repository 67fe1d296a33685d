"""What the offset keeps about files that were not read: across restarts, in a record beside the checkpoint, and within its limit."""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING

import pytest

from penstock import clock
from penstock.errors import DamagedState
from penstock.source import late
from penstock.source.cursor import FileVersion
from penstock.source.late import ACCEPTED, LateFile, LateFiles
from tests.source.test_plan import Folder, names, through_json

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path / "in")
    made.put("first", 6000)
    return made


def entries(offset: dict[str, object]) -> list[str]:
    """Return the paths of the late files in the offset."""
    return [entry.file.path for entry in LateFiles.recalled(offset, lambda items: items).entries(lambda _: True)]


@pytest.mark.parametrize("restart", [False, True])
def test_notice_outlives_the_process(folder: Folder, restart: bool) -> None:
    """From the next batch on a late file has an entry with its time of arrival, which goes with the file, or with that version of it."""
    planner = folder.planner()
    end = through_json(planner.latest(planner.initial()))
    clock.sleep(0.03)
    folder.put("old", 1000)
    folder.put("older", 999)
    planner = folder.planner() if restart else planner
    end = through_json(planner.latest(end))
    assert end["late"]["count"] == [2, 4]
    assert entries(end) == ["older", "old"]
    assert folder.planner().latest(end) == end
    (folder.path / "old").unlink()
    folder.put("older", 7000)
    planner = folder.planner() if restart else planner
    end = through_json(planner.latest(end))
    assert names(planner, end) == ["older"]
    assert "late" not in end


def test_late_file_that_was_away_is_listed_again(folder: Folder, tmp_path: Path) -> None:
    """A late file that goes away and comes back, across a restart, is late again, and not taken for read."""
    planner = folder.planner()
    end = through_json(planner.latest(planner.initial()))
    clock.sleep(0.03)
    folder.put("old", 1000)
    end = through_json(planner.latest(end))
    (folder.path / "old").rename(tmp_path / "old")
    folder.put("second", 6001)
    end = through_json(folder.planner().latest(end))
    assert "late" not in end
    (tmp_path / "old").rename(folder.path / "old")
    assert entries(through_json(folder.planner().latest(end))) == ["old"]


def test_files_of_the_future_are_counted(folder: Folder) -> None:
    """A file whose time is in the future makes one batch without rows that reports it, and no other batch."""
    planner = folder.planner()
    end = through_json(planner.latest(planner.initial()))
    folder.put("ahead", 4e9)
    told = through_json(planner.latest(end))
    assert (names(planner, told), told["held"]) == ([], [1, 1])
    assert planner.latest(told) == told
    assert folder.planner().latest(told) == told


def test_run_that_takes_what_is_there_ends(folder: Folder) -> None:
    """An AvailableNow run over late, waiting and future files ends, and its last batch counts them."""
    planner = folder.planner(settle="1h")
    end = through_json(planner.latest(planner.initial()))
    clock.sleep(0.03)
    folder.put("old", 1000)
    folder.put("ahead", 4e9)
    (folder.path / "fresh").write_bytes(b"x\n")
    planner = folder.planner(settle="1h")
    planner.prepare_available_now()
    told = through_json(planner.latest(end))
    assert (told["late"]["count"], told["held"], told["last"]) == ([1, 2], [2, 1], True)
    assert planner.latest(told) == told


def test_long_lists_lie_beside_the_offset(folder: Folder, tmp_path: Path) -> None:
    """A thousand entries go to a record beside the checkpoint; it is kept while an offset needs it; its loss is an error."""
    state = str(tmp_path / "state")
    planner = folder.planner(state=state)
    end = through_json(planner.latest(planner.initial()))
    clock.sleep(0.03)
    for i in range(1000):
        folder.put(f"late-{'x' * 50}-{i:04}", 1000 + i / 1000)  # a long name, because the inode numbers may be short
    end = through_json(planner.latest(end))
    assert (len(json.dumps(end)) < 10_000, end["late"]["count"]) == (True, [1000, 2000])
    planner.committed(end)
    folder.put("second", 6001)
    restarted = folder.planner(state=state)
    after = through_json(restarted.latest(end))
    assert names(restarted, after) == ["second"]
    assert after["late"] == end["late"]
    restarted.committed(after)
    own = end["beside"]
    (record,) = os.listdir(f"{state}/{own}")
    name = f"{own}/{record}"
    assert name == end["late"]["files"]["file"]
    os.unlink(f"{state}/{name}")
    with pytest.raises(DamagedState, match=name):
        folder.planner(state=state).latest(after)


def test_output_of_sparks_sink_as_input_is_told(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    """Spark's source would read only the files that the log lists; ours reads all files, and warns once."""
    (folder.path / "_spark_metadata").mkdir()
    planner = folder.planner()
    with caplog.at_level(logging.WARNING, "penstock.source"):
        end = planner.latest(planner.initial())
        planner.latest(end)
    assert caplog.text.count("--dry-run` names them") == 1


def test_list_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are too many, the newest notices and all accepted ones are kept, with the number of dropped ones."""
    monkeypatch.setattr(late, "KEPT", 10)
    listed = LateFiles()
    listed.note(LateFile(FileVersion(f"f{i}", 1, i, ""), i, late.LATE) for i in range(25))
    listed.accept([LateFile(FileVersion("f0", 1, 0, ""), 0, late.LATE)])
    form = listed.to_json(lambda _: True, 0, lambda items: items)["late"]
    kept = [(entry[0], entry[-1]) for entry in form["files"]]
    assert kept == [("f0", ACCEPTED), *((f"f{i}", late.LATE) for i in range(16, 25))]
    assert (form["dropped"], form["count"], form["accepted"]) == (15, [24, 9], 1)
    again = LateFiles.recalled({"late": form}, lambda items: items)
    assert again.to_json(lambda _: True, 0, lambda items: items)["late"] == form
    assert listed.to_json(lambda _: True, 0, lambda items: items)["late"] == form, "what was dropped is counted once"


def test_an_entry_that_an_offset_dropped_is_forgotten() -> None:
    """A late file that is gone, and was gone for long, has no entry any more in the process either: it would be found late again."""
    gone, waits = (LateFile(FileVersion(name, 1, 10, ""), 10, late.LATE) for name in ("gone", "waits"))
    listed = LateFiles([gone, waits])
    listed.accept([waits])
    assert listed.to_json(lambda _: False, 10, lambda items: items)["late"]["count"] == [1, 1], "gone, but not for long"
    assert listed.to_json(lambda _: False, 11, lambda items: items)["late"]["accepted"] == 1
    assert (gone.file in listed, waits.file in listed) == (False, True)


def test_an_accepted_file_that_is_found_late_again_waits() -> None:
    """A file that has an entry keeps it: else one that was accepted would be late again, and never be read."""
    entry = LateFile(FileVersion("f", 1, 10, ""), 10, late.LATE)
    listed = LateFiles([entry])
    assert listed.accept([entry]) == [entry]
    assert listed.accept([entry]) == []
    listed.note([entry])
    assert (listed.awaits(entry.file), listed.unkept) == (True, False)
    listed.planned([entry.file, entry.file])
    assert entry.file not in listed


def test_where_nothing_is_late_no_file_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without entries the key of a file, a digest, is not computed, although each file of each listing is asked for."""
    monkeypatch.delattr(FileVersion, "key")
    file = FileVersion("f", 1, 10, "")
    listed = LateFiles()
    listed.planned([file])
    assert (file in listed, listed.awaits(file)) == (False, False)


def test_accepted_files_may_take_all_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """If more files are accepted than a list has room for, they all stay, and of the others is known how many there were."""
    monkeypatch.setattr(late, "KEPT", 2)
    files = [LateFile(FileVersion(f"f{i}", 1, i, ""), i, late.LATE) for i in range(5)]
    listed = LateFiles(files)
    listed.accept(files[:3])
    form = listed.to_json(lambda _: True, 0, lambda items: items)["late"]
    assert ([entry[0] for entry in form["files"]], form["dropped"]) == (["f0", "f1", "f2"], 2)


def test_the_number_of_dropped_files_outlives_those_that_were_kept() -> None:
    """If all files of the list are gone, the offset still says that others were dropped from it."""
    listed = LateFiles([LateFile(FileVersion("gone", 1, 10, ""), 10, late.LATE)], dropped=3)
    for _ in range(2):
        form = listed.to_json(lambda _: False, 11, lambda items: items)["late"]
        assert (form["files"], form["dropped"], form["count"]) == ([], 3, [3, 0])


def test_of_files_that_are_gone_only_accepted_ones_are_told() -> None:
    """A late file that is not there is not reported, unless it waits; one that is dismissed is never, and stays what it was."""
    gone, waits, read = (LateFile(FileVersion(name, 1, 10, ""), 10, late.UNSURE) for name in ("gone", "waits", "read"))
    listed = LateFiles([gone, waits, read])
    listed.accept([waits])
    assert listed.dismiss([read]) == [read]
    assert listed.dismiss([read]) == []
    assert [entry.file.path for entry in listed.entries(lambda _: False)] == ["waits"]
    assert [entry.file.path for entry in listed.entries(lambda _: True)] == ["gone", "waits"]
