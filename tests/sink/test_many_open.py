"""More open parts than a record should hold: what a batch puts, reads and sends depends on the parts that it touches."""

from __future__ import annotations

import os
import pickle
import resource
from concurrent.futures import Executor, Future
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.errors import DamagedState, Fenced
from penstock.sink import ledger, parttables
from penstock.sink.openparts import Change, OpenParts, change
from penstock.sink.sink import Batch
from penstock.storage import LocalStorage
from penstock.verify import verify
from tests.support.output import QUERY, Output

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.sink.ledger import State
    from penstock.sink.sink import Sink
    from penstock.storage import ReadHandle

BUCKETS = {"bucketBy": "{b}", "dropBucketColumns": "true", "fileName": "p-{writer}-{seq}"}


@pytest.fixture
def bucketed(output: Output, monkeypatch: pytest.MonkeyPatch) -> Output:
    """Return an output with buckets whose records hold three open parts, so that a handful of parts needs tables."""
    monkeypatch.setattr(parttables, "IN_RECORD", 3)
    forget()
    output.schema = pa.schema([("value", pa.string()), ("b", pa.string())])
    return output


def forget() -> None:
    """Forget all that this process knows of the tables, as in a new process."""
    parttables._kept.clear()
    parttables._bases.clear()
    parttables._own.clear()
    ledger._record.cache_clear()


class Late(Executor):
    """Stands for workers that are slower than their caller, without a clock: they do nothing until somebody waits for them."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Return a future that calls the function, once, when it is asked for the result."""
        future: Future[Any] = Future()
        done = future.result

        def result(timeout: float | None = None) -> Any:
            if not future.done():
                future.set_result(function(*args, **kwargs))
            return done(timeout)

        future.result = result  # type: ignore[method-assign]
        return future


def own(head: State) -> int:
    """Return how many parts the record itself holds."""
    return len(head.open.changes)


def check(output: Output, sink: Sink) -> State:
    """Check every head: few parts in the record, few tables, no staged file without a name in a record, and a fresh read gives the same."""
    head = sink.ledger.head()
    assert own(head) <= 3
    assert all(older.weight >= 2 * newer.weight for older, newer in pairwise(head.open.tables))
    assert set(output.staged()) == set(head.open.files), "what no record names is swept"
    assert head.open.rows == sum(part.rows for part in head.open)
    forget()
    anew = sink.ledger.head()
    assert {part.key: part for part in anew.open} == {part.key: part for part in head.open}
    for writer in (0, 1):
        read = sink.ledger.open_of(pickle.loads(pickle.dumps(anew.open)), writer)  # noqa: S301 - our own
        assert {p.key: p for p in read} == {p.key: p for p in head.open if p.writer == writer}
    return head


def test_parts_that_no_record_should_hold_are_in_tables(bucketed: Output) -> None:
    """Forty parts of two tasks, a few touched per batch, some full, some idle: a record holds few, and every row is there once."""
    sink = bucketed.sink(rollRows="6", rollInactivity="45s", **BUCKETS)
    expected: list[str] = []
    most_tables = 0
    for batch in range(40):
        rows: dict[int, list[str]] = {0: [], 1: []}
        for n in range(batch % 7 + 1):
            rows[n % 2].append(f"{batch}-{n}|{(batch * 7 + n * n) % 20:02}")
        expected += [row.partition("|")[0] for lines in rows.values() for row in lines]
        bucketed.time.seconds += 3
        if batch % 5 == 4:
            sink.roll("d1")
        bucketed.batch(sink, batch, rows)
        most_tables = max(most_tables, len(check(bucketed, sink).open.tables))
    assert most_tables > 1
    assert verify(str(bucketed.root)).ok
    sink.finish("d1")
    assert bucketed.lines() == sorted(expected)
    assert bucketed.staged() == []
    assert verify(str(bucketed.root)).ok


def test_more_parts_are_closed_than_files_may_be_open(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file of 150 buckets stayed open until a worker had synced it: with a slow disk the batch failed, and so did each retry."""
    output.schema = pa.schema([("value", pa.string()), ("b", pa.string())])
    monkeypatch.setattr(LocalStorage, "workers", lambda *_: Late())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))) + 100, hard))
    try:
        output.batch(output.sink(rollRows="1", **BUCKETS), 0, {0: [f"r|{n}" for n in range(150)]})
        output.batch(output.sink(**BUCKETS), 1, {0: [f"s|{n}" for n in range(150)]}, final=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert output.lines() == ["r"] * 150 + ["s"] * 150


def test_a_batch_puts_what_it_touches_and_not_what_is_open(bucketed: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of four hundred parts is touched: the record, and what travels to a task, are as small as with forty open parts."""
    monkeypatch.setattr(parttables, "IN_RECORD", 8)
    sizes = []
    for number in (40, 400):
        sink = bucketed.sink(sink_id=f"s{number}", **BUCKETS)
        bucketed.batch(sink, 0, {0: [f"r|{n}" for n in range(number)]})
        bucketed.batch(sink, 1, {0: ["r|7"]})
        head, begun = sink.ledger.head(), sink.begin("d1", Batch(QUERY, 2))
        assert (len(head.open), own(head)) == (number, 1)
        record = bucketed.root / f"_penstock/s{number}/ledger/{head.n:012}"
        sizes.append((record.stat().st_size, len(pickle.dumps(begun))))
    assert all(many < few * 1.1 for few, many in zip(*sizes, strict=True))


def test_a_part_that_gains_a_row_puts_one_segment(bucketed: Output) -> None:
    """A part of ten segments gains one: the task reports, and the driver puts, only that one segment."""
    sink = bucketed.sink(**BUCKETS)
    for batch in range(10):
        bucketed.batch(sink, batch, {0: [f"{batch}|{n}" for n in range(6)]})
    [result] = bucketed.write(sink, sink.begin("d1", Batch(QUERY, 10)), 10, {0: ["x|3"]})
    assert (len(result.open[0].segments), result.kept) == (1, (10,))
    sink.commit(Batch(QUERY, 10), [result])
    [(_, changed)] = sink.ledger.head().open.changes.items()
    assert changed is not None
    assert (len(changed.part.segments), changed.kept) == (1, 10)
    assert [len(part.segments) for part in check(bucketed, sink).open if part.bucket == "3"] == [11]


class Counting(LocalStorage):
    """Counts the bytes read from staged files."""

    count = 0

    def read(self, path: str) -> bytes:
        data = super().read(path)
        Counting.count += len(data) if "/staging/" in path else 0
        return data

    def open(self, path: str) -> Any:
        return _Counted(super().open(path))


class _Counted:
    def __init__(self, handle: ReadHandle) -> None:
        self._handle = handle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def read(self, offset: int, length: int) -> bytes:
        Counting.count += length
        return self._handle.read(offset, length)

    def __enter__(self) -> _Counted:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.close()


def test_a_task_reads_its_own_parts(bucketed: Output) -> None:
    """One of fifty tasks reads less than a twentieth of the tables."""
    bucketed.storage = Counting()
    sink = bucketed.sink(**BUCKETS)
    bucketed.batch(sink, 0, {writer: [f"r|{n}" for n in range(8)] for writer in range(50)})
    head = sink.ledger.head()
    begun = pickle.loads(pickle.dumps(sink.begin("d1", Batch(QUERY, 1))))  # noqa: S301 - our own
    Counting.count = 0
    bucketed.write(sink, begun, 1, {7: ["x|3"]})
    assert Counting.count < sum(table.size for table in head.open.tables) / 20


@pytest.mark.parametrize("damage", ["missing", "altered", "exchanged"])
def test_table_that_is_not_what_was_put_is_damage(bucketed: Output, damage: str) -> None:
    """A table that is missing, altered, or replaced by another one is reported by name, by driver and task; nothing is guessed."""
    sink = bucketed.sink(**BUCKETS)
    bucketed.batch(sink, 0, {0: [f"0|{n}" for n in range(5)]})
    begun = sink.begin("d1", Batch(QUERY, 1))
    [table] = begun.open.tables
    path = bucketed.root / "_penstock/s/staging" / table.file
    other = bucketed.sink(sink_id="other", **BUCKETS)
    bucketed.batch(other, 0, {0: [f"0|{n}" for n in range(5)]})
    [foreign] = other.ledger.head().open.tables
    if damage == "missing":
        path.unlink()
    elif damage == "altered":
        path.write_bytes(path.read_bytes().replace(b'"rows":1', b'"rows":2'))
    else:
        path.write_bytes((bucketed.root / "_penstock/other/staging" / foreign.file).read_bytes())
    forget()
    with pytest.raises(DamagedState, match=table.file):
        sink.ledger.head()
    with pytest.raises(DamagedState, match=table.file):
        bucketed.write(sink, pickle.loads(pickle.dumps(begun)), 1, {0: ["x|3"]})  # noqa: S301 - our own


def test_a_task_whose_tables_are_swept_is_fenced(bucketed: Output) -> None:
    """A task of an overtaken driver misses a table that the successor has merged: it raises `Fenced`, and reports no damage."""
    sink = bucketed.sink(**BUCKETS)
    bucketed.batch(sink, 0, {0: [f"0|{n}" for n in range(5)]})
    begun = pickle.loads(pickle.dumps(sink.begin("d1", Batch(QUERY, 1))))  # noqa: S301 - our own
    bucketed.batch(sink, 1, {0: [f"1|{n}" for n in range(5)]}, owner="d2")
    forget()
    with pytest.raises(Fenced):
        bucketed.write(sink, begun, 1, {0: ["x|3"]})


def test_who_misses_a_table_takes_the_newer_head(bucketed: Output) -> None:
    """A reader looks, then the query continues and merges the tables of that record: the reader gets the newer head, and no damage."""
    sink = bucketed.sink(**BUCKETS)
    bucketed.batch(sink, 0, {0: [f"0|{n}" for n in range(5)]})
    look = sink.ledger.look()
    bucketed.batch(sink, 1, {0: [f"1|{n}" for n in range(5)]})
    forget()
    head = sink.ledger.head(look)
    assert (head.last_batch(QUERY), head.open.rows) == (1, 10)


@pytest.mark.parametrize("options", [BUCKETS, {"growing": "true", "fileName": "{b}.txt", "dropBucketColumns": "true"}])
def test_a_record_that_was_read_stays_as_it_is(bucketed: Output, options: dict[str, str]) -> None:
    """Reading the same bytes again returns the same state: no later batch, roll or end of a query changes it."""
    sink = bucketed.sink(**options)
    bucketed.batch(sink, 0, {0: ["0|a", "1|b"], 1: ["2|a"]})
    head = sink.ledger.read(sink.ledger.head().n)
    said = ledger._form(head)
    bucketed.batch(sink, 1, {0: ["3|a", "4|c"], 1: ["5|b"]})
    sink.finish()
    assert sink.ledger.read(head.n) is head
    ledger._record.cache_clear()
    assert ledger._form(head) == said == ledger._form(sink.ledger.read(head.n))


def test_few_parts_again_need_no_table(bucketed: Output) -> None:
    """When most parts have ended, the record itself holds the rest, as small records always did, and the tables are swept."""
    sink = bucketed.sink(rollInactivity="20s", **BUCKETS)
    bucketed.batch(sink, 0, {0: [f"0|{n}" for n in range(5)]})
    assert sink.ledger.head().open.tables
    bucketed.time.seconds += 15
    bucketed.batch(sink, 1, {0: ["1|2", "1|3"]})
    bucketed.time.seconds += 15
    sink.roll("d1")
    head = check(bucketed, sink)
    assert (len(head.open), head.open.tables) == (2, ())


def test_a_change_keeps_what_is_the_same_object(bucketed: Output) -> None:
    """Only identity shows that a segment was put already: equal segments that were pickled are put again, never taken for kept."""
    sink = bucketed.sink(**BUCKETS)
    bucketed.batch(sink, 0, {0: ["0|a"]})
    bucketed.batch(sink, 1, {0: ["1|a"]})
    [before] = sink.ledger.head().open
    again = pickle.loads(pickle.dumps(before))  # noqa: S301 - what was just made here
    assert change(before, before) == Change(_without(before, 2), 2)
    assert change(before, again) == Change(again, 0)
    with pytest.raises(ValueError, match="keeps 3 segments"):
        Change(before, 3).applied(before)


def _without(part: Any, kept: int) -> Any:
    return replace(part, segments=part.segments[kept:])


def test_open_parts_are_a_sequence(bucketed: Output) -> None:
    """Open parts compare, print, and pickle like a tuple."""
    sink = bucketed.sink(**BUCKETS)
    bucketed.batch(sink, 0, {0: ["0|a", "0|b"]})
    parts = sink.ledger.head().open
    assert parts == tuple(parts) == pickle.loads(pickle.dumps(parts))  # noqa: S301 - our own
    assert parts != OpenParts()
    assert parts[:1] == (parts[0],)
    assert "'a'" in repr(parts)
    unread = OpenParts.unread({}, ())
    with pytest.raises(RuntimeError, match="not read"):
        len(unread)
