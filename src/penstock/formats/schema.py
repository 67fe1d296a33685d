"""Schemas: Spark's JSON form, and the Arrow schema that Spark demands of a Python data source.

The mapping is PySpark's own (`pyspark.sql.pandas.types`, version 4.3), repeated here because this layer does not know
Spark. A test compares the two for every type. `conforming` makes batches fit a schema.

Some of Spark's types say more than Arrow's can: the length of a `char`, the parts of an interval, the digits of a
`time`, the collation of text. A field carries this in its metadata, for code that writes for Spark.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types

from penstock.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

UTC_MICROS = pa.timestamp("us", tz="UTC")
_METADATA = b"SPARK::metadata::json"
_EXACT = b"penstock.spark"  # Spark's type of a field whose Arrow type says less, as JSON
_COLLATIONS = "__COLLATIONS"  # in Spark's JSON the metadata of a field also has its collations
_DECIMAL_DIGITS_MAX = 38

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

    Raises `OptionError`, which names the column, for a type that has no Arrow form or that files cannot hold: variant,
    geometry, geography, calendar and year-month intervals.
    """
    return pa.schema([_to_field(field, ()) for field in json.loads(spark_json)["fields"]])


def to_spark(schema: pa.Schema) -> str:
    """Return Spark's JSON of `schema`, as `StructType.json()` writes it.

    Other encodings of the same values get Spark's name for these values: large and view types, dictionaries, unsigned
    integers (one size up), any time unit. Raises `OptionError`, which names the column, if Spark has no such type.
    """
    fields = [_from_field(field, (field.name,)) for field in schema]
    return json.dumps({"fields": fields, "type": "struct"}, separators=(",", ":"), sort_keys=True)


def spark_type(field: pa.Field) -> Any:  # noqa: ANN401 - JSON: a name, or the description of a nested type
    """Return the type of one field as Spark's JSON has it. Raises `OptionError`."""
    return _from_field(field, (field.name,))["type"]


def check_distinct(fields: Iterable[pa.Field], path: str = "") -> None:
    """Raise `OptionError` if columns, or members of a struct, have the same name, at any depth: readers see only one of them."""
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
    """Yield the structs that values of this type consist of, but not those inside these structs."""
    if types.is_struct(kind):
        yield kind
    elif types.is_map(kind):
        yield from _structs(kind.key_type)
        yield from _structs(kind.item_type)
    elif types.is_list(kind):
        yield from _structs(kind.value_type)


@lru_cache(maxsize=256)  # messages about many values name the type of the same column
def spark_name(kind: pa.DataType) -> str:
    """Return the name of a type for users: Spark's (`bigint`, `array<string>`), or Arrow's if Spark has none."""
    if types.is_struct(kind):
        return f"struct<{', '.join(f'{member.name}: {spark_name(member.type)}' for member in kind)}>"
    if types.is_map(kind):
        return f"map<{spark_name(kind.key_type)}, {spark_name(kind.item_type)}>"
    if is_list(kind):
        return f"array<{spark_name(kind.value_type)}>"
    name = _leaf_name(kind)
    return _DDL_NAMES.get(name, name) if name else str(kind)


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
    if kind == "void" and not nullable:  # the type that Spark gives `array()` and `map()`
        msg = (
            f"column {'.'.join(path)!r} is of type void NOT NULL, or holds it, which has no values: cast it to one that has, "
            "such as array<string> or map<string, string>"
        )
        raise OptionError(msg)
    return pa.field(name, _to_type(kind, path), nullable=nullable)


def _plain(kind: Any) -> Any:  # noqa: ANN401 - Spark's JSON of a type
    """Return a type with user-defined types replaced by their storage types: a reader would load the classes that they name."""
    if not isinstance(kind, dict):
        return "decimal(10,0)" if kind == "decimal" else kind
    if kind["type"] == "udt":
        return _plain(kind["sqlType"])
    inner = {key: _plain(kind[key]) for key in ("elementType", "keyType", "valueType") if key in kind}
    if "fields" in kind:
        inner["fields"] = [_plain_field(field) for field in kind["fields"]]
    return kind | inner


def _plain_field(field: dict[str, Any]) -> dict[str, Any]:
    """Return what `_from_field` makes of `_to_field` of a member, without a walk through its type for each level above it."""
    metadata = {key: value for key, value in field.get("metadata", {}).items() if value or key != _COLLATIONS}
    return {"metadata": metadata, "name": field["name"], "nullable": field["nullable"], "type": _plain(field["type"])}


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
        "says string, of tables what schema=infer says that the file has; a query that is written has a cast, or to_json)"
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
    """Raise `OptionError` for intervals, at any depth, that are not day-time intervals: `form` has no text for them."""
    for field in schema:
        exact = _exact(field)
        if exact is not None and (part := _SHORT_INTERVAL.search(json.dumps(exact["type"]))):
            msg = (
                f"column {field.name!r} is or holds {part[1]}, which {form} cannot hold; make it an interval day to second or a string, "
                "with cast"
            )
            raise OptionError(msg)


def _exact(field: pa.Field) -> dict[str, Any] | None:
    """Return what a field carries about its type in Spark; `None` if nothing, or if its type was changed since."""
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
    if is_list(kind):
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


def is_list(kind: pa.DataType) -> bool:
    """Tell whether it is one of Arrow's list types."""
    checks = (
        types.is_list,
        types.is_large_list,
        types.is_fixed_size_list,
        types.is_list_view,
        types.is_large_list_view,
    )
    return any(check(kind) for check in checks)


def is_text(kind: pa.DataType) -> bool:
    """Tell whether it is one of Arrow's text types."""
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Tell whether it is one of Arrow's binary types."""
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
    (is_text, "string"),
    (is_bytes, "binary"),
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


def nullable(kind: pa.DataType) -> pa.DataType:
    """Return a type in which every part that can be nullable is nullable, at any depth."""
    if types.is_struct(kind):
        return pa.struct([member.with_type(nullable(member.type)).with_nullable(True) for member in kind])  # noqa: FBT003 - Arrow's signature
    if types.is_map(kind):
        item = kind.item_field.with_type(nullable(kind.item_type)).with_nullable(True)  # noqa: FBT003 - Arrow's signature
        return pa.map_(kind.key_field.with_type(nullable(kind.key_type)), item)
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(nullable(kind.value_type)).with_nullable(True))  # noqa: FBT003 - Arrow's signature
    return kind
