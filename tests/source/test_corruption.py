"""Whatever happens to an offset, or to a plan beside it: an error that says so, or exactly the original plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DamagedState
from penstock.query.checkpoint import Checkpoint
from penstock.source import sides
from tests.source.test_plan import Folder
from tests.support.damage import damages, exchange


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Return a source with three files, one of which has an odd name."""
    made = Folder(tmp_path / "in")
    for number, name in enumerate(["a", "b/é", "c"]):
        made.put(name, 1000 + number, b"12345\n")
    return made


def offsets(folder: Folder) -> list[dict[str, Any]]:
    """Return the offsets of a query up to its end: among them those of the start, of a split file, and of the last batch."""
    planner = folder.planner(recursiveFileLookup="true", maxBytesPerTrigger="9", startingFrom="1970-01-01T00:15Z")
    planner.prepare_available_now()
    found = [planner.initial()]
    while (end := planner.latest(found[-1])) != found[-1]:
        found.append(end)
    return found


def test_every_change_of_an_offset_shows(folder: Folder) -> None:
    """Each byte of an offset is cut off or gets a flipped bit: invalid JSON, `DamagedState` at every use, or the same offset."""
    for offset in offsets(folder):
        for what, data in damages(json.dumps(offset).encode()):
            try:
                broken = json.loads(data)
            except ValueError:
                continue  # an error of Spark's own: it parses the log before it calls us
            if broken == offset:
                continue  # `\u00e9` and `\u00E9` are the same letter
            planner = folder.planner(recursiveFileLookup="true")
            for use in (planner.latest, planner.splits, planner.tasks, planner.committed):
                with pytest.raises(DamagedState, match=r"offset in the checkpoint .*(restore|new checkpoint)"):
                    pytest.fail(f"{what}: {use(broken)}")


def test_an_offset_may_be_written_in_another_way(folder: Folder) -> None:
    """White space and the order of the fields are up to Spark."""
    for offset in offsets(folder):
        other = json.loads(json.dumps(dict(reversed(offset.items())), indent=1, ensure_ascii=False))
        planner = folder.planner(recursiveFileLookup="true")
        assert planner.splits(other) == planner.splits(offset)


def test_an_offset_without_its_checksum_is_refused(folder: Folder) -> None:
    """An offset without its checksum is not trusted."""
    for offset in offsets(folder):
        with pytest.raises(DamagedState, match="checksum None"):
            folder.planner().splits({name: value for name, value in offset.items() if name != "sum"})


def test_every_change_of_a_plan_file_shows(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that is cut, altered, longer, exchanged or gone is `DamagedState` that names it."""
    monkeypatch.setattr(sides, "INLINE_BYTES", 10)
    state = tmp_path / "state"
    planner = folder.planner(state=str(state), maxFilesPerTrigger="1", recursiveFileLookup="true")
    ends = [planner.latest(planner.initial())]
    ends.append(planner.latest(ends[0]))
    first, second = (state / end["plan"]["file"] for end in ends)
    data, other = first.read_bytes(), second.read_bytes()
    for what, broken in [*damages(data), ("exchanged", other), ("gone", None)]:
        first.unlink()
        if broken is not None:
            first.write_bytes(broken)
        for use in (folder.planner(state=str(state)).splits, folder.planner(state=str(state)).tasks):
            with pytest.raises(DamagedState, match=first.name):
                pytest.fail(f"{what}: {use(ends[0])}")
        first.write_bytes(data)
    assert [split.file.path for split in folder.planner(state=str(state)).splits(ends[0])] == ["a"]


@pytest.mark.slow
def test_every_change_of_the_checkpoint(folder: Folder, tmp_path: Path) -> None:
    """What the checkpoint says about query and batch is unchanged, missing, has another fingerprint, or is `DamagedState`."""
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    files = {
        "metadata": b'{"id":"6a1c4ed6-04a6-4ea8-a0b4-5e0d2b0f5f3f"}',
        "offsets/7": b'v1\n{"batchWatermarkMs":0}\n' + json.dumps(offsets(folder)[-1]).encode(),
    }
    for name, data in files.items():
        (checkpoint / name).write_bytes(data)
    sound = Checkpoint(str(checkpoint)).current()
    assert sound is not None
    assert sound.final
    for name, data in files.items():
        for what, broken in damages(data):
            exchange(checkpoint / name, broken)
            found: object = None
            try:
                found = Checkpoint(str(checkpoint)).current()
            except DamagedState as error:
                found = str(error)
            assert found != sound, what
            assert not isinstance(found, str) or name in found, what
        (checkpoint / name).write_bytes(data)
    assert Checkpoint(str(checkpoint)).current() == sound
