"""The decoder and encoder of text: a record is a line, and a row is its one string (or binary) column."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadRecord, OptionError
from penstock.formats.charsets import is_utf8
from penstock.formats.lines import record_starts, value_ends, with_line_feeds
from penstock.formats.malformed import Sifted, excerpt, nothing_bad, sifted, unreadable
from penstock.formats.scalars import contents
from penstock.formats.schema import spark_name

if TYPE_CHECKING:
    import numpy.typing as npt

    from penstock.formats.account import Account
    from penstock.formats.format import ReadFormat, WriteFormat

_JOINED_BYTES_MAX = 1 << 31  # the limit of 32-bit offsets; a longer batch is joined row by row


class TextDecoder:
    """Turns lines into rows: blank lines are rows, separators are not data. Only a binary column may hold bytes that are not UTF-8.

    The values of a binary column are the unchanged bytes of the lines, whatever their encoding; `fmt` then has the
    file's own separator and code units.
    """

    def __init__(self, fmt: ReadFormat, account: Account) -> None:  # noqa: ARG002 - a line has no other keys
        self._schema = fmt.schema
        self._sep = fmt.line_sep
        self._unit = fmt.unit
        self._type = _one_column(fmt.schema).type

    def decode(self, block: bytes) -> pa.RecordBatch:
        """Return the lines of `block`; see `Decoder`."""
        if self._unit != "u1":
            return pa.RecordBatch.from_arrays([self._cut(block)], schema=self._schema)
        data, sep = (with_line_feeds(block, None), b"\n") if self._sep is None else (block, self._sep)
        try:
            column = _split(data, sep).cast(self._type)
        except pa.ArrowInvalid as error:
            raise self._bad_record(block) from error
        return pa.RecordBatch.from_arrays([column], schema=self._schema)

    def sift(self, block: bytes) -> Sifted:
        """Return the lines of `block` that are text, and the others; see `Decoder`."""
        if self._type == pa.binary() or is_utf8(block):
            return nothing_bad(self.decode(block))
        return sifted(block, self.starts(block), self.decode, [[unreadable]])

    def starts(self, block: bytes) -> npt.NDArray[np.int64]:
        """Return where each line begins; see `Decoder`."""
        return record_starts(block, sep=self._sep, unit=self._unit)

    def _cut(self, block: bytes) -> pa.Array:
        """Return the lines of text in wide code units unchanged."""
        starts = self.starts(block)
        ends = value_ends(block, starts, sep=self._sep, unit=self._unit)
        steps = np.zeros(len(block) + 1, np.int8)
        steps[ends] += 1
        steps[np.append(starts[1:], len(block))[: len(starts)]] -= 1
        data = np.frombuffer(block, np.uint8)[np.cumsum(steps[:-1], dtype=np.int8) == 0]
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(ends - starts)))
        lines = pa.Array.from_buffers(pa.large_binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
        return lines.cast(self._type)

    def _bad_record(self, block: bytes) -> BadRecord:
        starts = record_starts(block, sep=self._sep)
        at = _invalid_utf8(block)
        begin = int(starts[np.searchsorted(starts, at, side="right") - 1])
        msg = f"found '{excerpt(block[at : at + 4])}' after '{excerpt(block[begin:at])}', expected UTF-8"
        return BadRecord(msg, offset=begin)


class TextEncoder:
    """Turns rows into lines, as Spark writes them: a null is an empty line, a value that contains a newline makes two lines."""

    def __init__(self, fmt: WriteFormat) -> None:
        _one_column(fmt.schema)

    def encode(self, batch: pa.RecordBatch) -> pa.Buffer | bytes:
        """Return the lines; see `Encoder`."""
        column = batch.column(0)
        if not len(column):
            return b""
        if column.nbytes + len(column) >= _JOINED_BYTES_MAX:
            kind = pa.large_string() if pa.types.is_string(column.type) else pa.large_binary()
            pieces = column.cast(kind), pa.scalar("\n", kind), pa.scalar("", kind)
            return contents(pc.binary_join_element_wise(*pieces, null_handling="replace", null_replacement=""))
        plain = pc.fill_null(column, pa.scalar("", column.type)) if column.null_count else column
        return contents(pc.binary_join(_as_one_list(plain), pa.scalar("\n", column.type)))

    def ends(self, batch: pa.RecordBatch, data: pa.Buffer | bytes) -> npt.NDArray[np.int64]:  # noqa: ARG002 - lengths are enough
        """Return where each row ends; see `Encoder`."""
        lengths = pc.fill_null(pc.binary_length(batch.column(0)), 0)
        return np.cumsum(lengths.to_numpy(zero_copy_only=False).astype(np.int64) + 1)


def _as_one_list(column: pa.Array) -> pa.Array:
    """Return values, and an empty one after them, as the one list of an array: when joined, each is ended. Only offsets are copied."""
    _, offsets, data = column.buffers()
    own = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    ended = pa.py_buffer(np.append(own, own[-1:]))
    values = pa.Array.from_buffers(column.type, len(column) + 1, [None, ended, data])
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


def _one_column(schema: pa.Schema) -> pa.Field:
    if len(schema) == 1 and schema.field(0).type in {pa.string(), pa.binary()}:
        return schema.field(0)
    columns = ", ".join(f"{field.name} {spark_name(field.type)}" for field in schema) or "no column"
    msg = (
        f"text needs one string column, found {columns}; join the columns into one, for example with to_json(struct(*)), or use a "
        "format that has columns"
    )
    raise OptionError(msg)


def _split(data: bytes, sep: bytes) -> pa.Array:
    """Return the records of `data`, each of which must be ended (not only separated) by `sep`."""
    bounds = pa.py_buffer(np.array([0, len(data)], np.int64))
    whole = pa.Array.from_buffers(pa.large_binary(), 1, [None, bounds, pa.py_buffer(data)])
    pieces = pc.split_pattern(whole, sep).flatten()
    return pieces.slice(0, len(pieces) - 1) if not pieces[-1].as_py() else pieces


def _invalid_utf8(data: bytes) -> int:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return 0
