"""status, files, finish and clean on directories that a sink has written, without Spark."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest

from penstock.errors import Fenced
from penstock.options import SINK, parse
from penstock.sink import ledger
from penstock.sink.existing import note_options, noted
from penstock.sink.sink import Sink
from penstock.storage import LocalStorage
from tests.support.keyed import run, staged, writing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Said
    from tests.support.output import Output


def test_status_shows_what_is_open(penstock: Callable[..., Said], output: Output) -> None:
    """For each of two sinks: its last batch, its writers, its totals, and its open parts with age and idle time."""
    sink = output.sink(bucketBy="b={value}")
    output.batch(sink, 0, {0: ["a", "b"], 1: ["a"]})
    output.time.seconds += 30
    output.batch(sink, 1, {0: ["a"]})
    output.batch(output.sink(sink_id="other"), 0, {0: ["c"]}, query="q2", final=True)
    output.time.seconds += 12
    other, one = penstock("status", output.root, "--json").facts["sinks"]
    assert (one["batches"], one["writers"], one["rows"], one["files"]) == ({"q1": 1}, [0, 1], 4, 0)
    parts = [(p["bucket"], p["writer"], p["rows"], p["batches"]) for p in one["open"]]
    assert parts == [("b=a", 0, 2, [0, 1]), ("b=a", 1, 1, [0, 0]), ("b=b", 0, 1, [0, 0])]
    assert [(p["open_seconds"], p["idle_seconds"]) for p in one["open"]] == [(42.0, 12.0), (42.0, 42.0), (42.0, 42.0)]
    assert (other["batches"], other["rows"], other["files"], other["open"]) == ({"q2": 0}, 1, 1, [])
    said = penstock("status", output.root)
    assert "query q1: batch 1 is committed" in said.out
    assert "b=a" in said.out
    assert "no open part" in said.out


def test_status_shows_what_is_owed(penstock: Callable[..., Said], output: Output) -> None:
    """Files that were decided but are not visible yet, because the driver died in between, are shown as such."""
    sink = output.sink(rollBatches="1")
    output.batch(sink, 0, {0: ["a"]})
    os.remove(output.root / "_penstock/s/ledger" / f"{sink.ledger.head().n:012d}.published")
    assert penstock("status", output.root, "--json").facts["sinks"][0]["owed_files"] == 1
    assert "1 file decided, not visible yet" in penstock("status", output.root).out


def test_status_of_a_growing_file(penstock: Callable[..., Said], output: Output) -> None:
    """A growing file is shown with its committed length."""
    output.batch(output.sink(growing="true", fileName="events.log"), 0, {0: ["one", "two"]})
    assert penstock("status", output.root, "--json").facts["sinks"][0]["growing"] == {"events.log": 8}
    assert "growing: events.log" in penstock("status", output.root).out
    assert penstock("files", output.root, "--json").facts["bytes"] == 8


def test_batches_are_shown_by_their_keys_and_given_up_by_finish(penstock: Callable[..., Said], output: Output) -> None:
    """`status` shows finished keys and a key whose driver was killed; `finish` gives that key up, and its files are removed."""
    run(writing(LocalStorage(), str(output.root), "day/1"), {0: ["a"]})
    dead = writing(LocalStorage(), str(output.root), "day/2")
    staged(dead, dead.begin(), {0: ["b"]})
    (sink,) = penstock("status", output.root, "--json").facts["sinks"]
    assert (sink["owner"], sink["keys"], list(sink["writing"])) == ("batchKey", {"day/": [[1, 1]]}, ["day/2"])
    said = penstock("status", output.root).out
    assert "batch 'day/2' is being written by" in said
    assert penstock("finish", output.root).status == 0
    assert penstock("status", output.root, "--json").facts["sinks"][0]["writing"] == {}
    assert penstock("clean", output.root, "--json").facts["files"] == []
    assert penstock("verify", output.root).status == 0
    assert output.lines() == ["a"]


def test_files_lists_the_history(penstock: Callable[..., Said], output: Output) -> None:
    """Every finished file is listed with bucket, batches, rows and bytes, in the order in which the files were finished."""
    sink = output.sink(rollSize="4", bucketBy="{value}", fileName="f{seq}")
    for batch in range(3):
        output.batch(sink, batch, {0: ["a"]})
    facts = penstock("files", output.root, "--json").facts
    assert [(f["path"], f["bucket"], f["batches"], f["rows"], f["bytes"]) for f in facts["files"]] == [
        ("a/f0.txt", "a", [0, 1], 2, 4)
    ]
    assert (facts["rows"], facts["bytes"]) == (2, 4)
    said = penstock("files", output.root).out
    assert "a/f0.txt" in said
    assert "0-1" in said
    assert "1 file, 2 rows, 4 B" in said


def test_files_also_after_a_fold(
    penstock: Callable[..., Said], output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list is complete after old records were folded; if it is too long for a table, it is printed line by line."""
    monkeypatch.setattr(ledger, "FOLD", 4)
    monkeypatch.setattr("penstock.cli.state._TABLE_ROWS_MAX", 10)
    sink = output.sink(rollBatches="1", fileName="f{seq}")
    for batch in range(25):
        output.batch(sink, batch, {0: [str(batch)]})
    assert any("-" in name for name in os.listdir(output.root / "_penstock/s/ledger"))
    assert [f["path"] for f in penstock("files", output.root, "--json").facts["files"]] == [
        f"f{n}.txt" for n in range(25)
    ]
    lines = penstock("files", output.root).out.splitlines()
    assert lines[0] == "f0.txt\t-\t0\t1\t2 B"
    assert len(lines) == 26


def test_finish_publishes_what_is_open(penstock: Callable[..., Said], output: Output) -> None:
    """What a query left open becomes visible, under the names from the query's own options; a second call does nothing."""
    zone, name = "Asia/Tokyo", "x-{time:%Y%m%d_%H}-{seq}.log"
    output.batch(output.sink(timeZone=zone, fileName=name, rollSize="1g"), 0, {0: ["a", "b"]})
    moment = datetime.fromtimestamp(output.time.seconds + 9 * 3600, timezone.utc)
    said = penstock("finish", output.root, "--json")
    assert [f["path"] for f in said.facts["files"]] == [f"x-{moment:%Y%m%d_%H}-0.log"]
    assert output.lines() == ["a", "b"]
    assert "nothing was open" in penstock("finish", output.root).out


def test_finish_of_one_sink(penstock: Callable[..., Said], output: Output) -> None:
    """--sink leaves the other sinks alone; an unknown name is refused with the known ones."""
    output.batch(output.sink(), 0, {0: ["a"]})
    output.batch(output.sink(sink_id="t"), 0, {0: ["b"]})
    assert "published part-t-0-0.txt (1 row, 2 B)" in penstock("finish", output.root, "--sink", "t").out
    assert output.lines() == ["b"]
    said = penstock("finish", output.root, "--sink", "u")
    assert said.status == 2
    assert "there are: s, t" in said.err


def test_finish_fences_the_query(penstock: Callable[..., Said], output: Output) -> None:
    """A driver that is still running when its sink is finished ends with Fenced and adds nothing."""
    sink = output.sink()
    output.batch(sink, 0, {0: ["a"]})
    penstock("finish", output.root)
    with pytest.raises(Fenced):
        sink.roll("d1")


def test_clean_removes_what_nothing_names(penstock: Callable[..., Said], output: Output) -> None:
    """Staged files of a dead attempt are listed first and removed with --yes; named files and foreign files stay."""
    sink = output.sink()
    begun = sink.begin("d1")
    output.write(sink, begun, 0, {0: ["lost"]})
    lost = set(output.staged())
    output.batch(output.sink(), 0, {0: ["a"]}, owner="d2")
    folder = output.root / "_penstock/s/staging"
    (folder / "000000000000-not-ours.txt").write_text("mine")
    (folder / "000000000000-0-0-left.part").write_text("left")
    kept = set(output.staged()) - {"000000000000-0-0-left.part"}
    assert not lost & kept
    listed = penstock("clean", output.root, "--json").facts
    assert (listed["removed"], [os.path.basename(f["path"]) for f in listed["files"]]) == (
        False,
        ["000000000000-0-0-left.part"],
    )
    assert "would remove 1 file, 4 B; --yes to do it" in penstock("clean", output.root).out
    assert "removed 1 file, 4 B" in penstock("clean", output.root, "--yes").out
    assert set(output.staged()) == kept
    assert "nothing to remove" in penstock("clean", output.root, "--yes").out
    penstock("finish", output.root)
    assert output.lines() == ["a"]


def test_clean_leaves_a_batch_in_flight_alone(penstock: Callable[..., Said], output: Output) -> None:
    """The staged files of a running batch, and a temporary file that may belong to a running put, are not touched."""
    sink = output.sink()
    output.batch(sink, 0, {0: ["a"]})
    results = output.write(sink, sink.begin("d1"), 1, {0: ["b"]})
    new = output.root / "_penstock/s/ledger/.penstock-new"
    new.write_text("{")
    assert penstock("clean", output.root, "--yes", "--json").facts["files"] == []
    assert new.exists()
    assert results[0].rows == 1
    output.batch(sink, 1, {0: ["b"]})
    penstock("finish", output.root)
    assert output.lines() == ["a", "b"]


def test_clean_removes_old_temporaries(penstock: Callable[..., Said], output: Output) -> None:
    """A temporary file that a crash left next to the records hours ago is removed."""
    output.batch(output.sink(), 0, {0: ["a"]})
    old = output.root / "_penstock/s/ledger/.penstock-old"
    old.write_text("{")
    os.utime(old, (output.time.seconds - 7200, output.time.seconds - 7200))
    penstock("clean", output.root, "--yes")
    assert not old.exists()


@pytest.mark.parametrize("command", ["status", "files", "verify", "finish", "clean"])
def test_a_damaged_ledger_ends_with_3(penstock: Callable[..., Said], output: Output, command: str) -> None:
    """One flipped byte of the head record is damaged state for every command; the error names the file, and nothing changes."""
    sink = output.sink(rollSize="4")
    output.batch(sink, 0, {0: ["a", "b", "c"]})
    record = output.root / "_penstock/s/ledger" / f"{sink.ledger.head().n:012d}"
    data = bytearray(record.read_bytes())
    data[len(data) // 2] ^= 1
    record.write_bytes(data)
    before = sorted(os.listdir(record.parent)), output.staged(), output.visible()
    said = penstock(command, output.root, "--json")
    assert said.status == 3
    assert said.facts["error"]["code"] == "PST-400"
    assert str(record) in said.err
    assert before == (sorted(os.listdir(record.parent)), output.staged(), output.visible())


def test_damaged_options_end_with_3(penstock: Callable[..., Said], output: Output) -> None:
    """If the note of a sink's options was altered, the sink is not finished with other options."""
    output.batch(output.sink(), 0, {0: ["a"]})
    note = next((output.root / "_penstock/s").glob("options-*.json"))
    note.write_bytes(note.read_bytes().replace(b"mergeBelow", b"mergeAbove"))
    said = penstock("finish", output.root)
    assert said.status == 3
    assert str(note) in said.err


def test_a_sink_is_rebuilt_from_its_note(output: Output) -> None:
    """A sink's options are noted when it is claimed, and only the newest are kept; another process builds the same sink from them."""
    output.batch(output.sink(rollSize="7m"), 0, {0: ["a"]})
    output.batch(output.sink(rollSize="9m", fileName="z{seq}"), 1, {0: ["b"]}, owner="d2")
    assert len(list((output.root / "_penstock/s").glob("options-*"))) == 1
    found = Sink.existing(LocalStorage(), str(output.root), "s")
    assert (found.options["rollSize"], found.options["fileName"]) == (9 << 20, "z{seq}")
    assert found.ledger.head().total_rows == 2


def test_a_sink_without_a_note_has_the_defaults(penstock: Callable[..., Said], output: Output) -> None:
    """A sink whose driver died before it noted its options can still be finished."""
    output.batch(output.sink(), 0, {0: ["a"]})
    next((output.root / "_penstock/s").glob("options-*.json")).unlink()
    assert penstock("finish", output.root).status == 0
    assert output.lines() == ["a"]


def test_no_function_is_noted(tmp_path: Path) -> None:
    """A pickled transform is not kept in a state file; a transform with a name is noted by that name."""
    storage = LocalStorage()
    for epoch, transform, kept in (
        (1, "pickle:abc", (None, True)),
        (2, "mine:clean", ("mine:clean", False)),
        (3, None, (None, False)),
    ):
        stage: dict[str, object] = {"source": {}, "schema": "{}", "out": "{}", "transform": transform}
        note_options(storage, str(tmp_path), epoch, {"path": "/x", "ingest": json.dumps(stage)})
        note = noted(storage, str(tmp_path))
        assert note.stage is not None
        assert (note.stage.transform, note.stage.opaque) == kept
        assert parse(SINK, note.options, what="sink")["path"] == "/x"
        assert "pickle" not in "".join(path.read_text() for path in tmp_path.iterdir())
