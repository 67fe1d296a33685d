"""Data that no column has or can hold, as JSON in a column of its own: members of objects of text-like formats, whole columns of tables.

The decoders of text-like formats give the members of an object; the file's path is added where pieces know their files. A table has the
same columns in every row: a column that is not in the schema, or has a type that cannot be converted to the schema's type, is rescued
as a whole; the other columns are read as if nothing were rescued.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadFile, OptionError
from penstock.formats import columns
from penstock.formats.json.lines import json_text
from penstock.formats.malformed import excerpt
from penstock.formats.misfits import fragments
from penstock.formats.scalars import joined
from penstock.formats.schema import to_arrow, to_spark

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import numpy.typing as npt

    from penstock.formats import ReadFormat
    from penstock.formats.account import Account
    from penstock.formats.begins import Begins
    from penstock.formats.families import TableFormat
    from penstock.storage import ReadableFile

PATH = "_file_path"


def with_paths(members: pa.Array, paths: Sequence[str], origins: npt.NDArray[np.int64], account: Account) -> pa.Array:
    """Return JSON objects of the members of each row, with the path `paths[origins[row]]`; null where nothing is rescued."""
    account.rescued += len(members) - members.null_count
    texts = [
        json.dumps(path.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), ensure_ascii=False)
        for path in paths
    ]
    shown = pa.array(texts, pa.string()).take(pa.array(origins))
    return joined("{", members, f',"{PATH}":', shown, "}")


def rescuing(
    form: TableFormat,
    fmt: ReadFormat,
    file: ReadableFile,
    size: int,
    span: tuple[int, int],
    path: str,
    account: Account,
    *,
    begins: Begins | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table's file as `TableFormat.rows` does, under the rules of a format that `is_strict`. Raises `BadFile`."""
    data, stored = fmt.data_schema, form.stored_schema(file, size)
    others = _strangers(stored, data)
    _check_names(fmt, others, _strangers(data, stored))
    if fmt.rescued is None:
        yield from form.rows(fmt, file, size, span, account, begins)
        return
    misfits = {field.name: _stored_type(stored, field) for field in data if field.nullable and not _fits(stored, field)}
    taken = others if fmt.unknown == "rescue" else []
    wider = [field.with_type(misfits.get(field.name, field.type)) for field in data] + list(map(_shown, taken))
    lost = [*misfits, *(field.name for field in taken)]
    plain = replace(fmt, schema=pa.schema(wider), rescued=None, unknown="ignore", missing=None)
    for batch in form.rows(plain, file, size, span, account, begins):
        account.count((field.name, batch.num_rows) for field in taken)
        rest = fragments([_member(batch.column(batch.schema.get_field_index(name)), name) for name in lost])
        if rest is not None:
            rest = with_paths(rest.cast(pa.string()), [path], np.zeros(batch.num_rows, np.int64), account)
        yield fmt.with_rescued(_kept(batch, data, misfits), rest, batch.num_rows)


def _strangers(schema: pa.Schema, other: pa.Schema) -> list[pa.Field]:
    """Return the columns whose names the other schema does not have, in any case."""
    known = {name.lower() for name in other.names}
    return [field for field in schema if field.name.lower() not in known]


def _check_names(fmt: ReadFormat, others: list[pa.Field], missing: list[pa.Field]) -> None:
    """Raise `BadFile` for columns that the schema or the file lacks, if the options do not allow that."""
    if fmt.unknown == "fail" and others:
        _refuse("columns that the schema does not have", others[0].name, "unknownFields")
    if fmt.missing == "fail" and missing:
        _refuse("no column of the name", missing[0].name, "missingFields")


def _kept(batch: pa.RecordBatch, data: pa.Schema, misfits: Collection[str]) -> list[pa.Array]:
    """Return the columns of the data, null for a column that has another type in the file."""
    return [
        pa.nulls(batch.num_rows, field.type) if field.name in misfits else batch.column(place)
        for place, field in enumerate(data)
    ]


def _shown(field: pa.Field) -> pa.Field:
    """Return a column of a file with Spark's type, which JSON uses, too: text for categories, wider numbers for unsigned ones."""
    try:
        kind = to_arrow(to_spark(pa.schema([field]))).field(0).type
    except OptionError:  # Spark has no such type, for example for longer decimals
        kind = field.type
    return field.with_type(kind).with_nullable(True)  # noqa: FBT003 - Arrow's signature


def _member(column: pa.Array, name: str) -> pa.Array:
    return pc.if_else(
        column.is_valid(), joined(f"{json.dumps(name)}:", json_text(column, name).cast(pa.string())), None
    )


def _fits(stored: pa.Schema, field: pa.Field) -> bool:
    try:
        columns.found(stored, pa.schema([field]))
    except BadFile:
        return _stored_type(stored, field) is None
    return True


def _stored_type(stored: pa.Schema, field: pa.Field) -> pa.DataType | None:
    """Return the type that the column has in the file; `None` unless exactly one column has the name."""
    kinds = [_shown(other).type for other in stored if other.name.lower() == field.name.lower()]
    return kinds[0] if len(kinds) == 1 else None


def _refuse(what: str, name: str, option: str) -> None:
    msg = f"found {what}: {excerpt(name)!r} ({option}=fail)"
    raise BadFile(msg)
