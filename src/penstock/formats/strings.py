r"""Strings that are not UTF-8, in columns of Arrow.

An Arrow string is UTF-8 by definition, but nothing checks it: Spark's strings are any bytes (its text reader takes
lines unchanged), and Parquet files contain what was put into them. From such a string comes a file that other readers
refuse completely or, in libraries that rely on UTF-8, anything at all. So strings are checked where they come in,
column by column, at several gigabytes a second.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.errors import OptionError
from penstock.formats.lines import line_feeds
from penstock.formats.malformed import excerpt
from penstock.formats.nested import parts_of, with_parts
from penstock.formats.scalars import contents

_ADVICE = (
    "set encodingErrors=replace to have U+FFFD in the place of what is not text, or make it a column of type binary"
)


def checked(batch: pa.RecordBatch, errors: str) -> pa.RecordBatch:
    """Return `batch` with only UTF-8 in its strings, at any depth.

    `errors="replace"` puts U+FFFD for each invalid piece of bytes, `fail` raises `OptionError` that names the column.
    """
    wrong = [index for index, column in enumerate(batch.columns) if not _is_valid(column)]
    if not wrong:
        return batch
    if errors == "fail":
        index = wrong[0]
        msg = f"column {batch.schema.names[index]!r}: found '{_shown(batch.column(index))}', expected UTF-8; {_ADVICE}"
        raise OptionError(msg)
    columns = [_replaced(column) if index in wrong else column for index, column in enumerate(batch.columns)]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _is_valid(column: pa.Array) -> bool:
    """Tell whether all strings of a column are UTF-8."""
    if not _has_strings(column.type):
        return True
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        if "UTF8" not in str(error):
            raise
        # Bytes below a null are not a value.
        return types.is_nested(column.type) and all(map(_is_valid, parts_of(column)))
    return True


def _has_strings(kind: pa.DataType) -> bool:
    if types.is_nested(kind):
        return any(_has_strings(kind.field(index).type) for index in range(kind.num_fields))
    return bool(types.is_string(kind))


def _shown(column: pa.Array) -> str:
    """Return the first invalid string of a column, or for a nested column the first row that contains one, for a message."""
    first = next(one for row in range(len(column)) if not _is_valid(one := column.slice(row, 1)))
    while types.is_nested(first.type):
        first = next(part for part in parts_of(first) if not _is_valid(part))
    return next(excerpt(value) for value in first.cast(pa.binary()).to_pylist() if value and not _is_utf8(value))


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _replaced(column: pa.Array) -> pa.Array:
    """Return a column with U+FFFD for invalid bytes in its strings."""
    kind = column.type
    if not _has_strings(kind):
        return column
    if types.is_string(kind):
        return _replaced_text(column)
    return with_parts(column, list(map(_replaced, parts_of(column))))


def _replaced_text(text: pa.Array) -> pa.Array:
    """Return the strings, decoded all at once: each ends with a line feed, which invalid bytes can neither swallow nor produce."""
    raw = contents(_ended(text.cast(pa.binary()).fill_null(b"")))
    sound = bytes(raw).decode("utf-8", "replace").encode()
    ends = np.cumsum(pc.binary_length(text).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64) + 1) - 1
    which = np.searchsorted(line_feeds(raw), ends)  # which of the line feeds end a string; others are inside strings
    ends = line_feeds(sound)[which]
    data = np.delete(np.frombuffer(sound, np.uint8), ends)
    offsets = np.concatenate((np.zeros(1, np.int64), ends - np.arange(len(ends))))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    strings = pa.Array.from_buffers(pa.large_string(), len(text), buffers).cast(pa.string())
    return pc.if_else(text.is_valid(), strings, None) if text.null_count else strings


def _ended(values: pa.Array) -> pa.Array:
    kind = pa.large_binary()
    return pc.binary_join_element_wise(values.cast(kind), pa.scalar(b"\n", kind), pa.scalar(b"", kind))
