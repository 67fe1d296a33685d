"""The ledger: the one place that decides what the output is.

Problem. Tasks die, drivers die, drivers are stopped and continue an hour later, replies are lost, and a reader may look at any
instant. If the existence of files decided what is visible, each of these failures would need its own repair.

Idea. Files are written once under unique names, and mean nothing by themselves. A small record, put with `put_if_absent` under
the next number, says which of them count. **That put is the commit.** Each record holds the whole state (open parts, last batch
of each query, who may commit), so only the last one is ever read. If there are many open parts or growing files, a record has
only what changed lately, and names the tables that have the rest (`parttables`, `lengths`). The files that a record declares
finished are then published; publishing is idempotent, and any driver may repeat it.

The failures, and the rule against each:

1. *Replay.* A driver commits batch 7 and dies before Spark notes it; the replay writes batch 7 again. Rule: a record names the
   last batch of each query, and a batch that is not newer is not written again.
2. *Stalled driver.* A is stopped before its put; B takes over and commits; A continues. Rule: a put needs the number after the
   head it started from, and B has taken that number. B's records have a higher epoch, so A ends with `Fenced`.
3. *Stalled for long.* As 2, but B's early records were already folded and deleted, so A's number is free again. Rule: every
   record names its parent, and the driver looks at the ledger again *after* the put: a record that is neither the head nor the
   parent of the next one decides nothing. A deletes its record and publishes nothing. If A dies before that, B deletes it: a
   record with the number of a folded one is deleted and never folded.
4. *Lost reply.* The put was done but reported as failed. Rule: a driver that finds the number taken reads the record. If the
   record has the driver's own write id, the put was done.
5. *Restored checkpoint.* The checkpoint is older than the ledger, so the same batch ids now mean other rows. Rule: the record
   keeps a fingerprint of Spark's offsets for its batch. A batch with an older number or another fingerprint is a
   `CheckpointMismatch`; it is never silently skipped.
6. *Lost records.* The checkpoint is complete, but the ledger or its end is gone. Rule: every batch has a record, so a query whose
   next batch does not follow the last batch in the ledger is refused (see `sink`).
7. *Half a fold.* Records are folded, and their driver dies when only some of them are deleted; or all are deleted, and a power
   cut brings some back. The next fold would begin with them, and the history would have their files twice. Rule: as in 3, a
   record with the number of a folded one is deleted and not folded again.
8. *Fold seen, not durable.* A links a fold and is stopped before the sync; B finds the fold and deletes the records; then the
   power fails, and both are gone. Rule: a driver that finds the fold makes it durable before it deletes records.
9. *Lost record of a batch that Spark repeats.* Record 9 is put and its files are published; the driver dies before Spark notes
   the batch; record 9 is deleted. The batch follows record 8, so it would be written again, and its rows would be there twice.
   Rule: a note that record 9 is published, without record 9, is `DamagedState`. (If the driver also died before the note, only the
   names of the files show the loss: failure 10 of `sink`.)

10. *A year of folds.* A query has a batch a second. After a year there are 246,000 folds, and each look at the directory lists them
   all. Rule: `MERGED` neighbours with as many records each become one fold, and so do `MERGED` of those, up to `MERGED_BYTES`.
11. *Half a merge.* Folds are merged, and their driver dies when only some of them are deleted; or it is stopped before the merged one
   is durable, and its successor deletes them. The history would have their files twice, or not at all. Rule: a fold that lies within
   another one does not count, and is deleted once the wider one was read whole and is durable (as in 7 and 8). What is in a fold
   follows from its first and last record, so it does not matter which driver has put it.
12. *Merged while somebody lists.* A storage need not list a directory at one instant: the names may have neither the merged fold nor
   those that became it, so a reader would miss files. Rule: who reads the history looks again, unless folds and records go on from
   record 1 without a gap, until two looks in a row have the same (`look_at_history`).

Each record is one line of canonical JSON with its checksum; a flipped byte anywhere is `DamagedState`. An empty file
`<n>.published` beside a record says that all of it is visible; it is evidence, not a promise, and never synced. Records are
folded, `FOLD` at a time, into files that list the finished files, and are then deleted, and these files are merged. So the ledger
directory stays small, and the history of finished files is kept for `files` and `verify`. The sink reads of it only what it merges.

Rejected: one record for each part (O(history) to find the head); appending to one file (needs append and truncate); a lock (a
stopped driver keeps it, and a dead one loses it; neither says who may commit).
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from penstock import failpoints
from penstock.errors import AlreadyThere, DamagedState, NotThere, TemplateError
from penstock.formats.account import Account
from penstock.formats.aside import Tally
from penstock.query.records import checked, signed, state_bytes
from penstock.sink.folds import Fold, FoldedRecord, Folds, divided, finished_file, finished_form, is_fold, span_of
from penstock.sink.openparts import (
    OPEN_FIELDS,
    STATE_DIRECTORY,
    Destination,
    FinishedFile,
    Kind,
    OpenPart,
    OpenParts,
    Segment,
    aside_bucket,
    check_relative,
    is_aside,
    open_form,
    open_of,
    segments_of,
)
from penstock.sink.parttables import PartTables
from penstock.sink.ready import Ready
from penstock.sink.renamed import OtherNames
from penstock.storage import names_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.storage import Storage

__all__ = [
    "FOLD",
    "STAGING",
    "STATE_DIRECTORY",
    "Destination",
    "FinishedFile",
    "Fold",
    "FoldedRecord",
    "Growth",
    "Kind",
    "Ledger",
    "LengthTable",
    "Look",
    "OpenPart",
    "OpenParts",
    "Segment",
    "State",
    "aside_bucket",
    "check_relative",
    "is_aside",
]

FOLD = 128
STAGING = "staging"  # the directory of staged files, beside that of the records
_TRIES = 5
_KEPT = 4  # parsed records that are cached: each step of a batch reads the head again, and mostly finds the same bytes
_RECORD = re.compile(r"\d{12}")
_NOTE = re.compile(r"\d{12}\.published")
_EVIDENCE = re.compile(r"(\d{12})\.published|\d{12}-(\d{12})")  # names that prove that a record was there
_LATER = frozenset({"key", "tables", "taken_by", "writing", "written", "written_tables"})
_NOTHING: tuple[Any, ...] = (None, "", (), {})


@dataclass(frozen=True)
class Growth:
    """What a batch appends to a growing file: from length `before` to `after`, the bytes of `segments`.

    `header` is Base64 of the header, if the file begins with these segments. It holds the exact bytes, because another version
    might compress the same header differently when it is written again.
    """

    path: str
    before: int
    after: int
    rows: int
    segments: tuple[Segment, ...]
    header: str = ""


@dataclass(frozen=True)
class LengthTable:
    """A staged file that holds the lengths of `files` growing files; see `lengths`."""

    file: str
    digest: str
    files: int


@dataclass(frozen=True)
class State:
    """What one record says.

    `n` is its number, `write` the id of the attempt that put it, `parent` the `write` of record n - 1. The totals count the rows
    committed, the files finished and their bytes since the sink began; `account` covers all these rows. `aside` counts what was
    set aside; the files of that are among the finished ones. `ready` is about buckets of time. `lengths` holds the lengths of
    growing files that changed lately; `tables` have the others, the newest table last (see `lengths`).

    `taken_by` is set once another ingest has taken over what this ledger's query reads (see `handover`): the query of that ingest.

    `writing` are the batch writes that have begun, by their keys: the number of the record with which each began, and its driver.
    `written` are the keys of writes that are done (see `keyed`); it is to `written_tables` as `lengths` is to `tables`.

    In the head, `open` has all open parts. In an older record that names tables of open parts, `open` is unread (see
    `OpenParts`).
    """

    sink: str
    n: int = 0
    epoch: int = 0
    owner: str = ""
    write: str = ""
    parent: str = ""
    time_ns: int = 0
    batches: dict[str, tuple[int, str]] = field(default_factory=dict)
    open: OpenParts = field(default_factory=OpenParts)
    finished: tuple[FinishedFile, ...] = ()
    floor: int = 0
    sequences: dict[str, int] = field(default_factory=dict)
    ratio: float = 0.35
    total_rows: int = 0
    total_files: int = 0
    total_bytes: int = 0
    lengths: dict[str, int] = field(default_factory=dict)
    tables: tuple[LengthTable, ...] = ()
    grown: tuple[Growth, ...] = ()
    account: Account = field(default_factory=Account)
    aside: Tally = field(default_factory=Tally)
    ready: Ready = field(default_factory=Ready)
    writing: dict[str, tuple[int, str]] = field(default_factory=dict)
    written: dict[str, list[list[int]]] = field(default_factory=dict)
    written_tables: tuple[LengthTable, ...] = ()
    taken_by: str = ""

    @property
    def events(self) -> int:
        """Return how many events the record has (see `sink.events`)."""
        return len(self.finished) + len(self.ready.marks)

    @property
    def events_before(self) -> int:
        """Return how many events the earlier records have."""
        return self.total_files + self.ready.total - self.events

    def may_name(self, base: int) -> bool:
        """Tell whether a later record may name files that were staged from `base`, a record or the claim of a batch write."""
        return base >= self.n or base in {n for n, _ in self.writing.values()}

    def last_batch(self, query: str) -> int:
        """Return the last committed batch of the query, -1 if there is none."""
        return self.batches.get(query, (-1, ""))[0]

    def sequence(self, writer: int) -> int:
        """Return the writer's next file number, which it has never used before, even if the ledger has forgotten the writer."""
        return self.sequences.get(str(writer), self.floor)


@dataclass(frozen=True)
class Look:
    """The names in a ledger's directory at one moment, and what follows from them. Each step of a batch looks once."""

    names: tuple[str, ...]

    @cached_property
    def numbers(self) -> list[int]:
        """The numbers of the records there are, in order."""
        return sorted(int(name) for name in self.names if _RECORD.fullmatch(name))

    @cached_property
    def folds(self) -> list[str]:
        """The files of folded records, in order, without those that lie within another one."""
        return self._divided[0]

    @cached_property
    def within(self) -> list[str]:
        """The folds that lie within another one, of which they became a part; they do not count."""
        return self._divided[1]

    @cached_property
    def _divided(self) -> tuple[list[str], list[str]]:
        return divided(self.names)

    @property
    def is_whole(self) -> bool:
        """Tell whether folds and records follow each other from record 1 on; not if somebody has removed the oldest."""
        after = 1
        for first, last in map(span_of, self.folds):
            if first != after:
                return False
            after = last + 1
        left = [n for n in self.numbers if n >= after]
        return left == list(range(after, after + len(left)))

    @cached_property
    def notes(self) -> set[int]:
        """The records that are noted as published: all files that they name are visible."""
        return {int(name[:12]) for name in self.names if _NOTE.fullmatch(name)}

    @property
    def folded(self) -> int:
        """The last record that is in a fold. A record that still has this number or a smaller one no longer counts."""
        return max((last for _, last in map(span_of, filter(is_fold, self.names))), default=0)

    def is_published(self, state: State) -> bool:
        """Tell whether all files of a record are known to be visible; true for a record that names none."""
        return not (state.finished or state.grown or state.ready.marks) or state.n in self.notes


class Ledger:
    """The records of one sink, in one directory of one storage."""

    def __init__(self, storage: Storage, directory: str, sink: str) -> None:
        self._storage = storage
        self._directory = directory
        self._sink = sink
        self._parts = PartTables(storage, f"{directory.rpartition('/')[0]}/{STAGING}", sink)
        self._folds = Folds(storage, directory, sink)
        self.other_names = OtherNames(storage, directory, sink)

    def look(self) -> Look:
        """Return the names that are in the directory now; none if the directory is not there."""
        return Look(tuple(names_at(self._storage, self._directory)))

    def look_at_history(self) -> Look:
        """Return a look for who reads folds: one in which nothing is missing, or two in a row had the same (failure 12)."""
        look = self.look()
        while not look.is_whole:
            before, look = look, self.look()
            if look.folds == before.folds:
                break
        return look

    def head(self, look: Look | None = None) -> State:
        """Return the last record, as of `look` or of now; `State(n=0)` if there is none.

        Raises `DamagedState` if the record was altered, or is gone.
        """
        look = look or self.look()
        last = max(look.numbers, default=0)
        evidence = filter(None, map(_EVIDENCE.fullmatch, look.names))
        known, name = max(((int(match[1] or match[2]), match[0]) for match in evidence), default=(0, ""))
        if known > last and known > max(self.numbers(), default=0):  # unless a live query has put it after the look
            msg = (
                f"{self._path(known)!r} is missing: {name!r} beside it shows that it existed; restore the ledger from a "
                "copy; nothing was changed"
            )
            raise DamagedState(msg)
        return self._whole(self.read(last, look)) if last else State(sink=self._sink)

    def _whole(self, state: State, tries: int = _TRIES) -> State:
        """Return the head with all of its open parts.

        A live query may have put a newer head meanwhile, and swept tables of this one; then that head is returned.
        """
        try:
            parts = self._parts.read(state.open)
        except DamagedState:
            last = max(self.numbers(), default=0)
            if last == state.n or not tries:
                raise
            return self._whole(self.read(last), tries - 1)
        return state if parts is state.open else replace(state, open=parts)

    def in_record(self, state: State, batch: int) -> State:
        """Return a decision with no more open parts than a record should hold; the others are staged in a table, which is durable."""
        parts = self._parts.in_record(state.open, state.n - 1, batch)
        return state if parts is state.open else replace(state, open=parts)

    def open_of(self, parts: OpenParts, writer: int) -> list[OpenPart]:
        """Return the open parts of one writer, and read no others from the tables; for tasks."""
        return self._parts.of_writer(parts, writer)

    def numbers(self) -> list[int]:
        """Return the numbers of the records there are, in order."""
        return self.look().numbers

    def read(self, n: int, look: Look | None = None) -> State:
        """Return record `n`, with the names of its files as of `look` or of now; `DamagedState` if it was altered."""
        path = self._path(n)
        state = _record(state_bytes(self._storage, path), path)
        if state.n != n or state.sink != self._sink:
            msg = f"{path!r} is record {state.n} of sink {state.sink!r}: it was moved here; restore the ledger from a copy"
            raise DamagedState(msg)
        if not state.finished and not state.grown:
            return state
        return _with_names(state, self.other_names.renamed(state, (look or self.look()).names))

    def put(self, state: State) -> None:
        """Put record `state.n`, which is the commit. If the number is taken, raises `AlreadyThere` and changes nothing."""
        failpoints.hit("sink.ledger.before-put")
        self._storage.put_if_absent(self._path(state.n), signed(_form(state)))
        failpoints.hit("sink.ledger.after-put")

    def persist(self, n: int) -> None:
        """Make record `n` durable: its put may have failed after the record became visible."""
        self._storage.persist(self._directory, [f"{n:012d}"])

    def note_published(self, n: int) -> None:
        """Note that all files of record `n` are visible. The note is not durable: at worst the record is published again."""
        try:
            self._storage.create(f"{self._path(n)}.published").close()
        except AlreadyThere:
            return

    def forget(self, look: Look) -> None:
        """Fold old records once there are enough for two folds; safe to repeat after a crash at any point."""
        for number in sorted(look.notes):
            if number < look.numbers[-1] - 1:
                self._storage.delete(f"{self._path(number)}.published")
        self.other_names.forget(look.names, look.folded)
        left = self._unfolded(look)
        if len(left) < len(look.numbers):
            # A crash came before they were deleted, perhaps even before the fold was durable.
            self.fold(look.folds[-1])
            self._storage.persist(self._directory, [look.folds[-1]])
            self._delete(look.numbers[: -len(left)])
        if look.within:
            self._folds.delete_within(look.folds, look.within)
        if len(left) >= 2 * FOLD:
            left = self._unfolded(self.look())  # publishing may have taken long, and a successor may have folded
        if len(left) >= 2 * FOLD:
            self._fold(left[:FOLD])  # the record after them stays
            self._folds.merge()

    @staticmethod
    def _unfolded(look: Look) -> list[int]:
        folded = look.folded
        return [n for n in look.numbers if n > folded]

    def history(self) -> Iterator[FinishedFile]:
        """Yield every file that the ledger ever declared finished, oldest first. Reads O(history).

        Raises `NotThere` if a live query folds or merges meanwhile what was listed: begin again.
        """
        look = self.look_at_history()
        for name in look.folds:
            yield from self.fold(name).files
        for number in self._unfolded(look):
            yield from self.read(number, look).finished

    def counts(self, state: State, look: Look) -> bool:
        """Tell whether a record is in the chain, by a look taken after its put; deletes the record if not (failure 3 above).

        A record that was folded in the meantime may have been in the chain. It does not count either: its driver was replaced
        long ago.
        """
        if look.numbers[-1:] == [state.n]:
            return True
        # `NotThere`: the next record is folded, and so is the record that was put, or the one that had its number.
        with suppress(NotThere):
            if self.read(state.n + 1).parent == state.write:
                return True
        self._storage.delete(self._path(state.n))
        return False

    def _fold(self, numbers: list[int]) -> None:
        look = self.look()
        states = [self.read(n, look) for n in numbers]
        files = tuple(file for state in states for file in state.finished)
        records = tuple(_folded_record(state) for state in states if state.events)
        self._folds.put(Fold(numbers[0], numbers[-1], files, states[0].events_before, records))
        failpoints.hit("sink.ledger.folded")
        self._delete(numbers)

    def fold(self, name: str) -> Fold:
        """Return the fold in a file; `DamagedState` if the file was altered."""
        return self._folds.read(name)

    def _delete(self, numbers: list[int]) -> None:
        """Delete records, the oldest first: `counts` relies on a record being deleted before its successor."""
        for n in numbers:
            self._storage.delete(self._path(n))

    def _path(self, n: int) -> str:
        return f"{self._directory}/{n:012d}"


def _with_names(state: State, renamed: Mapping[str, str]) -> State:
    """Return a record with other paths for some of its files (see `renamed`)."""
    if not renamed:
        return state
    finished = tuple(replace(file, path=renamed.get(file.path, file.path)) for file in state.finished)
    grown = tuple(replace(growth, path=renamed.get(growth.path, growth.path)) for growth in state.grown)
    lengths = {renamed.get(path, path): length for path, length in state.lengths.items()}
    return replace(state, finished=finished, grown=grown, lengths=lengths)


def _folded_record(state: State) -> FoldedRecord:
    return FoldedRecord(state.n, state.time_ns, len(state.finished), state.ready.marks)


def _form(state: State) -> dict[str, Any]:
    beside = {"account": state.account.to_json(), "aside": state.aside.to_json(), "ready": state.ready.to_json()}
    form = {name: value for name, value in _plain(state).items() if name not in beside}
    return form | open_form(state.open) | {name: value for name, value in beside.items() if value}


def _plain(value: Any) -> Any:  # noqa: ANN401 - the fields of a record are of many types
    """Return a field in its JSON form. `asdict` takes four times as long, because it also copies each number and text.

    Fields of later versions are left out while they are empty, so a sink that does not use them keeps the records it always had.
    """
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, FinishedFile):
        return finished_form(value)
    if isinstance(value, (State, Segment, Growth, LengthTable)):
        fields = ((name, item) for name, item in vars(value).items() if name not in _LATER or item not in _NOTHING)
        return {name: _plain(item) for name, item in fields}
    return value


@lru_cache(maxsize=_KEPT)
def _record(data: bytes, path: str) -> State:
    return _state(checked(data, path), path)


def _state(record: dict[str, Any], path: str) -> State:
    fields = {name: value for name, value in record.items() if name != "v"}
    try:
        fields["open"] = open_of({name: fields.pop(name) for name in OPEN_FIELDS if name in fields})
        fields["finished"] = tuple(map(finished_file, fields["finished"]))
        fields["tables"] = tuple(LengthTable(**table) for table in fields.get("tables", ()))
        fields |= _of_keys(fields)
        fields["grown"] = tuple(Growth(**(g | {"segments": segments_of(g)})) for g in fields["grown"])
        check_relative(_paths_in(fields))
        fields["account"] = Account.from_json(fields.get("account", {}))
        fields["aside"] = Tally.from_json(fields.get("aside", {}))
        fields["ready"] = Ready.from_json(fields.get("ready", {}))
        check_relative([*fields["ready"].waiting, *(mark.bucket for mark in fields["ready"].marks)])
        fields["batches"] = {query: (batch, mark) for query, (batch, mark) in fields["batches"].items()}
        return State(**fields)
    except (AttributeError, KeyError, TypeError, ValueError, TemplateError) as error:
        msg = f"{path!r} is not a ledger record: {error!r}; restore it from a copy"
        raise DamagedState(msg) from error


def _of_keys(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a record that are about batch writes."""
    return {
        "writing": {key: (int(n), str(driver)) for key, (n, driver) in fields.get("writing", {}).items()},
        "written": {text: [[int(a), int(b)] for a, b in spans] for text, spans in fields.get("written", {}).items()},
        "written_tables": tuple(LengthTable(**table) for table in fields.get("written_tables", ())),
    }


def _paths_in(fields: dict[str, Any]) -> Iterator[str]:
    """Yield the paths that a record names: of growing files and their lengths, and of staged files."""
    yield from (segment.file for growth in fields["grown"] for segment in growth.segments)
    yield from (growth.path for growth in fields["grown"])
    yield from fields.get("lengths", {})
    yield from (table.file for table in (*fields["tables"], *fields["written_tables"]))
