"""Fitting columns and batches to a schema, as far as nothing is lost by that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.errors import OptionError
from penstock.formats.schema import is_bytes, is_list, is_text, nullable, spark_name

if TYPE_CHECKING:
    from collections.abc import Callable


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return `batch` as exactly `schema`: its columns by name, in its order, with its types.

    Only lossless steps are taken: another encoding of the same values, wider numbers, another time unit without a
    remainder. A timestamp without zone is taken as UTC. Other columns are left out. Raises `OptionError` for a column
    that is missing, is of another kind, or has a value (or a null) that does not fit; the message names it, with what
    was found and expected.
    """
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    if batch.schema.equals(schema):
        return relabelled(batch, schema)
    columns = [fitted(_column(batch, field), field) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class _Relabelled:
    """An array or batch that is passed to Arrow under another schema of the same layout, by Arrow's own protocol."""

    def __init__(self, data: pa.Array | pa.RecordBatch, schema: pa.DataType | pa.Schema) -> None:
        self._data = data
        self._schema = schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Return the schema, and the data as it is."""
        return self._schema.__arrow_c_schema__(), self._data.__arrow_c_array__()[1]


def relabelled(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows as `schema`, which may differ only in metadata and in nullability, at any depth.

    Nothing is copied or checked. Arrow's own way to do that examines each nested column, and refuses a null struct
    whose members may not be null, although such a struct has none.
    """
    return pa.record_batch(_Relabelled(batch, schema))


def recast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the column cast to this type; everything that may be null stays nullable. Raises Arrow's errors if a value does not fit.

    Bytes become text unchanged: `strings.checked` tells whether they are UTF-8, as for all text of a file.

    Arrow's cast of a nested column uses too much of a slice, and too few of the nulls in lists (of the null type). So
    it gets the values inside, and only those that change.
    """
    if column.type == kind:
        return column
    if not types.is_nested(column.type):
        return _recast_leaf(column, kind)
    batch = pa.RecordBatch.from_arrays([column], names=[""])
    copied = pa.BufferOutputStream()
    with pa.ipc.new_stream(copied, batch.schema) as stream:  # a batch alone would be written without its dictionaries
        stream.write_batch(batch)
    return _recast(pa.ipc.open_stream(copied.getvalue()).read_next_batch().column(0), kind)


def _recast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Do the work of `recast`, for a column with its own buffers."""
    column = _listed(column)
    before, length, buffers = column.type, len(column), column.buffers()
    if before == kind:
        return column
    if types.is_list(before) and types.is_list(kind):
        children = [_recast(column.values, kind.value_type)]
        return pa.Array.from_buffers(kind, length, buffers[:2], column.null_count, children=children)
    if types.is_map(before) and types.is_map(kind):
        members = [_recast(column.keys, kind.key_type), _recast(column.items, kind.item_type)]
        entry = pa.struct([kind.key_field, kind.item_field])
        entries = pa.Array.from_buffers(entry, len(members[0]), [None], 0, children=members)
        return pa.Array.from_buffers(kind, length, buffers[:2], column.null_count, children=[entries])
    if types.is_struct(before) and types.is_struct(kind) and [m.name for m in before] == [m.name for m in kind]:
        members = [_recast(column.field(index), member.type) for index, member in enumerate(kind)]
        return pa.Array.from_buffers(kind, length, buffers[:1], column.null_count, children=members)
    return _recast_leaf(column, kind)


def _recast_leaf(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column.view(kind) if types.is_binary(column.type) and types.is_string(kind) else column.cast(kind)


def _listed(column: pa.Array) -> pa.Array:
    """Return a column of list views as one of lists, any other unchanged. Arrow's own cast (26) leaves the last list empty."""
    if not (types.is_list_view(column.type) or types.is_large_list_view(column.type)):
        return column
    lengths = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    return pa.ListArray.from_arrays(offsets, column.flatten(), mask=column.is_null())


def _relabelled_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return pa.array(_Relabelled(column, kind)) if types.is_nested(kind) else column


def fitted(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return `column` as the type of `field`, or raise as `conform` does; members that a struct lacks are null if they may be."""
    if column.type != field.type:
        if not castable(column.type, field.type):
            raise OptionError(_mismatch(field, spark_name(column.type)))
        column = _cast(column, field)
    column = _relabelled_column(column, field.type)
    if has_null(column, field):
        msg = f"column {field.name!r} has nulls where the schema allows none; expected a value in every row"
        raise OptionError(msg)
    return column


def castable(found: pa.DataType, expected: pa.DataType) -> bool:
    """Tell whether values of one type may become another, if each is checked on the way and none changes its meaning."""
    if found == expected or types.is_null(found):
        return True
    if types.is_dictionary(found) or types.is_run_end_encoded(found):
        return castable(found.value_type, expected)
    shape = _shape(found)
    return shape == _shape(expected) and _CASTABLE[shape](found, expected)


def _shape(kind: pa.DataType) -> str:
    """Return what values of a type consist of: "list", "map", "struct", or "leaf" for a plain value."""
    if is_list(kind):
        return "list"
    if types.is_map(kind):
        return "map"
    return "struct" if types.is_struct(kind) else "leaf"


def has_null(column: pa.Array, field: pa.Field) -> bool:
    """Tell whether there is a null, at any depth, where `field` allows none."""
    if column.null_count and not field.nullable:
        return True
    if types.is_struct(field.type):
        parts = zip(column.flatten(), field.type, strict=True)
        return any(
            has_null(part.filter(column.is_valid()) if column.null_count else part, member) for part, member in parts
        )
    if types.is_map(field.type):
        entries = map_entries(column)
        return has_null(entries.flatten(), pa.field("", entries.type.value_type))
    return types.is_list(field.type) and has_null(column.flatten(), field.type.value_field)


def map_entries(column: pa.Array) -> pa.Array:
    """Return a map column as lists of structs of key and value."""
    entry = pa.struct([column.type.key_field, column.type.item_field])
    return pa.array(_Relabelled(column, pa.list_(pa.field("entries", entry, nullable=False))))  # the layout is the same


def _wider_float(found: pa.DataType, expected: pa.DataType) -> bool:
    return bool(types.is_integer(found) or (types.is_floating(found) and found.bit_width <= expected.bit_width))


def _same_zone(found: pa.DataType, expected: pa.DataType) -> bool:
    """Tell whether times fit: a local time may become UTC, as in Spark, but never an instant a local time."""
    return bool(types.is_timestamp(found) and (expected.tz is not None or found.tz is None))


# (a test of the expected type, a test of the found type that then fits)
_LOSSLESS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, pa.DataType], bool]], ...] = (
    (is_text, lambda found, _: is_text(found)),
    (is_bytes, lambda found, _: is_bytes(found) or is_text(found)),
    (types.is_integer, lambda found, _: bool(types.is_integer(found))),
    (types.is_floating, _wider_float),
    (types.is_decimal, lambda found, _: bool(types.is_integer(found) or types.is_decimal(found))),
    (types.is_date, lambda found, _: bool(types.is_date(found))),
    (types.is_time, lambda found, _: bool(types.is_time(found))),
    (types.is_timestamp, _same_zone),
    (types.is_duration, lambda found, _: bool(types.is_duration(found))),
)


def _castable_list(found: pa.DataType, expected: pa.DataType) -> bool:
    return castable(found.value_type, expected.value_type)


def _castable_map(found: pa.DataType, expected: pa.DataType) -> bool:
    return castable(found.key_type, expected.key_type) and castable(found.item_type, expected.item_type)


def _castable_struct(found: pa.DataType, expected: pa.DataType) -> bool:
    return all(
        castable(found.field(member.name).type, member.type)
        if found.get_field_index(member.name) >= 0
        else member.nullable
        for member in expected
    )


def _castable_leaf(found: pa.DataType, expected: pa.DataType) -> bool:
    return any(accepts(expected) and gives(found, expected) for accepts, gives in _LOSSLESS)


_CASTABLE = {"list": _castable_list, "map": _castable_map, "struct": _castable_struct, "leaf": _castable_leaf}


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    index = batch.schema.get_field_index(field.name)
    if index < 0:
        names = ", ".join(batch.schema.names) or "none"
        msg = (
            f"column {field.name!r} is missing or there twice: found {names}; expected one of {spark_name(field.type)}"
        )
        raise OptionError(msg)
    return batch.column(index)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return the column as the field's type, but with nulls anywhere; those are checked afterwards."""
    name = spark_name(column.type)
    if types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    target = nullable(field.type)
    column = _relabelled_column(column, nullable(column.type))
    try:
        return column if column.type == target else recast(recast(column, _roomy(target)), target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise OptionError(_mismatch(field, f"{name} ({error})")) from error


def _roomy(kind: pa.DataType) -> pa.DataType:
    """Return the type with room for every number in its decimals: Arrow wraps a decimal that overflows when it is rescaled."""
    if types.is_decimal(kind):
        return pa.decimal256(76, kind.scale)
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_roomy(kind.value_type)))
    if types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_roomy(kind.key_type)), kind.item_field.with_type(_roomy(kind.item_type))
        )
    if types.is_struct(kind):
        return pa.struct([member.with_type(_roomy(member.type)) for member in kind])
    return kind


def _mismatch(field: pa.Field, found: str) -> str:
    return f"column {field.name!r} does not fit: found {found}; expected {spark_name(field.type)}"
