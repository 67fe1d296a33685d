r"""Turning CSV into rows: RFC 4180, or what a `Dialect` says. `cut` finds where records begin; `encoder` writes them.

Arrow reads the records. It knows one dialect well: doubled quotes. Its own escapes would also act outside quotes, and
remove the escape before any character, which no writer of this dialect intends. So in a block with escaped quotes these
are doubled first, which costs one pass; and comments, which Arrow does not know, are removed.

*Quotes distinguish a value from a mark for null.* An empty field and `null_value` are null; in quotes both are values.
Nothing else could distinguish the empty string from null, or the text NULL from null. (Spark compares the text in the
quotes, and reads both as null.) In a column of another type than string, a text that stands for null without quotes,
and that is not a value of the type, is null in quotes, too.

*What a value means depends only on the bytes of its record.* Arrow is always given a line end after the last record:
without one it takes an empty last field for a quoted one if the field before it is quoted.
"""

from __future__ import annotations

import difflib
import json
from collections import Counter
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, types

from penstock.errors import BadFile, OptionError
from penstock.formats.charsets import is_utf8
from penstock.formats.csv.cut import has_strays, record_starts, row_starts, with_doubled_quotes, without_comments
from penstock.formats.json.lines import json_text
from penstock.formats.lines import BOM
from penstock.formats.malformed import (
    MalformedError,
    Sifted,
    excerpt,
    nothing_bad,
    of_records,
    raise_bad_record,
    sifted,
    unreadable,
)
from penstock.formats.misfits import PROBE_ROWS, fitting, fragments, misfits_of, nulled, without_refused
from penstock.formats.scalars import (
    is_scalar,
    joined,
    parse,
)
from penstock.formats.schema import spark_name
from penstock.formats.trials import refused

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from penstock.formats.account import Account
    from penstock.formats.format import Dialect, ReadFormat

    _Values = tuple[pa.Array, npt.NDArray[np.bool_] | None]  # values of a column, and which of its fields are rescued

_ARROW_BLOCK_MAX = (1 << 31) - 1
_HEADER_BYTES_KEPT = 64 << 10
_COLUMNS_MAX = 20_480  # Spark's `maxColumns`
_NAMES_COMPARED = 1000  # of a header's names, with a name that it lacks


class CsvDecoder:
    """Turns records into rows: columns by position, as Spark reads with a schema, or by the names of a header (`fmt.columns`).

    An empty field is null; an empty field in quotes is the empty string in a string column, null in another. Blank
    lines are not records. A record with another number of fields is refused. Raises `BadFile` for a header that lacks a
    column of the schema.
    """

    def __init__(self, fmt: ReadFormat, account: Account) -> None:
        check_types(fmt.data_schema, is_scalar)
        if fmt.line_sep not in {None, b"\n", b"\r\n", b"\r"}:
            msg = f"lineSep={fmt.line_sep!r} is not for csv, whose records end with \\n, \\r\\n or \\r; leave it out"
            raise OptionError(msg)
        self._fmt = fmt
        self._schema = taken_columns(fmt)
        self._times = fmt.times
        self._account = account
        self._dialect = fmt.csv
        fields = self._schema.names if fmt.columns is None else fmt.columns
        count = f"{len(fields)} field{'s' * (len(fields) != 1)}"
        self._expected = f"{count} ({excerpt(', '.join(fields))}) separated by {fmt.csv.sep!r}"
        self._names = [str(place) for place in range(len(fields))]  # names may be there twice; positions are not
        places = list(range(len(fields)) if fmt.columns is None else header_places(self._schema.names, fmt.columns))
        others = sorted(set(range(len(fields))) - set(places))
        self._misfits: set[str] = set()  # columns for which an earlier block had values that do not fit
        self._unread = [fields[place] for place in others]
        rescued = others if fmt.rescued is not None and fmt.unknown == "rescue" else []
        taken = [self._names[place] for place in (*places, *rescued)]
        self._parsing = _parsing(fmt.csv)
        self._converting = csv.ConvertOptions(
            column_types=dict.fromkeys(taken, pa.string()),
            include_columns=taken,
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=list({"", fmt.csv.null_value}),
        )

    def decode(self, block: bytes) -> pa.RecordBatch:
        """Return the records of `block`; see `Decoder`."""
        try:
            batch = self._decode(block)
        except MalformedError as error:
            raise_bad_record(block, record_starts(block, self._dialect), self._decode, error)
        if self._unread:
            self._account.count((name, batch.num_rows) for name in self._unread)
        return batch

    def sift(self, block: bytes) -> Sifted:
        """Return the records of `block` that have the fields of the schema, and the others; see `Decoder`."""
        found = self._sift(block)
        return found.until(record_starts(block, self._dialect)) if len(found.starts) else found

    def _sift(self, block: bytes) -> Sifted:
        """Return the same, but each record with the blank lines and comments after it.

        While Arrow reads, it reports which records have another number of fields. For the rest, each column reports
        which of its values do not fit. Arrow is given no record that is not text: it would fail to report one, and
        print that on stderr.
        """
        if not is_utf8(block) and (by_text := self._sift_by_text(block)) is not None:
            return by_text
        try:
            texts, short = self._fields(block)
        except MalformedError:  # for a reason other than a record's number of fields
            return sifted(block, self.starts(block), self._decode)
        reasons = dict.fromkeys(short, self._expected)
        kept = np.delete(np.arange((len(texts[0]) if texts else 0) + len(short)), short)
        values: list[_Values] = []
        for text, field in zip(texts, self._schema, strict=False):
            column, bad = self._fitting(text, field)
            values.append(column)
            for place, error in bad:
                reasons.setdefault(int(kept[place]), str(error))
        rows = self._rows(texts, values)
        if len(reasons) > len(short):
            rows = rows.filter(pa.array(~np.isin(kept, list(reasons))))
        if self._unread:
            self._account.count((name, rows.num_rows) for name in self._unread)
        if not reasons:
            return nothing_bad(rows)
        starts = self.starts(block)
        places = sorted(reasons)
        ends = np.append(starts[1:], len(block))
        return Sifted(rows, starts[places], ends[places], [f"expected {reasons[place]}" for place in places])

    def _sift_by_text(self, block: bytes) -> Sifted | None:
        """Do the same for a block in which some text that is read is not UTF-8, `None` if all is; other columns are not checked."""
        starts = self.starts(block)
        others, _ = unreadable(block, starts)
        bounds = [*starts.tolist(), len(block)]
        records = [block[bounds[place] : bounds[place + 1]] for place in others.tolist()]
        bad = others[[place for place, _ in refused(len(records), lambda low, high: self._no_text(records[low:high]))]]
        if not len(bad):
            return None
        ends = np.append(starts[1:], len(block))
        left = np.delete(np.arange(len(starts)), bad)
        rest = self._sift(of_records(block, starts[left], ends[left]))
        others = left[np.searchsorted(np.cumsum((ends - starts)[left]), rest.starts, side="right")]
        places = np.concatenate((bad, others)).astype(np.int64)
        order = np.argsort(places)
        reasons = ["expected UTF-8"] * len(bad) + rest.reasons
        chosen = places[order]
        return Sifted(rest.rows, starts[chosen], ends[chosen], [reasons[place] for place in order.tolist()])

    def _no_text(self, records: list[bytes]) -> MalformedError | None:
        """Return the error for records, if one has the wrong number of fields, or is not UTF-8 in a field that is read."""
        try:
            self._text(b"".join(records))
        except MalformedError as error:
            return error
        return None

    def _fitting(self, text: pa.Array, field: pa.Field) -> tuple[_Values, list[tuple[int, MalformedError]]]:
        """Return the column with null in the place of values that do not fit, and where those are that are not rescued."""
        if self._fmt.rescued is not None or field.name not in self._misfits:
            try:
                self._rescuing(text.slice(0, PROBE_ROWS), field)  # finding one bad value in all of them takes longer
                return self._rescuing(text, field), []
            except MalformedError:
                self._misfits.add(field.name)
        text = self._with_nulls(text, field)
        if self._fmt.rescued is None:
            column, bad = without_refused(text, field, self._times, self._values)
            return (column, None), bad
        bad = misfits_of(text, field, self._times, partial(self._rescuing, field=field), lambda values: values)
        rest = nulled(text, [place for place, _ in bad])
        return self._rescuing(rest, field.with_nullable(nullable=True)), bad

    def starts(self, block: bytes) -> npt.NDArray[np.int64]:
        """Return where each record begins; see `Decoder`."""
        return row_starts(block, self._dialect)

    def _decode(self, block: bytes) -> pa.RecordBatch:
        texts = self._text(block)
        return self._rows(
            texts, [self._rescuing(text, field) for text, field in zip(texts, self._schema, strict=False)]
        )

    def _rows(self, texts: list[pa.Array], values: list[_Values]) -> pa.RecordBatch:
        """Return the rows whose fields are `texts`, with what is rescued of them; columns that a header lacks are null."""
        columns = [column for column, _ in values]
        if not self._fmt.is_strict and self._schema is self._fmt.schema:
            return pa.RecordBatch.from_arrays(columns, schema=self._schema)
        lost = [
            _named_text(field.name, pc.if_else(pa.array(bad), text, None))
            for text, field, (_, bad) in zip(texts, self._schema, values, strict=False)
            if bad is not None
        ]
        lost += [_named_text(name, text) for name, text in zip(self._unread, texts[len(self._schema) :], strict=False)]
        rows = len(texts[0]) if texts else 0
        rest = fragments(lost)
        return self._fmt.with_rescued(
            self._with_missing(columns, rows), None if rest is None else rest.cast(pa.string()), rows
        )

    def _with_missing(self, columns: list[pa.Array], rows: int) -> list[pa.Array]:
        """Return all columns of the data; those that the header lacks are null."""
        read = iter(columns)
        left = Counter(self._schema.names)
        whole = []
        for field in self._fmt.data_schema:
            is_there = left[field.name] > 0
            left[field.name] -= 1
            whole.append(next(read) if is_there else pa.nulls(rows, field.type))
        return whole

    def _rescuing(self, text: pa.Array, field: pa.Field) -> _Values:
        """Return the values of a column, and which fields do not fit and are rescued. Raises `MalformedError` for others."""
        if self._fmt.rescued is None:
            return self.column(text, field), None
        loose = field.with_nullable(nullable=True)
        column, bad = self._loosely(text, loose)
        if column.null_count and not field.nullable:
            msg = f"a value in column {field.name!r}, which is not nullable (NOT NULL in the schema)"
            raise MalformedError(msg)
        return column, bad if bad.any() else None

    def _loosely(self, text: pa.Array, field: pa.Field) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
        """Return the values of a column, null for fields that do not fit, and which fields these are."""
        if field.name not in self._misfits:
            try:
                return self.column(text, field), np.zeros(len(text), np.bool_)
            except MalformedError:
                self._misfits.add(field.name)
        values = self._with_nulls(text, field)
        return fitting(values, field.type, self._times, lambda fields: self.column(fields, field), likely=True)

    def _fields(self, block: bytes) -> tuple[list[pa.Array], list[int]]:
        """Return the text of the records that have as many fields as there are columns, and which records do not."""
        short: list[int] = []

        def skip(row: csv.InvalidRow) -> str:
            short.append(row.number - 1)
            return "skip"

        return self._text(block, _parsing(self._dialect, skip)), short

    def _text(self, block: bytes, parsing: csv.ParseOptions | None = None) -> list[pa.Array]:
        records = _plain(block, self._dialect)
        if not records:
            return [pa.array([], pa.string())] * len(self._converting.include_columns)
        size = min(len(records), _ARROW_BLOCK_MAX)
        reading = csv.ReadOptions(use_threads=False, column_names=self._names, block_size=size)
        try:
            table = csv.read_csv(pa.BufferReader(records), reading, parsing or self._parsing, self._converting)
        except pa.ArrowInvalid as error:
            raise MalformedError("UTF-8" if "UTF8" in str(error) else self._expected) from error
        return [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in table.columns]

    def column(self, text: pa.Array, field: pa.Field) -> pa.Array:
        """Return the values that the fields of a column stand for. Raises `MalformedError`."""
        return self._values(self._with_nulls(text, field), field)

    def _values(self, text: pa.Array, field: pa.Field) -> pa.Array:
        """Return the values of fields, null for fields that are already null. Raises `MalformedError`."""
        if not types.is_string(field.type):
            text = parse(text, field.type, field.name, self._times)
        if text.null_count and not field.nullable:
            msg = f"a value in column {field.name!r}, which is not nullable (NOT NULL in the schema)"
            raise MalformedError(msg)
        return text

    def _with_nulls(self, text: pa.Array, field: pa.Field) -> pa.Array:
        """Return the fields of a column with null for marks of null; any other text that is not a value of the type does not fit."""
        null, empty = self._dialect.null_value, self._dialect.empty_value
        if empty is not None:  # a field that is empty and not null was quoted
            text = pc.if_else(pc.equal(text, ""), pa.scalar(None if empty == null else empty, pa.string()), text)
        if not types.is_string(field.type):
            text = pc.if_else(pc.equal(text, ""), None, text)
            if null and not _is_value(null, field.type):
                text = pc.if_else(pc.equal(text, null), None, text)
        return text


def header_names(header: bytes, dialect: Dialect) -> tuple[str, ...]:
    """Return the fields of a header. Raises `BadFile` if they are not UTF-8, or more than Spark takes."""
    if header.count(dialect.sep.encode()) >= _COLUMNS_MAX:
        msg = f"found a header of more than {_COLUMNS_MAX} fields, expected fewer; is sep={dialect.sep!r} what the file has?"
        raise BadFile(msg)
    read = _names if len(header) <= _HEADER_BYTES_KEPT else _names.__wrapped__
    return read(header, dialect)


@lru_cache(maxsize=64)
def _names(header: bytes, dialect: Dialect) -> tuple[str, ...]:
    if has_strays(header, dialect):  # Arrow would take them for more of the name
        msg = (
            f"found the header '{excerpt(header)}', expected a separator or a line break after each closing quote, as in the "
            "records; double the quotes that are part of a name"
        )
        raise BadFile(msg)
    record = _plain(header, dialect)
    reading = csv.ReadOptions(use_threads=False, block_size=min(len(record), _ARROW_BLOCK_MAX))
    try:
        return tuple(csv.read_csv(pa.BufferReader(record), reading, _parsing(dialect)).column_names)
    except (UnicodeDecodeError, pa.ArrowInvalid) as error:
        msg = f"found the header '{excerpt(header)}', expected names in UTF-8, with every quote closed"
        raise BadFile(msg) from error


def taken_columns(fmt: ReadFormat) -> pa.Schema:
    """Return the columns that are read from the fields of a record: with a header, and `missing` null, those that the header has."""
    if fmt.columns is None or fmt.missing != "null":
        return fmt.schema if fmt.rescued is None else fmt.data_schema
    there = {name.casefold() for name in fmt.columns}
    return pa.schema([field for field in fmt.data_schema if field.name.casefold() in there or not field.nullable])


def check_header(fmt: ReadFormat, header: tuple[str, ...]) -> None:
    """Raise `BadFile` if the header lacks a required column, has one too often, or has an unknown name that is not allowed."""
    places = header_places(taken_columns(replace(fmt, columns=header)).names, header)
    if fmt.unknown == "fail" and len(places) < len(header):
        others = [name for place, name in enumerate(header) if place not in set(places)]
        names = ", ".join(map(repr, others[:_NAMES_COMPARED]))
        msg = f"the header has {excerpt(names)}, which no column has (unknownFields=fail); name the columns, or use ignore"
        raise BadFile(msg)


def _named_text(name: str, text: pa.Array) -> pa.Array:
    """Return members of a JSON object, null for texts that are null."""
    return joined(f"{json.dumps(name)}:", json_text(text, name).cast(pa.binary()))


def header_places(columns: list[str], header: tuple[str, ...]) -> list[int]:
    """Return where in `header` each of `columns` is: by its name, else by a name that differs only in case.

    Columns of the same name are in the order of the header. Raises `BadFile` if one is missing, or occurs more often
    than asked for.
    """
    asked, places = Counter(columns), _places_by_name(columns, header)
    _check_places(asked, places, header)
    next_place = {name: iter(places[name]) for name in asked}
    return [next(next_place[name]) for name in columns]


def _places_by_name(columns: list[str], header: tuple[str, ...]) -> dict[str, list[int]]:
    """Return where in `header` each of the names is; a missing name may be there in another case."""
    places: dict[str, list[int]] = {name: [] for name in columns}
    others: list[int] = []
    for place, name in enumerate(header):
        places.get(name, others).append(place)
    folded = {name.casefold(): of_name for name, of_name in places.items() if not of_name}
    for place in others if folded else ():
        folded.get(header[place].casefold(), []).append(place)
    return places


def _check_places(asked: Counter[str], places: dict[str, list[int]], header: tuple[str, ...]) -> None:
    """Raise `BadFile` unless the header has each name as often as asked for."""
    missing = [name for name in asked if len(places[name]) < asked[name]]
    if missing:
        near = difflib.get_close_matches(missing[0], header[:_NAMES_COMPARED], n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        names, known = (", ".join(map(repr, some[:_NAMES_COMPARED])) for some in (missing, header))
        msg = (
            f"the header has no column {excerpt(names)}{hint}, found {excerpt(known)}; name the columns of the schema as the "
            "header does"
        )
        raise BadFile(msg)
    several = next((name for name in asked if len(places[name]) > asked[name]), None)
    if several is not None:
        msg = f"the header has {len(places[several])} columns {several!r}, expected {asked[several]}"
        raise BadFile(msg)


def _parsing(dialect: Dialect, skip: Callable[[csv.InvalidRow], str] | None = None) -> csv.ParseOptions:
    """Return how Arrow parses; `skip` is called for each record with another number of fields."""
    quote = dialect.quote or False
    values = {"delimiter": dialect.sep, "quote_char": quote, "newlines_in_values": bool(quote)}
    return csv.ParseOptions(**values, invalid_row_handler=skip)


def _plain(block: bytes, dialect: Dialect) -> bytes:
    """Return the records of `block` in the form that Arrow reads, each with its line end; nothing if there is none."""
    records = with_doubled_quotes(without_comments(block, dialect), dialect)
    if not records.lstrip(b"\r\n"):
        return b""
    if records.startswith(BOM):  # Arrow removes a mark from any input; the file's only one is already removed
        records = b"\n" + records
    return records if records.endswith((b"\n", b"\r")) else records + b"\n"


def _is_value(text: str, kind: pa.DataType) -> bool:
    """Tell whether `text` is a value of type `kind`."""
    try:
        parse(pa.array([text]), kind, "")
    except MalformedError:
        return False
    return True


def check_types(schema: pa.Schema, is_known: Callable[[pa.DataType], bool]) -> None:
    """Raise `OptionError` unless there is a column, and csv can hold every column."""
    if not len(schema):
        msg = "csv needs at least one column, found none"
        raise OptionError(msg)
    for field in schema:
        if not is_known(field.type) or types.is_binary(field.type):
            as_string = (
                "to_json" if types.is_nested(field.type) else "base64" if types.is_binary(field.type) else "cast"
            )
            msg = (
                f"column {field.name!r} is {spark_name(field.type)}, which csv cannot hold; make it a string, for example with "
                f"{as_string}, or use a format that has such columns"
            )
            raise OptionError(msg)
