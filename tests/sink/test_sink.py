"""Parts over their whole life, batch by batch, as a reader of the directory sees them."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import duckdb
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import failpoints
from penstock.errors import (
    CheckpointMismatch,
    CommitError,
    DamagedState,
    Fenced,
    NoSpace,
    OptionError,
    PublishConflict,
    StorageError,
)
from penstock.formats import parquet
from penstock.sink import keeper, ledger, tableparts
from penstock.sink.byteparts import BytePart
from penstock.sink.committer import Committer
from penstock.sink.ledger import Look, State
from penstock.sink.sink import Batch, Sink
from penstock.sink.tableparts import ArrowPart
from penstock.storage import HostFact, LocalStorage
from penstock.testing import CrashDisk, FakeClock, ObjectStore, SimulatedCrash, visible
from penstock.verify import verify
from tests.support.extras import WITH_AVRO
from tests.support.keys import READER
from tests.support.output import QUERY, Output
from tests.support.scene import rows


def test_part_grows_over_batches_and_closes_by_size(output: Output) -> None:
    """Two-byte lines, 8 bytes per part: nothing is visible until a part is full, then each file has exactly four lines."""
    sink = output.sink(rollSize="8", fileName="p-{writer}-{seq}")
    assert not output.batch(sink, 0, {0: ["0", "1", "2"]}).files
    assert output.visible() == {}
    done = output.batch(sink, 1, {0: ["3", "4", "5"]})
    assert output.visible() == {"p-0-0.txt": "0\n1\n2\n3\n"}
    assert [(f.rows, f.bytes, f.first_batch, f.last_batch) for f in done.files] == [(4, 8, 0, 1)]
    output.batch(sink, 2, {0: ["6", "7"]})
    assert output.visible()["p-0-1.txt"] == "4\n5\n6\n7\n"


def test_a_part_is_rolled_before_the_record_that_would_pass_the_limit(output: Output) -> None:
    """Lines of 6 bytes with a limit of 10 bytes make one line per file; one oversized line gets its own file (F31)."""
    sink = output.sink(rollSize="10", fileName="p-{seq}")
    output.batch(sink, 0, {0: ["aaaaa", "bbbbb", "c" * 50, "d"]}, final=True)
    assert list(output.visible().values()) == ["aaaaa\n", "bbbbb\n", "c" * 50 + "\n", "d\n"]


def test_close_by_rows(output: Output) -> None:
    """I2: 1000 lines at 100 rows per file make 10 files of 100."""
    sink = output.sink(rollRows="100", fileName="f{seq}")
    for batch in range(4):
        output.batch(sink, batch, {0: [f"line {batch} {i}" for i in range(250)]})
    assert [len(text.splitlines()) for text in output.visible().values()] == [100] * 10


def test_every_batch(output: Output) -> None:
    """rollBatches=1 publishes each batch's rows with the batch; rollBatches=3 those of three batches; empty batches count."""
    sink = output.sink(rollBatches="1", fileName="a{seq}")
    output.batch(sink, 0, {0: ["1"]})
    output.batch(sink, 1, {0: ["2"]})
    assert output.visible() == {"a0.txt": "1\n", "a1.txt": "2\n"}
    sink = output.sink(sink_id="three", rollBatches="3", fileName="b{seq}")
    for batch, lines in enumerate([["1"], [], ["3"], ["4"]]):
        output.batch(sink, batch, {0: lines})
    assert output.visible()["b0.txt"] == "1\n3\n"


def test_age_closes_a_part_without_the_new_rows(output: Output, time: FakeClock) -> None:
    """S13: a part older than rollInterval is closed when the next batch begins; that batch's rows open another."""
    sink = output.sink(rollInterval="10s", rollInactivity="1h", fileName="p{seq}")
    output.batch(sink, 0, {0: ["1"]})
    time.seconds += 9
    output.batch(sink, 1, {0: ["2"]})
    assert output.visible() == {}
    time.seconds += 1
    output.batch(sink, 2, {0: ["3"]})
    assert output.visible() == {"p0.txt": "1\n2\n"}


def test_idleness_closes_one_bucket_and_not_the_other(output: Output, time: FakeClock) -> None:
    """B13: of four buckets two get more rows: the other two are closed after rollInactivity, these two stay open."""
    output.schema = pa.schema([("value", pa.string()), ("b", pa.string())])
    sink = output.sink(format="csv", bucketBy="{b}", rollInactivity="5m", rollInterval="1h", fileName="p{seq}")
    output.batch(sink, 0, {0: [f"x|{b}" for b in "0123"]})
    time.seconds += 240
    output.batch(sink, 1, {0: ["y|0", "y|1"]})
    time.seconds += 120
    output.batch(sink, 2, {0: ["z|0", "z|1"]})
    assert sorted(output.visible()) == ["2/p0.csv", "3/p1.csv"]
    assert len(sink.ledger.head().open) == 2


def test_a_stream_whose_batches_take_long_is_not_idle(output: Output, time: FakeClock) -> None:
    """Each batch takes longer than rollInactivity: its rows were idle as soon as they were committed, and each left a file.

    Idleness is counted from the end of the batch, by `roll` as well.
    """
    sink = output.sink(rollInactivity="60s", fileName="p{seq}")
    for number in range(3):
        begun = sink.begin("d1", Batch(QUERY, number))
        time.seconds += 90
        sink.commit(Batch(QUERY, number), output.write(sink, begun, number, {0: [str(number)]}))
        time.seconds += 59
        assert sink.roll("d1") is None
    time.seconds += 1
    sink.roll("d1")
    assert output.visible() == {"p0.txt": "0\n1\n2\n"}


def test_idle_stream_is_rolled_between_batches(output: Output, time: FakeClock) -> None:
    """F14: while no batch runs, `roll` closes what is due, and nothing earlier."""
    sink = output.sink(rollInactivity="60s", fileName="p{seq}")
    output.batch(sink, 0, {0: ["1"]})
    time.seconds += 59
    assert sink.roll("d1") is None
    time.seconds += 1
    done = sink.roll("d1")
    assert done is not None
    assert output.visible() == {"p0.txt": "1\n"}
    assert sink.roll("d1") is None
    output.batch(sink, 1, {0: ["2"]}, final=True)
    assert output.visible()["p1.txt"] == "2\n"


def test_clock_that_steps_back_a_little_closes_nothing_early(output: Output, time: FakeClock) -> None:
    """A clock that goes back by less than the limits neither closes the part nor causes an error; later the part is closed."""
    sink = output.sink(rollInterval="10m", rollInactivity="10m", fileName="p{seq}")
    output.batch(sink, 0, {0: ["1"]})
    time.seconds -= 590
    output.batch(sink, 1, {0: ["2"]})
    assert output.visible() == {}
    time.seconds += 1200
    output.batch(sink, 2, {0: ["3"]}, final=True)
    assert output.lines() == ["1", "2", "3"]


@pytest.mark.parametrize("ahead", [3600, 40 * 365 * 86_400])
@pytest.mark.parametrize("between", [True, False], ids=["between batches", "with a batch"])
def test_rows_of_a_clock_that_was_ahead_are_not_hidden_until_it_is_there(
    output: Output, time: FakeClock, ahead: int, between: bool
) -> None:
    """A part opened or written under a clock that was ahead is closed when the clock is right again, with or without new rows."""
    sink = output.sink(rollInterval="10m", rollInactivity="5m", bucketBy="b={value}")
    output.batch(sink, 0, {0: ["old"]})
    time.seconds += 60
    output.batch(sink, 1, {0: ["x"]})
    time.seconds += ahead
    output.batch(sink, 2, {0: ["wrong"]})
    assert output.lines() == ["old", "x"]
    time.seconds -= ahead
    if between:
        sink.roll("d1")
    else:
        output.batch(sink, 3, {0: ["y"]})
    assert output.lines() == ["old", "wrong", "x"]
    assert len(sink.ledger.head().open) == (not between)


def test_batch_without_rows_leaves_its_record_alone(output: Output) -> None:
    """F30, M6: empty batches and tasks without rows make no file and use no number; the first close does not either (B1)."""
    sink = output.sink()
    before = sink.begin("d1").base
    output.batch(sink, 0, {0: [], 1: []}, mark="m0")
    output.batch(sink, 1, {}, mark="m1")
    head = sink.ledger.head()
    assert (head.n, head.batches, head.floor, head.sequences) == (before + 2, {QUERY: (1, "m1")}, 0, {})
    assert sink.finish() is None
    assert output.visible() == {}
    assert output.staged() == []


def test_last_batch_publishes_everything(output: Output) -> None:
    """F15, S12: a batch that is marked as the last leaves nothing open, not even for writers without rows in it."""
    sink = output.sink()
    output.batch(sink, 0, {0: ["a"], 1: ["b"], 2: ["c"]})
    output.batch(sink, 1, {1: ["d"]}, final=True)
    assert output.lines() == ["a", "b", "c", "d"]
    assert sink.ledger.head().open == ()
    assert output.staged() == []


def test_finish_publishes_what_a_lost_query_left(output: Output) -> None:
    """`finish` closes what is committed and open; what was staged but not committed stays out."""
    sink = output.sink()
    output.batch(sink, 0, {0: ["a"]})
    begun = sink.begin("d1", Batch(QUERY, 1))
    output.write(sink, begun, 1, {0: ["never committed"]})
    assert sink.finish() is not None
    assert output.lines() == ["a"]
    assert sink.finish() is None


def test_replay_of_a_committed_batch_changes_nothing(output: Output) -> None:
    """F2: the batch is delivered again, even with other rows and other tasks: the first decision stands."""
    sink = output.sink(rollBatches="1")
    output.batch(sink, 0, {0: ["a"], 1: ["b"]})
    seen = output.visible()
    for owner in ("d1", "d2"):
        done = output.batch(sink, 0, {0: ["a", "x"], 1: ["b"], 2: ["c"]}, owner=owner)
        assert done.repeated
    assert output.visible() == seen


def test_replay_of_a_batch_that_was_not_committed_leaves_no_trace_of_the_first_try(output: Output) -> None:
    """M2, M10, F10: the rows of a try that died are completely gone, and those of the replay are all there."""
    sink = output.sink(rollSize="4", fileName="p{seq}")
    output.batch(sink, 0, {0: ["0"]})
    begun = sink.begin("d1", Batch(QUERY, 1))
    output.write(sink, begun, 1, {0: ["lost 1", "lost 2"]})
    output.batch(output.sink(rollSize="4", fileName="p{seq}"), 1, {0: ["1", "2"]}, owner="d2", final=True)
    assert output.visible() == {"p0.txt": "0\n1\n", "p1.txt": "2\n"}
    assert output.staged() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        "sink.write.staged",
        "sink.ledger.before-put",
        "sink.ledger.after-put",
        "sink.publish.one",
        "sink.publish.one@2",
        "storage.publish.linked",
        "sink.publish.before-note",
        "sink.forget",
        "storage.put.link",
        "storage.put.sync",
        "storage.create",
    ],
)
def test_failure_at_any_point_of_a_batch_is_made_good_by_the_replay(output: Output, point: str) -> None:
    """F1, F3: whatever step of write, commit and publish fails, repeating the batch yields each row exactly once."""
    sink = output.sink(rollBatches="2", fileName="p{writer}-{seq}")
    output.batch(sink, 0, {0: ["a"], 1: ["b"]})
    name, _, at = point.partition("@")
    failpoints.arm(f"{name}=error" + (f"@{at}" if at else ""))
    with pytest.raises((OSError, StorageError)):
        output.batch(sink, 1, {0: ["c"], 1: ["d"]})
    failpoints.arm("")
    assert set(output.lines()) <= {"a", "b", "c", "d"}
    again = output.sink(rollBatches="2", fileName="p{writer}-{seq}")
    output.batch(again, 1, {0: ["c"], 1: ["d"]}, owner="d2")
    assert output.visible() == {"p0-0.txt": "a\nc\n", "p1-0.txt": "b\nd\n"}


@pytest.mark.parametrize("point", ["storage.write", "storage.sync", "storage.put.sync", "storage.put.link"])
def test_full_disk_fails_the_batch_whole(output: Output, point: str) -> None:
    """F32: no space at write, assembly or ledger put: nothing is visible; once there is space again the batch succeeds."""
    sink = output.sink(rollBatches="1")
    output.batch(sink, 0, {0: ["a"]})
    failpoints.arm(f"{point}=nospace")
    with pytest.raises(NoSpace):
        output.batch(sink, 1, {0: ["b"]})
    failpoints.arm("")
    assert output.lines() == ["a"]
    output.batch(sink, 1, {0: ["b"]})
    assert output.lines() == ["a", "b"]


@pytest.mark.parametrize("to", [{}, {"encryptTo": READER, "encryptionKey": "none"}], ids=["clear", "age"])
@pytest.mark.parametrize("name", ["text", "parquet", "orc", *WITH_AVRO])
def test_full_disk_at_each_write_of_a_file_of_its_own(
    output: Output, monkeypatch: pytest.MonkeyPatch, name: str, to: dict[str, str]
) -> None:
    """F32: whichever write finds no space, in every format: the task raises an error, its process survives, the replay has each row."""
    monkeypatch.setattr(BytePart, "stage_bytes", 1)
    monkeypatch.setattr(ArrowPart, "stage_bytes", 1)
    writes = 0
    while writes < 50:
        writes += 1
        sink = output.sink(format=name, rollRows="2", fileName="p{seq}", **to)
        failpoints.arm(f"storage.write=nospace@{writes}")
        try:
            output.batch(sink, 0, {0: ["a", "b", "c"]}, owner=f"d{writes}", final=True)
        except NoSpace:
            assert output.visible() == {}
        else:
            break
    failpoints.arm("")
    assert 1 < writes < 50
    assert rows(visible(output.storage, str(output.root))) == Counter("abc")
    assert [file.rows for file in sink.ledger.history()] == [2, 1]


def test_twin_task_is_never_visible(output: Output) -> None:
    """F11: of two attempts of one task only the accepted one counts; the other's file is swept and never shown."""
    sink = output.sink(rollBatches="1")
    batch = Batch(QUERY, 0)
    begun = sink.begin("d1", batch)
    [accepted] = output.write(sink, begun, 0, {0: ["a"]})
    output.write(sink, begun, 0, {0: ["a"]})
    sink.commit(batch, [accepted])
    output.write(sink, begun, 0, {0: ["a"]})  # a zombie, after the commit
    assert output.lines() == ["a"]
    output.batch(sink, 1, {0: ["b"]})
    assert output.lines() == ["a", "b"]
    assert output.staged() == []


def test_stalled_driver_is_fenced(output: Output) -> None:
    """F12: A stops before its put, B takes over and commits, A continues: A ends with Fenced and has changed nothing."""
    a = output.sink(rollBatches="1")
    batch = Batch(QUERY, 0)
    begun = a.begin("A", batch)
    staged = output.write(a, begun, 0, {0: ["from A"]})
    b = output.sink(rollBatches="1")
    output.batch(b, 0, {0: ["from B"]}, owner="B")
    output.batch(b, 1, {0: ["more"]}, owner="B")
    seen = output.visible()
    with pytest.raises(Fenced, match="'B'"):
        a.commit(batch, staged)
    assert output.visible() == seen
    assert output.lines() == ["from B", "more"]


def meanwhile(monkeypatch: pytest.MonkeyPatch, does: Callable[[], object]) -> None:
    """Call a function once, when a driver B is about to put its claim."""
    put, left = Committer.put, [does]

    def interrupted(self: Committer, state: State) -> Look:
        if state.owner == "B" and left:
            left.pop()()
        return put(self, state)

    monkeypatch.setattr(Committer, "put", interrupted)


def test_claim_beside_the_last_word_of_the_dead(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failure 9 of `sink.sink`: the keeper of a killed driver publishes while its successor begins, which takes over nonetheless."""
    a, b = (output.sink(rollSize="1m") for _ in "ab")
    output.batch(a, 0, {0: ["from A"]}, owner="A")
    meanwhile(monkeypatch, lambda: a.finish("A"))
    output.batch(b, 1, {0: ["from B"]}, owner="B")
    b.finish("B")
    assert output.lines() == ["from A", "from B"]


def test_claim_beside_another_claim_is_fenced(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two drivers take over at the same time: the later one ends, and does not take over from the other in turn."""
    a, b, c = (output.sink(rollSize="1m") for _ in "abc")
    output.batch(a, 0, {0: ["from A"]}, owner="A")
    meanwhile(monkeypatch, lambda: output.batch(c, 1, {0: ["from C"]}, owner="C"))
    with pytest.raises(Fenced, match="'C'"):
        output.batch(b, 1, {0: ["from B"]}, owner="B")
    c.finish("C")
    assert output.lines() == ["from A", "from C"]


def test_driver_stalled_so_long_that_its_number_is_free_again(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failure 3 of the ledger: the stale put succeeds because old records were removed; it decides nothing and is undone."""
    monkeypatch.setattr("penstock.sink.ledger.FOLD", 2)
    a = output.sink(rollBatches="1")
    batch = Batch(QUERY, 0)
    begun = a.begin("A", batch)
    staged = output.write(a, begun, 0, {0: ["from A"]})
    head = a.ledger.head()
    decided = a.decided(head, batch, staged)
    b = output.sink(rollBatches="1")
    for number in range(6):
        output.batch(b, number, {0: [f"B{number}"]}, owner="B")
    assert decided.n not in b.ledger.numbers()
    seen = output.visible()
    with pytest.raises(Fenced):
        a.committer.put(decided)
    assert decided.n not in b.ledger.numbers()
    output.batch(b, 6, {0: ["B6"]}, owner="B")
    assert output.lines() == [f"B{n}" for n in range(7)]
    assert set(seen) <= set(output.visible())
    assert sorted(f.path for f in b.ledger.history()) == sorted(output.visible())


def test_lost_reply_of_the_put(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failure 4 of the ledger: the put succeeded but was reported as failed; the commit finds its own record and continues."""
    sink = output.sink(rollBatches="1")
    output.batch(sink, 0, {0: ["a"]})
    put = type(sink.storage).put_if_absent

    def lose(self: object, path: str, data: bytes) -> None:
        put(self, path, data)  # type: ignore[arg-type]
        msg = "the reply was lost"
        raise StorageError(msg)

    monkeypatch.setattr(type(sink.storage), "put_if_absent", lose)
    output.batch(sink, 1, {0: ["b"]})
    assert output.lines() == ["a", "b"]


def test_record_put_while_a_batch_was_written_makes_the_batch_fail(output: Output) -> None:
    """Failure 3 of the sink: a roll that came in between is never overwritten; the batch fails and its replay succeeds."""
    sink = output.sink()
    output.batch(sink, 0, {0: ["a"]})
    batch = Batch(QUERY, 1)
    begun = sink.begin("d1", batch)
    staged = output.write(sink, begun, 1, {0: ["b"]})
    sink.finish("d1")
    with pytest.raises(CommitError):
        sink.commit(batch, staged)
    output.batch(sink, 1, {0: ["b"]}, owner="d2", final=True)
    assert output.lines() == ["a", "b"]


def test_other_checkpoint_in_the_same_directory(output: Output) -> None:
    """F6: a new query id has its own state; its batch 0 is not mistaken for the other's, and no names clash."""
    output.batch(output.sink(sink_id="one", rollBatches="1"), 0, {0: ["a"]}, query="one")
    output.batch(output.sink(sink_id="two", rollBatches="1"), 0, {0: ["b"]}, query="two")
    assert output.lines() == ["a", "b"]
    assert len(output.visible()) == 2


def test_sinks_that_may_choose_the_same_names_are_told(output: Output, caplog: pytest.LogCaptureFixture) -> None:
    """Two sinks with the same file names, without {sink}: the second start logs a warning; other sinks and damaged notes cause none."""
    by_bucket = {"fileName": "f-{seq}", "bucketBy": "{value}"}
    sinks = {
        "one": {"fileName": "f-{seq}"},
        "two": {"fileName": "f-{sink}-{seq}"},
        "three": {"fileName": "g-{seq}"},
        "four": by_bucket,
    }
    for sink_id, options in sinks.items():
        output.batch(output.sink(sink_id=sink_id, **options), 0, {0: ["a"]}, query=sink_id)
    assert not caplog.records
    output.batch(output.sink(sink_id="five", fileName="f-{seq}"), 0, {0: ["a"]}, query="five")
    (told,) = (record.getMessage() for record in caplog.records)
    assert re.search(
        r"sink 'one' of .* names its files as sink 'five' does, fileName='f-\{seq\}': .* put \{sink\} into fileName",
        told,
    )
    caplog.clear()
    (note,) = output.root.glob("_penstock/one/options-*.json")
    note.write_text("nonsense")
    output.batch(output.sink(sink_id="five", fileName="f-{seq}"), 1, {0: ["b"]}, query="five", owner="d2")
    assert not caplog.records


def test_other_checkpoint_with_the_same_sink_id(output: Output) -> None:
    """F6: under one sinkId a new query's batch 0 is new, continues the numbers, and the old query's replay is still known."""
    sink = output.sink(rollBatches="1", fileName="p{seq}")
    output.batch(sink, 0, {0: ["a"]}, query="one")
    output.batch(sink, 0, {0: ["b"]}, query="two", owner="d2")
    assert output.visible() == {"p0.txt": "a\n", "p1.txt": "b\n"}
    assert output.batch(sink, 0, {0: ["a"]}, query="one", owner="d3").repeated


def test_emptied_directory_is_refused(output: Output) -> None:
    """F7: the checkpoint is at batch 3 but the directory has no ledger: this is refused at once, with advice."""
    with pytest.raises(CheckpointMismatch, match=r"has none of it.*emptied"):
        output.sink().begin("d1", Batch(QUERY, 3))


def test_another_sink_id_in_mid_query_is_refused(output: Output) -> None:
    """The message once spoke only of an emptied directory to restore; with its former sinkId the query continues."""
    output.batch(output.sink(sink_id="one"), 0, {0: ["a"]})
    with pytest.raises(CheckpointMismatch, match="or the query had another sinkId, which can be set again"):
        output.sink(sink_id="two").begin("d2", Batch(QUERY, 1))
    output.batch(output.sink(sink_id="one"), 1, {0: ["b"]}, owner="d3", final=True)
    assert output.lines() == ["a", "b"]


def test_batch_that_does_not_follow_the_last_one_is_refused(output: Output) -> None:
    """Every batch has a record, so a ledger that ends before the batch preceding this one has lost some."""
    sink = output.sink()
    output.batch(sink, 0, {0: ["a"]})
    output.batch(sink, 1, {0: []})
    with pytest.raises(CheckpointMismatch, match="ends with batch 1.*older copy"):
        sink.begin("d1", Batch(QUERY, 3))
    with pytest.raises(CheckpointMismatch, match="ends with batch 1"):
        sink.commit(Batch(QUERY, 3), [])
    with pytest.raises(CheckpointMismatch, match="has none of it"):
        sink.begin("d1", Batch("q2", 1))


def test_older_checkpoint_is_refused(output: Output) -> None:
    """F9, F26: batch ids that go back, or come with other offsets, are refused and never skipped silently."""
    sink = output.sink(rollBatches="1")
    output.batch(sink, 0, {0: ["a"]}, mark="m0")
    output.batch(sink, 1, {0: ["b"]}, mark="m1")
    with pytest.raises(CheckpointMismatch, match="older copy"):
        sink.begin("d1", Batch(QUERY, 0, "m0"))
    with pytest.raises(CheckpointMismatch, match="other offsets"):
        sink.begin("d1", Batch(QUERY, 1, "other"))
    assert output.batch(sink, 1, {0: ["b"]}, mark="m1").repeated


def test_fewer_tasks_after_a_restart(output: Output) -> None:
    """F13, B6: open parts of writers that no longer exist are closed with the rest; none stays open forever."""
    sink = output.sink(rollInterval="1h", rollInactivity="10s", fileName="p{writer}-{seq}", mergeBelow="1")
    output.batch(sink, 0, {0: ["a"], 1: ["b"], 2: ["c"]})
    output.time.seconds += 20
    output.batch(output.sink(rollInactivity="10s"), 1, {0: ["d"]}, owner="d2")
    assert output.lines() == ["a", "b", "c"]
    sink.finish()
    assert output.lines() == ["a", "b", "c", "d"]


def test_more_tasks_after_a_restart(output: Output) -> None:
    """B7: new writers open their own parts; every row is there once."""
    sink = output.sink()
    output.batch(sink, 0, {0: ["a"], 1: ["b"]})
    output.batch(sink, 1, {w: [f"n{w}"] for w in range(5)}, owner="d2", final=True)
    assert output.lines() == ["a", "b", "n0", "n1", "n2", "n3", "n4"]


def test_numbers_never_come_back(output: Output) -> None:
    """S21, S38, F22: a writer that was away, with no part open, continues after every number that was used."""
    sink = output.sink(rollBatches="1", fileName="p{writer}-{seq}")
    output.batch(sink, 0, {0: ["a"], 1: ["b"]})
    output.batch(sink, 1, {0: ["c"]})
    output.batch(sink, 2, {1: ["d"]})
    output.batch(sink, 3, {7: ["e"]})
    assert len(output.visible()) == 5
    assert sink.ledger.head().sequences == {}


@pytest.mark.parametrize("name", ["p{seq}", "{b}%FILENUM"])
def test_a_name_does_not_come_back_from_another_writer(output: Output, name: str) -> None:
    """A consumer takes a file away; then another writer, with an open part of its own, closes one there: it got the name of the first.

    Whoever keeps files by their names lost the first file, and `verify` found the name doubled.
    """
    output.schema = pa.schema([("value", pa.string()), ("b", pa.string())])
    sink = output.sink(format="csv", rollRows="2", bucketBy="{b}", fileName=name)
    output.batch(sink, 0, {0: ["1|A", "2|A", "3|B"], 1: ["4|B"]})
    for path in output.visible():
        (output.root / path).unlink()
    output.batch(sink, 1, {1: ["5|A", "6|A"]})
    assert len({file.path for file in sink.ledger.history()}) == 2


@pytest.mark.parametrize("taken", ["p-0.txt", "p-0.my.txt"])
def test_names_that_are_taken_are_passed_over(output: Output, taken: str) -> None:
    """B15-20: a file that somebody put under the next name is kept, and the next number is used."""
    output.root.mkdir()
    (output.root / taken).write_text("foreign")
    template = taken.replace("0", "{seq}")
    sink = output.sink(rollBatches="1", fileName=template)
    output.batch(sink, 0, {0: ["a"]})
    assert output.visible() == {taken: "foreign", taken.replace("0", "1"): "a\n"}


def test_files_of_after_the_copy_that_was_put_back_are_refused(output: Output) -> None:
    """Failure 10: ledger and checkpoint are put back, and files of after the copy stay: no row is there twice, and the advice leads on."""
    sink = output.sink(rollBatches="1")
    output.batch(sink, 0, {0: ["a"]})
    copy = shutil.copytree(output.root / "_penstock", output.root.with_name("copy"))
    for number in (1, 2):
        output.batch(sink, number, {0: [f"b{number}"]})
    shutil.rmtree(output.root / "_penstock")
    copy.rename(output.root / "_penstock")
    sink = output.sink(rollBatches="1")
    for _ in range(2):
        with pytest.raises(
            PublishConflict,
            match=r"part-s-0-1\.txt', .*part-s-0-2\.txt': only sink 's'.*calls foreign, to another place",
        ):
            output.batch(sink, 1, {0: ["b1", "b2"]}, owner="d2")
        assert output.lines() == ["a", "b1", "b2"]
    problems = verify(str(output.root)).output.problems
    assert {problem.kind for problem in problems} == {"foreign"}
    for problem in problems:
        (output.root / problem.path).rename(output.root.with_name(problem.path))
    output.batch(sink, 1, {0: ["b1", "b2"]}, owner="d2")
    assert output.lines() == ["a", "b1", "b2"]
    assert verify(str(output.root)).ok


def test_record_that_is_lost_with_its_note_is_missed(output: Output) -> None:
    """Failure 10, too: the last record and its note are gone, its file is there, and Spark repeats just that batch."""
    sink = output.sink(rollBatches="1")
    output.batch(sink, 0, {0: ["a"]})
    output.batch(sink, 1, {0: ["b"]})
    for path in (output.root / "_penstock/s/ledger").glob(f"{sink.ledger.head().n:012d}*"):
        path.unlink()
    with pytest.raises(PublishConflict, match="only sink 's' names files like this"):
        output.batch(sink, 1, {0: ["b"]}, owner="d2")
    assert output.lines() == ["a", "b"]


@pytest.mark.parametrize("fold", [2, 128])
def test_name_that_an_earlier_template_gave_is_no_sign_of_a_later_record(
    output: Output, fold: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under another `fileName` the next name may be that of an own file, in a record or a fold; or of a sink with a similar name."""
    monkeypatch.setattr(ledger, "FOLD", fold)
    for number in range(3):
        output.batch(output.sink(rollBatches="1", fileName="{sink}-{seq}-{writer}"), number, {7: [f"a{number}"]})
    for number in range(3, 9):
        output.batch(output.sink(rollBatches="1", fileName="{sink}-{writer}-{seq}"), number, {0: [f"b{number}"]})
    for number in range(11):
        output.batch(output.sink(sink_id="s-2", rollBatches="1", fileName="{sink}-{seq}"), number, {0: [f"c{number}"]})
    output.batch(output.sink(rollBatches="1", fileName="{sink}-{writer}-{seq}"), 9, {2: ["d"]})
    assert len(output.visible()) == len(output.lines()) == 21
    assert {"s-0-8.txt", "s-2-10.txt", "s-2-11.txt"} <= output.visible().keys()


def test_name_taken_between_decision_and_publishing(output: Output) -> None:
    """A file put there after the decision is never replaced: an error says so, and moving it away solves the conflict."""
    sink = output.sink(rollBatches="1", fileName="p{seq}")
    output.batch(sink, 0, {0: ["a"]})
    failpoints.arm("sink.publish.one=error")
    with pytest.raises(OSError, match="failpoint"):
        output.batch(sink, 1, {0: ["b"]})
    failpoints.arm("")
    (output.root / "p1.txt").write_text("foreign")
    with pytest.raises(PublishConflict, match=r"p1\.txt"):
        sink.begin("d1", Batch(QUERY, 1))
    assert output.visible()["p1.txt"] == "foreign"
    (output.root / "p1.txt").unlink()
    output.batch(sink, 1, {0: ["b"]})
    assert output.visible() == {"p0.txt": "a\n", "p1.txt": "b\n"}


def test_lost_staged_file_is_an_error(output: Output) -> None:
    """F5: there is a record, but neither staged file nor target: an error names the file, never silence."""
    sink = output.sink(rollBatches="1")
    failpoints.arm("sink.publish.one=error")
    with pytest.raises(OSError, match="failpoint"):
        output.batch(sink, 0, {0: ["a"]})
    failpoints.arm("")
    for name in output.staged():
        os.unlink(output.root / "_penstock/s/staging" / name)
    with pytest.raises(PublishConflict, match="neither it nor its staged file"):
        sink.begin("d1", Batch(QUERY, 0))


def test_finished_files_may_be_taken_away(output: Output) -> None:
    """A consumer that moves finished files away at once disturbs neither the next batch nor a restart."""
    sink = output.sink(rollBatches="1")
    for batch in range(3):
        output.batch(sink, batch, {0: [str(batch)]}, owner=f"d{batch}")
        for path in output.visible():
            (output.root / path).unlink()
    assert output.visible() == {}


def test_directory_may_move(output: Output, tmp_path: Path) -> None:
    """F33: the ledger has relative paths; the directory can be moved with a part open, and continues."""
    output.batch(output.sink(), 0, {0: ["a"]})
    output.root.rename(tmp_path / "moved")
    output.root = tmp_path / "moved"
    output.batch(output.sink(), 1, {0: ["b"]}, owner="d2", final=True)
    assert output.lines() == ["a", "b"]


def test_foreign_files_are_never_touched(output: Output) -> None:
    """F23: files that the sink did not make, in the output and in its own directories, stay."""
    sink = output.sink(rollBatches="1")
    output.batch(sink, 0, {0: ["a"]})
    foreign = [output.root / "mine.csv", Path(sink.staging) / "notes", Path(sink.state) / "ledger" / "readme"]
    for path in foreign:
        path.write_text("x")
    for batch in range(1, 5):
        output.batch(sink, batch, {0: ["b"]})
    assert all(path.read_text() == "x" for path in foreign)


def test_state_is_small_after_many_batches(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """F25: records are folded: the ledger directory stays small, a record does not grow, and every finished file stays in the history."""
    monkeypatch.setattr("penstock.sink.ledger.FOLD", 8)
    sink = output.sink(rollBatches="1", fileName="p{seq}")
    for batch in range(60):
        output.batch(sink, batch, {0: [str(batch)]})
    assert len(sink.ledger.numbers()) < 16
    folder = Path(sink.state) / "ledger"
    assert len(list(folder.glob("*.published"))) <= 2
    assert (folder / f"{sink.ledger.head().n:012d}").stat().st_size < 1500
    assert [f.path for f in sink.ledger.history()] == [f"p{n}.txt" for n in range(60)]


def test_fold_interrupted_is_repeated(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash between the fold and the deletion of its records, the history has every file exactly once."""
    monkeypatch.setattr("penstock.sink.ledger.FOLD", 4)
    sink = output.sink(rollBatches="1", fileName="p{seq}")
    for batch in range(6):
        output.batch(sink, batch, {0: [str(batch)]})
    failpoints.arm("sink.ledger.folded=error")
    with pytest.raises(OSError, match="failpoint"):
        output.batch(sink, 6, {0: ["6"]})
    failpoints.arm("")
    assert [f.path for f in sink.ledger.history()] == [f"p{n}.txt" for n in range(7)]
    output.batch(sink, 7, {0: ["7"]}, owner="d2")
    assert [f.path for f in sink.ledger.history()] == [f"p{n}.txt" for n in range(8)]


def test_fold_interrupted_while_it_deletes_is_repeated(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash while the folded records are deleted, the history has no file twice, neither then nor after the next fold."""
    monkeypatch.setattr("penstock.sink.ledger.FOLD", 4)
    sink = output.sink(rollBatches="1", fileName="p{seq}")
    for batch in range(6):
        output.batch(sink, batch, {0: [str(batch)]})
    delete, deleted = sink.storage.delete, []

    def dies(path: str) -> None:
        delete(path)
        deleted.append(path)
        if len([name for name in deleted if re.fullmatch(r"\d+", os.path.basename(name))]) == 2:
            raise OSError(path)

    with monkeypatch.context() as patched:
        patched.setattr(sink.storage, "delete", dies)
        with pytest.raises(OSError, match="00002"):
            output.batch(sink, 6, {0: ["6"]})
    for batch in range(7, 16):
        output.batch(sink, batch, {0: [str(batch)]})
        assert [f.path for f in sink.ledger.history()] == [f"p{n}.txt" for n in range(batch + 1)]


@pytest.mark.parametrize("back", [{1, 2, 3, 4}, {2, 4}, {3}])
def test_fold_half_undone_is_not_folded_again(output: Output, monkeypatch: pytest.MonkeyPatch, back: set[int]) -> None:
    """Failure 7 of the ledger: some or all folded records reappear: the history has each file once, and the records are deleted again."""
    monkeypatch.setattr("penstock.sink.ledger.FOLD", 4)
    sink = output.sink(rollBatches="1", fileName="p{seq}")
    folder = Path(sink.state) / "ledger"
    for batch in range(6):
        output.batch(sink, batch, {0: [str(batch)]})
    kept = {n: (folder / f"{n:012d}").read_bytes() for n in back}
    output.batch(sink, 6, {0: ["6"]})
    for n, record in kept.items():
        assert not (folder / f"{n:012d}").exists()
        (folder / f"{n:012d}").write_bytes(record)
    for batch in range(7, 20):
        output.batch(sink, batch, {0: [str(batch)]})
        assert [f.path for f in sink.ledger.history()] == [f"p{n}.txt" for n in range(batch + 1)]
        assert not back & set(sink.ledger.numbers())


def test_fold_of_a_stopped_driver_is_durable_before_its_records_go(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failure 8 of the ledger: A links a fold and is stopped before its sync; B sees the fold and deletes the records; the power fails."""
    monkeypatch.setattr("penstock.sink.ledger.FOLD", 4)
    disk = CrashDisk()
    output.storage = disk.storage()
    sink = output.sink(rollBatches="1", fileName="p{seq}")
    for batch in range(6):
        output.batch(sink, batch, {0: [str(batch)]})

    def stopped(_: CrashDisk, __: str) -> None:
        if sink.ledger.look().folds:
            raise SimulatedCrash

    disk.watch = stopped
    with pytest.raises(SimulatedCrash):
        output.batch(sink, 6, {0: ["6"]})
    disk.watch = None
    sink.ledger.forget(sink.ledger.look())
    assert sink.ledger.numbers()[0] > 1
    for image in disk.images():
        output.storage = CrashDisk(image).storage()
        left = output.sink(rollBatches="1", fileName="p{seq}").ledger
        assert [file.path for file in left.history()] == [f"p{n}.txt" for n in range(7)]


@pytest.mark.parametrize("ends", [False, True], ids=["idle", "over"])
@pytest.mark.parametrize("call", ["storage.put.link", "storage.publish"])
def test_a_keeper_outlives_a_storage_that_fails_for_a_while(
    output: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, ends: bool
) -> None:
    """The storage does not answer when an idle part is closed, or is to be shown: the keeper tries again, as no batch may ever come."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    here = psutil.Process()
    driver = f"host:{here.pid}:1:{QUERY}"
    sink = output.sink(rollInactivity="30s")
    done = output.batch(sink, 0, {0: ["a"]}, owner=driver)
    fact = keeper.fact_of(sink, driver)
    with fact.locked() as state:
        state.update(
            keeper._description(sink, driver, done.open), busy=False, jvm=[here.pid, here.create_time()], ended=ends
        )
    failpoints.arm(f"{call}=error@1")
    try:
        keeper.run(fact.name)
    finally:
        failpoints.arm("")
    assert output.lines() == ["a"]
    assert HostFact.all() == []


def test_a_keeper_gives_up_a_storage_that_is_gone(
    output: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query is over, and its storage never answers again: the keeper ends, and the next start or `penstock finish` goes on."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    driver = f"host:1:1:{QUERY}"
    sink = output.sink(rollInactivity="30s")
    done = output.batch(sink, 0, {0: ["a"]}, owner=driver)
    fact = keeper.fact_of(sink, driver)
    with fact.locked() as state:
        state.update(keeper._description(sink, driver, done.open), busy=False)

    def fails(*_: object) -> None:
        msg = "no answer"
        raise StorageError(msg)

    with monkeypatch.context() as patched:
        patched.setattr(Sink, "finish", fails)
        keeper.run(fact.name)
    assert HostFact.all() == []
    sink.finish()
    assert output.lines() == ["a"]


def test_a_task_whose_staged_file_cannot_be_completed_fails(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store refuses the file of a part that the driver is to assemble: the task fails, and does not report the part."""
    monkeypatch.setattr(BytePart, "stage_bytes", 1)
    store = ObjectStore()
    output.storage = store.storage()
    sink = output.sink(mergeBelow="1g")
    batch = Batch(QUERY, 0, final=True)
    begun, put = sink.begin("d1", batch), store.put

    def refuses(key: str, data: bytes, token: str) -> None:
        if key.endswith(".part"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), key)
        put(key, data, token)

    with monkeypatch.context() as patched:
        patched.setattr(store, "put", refuses)
        with pytest.raises(StorageError, match="cannot"):
            output.write(sink, begun, 0, {0: ["a"]})
    sink.commit(batch, output.write(sink, begun, 0, {0: ["a"]}))
    assert [file.rows for file in sink.ledger.history()] == [1]


def test_stalled_driver_that_dies_after_its_late_put(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failure 3 of the ledger: nobody is left to take the record back; the next batch removes it, and no history contains it."""
    monkeypatch.setattr("penstock.sink.ledger.FOLD", 2)
    a, b = output.sink(rollBatches="1"), output.sink(rollBatches="1")
    batch = Batch(QUERY, 0)
    staged = output.write(a, a.begin("A", batch), 0, {0: ["from A"]})
    decided = a.decided(a.ledger.head(), batch, staged)
    for number in range(6):
        output.batch(b, number, {0: [f"B{number}"]}, owner="B")
    a.ledger.put(decided)
    output.batch(b, 6, {0: ["B6"]}, owner="B")
    assert decided.n not in b.ledger.numbers()
    assert not a.ledger.counts(decided, a.ledger.look())  # nor would it count if A had only been stopped
    for number in range(7, 12):
        output.batch(b, number, {0: [f"B{number}"]}, owner="B")
    assert sorted(f.path for f in b.ledger.history()) == sorted(output.visible())


def test_note_of_a_folded_record_goes(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver stopped before its note writes it after its record was removed; the next batch removes the note."""
    monkeypatch.setattr("penstock.sink.ledger.FOLD", 2)
    sink = output.sink(rollBatches="1")
    for batch in range(6):
        output.batch(sink, batch, {0: [str(batch)]})
    sink.ledger.note_published(1)
    output.batch(sink, 6, {0: ["6"]})
    assert 1 not in sink.ledger.look().notes


@pytest.mark.slow
def test_part_of_many_small_batches_has_few_segments(output: Output) -> None:
    """A part that gains a row in each of 300 batches folds its segments; its rows stay in order."""
    sink = output.sink(fileName="p{seq}")
    lines = [f"{n:05}" for n in range(300)]
    for number, line in enumerate(lines):
        output.batch(sink, number, {0: [line]})
        [part] = sink.ledger.head().open
        assert len(part.segments) <= 26
    assert len(output.staged()) <= 26
    sink.finish()
    assert output.visible()["p0.txt"].splitlines() == lines


def test_temporaries_of_the_dead_are_swept(output: Output) -> None:
    """Unfinished puts of a killed driver are removed when another driver claims the sink; before that they may still be completed."""
    output.batch(output.sink(), 0, {0: ["a"]})
    state = output.root / "_penstock/s"
    dead = [state / ".penstock-1", state / "ledger/.penstock-2"]
    for path in dead:
        path.write_bytes(b"half a rec")
    output.batch(output.sink(), 1, {0: ["b"]})
    assert all(path.exists() for path in dead)
    output.batch(output.sink(), 2, {0: ["c"]}, owner="d2", final=True)
    assert not any(path.exists() for path in dead)
    assert output.lines() == ["a", "b", "c"]


def test_a_successors_temporary_is_left_alone(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """A temporary file that appears while a driver claims the sink may belong to the next driver, and stays."""
    output.batch(output.sink(), 0, {0: ["a"]})
    successors = output.root / "_penstock/s/ledger/.penstock-1"
    put = LocalStorage.put_if_absent

    def meanwhile(storage: LocalStorage, path: str, data: bytes) -> None:
        put(storage, path, data)
        successors.write_bytes(b"half a rec")

    monkeypatch.setattr(LocalStorage, "put_if_absent", meanwhile)
    output.sink().begin("d2", Batch(QUERY, 1))
    assert successors.exists()


def test_small_parts_of_many_tasks_are_merged(output: Output) -> None:
    """The number of files depends on the bytes: 40 tasks with 10 bytes each and a limit of 100 bytes make 4 files, not 40."""
    sink = output.sink(rollSize="100", mergeBelow="50")
    output.batch(sink, 0, {w: [f"task-{w:04}"] for w in range(40)}, final=True)
    assert len(output.visible()) == 4
    assert output.lines() == [f"task-{w:04}" for w in range(40)]


def test_growing_file_is_appended_and_written_again(output: Output) -> None:
    """A growing file gains each batch's rows; rows that a crash left after the old length are overwritten."""
    sink = output.sink(growing="true", fileName="events.log")
    output.batch(sink, 0, {0: ["a"], 1: ["b"]})
    file = output.root / "events.log"
    assert file.read_text() == "a\nb\n"
    failpoints.arm("sink.publish.grow=error")
    with pytest.raises(OSError, match="failpoint"):
        output.batch(sink, 1, {0: ["c"]})
    failpoints.arm("")
    with file.open("a") as tail:
        tail.write("\0")
    output.batch(output.sink(growing="true", fileName="events.log"), 1, {0: ["c"]}, owner="d2")
    assert file.read_text() == "a\nb\nc\n"
    output.batch(sink, 2, {0: ["d"]}, owner="d2", final=True)
    assert file.read_text() == "a\nb\nc\nd\n"
    assert output.staged() == []


def test_growing_file_never_takes_a_file_that_is_there(output: Output) -> None:
    """A file that somebody else, or another sink, has made is neither cut nor appended to (F23)."""
    output.root.mkdir()
    (output.root / "mine.log").write_text("precious\n")
    with pytest.raises(PublishConflict, match=r"mine\.log"):
        output.batch(output.sink(growing="true", fileName="mine.log"), 0, {0: ["a"]})
    output.batch(output.sink(sink_id="one", growing="true", fileName="events.log"), 0, {0: ["b"]})
    with pytest.raises(PublishConflict, match=r"events\.log"):
        output.batch(output.sink(sink_id="two", growing="true", fileName="events.log"), 0, {0: ["c"]}, query="q2")
    assert output.visible() == {"events.log": "b\n", "mine.log": "precious\n"}


def test_growing_and_rolling_files_of_one_sink(output: Output) -> None:
    """A sink may change from growing files to parts and back once its open parts are published; each row is there once."""
    growing = output.sink(growing="true", fileName="events.log")
    output.batch(growing, 0, {0: ["a"]})
    rolling = output.sink(fileName="p{seq}")
    output.batch(rolling, 1, {0: ["b"]}, owner="d2")
    with pytest.raises(OptionError, match="penstock finish"):
        growing.begin("d3", Batch(QUERY, 2))
    assert Sink.existing(rolling.storage, rolling.root, "s").finish() is not None
    output.batch(growing, 2, {0: ["c"]}, owner="d3")
    assert output.visible() == {"events.log": "a\nc\n", "p0.txt": "b\n"}


@pytest.mark.parametrize("name", ["rollSize", "rollRows", "rollInterval", "rollInactivity", "rollBatches"])
def test_growing_file_does_not_roll(output: Output, name: str) -> None:
    """An option that says when to close a file is refused for a file that is never closed, not ignored."""
    with pytest.raises(OptionError, match=f"{name} says when to close"):
        output.sink(growing="true", fileName="events.log", **{name: "1h" if "In" in name else "10"})


def test_growing_file_where_nothing_can_be_appended(output: Output) -> None:
    """F18: a storage that puts files whole cannot have a growing file: the start refuses it, not the commit of a batch."""
    output.storage = ObjectStore().storage()
    output.sink(fileName="p{seq}")
    with pytest.raises(OptionError, match="growing=true appends"):
        output.sink(growing="true", fileName="events.log")


def test_growing_file_that_somebody_wrote_to_is_an_error(output: Output) -> None:
    """Bytes beyond the decided length are not ours: they are not cut, and no rows go after them. Once they are cut, the sink continues."""
    sink = output.sink(growing="true", fileName="events.log")
    output.batch(sink, 0, {0: ["a"]})
    failpoints.arm("sink.publish.grow=error")
    with pytest.raises(OSError, match="failpoint"):
        output.batch(sink, 1, {0: ["b"]})
    failpoints.arm("")
    file = output.root / "events.log"
    file.write_text("a\nmine\n")
    with pytest.raises(PublishConflict, match="somebody else wrote to it; cut it to 2 bytes"):
        output.batch(sink, 1, {0: ["b"]})
    assert file.read_text() == "a\nmine\n"
    os.truncate(file, 2)
    output.batch(sink, 1, {0: ["b"]})
    assert file.read_text() == "a\nb\n"


def test_growing_file_that_was_cut_by_somebody_is_an_error(output: Output) -> None:
    """A growing file that is shorter than the ledger says is refused, not padded."""
    sink = output.sink(growing="true", fileName="events.log")
    output.batch(sink, 0, {0: ["abc"]})
    os.truncate(output.root / "events.log", 1)
    with pytest.raises(PublishConflict, match="has 1 bytes"):
        output.batch(sink, 1, {0: ["d"]})


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_compressed_parts_grow_by_members(output: Output, compression: str) -> None:
    """F19, M14: members of several batches make one file, which any reader decompresses to all rows in order."""
    sink = output.sink(compression=compression, fileName="p{seq}")
    for batch in range(3):
        output.batch(sink, batch, {0: [f"{batch}-{i}" for i in range(1000)]})
    sink.finish()
    [name] = [n for n in os.listdir(output.root) if n.startswith("p0")]
    assert name == {"gzip": "p0.txt.gz", "zstd": "p0.txt.zst"}[compression]
    with pa.input_stream(str(output.root / name), compression=compression) as stream:
        assert stream.read().decode().splitlines() == [f"{b}-{i}" for b in range(3) for i in range(1000)]


@pytest.mark.slow
def test_compressed_parts_stay_below_the_limit(output: Output) -> None:
    """rollSize counts compressed bytes: files are nearly full and never exceed the limit."""
    sink = output.sink(compression="gzip", rollSize="20k", fileName="p{seq}")
    lines = [f"{i * 7919 % 1_000_003} some text that repeats" for i in range(60_000)]
    output.batch(sink, 0, {0: lines}, final=True)
    sizes = [(output.root / name).stat().st_size for name in os.listdir(output.root) if name.startswith("p")]
    assert max(sizes) <= 20 << 10
    assert sorted(sizes)[1] > 15 << 10
    assert output.lines() == sorted(lines)


def test_parquet_parts_grow_over_batches(output: Output) -> None:
    """F20: rows of several batches and tasks are in one Parquet file with one row group, which any reader can read."""
    output.schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    sink = output.sink(format="parquet", fileName="p{seq}", mergeBelow="1g")
    for batch in range(5):
        output.batch(sink, batch, {w: [f"{batch * 100 + i}|n{w}" for i in range(100)] for w in range(2)})
    assert output.staged() != []
    sink.finish()
    file = pq.ParquetFile(output.root / "p0.parquet")
    assert (file.metadata.num_rows, file.metadata.num_row_groups) == (1000, 1)
    assert sorted(file.read().column("id").to_pylist()) == sorted(list(range(500)) * 2)


def test_rows_that_tasks_have_encoded_are_taken_over_by_the_driver(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where parts end with a batch, tasks encode their rows, and the driver makes one file of them, in order, without decoding any."""
    monkeypatch.setattr(tableparts, "_OWN_BYTES", 1)
    monkeypatch.setattr(parquet, "_ROWS_MIN", 1)
    monkeypatch.setattr(tableparts, "read_batches", None)
    output.schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    sink = output.sink(format="parquet", fileName="p{seq}", mergeBelow="1g", bucketBy="{name}")
    output.batch(sink, 0, {w: [f"{w * 100 + i}|n{i % 2}" for i in range(100)] for w in range(3)}, final=True)
    for bucket in (0, 1):
        file = pq.ParquetFile(output.root / f"n{bucket}" / f"p{bucket}.parquet")
        assert file.metadata.num_row_groups == 3
        assert file.read().column("id").to_pylist() == list(range(bucket, 300, 2))
    assert output.staged() == []


def test_rows_that_tasks_have_encoded_are_compared_before_they_are_taken_over(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A staged file that changed between a task and the commit fails the batch, and nothing of it is visible."""
    monkeypatch.setattr(tableparts, "_OWN_BYTES", 1)
    monkeypatch.setattr(parquet, "_ROWS_MIN", 1)
    output.schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    sink = output.sink(format="parquet", mergeBelow="1g")
    batch = Batch(QUERY, 0, final=True)
    lines = [f"{i}|n" for i in range(100)]
    result = sink.write(sink.begin("d", batch), QUERY, 0, 0, output.schema, output.batches(lines))
    (staged,) = Path(sink.staging).iterdir()
    data = bytearray(staged.read_bytes())
    data[20] ^= 1
    staged.write_bytes(data)
    with pytest.raises(DamagedState, match="altered"):
        sink.commit(batch, [result])
    assert not list(output.root.glob("*.parquet"))


def test_schema_change_closes_parts_of_the_old_one(output: Output) -> None:
    """A query that continues with another schema or format closes its open parts as they are; no file mixes kinds."""
    output.schema = pa.schema([("id", pa.int64())])
    output.batch(output.sink(format="parquet"), 0, {0: ["1"]})
    output.schema = pa.schema([("id", pa.int64()), ("x", pa.string())])
    output.batch(output.sink(format="parquet"), 1, {0: ["2|y"]}, owner="d2")
    output.batch(output.sink(format="csv"), 2, {0: ["3|z"]}, owner="d3", final=True)
    tables = [pq.read_table(output.root / n) for n in os.listdir(output.root) if n.endswith(".parquet")]
    assert sorted(table.column_names for table in tables) == [["id"], ["id", "x"]]
    assert [t for p, t in output.visible(".csv").items() if p.endswith(".csv")] == ["3,z\n"]


@pytest.mark.parametrize("change", ["compression", "format", "schema"])
@pytest.mark.parametrize("below", ["1", "1m"])
def test_part_of_another_kind_is_closed_when_the_next_one_is_begun(output: Output, change: str, below: str) -> None:
    """The query restarts with another compression, format or schema while a part is open, however small the part: no row is lost."""
    output.batch(output.sink(format="csv", mergeBelow=below), 0, {0: ["row0"], 1: ["row1"]})
    if change == "schema":
        output.schema = pa.schema([("value", pa.string()), ("more", pa.string())])
    options = {"compression": {"compression": "gzip"}, "format": {"format": "json"}, "schema": {}}[change]
    sink = output.sink(mergeBelow=below, **{"format": "csv", **options})
    for batch in range(1, 4):
        output.batch(sink, batch, {0: [f"row{batch + 1}" + "|x" * (change == "schema")]}, owner="d2")
        keys = [part.key for part in sink.ledger.head().open]
        assert len(keys) == len(set(keys))
    sink.finish()
    assert sorted(re.findall(r"row\d", str(output.lines()))) == [f"row{n}" for n in range(5)]


def test_record_is_readable_json(output: Output) -> None:
    """A record is one line of JSON that tools can read, with its checksum."""
    sink = output.sink()
    output.batch(sink, 0, {0: ["a"]})
    whole = json.loads((Path(sink.state) / "ledger" / f"{sink.ledger.head().n:012d}").read_text())
    assert set(whole) == {"checksum", "record"}
    assert whole["record"]["batches"] == {QUERY: [0, ""]}


@pytest.mark.slow
def test_many_buckets_need_one_staged_file(output: Output) -> None:
    """F29: a task stages the rows of 500 buckets in one file, and they end in 500 files; one table lists the open parts."""
    output.schema = pa.schema([("value", pa.string()), ("b", pa.int64())])
    sink = output.sink(format="csv", bucketBy="b={b}", dropBucketColumns="true", fileName="p{seq}")
    output.batch(sink, 0, {0: [f"x{i}|{i % 500}" for i in range(2000)]})
    assert [name.rpartition(".")[2] for name in output.staged()].count("pack") == 1
    assert len(output.staged()) == 2
    sink.finish()
    assert len(output.visible()) == 500
    assert output.visible()["b=7/p" + output_number(output, "b=7") + ".csv"] == "x7\nx507\nx1007\nx1507\n"


def output_number(output: Output, bucket: str) -> str:
    """Return the number in the name of the only file in a bucket."""
    [name] = os.listdir(output.root / bucket)
    return name.removeprefix("p").removesuffix(".csv")


def test_abort_removes_what_was_staged(output: Output) -> None:
    """`abort` removes the staged files of a batch that Spark aborts."""
    sink = output.sink()
    begun = sink.begin("d1", Batch(QUERY, 0))
    sink.abort(output.write(sink, begun, 0, {0: ["a"], 1: ["b"]}))
    assert output.staged() == []


@pytest.mark.parametrize(
    "point", ["sink.publish.one", "storage.publish.linked", "sink.publish.before-note", "sink.forget"]
)
def test_commit_that_fails_after_its_put_is_aborted(output: Output, point: str) -> None:
    """Failure 6 of the sink: Spark aborts a batch that is already decided; nothing that its record names is removed."""
    sink = output.sink(rollSize="4", mergeBelow="1", fileName="p{writer}-{seq}")
    batch = Batch(QUERY, 0)
    results = output.write(sink, sink.begin("d1", batch), 0, {0: ["a", "b", "c"], 1: ["d"]})
    failpoints.arm(f"{point}=error")
    with pytest.raises((OSError, StorageError), match=r"failpoint|Input/output"):
        sink.commit(batch, results)
    failpoints.arm("")
    sink.abort(results)
    assert output.batch(sink, 0, {0: ["a", "b", "c"], 1: ["d"]}).repeated
    sink.finish()
    assert output.lines() == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("form", "codec", "level"),
    [
        ("text", "gzip", 9),
        ("csv", "zstd", 19),
        ("parquet", "brotli", 9),
        ("parquet", "gzip", 1),
        ("parquet", "lz4", None),
    ],
)
def test_levels_of_compression(output: Output, form: str, codec: str, level: int | None) -> None:
    """A level applies to each file whose part was opened with it, across batches, and whoever closes the part."""
    options = {"format": form, "compression": codec}
    rows = {0: [f"{n * 7919 % 997} is a number" for n in range(3000)]}
    sizes: list[int] = []
    for options_now in (options, options | ({} if level is None else {"compressionLevel": str(level)})):
        sink = output.sink(**options_now)
        number = len(sizes)
        output.batch(sink, number, rows, owner=f"d{number}")
        assert {part.kind.level for part in sink.ledger.head().open} == {None if number == 0 else level}
        Sink.existing(LocalStorage(), str(output.root), "s").finish()
        sizes.append(sink.ledger.head().finished[0].bytes)
    assert level is None or sizes[1] != sizes[0]
    if form == "parquet":
        names = {pq.read_metadata(path).row_group(0).column(0).compression for path in output.root.glob("*.parquet")}
        assert names == {codec.upper()}
        assert as_duckdb_reads(output) == sorted(rows[0] * 2)


def as_duckdb_reads(output: Output) -> list[str]:
    """Return the rows as DuckDB reads them, which has its own codecs."""
    table = duckdb.connect().execute(f"select value from read_parquet('{output.root}/*.parquet')").fetchall()
    return sorted(row[0] for row in table)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compression": "gzip", "compressionLevel": "10"}, "compression=gzip of text has levels from 1 to 9"),
        ({"compressionLevel": "3"}, "compression=none of text has no levels.*gzip, zstd"),
        ({"format": "orc", "compressionLevel": "3"}, "of orc has no levels.*none of its codecs"),
        ({"format": "parquet", "compression": "lz4", "compressionLevel": "1"}, "lz4 of parquet has no levels"),
        ({"compression": "zstd", "compressionLevel": "fast"}, "is not a level"),
        ({"compression": "brotli"}, "compression=brotli is for format=parquet"),
    ],
)
def test_levels_that_there_are_not(output: Output, options: dict[str, str], message: str) -> None:
    """A level that the codec does not have is refused, and the error lists the valid ones."""
    with pytest.raises(OptionError, match=message):
        output.sink(**options)
