"""A trial of a schema before rows come: an empty file with it is staged, written and read again.

Rows wait as Arrow, which can hold more than Parquet (a struct without members, a decimal with a negative scale). So a
query would run, batch by batch, until a file is due, and could then neither write it nor go on. Arrow knows better than
any list here which types these are, so the trial takes the same steps as a part.

Rows with such a schema that an earlier version has staged can still be written if a user asks for it: the columns that
the format cannot hold become their JSON text, which loses no value.
"""

from __future__ import annotations

from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import OptionError, PenstockError
from penstock.formats.format import ReadFormat, WriteFormat
from penstock.formats.schema import check_distinct, spark_name
from penstock.formats.staged import arrow_batches, arrow_stream

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.formats.families import TableFormat

_REFUSALS = (pa.ArrowException, OSError, ValueError, PenstockError)


def check_table(form: TableFormat, schema: pa.Schema, codec: str) -> None:
    """Raise `OptionError`, which names the column, unless rows of this schema can be staged and written in the format."""
    check_distinct(schema)
    if not schema.names:  # Parquet would hold no rows, and Arrow's ORC writer would end the process
        msg = f"{form.name} needs at least one column, found none; select one"
        raise OptionError(msg)
    reason = _refusal(form, schema, codec)
    if reason is None:
        return
    if columns := refused(form, schema, codec):
        name = columns[0]
        reason = _refusal(form, _alone(schema, name), codec)
        msg = (
            f"column {name!r} is {spark_name(schema.field(name).type)}, which {form.name} cannot hold ({reason}); leave it out, or "
            "make it a string, for example with to_json"
        )
        raise OptionError(msg)
    msg = f"{form.name} cannot hold these columns together: {reason}"
    raise OptionError(msg)


@lru_cache(maxsize=16)
def refused(form: TableFormat, schema: pa.Schema, codec: str) -> tuple[str, ...]:
    """Return the columns that the format cannot hold, each tried alone."""
    if _refusal(form, schema, codec) is None:
        return ()
    return tuple(name for name in schema.names if _refusal(form, _alone(schema, name), codec))


def as_text(batch: pa.RecordBatch, columns: Collection[str]) -> pa.RecordBatch:
    """Return the rows with these columns as their JSON. `OptionError` if one has a type that JSON cannot hold either."""
    if not columns:
        return batch
    from penstock.formats.json.lines import json_text  # few need it, but every writer loads this module

    arrays = [
        json_text(column, name) if name in columns else column
        for name, column in zip(batch.schema.names, batch, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=text_schema(batch.schema, columns))


def text_schema(schema: pa.Schema, columns: Collection[str]) -> pa.Schema:
    """Return the schema of the result of `as_text` for such rows."""
    return pa.schema([pa.field(f.name, pa.string(), nullable=f.nullable) if f.name in columns else f for f in schema])


def _alone(schema: pa.Schema, name: str) -> pa.Schema:
    return pa.schema([field for field in schema if field.name == name])


class _InMemory:
    """The bytes of a file, with the interface from which a table is read."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]


def _refusal(form: TableFormat, schema: pa.Schema, codec: str) -> str | None:
    """Return why rows of this schema cannot become a file, `None` if they can.

    A table of a thousand numbers and strings is not tried at each batch: the format has these types itself.
    """
    if all(form.is_plain(field) for field in schema):
        return None
    nothing = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
    file = BytesIO()
    try:
        list(arrow_batches(arrow_stream([nothing], schema)))
        writer = form.writer(file, WriteFormat(form.name, schema, codec), group_bytes=1 << 20, ratio=1.0)
        writer.write(nothing)
        writer.close()
        size = file.tell()
        readable = _InMemory(file.getvalue())
        written = form.written_schema(readable, size) or schema
        list(form.rows(ReadFormat(form.name, written), readable, size, (0, size)))
    except _REFUSALS as error:
        return str(getattr(error, "message", error))
    return None if written.equals(schema) else f"it would be read as {written}"
