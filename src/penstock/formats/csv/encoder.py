"""Writing rows as CSV, so that `decoder` and other readers read back the same values."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.errors import OptionError
from penstock.formats.csv.cut import QuoteScan
from penstock.formats.csv.decoder import check_types
from penstock.formats.lines import BOM
from penstock.formats.scalars import (
    codes,
    contents,
    digits,
    is_rendered,
    joined,
    joined_filled,
    render,
)
from penstock.formats.schema import check_intervals

if TYPE_CHECKING:
    import numpy.typing as npt

    from penstock.formats.format import WriteFormat

    _Values = tuple[pa.Array, npt.NDArray[np.bool_] | None]  # values of a column, and which of its fields are rescued
# The characters of values that are not strings.
_PLAIN = frozenset("+-.:0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_BLANK = r"^[\x00-\x20]*$"  # the characters that Java trims


class CsvEncoder:
    r"""Turns rows into records that end with `\n`: each row is one record, and every reader of this dialect finds its values.

    A field is quoted if it contains a separator, a quote, an escape or a line break, or if it would be null without
    quotes: an empty string, or a text equal to `null_value`. Some fields are quoted so that readers that guess do not
    misread them: a field that begins with `'`, a first field that begins with `#`, `comment` or a byte order mark, and
    a record's only field if it is null or white space, because its line would pass for blank.
    """

    def __init__(self, fmt: WriteFormat) -> None:
        check_types(fmt.schema, is_rendered)
        check_intervals(fmt.schema, fmt.name)
        if not fmt.csv.quote:
            msg = "quote='' is for reading: a value with a separator in it could not be written; leave quote out"
            raise OptionError(msg)
        self._dialect = dialect = fmt.csv
        self._special = "".join((dialect.quote, dialect.sep, "\r\n", dialect.escapes or ""))
        self._empty = self._empty_text()

    def encode(self, batch: pa.RecordBatch) -> pa.Buffer | bytes:
        """Return the records; see `Encoder`."""
        pieces: list[pa.Array | str] = []
        for place, (field, column) in enumerate(zip(batch.schema, batch.columns, strict=True)):
            pieces += [self._fields(column, field.name, first=place == 0), self._dialect.sep]
        pieces[-1] = "\n"
        if batch.num_columns == 1:
            text = pc.fill_null(pieces[0], "")
            pieces[0] = pc.if_else(pc.match_substring_regex(text, _BLANK), self._in_quotes(text), text)
        return contents(joined_filled(pieces))

    def ends(self, batch: pa.RecordBatch, data: pa.Buffer | bytes) -> npt.NDArray[np.int64]:  # noqa: ARG002 - the bytes say it
        """Return where each row ends; see `Encoder`."""
        return QuoteScan(replace(self._dialect, comment=None)).ends(bytes(data), 0)

    def readable(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that a reader gets from `encode(batch)`.

        They differ from `batch` if two values are written alike: by `empty_value`, and in a record of a single string.
        """
        alone = batch.num_columns == 1
        empty, null = self._reads_as(self._empty, alone=alone), self._reads_as(self._dialect.null_value, alone=alone)
        columns = list(batch.columns)
        for place, column in enumerate(columns):
            if types.is_string(column.type) and (empty, null) != ("", None):
                text = pc.if_else(pc.equal(column, ""), pa.scalar(empty, column.type), column)
                columns[place] = pc.if_else(column.is_null(), pa.scalar(null, column.type), text)
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def _reads_as(self, text: str, *, alone: bool) -> str | None:
        """Return how the text that stands for null or the empty string is read."""
        if text == self._dialect.quote * 2:
            return ""
        if alone and re.match(_BLANK, text):
            return text
        return None if text in {"", self._dialect.null_value} else self._dialect.empty_value

    def _empty_text(self) -> str:
        """Return how the empty string is written."""
        text, quotes = self._dialect.empty_value, self._dialect.quote * 2
        if text is None or text == quotes:
            return quotes
        if text in {"", self._dialect.null_value}:
            return text
        value = pa.array([text], pa.large_string())
        quoted = self._to_be_quoted(value, first=True)
        written: str = (value if quoted is None else pc.if_else(quoted, self._in_quotes(value), value))[0].as_py()
        return written

    def _fields(self, column: pa.Array, name: str, *, first: bool) -> pa.Array:
        """Return the fields of a column; a null stays null if no text stands for it."""
        text = digits(column) if types.is_decimal(column.type) else render(column, name)
        null = self._dialect.null_value
        if types.is_string(column.type) or not _PLAIN.isdisjoint(self._special):
            quoted = self._to_be_quoted(text, first=first)
            if null:
                quoted = _either(quoted, pc.equal(text, null))
            if quoted is not None:
                text = pc.replace_with_mask(text, quoted, self._in_quotes(text.filter(quoted)))
            if types.is_string(column.type):
                text = pc.if_else(pc.equal(text, ""), self._empty, text)
        elif null:
            text = pc.if_else(pc.equal(text, null), self._in_quotes(text), text)
        return pc.fill_null(text, null) if null else text

    def _to_be_quoted(self, text: pa.Array, *, first: bool) -> pa.Array | None:
        """Tell for each field whether it needs quotes; `None` if none does."""
        quoted = None
        if _has_any(codes(text), self._special):
            form = "".join(f"\\x{ord(special):02x}" for special in self._special)
            quoted = pc.match_substring_regex(text, f"[{form}]")
        begins = "'" + ("#" + (self._dialect.comment or "") + BOM.decode() if first else "")
        if _has_any(codes(text), begins) and _has_any(_first_codes(text), begins):
            quoted = _either(quoted, pc.match_substring_regex(text, f"^[{re.escape(begins)}]"))
        return quoted

    def _in_quotes(self, text: pa.Array) -> pa.Array:
        quote, escape = self._dialect.quote, self._dialect.escapes
        if escape is not None:
            text = pc.replace_substring(text, escape, escape * 2)
        return joined(quote, pc.replace_substring(text, quote, (escape or quote) + quote), quote)


def header_record(fmt: WriteFormat) -> bytes:
    """Return the names of the columns as a record."""
    names = fmt.schema.names
    strings = pa.schema([(str(place), pa.string()) for place in range(len(names))])
    plain = replace(fmt.csv, null_value="", empty_value=None)
    record = pa.RecordBatch.from_arrays([pa.array([name]) for name in names], schema=strings)
    return bytes(CsvEncoder(replace(fmt, schema=strings, csv=plain)).encode(record))


def _either(left: pa.Array | None, right: pa.Array) -> pa.Array:
    return right if left is None else pc.or_(left, right)


def _has_any(found: npt.NDArray[np.uint8], characters: str) -> bool:
    """Tell whether one of the bytes is the first byte of one of `characters`."""
    return any(np.any(found == character.encode()[0]) for character in characters)


def _first_codes(text: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the first byte of each value of large strings; for an empty value some other byte, or none."""
    offsets = np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text)]
    characters = np.frombuffer(text.buffers()[2] or b"", np.uint8)
    return characters[offsets[offsets < len(characters)]]
