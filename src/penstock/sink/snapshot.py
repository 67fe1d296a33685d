"""The finished files of an output at one moment, or as they were with a record of the ledger, for those who read them as a batch.

A listing of an output is no snapshot: files come while it is read, those of one batch one after the other, and files of strangers
lie among them. The ledger is one: a record decides all files of a batch at once, and an event's number (see `events`) says how many
files there were with it, over records and folds alike. So a snapshot is a position in the events of each sink, and its files are
the entries in front of these. It is the same whenever it is taken again.

1. *Half a batch.* A reader lists while a batch is published, and has some of its files. Rule: what is in the last record counts when
   it is noted as published, all of it or nothing; see `events`, failures 1 and 2.
2. *Two actions, two states.* A query reads twice, and a batch is published in between. Rule: the reader keeps the positions.
3. *A record that is not there* (not yet, not published, folded by a version that does not tell, removed) is refused, with those that are.
4. *Files that are gone.* Somebody took finished files away, which he may. Rule: that is told before the first row is read, and what
   is left is read only by those who say so.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from penstock.errors import DamagedState, NotThere, OptionError
from penstock.sink.events import EventHistory, EventPosition
from penstock.sink.existing import noted, sink_ids
from penstock.sink.ledger import STATE_DIRECTORY, FinishedFile, Ledger
from penstock.sink.lengths import LengthTables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.sink.ledger import State
    from penstock.storage import Storage

Positions = dict[str, EventPosition]
_TRIES = 5


@dataclass(frozen=True)
class OutputSnapshot:
    """Finished files, in the order of the ledgers, and how long growing ones are, both by paths below the output."""

    files: tuple[FinishedFile, ...]
    lengths: Mapping[str, int] = field(default_factory=dict)

    @property
    def sizes(self) -> dict[str, int]:
        """Return how many bytes of each file are in it."""
        return {file.path: file.bytes for file in self.files} | dict(self.lengths)


class Finished:
    """What the sinks of the output `root` have finished, or what the sink `only` has."""

    def __init__(self, storage: Storage, root: str, only: str | None = None) -> None:
        self._storage = storage
        self._root = root
        self._only = only

    def sinks(self) -> list[str]:
        """Return the sinks that have a ledger there; none if it is no output."""
        with suppress(NotThere):
            return sink_ids(self._storage, f"{self._root}/{STATE_DIRECTORY}")
        return []

    def noted(self) -> dict[str, Mapping[str, str]]:
        """Return the options that the last driver of each sink noted. `DamagedState`."""
        return {sink: noted(self._storage, self._state(sink)).options for sink in self._chosen()}

    def positions(self, records: Mapping[str, int] | None) -> Positions:
        """Return where the events of each sink end: now, or with a record; `OptionError` for one that is not there.

        The only sink needs no name among the `records`, which is `""` then; else each has one.
        """
        sinks = self._chosen()
        if records is None:
            return {sink: self._log(sink).end() for sink in sinks}
        if len(sinks) == 1 and "" in records:
            records = {sinks[0]: records[""]}
        if set(records) != set(sinks):
            self._refuse_records(records, sinks)
        for sink in filter(self._lengths, sinks):
            msg = (
                f"asOf: sink {sink!r} of {self._root!r} has growing files, of which the ledger keeps only the newest lengths; leave "
                "asOf out"
            )
            raise OptionError(msg)
        return {sink: self._log(sink).through_record(n) for sink, n in records.items()}

    def _refuse_records(self, records: Mapping[str, int], sinks: list[str]) -> NoReturn:
        """Say which records there are."""
        expected = ",".join(f"{sink}:{self._ledger(sink).head().n}" for sink in sinks)
        given = ",".join(f"{sink}:{n}" if sink else str(n) for sink, n in records.items())
        msg = f"asOf={given} is not a record of each sink of {self._root!r}; expected such as asOf={expected}, or one sink by sinkId"
        raise OptionError(msg)

    def snapshot(self, positions: Positions, *, lost: bool = False) -> OutputSnapshot:
        """Return the files in front of these positions; growing ones as they are now. `lost`: what is gone of a ledger is left out.

        Raises `EventsLost`, `DamagedState`.
        """
        files: list[FinishedFile] = []
        lengths: dict[str, int] = {}
        for sink, end in positions.items():
            events = self._log(sink).history(end, lost=lost)
            entries = [event.entry for event in events if event.is_shown]
            files += [entry for entry in entries if isinstance(entry, FinishedFile)]
            lengths |= self._lengths(sink)
        return OutputSnapshot(tuple(files), lengths)

    def _chosen(self) -> list[str]:
        sinks = self.sinks()
        if self._only is None:
            return sinks
        if self._only not in sinks:
            msg = f"sinkId={self._only!r} is not in {self._root!r}; there are: {', '.join(sinks) or 'none'}"
            raise OptionError(msg)
        return [self._only]

    def _lengths(self, sink: str) -> dict[str, int]:
        """Return how long the growing files of a sink are, as far as that is published."""
        ledger = self._ledger(sink)
        tables = LengthTables(self._storage, f"{self._state(sink)}/staging")
        for left in reversed(range(_TRIES)):
            look = ledger.look()
            head = ledger.head(look)
            try:
                lengths = dict(tables.all_of(head)) if _grows(head) else {}
            except DamagedState:
                if not left or ledger.head().n == head.n:
                    raise
                continue  # a live query has merged its tables
            break
        if not look.is_published(head):
            lengths |= {growth.path: growth.before for growth in head.grown}
        return {path: length for path, length in lengths.items() if length}

    def _log(self, sink: str) -> EventHistory:
        return EventHistory(self._ledger(sink), sink, f"the ledger {self._state(sink) + '/ledger'!r}")

    def _ledger(self, sink: str) -> Ledger:
        return Ledger(self._storage, f"{self._state(sink)}/ledger", sink)

    def _state(self, sink: str) -> str:
        return f"{self._root}/{STATE_DIRECTORY}/{sink}"


def _grows(head: State) -> bool:
    return bool(head.lengths or head.tables)
