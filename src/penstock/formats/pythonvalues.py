"""Turning Python values that users' functions return into Arrow columns; a value that would lose something is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from numbers import Number
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types

from penstock.errors import OptionError
from penstock.formats.conforming import has_null
from penstock.formats.schema import spark_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_WHOLE = frozenset({int, type(None)})  # values of these types lose nothing in an integer column


def of_values(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Return Python values as a column of the type of `field`; `OptionError` if one does not fit. No value is changed to fit."""
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
    """Tell whether Arrow would truncate values that become this type."""
    if types.is_map(kind):
        return _may_lose(kind.key_type) or _may_lose(kind.item_type)
    return bool(types.is_integer(kind) or types.is_date(kind) or types.is_nested(kind))


def _lost(value: Any, kind: pa.DataType) -> str | None:  # noqa: ANN401 - the user's
    """Return what Arrow would silently cut off a value; None if nothing."""
    if types.is_integer(kind):
        cut = isinstance(value, Number) and not isinstance(value, complex) and value % 1 != 0  # type: ignore[operator]  # others have %
        return "a fraction" if cut else None
    if types.is_date(kind):
        return "a time of day" if isinstance(value, datetime) else None
    if types.is_struct(kind):
        return _odd_fields(value, kind) or _lost_inside(_members_of(value, kind))
    if types.is_map(kind):
        return _lost_inside(_entries_of(value, kind))
    return _lost_of_list(value, kind) if types.is_list(kind) else None


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
