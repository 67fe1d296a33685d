"""`cast` and `try_cast` with Spark's defaults: a value that does not fit is an error for `cast`, and null for `try_cast`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.errors import OptionError
from penstock.formats import ddl, scalars
from penstock.formats.malformed import MalformedError
from penstock.formats.patterns import TimeForms
from penstock.formats.schema import spark_name, to_arrow
from penstock.ingestion.sql import times
from penstock.ingestion.sql.coercion import WHOLE
from penstock.ingestion.sql.expression import Expression, applied
from penstock.ingestion.sql.tree import refusal, refuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.ingestion.sql.expression import Values

    Kernel = Callable[..., Values]

_BLANK = "".join(map(chr, range(33))) + "\x7f"  # characters that Spark strips from a text before it reads a number
_FLOAT = r"^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$"
_FLOAT_NAMES = {
    **dict.fromkeys(("inf", "+inf", "infinity", "+infinity"), "inf"),
    **dict.fromkeys(("-inf", "-infinity"), "-inf"),
    "nan": "nan",
}
_TRUE, _FALSE = ("t", "true", "y", "yes", "1"), ("f", "false", "n", "no", "0")
_RANGES = {pa.int8(): 7, pa.int16(): 15, pa.int32(): 31, pa.int64(): 63}


def kind_named(text: str, at: int) -> pa.DataType:
    """Return the type that a text names, as in DDL."""
    try:
        schema = ddl.parsed(f"x {text}")
        if schema is not None:
            return to_arrow(schema).field(0).type
    except OptionError:
        pass
    raise refusal(
        at,
        f"{text!r} is no type that values are cast to here; expected one such as bigint, double, string, date, timestamp, decimal(18,2)",
    )


def cast(value: Expression, kind: pa.DataType, zone: str, at: int, *, lenient: bool) -> Expression:
    """Return a value in another type. `SqlError` for a pair of types that is not supported."""
    if value.type == kind:
        return value
    if types.is_null(value.type):
        return applied(lambda values: pc.cast(values, kind), kind, value)
    kernel, can_fail = _kernel(value.type, kind, zone, at, lenient=lenient)
    name = f"{'try_cast' if lenient else 'cast'} to {spark_name(kind)}"
    return applied(kernel, kind, value, fails=(at, name) if can_fail else None)


def _kernel(source: pa.DataType, kind: pa.DataType, zone: str, at: int, *, lenient: bool) -> tuple[Kernel, bool]:
    """Return the kernel for a cast, and whether it can fail."""
    if types.is_string(kind):
        return _to_text(source, zone, at), False
    if types.is_string(source):
        return _from_text(kind, zone, at, lenient=lenient)
    if (whole := _among_numbers(source, kind)) is not None:
        if lenient and whole[1]:
            refuse(
                at,
                "try_cast between numbers is not supported; exclude the values that do not fit by a condition before it: case when",
            )
        return whole
    if types.is_date(kind) and types.is_timestamp(source):
        return (lambda values: times.day(values, zone)), False
    if types.is_timestamp(kind) and (types.is_date(source) or types.is_timestamp(source)):
        return (lambda values: times.moment(values, kind, zone)), False
    raise refusal(
        at, f"cast of {spark_name(source)} to {spark_name(kind)} is not taken; give the column that type in the schema"
    )


def _among_numbers(source: pa.DataType, kind: pa.DataType) -> tuple[Kernel, bool] | None:
    """Return the kernel for a cast between numbers and booleans, and whether it can fail; None for other types."""
    for takes, gives, kernel, can_fail in _NUMBERS:
        if takes(source) and gives(kind):
            narrows = can_fail and not (
                _is_whole(source) and _is_whole(kind) and WHOLE.index(kind) > WHOLE.index(source)
            )
            return partial(kernel, kind=kind), narrows
    return None


def _is_whole(kind: pa.DataType) -> bool:
    return kind in WHOLE


def _exact(values: Values, *, kind: pa.DataType) -> Values:
    return pc.cast(values, kind)


def _near(values: Values, *, kind: pa.DataType) -> Values:
    return pc.cast(values, kind, safe=False)


def _is_not_zero(values: Values, *, kind: pa.DataType) -> Values:  # noqa: ARG001 - there is one
    return pc.not_equal(values, pa.scalar(0, values.type))


def _cut(values: Values, *, kind: pa.DataType) -> Values:
    """Return numbers without their fractions, as whole numbers; `ArrowInvalid` if one does not fit."""
    cut = pc.trunc(pc.cast(values, pa.float64()))
    limit = float(2 ** _RANGES[kind])
    fits = pc.and_(pc.greater_equal(cut, -limit), pc.less(cut, limit))
    if pc.all(fits, skip_nulls=True).as_py() is False:
        msg = f"a number is too large for {spark_name(kind)}, or none"
        raise pa.ArrowInvalid(msg)
    return pc.cast(cut, kind)


_NUMBERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool], Kernel, bool], ...] = (
    (_is_whole, _is_whole, _exact, True),
    (_is_whole, types.is_floating, _near, False),
    (types.is_floating, types.is_floating, _near, False),
    (types.is_floating, _is_whole, _cut, True),
    (_is_whole, types.is_decimal, _exact, True),
    (types.is_boolean, _is_whole, _exact, False),
    (_is_whole, types.is_boolean, _is_not_zero, False),
)


def _to_text(source: pa.DataType, zone: str, at: int) -> Kernel:
    if source in WHOLE or types.is_boolean(source) or types.is_decimal(source):
        return lambda values: pc.cast(values, pa.string())
    if types.is_date(source):
        return times.day_text
    if types.is_timestamp(source):
        return lambda values: times.text(values, zone)
    raise refusal(
        at,
        f"cast of {spark_name(source)} to string is not taken: Java writes it otherwise; write it as it is, or use a transform",
    )


def _from_text(kind: pa.DataType, zone: str, at: int, *, lenient: bool) -> tuple[Kernel, bool]:
    if kind in WHOLE or types.is_floating(kind) or types.is_boolean(kind):
        read = _read_flag if types.is_boolean(kind) else _read_float if types.is_floating(kind) else _read_whole
        return (lambda values: _read(values, kind, read, lenient=lenient)), not lenient
    is_time = types.is_date(kind) or (types.is_timestamp(kind) and kind.tz is not None)
    if (is_time or types.is_decimal(kind)) and not lenient:
        return (lambda values: read_exact(values, kind, zone)), True
    raise refusal(
        at,
        f"{'try_cast' if lenient else 'cast'} of string to {spark_name(kind)} is not taken; give the column that type in the schema",
    )


def _read(
    values: Values, kind: pa.DataType, read: Callable[[pa.Array, pa.DataType], pa.Array], *, lenient: bool
) -> Values:
    """Return texts as values of a type. Where `read` finds no value: null if `lenient`, else `ArrowInvalid`."""
    column = pa.array([values.as_py()], pa.string()) if isinstance(values, pa.Scalar) else values
    numbers = read(pc.utf8_trim(column, characters=_BLANK), kind)
    if not lenient and numbers.null_count > column.null_count:
        lost = pc.filter(column, pc.and_(pc.is_valid(column), pc.is_null(numbers)))
        msg = f"{lost[0].as_py()[:80]!r} is no {spark_name(kind)}"
        raise pa.ArrowInvalid(msg)
    return numbers[0] if isinstance(values, pa.Scalar) else numbers


def _matching(text: pa.Array, form: str) -> pa.Array:
    """Return the texts that match a regular expression, and null for the others."""
    return pc.if_else(pc.match_substring_regex(text, form), text, pa.scalar(None, pa.string()))


def _read_whole(text: pa.Array, kind: pa.DataType) -> pa.Array:
    digits = pc.replace_substring_regex(_matching(text, r"^[+-]?[0-9]+$"), r"^\+?(-?)0*([0-9])", r"\1\2")
    digits = _matching(digits, r"^-?[0-9]{1,19}$")
    wide = pc.cast(digits, pa.decimal128(19, 0))
    limit = 2 ** _RANGES[kind]
    low, high = pa.scalar(-limit, pa.decimal128(19, 0)), pa.scalar(limit - 1, pa.decimal128(19, 0))
    fits = pc.and_(pc.greater_equal(wide, low), pc.less_equal(wide, high))
    return pc.cast(pc.if_else(fits, wide, pa.scalar(None, wide.type)), kind)


def _read_float(text: pa.Array, kind: pa.DataType) -> pa.Array:
    lower = pc.ascii_lower(text)
    named = pc.is_in(lower, value_set=pa.array(list(_FLOAT_NAMES)))
    plain = pc.replace_substring_regex(lower, r"^([+-]?[0-9.][0-9.e+-]*)[df]$", r"\1")
    for name, shown in _FLOAT_NAMES.items():
        plain = pc.if_else(pc.equal(lower, name), shown, plain) if pc.any(named).as_py() else plain
    if pc.any(pc.match_substring_regex(lower, r"^[+-]?0x[0-9a-f.]+p")).as_py():
        msg = "a number in base 16, which is not supported; exclude it by a condition before it"
        raise pa.ArrowInvalid(msg)
    valid = pc.or_(named, pc.match_substring_regex(plain, _FLOAT))
    exact = pc.if_else(valid, pc.replace_substring_regex(plain, r"^\+", ""), pa.scalar(None, pa.string()))
    return pc.cast(pc.cast(exact, pa.float64()), kind, safe=False) if kind != pa.float32() else pc.cast(exact, kind)


def _read_flag(text: pa.Array, kind: pa.DataType) -> pa.Array:
    lower = pc.ascii_lower(text)
    false = pc.if_else(pc.is_in(lower, value_set=pa.array(_FALSE)), pa.scalar(False), pa.scalar(None, kind))  # noqa: FBT003 - a value
    flags = pc.if_else(pc.is_in(lower, value_set=pa.array(_TRUE)), pa.scalar(True), false)  # noqa: FBT003 - a value
    return pc.if_else(pc.is_valid(text), flags, pa.scalar(None, kind))


def read_exact(values: Values, kind: pa.DataType, zone: str) -> Values:
    """Return texts as times or decimals, in the forms that sources read, which Spark reads in the same way.

    `ArrowInvalid` for other texts.
    """
    column = pa.array([values.as_py()], pa.string()) if isinstance(values, pa.Scalar) else values
    try:
        read = scalars.parse(pc.utf8_trim(column, characters=_BLANK), kind, "the value", TimeForms(zone=zone))
    except MalformedError as error:
        raise pa.ArrowInvalid(str(error)) from error
    return read[0] if isinstance(values, pa.Scalar) else read
