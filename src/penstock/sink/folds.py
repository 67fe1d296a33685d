"""Folds: what records of the past have finished, in one file for many records; the history of a ledger.

`ledger` says when records are folded, and has the failures and the rules. A fold never changes. What is in it follows from its first and
last record, whoever has put it. `MERGED` folds of one width become one of the next width, so there are as many files as the history has
`MERGED_BYTES`, and a few dozens of smaller ones.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock import failpoints
from penstock.errors import AlreadyThere, DamagedState
from penstock.query.records import checked_at, signed
from penstock.sink.openparts import FinishedFile, check_relative
from penstock.sink.ready import Mark, marks_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.storage import Storage

_log = logging.getLogger("penstock.sink")
MERGED = 16
MERGED_BYTES = 16 << 20  # of the folds that become one: who needs one file of it reads it whole
_FOLD = re.compile(r"(\d{12})-(\d{12})")
_LATER = frozenset({"name", "place"})


@dataclass(frozen=True)
class FoldedRecord:
    """What a fold keeps of a record that has events: its number, its time, how many files it has, and its marks of buckets of time."""

    n: int
    time_ns: int
    files: int
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class Fold:
    """Records `first` to `last` in one file: the files that they finished, in order.

    `before` is how many events the records before `first` have, and `records` says which files belong to which record. Both are
    `None` in a fold of an earlier version.
    """

    first: int
    last: int
    files: tuple[FinishedFile, ...]
    before: int | None = None
    records: tuple[FoldedRecord, ...] | None = None

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.first:012d}-{self.last:012d}"


class Folds:
    """The folds of one sink, in the directory of its ledger."""

    def __init__(self, storage: Storage, directory: str, sink: str) -> None:
        self._storage = storage
        self._directory = directory
        self._sink = sink

    def read(self, name: str) -> Fold:
        """Return the fold in a file; `DamagedState` if the file was altered."""
        path = f"{self._directory}/{name}"
        record = checked_at(self._storage, path)
        sink, first, last = (record.get(field) for field in ("sink", "first", "last"))
        if [sink, first, last] != [self._sink, *span_of(name)]:
            msg = f"{path!r} has records {first} to {last} of sink {sink!r}: it was moved here; restore the ledger from a copy"
            raise DamagedState(msg)
        try:
            return _fold_of(record)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            msg = f"{path!r} is not a fold of ledger records: {error!r}; restore it from a copy"
            raise DamagedState(msg) from error

    def put(self, fold: Fold) -> None:
        """Put a fold, durably."""
        try:
            self._storage.put_if_absent(f"{self._directory}/{fold.name}", signed({"sink": self._sink} | _form(fold)))
        except AlreadyThere:  # the driver that put it may have died or stalled before it was durable
            self._storage.persist(self._directory, [fold.name])

    def merge(self) -> None:
        """Merge folds as often as there are enough of one width. A damaged one is told, and ends no query, which does not need it."""
        try:
            while self._merged_once():
                pass
        except DamagedState as error:
            _log.warning("records of the past are not merged: %s", error.message)

    def _merged_once(self) -> bool:
        sizes = {entry.name: entry.size for entry in self._storage.list(self._directory)}
        for names in _runs(sizes):
            fold = _as_one([self.read(name) for name in names])
            if fold is not None:
                self.put(fold)
                failpoints.hit("sink.ledger.merged")
                self._delete(names)
                return True
        return False

    def delete_within(self, widest: list[str], within: list[str]) -> None:
        """Delete folds that were merged: a crash came before that, perhaps even before the merged ones were durable. `DamagedState`."""
        begins = [span_of(name)[0] for name in within]
        wider = [
            name
            for name in widest
            if any(first <= begin <= last for first, last in [span_of(name)] for begin in begins)
        ]
        for name in wider:
            self.read(name)
        self._storage.persist(self._directory, wider)
        self._delete(within)

    def _delete(self, names: list[str]) -> None:
        for name in names:
            self._storage.delete(f"{self._directory}/{name}")


def is_fold(name: str) -> bool:
    """Tell whether a name in a ledger's directory is that of a fold."""
    return _FOLD.fullmatch(name) is not None


def span_of(fold: str) -> tuple[int, int]:
    """Return the first and the last record of a fold, by its name."""
    first, last = fold.split("-")
    return int(first), int(last)


def divided(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the folds among some names, in order: those that count, and those that lie within another one."""
    widest: list[str] = []
    within: list[str] = []
    for name in sorted(filter(is_fold, names), key=lambda name: (span_of(name)[0], -span_of(name)[1])):
        covered = bool(widest) and span_of(name)[1] <= span_of(widest[-1])[1]
        (within if covered else widest).append(name)
    return widest, within


def _runs(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield the folds that may become one: `MERGED` neighbours of as many records each that are not too large; names and sizes in bytes.

    The first one does not depend on the folds behind it, so drivers that have seen more or fewer of these merge the same.
    """
    folds, at = divided(sizes)[0], 0
    while at + MERGED <= len(folds):
        names = folds[at : at + MERGED]
        first, last = span_of(names[0])
        width = last - first + 1
        alike = [(first + width * number, last + width * number) for number in range(MERGED)]
        if list(map(span_of, names)) == alike and sum(sizes[name] for name in names) <= MERGED_BYTES:
            yield names
            at += MERGED
        else:
            at += 1


def _as_one(folds: list[Fold]) -> Fold | None:
    """Return neighbours as one fold; `None` if some of them are of an earlier version, and others are not."""
    files = tuple(file for fold in folds for file in fold.files)
    records = [fold.records for fold in folds]
    first, last = folds[0].first, folds[-1].last
    if all(one is None for one in records):
        return Fold(first, last, files)
    if any(one is None for one in records):
        return None
    return Fold(first, last, files, folds[0].before, tuple(folded for one in records for folded in one or ()))


def _fold_of(record: dict[str, Any]) -> Fold:
    """Return the fold from its JSON form; a malformed form raises `KeyError`, `TypeError`, `ValueError` or `AttributeError`."""
    files = tuple(map(finished_file, record["finished"]))
    if "records" not in record:
        return Fold(record["first"], record["last"], files)
    records = tuple(
        FoldedRecord(int(n), int(time_ns), int(count), marks_of(*marks))
        for n, time_ns, count, *marks in record["records"]
    )
    check_relative(mark.bucket for folded in records for mark in folded.marks)
    if sum(folded.files for folded in records) != len(files):
        msg = f"{len(files)} files, and of its records {sum(folded.files for folded in records)}"
        raise ValueError(msg)
    return Fold(record["first"], record["last"], files, int(record["before"]), records)


def _form(fold: Fold) -> dict[str, Any]:
    form = {"first": fold.first, "last": fold.last, "finished": [finished_form(file) for file in fold.files]}
    if fold.records is None:
        return form
    return form | {"before": fold.before, "records": [_entry(folded) for folded in fold.records]}


def _entry(folded: FoldedRecord) -> list[Any]:
    marks = [[list(mark) for mark in folded.marks]] if folded.marks else []
    return [folded.n, folded.time_ns, folded.files, *marks]


def finished_form(file: FinishedFile) -> dict[str, Any]:
    """Return the JSON form of a finished file. Fields of later versions are left out while they are empty."""
    return {name: value for name, value in vars(file).items() if value or name not in _LATER}


def finished_file(form: dict[str, Any]) -> FinishedFile:
    """Return the finished file of a JSON form; a malformed form raises `TypeError`, `ValueError` or `TemplateError`."""
    file = FinishedFile(**form)
    check_relative((file.path, file.staged))
    if file.place and (not file.is_aside or _leads_elsewhere(file.place)):
        msg = f"the directory {file.place!r}"
        raise ValueError(msg)
    return file


def _leads_elsewhere(directory: str) -> bool:
    """Tell whether a path is not absolute, or has `..` in it; no record that we put has such a path."""
    return not (directory.startswith("/") or "://" in directory) or ".." in directory.split("/")
