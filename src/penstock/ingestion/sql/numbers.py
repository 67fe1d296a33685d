"""Arithmetic and operators on bits, with Spark's types and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.ingestion.sql.coercion import WHOLE, as_decimal, converted, decimal, is_number, together
from penstock.ingestion.sql.expression import applied
from penstock.ingestion.sql.given import LONG

if TYPE_CHECKING:
    from penstock.ingestion.sql.expression import Expression, Values
    from penstock.ingestion.sql.given import Given, Maker


def _sum_type(left: pa.DataType, right: pa.DataType, given: Given) -> pa.DataType:
    scale = max(left.scale, right.scale)
    return decimal(
        max(left.precision - left.scale, right.precision - right.scale) + scale + 1, scale, given.at, given.name
    )


def _arithmetic(given: Given) -> Expression:
    given.count(2)
    for place in range(2):
        given.expect(place, is_number, "a number, such as double")
    fails = given.at, given.name
    kernel = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}[given.name]
    kinds = [operand.type for operand in given.operands if not types.is_null(operand.type)]
    if any(map(types.is_decimal, kinds)) and not any(map(types.is_floating, kinds)):
        if len(kinds) < len(given.operands):
            given.refuse("null is no number; leave it out")
        left, right = (converted(operand, as_decimal(operand)) for operand in given.operands)
        if given.name == "*":
            kind = decimal(
                left.type.precision + right.type.precision + 1, left.type.scale + right.type.scale, given.at, "*"
            )
        else:
            kind = _sum_type(left.type, right.type, given)
        return applied(lambda *values: pc.cast(kernel(*values), kind), kind, left, right, fails=fails)
    operands = together(given.operands, given.at, given.name)
    return applied(kernel, operands[0].type, *operands, fails=None if types.is_floating(operands[0].type) else fails)


def _check_divisor(left: Values, right: Values) -> None:
    """Raise `ArrowInvalid` if a divisor is zero and its dividend is not null."""
    zero = pc.and_(pc.equal(right, pa.scalar(0, right.type)), pc.is_valid(left))
    if (zero.as_py() if isinstance(zero, pa.Scalar) else pc.any(zero).as_py()) is True:
        msg = "divide by zero"
        raise pa.ArrowInvalid(msg)


def _divided(given: Given) -> Expression:
    given.count(2)
    for place in range(2):
        given.expect(place, is_number, "a number, such as double")
    operands = together(given.operands, given.at, "/")
    if types.is_decimal(operands[0].type):
        given.refuse("a quotient of decimals is rounded; cast both to double")

    def kernel(left: Values, right: Values) -> Values:
        _check_divisor(left, right)
        return pc.divide(left, right)

    return applied(
        kernel, pa.float64(), *(converted(operand, pa.float64()) for operand in operands), fails=(given.at, "/")
    )


def _whole(given: Given, place: int) -> Expression:
    return given.expect(place, WHOLE.__contains__, "a whole number, such as bigint")


def _divided_whole(given: Given) -> Expression:
    given.count(2)
    operands = [converted(_whole(given, place), LONG) for place in range(2)]
    return applied(pc.divide_checked, LONG, *operands, fails=(given.at, "div"))


def _rest(given: Given) -> Expression:
    given.count(2)
    operands = together([_whole(given, place) for place in range(2)], given.at, "%")

    def kernel(left: Values, right: Values) -> Values:
        _check_divisor(left, right)
        # The smallest number has no positive counterpart.
        safe = pc.if_else(pc.equal(right, pa.scalar(-1, right.type)), pa.scalar(1, right.type), right)
        safe = pc.if_else(pc.equal(safe, pa.scalar(0, right.type)), pa.scalar(None, right.type), safe)
        return pc.subtract(left, pc.multiply(pc.divide(left, safe), safe))

    return applied(kernel, operands[0].type, *operands, fails=(given.at, given.name))


def _signed(given: Given) -> Expression:
    given.count(1)
    operand = given.expect(0, lambda kind: is_number(kind) and not types.is_decimal(kind), "a number, such as double")
    kernel = pc.negate_checked if given.name == "negative" else pc.abs_checked
    return applied(kernel, operand.type, operand, fails=(given.at, given.name) if operand.type in WHOLE else None)


def _as_it_is(given: Given) -> Expression:
    given.count(1)
    return given.expect(0, is_number, "a number, such as double")


def _bits(given: Given) -> Expression:
    given.count(2)
    operands = together([_whole(given, place) for place in range(2)], given.at, given.name)
    kernel = {"&": pc.bit_wise_and, "|": pc.bit_wise_or, "^": pc.bit_wise_xor}[given.name]
    return applied(kernel, operands[0].type, *operands)


def _other_bits(given: Given) -> Expression:
    given.count(1)
    return applied(pc.bit_wise_not, _whole(given, 0).type, _whole(given, 0))


MAKERS: dict[str, Maker] = {
    **dict.fromkeys(("+", "-", "*"), _arithmetic),
    "/": _divided,
    "div": _divided_whole,
    **dict.fromkeys(("%", "mod"), _rest),
    **dict.fromkeys(("negative", "abs"), _signed),
    "positive": _as_it_is,
    **dict.fromkeys(("&", "|", "^"), _bits),
    "~": _other_bits,
}
