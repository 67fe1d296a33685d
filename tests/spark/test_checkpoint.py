"""What a sink reads from Spark's checkpoint, without Spark: is this batch the last of its run?"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.errors import AlreadyThere, CheckpointMismatch
from penstock.query.checkpoint import Checkpoint
from penstock.query.entries import Entries
from penstock.query.offset import summed
from penstock.query.offsetlog import LogEntry
from penstock.storage import LocalStorage
from penstock.testing import SimulatedCrash

OURS: dict[str, object] = {"v": 1, "read": [0, 0], "recent": {}}
IDLE = summed(OURS | {"cursor": None, "plan": []})
MORE = summed(OURS | {"cursor": [5, "a"], "plan": [["a", 0, 1, 1, 5, "7"]]})
NEXT = summed(OURS | {"cursor": [6, "b"], "plan": [["b", 0, 1, 1, 6, "8"]]})
LAST = summed(OURS | {"cursor": [6, "b"], "plan": [["b", 0, 1, 1, 6, "8"]], "last": True})
FOREIGN, FURTHER = {"logOffset": 3}, {"logOffset": 4}


@pytest.mark.parametrize(
    ("there", "stays"),
    [
        ([], []),
        ([".0.5b1c.tmp"], []),
        ([".0.5b1c.tmp", ".0.77.tmp", "unknown"], ["unknown"]),
        (["0", ".1.5b1c.tmp"], ["0", ".1.5b1c.tmp"]),
    ],
)
def test_unfinished_writes_go_where_no_batch_is(tmp_path: Path, there: list[str], stays: list[str]) -> None:
    """Spark needs an empty log for a first batch. Once a batch is planned, an unfinished write belongs to a living driver and stays."""
    (tmp_path / "offsets").mkdir()
    for name in there:
        (tmp_path / "offsets" / name).touch()
    Checkpoint(str(tmp_path)).forget_unfinished()
    assert sorted(path.name for path in (tmp_path / "offsets").iterdir()) == sorted(stays)


@pytest.mark.parametrize("removed", [0, 1, 2])
def test_no_entry_meets_the_checksum_of_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: int
) -> None:
    """`penstock replan` is killed between two removals, and another command puts the entry: Spark would take it for damaged for good."""
    (tmp_path / "offsets").mkdir()
    for name in ("7", ".7.crc"):
        (tmp_path / "offsets" / name).write_bytes(b"old")
    checkpoint, delete, left = Checkpoint(str(tmp_path)), LocalStorage.delete, removed

    def dies(self: LocalStorage, path: str) -> None:
        nonlocal left
        if not left:
            raise SimulatedCrash
        left -= 1
        delete(self, path)

    with monkeypatch.context() as patched, suppress(SimulatedCrash):
        patched.setattr(LocalStorage, "delete", dies)
        checkpoint.abandon(7)
    there = {path.name for path in (tmp_path / "offsets").iterdir()}
    assert there in ({"7", ".7.crc"}, {"7"}, set())
    (tmp_path / "offsets/7").unlink(missing_ok=True)  # as a power cut may have it
    checkpoint.put("offsets/7", b"new")
    assert [path.name for path in (tmp_path / "offsets").iterdir()] == ["7"]
    with pytest.raises(AlreadyThere):
        checkpoint.put("offsets/7", b"newer")


@pytest.mark.parametrize(
    ("before", "offsets", "final"),
    [
        (None, [LAST], True),
        (None, [MORE], False),
        ([MORE], [NEXT], False),
        ([MORE], [LAST], True),
        (None, [LAST, MORE], False),
        (None, [LAST, IDLE], True),
        (None, [IDLE, LAST, None], True),
        ([LAST, MORE], [LAST, NEXT], False),
        ([LAST, MORE], [LAST, LAST], True),
        ([MORE, MORE], [MORE, LAST], True),
        ([MORE, MORE], [NEXT, LAST], False),
        ([LAST], [LAST], True),
        ([MORE], [MORE], False),
        ([FOREIGN], [FURTHER], False),
        (None, [FOREIGN, LAST], False),
        ([FOREIGN, MORE], [FURTHER, LAST], False),
        ([FOREIGN, MORE], [FOREIGN, LAST], True),
        ([FOREIGN, LAST], [FURTHER, LAST], False),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_last_batch_of_several_sources(
    tmp_path: Path, before: list[object] | None, offsets: list[object], final: bool, version: int
) -> None:
    """SPK-10: a batch is a run's last if each source says so or had nothing for it; what it said for earlier batches is ignored."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"q"}')
    for number, lines in ((4, before), (5, offsets)):
        if lines is not None:
            texts = ["-" if line is None else json.dumps(line) for line in lines]
            if version == 2:  # with names, and in any order
                texts = [f"source_{place}:{line}" for place, line in enumerate(texts)][:: 1 if number == 4 else -1]
            (tmp_path / "offsets" / str(number)).write_text("\n".join([f"v{version}", "{}", *texts]))
    batch = Checkpoint(str(tmp_path)).current()
    assert batch is not None
    assert (batch.query, batch.number, batch.final) == ("q", 5, final)


@pytest.mark.parametrize(
    ("text", "sources"),
    [
        (b"", {}),
        (b"v1\n{}", {}),
        (b'v1\n{}\n-\n{"a:b": 1}', {"0": b"-", "1": b'{"a:b": 1}'}),
        (b'v2\n{}\nb:{"a:b": 1}\na:-', {"b": b'{"a:b": 1}', "a": b"-"}),
    ],
)
def test_both_forms_of_an_entry(text: bytes, sources: dict[str, bytes]) -> None:
    """Sources are known by the places of their lines, or by names before a colon; an entry is written in the form in which it was read."""
    entry = LogEntry.of(text)
    assert entry.sources == sources
    assert entry.written(entry.sources) == text


def test_a_batch_without_spark_has_the_form_of_the_one_before(tmp_path: Path) -> None:
    """Spark refuses a log whose entries are of two versions, or that lacks its source's name."""
    entries, checkpoint = Entries(Checkpoint(str(tmp_path))), Checkpoint(str(tmp_path))
    entries.begin()
    entries.plan(0, "{}")
    assert checkpoint.entry(0).sources == {"0": b"{}"}
    (tmp_path / "offsets/0").write_bytes(b'v2\n{"conf":{"a":"b"}}\ninput:{}')
    entries.plan(1, '{"x":1}')
    assert checkpoint.entry(1).sources == {"input": b'{"x":1}'}
    assert checkpoint.entry(1).head[0] == b"v2"
    assert json.loads(checkpoint.entry(1).head[1])["conf"] == {"a": "b"}


@pytest.mark.parametrize(
    ("before", "now", "refused"),
    [
        ("AB", "AB", False),
        ("AB", "BA", True),
        ("ABC", "BCA", True),
        ("AB", "CA", True),  # A begins where B had stopped
        ("AB", "CB", False),  # one goes on in another directory, which is allowed
        ("AB", "AA", False),
        ("AA", "AA", False),
        ("A-", "A-", False),
    ],
)
def test_sources_that_have_changed_places(tmp_path: Path, before: str, now: str, refused: bool) -> None:
    """Spark tells sources by their places: one began at the offset of another one, and read again what it had read."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"q"}')
    for number, roots in enumerate((before, now)):
        lines = ["-" if root == "-" else json.dumps(summed(OURS | {"cursor": None, "root": root})) for root in roots]
        (tmp_path / "offsets" / str(number)).write_text("\n".join(["v1", "{}", *lines]))
    checkpoint = Checkpoint(str(tmp_path))
    if not refused:
        checkpoint.current()
        return
    with pytest.raises(CheckpointMismatch, match=f"`penstock replan {tmp_path} DST`.* in their former order"):
        checkpoint.current()
