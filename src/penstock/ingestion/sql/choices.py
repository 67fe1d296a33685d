"""Functions that choose one of several values: `case`, `coalesce`, `greatest` and the like."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.formats.schema import spark_name
from penstock.ingestion.sql import conditions
from penstock.ingestion.sql.coercion import together
from penstock.ingestion.sql.expression import Expression, applied
from penstock.ingestion.sql.given import FLAG, Given

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.ingestion.sql.expression import Rows, Values
    from penstock.ingestion.sql.given import Maker


def _branches(given: Given) -> Expression:
    """Return the value after the first condition that is true. Operands are conditions and values by turns, and finally the default."""
    pairs = len(given.operands) // 2
    conditions = [given.flag(2 * place) for place in range(pairs)]
    if any(types.is_null(given.operands[2 * place].type) for place in range(pairs)):
        given.refuse("null is no condition; leave that branch out")
    values = [given.operands[2 * place + 1] for place in range(pairs)] + list(given.operands[2 * pairs :])
    *values, otherwise = together(values, given.at, given.name, chosen=True)
    return _chosen(conditions, values, otherwise)


def _chosen(conditions: Sequence[Expression], values: Sequence[Expression], otherwise: Expression) -> Expression:
    """Return values by conditions; each condition is evaluated only for rows for which no earlier condition was true."""

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
    return _chosen([applied(pc.is_valid, FLAG, value) for value in values], values, last)


def _null_if(given: Given) -> Expression:
    given.count(2)
    equal = conditions.compared(Given("=", given.operands, given.at, given.zone))
    value = given.operands[0]
    return _chosen(
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
    return _chosen([applied(pc.is_valid, FLAG, value)], [first], second)


def _extreme(given: Given) -> Expression:
    operands = together(given.operands, given.at, given.name, chosen=True)
    kind = operands[0].type
    if len(operands) < 2 or types.is_nested(kind) or types.is_floating(kind) or types.is_boolean(kind):  # noqa: PLR2004 - to choose from
        given.refuse(f"is taken of two values or more, and not of {spark_name(kind)}; write case when")
    kernel = pc.max_element_wise if given.name == "greatest" else pc.min_element_wise
    return applied(lambda *values: kernel(*values, skip_nulls=True), kind, *operands)


MAKERS: dict[str, Maker] = {
    "case": _branches,
    **dict.fromkeys(("if", "iff"), _if),
    **dict.fromkeys(("coalesce", "nvl", "ifnull"), _coalesced),
    "nvl2": _if_not_null,
    "nullif": _null_if,
    **dict.fromkeys(("greatest", "least"), _extreme),
}
