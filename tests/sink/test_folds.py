"""Folds that are merged: their number follows the size of the history, and the history stays what it was."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import failpoints
from penstock.query.records import checked, signed
from penstock.sink import folds, ledger
from penstock.sink.events import EventLog
from penstock.sink.folds import divided, span_of
from penstock.testing import CrashDisk, SimulatedCrash

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.sink.sink import Sink
    from tests.support.output import Output


@pytest.fixture(autouse=True)
def _folds_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "FOLD", 2)
    monkeypatch.setattr(folds, "MERGED", 3)


def run(output: Output, sink: Sink, batches: range) -> None:
    """Run batches that publish a file each, named by its number."""
    for number in batches:
        output.batch(sink, number, {0: [str(number)]})


def opened(output: Output) -> Sink:
    """Return a sink whose driver has just started."""
    return output.sink(rollBatches="1", fileName="p{seq}")


def history(sink: Sink) -> list[str]:
    """Return the paths of all files that the ledger ever finished."""
    return [file.path for file in sink.ledger.history()]


def paths(batches: int) -> list[str]:
    return [f"p{number}.txt" for number in range(batches)]


def records(sink: Sink) -> Path:
    return Path(sink.state) / "ledger"


def test_folds_become_few(output: Output) -> None:
    """Failure 10 of the ledger: 200 batches leave a fold or two of each width, and nothing of the history changes on the way."""
    sink = opened(output)
    for number in range(200):
        run(output, sink, range(number, number + 1))
        names = sink.ledger.look().folds
        assert len(names) <= 3 * 6
        assert sink.ledger.look().is_whole
    assert history(sink) == paths(200)
    widths = [last - first + 1 for first, last in map(span_of, names)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == 2 * 3**4


def test_a_fold_does_not_grow_without_end(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folds are merged up to a number of bytes, since who needs one file reads all of its fold; later ones still are."""
    monkeypatch.setattr(folds, "MERGED_BYTES", 3000)
    sink = opened(output)
    run(output, sink, range(60))
    sizes = {path.name: path.stat().st_size for path in records(sink).glob("*-*")}
    assert max(sizes.values()) <= 3000
    assert {last - first + 1 for first, last in map(span_of, sizes)} == {2, 6}
    assert history(sink) == paths(60)


def test_events_have_the_same_numbers_in_a_merged_fold(output: Output) -> None:
    """A reader at any place, one that has kept up, and one that asks for a record get the same events before and after a merge."""
    sink = opened(output)
    kept_up = EventLog(sink.ledger, "s", "the ledger")
    position = kept_up.end()
    seen = []
    for number in range(40):
        run(output, sink, range(number, number + 1))
        new = kept_up.after(position)
        seen += new
        position = new[-1].position_after
    assert [event.path for event in seen] == paths(40)
    for at in range(0, 40, 7):
        late = EventLog(sink.ledger, "s", "the ledger")
        assert late.between(seen[at].position_after, position) == seen[at + 1 :]
        assert late.at_record(seen[at].record or 0).number == at


@pytest.mark.parametrize("gone", [0, 1, 2, 3])
def test_a_merge_that_stops_is_finished_by_the_next_driver(
    output: Output, monkeypatch: pytest.MonkeyPatch, gone: int
) -> None:
    """Failure 11 of the ledger: the merged fold is there, and so are some of those that became it: each file is in the history once."""
    sink = opened(output)
    run(output, sink, range(6))
    delete, deleted = sink.storage.delete, list[str]()

    def dies(path: str) -> None:
        if "-" in path.rpartition("/")[2]:
            if len(deleted) == gone:
                raise OSError(path)
            deleted.append(path)
        delete(path)

    if gone:
        with monkeypatch.context() as patched:
            patched.setattr(sink.storage, "delete", dies)
            died = died_in(output, sink)
    else:
        failpoints.arm("sink.ledger.merged=error")
        died = died_in(output, sink)
        failpoints.arm("")
    assert len(sink.ledger.look().within) == 3 - gone
    assert history(sink) == paths(died + 1)
    again = opened(output)
    output.batch(again, died, {0: [str(died)]}, owner="d2")
    run(output, again, range(died + 1, died + 2))
    assert again.ledger.look().within == []
    assert history(again) == paths(died + 2)


def died_in(output: Output, sink: Sink) -> int:
    """Run batches until the sink fails, or folds have been merged; return the last one."""
    for number in range(6, 20):
        try:
            run(output, sink, range(number, number + 1))
        except OSError:
            return number
        if any(last - first + 1 > ledger.FOLD for first, last in map(span_of, sink.ledger.look().folds)):
            return number
    raise AssertionError


def test_a_merged_fold_is_durable_before_those_that_became_it_go(output: Output) -> None:
    """Failure 11: A links a merged fold and is stopped before its sync; B sees it and deletes the others; the power fails."""
    disk = CrashDisk()
    output.storage = disk.storage()
    sink = opened(output)

    def stopped(_: CrashDisk, __: str) -> None:
        if sink.ledger.look().within:
            raise SimulatedCrash

    disk.watch = stopped
    with pytest.raises(SimulatedCrash):
        run(output, sink, range(30))
    disk.watch = None
    done = sink.ledger.head().total_files
    sink.ledger.forget(sink.ledger.look())
    assert sink.ledger.look().within == []
    for image in disk.images():
        output.storage = CrashDisk(image).storage()
        assert history(opened(output)) == paths(done)


def test_folds_of_an_earlier_version_are_merged_among_themselves(output: Output) -> None:
    """Folds that do not say which record has a file become one that does not; with others they are never mixed."""
    sink = opened(output)
    run(output, sink, range(9))
    old = [path for path in sorted(records(sink).glob("*-*")) if path.name[:12] < "000000000005"]
    for path in old:
        record = checked(path.read_bytes(), str(path))
        for later in ("records", "before"):
            del record[later]
        path.write_bytes(signed({name: value for name, value in record.items() if name != "v"}))
    run(output, sink, range(9, 40))
    assert history(sink) == paths(40)
    log = EventLog(sink.ledger, "s", "the ledger")
    assert [event.path for event in log.between(log.at_record(1), log.end())] == paths(40)


def test_a_damaged_fold_is_told_and_ends_no_query(output: Output, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing that a query needs is in folds: one that cannot be read stays as it is, for `verify` to tell, and batches go on."""
    sink = opened(output)
    run(output, sink, range(5))
    damaged = min(records(sink).glob("*-*"))
    damaged.write_bytes(damaged.read_bytes().replace(b"p0", b"p9"))
    with caplog.at_level(logging.WARNING):
        run(output, sink, range(5, 20))
    assert damaged.exists()
    assert f"records of the past are not merged: {str(damaged)!r}" in caplog.text
    assert sink.ledger.head().total_files == 20


def test_a_listing_that_has_neither_is_looked_at_again(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failure 12 of the ledger: names are listed while a driver merges, and neither the new fold nor those before it are among them."""
    sink = opened(output)
    run(output, sink, range(30))
    whole = sink.ledger.look().names
    wide = sink.ledger.look().folds[0]
    listed: Iterator[tuple[str, ...]] = iter([tuple(name for name in whole if name != wide), whole, whole])
    look = ledger.Look
    monkeypatch.setattr(type(sink.ledger), "look", lambda _: look(next(listed)))
    assert history(sink) == paths(30)


def test_a_history_whose_oldest_folds_were_removed_is_read(output: Output) -> None:
    """Who removes the oldest folds still has the history of the others, which two looks in a row agree on."""
    sink = opened(output)
    run(output, sink, range(30))
    oldest = sink.ledger.look().folds[0]
    (records(sink) / oldest).unlink()
    first, last = span_of(oldest)
    assert first == 1
    assert history(sink) == paths(30)[last - 1 :]  # the first record takes the sink over, and has no file


def test_what_lies_within_does_not_count() -> None:
    """Of folds that lie within one another the widest one counts, in whatever order the names come."""
    names = ["5-6", "1-4", "3-4", "1-2", "7-7", "1-2.published", "9"]
    named = ["-".join(f"{int(n):012d}" for n in name.split("-")) for name in names if "." not in name]
    assert divided(reversed(named)) == ([named[1], named[0], named[4]], [named[3], named[2]])


def test_a_fold_says_what_it_holds(output: Output) -> None:
    """A merged fold has the form of any other one."""
    sink = opened(output)
    run(output, sink, range(20))
    wide = records(sink) / sink.ledger.look().folds[0]
    record = json.loads(wide.read_text())["record"]
    first, last = span_of(wide.name)
    assert (record["first"], record["last"], record["before"], record["sink"]) == (first, last, 0, "s")
    assert [number for number, _, _ in record["records"]] == list(range(2, last + 1))
    assert [file["path"] for file in record["finished"]] == paths(last - 1)
