"""Gives what all sinks of one output have published, as batches between offsets.

An offset has a position for each sink (see `events`), so it is O(sinks). The events between two offsets never change: a repeated
batch has the same rows, whatever was published or folded in the meantime. The path is not in the offset, because an output may
move.

Failures, in addition to those of `events`:

1. *`latest` that drifts.* A query begins with `latest`, nothing is published, and it is started again later with a later
   `latest`: what was published in between is in no batch. Rule: the first offset differs from the begin, so that there is a
   batch, without rows, that keeps the begin.
2. *A sink that comes later.* All its events came after the begin. Rule: all of them are given.
3. *A sink that is gone.* It may have been removed with events that were not given yet. Rule: `EventsLost`, which names the sink.
4. *A busy sink starves another.* Rule: the sinks with new events share the limit of a batch.
5. *An offset that was altered.* Rule: it has a checksum, as the offsets of the file source have.
6. *A reader without a checkpoint.* It is killed, and begins again with the record of the last event that it has processed. Then
   it misses what other sinks published in the meantime, because that comes before its begin. Rule: each event can be given
   together with the offset after it, which covers all sinks, and a reader may begin with an offset.
7. *A first batch that is repeated.* Spark keeps no offset before the first batch, and asks for one at each start. By then
   `latest` is later, and the events of the batch would be left out. Rule: the offset after the first batch says in `from` where
   the batch began.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.errors import DamagedState, EventsLost, NotThere, OptionError
from penstock.query import offset
from penstock.sink.events import REMEDY, EventLog, EventPosition
from penstock.sink.existing import sink_ids
from penstock.sink.ledger import STATE_DIRECTORY, Ledger
from penstock.storage import entry_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.sink.events import Event
    from penstock.storage import Storage

_BEGIN = "begin"  # marks the offset before the first batch
_FROM = "from"  # in the offset after the first batch: the positions before it


class Published:
    """The events of the output `root`, or of its sink `only`, for one reader; `remedy` is what to do if some are lost."""

    def __init__(self, storage: Storage, root: str, only: str | None = None, *, remedy: str = REMEDY) -> None:
        self._storage = storage
        self._root = root
        self._only = only
        self._remedy = remedy
        self._logs: dict[str, EventLog] = {}
        self._planned: tuple[dict[str, Any], dict[str, Any], list[Event]] | None = None

    def begin(self, starting: str = "earliest", *, name: str = "startingFrom") -> dict[str, Any]:
        """Return the offset before the first batch: `earliest`, `latest`, a record, `12` or `orders:12`, or an offset. `OptionError`.

        `name` is the user's name for `starting`, for messages.
        """
        entry = entry_at(self._storage, self._root)
        if entry is None or not entry.is_directory:
            state = "not there" if entry is None else "no directory"
            msg = f"path={self._root!r} is {state}; expected the directory of an output, which may be empty yet"
            raise OptionError(msg)
        return _offset(self._beginning(starting, name)) | {_BEGIN: True}

    def _beginning(self, starting: str, name: str) -> dict[str, EventPosition]:
        if starting.lstrip().startswith("{"):
            return _given(starting, name)
        sinks = self.sinks()
        if starting == "earliest":
            return dict.fromkeys(sinks, EventPosition())
        ends = {sink: self._log(sink).end() for sink in sinks}
        if starting == "latest":
            return ends
        named, _, record = starting.rpartition(":")
        sink = named or (sinks[0] if len(sinks) == 1 else "")
        if sink not in sinks:
            names = ", ".join(sinks) or "none"
            msg = f"{name}={starting!r} is a record of one sink; there are: {names}; expected one of them, such as {_such(sinks)}:12"
            raise OptionError(msg)
        return ends | {sink: self._log(sink).at_record(int(record))}

    def ends(self) -> dict[str, int]:
        """Return how many events of each sink are published now; a run that takes only what is there ends at these."""
        return {sink: self._log(sink).end().number for sink in self.sinks()}

    def plan(
        self, start: Mapping[str, Any], limit: int | None = None, until: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        """Return the offset after the next batch; `start` if nothing is new.

        The batch has about `limit` events at most, and at least one of each sink with new ones. It has none after `until`, which
        `ends` returned.
        """
        positions = _positions(start)
        sinks = self._all_there(positions)
        share = limit
        ahead: dict[str, list[Event]] = {}
        for left, sink in zip(range(len(sinks), 0, -1), self._busy_last(sinks), strict=True):
            room = None if share is None else max(share // left, 1)
            before = positions.get(sink, EventPosition())
            events = self._log(sink).after(before, room, None if until is None else until.get(sink, 0))
            share = None if share is None else max(share - len(events), 0)
            ahead[sink] = events
        ends = {
            sink: events[-1].position_after if events else positions.get(sink, EventPosition())
            for sink, events in ahead.items()
        }
        if ends == positions and _BEGIN not in start:
            return dict(start)
        end = _offset(ends, {_FROM: start["published"]} if _BEGIN in start else {})
        self._planned = dict(start), end, [event for sink in sinks for event in ahead[sink]]
        return end

    def _busy_last(self, sinks: list[str]) -> list[str]:
        """Return the sinks in an order in which those without events in the last batch come first.

        Others get what is left of their share.
        """
        lately = {event.sink for event in self._planned[2]} if self._planned else set()
        return sorted(sinks, key=lambda sink: (sink in lately, sink))

    def events(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Event]:
        """Return the events of a batch, in each sink in the order of its ledger. They are the same at each call and in each process."""
        if self._planned is not None and self._planned[:2] == (start, end):
            events = self._planned[2]
        else:
            before, after = self._before(start, end), _positions(end)
            self._all_there(after)
            events = [
                e
                for sink in sorted(after)
                for e in self._log(sink).between(before.get(sink, EventPosition()), after[sink])
            ]
        return [event for event in events if event.is_shown]

    def told(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Iterator[tuple[Event, dict[str, Any]]]:
        """Yield the events of a batch, each with the offset after it; a reader that begins there gets all later events."""
        positions = self._before(start, end)
        for event in self.events(start, end):
            positions[event.sink] = event.position_after
            yield event, _offset(positions)

    @staticmethod
    def place(at: Mapping[str, Any]) -> dict[str, Any]:
        """Return an offset for a user to begin with: its positions alone, without what it keeps about the first batch."""
        return _offset(_positions(at))

    @staticmethod
    def _before(start: Mapping[str, Any], end: Mapping[str, Any]) -> dict[str, EventPosition]:
        """Return the positions where a batch begins."""
        checked = _positions(start), _positions(end)
        return _read(end[_FROM]) if _BEGIN in start and _FROM in end else checked[0]

    def sinks(self) -> list[str]:
        """Return the sinks that have a ledger in the output; none if nothing was written yet."""
        try:
            sinks = sink_ids(self._storage, f"{self._root}/{STATE_DIRECTORY}")
        except NotThere:
            return []
        return [sink for sink in sinks if self._only in {None, sink}]

    def _all_there(self, positions: Mapping[str, EventPosition]) -> list[str]:
        sinks = self.sinks()
        gone = sorted(sink for sink in positions.keys() - set(sinks) if self._only in {None, sink})
        if gone:
            msg = f"sink {gone[0]!r} of {self._root!r} is gone, with what was not given of it; {self._remedy}"
            raise EventsLost(msg)
        return sinks

    def _log(self, sink: str) -> EventLog:
        if sink not in self._logs:
            directory = f"{self._root}/{STATE_DIRECTORY}/{sink}/ledger"
            self._logs[sink] = EventLog(
                Ledger(self._storage, directory, sink), sink, f"the ledger {directory!r}", self._remedy
            )
        return self._logs[sink]


def _such(sinks: list[str]) -> str:
    return sinks[0] if sinks else "orders"


def _offset(positions: Mapping[str, EventPosition], more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    form = {"v": offset.VERSION, "published": {sink: list(at) for sink, at in sorted(positions.items())}}
    return offset.summed(form | dict(more or {}))


def _given(text: str, name: str) -> dict[str, EventPosition]:
    """Return the positions of an offset that a user has kept; `OptionError` if it is not an offset."""
    try:
        return _positions(json.loads(text))
    except (ValueError, DamagedState) as error:
        msg = (
            f"{name}={text!r} is no place in the events of an output: expected what an event has as `after` (penstock files --follow "
            "--json), whole and unaltered"
        )
        raise OptionError(msg) from error


def _positions(form: Mapping[str, Any]) -> dict[str, EventPosition]:
    """Return the positions of an offset; `DamagedState` if it is not one of ours, or was altered."""
    offset.check({name: value for name, value in form.items() if name != _BEGIN} if isinstance(form, dict) else form)
    try:
        return _read(form["published"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        msg = (
            f"the offset in the checkpoint is none of a stream of published files: {error!r}; another source has written it; use that one, "
            "or a new checkpoint"
        )
        raise DamagedState(msg) from error


def _read(positions: Mapping[str, Any]) -> dict[str, EventPosition]:
    return {sink: EventPosition(int(number), str(mark)) for sink, (number, mark) in positions.items()}
