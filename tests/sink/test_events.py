"""Events of published files, read from the ledger while drivers commit, fold, die and are restored from copies."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from penstock import failpoints
from penstock.errors import DamagedState, EventsLost, OptionError
from penstock.query.records import checked, signed
from penstock.sink import ledger
from penstock.sink.events import EventLog, EventPosition
from penstock.sink.sink import Sink
from tests.support.counting import CountingStorage
from tests.support.follows import follows
from tests.support.output import Output


@pytest.fixture
def folds_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "FOLD", 4)


def events_of(sink: Sink) -> EventLog:
    """Return a new reader of a sink's events, which remembers nothing."""
    return EventLog(sink.ledger, sink.sink_id, "the ledger")


class Reader:
    """One reader: the events that it received, across restarts."""

    def __init__(self, sink: Sink, start: EventPosition | None = None) -> None:
        self.sink = sink
        self.at = start or EventPosition()
        self.paths: list[str] = []
        self._log = events_of(sink)

    def read(self, limit: int | None = None, *, restarted: bool = False) -> list[str]:
        """Read the new events; a restarted reader knows nothing but its position."""
        if restarted:
            self._log = events_of(self.sink)
        given = self._log.after(self.at, limit)
        assert [event.number for event in given] == list(range(self.at.number, self.at.number + len(given)))
        self.paths += (paths := [event.path or "" for event in given])
        self.at = given[-1].position_after if given else self.at
        return paths


def history(sink: Sink) -> list[str]:
    """Return the paths of all files that the ledger ever finished."""
    return [file.path for file in sink.ledger.history()]


def run(output: Output, sink: Sink, batches: range, *, files: int = 1) -> None:
    """Run batches that publish `files` files each; every third batch publishes none."""
    for number in batches:
        lines = [] if number % 3 == 2 else [f"{number} {i}" for i in range(files)]
        output.batch(sink, number, {0: lines}, mark=str(number))


def each_file(output: Output) -> Sink:
    """Return a sink that publishes each row of a batch as a file."""
    return output.sink(rollRows="1")


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 1, 3, 100])
@pytest.mark.parametrize("restarted", [False, True])
def test_every_file_is_given_once_in_the_order_of_the_ledger(
    output: Output, folds_of_four: None, limit: int | None, restarted: bool
) -> None:
    """One reader keeps up, and another falls many folds behind: both receive every file once, in order."""
    sink = each_file(output)
    eager, lazy = Reader(sink), Reader(sink)
    for number in range(24):
        run(output, sink, range(number, number + 1), files=2)
        while eager.read(limit, restarted=restarted):
            pass
    while lazy.read(limit, restarted=restarted):
        pass
    assert len(history(sink)) == 32
    assert eager.paths == lazy.paths == history(sink)
    assert len(sink.ledger.look().folds) > 3


def test_what_lies_between_two_positions_does_not_change_when_it_is_folded(output: Output, folds_of_four: None) -> None:
    """A batch of events that is read again after its records were folded has the same events, with record and time."""
    sink = each_file(output)
    run(output, sink, range(4), files=2)
    before = events_of(sink).after(EventPosition())
    run(output, sink, range(4, 20))
    again = events_of(sink).after(EventPosition(), len(before))
    assert again == before
    assert sink.ledger.look().folded > (before[-1].record or 0) > 0


def test_records_that_are_folded_while_they_are_read_are_found_in_the_fold(
    output: Output, folds_of_four: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver folds records between the reader's listing and its reads: the reader looks again, and misses nothing."""
    sink = each_file(output)
    run(output, sink, range(8))
    reader = Reader(sink)
    look = sink.ledger.look()
    stale = iter([look])
    run(output, sink, range(8, 24))
    original = ledger.Ledger.look
    monkeypatch.setattr(ledger.Ledger, "look", lambda self: next(stale, None) or original(self))
    monkeypatch.setattr(ledger.Ledger, "head", lambda self, look=None: self.read(max((look or original(self)).numbers)))
    reader.read()
    assert reader.paths == history(sink)


def test_event_waits_until_its_file_is_visible(output: Output) -> None:
    """A driver dies between its put and publishing: there is no event; the next driver publishes, and there is one event."""
    sink = each_file(output)
    output.batch(sink, 0, {0: ["a"]}, mark="0")
    failpoints.arm("sink.publish.one=error")
    with pytest.raises(OSError, match="failpoint"):
        output.batch(sink, 1, {0: ["b"]}, mark="1")
    failpoints.arm("")
    reader = Reader(sink)
    assert len(reader.read()) == 1
    assert len(output.visible()) == 1
    output.batch(sink, 1, {0: ["b"]}, owner="d2", mark="1")
    assert len(reader.read()) == 1
    assert reader.paths == history(sink)


def test_note_that_a_power_cut_took(output: Output) -> None:
    """A power cut took the note that the last record is published, but not the record: the reader waits for the next batch."""
    sink = each_file(output)
    output.batch(sink, 0, {0: ["a"]}, mark="0")
    reader = Reader(sink)
    reader.read()
    (output.root / f"_penstock/s/ledger/{sink.ledger.head().n:012d}.published").unlink()
    assert reader.read(restarted=True) == []
    output.batch(sink, 1, {0: ["b"]}, owner="d2", mark="1")
    assert len(reader.read(restarted=True)) == 1
    assert reader.paths == history(sink)


def test_work_is_what_is_new(output: Output, folds_of_four: None) -> None:
    """However long the history: seeing that nothing is new takes one listing and one record, and new records are read once."""
    sink = each_file(output)
    run(output, sink, range(30))
    storage = CountingStorage(output.storage, str(output.root))
    reader = Reader(Sink(storage, sink.root, sink.options, "s"))
    reader.read()
    storage.asked.clear()
    assert reader.read() == []
    assert sum(storage.asked.values()) == 2, storage.asked
    run(output, sink, range(30, 31))
    assert len(reader.read()) == 1
    assert sum(storage.asked.values()) <= 8, storage.asked
    late = Reader(reader.sink, reader.at)
    storage.asked.clear()
    assert late.read(restarted=True) == []
    assert sum(storage.asked.values()) <= 12, storage.asked


def test_a_reader_that_reads_for_years_remembers_no_more_than_there_is(output: Output, folds_of_four: None) -> None:
    """A reader remembers where the files of the ledger begin: not also where each record began that was folded since."""
    sink = each_file(output)
    reader = Reader(sink)
    for number in range(60):
        run(output, sink, range(number, number + 1))
        reader.read()
    assert reader.paths == history(sink)
    assert len(reader._log._starts) <= len(sink.ledger.look().names)


def test_a_ledger_that_is_put_back_under_a_reader_has_its_own_numbers(output: Output, folds_of_four: None) -> None:
    """A reader has looked at records that are gone after a restore: it goes on, by what the records say that took their numbers."""
    sink = each_file(output)
    run(output, sink, range(4))
    folder = output.root / "_penstock/s/ledger"
    shutil.copytree(folder, output.root / "_copy")
    reader = Reader(sink)
    run(output, sink, range(4, 12), files=3)
    assert len(reader.read(limit=2)) == 2
    reader._log.end()
    shutil.rmtree(folder)
    shutil.copytree(output.root / "_copy", folder)
    for path in output.visible().keys() - set(history(sink)):
        (output.root / path).unlink()
    for number in range(4, 12):
        output.batch(sink, number, {0: [f"{number}"]}, mark=f"other {number}")
    while reader.read(limit=2):
        pass
    assert reader.paths == history(sink)


def test_folds_of_an_earlier_version_are_counted_down(output: Output, folds_of_four: None) -> None:
    """Folds without totals, as older versions wrote them: every file is given once, in order, but without its record."""
    sink = each_file(output)
    run(output, sink, range(24), files=2)
    for name in sink.ledger.look().folds:
        as_it_was(output.root / f"_penstock/s/ledger/{name}")
    for start in (0, 1, 7, 20, 30):
        whole = events_of(sink).after(EventPosition())
        position = whole[start - 1].position_after if start else EventPosition()
        given = events_of(sink).after(position)
        assert [event.path or "" for event in given] == history(sink)[start:]
    assert whole[0].record is None


def as_it_was(path: Path) -> None:
    """Rewrite a fold in the form that it had before there were events."""
    record = checked(path.read_bytes(), str(path))
    del record["before"], record["records"]
    path.write_bytes(signed(record))


@follows("PST-510")
def test_ledger_that_was_put_back_from_a_copy_is_refused(output: Output, tmp_path: Path) -> None:
    """The output is restored from a copy and written to: fewer events, or a different event before the reader's place, is EventsLost."""
    sink = each_file(output)
    output.batch(sink, 0, {0: ["a"]}, mark="0")
    shutil.copytree(output.root, tmp_path / "copy")
    output.batch(sink, 1, {0: ["b", "c"]}, mark="1")
    reader = Reader(sink)
    reader.read()
    shutil.rmtree(output.root)
    shutil.copytree(tmp_path / "copy", output.root)
    for restarted in (False, True):
        with pytest.raises(EventsLost, match=r"3 events of the ledger were given, and it has 1"):
            reader.read(restarted=restarted)
    output.batch(sink, 1, {0: ["x", "y", "z"]}, owner="d2", mark="other")
    for restarted in (False, True):
        with pytest.raises(EventsLost, match="not the one that was given"):
            reader.read(restarted=restarted)
    anew = Reader(sink)  # as the message advises
    assert len(anew.read()) == 4
    assert anew.paths == history(sink)


def test_output_that_was_emptied_is_refused(output: Output) -> None:
    """A reader of an emptied output gets an error at once, and not only after the output has grown again."""
    sink = each_file(output)
    output.batch(sink, 0, {0: ["a"]}, mark="0")
    reader = Reader(sink)
    reader.read()
    shutil.rmtree(output.root / "_penstock/s/ledger")
    with pytest.raises(EventsLost, match="it was emptied"):
        reader.read()


def test_history_that_somebody_removed(output: Output, folds_of_four: None) -> None:
    """Old folds were removed: a reader that needs them gets EventsLost, a later one continues; a gap between folds is named, too."""
    sink = each_file(output)
    run(output, sink, range(20))
    reader = Reader(sink)
    reader.read()
    run(output, sink, range(20, 30))
    first, second = sink.ledger.look().folds[:2]
    folder = output.root / "_penstock/s/ledger"
    (folder / second).rename(folder.parent / second)
    with pytest.raises(EventsLost, match="are gone"):
        Reader(sink).read()
    (folder / first).unlink()
    with pytest.raises(EventsLost, match="its oldest files were removed"):
        Reader(sink).read()
    assert reader.read(restarted=True)


def test_record_that_is_missing_is_damage(output: Output) -> None:
    """A record in the middle that somebody deleted is named in the error, after the reader has looked again."""
    sink = each_file(output)
    run(output, sink, range(4))
    (output.root / "_penstock/s/ledger/000000000003").unlink()
    with pytest.raises(DamagedState, match="are not all there"):
        Reader(sink).read()


def test_begin_at_a_record(output: Output, folds_of_four: None) -> None:
    """A reader may begin at any record, folded or not; an unknown record is refused, and the error lists the existing ones."""
    sink = each_file(output)
    run(output, sink, range(24), files=2)
    log, whole = events_of(sink), events_of(sink).after(EventPosition())
    head = sink.ledger.head().n
    for n in range(1, head + 1):
        expected = [event.path or "" for event in whole if (event.record or 0) >= n]
        assert Reader(sink, log.at_record(n)).read() == expected
    assert Reader(sink, log.at_record(head + 1)).read() == []
    with pytest.raises(OptionError, match=f"whose last one is {head}"):
        log.at_record(head + 2)
    as_it_was(output.root / f"_penstock/s/ledger/{sink.ledger.look().folds[0]}")
    assert events_of(sink).at_record(1) == EventPosition()
    with pytest.raises(OptionError, match="expected 1 or 5"):
        events_of(sink).at_record(3)


def test_latest_is_what_comes_from_now_on(output: Output) -> None:
    """A reader that begins at the end receives what is published after that."""
    sink = each_file(output)
    assert events_of(sink).end() == EventPosition()
    run(output, sink, range(3))
    reader = Reader(sink, events_of(sink).end())
    assert reader.read() == []
    run(output, sink, range(3, 5))
    assert reader.read() == history(sink)[2:]


def test_directory_moves(output: Output, tmp_path: Path) -> None:
    """The output is moved: its readers continue where they were."""
    sink = each_file(output)
    run(output, sink, range(2))
    reader = Reader(sink)
    reader.read()
    output.root = output.root.rename(tmp_path / "moved")
    reader.sink = each_file(output)
    run(output, reader.sink, range(2, 4))
    assert len(reader.read(restarted=True)) == 1
    assert json.loads(json.dumps(reader.at)) == list(reader.at)
