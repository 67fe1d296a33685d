"""Turning Python values that users' functions return into Arrow columns; a value that would lose something is refused.

At any depth a member of an `Enum` becomes its value, and a dataclass instance or a model of pydantic becomes a struct.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from enum import Enum
from numbers import Number
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types

from penstock.errors import OptionError
from penstock.formats.conforming import has_null
from penstock.formats.schema import spark_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Types of values that lose nothing, by the test for the type of the column.
_USUAL = (
    (types.is_integer, frozenset({int, type(None)})),
    (types.is_timestamp, frozenset({datetime, type(None)})),
)


def of_values(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Return Python values as a column of the type of `field`; `OptionError` if one does not fit. No value is changed to fit."""
    if _may_lose(field.type) and not _are_usual(values, field.type):
        for value in values:
            lost = _lost(value, field.type)
            if lost:
                msg = f"column {field.name!r}: expected {spark_name(field.type)}, found {lost}"
                raise OptionError(msg)
    try:
        column = pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        plain = _plainer(values)
        if plain is not None:
            return of_values(plain, field)
        msg = f"column {field.name!r}: expected {spark_name(field.type)}: {error}"
        raise OptionError(msg) from error
    if has_null(column, field):
        msg = f"column {field.name!r} has a null, but its schema says NOT NULL"
        raise OptionError(msg)
    return column


def is_model(value: object) -> bool:
    """Tell whether a value is an instance of a dataclass, or a model of pydantic."""
    return hasattr(type(value), "__dataclass_fields__") or hasattr(type(value), "model_dump")


def fields_of(model: Any) -> Any:  # noqa: ANN401 - a model of the user's
    """Return the fields of a model, and of those inside it, as a mapping; for a `RootModel` of pydantic, its value."""
    return model.model_dump() if hasattr(type(model), "model_dump") else asdict(model)


def _plainer(values: Sequence[Any]) -> list[Any] | None:
    """Return values that Arrow may know; None if there is nothing to replace, or if the user's model raises when asked for its fields."""
    try:
        plain = list(map(_plain, values))
    except Exception:  # noqa: BLE001 - the user's class; the error to report is that Arrow does not know it
        return None
    return None if all(map(operator.is_, plain, values)) else plain


def _plain(value: Any) -> Any:  # noqa: ANN401 - the user's
    """Return a value in which all that Arrow does not know is replaced by plain values; the value itself if there is nothing to replace."""
    if isinstance(value, Enum):
        return _plain(value.value)
    if is_model(value):
        return _plain(fields_of(value))
    if isinstance(value, Mapping):
        pairs = [(_plain(key), _plain(item)) for key, item in value.items()]
        kept = all(key is old and item is now for (key, item), (old, now) in zip(pairs, value.items(), strict=True))
        return value if kept else dict(pairs)
    if type(value) in {list, tuple, set, frozenset}:
        items = [_plain(item) for item in value]
        return value if all(map(operator.is_, items, value)) else items if type(value) is not tuple else tuple(items)
    return value


def _are_usual(values: Iterable[Any], kind: pa.DataType) -> bool:
    """Tell by the types of values, which is quick, that they will lose nothing."""
    return any(holds(kind) and usual.issuperset(map(type, values)) for holds, usual in _USUAL)


def _may_lose(kind: pa.DataType) -> bool:
    """Tell whether Arrow would truncate values that become this type."""
    if types.is_map(kind):
        return _may_lose(kind.key_type) or _may_lose(kind.item_type)
    return bool(types.is_integer(kind) or types.is_temporal(kind) or types.is_float32(kind) or types.is_nested(kind))


def _lost(value: Any, kind: pa.DataType) -> str | None:  # noqa: ANN401 - the user's
    """Return what Arrow would silently cut off a value; None if nothing."""
    if not types.is_nested(kind):
        return _lost_of_plain(value, kind)
    if types.is_struct(kind):
        return _odd_fields(value, kind) or _lost_inside(_members_of(value, kind))
    if types.is_map(kind):
        return _lost_inside(_entries_of(value, kind))
    return _lost_of_list(value, kind) if types.is_list(kind) else None


def _lost_of_plain(value: Any, kind: pa.DataType) -> str | None:  # noqa: ANN401 - the user's
    """Return what a value would lose in a column of numbers or times; None if nothing."""
    if types.is_date(kind) and isinstance(value, datetime):
        return "a time of day"
    if types.is_integer(kind) or types.is_temporal(kind):
        cut = isinstance(value, Number) and not isinstance(value, complex) and value % 1 != 0  # type: ignore[operator]  # others have %
        return "a fraction" if cut else None
    return "a number that is too large" if types.is_float32(kind) and _overflows(value) else None


def _overflows(value: Any) -> bool:  # noqa: ANN401 - the user's
    """Tell whether a number is too large for a float of 32 bits."""
    try:
        struct.pack("<f", value)
    except OverflowError:
        return True
    except struct.error:  # not a number, which Arrow reports
        return False
    return False


def _lost_of_list(value: Any, kind: pa.ListType) -> str | None:  # noqa: ANN401 - the user's
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        return f"a {type(value).__name__}, which is not a list"  # Arrow would iterate over its characters, or bytes
    return _lost_inside(_elements_of(value, kind)) if _may_lose(kind.value_type) else None


def _lost_inside(inner: Iterable[tuple[Any, pa.DataType]]) -> str | None:
    return next(filter(None, (_lost(value, kind) for value, kind in inner)), None)


def _odd_fields(value: Any, kind: pa.StructType) -> str | None:  # noqa: ANN401 - the user's
    """Return what is wrong with the names of a value's fields, if Arrow would not report it."""
    expected = [field.name for field in kind]
    if isinstance(value, Mapping):
        unknown = value.keys() - set(expected)
        return f"the unknown field {min(map(str, unknown))!r}" if unknown else None
    names = names_of(value) if isinstance(value, tuple) else expected
    if names != expected and sorted(names) == sorted(expected):
        return f"its fields in another order ({', '.join(names)})"
    return None


def _members_of(value: Any, kind: pa.StructType) -> Iterator[tuple[Any, pa.DataType]]:  # noqa: ANN401 - the user's
    """Return the values of a struct's fields with their types; none if it is not a struct, which Arrow reports."""
    if isinstance(value, Mapping):
        return ((value.get(field.name), field.type) for field in kind)
    return zip(value if isinstance(value, tuple) else (), (field.type for field in kind), strict=False)


def _entries_of(value: Any, kind: pa.MapType) -> Iterator[tuple[Any, pa.DataType]]:  # noqa: ANN401 - the user's
    """Return the keys and items of a map with their types; none if it is not a map, which Arrow reports."""
    pairs = value.items() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return (part for key, item in pairs for part in ((key, kind.key_type), (item, kind.item_type)))


def _elements_of(value: Any, kind: pa.ListType) -> Iterator[tuple[Any, pa.DataType]]:  # noqa: ANN401 - the user's
    """Return the elements of a list with their type; none if it is not a list, which Arrow reports."""
    return ((item, kind.value_type) for item in (value if isinstance(value, Iterable) else ()))


def names_of(value: tuple[Any, ...]) -> list[str]:
    """Return the names of a tuple's values, if it is a Spark Row or a named tuple."""
    names: Any = getattr(value, "__fields__", None) or getattr(value, "_fields", ())
    return list(names)
