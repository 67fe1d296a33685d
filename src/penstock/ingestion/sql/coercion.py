"""Finds the common type of operands, as Spark does, if the conversion loses nothing; everything else is refused."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.formats.schema import spark_name
from penstock.ingestion.sql.expression import Expression, applied, written
from penstock.ingestion.sql.tree import refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
_DIGITS_MAX = 38
WHOLE = tuple(_DIGITS)


def is_number(kind: pa.DataType) -> bool:
    """Tell whether values are numbers."""
    return bool(kind in WHOLE or types.is_floating(kind) or types.is_decimal(kind))


def together(operands: Sequence[Expression], at: int, name: str, *, chosen: bool = False) -> list[Expression]:
    """Return operands in their common type in Spark; `SqlError` if there is none, or it is not supported here.

    `chosen`: one of them is the result. Then a whole number beside decimals has the digits of its type, even if it is a literal.
    """
    kinds = list(dict.fromkeys(operand.type for operand in operands if not types.is_null(operand.type)))
    if not kinds:
        refuse(at, f"{name} of nothing but null; leave it out")
    kind = kinds[0]
    if len(kinds) > 1:
        if not all(map(is_number, kinds)):
            shown = " and ".join(map(spark_name, kinds))
            refuse(at, f"{name} of {shown}: write a cast, {_advice(kinds)}")
        kind = _number([operand for operand in operands if not types.is_null(operand.type)], at, name, chosen=chosen)
    return [converted(operand, kind) for operand in operands]


def _advice(kinds: list[pa.DataType]) -> str:
    if any(map(types.is_date, kinds)):
        return "or date'2026-01-31' for a day that is written down"
    if any(map(types.is_timestamp, kinds)):
        return "or timestamp'2026-01-31 10:00:00' for a time that is written down"
    return "such as cast(x as string)"


def _number(operands: list[Expression], at: int, name: str, *, chosen: bool) -> pa.DataType:
    """Return the common type of numbers of several types."""
    kinds = {operand.type for operand in operands}
    if any(map(types.is_floating, kinds)):
        for operand in operands:
            if types.is_decimal(operand.type) and operand.constant is None:
                refuse(at, f"{name} of decimals and doubles is rounded; cast one to the other's type")
        return pa.float64()
    if kinds <= set(WHOLE):
        return WHOLE[max(map(WHOLE.index, kinds))]
    return _decimal([as_decimal(operand, chosen=chosen) for operand in operands], at, name)


def as_decimal(operand: Expression, *, chosen: bool = False) -> pa.DataType:
    """Return the decimal type that can hold all values of an operand; see `together`."""
    if types.is_decimal(operand.type):
        return operand.type
    if not chosen and operand.constant is not None and operand.type in {pa.int32(), pa.int64()}:
        return pa.decimal128(len(operand.constant[1].lstrip("+-0")) or 1, 0)
    return pa.decimal128(_DIGITS[operand.type], 0)


def _decimal(kinds: list[pa.DataType], at: int, name: str) -> pa.DataType:
    scale = max(kind.scale for kind in kinds)
    return decimal(max(kind.precision - kind.scale for kind in kinds) + scale, scale, at, name)


def decimal(precision: int, scale: int, at: int, name: str) -> pa.DataType:
    """Return a decimal type; `SqlError` if it needs more digits than decimals have, because Spark would round."""
    if precision > _DIGITS_MAX:
        refuse(
            at,
            f"{name} takes {precision} digits, and decimals have {_DIGITS_MAX}; cast the operands to fewer, such as decimal(18,2)",
        )
    return pa.decimal128(precision, scale)


def converted(operand: Expression, kind: pa.DataType) -> Expression:
    """Return an operand in a wider type."""
    if operand.type == kind:
        return operand
    if operand.constant is not None and is_number(operand.type):
        text = operand.constant[1]
        value = float(text) if types.is_floating(kind) else Decimal(text) if types.is_decimal(kind) else int(text)
        return written(value, kind, operand.constant)
    return applied(caster(kind), kind, operand)


def caster(kind: pa.DataType) -> Callable[..., pa.Array]:
    """Return a kernel that casts to a type that can hold every value."""
    return lambda values: pc.cast(values, kind, safe=False)
