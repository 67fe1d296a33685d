"""Gives what was published as a sequence of events to many readers; each reader gets every event once, at its own pace.

Problem. A program that registers finished files elsewhere (in a catalogue, a queue) must hear of each file exactly once. A
listing shows neither the order, nor files that are gone by now. A message that is sent beside the commit is lost if its sender
dies between the two.

Idea. The ledger has already decided what was published, and in which order. **An event is an entry of the ledger, and its number
is the number of entries before it**, in records and folds alike. So a reader keeps one number, which is O(1), and gets the same
events between two numbers each time, even if records have become a fold in between. Nothing is written for readers, and no reader
writes, so there may be any number of readers.

The failures, and the rule against each:

1. *Event before its file.* A puts record 9 and dies before it publishes; the reader hears of a file that is not there. Rule: the
   events of the last record count once a note says that it is published. The events of earlier records always count, because each
   driver publishes what it finds before it puts the next record.
2. *Event of a lost record.* A puts record 9, and a reader sees it. The power fails, and the put was not durable. B puts another
   record 9. Rule: the same. Nothing is published, and so nothing is noted as published, before its record is durable.
3. *Stalled put.* A stalls until the record of its number is folded and deleted, so that the number is free again, and then puts.
   Rule: a record with the number of a folded one does not count (failure 3 of `ledger`).
4. *Folded under the reader.* A reader lists the ledger, a driver folds, and the records are gone when the reader opens them.
   Rule: the reader looks again; the fold has the same events under the same numbers.
5. *Inconsistent listing.* A driver folds while the storage lists, and the listing has neither the fold nor its records. Rule: if
   the records from the last fold to the head have a gap, the reader looks again.
6. *Another ledger.* The output was emptied, or restored from an older copy and written to again, so the reader's number now means
   another event. Rule: the position has a mark of the event before it. If that event is another one, or there are fewer events,
   the reader gets `EventsLost`; it never silently gets an event twice or misses one. No two files have the same entry. A bucket of
   time that is complete after a restore, too, has, so its mark is made of the time of its record as well.
7. *Removed history.* Somebody has removed old records, and the reader has not yet read their events. Rule: numbers never start
   again from 0, so this reader gets `EventsLost`. A reader that is past the removed events is not affected.
8. *Fold of an earlier version.* It does not say how many events come before it. Rule: the number is computed backwards from the
   first record after the folds, whose totals have it. The record of each event in such a fold is unknown, and is given as
   unknown.
9. *A note lost by a power cut.* Record 9 is published and noted, a reader gets its events, and the power fails. The record and
   its files survive, but the note, which is never synced, does not. So fewer events count than the reader was given. Rule: the
   reader's position is looked up among all decided events. It is there, and nothing is new until a driver has noted again that
   record 9 is published.

Work: finding a number takes O(log history) reads, which the reader remembers while it lives. After that, new events are read
once. If nothing is new, that is one listing and one record.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import xxhash

from penstock.errors import DamagedState, EventsLost, NotThere, OptionError
from penstock.query.records import canonical
from penstock.sink.ready import REOPENED, Mark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.sink.ledger import FinishedFile, Fold, Ledger, Look, State

PUBLISHED = "published"
_Outcome = TypeVar("_Outcome")
_TRIES = 5
REMEDY = "begin anew with a new checkpoint, and with startingFrom=earliest or latest, or restore the ledger from a copy"


class EventPosition(NamedTuple):
    """A place in the events of one sink: the number of the next event, and the mark of the event before it ("" for the first place)."""

    number: int = 0
    mark: str = ""


@dataclass(frozen=True)
class Event:
    """One event: a finished file, or a mark of a bucket of time.

    `record` and `time_ns` are the number and time of the ledger's record; `None` if an earlier version has folded it.
    """

    sink: str
    number: int
    entry: FinishedFile | Mark
    record: int | None = None
    time_ns: int | None = None

    @property
    def kind(self) -> str:
        """Return what happened, in a word: `published`, `ready`, `reopened`."""
        return self.entry.kind if isinstance(self.entry, Mark) else PUBLISHED

    @property
    def bucket(self) -> str:
        """Return the bucket of the event."""
        return self.entry.bucket

    @property
    def path(self) -> str | None:
        """Return the path of the file, below the output; `None` if it is about a bucket of time."""
        return None if isinstance(self.entry, Mark) else self.entry.path

    @property
    def is_shown(self) -> bool:
        """Whether readers get the event: not if it is about what was set aside, or about a bucket of time that only gets `_SUCCESS`."""
        return self.entry.event if isinstance(self.entry, Mark) else not self.entry.is_aside

    @property
    def position_after(self) -> EventPosition:
        """Return the position after the event."""
        when = {"decided_ns": self.time_ns} if isinstance(self.entry, Mark) else {}
        return self._marked(_form(self.entry) | when)

    def is_before(self, position: EventPosition) -> bool:
        """Tell whether a position is the one after the event; earlier versions made the mark without the time."""
        return position in {self.position_after, self._marked(_form(self.entry))}

    def _marked(self, form: dict[str, Any]) -> EventPosition:
        return EventPosition(self.number + 1, xxhash.xxh3_64_hexdigest(canonical(form)))


class _View(NamedTuple):
    """The ledger at one moment: `blocks` are its folds and records, in order; `visible` is how many events may be shown."""

    look: Look
    head: State
    blocks: list[str | int]
    visible: int


class EventLog:
    """The events of one sink's ledger, for one reader."""

    def __init__(self, ledger: Ledger, sink: str, place: str, remedy: str = REMEDY) -> None:
        self._ledger = ledger
        self._sink = sink
        self._remedy = remedy  # what messages advise if events are lost
        self._place = place  # what messages call the ledger
        self._starts: dict[str | int, int] = {}  # block -> events before it
        self._head = (0, "")
        self._last: EventPosition | None = None  # the position after the last event that was given

    def end(self) -> EventPosition:
        """Return the position after all events that are published now."""
        return self._again(self._end)

    def _end(self) -> EventPosition:
        view = self._view()
        if not view.visible:
            return EventPosition()
        (last,) = self._between(view, view.visible - 1, view.visible)
        return last.position_after

    def at_record(self, number: int) -> EventPosition:
        """Return the position before the events of record `number`, which may be the next one to come; `OptionError` if it is unknown."""
        return self._again(lambda: self._at_record(number))

    def _at_record(self, number: int) -> EventPosition:
        view = self._view()
        if number == view.head.n + 1:
            return self._end()
        if number > view.head.n:
            self._refuse_record(number, view)
        count = self._start(view, number) if number > view.look.folded else self._in_fold(view, number)
        before = list(self._between(view, count - 1, count)) if count else []
        return before[0].position_after if before else EventPosition()

    def _refuse_record(self, number: int, view: _View) -> NoReturn:
        msg = f"record {number} is not in {self._place}, whose last one is {view.head.n}; expected one from 1 to that"
        raise OptionError(msg)

    def _in_fold(self, view: _View, number: int) -> int:
        """Return how many events come before a folded record."""
        name = next((name for name in view.look.folds if int(name[:12]) <= number <= int(name[13:])), None)
        if name is None:
            msg = (
                f"record {number} is not in {self._place} any more; expected one from {int(view.look.folds[0][:12])} on"
            )
            raise OptionError(msg)
        fold, start = self._ledger.fold(name), self._start(view, name)
        if number == fold.first:
            return start
        if fold.records is None:
            msg = (
                f"record {number} of {self._place} was folded by an earlier version, which did not keep its files apart from those of "
                f"records {fold.first} to {fold.last}; expected {fold.first} or {fold.last + 1}"
            )
            raise OptionError(msg)
        return start + sum(record.files + len(record.marks) for record in fold.records if record.n < number)

    def after(self, start: EventPosition, limit: int | None = None, until: int | None = None) -> list[Event]:
        """Return the published events from `start` on: at most `limit`, and only those with numbers below `until`.

        May be called any number of times; the events between two positions are always the same. Raises `EventsLost`,
        `DamagedState`.
        """
        return self._again(lambda: self._after(start, limit, until))

    def between(self, start: EventPosition, end: EventPosition) -> list[Event]:
        """Return the events from `start` up to `end`, which were given before. Raises `EventsLost` if some are missing or differ."""
        events = self.after(start, end.number - start.number)
        if not (events[-1].is_before(end) if events else start == end):
            msg = f"events {start.number} to {end.number - 1} of {self._place} are not those that were planned; {self._remedy}"
            raise EventsLost(msg)
        return events

    def _after(self, start: EventPosition, limit: int | None, until: int | None) -> list[Event]:
        view = self._view()
        decided = view.head.events_before + view.head.events
        if start.number > decided:
            msg = (
                f"{start.number} events of {self._place} were given, and it has {decided}: it was emptied, or put back from an older "
                f"copy; {self._remedy}"
            )
            raise EventsLost(msg)
        ends = [view.visible, *([] if limit is None else [start.number + limit]), *([] if until is None else [until])]
        end = max(min(ends), start.number)
        if end == start.number and self._last == start:
            return []
        events = list(self._between(view, max(start.number - 1, 0), end))
        if start.number:
            self._check(events.pop(0), start)
        self._last = events[-1].position_after if events else start
        return events

    def _check(self, before: Event, start: EventPosition) -> None:
        if not before.is_before(start):
            msg = (
                f"event {before.number} of {self._place} is {_words(before)}, not the one that was given: the ledger was put back "
                f"from a copy and written on, or is another one; {self._remedy}"
            )
            raise EventsLost(msg)

    def _again(self, read: Callable[[], _Outcome]) -> _Outcome:
        """Return what `read` returns. Tries again if records are missing, because a live query folds and adds records meanwhile."""
        for _ in range(_TRIES - 1):
            with suppress(NotThere):
                return read()
        try:
            return read()
        except NotThere as error:
            msg = f"{error.message}; restore the ledger from a copy, nothing was changed"
            raise DamagedState(msg) from error

    def _view(self) -> _View:
        look = self._ledger.look_at_history()
        head = self._ledger.head(look)
        known, write = self._head
        if head.n < known or (
            head.n == known and head.write != write
        ):  # it was restored from a copy: what is remembered belongs to another ledger
            self._starts.clear()
            self._last = None
        self._head = (head.n, head.write)
        records = [n for n in look.numbers if n > look.folded]
        if head.n and records != list(range(look.folded + 1, head.n + 1)):
            msg = f"records {look.folded + 1} to {head.n} of {self._place} are not all there"
            raise NotThere(msg)
        visible = head.events_before + (head.events if look.is_published(head) else 0)
        blocks: list[str | int] = [*look.folds, *records]
        if len(self._starts) > len(blocks):  # records were folded since
            self._starts = {block: self._starts[block] for block in blocks if block in self._starts}
        return _View(look, head, blocks, visible)

    def _between(self, view: _View, first: int, end: int) -> Iterator[Event]:
        """Yield the events from number `first` up to `end`."""
        if first >= end:
            return
        at = bisect_right(range(len(view.blocks)), first, key=lambda at: self._start(view, view.blocks[at])) - 1
        if at < 0:
            msg = (
                f"event {first} of {self._place} is gone: it begins with event {self._start(view, view.blocks[0])}; its oldest files were "
                f"removed; {self._remedy}"
            )
            raise EventsLost(msg)
        self._check_folds(view, at)
        for block in view.blocks[at:]:
            for event in self._events(view, block):
                if event.number >= end:
                    return
                if event.number >= first:
                    yield event

    def _check_folds(self, view: _View, at: int) -> None:
        """Raise `EventsLost` if there is a gap between folds, from block `at` on."""
        folds = [name for name in view.blocks[at:] if isinstance(name, str)]
        for name, following in pairwise(folds):
            if int(name[13:]) + 1 != int(following[:12]):
                msg = f"records {int(name[13:]) + 1} to {int(following[:12]) - 1} of {self._place} are gone; {self._remedy}"
                raise EventsLost(msg)

    def _events(self, view: _View, block: str | int) -> Iterator[Event]:
        start = self._start(view, block)
        if isinstance(block, int):
            state = view.head if block == view.head.n else self._ledger.read(block, view.look)
            entries = _recorded(state)
        else:
            entries = _folded(self._ledger.fold(block))
        for number, (entry, record, time_ns) in enumerate(entries, start):
            yield Event(self._sink, number, entry, record, time_ns)

    def _start(self, view: _View, block: str | int) -> int:
        """Return how many events come before a block."""
        if block not in self._starts:
            self._starts[block] = (
                self._start_of_fold(view, block) if isinstance(block, str) else self._start_of(view, block)
            )
        return self._starts[block]

    def _start_of(self, view: _View, n: int) -> int:
        return (view.head if n == view.head.n else self._ledger.read(n, view.look)).events_before

    def _start_of_fold(self, view: _View, name: str) -> int:
        """Return how many events come before a fold: as it says, or computed backwards from the next block that says it."""
        passed: list[tuple[str, int]] = []  # folds that do not say it, and how many events they have
        folds = view.look.folds
        for other in folds[folds.index(name) :]:
            fold = self._ledger.fold(other)
            if fold.before is not None:
                start = fold.before
                break
            passed.append((other, len(fold.files)))
        else:
            start = self._start(view, view.look.folded + 1)
        for other, count in reversed(passed):
            start -= count
            self._starts[other] = start
        return start


class EventHistory(EventLog):
    """The events of one sink's ledger from the first one up to the end of a given record."""

    def through_record(self, number: int) -> EventPosition:
        """Return the position after the events of record `number`, all of them published; `OptionError` if it is unknown."""
        return self._again(lambda: self._through_record(number))

    def _through_record(self, number: int) -> EventPosition:
        view = self._view()
        if number == view.head.n and view.visible != view.head.events_before + view.head.events:
            before = f"; record {number - 1} is the last one that is" if number > 1 else ""
            msg = f"record {number} of {self._place} is decided and not published yet: its query publishes it, or penstock finish{before}"
            raise OptionError(msg)
        name = next((name for name in view.look.folds if int(name[:12]) <= number < int(name[13:])), None)
        fold = None if name is None else self._ledger.fold(name)
        if fold is not None and fold.records is None:
            msg = (
                f"record {number} of {self._place} was folded by an earlier version, which did not keep its files apart from those of "
                f"records {fold.first} to {fold.last}; expected {fold.last}, or a later one"
            )
            raise OptionError(msg)
        if number > view.head.n:
            self._refuse_record(number, view)
        return self._at_record(number + 1)

    def history(self, end: EventPosition, *, lost: bool = False) -> list[Event]:
        """Return the events before `end`. If some are gone, raises `EventsLost`, or with `lost` returns those that are left."""
        return self._again(lambda: self._history(end, lost=lost))

    def _history(self, end: EventPosition, *, lost: bool) -> list[Event]:
        view = self._view()
        first = self._start(view, view.blocks[0]) if lost and view.blocks else 0
        events = list(self._between(view, first, end.number))
        if end.number > first and not (events and events[-1].is_before(end)):
            msg = f"event {end.number - 1} of {self._place} is not the one that was there: the ledger was restored from a copy; load again"
            raise EventsLost(msg)
        return events


def _in_order(files: Sequence[FinishedFile], marks: Sequence[Mark]) -> Iterator[FinishedFile | Mark]:
    """Yield the entries of a record in order: `reopened` marks, files, then other marks.

    Late rows reopen a bucket of time before their files are there, and after these the bucket may be complete again.
    """
    yield from (mark for mark in marks if mark.kind == REOPENED)
    yield from files
    yield from (mark for mark in marks if mark.kind != REOPENED)


def _recorded(state: State) -> Iterator[tuple[FinishedFile | Mark, int | None, int | None]]:
    """Yield the entries of a record with its number and time."""
    yield from ((entry, state.n, state.time_ns) for entry in _in_order(state.finished, state.ready.marks))


def _folded(fold: Fold) -> Iterator[tuple[FinishedFile | Mark, int | None, int | None]]:
    """Yield the entries of folded records, each with the number and time of its record."""
    if fold.records is None:
        yield from ((file, None, None) for file in fold.files)
        return
    passed = 0
    for record in fold.records:
        files = fold.files[passed : passed + record.files]
        passed += record.files
        yield from ((entry, record.n, record.time_ns) for entry in _in_order(files, record.marks))


def _form(entry: FinishedFile | Mark) -> dict[str, Any]:
    return {"mark": list(entry)} if isinstance(entry, Mark) else asdict(entry)


def _words(event: Event) -> str:
    return repr(event.path or event.bucket)
