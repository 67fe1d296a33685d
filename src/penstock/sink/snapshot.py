"""The finished files of an output at one moment, now or as of a record of the ledger, for batch readers.

A listing of an output is not a snapshot: files appear while it is read, even the files of one batch one after the other, and
there may be files of other programs among them. The ledger gives a snapshot: a record decides all files of a batch at once, and
an event's number (see `events`) says how many files there were up to it, in records and folds alike. So a snapshot is a position
in the events of each sink, and its files are the entries before these positions. It is the same whenever it is taken again.

1. *Half a batch.* A reader lists while a batch is published, and sees some of its files. Rule: the files of the last record count
   when it is noted as published, all of them or none; see `events`, failures 1 and 2.
2. *Two actions, two states.* A query reads twice, and a batch is published in between. Rule: the reader keeps the positions.
3. *A record that is not there* (not yet there, not published, folded by a version that does not tell it, removed). Rule: it is
   refused, with a message that names the records that are there.
4. *Files that are gone.* A user may take finished files away. Rule: the reader reports missing files before the first row is
   read, and reads the remaining files only if asked to.
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
    """Finished files, in the order of the ledgers, and the lengths of growing files; all paths are below the output."""

    files: tuple[FinishedFile, ...]
    lengths: Mapping[str, int] = field(default_factory=dict)

    @property
    def sizes(self) -> dict[str, int]:
        """Return how many bytes of each file belong to the snapshot."""
        return {file.path: file.bytes for file in self.files} | dict(self.lengths)


class Finished:
    """What the sinks of the output `root` have finished, or only the sink `only`."""

    def __init__(self, storage: Storage, root: str, only: str | None = None) -> None:
        self._storage = storage
        self._root = root
        self._only = only

    def sinks(self) -> list[str]:
        """Return the sinks that have a ledger in the directory; none if it is not an output."""
        with suppress(NotThere):
            return sink_ids(self._storage, f"{self._root}/{STATE_DIRECTORY}")
        return []

    def noted(self) -> dict[str, Mapping[str, str]]:
        """Return the options that the last driver of each sink noted. `DamagedState`."""
        return {sink: noted(self._storage, self._state(sink)).options for sink in self._chosen()}

    def positions(self, records: Mapping[str, int] | None) -> Positions:
        """Return where the events of each sink end: now, or after a given record; `OptionError` for a record that is not there.

        `records` has a record number for each sink. If there is only one sink, its name may be `""`.
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
        """Raise `OptionError` with the records that there are."""
        expected = ",".join(f"{sink}:{self._ledger(sink).head().n}" for sink in sinks)
        given = ",".join(f"{sink}:{n}" if sink else str(n) for sink, n in records.items())
        msg = f"asOf={given} is not a record of each sink of {self._root!r}; expected such as asOf={expected}, or one sink by sinkId"
        raise OptionError(msg)

    def snapshot(self, positions: Positions, *, lost: bool = False) -> OutputSnapshot:
        """Return the files before these positions, and growing files as they are now. `lost`: leave out files whose records are gone.

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
        """Return the published lengths of a sink's growing files."""
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
