r"""CSV as RFC 4180 has it: a quote inside quotes is doubled, and separators and line breaks inside quotes are data.

Where a record begins depends on whether a line break is inside quotes, which depends on all quotes before it. So a file
cannot be cut anywhere, as lines can; it can be cut behind a known record start, the *anchor*, by following the quotes
from there (`csv_cut`).

Following them needs no step per character. Look at runs of adjacent quotes. Inside quotes a run of even length is
escaped quotes and changes nothing, one of odd length closes. Outside, a run opens only at the start of a field, behind
a separator or a line break; there an odd run opens and an even one is an empty or self-contained value; anywhere else
quotes are literal (`5" pipe`). So an even run never changes the state, an odd one at the start of a field flips it, and
any other odd one leaves "outside" behind, whatever was before. The state behind each run is then the parity of the
flips since the last run of the third kind: two cumulative sums in numpy. These are the rules of Arrow's parser, which
reads the records afterwards. It takes text behind a closing quote (`"a"b`) for more of the field, others take it otherwise,
and RFC 4180 has none: such a record is refused.

Records end with `\n`, `\r\n` or a lone `\r` outside quotes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, types

from penstock.errors import BadRecord, OptionError
from penstock.formats.lines import BLOCK_BYTES, BOM, RECORD_BYTES_MAX, assembled, not_blank, reads, without_bom
from penstock.formats.malformed import MalformedError, excerpt, raise_bad_record
from penstock.formats.scalars import codes, contents, is_scalar, joined, joined_filled, parse, render
from penstock.formats.schema import spark_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt

    from penstock.formats.format import ReadFormat, WriteFormat

_QUOTE, _LF, _CR = 34, 10, 13
_SCAN_BYTES = 4 << 20
_ARROW_BLOCK_MAX = (1 << 31) - 1


def csv_cut(read: Callable[[int, int], bytes], size: int, anchor: int, target: int, *, sep: str = ",") -> int:
    """Return the first offset at or behind `target` where a record begins, or `size` if none does.

    `anchor` is where a record begins, at or in front of `target`; the file is read from there, in pieces. `read` is as
    in `lines.blocks`. Raises `FileChanged` when the file ends before `size`.
    """
    if target <= anchor:
        return anchor
    scan = _Scan(sep)
    at, held = _content_start(read, size, anchor), b""
    for chunk in reads(read, at, size, _SCAN_BYTES):
        data = held + chunk
        known = len(data) if at + len(data) == size else _decided(data)
        ends = scan.ends(data[:known], max(target - at, 0))
        if len(ends):
            return at + int(ends[0])
        at, held = at + known, data[known:]
    return size


def csv_blocks(
    read: Callable[[int, int], bytes],
    size: int,
    start: int,
    end: int,
    block_bytes: int = BLOCK_BYTES,
    *,
    sep: str = ",",
    record_bytes_max: int = RECORD_BYTES_MAX,
) -> Iterator[tuple[int, bytes]]:
    """Yield (file offset, bytes of whole records) of [start, end), both of which are where a record begins, or `size`.

    A byte order mark at 0 is left out. Blocks are of about `block_bytes`, larger for a longer record.

    Raises `BadRecord` with the offset of a record above `record_bytes_max`, or whose quote is never closed or is followed
    by text when it is, and `FileChanged` when the file ends before `end`.
    """
    begin = _content_start(read, size, start)
    chunks = reads(read, begin, min(end, size), block_bytes)
    yield from _blocks(chunks, begin, sep, block_bytes, record_bytes_max)


def csv_stream_blocks(
    chunks: Iterable[bytes],
    block_bytes: int = BLOCK_BYTES,
    *,
    sep: str = ",",
    record_bytes_max: int = RECORD_BYTES_MAX,
) -> Iterator[tuple[int, bytes]]:
    """Yield blocks as `csv_blocks` does, of a whole file that comes as a stream; offsets are in its content."""
    offset, rest = without_bom(chunks)
    yield from _blocks(rest, offset, sep, block_bytes, record_bytes_max)


def csv_after_header(read: Callable[[int, int], bytes], size: int, sep: str) -> int:
    """Return where the record behind the header begins; blank lines before the header are none."""
    begin, end = 0, csv_cut(read, size, 0, 1, sep=sep)
    while end < size and not read(begin, end - begin).strip(b"\r\n"):
        begin, end = end, csv_cut(read, size, end, end + 1, sep=sep)
    return end


def csv_without_header(found: Iterator[tuple[int, bytes]], sep: str) -> Iterator[tuple[int, bytes]]:
    """Yield blocks, as `csv_stream_blocks` does, without the header at the start of the first."""
    offset, data = next(found, (0, b""))
    start = csv_after_header(lambda at, length: data[at : at + length], len(data), sep)
    if start < len(data):
        yield offset + start, data[start:]
    yield from found


class CsvDecoder:
    """Records to rows, columns by position, as Spark reads with a schema.

    An empty field is null; an empty field in quotes is the empty string in a string column, null in another. Blank
    lines are no records. A record with another number of fields is refused.
    """

    def __init__(self, fmt: ReadFormat) -> None:
        _check(fmt.schema, fmt.sep)
        if fmt.line_sep not in {None, b"\n", b"\r\n", b"\r"}:
            msg = f"lineSep={fmt.line_sep!r} is not for csv, whose records end with \\n, \\r\\n or \\r; leave it out"
            raise OptionError(msg)
        self._schema = fmt.schema
        self._zone = fmt.zone
        self._sep = fmt.sep
        self._header = fmt.header
        self._parsing = csv.ParseOptions(delimiter=fmt.sep, newlines_in_values=True)
        names = [str(index) for index in range(len(fmt.schema))]  # names may be there twice; positions are not
        self._names = names
        self._converting = csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[""],
        )

    def decode(self, block: bytes, *, first: bool = False) -> pa.RecordBatch:
        """Return the records of `block`; see `Decoder`."""
        skipped = _header_end(block, self._sep) if first and self._header else 0
        records = block[skipped:]
        try:
            return self._decode(records)
        except MalformedError as error:
            raise_bad_record(block, skipped + _starts(records, self._sep), self._decode, error)

    def starts(self, block: bytes) -> npt.NDArray[np.int64]:
        """Return where each record begins; see `Decoder`."""
        return not_blank(block, _starts(block, self._sep), b"\r\n")

    def _decode(self, records: bytes) -> pa.RecordBatch:
        text = self._text(records)
        columns = [_column(values, field, self._zone) for values, field in zip(text, self._schema, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _text(self, records: bytes) -> list[pa.Array]:
        if not records.lstrip(b"\r\n"):
            return [pa.array([], pa.string())] * len(self._names)
        # Arrow takes a byte order mark off whatever it is given; a file has but one, and that is gone already.
        whole = b"\n" + records if records.startswith(BOM) else records
        size = min(len(whole), _ARROW_BLOCK_MAX)
        reading = csv.ReadOptions(use_threads=False, column_names=self._names, block_size=size)
        try:
            table = csv.read_csv(pa.BufferReader(whole), reading, self._parsing, self._converting)
        except pa.ArrowInvalid as error:
            raise MalformedError(self._expected(error)) from error
        text = [column.combine_chunks() for column in table.columns]
        if b'"' in records and self._runs_to_the_end(records, text[-1]):
            msg = "a closing quote before the end of the file"
            raise MalformedError(msg)
        return text

    def _runs_to_the_end(self, records: bytes, last: pa.Array) -> bool:
        """Tell whether the last quote is never closed, which Arrow lets pass: the last value is then all the rest."""
        ends = ("\n", "\r")
        suspicious = not records.endswith((b"\n", b"\r")) or str(last[-1].as_py() or "").endswith(ends)
        return suspicious and _Scan(self._sep).unclosed(records)

    def _expected(self, error: pa.ArrowInvalid) -> str:
        if "UTF8" in str(error):
            return "UTF-8"
        count = len(self._names)
        return f"{count} field{'s' if count != 1 else ''} ({', '.join(self._schema.names)}) separated by {self._sep!r}"


class CsvEncoder:
    r"""Rows to records ended by `\n`, without a header.

    A field is quoted when it holds a separator, a quote or a line break, and when it is an empty string, since an empty
    field is null. So is the null of a single column: its empty line would not be a record.
    """

    def __init__(self, fmt: WriteFormat) -> None:
        _check(fmt.schema, ",")
        self.extension = fmt.extension

    def encode(self, batch: pa.RecordBatch) -> pa.Buffer | bytes:
        """Return the records; see `Encoder`."""
        pieces: list[pa.Array | str] = []
        for field, column in zip(batch.schema, batch.columns, strict=True):
            pieces += [_field(column, field.name), ","]
        pieces[-1] = "\n"
        if batch.num_columns == 1:
            pieces[0] = pc.fill_null(pieces[0], '""')
        return contents(joined_filled(pieces))

    def ends(self, batch: pa.RecordBatch, data: pa.Buffer | bytes) -> npt.NDArray[np.int64]:  # noqa: ARG002 - the bytes say it
        """Return where each row ends; see `Encoder`."""
        return _Scan(",").ends(bytes(data), 0)


class _Scan:
    """Follows the quotes of records from one known record start, piece by piece."""

    def __init__(self, sep: str) -> None:
        self._starts_field = np.zeros(256, np.bool_)
        self._starts_field[[ord(sep), _LF, _CR]] = True
        self._inside = False
        self._before = _LF
        self.stray = -1  # where text is behind a closing quote in the data looked at last, the first time

    def ends(self, data: bytes, target: int) -> npt.NDArray[np.int64]:
        """Return the offsets in `data`, which follows what was given before, from `target` on at which records end.

        Where more follows, the last byte of `data` is no quote and no carriage return, which that might change.
        """
        at, behind = self._quotes(data)
        found = _line_ends(data, max(target - 1, 0))
        if len(at):
            inside = np.concatenate((np.array([self._inside]), behind))
            found = found[~inside[np.searchsorted(at, found - 1)]]
        elif self._inside:
            found = found[:0]
        self._inside = bool(behind[-1]) if len(at) else self._inside
        self._before = data[-1] if data else self._before
        return found

    def unclosed(self, data: bytes) -> bool:
        """Tell whether `data`, which is the rest, ends inside quotes."""
        _, behind = self._quotes(data)
        return bool(behind[-1]) if len(behind) else self._inside

    def _quotes(self, data: bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return where runs of an odd number of quotes begin, and whether what is behind each is inside quotes."""
        self.stray = -1
        if b'"' not in data:
            return np.zeros(0, np.int64), np.zeros(0, np.bool_)
        view = np.frombuffer(data, np.uint8)
        quotes = np.flatnonzero(view == _QUOTE)
        begins = np.flatnonzero(np.diff(quotes, prepend=-2) != 1)
        counts = np.diff(begins, append=len(quotes))
        runs, odd = quotes[begins], counts % 2 == 1
        before = view[runs - 1]
        if runs[0] == 0:
            before[0] = self._before
        opens = self._starts_field[before]
        behind = self._states(opens[odd])
        inside = np.concatenate((np.array([self._inside]), behind))[np.cumsum(odd) - odd]
        closed = (runs + counts)[np.where(inside, odd, opens & ~odd)]
        closed = closed[: np.searchsorted(closed, len(data))]
        strays = closed[~self._starts_field[view[closed]]]
        self.stray = int(strays[0]) if len(strays) else -1
        return runs[odd], behind

    def _states(self, flips: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return the state behind each odd run: the parity of the flips since the last run that is none."""
        flipped = np.cumsum(flips)
        outside_at = np.maximum.accumulate(np.where(flips, -1, np.arange(len(flips))))
        base = np.where(outside_at < 0, -int(self._inside), flipped[outside_at])
        inside: npt.NDArray[np.bool_] = np.equal((flipped - base) % 2, 1)
        return inside


class _Cutter:
    """Finds where the last known record begins in data that begins at one; `cut` and `scan` are of the last time."""

    def __init__(self, sep: str) -> None:
        self._sep = sep
        self.cut = 0
        self.scan = _Scan(sep)

    def __call__(self, data: bytes) -> int:
        self.scan = _Scan(self._sep)
        ends = self.scan.ends(data[: _decided(data)], 0)
        self.cut = int(ends[-1]) if len(ends) else 0
        return self.cut


def _blocks(
    chunks: Iterable[bytes], offset: int, sep: str, block_bytes: int, record_bytes_max: int
) -> Iterator[tuple[int, bytes]]:
    cutter = _Cutter(sep)
    for at, data in assembled(chunks, offset, cutter, block_bytes=block_bytes, record_bytes_max=record_bytes_max):
        last = len(data) != cutter.cut
        scan = _Scan(sep) if last else cutter.scan
        unclosed = last and scan.unclosed(data)
        if 0 <= scan.stray < len(data):
            starts = _starts(data, sep)
            begin = int(starts[np.searchsorted(starts, scan.stray) - 1])
            msg = f"found '{excerpt(data[begin:])}', expected a separator or a line break behind the closing quote"
            raise BadRecord(msg, offset=at + begin)
        if unclosed:
            begin = int(_starts(data, sep)[-1])
            msg = f"found '{excerpt(data[begin:])}', expected a closing quote before the end of the file"
            raise BadRecord(msg, offset=at + begin)
        cutter.cut = 0
        yield at, data


def _content_start(read: Callable[[int, int], bytes], size: int, start: int) -> int:
    """Return `start`, or where a byte order mark ends that begins there."""
    return len(BOM) if start == 0 and read(0, min(len(BOM), size)) == BOM else start


def _decided(data: bytes) -> int:
    """Return the length of `data` without quotes and carriage returns at its end, on which what follows decides."""
    return len(data.rstrip(b'"\r'))


def _line_ends(data: bytes, begin: int) -> npt.NDArray[np.int64]:
    r"""Return the offset behind each `\n`, `\r\n` and lone `\r` of `data` from `begin` on, quoted or not."""
    view = np.frombuffer(data, np.uint8)[begin:]
    hit = view == _LF
    if data.find(b"\r", begin) >= 0:
        lone = view == _CR
        lone[:-1] &= view[1:] != _LF
        hit |= lone
    return np.flatnonzero(hit).astype(np.int64) + begin + 1


def _starts(records: bytes, sep: str) -> npt.NDArray[np.int64]:
    ends = _Scan(sep).ends(records, 0)
    starts = np.concatenate((np.zeros(1, np.int64), ends))
    return starts[starts < len(records)] if records else starts


def _header_end(block: bytes, sep: str) -> int:
    """Return where the first record that is not a blank line ends."""
    blank = len(block) - len(block.lstrip(b"\r\n"))
    ends = _Scan(sep).ends(block[blank:], 0)
    return blank + int(ends[0]) if len(ends) else len(block)


def _column(text: pa.Array, field: pa.Field, zone: str) -> pa.Array:
    if not types.is_string(field.type):
        text = pc.if_else(pc.equal(text, ""), None, text)
        text = parse(text, field.type, field.name, zone)
    if text.null_count and not field.nullable:
        msg = f"a value in column {field.name!r}, which is not nullable"
        raise MalformedError(msg)
    return text


def _check(schema: pa.Schema, sep: str) -> None:
    if len(sep.encode()) != 1 or sep in {'"', "\n", "\r"}:
        msg = f"sep={sep!r} cannot separate the fields of csv: expected one ASCII character, no quote and no line break"
        raise OptionError(msg)
    if not len(schema):
        msg = "csv needs at least one column, found none"
        raise OptionError(msg)
    for field in schema:
        if not is_scalar(field.type) or types.is_binary(field.type):
            found = spark_name(field.type)
            msg = f"column {field.name!r} is {found}, which csv cannot hold; use json or parquet, or make it a string"
            raise OptionError(msg)


def _field(column: pa.Array, name: str) -> pa.Array:
    text = render(column, name)
    if not types.is_string(column.type):
        return text
    found = codes(text)
    if any(np.any(found == code) for code in (_QUOTE, _LF, _CR, ord(","))):
        special = pc.match_substring_regex(text, '[",\r\n]')
        quoted = joined('"', pc.replace_substring(text, '"', '""'), '"')
        text = pc.if_else(special, quoted, text)
    return pc.if_else(pc.equal(text, ""), '""', text)
