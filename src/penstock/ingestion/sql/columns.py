"""Finds the columns of the rows by name, as Spark does, ignoring case."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.formats.schema import to_arrow, to_spark
from penstock.ingestion.sql.expression import Expression
from penstock.ingestion.sql.tree import refusal, refuse

if TYPE_CHECKING:
    from penstock.ingestion.sql.expression import Rows
    from penstock.ingestion.sql.tree import Name


def place_of(name: str, fields: list[pa.Field], at: int, of: str) -> int:
    """Return the index of the field with a name; `SqlError` if there is none, or several."""
    places = [place for place, field in enumerate(fields) if field.name.lower() == name.lower()]
    if len(places) == 1:
        return places[0]
    if places:
        refuse(
            at,
            f"{name!r} may be each of {', '.join(repr(fields[place].name) for place in places)}, which differ in case alone; rename one",
        )
    known = ", ".join(field.name for field in fields)
    raise refusal(at, f"{of} has no column {name!r}; it has {known or 'none'}")


def column(name: Name, schema: pa.Schema, alias: str) -> Expression:
    """Return a column, or a member of one, by its name."""
    parts = list(name.parts)
    of_table = len(parts) > 1 and parts[0].lower() in {"input", alias.lower()}
    if of_table and not any(field.name.lower() == parts[0].lower() for field in schema):
        parts.pop(0)
    at = place_of(parts[0], list(schema), name.at, "input")
    kind = schema.field(at).type
    members = []
    for part in parts[1:]:
        if not types.is_struct(kind):
            refuse(name.at, f"{'.'.join(parts)}: {part!r} would be a member, but what is before it is no struct")
        place = place_of(part, list(kind), name.at, ".".join(parts[:-1]))
        members.append(place)
        kind = kind.field(place).type
    plain = spoken(kind)

    def run(rows: Rows) -> pa.Array:
        values = rows.batch.column(at)
        if members:
            values = pc.struct_field(values, members)
        return rows.of(values if values.type == plain else values.cast(plain))

    return Expression(plain, run)


def spoken(kind: pa.DataType) -> pa.DataType:
    """Return the standard Arrow type for Spark's type of a column, whatever its encoding."""
    field = pa.schema([pa.field("x", kind)])
    return to_arrow(to_spark(field)).field(0).type


def without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with view columns of text and bytes as plain columns, because Arrow cannot filter views."""
    views = [
        place
        for place, kind in enumerate(batch.schema.types)
        if types.is_string_view(kind) or types.is_binary_view(kind)
    ]
    for place in views:
        field = batch.schema.field(place)
        values = batch.column(place).cast(spoken(field.type))
        batch = batch.set_column(place, field.with_type(values.type), values)
    return batch
