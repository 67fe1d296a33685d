"""Schemas: Spark's JSON form, the Arrow schema Spark demands of a Python data source, and batches that fit one.

The mapping is PySpark's own (`pyspark.sql.pandas.types`, version 4.3), written down here because this layer knows no
Spark. A test compares the two for every type.

Some types say more in Spark than Arrow can: how long a `char` is, which parts an interval has, how many digits a `time`, how
text is collated. A field carries that beside its metadata, for whoever writes for Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from numbers import Number
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

UTC_MICROS = pa.timestamp("us", tz="UTC")
_METADATA = b"SPARK::metadata::json"
_EXACT = b"penstock.spark"  # Spark's type of a field whose Arrow type says less, as JSON
_COLLATIONS = "__COLLATIONS"  # in Spark's JSON the metadata of a field also carries its collations
_DECIMAL_DIGITS_MAX = 38
_WHOLE = frozenset({int, type(None)})  # types of values of which an integer column cuts nothing off

_BY_NAME = {
    "void": pa.null(),
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal": pa.decimal128(10, 0),
    "date": pa.date32(),
    "timestamp": UTC_MICROS,
    "timestamp_ntz": pa.timestamp("us"),
}
_BY_PATTERN = (
    (re.compile(r"(?:var)?char\(\s*\d+\s*\)|string\s+collate\s+\w+"), pa.string()),
    (re.compile(r"interval (?:day|hour|minute|second)(?: to (?:hour|minute|second))?"), pa.duration("us")),
    (re.compile(r"time\(\s*\d+\s*\)"), pa.time64("ns")),
)
_SHORT_INTERVAL = re.compile(r'"(interval (?!day to second")[^"]*)"')
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")


def to_arrow(spark_json: str) -> pa.Schema:
    """Return the Arrow schema that Spark demands of data with the schema `spark_json` (`StructType.json()`).

    Raises `OptionError` that names the column for a type which has no Arrow form or none that files can hold: variant,
    geometry, geography, calendar and year-month intervals.
    """
    return pa.schema([_to_field(field, ()) for field in json.loads(spark_json)["fields"]])


def to_spark(schema: pa.Schema) -> str:
    """Return Spark's JSON of `schema`, as `StructType.json()` writes it.

    Wider and other encodings of the same values are named by what Spark has for them: large and view types,
    dictionaries, unsigned integers (one size up), any time unit. Raises `OptionError` that names the column where Spark
    has nothing.
    """
    fields = [_from_field(field, (field.name,)) for field in schema]
    return json.dumps({"fields": fields, "type": "struct"}, separators=(",", ":"), sort_keys=True)


def spark_type(field: pa.Field) -> Any:  # noqa: ANN401 - JSON: a name, or what a nested type is made of
    """Return the type of one field as Spark's JSON has it. Raises `OptionError`."""
    return _from_field(field, (field.name,))["type"]


def check_distinct(fields: Iterable[pa.Field], path: str = "") -> None:
    """Raise `OptionError` if a name is there twice among columns, or members of a struct, at any depth: readers take one."""
    seen: set[str] = set()
    for field in fields:
        name = f"{path}{field.name}"
        if name in seen:
            msg = f"column {name!r} is there twice, and most readers would see one of them; give the columns names of their own"
            raise OptionError(msg)
        seen.add(name)
        for members in _structs(field.type):
            check_distinct(members, f"{name}.")


def _structs(kind: pa.DataType) -> Iterator[pa.StructType]:
    """Yield the structs that values of this type consist of, not those inside of these."""
    if types.is_struct(kind):
        yield kind
    elif types.is_map(kind):
        yield from _structs(kind.key_type)
        yield from _structs(kind.item_type)
    elif types.is_list(kind):
        yield from _structs(kind.value_type)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return `batch` as exactly `schema`: its columns by name, in its order, with its types.

    Only lossless steps are taken: another encoding of the same values, wider numbers, another time unit without a
    remainder. A timestamp without zone is taken as UTC. Other columns are left out. Raises `OptionError` that names the
    column, with what was found and expected, for one that is missing, is of another kind, or has a value (or a null)
    that does not fit.
    """
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    if batch.schema.equals(schema):
        return relabelled(batch, schema)
    columns = [fitted(_column(batch, field), field) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class _Relabelled:
    """An array or batch that is handed to Arrow under another schema of the same layout, by Arrow's own protocol."""

    def __init__(self, data: pa.Array | pa.RecordBatch, schema: pa.DataType | pa.Schema) -> None:
        self._data = data
        self._schema = schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Return the schema, and the data as it is."""
        return self._schema.__arrow_c_schema__(), self._data.__arrow_c_array__()[1]


def relabelled(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows as `schema`, which differs in metadata and in what may be null, at any depth, and in nothing else.

    Nothing is copied or checked. Arrow's own way to do that looks at each nested column, and refuses a null struct whose
    members may not be null, though such a struct has none.
    """
    return pa.record_batch(_Relabelled(batch, schema))


def recast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the column cast to this type, in which all may be null that is; Arrow's errors where a value does not fit.

    Arrow's cast of a nested column takes too much of slices, and too little of nulls in lists (of the type that has nothing
    else). So it gets the values inside, and only those that change.
    """
    if column.type == kind:
        return column
    if not types.is_nested(column.type):
        return column.cast(kind)
    batch = pa.RecordBatch.from_arrays([column], names=[""])
    copied = pa.BufferOutputStream()
    with pa.ipc.new_stream(copied, batch.schema) as stream:  # a batch by itself would be without its dictionaries
        stream.write_batch(batch)
    return _recast(pa.ipc.open_stream(copied.getvalue()).read_next_batch().column(0), kind)


def _recast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """As `recast`, for a column with buffers of its own."""
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
    return column.cast(kind)


def _listed(column: pa.Array) -> pa.Array:
    """Return a column of views of lists as one of lists, any other as it is. Arrow's own cast (26) leaves the last of them empty."""
    if not (types.is_list_view(column.type) or types.is_large_list_view(column.type)):
        return column
    lengths = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    return pa.ListArray.from_arrays(offsets, column.flatten(), mask=column.is_null())


def _relabelled_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return pa.array(_Relabelled(column, kind)) if types.is_nested(kind) else column


def fitted(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return `column` as the type of `field`, or raise as `conform`; members a struct lacks are null if they may be."""
    if column.type != field.type:
        if not castable(column.type, field.type):
            raise OptionError(_mismatch(field, spark_name(column.type)))
        column = _cast(column, field)
    column = _relabelled_column(column, field.type)
    if has_null(column, field):
        msg = f"column {field.name!r} has nulls where the schema allows none; expected a value in every row"
        raise OptionError(msg)
    return column


def of_values(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Return Python values as a column of the type of `field`; `OptionError` if one does not fit, none is changed to fit."""
    if _may_lose(field.type) and not (types.is_integer(field.type) and _WHOLE.issuperset(map(type, values))):
        for value in values:
            lost = _lost(value, field.type)
            if lost:
                msg = f"column {field.name!r}: expected {spark_name(field.type)}, found {lost}"
                raise OptionError(msg)
    try:
        column = pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        msg = f"column {field.name!r}: expected {spark_name(field.type)}: {error}"
        raise OptionError(msg) from error
    if has_null(column, field):
        msg = f"column {field.name!r} has a null, but its schema says NOT NULL"
        raise OptionError(msg)
    return column


def _may_lose(kind: pa.DataType) -> bool:
    """Tell whether Arrow would cut something off of values that become this type."""
    if types.is_map(kind):
        return _may_lose(kind.key_type) or _may_lose(kind.item_type)
    if types.is_list(kind):
        return _may_lose(kind.value_type)
    return bool(types.is_integer(kind) or types.is_date(kind) or types.is_nested(kind))


def _lost(value: Any, kind: pa.DataType) -> str | None:  # noqa: ANN401 - the user's
    """Return what Arrow would cut off of a value, without a word; None if nothing."""
    if types.is_integer(kind):
        cut = isinstance(value, Number) and not isinstance(value, complex) and value % 1 != 0  # type: ignore[operator]  # all others have it
        return "a fraction" if cut else None
    if types.is_date(kind):
        return "a time of day" if isinstance(value, datetime) else None
    if types.is_struct(kind):
        return _odd_fields(value, kind) or _lost_inside(_members_of(value, kind))
    if types.is_map(kind):
        return _lost_inside(_entries_of(value, kind))
    return _lost_inside(_elements_of(value, kind)) if types.is_list(kind) else None


def _lost_inside(inner: Iterable[tuple[Any, pa.DataType]]) -> str | None:
    return next(filter(None, (_lost(value, kind) for value, kind in inner)), None)


def _odd_fields(value: Any, kind: pa.StructType) -> str | None:  # noqa: ANN401 - the user's
    """Return what is wrong with the names of a value's fields, if anything is that Arrow would not say."""
    expected = [field.name for field in kind]
    if isinstance(value, Mapping):
        unknown = value.keys() - set(expected)
        return f"the unknown field {min(map(str, unknown))!r}" if unknown else None
    names = names_of(value) if isinstance(value, tuple) else expected
    if names != expected and sorted(names) == sorted(expected):
        return f"its fields in another order ({', '.join(names)})"
    return None


def _members_of(value: Any, kind: pa.StructType) -> Iterator[tuple[Any, pa.DataType]]:  # noqa: ANN401 - the user's
    """Return the values of a struct's fields with their types; none of what is no struct, which Arrow says."""
    if isinstance(value, Mapping):
        return ((value.get(field.name), field.type) for field in kind)
    return zip(value if isinstance(value, tuple) else (), (field.type for field in kind), strict=False)


def _entries_of(value: Any, kind: pa.MapType) -> Iterator[tuple[Any, pa.DataType]]:  # noqa: ANN401 - the user's
    """Return the keys and items of a map with their types; none of what is no map, which Arrow says."""
    pairs = value.items() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return (part for key, item in pairs for part in ((key, kind.key_type), (item, kind.item_type)))


def _elements_of(value: Any, kind: pa.ListType) -> Iterator[tuple[Any, pa.DataType]]:  # noqa: ANN401 - the user's
    """Return the elements of a list with their type; none of what is no list, which Arrow says."""
    return ((item, kind.value_type) for item in (value if isinstance(value, Iterable) else ()))


def names_of(value: tuple[Any, ...]) -> list[str]:
    """Return the names that a tuple's values have, if it is a Spark Row or a named tuple."""
    names: Any = getattr(value, "__fields__", None) or getattr(value, "_fields", ())
    return list(names)


@lru_cache(maxsize=256)  # a message about each of many values names the type of one column
def spark_name(kind: pa.DataType) -> str:
    """Return what users call a type: Spark's name for it (`bigint`, `array<string>`), Arrow's where Spark has none."""
    if types.is_struct(kind):
        return f"struct<{', '.join(f'{member.name}: {spark_name(member.type)}' for member in kind)}>"
    if types.is_map(kind):
        return f"map<{spark_name(kind.key_type)}, {spark_name(kind.item_type)}>"
    if _is_list(kind):
        return f"array<{spark_name(kind.value_type)}>"
    name = _leaf_name(kind)
    return _DDL_NAMES.get(name, name) if name else str(kind)


def castable(found: pa.DataType, expected: pa.DataType) -> bool:
    """Tell whether values of one type may be taken for another, each checked on the way, none changed in meaning."""
    if found == expected or types.is_null(found):
        return True
    if types.is_dictionary(found) or types.is_run_end_encoded(found):
        return castable(found.value_type, expected)
    shape = _shape(found)
    return shape == _shape(expected) and _CASTABLE[shape](found, expected)


def _shape(kind: pa.DataType) -> str:
    """Return what values of a type are made of: "list", "map", "struct", or "leaf" of nothing else."""
    if _is_list(kind):
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


def _to_field(field: dict[str, Any], path: tuple[str, ...]) -> pa.Field:
    name, given = field["name"], field.get("metadata", {})
    member, carried = _member(name, field["type"], (*path, name), nullable=field["nullable"]), {}
    if metadata := {key: value for key, value in given.items() if key != _COLLATIONS}:
        carried[_METADATA] = json.dumps(metadata).encode()
    exact, collations = _plain(field["type"]), given.get(_COLLATIONS, {})
    if collations or _from_type(member.type, (*path, name)) != exact:
        carried[_EXACT] = json.dumps({"name": name, "type": exact, "collations": collations}, sort_keys=True).encode()
    return member.with_metadata(carried or None)


def _member(name: str, kind: str | dict[str, Any], path: tuple[str, ...], *, nullable: bool) -> pa.Field:
    """Return the field of this type; `path` says where it is, for messages."""
    if kind == "void" and not nullable:  # what Spark makes of `array()` and `map()`
        msg = (
            f"column {'.'.join(path)!r} is of type void NOT NULL, or holds it, which has no values: cast it to one that has, "
            "such as array<string> or map<string, string>"
        )
        raise OptionError(msg)
    return pa.field(name, _to_type(kind, path), nullable=nullable)


def _plain(kind: Any) -> Any:  # noqa: ANN401 - Spark's JSON of a type
    """Return a type without user-defined ones: what they are stored as. Those name classes, which whoever reads would load."""
    if not isinstance(kind, dict):
        return "decimal(10,0)" if kind == "decimal" else kind
    if kind["type"] == "udt":
        return _plain(kind["sqlType"])
    inner = {key: _plain(kind[key]) for key in ("elementType", "keyType", "valueType") if key in kind}
    if "fields" in kind:
        members = [_from_field(_to_field(field, ()), ()) for field in kind["fields"]]
        inner["fields"] = members
    return kind | inner


def _to_type(kind: str | dict[str, Any], path: tuple[str, ...]) -> pa.DataType:
    if isinstance(kind, str):
        return _to_leaf(kind, path)
    if kind["type"] == "struct":
        return pa.struct([_to_field(field, path) for field in kind["fields"]])
    if kind["type"] == "array":
        element = _member("element", kind["elementType"], path, nullable=kind["containsNull"])
        return pa.list_(element)
    if kind["type"] == "map":
        key = _member("key", kind["keyType"], path, nullable=False)
        return pa.map_(key, _member("value", kind["valueType"], path, nullable=kind["valueContainsNull"]))
    if kind["type"] == "udt":
        return _to_type(kind["sqlType"], path)
    raise OptionError(_unsupported(path, str(kind["type"])))


def _to_leaf(name: str, path: tuple[str, ...]) -> pa.DataType:
    if name in _BY_NAME:
        return _BY_NAME[name]
    if match := _DECIMAL.fullmatch(name):
        return pa.decimal128(int(match[1]), int(match[2]))
    for pattern, kind in _BY_PATTERN:
        if pattern.fullmatch(name):
            return kind
    raise OptionError(_unsupported(path, name))


def _unsupported(path: tuple[str, ...], kind: str) -> str:
    return (
        f"column {'.'.join(path)!r} has type {kind}, which files cannot hold: leave it out, or make it a string (the schema of a source "
        "says string, a query that is written has a cast, or to_json)"
    )


def _from_field(field: pa.Field, path: tuple[str, ...]) -> dict[str, Any]:
    carried = (field.metadata or {}).get(_METADATA)
    metadata = json.loads(carried) if carried else {}
    exact = _exact(field)
    if exact is None:
        kind = _from_type(field.type, path)
    else:
        kind, collations = exact["type"], exact["collations"]
        metadata |= {_COLLATIONS: collations} if collations else {}
    return {"metadata": metadata, "name": field.name, "nullable": field.nullable, "type": kind}


def check_intervals(schema: pa.Schema, form: str) -> None:
    """Raise `OptionError` for intervals, at any depth, that are none of days to seconds: `form` has no text of theirs."""
    for field in schema:
        exact = _exact(field)
        if exact is not None and (part := _SHORT_INTERVAL.search(json.dumps(exact["type"]))):
            msg = (
                f"column {field.name!r} is or holds {part[1]}, which {form} cannot hold; make it an interval day to second or a string, "
                "with cast"
            )
            raise OptionError(msg)


def _exact(field: pa.Field) -> dict[str, Any] | None:
    """Return what a field carries of its type in Spark; `None` if nothing, or if it was made another field since."""
    carried = (field.metadata or {}).get(_EXACT)
    if carried is None:
        return None
    exact: dict[str, Any] = json.loads(carried)
    same = exact["name"] == field.name and _to_type(exact["type"], ()) == field.type
    return exact if same else None


def _from_type(kind: pa.DataType, path: tuple[str, ...]) -> str | dict[str, Any]:
    if types.is_struct(kind):
        return {"fields": [_from_field(field, (*path, field.name)) for field in kind], "type": "struct"}
    if types.is_map(kind):
        parts = {"keyType": _from_type(kind.key_type, path), "valueType": _from_type(kind.item_type, path)}
        return {**parts, "type": "map", "valueContainsNull": kind.item_field.nullable}
    if _is_list(kind):
        return {
            "containsNull": kind.value_field.nullable,
            "elementType": _from_type(kind.value_type, path),
            "type": "array",
        }
    name = _leaf_name(kind)
    if name is None:
        msg = f"column {'.'.join(path)!r} has the Arrow type {kind}, for which Spark has none; cast it in the transform"
        raise OptionError(msg)
    return name


def _is_list(kind: pa.DataType) -> bool:
    checks = (
        types.is_list,
        types.is_large_list,
        types.is_fixed_size_list,
        types.is_list_view,
        types.is_large_list_view,
    )
    return any(check(kind) for check in checks)


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    checks = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)
    return any(check(kind) for check in checks)


_LEAVES: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (types.is_null, "void"),
    (types.is_boolean, "boolean"),
    (types.is_int8, "byte"),
    (lambda kind: types.is_int16(kind) or types.is_uint8(kind), "short"),
    (lambda kind: types.is_int32(kind) or types.is_uint16(kind), "integer"),
    (lambda kind: types.is_int64(kind) or types.is_uint32(kind), "long"),
    (types.is_uint64, "decimal(20,0)"),
    (lambda kind: types.is_float16(kind) or types.is_float32(kind), "float"),
    (types.is_float64, "double"),
    (_is_text, "string"),
    (_is_bytes, "binary"),
    (types.is_date, "date"),
    (lambda kind: types.is_time(kind) and kind.unit == "ns", "time(9)"),
    (types.is_time, "time(6)"),
    (lambda kind: types.is_timestamp(kind) and kind.tz is None, "timestamp_ntz"),
    (types.is_timestamp, "timestamp"),
    (types.is_duration, "interval day to second"),
)
_DDL_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


def _leaf_name(kind: pa.DataType) -> str | None:
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _leaf_name(kind.value_type)
    if types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})" if kind.precision <= _DECIMAL_DIGITS_MAX else None
    return next((name for check, name in _LEAVES if check(kind)), None)


def _wider_float(found: pa.DataType, expected: pa.DataType) -> bool:
    return bool(types.is_integer(found) or (types.is_floating(found) and found.bit_width <= expected.bit_width))


def _same_zone(found: pa.DataType, expected: pa.DataType) -> bool:
    """Tell whether times fit: a local time may be taken for UTC, as Spark does, never an instant for a local time."""
    return bool(types.is_timestamp(found) and (expected.tz is not None or found.tz is None))


# (what the expected type is, what may be found then)
_LOSSLESS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, pa.DataType], bool]], ...] = (
    (_is_text, lambda found, _: _is_text(found)),
    (_is_bytes, lambda found, _: _is_bytes(found) or _is_text(found)),
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
    """Return the column as the type of the field but for what may be null in it, which is looked at afterwards."""
    name = spark_name(column.type)
    if types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    target = nullable(field.type)
    column = _relabelled_column(column, nullable(column.type))
    try:
        return column if column.type == target else recast(recast(column, _roomy(target)), target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise OptionError(_mismatch(field, f"{name} ({error})")) from error


def nullable(kind: pa.DataType) -> pa.DataType:
    """Return a type in which all that may be null at all, at any depth, may be."""
    if types.is_struct(kind):
        return pa.struct([member.with_type(nullable(member.type)).with_nullable(True) for member in kind])  # noqa: FBT003 - Arrow's signature
    if types.is_map(kind):
        item = kind.item_field.with_type(nullable(kind.item_type)).with_nullable(True)  # noqa: FBT003 - Arrow's signature
        return pa.map_(kind.key_field.with_type(nullable(kind.key_type)), item)
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(nullable(kind.value_type)).with_nullable(True))  # noqa: FBT003 - Arrow's signature
    return kind


def _roomy(kind: pa.DataType) -> pa.DataType:
    """Return the type with room for every number where it has decimals: Arrow wraps one that overflows when it is rescaled."""
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
