"""The decision about the next record on its own: no storage, no clock, only values.

`tests.support.decisions` checks what holds for every decision; the state machine of `tests/testing` checks each of its
decisions with the same function.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CommitError, DamagedState
from penstock.formats.account import Account
from penstock.options import SINK, parse
from penstock.query.batch import Batch
from penstock.query.records import signed
from penstock.sink.batch import DRIVER, ClosedPart, TaskResult
from penstock.sink.decide import Rules, decide, due, groups
from penstock.sink.ledger import Destination, Kind, Ledger, OpenPart, OpenParts, Segment, State
from penstock.sink.names import NameTemplate
from penstock.sink.rolling import Limits
from penstock.storage import LocalStorage
from tests.support.decisions import assembled, checked

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KINDS = [Kind("text", "none", ".txt", "a"), Kind("text", "none", ".txt", "b")]
SECOND = 10**9
_files = count()


def rules(template: str = "f-{writer}-{seq}", **options: str) -> Rules:
    """Return the rules of a sink with these options."""
    limits = Limits.of(parse(SINK, {"path": "/x", **options}, what="sink"))
    return Rules("s", limits, NameTemplate.of(template, zone="UTC", growing=False))


def part(bucket: str, writer: int, rows: int, *, size: int = 0, **fields: Any) -> OpenPart:
    """Return an open part with one segment."""
    segment = Segment(f"{next(_files)}.part", 0, 1, rows, "bytes", size or rows, "")
    usual: dict[str, Any] = {"kind": KINDS[0], "opened_ns": 0, "written_ns": 0, "first_batch": 0, "last_batch": 0}
    return OpenPart(bucket, writer, segments=(segment,), **(usual | fields))


def closed(bucket: str, writer: int, rows: int, **fields: Any) -> ClosedPart:
    """Return a part that a task has closed."""
    staged = f"{next(_files)}.part"
    usual: dict[str, Any] = {"opened_ns": 0, "first_batch": 0, "last_batch": 0, "host": "h", "pid": 1}
    return ClosedPart(bucket, writer, KINDS[0], staged=staged, rows=rows, bytes=rows, digest="", **(usual | fields))


def result(writer: int, *, final: bool = False, time_ns: int = 0, **fields: Any) -> TaskResult:
    """Return the report of a task; if its rows are not given, they follow from its parts."""
    rows = sum(p.rows for name in ("open", "closed") for p in fields.get(name, ()))
    return TaskResult("w", 0, 1, time_ns, final, writer, **({"rows": rows} | fields))


def test_a_part_that_was_not_touched_stays_as_it_is() -> None:
    """A decision is about the reported parts; other parts go into the next record unchanged and in their order."""
    head = State("s", n=1, open=OpenParts([part("b", 1, 3), part("a", 0, 2)]))
    state = checked(head, Batch("q", 0), [result(0, open=(part("c", 0, 1),))], rules())
    assert [p.bucket for p in state.open] == ["b", "a", "c"]
    assert state.open[:2] == head.open
    assert (state.n, state.total_rows, state.batches) == (2, 1, {"q": (0, "")})


def test_a_consumed_part_lives_on_in_what_continues_it() -> None:
    """The record has a continued part once: as the task has reported it."""
    before = part("a", 0, 2)
    after = replace(before, segments=(*before.segments, *part("a", 0, 5).segments))
    state = checked(
        State("s", open=OpenParts([before])),
        Batch("q", 0),
        [result(0, open=(after,), consumed=(Destination("a"),), rows=5)],
        rules(),
    )
    assert state.open == (after,)


def test_a_bucket_is_consumed_by_its_own_writer_alone() -> None:
    """Another writer's part of the same bucket is another part."""
    head = State("s", open=OpenParts([part("a", 0, 2), part("a", 1, 3)]))
    results = [result(0, closed=(closed("a", 0, 2),), consumed=(Destination("a"),), rows=0)]
    assert checked(head, Batch("q", 0), results, rules()).open == (head.open[1],)


def test_a_part_of_another_kind_is_due_when_the_next_one_is_begun() -> None:
    """A bucket and writer has one open part: the old part of another kind is assembled, although it is not due by time."""
    old, new = part("a", 0, 2), part("a", 0, 3, kind=KINDS[1])
    head, results = State("s", open=OpenParts([old])), [result(0, open=(new,))]
    assert due(head, Batch("q", 0), results, rules()) == [old]
    state = checked(head, Batch("q", 0), results, rules())
    assert state.open == (new,)
    assert [file.rows for file in state.finished] == [2]


@pytest.mark.parametrize("batch", [Batch("q", 0), None])
def test_time_closes_a_part_in_a_batch_and_between_two(batch: Batch | None) -> None:
    """A roll between batches follows the same rules as a batch: it ends parts that are too old or idle, and no others."""
    by = rules(rollInterval="10s", rollInactivity="1h")
    old, young = part("a", 0, 2), part("b", 0, 2, opened_ns=5 * SECOND)
    state = checked(State("s", open=OpenParts([old, young])), batch, [result(0, time_ns=11 * SECOND)], by)
    assert state.open == (young,)
    assert [file.bucket for file in state.finished] == ["a"]
    assert state.batches == ({"q": (0, "")} if batch else {})


def test_the_end_closes_everything_and_takes_the_sink_over() -> None:
    """Without a batch and final: nothing stays open, and the owner is the driver that finished."""
    head = State(
        "s",
        n=4,
        epoch=2,
        owner="a",
        write="before",
        open=OpenParts([part("a", 0, 2), part("a", 1, 3), part("b", 0, 1)]),
    )
    end = replace(result(DRIVER, final=True), epoch=3)
    state = checked(head, None, [end], rules(), owner="b")
    assert (tuple(state.open), state.owner, state.epoch, state.parent) == ((), "b", 3, "before")
    assert [(file.bucket, file.rows) for file in state.finished] == [("a", 5), ("b", 1)]
    assert (state.total_files, state.total_rows) == (2, 0)


def test_parts_end_with_the_batch_that_is_the_last_of_theirs() -> None:
    """`rollBatches` counts from the batch that opened a part, also for a part that a task has just left open."""
    head = State("s", open=OpenParts([part("a", 0, 2, first_batch=3), part("b", 0, 2, first_batch=4)]))
    state = checked(head, Batch("q", 4), [result(0, open=(part("c", 0, 1, first_batch=3),))], rules(rollBatches="2"))
    assert [p.bucket for p in state.open] == ["b"]
    assert sorted(file.bucket for file in state.finished) == ["a", "c"]


def test_rows_that_do_not_add_up_are_not_committed() -> None:
    """A part that nobody reports, or that is reported twice, is an error before anything is put."""
    head = State("s", n=7, open=OpenParts([part("a", 0, 2)]))
    for wrong in (
        [result(0, consumed=(Destination("a"),))],  # consumed, and then missing
        [result(0, open=(part("a", 0, 2),), consumed=(Destination("a"),), rows=2)],  # its old rows counted as new ones
        [result(0, open=(part("b", 0, 1),), rows=2)],  # a written row is nowhere
    ):
        with pytest.raises(CommitError, match="record 7"):
            decide(head, Batch("q", 0), wrong, rules())
    with pytest.raises(CommitError):  # due, but not assembled
        decide(head, None, [result(0, final=True)], rules())


def test_numbers_go_on_where_they_were() -> None:
    """A writer's files are numbered in one sequence over all buckets; a new writer begins after all numbers of forgotten writers."""
    parts = (closed("b", 0, 1), closed("a", 0, 1), closed("a", 5, 1))
    head = State("s", floor=4, sequences={"0": 9}, open=OpenParts([part("x", 0, 1)]))
    state = checked(head, Batch("q", 0), [result(0, closed=parts)], rules())
    assert [file.path for file in state.finished] == ["a/f-0-9.txt", "a/f-5-4.txt", "b/f-0-10.txt"]
    assert (state.sequences, state.floor) == ({"0": 11}, 5)


def test_names_that_are_taken_are_passed_over() -> None:
    """A name that is taken, or was just given to another file, is skipped; the number counts on."""
    parts = (closed("a", 0, 1), closed("a", 1, 1), closed("b", 2, 1))
    state = checked(
        State("s"), Batch("q", 0), [result(0, closed=parts)], rules("f{seq}"), taken={"a/f0.txt", "b/f3.txt"}
    )
    assert [file.path for file in state.finished] == ["a/f1.txt", "a/f2.txt", "b/f4.txt"]


def test_names_of_several_numbers_never_meet() -> None:
    """`{writer}{seq}` makes the same name of writer 1, number 11 and of writer 11, number 1: the second one counts on."""
    parts = (closed("a", 1, 1), closed("a", 11, 1))
    head = State("s", sequences={"1": 11, "11": 1})
    state = checked(head, Batch("q", 11), [result(0, closed=parts)], rules("f{writer}{seq}"))
    assert [file.path for file in state.finished] == ["a/f111.txt", "a/f112.txt"]


def test_growing_files_gain_what_the_tasks_leave_open() -> None:
    """Each file gains its segments in the order of the writers; nothing is closed, whatever the time."""
    by = Rules("s", Limits.never(), NameTemplate.of("all.log", zone="UTC", growing=True), growing=True)
    head = State("s", lengths={"a/all.log": 10})
    results = [result(1, open=(part("a", 1, 3), part("b", 1, 4)), final=True), result(0, open=(part("a", 0, 2),))]
    state = checked(head, Batch("q", 0), results, by)
    assert [(growth.path, growth.before, growth.after, growth.rows) for growth in state.grown] == [
        ("a/all.log", 10, 15, 5), ("b/all.log", 0, 4, 4),
    ]  # fmt: skip
    assert [segment.rows for segment in state.grown[0].segments] == [2, 3]
    assert (state.lengths, tuple(state.open)) == ({"a/all.log": 15, "b/all.log": 4}, ())


def test_merging_stays_within_the_limits() -> None:
    """Parts of one bucket and kind are assembled into one file as long as neither size nor rows exceed the limits of a file."""
    by = rules(rollSize="10", rollRows="6").limits
    parts = [part("a", w, 2, size=4) for w in range(4)] + [
        part("a", 9, 1, size=1, kind=KINDS[1]),
        part("b", 0, 6, size=99),
    ]
    sizes = [(group.bucket, group.kind.schema, group.size, group.rows) for group in groups(parts, by)]
    assert sizes == [("a", "a", 8, 4), ("a", "a", 8, 4), ("a", "b", 1, 1), ("b", "a", 99, 6)]


# -- any decision --------------------------------------------------------------------------------------------------

_buckets = st.sampled_from(["", "a", "b", "c=1/d=2"])
_writers = st.integers(0, 2)
_keys = st.lists(st.tuples(_buckets, _writers), unique=True, max_size=6)
_amounts = st.integers(1, 5)
_numbers = st.integers(0, 3)


@st.composite
def decisions(draw: Callable[..., Any]) -> tuple[State, Batch | None, list[TaskResult]]:
    """Draw a record, and the reports of the tasks of a batch that began from it; or a roll, or the end."""
    times = st.integers(0, 100).map(lambda seconds: seconds * SECOND)

    def any_part(key: tuple[str, int]) -> OpenPart:
        return part(
            key[0], key[1], draw(_amounts), kind=draw(st.sampled_from(KINDS)), opened_ns=draw(times), written_ns=draw(times),
            first_batch=draw(_numbers), last_batch=draw(_numbers),
        )  # fmt: skip

    head = State("s", n=3, write="h", owner="o", open=OpenParts(map(any_part, draw(_keys))), floor=draw(_numbers))
    head = replace(head, sequences={str(p.writer): head.floor + draw(_numbers) for p in head.open})
    final, time_ns = draw(st.booleans()), draw(times)
    if draw(st.integers(0, 3)) == 0:
        return head, None, [result(DRIVER, final=final, time_ns=time_ns)]
    results = []
    for writer in range(3):
        own = [p for p in head.open if p.writer == writer]
        consumed = tuple(p.place for p in own if draw(st.booleans()))
        earlier = {p.bucket: p.rows for p in own if p.place in consumed}
        more = draw(st.lists(_buckets, unique=True, max_size=3))
        new = {bucket: any_part((bucket, writer)) for bucket in sorted({*more, *(place.bucket for place in consumed)})}
        left = tuple(p for bucket, p in new.items() if draw(st.booleans()) and p.rows >= earlier.get(bucket, 0))
        shut = tuple(closed(b, writer, p.rows + earlier.get(b, 0)) for b, p in new.items() if p not in left)
        rows = sum(p.rows for p in left) + sum(p.rows for p in shut) - sum(earlier.values())
        results.append(
            result(writer, final=final, time_ns=time_ns, open=left, closed=shut, consumed=consumed, rows=rows)
        )
    return head, Batch("q", draw(_numbers), "m", final), results


@pytest.mark.slow
@given(
    decisions(),
    st.sampled_from(["f-{writer}-{seq}", "f{seq}", "{batch}{seq}"]),
    st.sampled_from([{}, {"rollBatches": "2"}, {"rollInterval": "30s"}, {"rollRows": "6"}, {"rollInactivity": "20s"}]),
    st.sets(st.sampled_from(["f0.txt", "f1.txt", "a/f0.txt", "a/f-0-1.txt", "b/f2.txt", "00.txt"])),
)
def test_any_decision_accounts_for_every_row(
    given_: tuple[State, Batch | None, list[TaskResult]], template: str, options: dict[str, str], taken: set[str]
) -> None:
    """Whatever is reported: no row is lost or doubled, keys and names are unique, no number is reused, and the inputs stay unchanged."""
    head, batch, results = given_
    checked(head, batch, results, rules(template, **options), taken=taken)


# -- linear --------------------------------------------------------------------------------------------------------


def calls_of(work: Callable[[], object]) -> int:
    """Return how many function calls, of Python or C, the work makes."""
    calls = 0

    def seen(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def many(number: int, how: str) -> tuple[State, Batch | None, list[TaskResult], str]:
    """Return a decision about `number` open parts."""
    if how == "of one bucket":
        head = State("s", open=OpenParts(part("a", writer, 1) for writer in range(number)))
        return head, None, [result(DRIVER, final=True)], "f{seq}"
    head = State("s", open=OpenParts(part(f"b={i}", i % 2, 1) for i in range(number)))
    if how == "untouched":
        return head, Batch("q", 0), [result(0, open=(part("new", 0, 1),))], "f-{writer}-{seq}"
    if how == "continued":
        own = [[p for p in head.open if p.writer == writer] for writer in (0, 1)]
        results = [result(w, open=tuple(own[w]), consumed=tuple(p.place for p in own[w]), rows=0) for w in (0, 1)]
        return head, Batch("q", 0), results, "f-{writer}-{seq}"
    return head, None, [result(DRIVER, final=True)], "f-{writer}-{seq}"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["untouched", "continued", "ending", "of one bucket"])
def test_twice_as_many_parts_are_twice_the_work(how: str) -> None:
    """The driver does a fixed number of steps per part, however many are open; 8,000 parts once took it 14 seconds."""

    def steps(number: int) -> int:
        head, batch, results, template = many(number, how)
        by = rules(template)
        complete = results + assembled(due(head, batch, results, by), results, by)

        def work() -> None:
            list(groups(due(head, batch, results, by), by.limits))
            decide(head, batch, complete, by)

        return calls_of(work)

    few, more = steps(200), steps(800)
    assert more < 4.4 * few


def test_what_is_told_of_rows_adds_up_over_tasks_and_batches() -> None:
    """Accounts of the tasks of a batch are combined, and batches are added up; a roll, the end and the driver's own work add nothing."""
    tasks = [
        result(0, open=(part("a", 0, 2),), account=Account(2, {"x": 2, "y": 2}, {"k": 2})),
        result(1, account=Account()),
        result(2, open=(part("a", 2, 3),), account=Account(3, {"x": 3}, {"k": 1, "other": 1})),
    ]
    first = decide(State("s"), Batch("q", 0), tasks, rules())
    assert first.account == Account(5, {"x": 5}, {"k": 3, "other": 1})
    second = decide(first, Batch("q", 1), [result(0, open=(part("b", 0, 1),), account=Account(1, {"x": 1}))], rules())
    assert second.account == Account(6, {"x": 6}, {"k": 3, "other": 1})
    assert decide(second, None, [result(DRIVER)], rules()).account == second.account
    third = decide(second, Batch("q", 2), [result(0, open=(part("c", 0, 1),), account=Account(1, {"y": 1}))], rules())
    assert third.account.null_columns == []


def test_a_record_keeps_what_is_told_and_older_ones_have_nothing_to_tell(tmp_path: Path) -> None:
    """A record has an account only if there is one, and can be read without it; so records of older versions stay as they are."""
    ledger = Ledger(LocalStorage(), str(tmp_path), "s")
    told = State("s", n=2, account=Account(5, {"x": 5}, {"k": 3}, 7, partial=True))
    ledger.put(State("s", n=1))
    ledger.put(told)
    assert ledger.read(1).account == Account()
    assert '"account"' not in (tmp_path / f"{1:012d}").read_text()
    assert ledger.read(2) == told
    record = json.loads((tmp_path / f"{2:012d}").read_text())["record"]
    for wrong in ({"rows": 1, "never": 1}, ["rows"]):
        (tmp_path / f"{2:012d}").write_bytes(
            signed({name: value for name, value in record.items() if name != "v"} | {"account": wrong})
        )
        with pytest.raises(DamagedState, match="is not a ledger record"):
            ledger.read(2)
