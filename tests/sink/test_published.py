"""The events of an output with several sinks, in batches between offsets, as Spark requests them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import DamagedState, EventsLost, OptionError
from penstock.formats.aside import Aside, about_records
from penstock.sink import eventrows
from penstock.sink.published import Published
from penstock.sink.sink import Batch, Sink
from penstock.storage import LocalStorage
from tests.support.output import QUERY, TEXT, Output

Offset = dict[str, Any]


def source(output: Output, only: str | None = None) -> Published:
    """Return a new reader, which remembers nothing."""
    return Published(LocalStorage(), str(output.root), only)


def publish(output: Output, *sinks: str, batch: int = 0, files: int = 1) -> list[Sink]:
    """Publish `files` files by each of these sinks, in one batch of its query."""
    opened = [output.sink(sink_id=sink, rollRows="1") for sink in sinks]
    for sink in opened:
        lines = [f"{sink.sink_id} {batch} {number}" for number in range(files)]
        output.batch(sink, batch, {0: lines}, query=f"query of {sink.sink_id}", mark=str(batch))
    return opened


def stream(output: Output, start: Offset, limit: int | None = None) -> tuple[Offset, list[list[str]]]:
    """Run batches until nothing is new; a restarted process plans each and reads it again; return the texts by batch."""
    batches = []
    while (end := source(output).plan(start, limit)) != start:
        end = json.loads(json.dumps(end))  # as Spark keeps it
        events = source(output).events(start, end)
        assert events == source(output).events(start, end)
        batches.append([(output.root / (event.path or "")).read_text().strip() for event in events])
        start = end
    return start, batches


def test_all_sinks_of_an_output_are_given_in_batches(output: Output) -> None:
    """Three sinks share the limit; each sink's events come once, in the order of its ledger; a late sink is read from its start."""
    publish(output, "a", "b", files=7)
    start, batches = stream(output, source(output).begin(), 4)
    assert [len(batch) for batch in batches] == [4, 4, 4, 2]
    for sink in "ab":
        given = [text for batch in batches for text in batch if text.startswith(sink)]
        assert given == [f"{sink} 0 {number}" for number in range(7)]
    publish(output, "c", files=2)
    publish(output, "a", batch=1)
    start, batches = stream(output, start, 10)
    assert batches == [["a 1 0", "c 0 0", "c 0 1"]]


def test_a_busy_sink_starves_no_other(output: Output) -> None:
    """With a limit of one file per batch, each sink that has news gets its turn."""
    publish(output, "a", files=50)
    publish(output, "b")
    reader = source(output)
    start = reader.begin()
    for _ in range(2):
        start = reader.plan(start, 1)
    assert start["published"]["b"][0] == 1


def test_a_sink_without_news_leaves_its_share_to_others(output: Output) -> None:
    """Two sinks share a batch of ten; the one that had nothing in the last batch is asked first, and the busy one gets all ten."""
    publish(output, "a", files=30)
    publish(output, "b")
    reader = source(output)
    places = [reader.begin()]
    for _ in range(3):
        places.append(reader.plan(places[-1], 10))
    assert [len(source(output).events(*ends)) for ends in pairwise(places)] == [6, 5, 10]


def test_a_batch_that_was_just_planned_is_not_read_again(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark asks for the events of the batch that it has planned, and those are at hand; of another batch they are read."""
    publish(output, "a", files=3)
    reader = source(output)
    start = reader.begin()
    end = reader.plan(start)
    monkeypatch.setattr(reader, "_log", None)
    assert len(reader.events(start, end)) == 3
    with pytest.raises(TypeError):
        reader.events(end, start)


def test_latest_is_one_moment(output: Output) -> None:
    """A query from latest that finds nothing keeps its starting point: its first batch has no rows, but its own offset."""
    publish(output, "a", files=3)
    begin = source(output).begin("latest")
    first = source(output).plan(begin)
    assert first != begin
    assert source(output).events(begin, first) == []
    assert source(output).plan(first) == first
    publish(output, "a", batch=1)
    publish(output, "b")
    assert stream(output, first)[1] == [["a 1 0", "b 0 0"]]


@pytest.mark.parametrize("starting", ["latest", "earliest", "a:1"])
def test_the_first_batch_is_repeated_from_where_it_began(output: Output, starting: str) -> None:
    """Failure 7: events come before the first plan, and its batch is repeated: Spark asks for the begin again, which is later by then."""
    publish(output, "a", "b")
    begun = source(output).begin(starting)
    publish(output, "a", "b", batch=1)
    end = source(output).plan(begun)
    expected = [event.path for event in source(output).events(begun, end)]
    assert len(expected) == {"latest": 2, "earliest": 4, "a:1": 3}[starting]
    publish(output, "a", "b", batch=2)
    again = source(output).begin(starting)
    assert [event.path for event in source(output).events(again, end)] == expected
    behind = source(output).plan(end)
    assert len(source(output).events(end, behind)) == 2


def test_begin_at_a_record_of_one_sink(output: Output) -> None:
    """A record belongs to one sink: to the only one, or to the named one; the other sinks begin with their next events."""
    (sink,) = publish(output, "a")
    n = sink.ledger.head().n
    publish(output, "a", batch=1)
    assert stream(output, source(output).begin(str(n + 1)))[1] == [["a 1 0"]]
    publish(output, "b")
    with pytest.raises(
        OptionError, match="is a record of one sink; there are: a, b; expected one of them, such as a:12"
    ):
        source(output).begin("1")
    assert stream(output, source(output).begin(f"a:{n + 1}"))[1] == [["a 1 0"]]
    assert stream(output, source(output, "b").begin("1"))[1][0][-1] == "b 0 0"


def test_begin_after_an_event(output: Output) -> None:
    """A reader without a checkpoint begins after any event that it received: it gets what follows of every sink, and nothing twice."""
    publish(output, "a", "b", files=3)
    reader = source(output)
    begin = reader.begin()
    told = list(reader.told(begin, reader.plan(begin)))
    texts = [event.path or "" for event, _ in told]
    publish(output, "c")
    publish(output, "a", batch=1)
    for number, (_, after) in enumerate(told, 1):
        again = source(output)
        start = again.begin(json.dumps(after))
        given = [event.path or "" for event in again.events(start, again.plan(start))]
        assert sorted(given) == sorted([*texts[number:], "part-a-0-3.txt", "part-c-0-0.txt"])


@pytest.mark.parametrize("change", ["cut", "altered", "other"])
def test_a_place_that_is_none_is_refused(output: Output, change: str) -> None:
    """A saved position that was cut, altered, or belongs to something else is refused; after a restore from a copy the error says so."""
    publish(output, "a", files=3)
    reader = source(output)
    kept = json.dumps(reader.plan(reader.begin()))
    broken = {"cut": kept[:-9] + "}", "altered": kept.replace("[3,", "[2,"), "other": '{"topic": {"0": 1}}'}[change]
    with pytest.raises(OptionError, match="is no place in the events of an output.*as `after`"):
        source(output).begin(broken)
    shutil.rmtree(output.root)
    publish(output, "a")
    emptied = source(output)
    with pytest.raises(EventsLost, match="emptied"):
        emptied.plan(emptied.begin(kept))


def test_a_run_of_what_is_there_ends(output: Output) -> None:
    """What is published after an AvailableNow run began belongs to the next run, also from a new sink."""
    publish(output, "a", files=2)
    reader = source(output)
    until = reader.ends()
    publish(output, "a", batch=1)
    publish(output, "b")
    start = reader.begin()
    end = reader.plan(start, None, until)
    assert len(reader.events(start, end)) == 2
    assert reader.plan(end, None, until) == end


def test_a_sink_that_is_gone_is_named(output: Output) -> None:
    """The directory of a sink was removed: EventsLost names the sink; a reader of another sink loses nothing."""
    publish(output, "a", "b")
    start, _ = stream(output, source(output).begin())
    shutil.rmtree(output.root / "_penstock/a")
    with pytest.raises(EventsLost, match="sink 'a'"):
        source(output).plan(start)
    assert stream(output, source(output, "b").begin())[1] == [["b 0 0"]]


def test_an_output_that_nobody_has_written_yet(output: Output) -> None:
    """A reader may start before the first writer; if the directory does not exist at all, it gets an error."""
    with pytest.raises(OptionError, match="is not there"):
        source(output).begin()
    output.root.mkdir()
    start = source(output).plan(source(output).begin("latest"))
    publish(output, "a")
    assert stream(output, start)[1] == [["a 0 0"]]


def test_offset_that_was_altered_or_is_anothers(output: Output) -> None:
    """A checkpoint's offset with a changed digit, and the offset of another source, are refused."""
    publish(output, "a", files=3)
    start, _ = stream(output, source(output).begin())
    altered = json.loads(json.dumps(start).replace("[3,", "[2,"))
    with pytest.raises(DamagedState, match="checksum"):
        source(output).plan(altered)
    with pytest.raises(DamagedState, match="version"):
        source(output).plan({"log": "", "position": "0:0"})


def test_what_is_set_aside_is_no_event(output: Output) -> None:
    """A file of lines about bad records keeps its number but makes no event; the file beside it has all columns."""
    sink = output.sink(rollRows="1")
    begun = sink.begin("d1", batch := Batch(QUERY, 0, "0", final=True))
    aside = Aside()

    def given() -> Iterator[pa.RecordBatch]:
        aside.take(about_records("/in/a", np.array([0]), pa.array([b"bad"], pa.binary()), ["odd"]))
        yield from output.batches(["good"])

    sink.commit(batch, [sink.write(begun, QUERY, 0, 0, TEXT, given(), aside=aside)])
    state = sink.ledger.head()
    (file,) = (file for file in state.finished if not file.is_aside)
    assert len(state.finished) == 2
    begin = source(output).begin()
    rows = eventrows.batch(source(output).events(begin, source(output).plan(begin)), "/out").to_pylist()
    assert [row["path"] for row in rows] == [f"/out/{file.path}"]
    assert rows[0] == rows[0] | {
        "event": "published",
        "bucket": "",
        "rows": 1,
        "digest": file.digest,
        "record": state.n,
    }
