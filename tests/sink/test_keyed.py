"""Batch writes: each key counts once, through repetitions, twins, neighbours, and crashes at every step, and needs little room."""

from __future__ import annotations

import logging
import random
from itertools import count
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock import failpoints
from penstock.errors import DamagedState, Fenced, OptionError, PublishConflict
from penstock.options import SINK, parse
from penstock.query.batch import Batch
from penstock.sink import keyed as keyed_module
from penstock.sink import ledger, lengths
from penstock.sink.keyed import KeyedBatch
from penstock.sink.keys import KeyTables, parted
from penstock.sink.sink import Sink
from penstock.storage import LocalStorage
from penstock.testing import Crashable, CrashDisk, CrashHdfs, ObjectStore, Program, compare, explore, visible
from penstock.verify.files import check_files
from tests.query.suite import Steps
from tests.support.effort import effort
from tests.support.keyed import as_they_are, run, staged, writing
from tests.support.output import TEXT, Output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.sink.batch import Begun, TaskResult

ROOT = "/out"


def local(output: Output, key: str | None, **options: str) -> KeyedBatch:
    """Return the write of a batch into the output."""
    return writing(LocalStorage(), str(output.root), key, **options)


def head(output: Output) -> ledger.State:
    """Return the last record of the batch writes."""
    return local(output, None).keyed.sink.ledger.head()


def test_the_same_key_again_writes_nothing_and_says_so(output: Output, caplog: pytest.LogCaptureFixture) -> None:
    """Writing a done key again puts no record, stages no file and reads no row; another key, and writes without a key, add rows."""
    assert run(local(output, "day/1"), {0: ["a"], 1: ["b"]}).rows == 2
    before = head(output)
    with caplog.at_level(logging.WARNING, logger="penstock.sink"):
        assert run(local(output, "day/1"), {0: ["a"], 1: ["b"]}).repeated
    assert "batchKey='day/1' is in" in caplog.text
    assert "nothing is written" in caplog.text
    assert head(output) == before
    assert output.lines() == ["a", "b"]
    run(local(output, "day/2"), {0: ["c"]})
    run(local(output, None), {0: ["d"]})
    run(local(output, None), {0: ["d"]})
    assert output.lines() == ["a", "b", "c", "d", "d"]
    assert head(output).writing == {}
    report, _ = check_files(LocalStorage(), str(output.root), lambda done, total: None)
    assert not report.problems
    assert report.sinks[0].unnamed_files == 0


def test_rows_that_are_not_asked_for(output: Output) -> None:
    """A task of a done key does not even begin to read: it does not spend the cost."""
    run(local(output, "k"), {0: ["a"]})
    again = local(output, "k")
    asked: list[int] = []

    def rows() -> Iterator[pa.RecordBatch]:
        asked.append(1)
        yield from ()

    assert again.write(again.begin(), 0, 0, rows()) is None
    assert asked == []


def test_a_batch_without_rows_is_done_too(output: Output) -> None:
    """No task, or tasks without rows: the key is done, there is no file, and rows that come later under that key are not written."""
    assert not run(local(output, "none"), {}).repeated
    assert not run(local(output, "empty"), {0: [], 1: []}).repeated
    assert run(local(output, "none"), {0: ["late"]}).repeated
    assert output.lines() == []


def test_twins_one_after_the_other_in_the_middle(output: Output) -> None:
    """A driver that was thought dead commits after another took its key over: it is fenced, or gets the answer that the key is done."""
    first, second = local(output, "k"), local(output, "k")
    begun = first.begin()
    results = staged(first, begun, {0: ["x"]})
    taken = second.begin()
    with pytest.raises(Fenced, match="batchKey='k' was claimed by .* since: this write has changed nothing"):
        first.commit(begun, results)
    assert second.commit(taken, staged(second, taken, {0: ["x"]})).rows == 1
    assert first.commit(begun, results).repeated
    assert output.lines() == ["x"]


def test_neighbours_do_not_disturb_each_other(output: Output) -> None:
    """Eight writes of different keys begin, stage and commit in random order: every row is there once, and no claim is left."""
    choice = random.Random(7)  # noqa: S311 - a mixture that is the same each time
    for turn in range(5):
        open_writes: list[tuple[KeyedBatch, Begun, list[TaskResult]]] = []
        waiting = [f"{turn}-{n}" for n in range(8)]
        while waiting or open_writes:
            if waiting and (not open_writes or choice.random() < 0.5):
                key = waiting.pop()
                write = local(output, key, mergeBelow="1m")
                begun = write.begin()
                open_writes.append((write, begun, staged(write, begun, {0: [key], 1: [key + "+"]})))
            else:
                write, begun, results = open_writes.pop(choice.randrange(len(open_writes)))
                assert not write.commit(begun, results).repeated
    keys = [f"{turn}-{n}" for turn in range(5) for n in range(8)]
    assert output.lines() == sorted([*keys, *(key + "+" for key in keys)])
    assert head(output).written == {f"{turn}-": [[0, 7]] for turn in range(5)}
    assert all(run(local(output, key), {0: ["again"]}).repeated for key in keys[::11])


def test_a_claim_outlives_what_others_put_and_fold(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow write commits after thirty others, whose records are folded by then."""
    monkeypatch.setattr(ledger, "FOLD", 4)
    slow = local(output, "slow")
    begun = slow.begin()
    results = staged(slow, begun, {0: ["slow"], 1: ["slower"]})
    for number in range(30):
        run(local(output, f"fast/{number}"), {0: [f"fast {number}"]})
    assert slow.keyed.sink.ledger.look().folds
    slow.commit(begun, results)
    assert output.lines() == sorted([*(f"fast {n}" for n in range(30)), "slow", "slower"])


def test_keys_take_little_room_whatever_their_order(output: Output) -> None:
    """The batch keys of a query are stored as one span, days of a month too; and no key is mistaken for another one."""
    numbers = list(range(200))
    random.Random(3).shuffle(numbers)  # noqa: S311 - an order that is the same each time
    keyed = local(output, None).keyed
    state = ledger.State(sink="batch")
    for number in numbers:
        state = ledger.State(sink="batch", written=keyed.keys.with_key(state, f"query-a1/{number}"))
    assert state.written == {"query-a1/": [[0, 199]]}
    keys = (
        "a",
        "a0",
        "a00",
        "a1",
        "a01",
        "",
        "7",
        "07",
        "2026-01-31",
        "é9",
        "x" * 200,
        "-1",
        "9" * 40,
        "a13",
        "a1\u0663",
    )
    for key in keys:
        text, number = parted(key)
        assert key == text + (str(number) if number >= 0 else "")
        assert not keyed.keys.has(state, key)
        state = ledger.State(sink="batch", written=keyed.keys.with_key(state, key))
        assert keyed.keys.has(state, key)


def test_a_write_notes_how_its_files_are_made(output: Output) -> None:
    """`verify`, `status` and a batch that is read know the options of the last write from its note, as they do of a query."""
    for number, compression in enumerate(["gzip", "zstd"]):
        run(local(output, f"k{number}", compression=compression), {0: ["a"]})
        noted = Sink.existing(output.storage, str(output.root), "batch")
        assert noted.options["compression"] == compression
        assert noted.note.changed == (frozenset({"compression"}) if number else frozenset())


def test_keys_that_do_not_count_go_to_tables(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many random keys: a record stays small, each key is known forever, and a missing table is damage, not a second write."""
    monkeypatch.setattr(KeyTables, "in_record_max", 4)
    keys = [f"run-{n:04}-x" for n in range(14)]
    for key in keys:
        run(local(output, key), {0: [key]})
    state = head(output)
    assert len(state.written) <= 4
    assert state.written_tables
    assert all(run(local(output, key), {0: ["again"]}).repeated for key in keys)
    assert output.lines() == keys
    for table in state.written_tables:
        (output.root / "_penstock/batch/staging" / table.file).unlink()
    lengths._kept.clear()  # as in a new process
    with pytest.raises(DamagedState, match="is missing, it has the keys of .* kinds of batch writes; restore it"):
        run(local(output, keys[0]), {0: ["again"]})


def test_a_failed_write_gives_its_claim_up(output: Output) -> None:
    """An abort leaves neither a claim nor staged files after the next record; the key can be written again."""
    write = local(output, "k")
    begun = write.begin()
    staged(write, begun, {0: ["a"]})
    write.abort(begun)
    assert head(output).writing == {}
    assert list((output.root / "_penstock/batch/staging").iterdir()) == []
    assert run(local(output, "k"), {0: ["b"]}).rows == 1
    write.abort(begun)
    assert output.lines() == ["b"]


def test_finish_gives_up_what_a_killed_driver_has_claimed(output: Output) -> None:
    """A key that nobody retries leaves a claim and staged files until `penstock finish`; if its driver is still alive, it is fenced."""
    dead = local(output, "dead")
    begun = dead.begin()
    results = staged(dead, begun, {0: ["a"]})
    run(local(output, "other"), {0: ["b"]})
    assert list(head(output).writing) == ["dead"]
    Sink.existing(LocalStorage(), str(output.root), "batch").finish()
    assert head(output).writing == {}
    assert list((output.root / "_penstock/batch/staging").iterdir()) == []
    with pytest.raises(Fenced, match=r"was given up since \(penstock finish\)"):
        dead.commit(begun, results)


def test_streams_and_batches_keep_to_their_ledgers(output: Output) -> None:
    """A batch write in the ledger of a query, and a query in that of batch writes, are refused by name; both can write side by side."""
    output.batch(output.sink(sink_id="batch", rollBatches="1"), 0, {0: ["stream"]})
    with pytest.raises(
        OptionError, match="sinkId='batch' .* belongs to a query; .*leave sinkId out, or take another one"
    ):
        run(local(output, "k"), {0: ["a"]})
    sink = Sink(LocalStorage(), str(output.root), parse(SINK, {"path": str(output.root)}, what="sink"), "jobs")
    write = KeyedBatch(sink, TEXT, as_they_are, "k")
    run(write, {0: ["a"]})
    with pytest.raises(OptionError, match="sinkId='jobs' .* belongs to batch writes; .*take another sinkId"):
        sink.begin("d", Batch("q", 0))
    assert output.lines() == ["a", "stream"]


def test_a_name_that_a_stranger_has_is_told_and_then_used(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody puts a file where a committed one belongs: the conflict is reported, and without that file the same key publishes."""
    monkeypatch.setattr(keyed_module, "_LOOKS", 2)
    failpoints.arm("sink.ledger.after-put=error@2")
    with pytest.raises(OSError, match="after-put"):
        run(local(output, "k"), {0: ["a"]})
    failpoints.arm("")
    (file,) = head(output).finished
    (output.root / file.path).write_text("stranger\n")
    with pytest.raises(PublishConflict, match="was put there by somebody else"):
        run(local(output, "k"), {0: ["a"]})
    (output.root / file.path).unlink()
    assert run(local(output, "k"), {0: ["a"]}).repeated
    assert output.lines() == ["a"]


class Writes(Program):
    """Drivers that write keys one after another, each until it learns that the key is done, as a job does that is killed and retried."""

    memory: int

    def __init__(self, keys: list[str], **options: str) -> None:
        self.memory = 0  # how many keys are acknowledged
        self._keys = keys
        self._options = options

    def _rows(self, key: str) -> dict[int, list[str]]:
        return {0: [f"{key} 0", f"{key} 1"], 1: [f"{key} 2"]}

    def run(self, disk: Crashable, rest: Callable[[], None]) -> None:
        """Continue with the first key that is not acknowledged."""
        storage = disk.storage()
        storage.make_directory(ROOT)
        for number in range(self.memory, len(self._keys)):
            rest()
            run(writing(storage, ROOT, self._keys[number], **self._options), self._rows(self._keys[number]))
            self.memory = number + 1

    def check(self, disk: Crashable, *, final: bool) -> list[str]:
        """Return rows that occur twice, in part, or under a key that the ledger does not have; at the end also missing rows."""
        lines = [line for data in visible(disk.storage(), ROOT).values() for line in data.splitlines()]
        rows = {key: [row.encode() for part in self._rows(key).values() for row in part] for key in self._keys}
        keyed = writing(disk.storage(), ROOT, None).keyed
        state = keyed.sink.ledger.head()
        decided = [key for key in self._keys if keyed.keys.has(state, key)]
        lost = [f"acknowledged and lost {key!r}" for key in self._keys[: self.memory] if key not in decided]
        acknowledged = [row for key in decided for row in rows[key]]
        offered = [row for key in self._keys for row in rows[key]]
        never = [f"never committed {key!r}" for key in self._keys if final and key not in decided]
        return lost + never + compare(lines, acknowledged=acknowledged, offered=offered).complaints(final=final)


@pytest.mark.slow
@pytest.mark.parametrize(("profile", "below"), [(CrashDisk, "1m"), (CrashHdfs, "1"), (ObjectStore, "1m")])
def test_no_crash_loses_or_doubles_a_key(profile: Callable[..., Crashable], below: str) -> None:
    """Every step of two writes crashes, and every step of the recovery: in the end each key's rows are there once, and none twice."""
    report = explore(
        Writes(["a/1", "a/2"], mergeBelow=below), profile=profile, images_max=2, states_max=effort(300, 20_000)
    )
    assert not report.complaints, report.first
    assert report.states > 200


@pytest.mark.slow
@pytest.mark.parametrize("other", ["k/1", "k/2"])
@pytest.mark.parametrize("below", ["1", "1m"])
def test_two_drivers_race_at_every_step(other: str, below: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each step of one driver another one writes the same key, or its neighbour, from beginning to end.

    Each key's rows are there once, from one of the two drivers; a neighbour is never fenced.
    """
    for step in count(1):
        storage = CrashDisk(None).storage()
        storage.make_directory(ROOT)
        with monkeypatch.context() as patch:
            rival = writing(storage, ROOT, other, mergeBelow=below)

            def write_too(rival: KeyedBatch = rival) -> None:
                run(rival, {0: [f"{other} 0"], 1: [f"{other} 1"]})

            steps = Steps(patch, step, write_too)
            try:
                run(writing(storage, ROOT, "k/1", mergeBelow=below), {0: ["k/1 0"], 1: ["k/1 1"]})
            except Fenced:
                assert steps.was_there
                assert other == "k/1", f"a neighbour fenced it at {steps.reached[-1:]}"
        keys = {"k/1", other} if steps.was_there else {"k/1"}
        lines = sorted(line.decode() for data in visible(storage, ROOT).values() for line in data.splitlines())
        assert lines == sorted(f"{key} {n}" for key in keys for n in range(2)), f"at step {step}, {steps.reached[-1:]}"
        again = run(writing(storage, ROOT, "k/1"), {0: ["again"]})
        assert again.repeated
        if not steps.was_there:
            break
    assert step > 15
