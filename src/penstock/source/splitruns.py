"""Splits of files that are named by rows, read run by run: neighbours on one storage are parsed together.

`source.looking` makes these splits, as one column of JSON; the program that sends them on may keep the columns of the rows beside it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from penstock.formats.aside import Aside, about_file, path_bytes, path_of
from penstock.source import configured, partitions
from penstock.source.cursor import Split
from penstock.source.read import NUMBER, NamedRows, Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from penstock.formats.account import Account
    from penstock.options import Options

SPLIT = "split"


@dataclass(frozen=True)
class SplitReading:
    """How splits are read: `on` returns the reading for the root of a storage. `sets_aside`: what cannot be read goes to an `Aside`."""

    on: Callable[[str], Reading]
    options: Options
    schema: pa.Schema
    sets_aside: bool

    def records(self, batches: Iterable[pa.RecordBatch], account: Account) -> Iterator[pa.RecordBatch]:
        """Yield the records of splits after the columns beside these, and rows for what is set aside."""
        for run, kept in _all_runs(batches):
            yield from _SplitRun(self, run, kept).records(account)

    def rows(
        self, batches: Iterable[pa.RecordBatch], account: Account, aside: Aside | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records alone; what is set aside goes to `aside`."""
        for run, _ in _all_runs(batches):
            yield from _SplitRun(self, run, [], aside).records(account)

    def text(self, batches: Iterable[pa.RecordBatch], aside: Aside | None) -> Iterator[bytes]:
        """Yield the lines of splits as `Reading.text` does."""
        for run, _ in _all_runs(batches):
            yield from _SplitRun(self, run, [], aside).text()


def splits_of(rows: pa.RecordBatch) -> Iterator[Split]:
    """Yield the splits in rows of `looking.splits`."""
    return (split for split in splits_or_none(rows) if split is not None)


def splits_or_none(rows: pa.RecordBatch) -> Iterator[Split | None]:
    """Yield for each row of `looking.splits` its split, `None` for a row that has none: the file cannot be read."""
    for text in rows.column(0).to_pylist():
        form = json.loads(text)
        yield Split.from_json(form["split"]) if "split" in form else None


class _SplitRun:
    """Reads some splits of one storage, each of whose files was named by one row; `kept` are the columns of the rows of their batch."""

    def __init__(
        self, how: SplitReading, entries: list[_Entry], kept: list[pa.Array], aside: Aside | None = None
    ) -> None:
        self._how = how
        self._entries = entries
        self._kept = kept
        self._goes_on = aside is not None  # if so, what is set aside goes to another `Aside`, and is not a row here
        self._aside = Aside() if aside is None else aside
        self._splits = [entry.split for entry in entries if entry.split]
        self._numbers = {entry.split.file.path: entry.number for entry in entries if entry.split}

    def records(self, account: Account) -> Iterator[pa.RecordBatch]:
        """Yield the records of the splits, and rows for what is set aside."""
        yield from self._set_aside_before()
        if not self._splits:
            return
        reading = self._reading()
        owners = {path_bytes(f"{reading.root.rstrip('/')}/{path}"): number for path, number in self._numbers.items()}
        read = partitions.batches if self._how.options["partitionColumns"] == "auto" else Reading.batches
        for rows in read(reading, self._splits, account):
            yield from self._bad_rows(owners)
            if rows.num_rows:
                yield self._rows_with(rows)
        yield from self._bad_rows(owners)

    def text(self) -> Iterator[bytes]:
        """Yield the lines of the splits."""
        for _ in self._set_aside_before():
            pass
        if self._splits:
            yield from self._reading().text(self._splits)

    def _reading(self) -> Reading:
        begins = {entry.split.file.path: entry.begin for entry in self._entries if entry.split}
        return replace(
            self._how.on(self._entries[0].root or "/"),
            named=NamedRows(begins, self._numbers if self._kept else None),
            aside=self._aside if self._how.sets_aside else None,
        )

    def _set_aside_before(self) -> Iterator[pa.RecordBatch]:
        """Yield rows for what was set aside when rows were looked at."""
        for entry in self._entries:
            if entry.bad:
                path, size, modified_ns, reason, code = entry.bad
                line = about_file(path, offset=0, size=size, modified_ns=modified_ns, reason=reason, code=code)
                self._aside.take(line)
                yield from self._bad_rows({path_bytes(path): entry.number})

    def _rows_with(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return records after the columns of their rows."""
        numbers = rows.column(NUMBER) if self._kept else None
        columns = [column.take(numbers) for column in self._kept]
        for field in self._how.schema:
            is_read = field.name in rows.schema.names
            columns.append(rows.column(field.name) if is_read else pa.nulls(rows.num_rows, field.type))
        return pa.RecordBatch.from_arrays(columns, names=self._names())

    def _bad_rows(self, owners: Mapping[bytes, int]) -> Iterator[pa.RecordBatch]:
        """Yield a row for each record or file that is set aside: the columns of the row that named its file, and `badRecordColumn`."""
        if self._goes_on:
            return
        for lines in self._aside.handed_on():  # each batch of lines is about one file
            number = owners[path_of(lines.slice(0, 1).to_pylist()[0])]
            bad = configured.bad_column(lines)
            columns = [column.take(pa.array([number] * lines.num_rows, pa.int64())) for column in self._kept]
            name = self._how.options["badRecordColumn"]
            columns += [
                bad if field.name == name else pa.nulls(lines.num_rows, field.type) for field in self._how.schema
            ]
            yield pa.RecordBatch.from_arrays(columns, names=self._names())

    def _names(self) -> list[str]:
        return [*(f"c{place}" for place in range(len(self._kept))), *self._how.schema.names]


class _Entry(NamedTuple):
    """Row `number` of a batch of splits: the root of a storage and a split, or what is set aside."""

    number: int
    root: str | None
    begin: int
    split: Split | None
    bad: list[Any] | None


def _all_runs(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[list[_Entry], list[pa.Array]]]:
    """Yield the runs of batches of splits, with the columns of the rows of their batch."""
    for batch in batches:
        entries = [json.loads(text) for text in batch.column(0).to_pylist()]
        kept = batch.columns[1:]
        for run in _runs(entries, by_row=bool(kept)):
            yield run, kept


def _runs(entries: list[dict[str, Any]], *, by_row: bool) -> Iterator[list[_Entry]]:
    """Yield the entries that can be read together: on one storage, and each file named by one row, or by ranges that begin alike.

    A file that several rows name is in as many runs, each time beside all other files that fit: a run costs more than a small file.
    Entries that are set aside make a run of their own. Ranges of a file stay in order, and so do the splits of a run.
    """
    runs: dict[tuple[str | None, int], list[_Entry]] = {}
    known: dict[
        tuple[str | None, str], tuple[int, int]
    ] = {}  # for each file: the last run that has it, and its key there
    for number, form in enumerate(entries):
        split = Split.from_json(form["split"]) if "split" in form else None
        entry = _Entry(number, form.get("root"), form.get("begin", 0), split, form.get("bad"))
        place = 0
        if split:
            file, key = (entry.root, split.file.path), entry.number if by_row else entry.begin
            last, last_key = known.get(file, (0, key))
            place = last if last_key == key else last + 1
            known[file] = place, key
        runs.setdefault((entry.root, place), []).append(entry)
    yield from runs.values()
