"""Functions and operators that give a boolean, with Spark's answers: comparisons, `and`, `or`, `like`, and tests for null."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc
from pyarrow import types

from penstock.formats.schema import spark_name
from penstock.ingestion.sql import matching, strings
from penstock.ingestion.sql.coercion import together
from penstock.ingestion.sql.expression import Expression, applied
from penstock.ingestion.sql.given import FLAG

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.ingestion.sql.expression import Rows, Values
    from penstock.ingestion.sql.given import Given, Maker


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


def compared(given: Given) -> Expression:
    """Return a comparison; the name of the call is its operator."""
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


MAKERS: dict[str, Maker] = {
    "not": _not,
    "and": _both,
    "or": _either,
    **dict.fromkeys(_COMPARES, compared),
    "in": _in,
    "like": _alike,
    "ilike": _alike_in_any_case,
    **dict.fromkeys(("rlike", "regexp_like", "regexp"), _matched),
    "isnull": _is_null,
    "isnotnull": _is_not_null,
    "isnan": _is_nan,
}
