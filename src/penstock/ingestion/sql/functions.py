"""Each function and operator with the types that it takes, what it gives, and the kernel that answers as Spark does.

A maker gets the operands, typed, and gives the expression. What it is not made for it refuses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.formats.schema import spark_name
from penstock.ingestion.sql import casts, matching, refused, strings, times
from penstock.ingestion.sql.coercion import WHOLE, as_decimal, converted, decimal, is_number, together
from penstock.ingestion.sql.expression import Expression, applied
from penstock.ingestion.sql.tree import refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.ingestion.sql.expression import Rows, Values

FLAG, TEXT, INTEGER, LONG, DAY = pa.bool_(), pa.string(), pa.int32(), pa.int64(), pa.date32()


@dataclass(frozen=True)
class Given:
    """The operands of one call."""

    name: str
    operands: tuple[Expression, ...]
    at: int
    zone: str

    def refuse(self, why: str) -> NoReturn:
        """Raise `SqlError` for this call."""
        refuse(self.at, f"{self.name}: {why}")

    def count(self, *counts: int) -> None:
        """Raise unless there are so many operands."""
        if len(self.operands) not in counts:
            self.refuse(f"found {len(self.operands)} values, expected {' or '.join(map(str, counts))}")

    def expect(self, place: int, is_kind: Callable[[pa.DataType], bool], expected: str) -> Expression:
        """Return an operand, if it is of a kind; a bare null is of each."""
        operand = self.operands[place]
        if not (is_kind(operand.type) or types.is_null(operand.type)):
            self.refuse(
                f"found {spark_name(operand.type)}, expected {expected}; write a cast, such as cast(x as {expected.rsplit(maxsplit=1)[-1]})"
            )
        return operand

    def text(self, place: int) -> Expression:
        """Return an operand that is text."""
        operand = self.expect(place, types.is_string, "string")
        return converted(operand, TEXT)

    def flag(self, place: int) -> Expression:
        """Return an operand that is a condition."""
        return converted(self.expect(place, types.is_boolean, "boolean"), FLAG)

    def words(self, place: int) -> str:
        """Return a text that is written down."""
        constant = self.operands[place].constant
        if constant is None or not types.is_string(self.operands[place].type):
            self.refuse("expected a text that is written down, in quotes, and no column or expression")
        return constant[1]

    def number(self, place: int) -> int:
        """Return a whole number that is written down."""
        constant = self.operands[place].constant
        if constant is None or self.operands[place].type != INTEGER:
            self.refuse("expected a whole number that is written down, and no column or expression")
        return int(constant[1])


def made(name: str, operands: Sequence[Expression], at: int, zone: str) -> Expression:
    """Return the expression of a call. Raises `SqlError`."""
    maker = _MAKERS.get(name)
    if maker is None:
        refuse(at, refused.of_function(name, {known for known in _MAKERS if known.isidentifier()}))
    return maker(Given(name, tuple(operands), at, zone))


# Conditions


def _not(given: Given) -> Expression:
    given.count(1)
    return applied(pc.invert, FLAG, given.flag(0))


def _both(given: Given) -> Expression:
    given.count(2)
    left, right = given.flag(0), given.flag(1)

    def run(rows: Rows) -> Values:
        first = left.run(rows)
        asked = pc.invert(pc.fill_null(pc.invert(first), False)) if right.fails else first  # noqa: FBT003 - Arrow's own parameter
        return pc.and_kleene(rows.spread(first), rows.spread(right.asked_of(rows, asked)))

    return Expression(FLAG, run, fails=left.fails or right.fails)


def _either(given: Given) -> Expression:
    given.count(2)
    left, right = given.flag(0), given.flag(1)

    def run(rows: Rows) -> Values:
        first = left.run(rows)
        asked = pc.invert(pc.fill_null(first, False)) if right.fails else first  # noqa: FBT003 - Arrow's own parameter
        return pc.or_kleene(rows.spread(first), rows.spread(right.asked_of(rows, asked)))

    return Expression(FLAG, run, fails=left.fails or right.fails)


def _is_null(given: Given) -> Expression:
    given.count(1)
    return applied(pc.is_null, FLAG, given.operands[0])


def _is_not_null(given: Given) -> Expression:
    given.count(1)
    return applied(pc.is_valid, FLAG, given.operands[0])


def _is_nan(given: Given) -> Expression:
    given.count(1)
    operand = given.expect(0, types.is_floating, "double")
    return applied(lambda values: pc.fill_null(pc.is_nan(values), False), FLAG, operand)  # noqa: FBT003 - Arrow's own parameter


def _comparable(given: Given) -> list[Expression]:
    given.count(2)
    operands = together(given.operands, given.at, given.name)
    kind = operands[0].type
    if types.is_nested(kind) or (types.is_boolean(kind) and given.name not in {"=", "<>", "<=>"}):
        given.refuse(f"values of {spark_name(kind)} are not compared; compare what they consist of")
    return operands


def _equal(left: Values, right: Values) -> Values:
    """Tell whether values are equal: NaN is equal to itself."""
    same = pc.equal(left, right)
    if not types.is_floating(left.type):
        return same
    return pc.or_(same, pc.and_(pc.is_nan(left), pc.is_nan(right)))


def _less(left: Values, right: Values) -> Values:
    """Tell whether values are less: NaN is greater than all others."""
    less = pc.less(left, right)
    if not types.is_floating(left.type):
        return less
    return pc.or_(less, pc.and_(pc.invert(pc.is_nan(left)), pc.is_nan(right)))


def _same(left: Values, right: Values) -> Values:
    """Tell whether values are equal; null is equal to itself."""
    equal = pc.fill_null(_equal(left, right), False)  # noqa: FBT003 - Arrow's own parameter
    return pc.or_(equal, pc.and_(pc.is_null(left), pc.is_null(right)))


_COMPARES: dict[str, Callable[[Values, Values], Values]] = {
    "=": _equal,
    "<>": lambda left, right: pc.invert(_equal(left, right)),
    "<=>": _same,
    "<": _less,
    ">": lambda left, right: _less(right, left),
    "<=": lambda left, right: pc.invert(_less(right, left)),
    ">=": lambda left, right: pc.invert(_less(left, right)),
}


def _compared(given: Given) -> Expression:
    return applied(_COMPARES[given.name], FLAG, *_comparable(given))


def _in(given: Given) -> Expression:
    value, *members = together(given.operands, given.at, "in")
    if types.is_nested(value.type):
        given.refuse(f"values of {spark_name(value.type)} are not compared; compare what they consist of")

    def kernel(values: Values, *among: Values) -> Values:
        answers = _equal(values, among[0])
        for other in among[1:]:
            answers = pc.or_kleene(answers, _equal(values, other))
        return answers

    return applied(kernel, FLAG, value, *members)


def _alike(given: Given) -> Expression:
    given.count(2, 3)
    text, pattern = given.text(0), given.words(1)
    escape = given.words(2) if len(given.operands) > 2 else "\\"  # noqa: PLR2004 - value, pattern, escape
    if len(escape) != 1:
        given.refuse("escape is one character")
    return applied(matching.like(pattern, escape, given.at), FLAG, text)


def _alike_in_any_case(given: Given) -> Expression:
    given.count(2)
    kernel = matching.like(given.words(1).lower(), "\\", given.at)
    return applied(lambda values: kernel(strings.cased(values, upper=False)), FLAG, given.text(0))


def _matched(given: Given) -> Expression:
    given.count(2)
    return applied(matching.rlike(given.words(1), given.at), FLAG, given.text(0))


# Choices


def _branches(given: Given) -> Expression:
    """Return the value behind the first condition that is true; conditions and values by turns, and at last what else."""
    pairs = len(given.operands) // 2
    conditions = [given.flag(2 * place) for place in range(pairs)]
    if any(types.is_null(given.operands[2 * place].type) for place in range(pairs)):
        given.refuse("null is no condition; leave that branch out")
    values = [given.operands[2 * place + 1] for place in range(pairs)] + list(given.operands[2 * pairs :])
    *values, otherwise = together(values, given.at, given.name, chosen=True)
    return chosen(conditions, values, otherwise)


def chosen(conditions: Sequence[Expression], values: Sequence[Expression], otherwise: Expression) -> Expression:
    """Return values by conditions; each is asked of the rows that no condition in front of it took."""

    def run(rows: Rows) -> Values:
        answers: list[tuple[pa.Array, Values]] = []
        left = rows
        for condition, value in zip(conditions, values, strict=True):
            taken = pc.fill_null(rows.spread(condition.run(left)), False)  # noqa: FBT003 - Arrow's own parameter
            answers.append((taken, value.asked_of(left, taken)))
            left = left.where(pc.invert(taken))
        column = rows.spread(otherwise.run(left if otherwise.fails else rows))
        for taken, value in reversed(answers):
            column = pc.if_else(taken, value, column)
        return column

    return Expression(otherwise.type, run, fails=any(part.fails for part in (*conditions, *values, otherwise)))


def _if(given: Given) -> Expression:
    given.count(3)
    return _branches(given)


def _coalesced(given: Given) -> Expression:
    if not given.operands:
        given.count(1)
    *values, last = together(given.operands, given.at, given.name, chosen=True)
    return chosen([applied(pc.is_valid, FLAG, value) for value in values], values, last)


def _null_if(given: Given) -> Expression:
    given.count(2)
    equal = _compared(Given("=", given.operands, given.at, given.zone))
    value = given.operands[0]
    return chosen(
        [equal],
        [
            applied(
                lambda values: pc.if_else(pc.is_valid(values), pa.scalar(None, value.type), values), value.type, value
            )
        ],
        value,
    )


def _if_not_null(given: Given) -> Expression:
    given.count(3)
    value, *choices = given.operands
    first, second = together(choices, given.at, given.name, chosen=True)
    return chosen([applied(pc.is_valid, FLAG, value)], [first], second)


def _extreme(given: Given) -> Expression:
    operands = together(given.operands, given.at, given.name, chosen=True)
    kind = operands[0].type
    if len(operands) < 2 or types.is_nested(kind) or types.is_floating(kind) or types.is_boolean(kind):  # noqa: PLR2004 - to choose from
        given.refuse(f"is taken of two values or more, and not of {spark_name(kind)}; write case when")
    kernel = pc.max_element_wise if given.name == "greatest" else pc.min_element_wise
    return applied(lambda *values: kernel(*values, skip_nulls=True), kind, *operands)


# Numbers


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
    """Raise `ArrowInvalid` for a zero that something is divided by."""
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
        # The smallest has no positive twin.
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


# Text


def _texts(kernel: Callable[..., Values], kind: pa.DataType = TEXT) -> Callable[[Given], Expression]:
    """Return the maker of a function of one text."""

    def maker(given: Given) -> Expression:
        given.count(1)
        return applied(kernel, kind, given.text(0))

    return maker


def _joined(given: Given) -> Expression:
    operands = [given.text(place) for place in range(len(given.operands))]
    if not operands:
        given.count(1)

    def kernel(*values: Values) -> Values:
        return pc.binary_join_element_wise(*values, "", null_handling="emit_null")

    return applied(kernel, TEXT, *operands)


def _after(separator: str, values: Values) -> Values:
    return pc.binary_join_element_wise(separator, values, "", null_handling="emit_null")


def _joined_by(given: Given) -> Expression:
    if not given.operands:
        given.count(2)
    separator = given.words(0)
    operands = [given.text(place) for place in range(1, len(given.operands))]
    if not operands:
        given.count(2)

    def kernel(*values: Values) -> Values:
        pieces = [pc.if_else(pc.is_valid(value), _after(separator, value), "") for value in values]
        return pc.utf8_slice_codeunits(
            pc.binary_join_element_wise(*pieces, "", null_handling="emit_null"), len(separator)
        )

    return applied(kernel, TEXT, *operands)


def _part_of_text(given: Given) -> Expression:
    given.count(2, 3)
    length = given.number(2) if len(given.operands) > 2 else None  # noqa: PLR2004 - text, position, length
    position = given.number(1)
    return applied(lambda values: strings.part(values, position, length), TEXT, given.text(0))


def _left(given: Given) -> Expression:
    given.count(2)
    length = given.number(1)
    return applied(lambda values: strings.part(values, 1, length), TEXT, given.text(0))


def _right(given: Given) -> Expression:
    given.count(2)
    length = given.number(1)
    return applied(lambda values: strings.right(values, length), TEXT, given.text(0))


def _padded(given: Given) -> Expression:
    given.count(2, 3)
    width, padding = given.number(1), given.words(2) if len(given.operands) > 2 else " "  # noqa: PLR2004 - text, width, padding
    if len(padding) != 1:
        given.refuse("pads with one character, and no other number of them")
    return applied(
        lambda values: strings.padded(values, width, padding, left=given.name == "lpad"), TEXT, given.text(0)
    )


def _replaced(given: Given) -> Expression:
    given.count(2, 3)
    old, new = given.words(1), given.words(2) if len(given.operands) > 2 else ""  # noqa: PLR2004 - text, old, new
    kernel = (
        (lambda values: pc.replace_substring(values, pattern=old, replacement=new)) if old else (lambda values: values)
    )
    return applied(kernel, TEXT, given.text(0))


def _searched(given: Given) -> Expression:
    given.count(2)
    kernel = {"startswith": pc.starts_with, "endswith": pc.ends_with, "contains": pc.match_substring}[given.name]
    sought = given.words(1)
    return applied(lambda values: kernel(values, sought), FLAG, given.text(0))


def _extracted(given: Given) -> Expression:
    given.count(2, 3)
    group = given.number(2) if len(given.operands) > 2 else 1  # noqa: PLR2004 - text, pattern, group
    return applied(matching.extracted(given.words(1), group, given.at), TEXT, given.text(0))


# Times


def _timely(kind: pa.DataType) -> bool:
    return bool(types.is_date(kind) or types.is_timestamp(kind))


def _part_of_time(given: Given) -> Expression:
    given.count(1)
    is_clock = given.name in times.CLOCKS
    operand = given.expect(0, types.is_timestamp if is_clock else _timely, "timestamp" if is_clock else "date")
    if types.is_null(operand.type):
        given.refuse("null is no time; leave it out")
    return applied(lambda values: times.part(given.name, values, given.zone), INTEGER, operand)


def _cast_by_name(kind: pa.DataType) -> Callable[[Given], Expression]:
    def maker(given: Given) -> Expression:
        if len(given.operands) == 2:  # noqa: PLR2004 - value, pattern
            given.refuse(
                "with a pattern is not taken; the source option dateFormat or timestampFormat reads times by one"
            )
        given.count(1)
        return casts.cast(given.operands[0], kind, given.zone, given.at, lenient=False)

    return maker


_TIME_UNITS = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}


def _formatted(given: Given) -> Expression:
    given.count(2)
    operand, pattern = given.expect(0, _timely, "timestamp"), given.words(1)
    pieces, place = [], 0
    while place < len(pattern):
        unit = next((unit for unit in _TIME_UNITS if pattern.startswith(unit, place)), pattern[place])
        following = pattern[place + len(unit) : place + len(unit) + 1]
        if (len(unit) > 1 and following == unit[0]) or (len(unit) == 1 and (unit.isalpha() or unit in "'[]{}#%")):
            given.refuse(f"pattern {pattern!r}: expected yyyy, MM, dd, HH, mm, ss and signs between them")
        pieces.append(_TIME_UNITS.get(unit, unit))
        place += len(unit)
    form = "".join(pieces)
    if types.is_null(operand.type):
        given.refuse("null is no time; leave it out")
    return applied(lambda values: times.formatted(values, form, given.zone), TEXT, operand)


def _moved(given: Given) -> Expression:
    given.count(2)
    day = given.expect(0, types.is_date, "date")
    count = given.expect(1, lambda kind: kind in WHOLE[:3], "int")
    if given.name == "date_sub":
        count = applied(pc.negate_checked, INTEGER, converted(count, INTEGER), fails=(given.at, given.name))
    return applied(times.moved, DAY, converted(day, DAY), converted(count, INTEGER), fails=(given.at, given.name))


def _days_between(given: Given) -> Expression:
    given.count(2)
    days = [converted(given.expect(place, types.is_date, "date"), DAY) for place in range(2)]
    return applied(times.between, INTEGER, *days, fails=(given.at, given.name))


def _trimmed(kernel: Callable[..., Values]) -> Callable[[Given], Expression]:
    return _texts(lambda values: kernel(values, characters=" "))


_MAKERS: dict[str, Callable[[Given], Expression]] = {
    "not": _not,
    "and": _both,
    "or": _either,
    **dict.fromkeys(_COMPARES, _compared),
    "in": _in,
    "like": _alike,
    "ilike": _alike_in_any_case,
    **dict.fromkeys(("rlike", "regexp_like", "regexp"), _matched),
    "isnull": _is_null,
    "isnotnull": _is_not_null,
    "isnan": _is_nan,
    "case": _branches,
    **dict.fromkeys(("if", "iff"), _if),
    "coalesce": _coalesced,
    **dict.fromkeys(("nvl", "ifnull"), _coalesced),
    "nvl2": _if_not_null,
    "nullif": _null_if,
    **dict.fromkeys(("greatest", "least"), _extreme),
    **dict.fromkeys(("+", "-", "*"), _arithmetic),
    "/": _divided,
    "div": _divided_whole,
    **dict.fromkeys(("%", "mod"), _rest),
    **dict.fromkeys(("negative", "abs"), _signed),
    "positive": _as_it_is,
    **dict.fromkeys(("&", "|", "^"), _bits),
    "~": _other_bits,
    **dict.fromkeys(("upper", "ucase"), _texts(partial(strings.cased, upper=True))),
    **dict.fromkeys(("lower", "lcase"), _texts(partial(strings.cased, upper=False))),
    **dict.fromkeys(("length", "char_length", "character_length", "len"), _texts(pc.utf8_length, INTEGER)),
    **dict.fromkeys(("trim", "btrim"), _trimmed(pc.utf8_trim)),
    "ltrim": _trimmed(pc.utf8_ltrim),
    "rtrim": _trimmed(pc.utf8_rtrim),
    "reverse": _texts(pc.utf8_reverse),
    **dict.fromkeys(("||", "concat"), _joined),
    "concat_ws": _joined_by,
    **dict.fromkeys(("substr", "substring"), _part_of_text),
    "left": _left,
    "right": _right,
    **dict.fromkeys(("lpad", "rpad"), _padded),
    "replace": _replaced,
    **dict.fromkeys(("startswith", "endswith", "contains"), _searched),
    "regexp_extract": _extracted,
    **dict.fromkeys((*times.DAYS, *times.CLOCKS), _part_of_time),
    **dict.fromkeys(("to_date", "date"), _cast_by_name(DAY)),
    "to_timestamp": _cast_by_name(pa.timestamp("us", "UTC")),
    "date_format": _formatted,
    **dict.fromkeys(("date_add", "date_sub"), _moved),
    **dict.fromkeys(("datediff", "date_diff"), _days_between),
}
