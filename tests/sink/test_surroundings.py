"""What others do to an output while a query runs: the error says what happened and advises what works."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from penstock import failpoints
from penstock.cli.app import app
from penstock.errors import DamagedState, NotThere, OptionError, PublishConflict, StorageError
from penstock.sink import existing
from penstock.sink import ledger as ledger_module
from penstock.sink.events import EventLog, EventPosition
from penstock.sink.sink import Batch
from tests.support.output import QUERY, Output

if TYPE_CHECKING:
    from penstock.sink.sink import Sink


def test_a_directory_that_is_removed_or_put_back_in_mid_batch_is_no_rival(output: Output, tmp_path: Path) -> None:
    """The error was once `Fenced`, by a driver '', with the advice to start again; if the directory is restored, the query continues."""
    sink, copy, kept = output.sink(rollBatches="1"), tmp_path / "copy", tmp_path / "kept"
    output.batch(sink, 0, {0: ["a"]})
    begun = sink.begin("d1", Batch(QUERY, 1))
    results = output.write(sink, begun, 1, {0: ["b"]})
    output.root.rename(kept)
    with pytest.raises(
        DamagedState,
        match="is gone, but this driver continued from a later record.*put it back as it was and start again",
    ):
        sink.commit(Batch(QUERY, 1), results)
    with pytest.raises(DamagedState, match="is gone"):
        output.write(sink, begun, 1, {0: ["b"]})
    shutil.copytree(kept, copy)
    for record in (copy / "_penstock/s/ledger").iterdir():
        if not record.name.startswith("000000000001"):
            record.unlink()
    shutil.rmtree(copy / "_penstock/s/staging")
    copy.rename(output.root)
    with pytest.raises(DamagedState, match="ends with record 1, but this driver"):
        output.write(sink, begun, 1, {0: ["b"]})
    shutil.rmtree(output.root)
    kept.rename(output.root)
    output.batch(output.sink(), 1, {0: ["b"]}, owner="d2", final=True)
    assert output.lines() == ["a", "b"]


@pytest.mark.parametrize("bucket", ["{b}", "{b}/below"])
def test_a_file_where_a_bucket_has_to_be_is_named_and_moved_away(output: Output, bucket: str) -> None:
    """The error was once "Not a directory" for a directory below; when the file is gone, what was committed is published."""
    output.schema = pa.schema([("value", pa.string()), ("b", pa.string())])
    sink = output.sink(bucketBy=bucket, dropBucketColumns="true")
    output.root.mkdir()
    (output.root / "x").write_text("a file")
    with pytest.raises(StorageError, match="/x' is a file, expected a directory; move it away"):
        output.batch(sink, 0, {0: ["1|x"]}, final=True)
    (output.root / "x").unlink()
    output.batch(sink, 0, {0: ["1|x"]}, final=True)
    assert output.lines() == ["1"]


@pytest.mark.parametrize(
    ("kind", "says"),
    [("file", "/out' is a file, expected a directory; move it away"), ("link", "a symbolic link that leads nowhere")],
)
def test_an_output_that_is_no_directory_is_told_as_what_it_is(output: Output, kind: str, says: str) -> None:
    """A file, or a link whose target is not mounted, takes the place of the output; once it is removed, the query begins."""
    if kind == "file":
        output.root.write_text("a file")
    else:
        output.root.symlink_to("nowhere")
    with pytest.raises(StorageError, match=says):
        output.batch(output.sink(), 0, {0: ["1"]})
    output.root.unlink()
    output.batch(output.sink(), 0, {0: ["1"]}, final=True)
    assert output.lines() == ["1"]


def test_a_link_in_place_of_a_growing_file_is_not_written_through(output: Output, tmp_path: Path) -> None:
    """The link's target is not touched, the message names the link, and once the file is restored it grows on."""
    sink = output.sink(growing="true", fileName="all.log")
    output.batch(sink, 0, {0: ["1"]})
    file, away = output.root / "all.log", tmp_path / "away"
    file.rename(away)
    file.symlink_to(away)
    with pytest.raises(PublishConflict, match=r"all.log'.*and no link to it: put it back as it was"):
        output.batch(sink, 1, {0: ["2"]})
    assert away.read_text() == "1\n"
    os.replace(away, file)
    output.batch(sink, 1, {0: ["2"]})
    assert output.visible() == {"all.log": "1\n2\n"}


@pytest.mark.parametrize("theirs", ["a0", "longer than that", "b"])
def test_two_sinks_that_begin_one_growing_file_at_one_moment(output: Output, theirs: str) -> None:
    """Both sinks found no file; each then overwrote the rows of the other, or asked for them to be cut off.

    The second sink to publish gets its own file, and decides nothing more for a name that belongs to the other sink.
    """
    options = {"growing": "true", "fileName": "all.log"}
    first, second = output.sink(sink_id="a", **options), output.sink(sink_id="b", **options)
    failpoints.arm("sink.publish.grow=error")
    with pytest.raises(OSError, match="failpoint"):
        output.batch(second, 0, {0: ["b0"]}, query="q2")
    failpoints.arm("")
    output.batch(first, 0, {0: [theirs]})
    assert output.batch(second, 0, {0: ["b0"]}, query="q2").repeated
    assert output.visible() == {"all-b.log": "b0\n", "all.log": f"{theirs}\n"}
    with pytest.raises(PublishConflict, match="is not of this sink and cannot grow; set another fileName"):
        output.batch(second, 1, {0: ["b1"]}, query="q2")
    output.batch(first, 1, {0: ["a1"]})
    output.batch(output.sink(sink_id="b", growing="true", fileName="b.log"), 1, {0: ["b1"]}, query="q2")
    assert output.visible() == {"all-b.log": "b0\n", "all.log": f"{theirs}\na1\n", "b.log": "b1\n"}
    assert is_well(output)


def test_a_driver_that_claims_the_sink_while_its_options_are_read(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note that was listed is gone when it is read: the reader takes the new one. It fails only if there is none in its place."""
    sink = output.sink(rollRows="7")
    sink.begin("d1")
    epochs, before = existing._epochs, existing._epochs(sink.storage, sink.state)
    output.sink(rollRows="8").begin("d2")
    seen = [before]
    monkeypatch.setattr(existing, "_epochs", lambda *given: seen.pop() if seen else epochs(*given))
    assert existing.noted(sink.storage, sink.state).options["rollRows"] == "8"
    monkeypatch.setattr(existing, "_epochs", lambda *_: before)
    with pytest.raises(NotThere):
        existing.noted(sink.storage, sink.state)


def is_well(output: Output) -> bool:
    """Tell whether `penstock verify` finds everything as the ledgers say."""
    result = CliRunner().invoke(app, ["verify", str(output.root), "--json"])
    return bool(json.loads(result.stdout)["ok"])


def decides(output: Output, sink: Sink, number: int, query: str) -> None:
    """Run a batch of one row whose driver dies before publishing."""
    failpoints.arm("sink.publish.one=error")
    with pytest.raises(OSError, match="failpoint"):
        output.batch(sink, number, {0: [f"{query}{number}"]}, query=query)
    failpoints.arm("")


def test_two_sinks_that_give_one_name_at_one_moment(output: Output, caplog: pytest.LogCaptureFixture) -> None:
    """Without `{sink}` in `fileName` both decide on one name. The advice was to move the other's file away, which its ledger would miss.

    The second sink to publish takes another name and logs that; both ledgers know their files, and the numbers continue.
    """
    options = {"fileName": "p-{writer}-{seq}", "rollBatches": "1"}
    first, second = output.sink(sink_id="a", **options), output.sink(sink_id="b", **options)
    decides(output, second, 0, "b")
    output.batch(first, 0, {0: ["a0"]}, query="a")
    assert output.batch(second, 0, {0: ["b0"]}, query="b").repeated
    assert output.visible() == {"p-0-0-b.txt": "b0\n", "p-0-0.txt": "a0\n"}
    assert "names its files as sink 'a' does, which took the name 'p-0-0.txt' first" in caplog.text
    decides(output, first, 1, "a")
    decides(output, second, 1, "b")
    assert [file.path for file in second.finish().files] == ["p-0-1.txt"]  # type: ignore[union-attr]
    assert [file.path for file in first.finish().files] == ["p-0-1-a.txt"]  # type: ignore[union-attr]
    assert [file.path for file in second.ledger.history()] == ["p-0-0-b.txt", "p-0-1.txt"]
    for sink, query in ((first, "a"), (second, "b")):
        output.batch(sink, 2, {0: [f"{query}2"]}, query=query)
    assert output.lines() == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert is_well(output)


def test_a_name_that_was_given_instead_survives_crash_reader_and_fold(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver dies after the note, and again after publishing; readers receive the file once, before and after the fold."""
    monkeypatch.setattr(ledger_module, "FOLD", 2)
    options = {"fileName": "p-{seq}", "rollBatches": "1"}
    first, second = output.sink(sink_id="a", **options), output.sink(sink_id="b", **options)
    decides(output, second, 0, "b")
    output.batch(first, 0, {0: ["a0"]}, query="a")
    events = EventLog(second.ledger, "b", "the ledger")
    for point in ("sink.publish.one@2", "sink.publish.before-note"):
        failpoints.arm(point.replace("@", "=error@") if "@" in point else f"{point}=error")
        with pytest.raises(OSError, match="failpoint"):
            output.batch(second, 0, {0: ["b0"]}, query="b")
        failpoints.arm("")
        assert events.after(EventPosition()) == []
    (output.root / "p-0.txt").rename(
        output.root / "consumed"
    )  # the file of that name may go: the note says that another one had it
    output.batch(second, 0, {0: ["b0"]}, query="b")
    (event,) = events.after(EventPosition())
    assert event.path == "p-0-b.txt"
    for number in range(1, 12):
        output.batch(second, number, {0: [f"b{number}"]}, query="b")
    assert not list((output.root / "_penstock/b/ledger").glob("*.renamed")), "the fold has the name"
    assert [event.path for event in events.after(event.position_after)][:1] == ["p-1.txt"]
    told = [event.path for event in EventLog(second.ledger, "b", "the ledger").after(EventPosition())]
    assert (
        told == [file.path for file in second.ledger.history()] == ["p-0-b.txt", *(f"p-{n}.txt" for n in range(1, 12))]
    )


@pytest.mark.parametrize("added", ["X\n", "2\nX\n", "\0\0", "2"])
def test_rows_that_somebody_else_appended_are_not_written_over(output: Output, added: str) -> None:
    """A stranger's line of the same length was lost silently; what a crash of ours may have left is overwritten by the same rows."""
    sink = output.sink(growing="true", fileName="all.log")
    output.batch(sink, 0, {0: ["1"]})
    file = output.root / "all.log"
    with file.open("a") as out:
        out.write(added)
    if "X" in added:
        with pytest.raises(PublishConflict, match="cut it to 2 bytes and run the same command again"):
            output.batch(sink, 1, {0: ["2"]})
        assert file.read_text() == f"1\n{added}"
        os.truncate(file, 2)
    output.batch(sink, 1, {0: ["2"]})
    assert output.visible() == {"all.log": "1\n2\n"}


@pytest.mark.parametrize("inside", ["", "/ck", "/_penstock", "/a/b"])
def test_a_checkpoint_among_the_output_is_refused(output: Output, inside: str) -> None:
    """Readers of the output took the files of Spark's checkpoint for rows. A query that already has such a checkpoint may continue."""
    place = output.root / inside.strip("/")
    with pytest.raises(OptionError, match="readers would take Spark's files for rows; choose a directory outside"):
        output.sink(checkpointLocation=f"file:{place}").check(output.schema)
    assert not output.root.exists()
    (place / "commits").mkdir(parents=True)
    (place / "commits/0").write_text("v1")
    output.sink(checkpointLocation=str(place)).check(output.schema)


@pytest.mark.parametrize("place", ["_ck", ".ck/x", "_penstock/checkpoint", "a/_b/c", "../ck", "../out2", "dbfs:/x"])
def test_a_checkpoint_that_readers_do_not_see_is_taken(output: Output, place: str) -> None:
    """A checkpoint may be hidden in the output, beside it, or where only Spark can find it."""
    where = place if ":" in place else f"{output.root}/{place}"
    output.sink(checkpointLocation=where).check(output.schema)


def test_a_state_that_is_a_link_to_another_file_system_is_told_before_anything_is_committed(output: Output) -> None:
    """It was told by a batch that was committed and could not be published; a link to the same file system is followed."""
    places = [Path("/dev/shm"), Path(tempfile.gettempdir())]  # noqa: S108 - tests are in memory or on a disk, so one is another
    others = [place for place in places if place.is_dir() and place.stat().st_dev != output.root.parent.stat().st_dev]
    if not others:
        pytest.skip("no other file system to be had on this machine")
    kept, state = output.root.with_name("kept"), output.root / "_penstock"
    output.batch(output.sink(rollBatches="1"), 0, {0: ["a"]})
    state.rename(kept)
    state.symlink_to(kept)
    output.batch(output.sink(rollBatches="1"), 1, {0: ["b"]}, owner="d2")
    with tempfile.TemporaryDirectory(dir=others[0]) as there:
        shutil.copytree(kept, there, dirs_exist_ok=True)
        state.unlink()
        state.symlink_to(there)
        sink = output.sink(rollBatches="1")
        with pytest.raises(
            StorageError, match="expected a directory on the file system of the output: put it in place of the link"
        ):
            output.batch(sink, 2, {0: ["c"]}, owner="d3")
        assert (sink.ledger.head().n, set(output.staged())) == (4, set())
        state.unlink()
        shutil.copytree(there, state)
    output.batch(output.sink(rollBatches="1"), 2, {0: ["c"]}, owner="d3")
    assert output.lines() == ["a", "b", "c"]
