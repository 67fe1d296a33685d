"""Typed trees that are evaluated for a batch of rows, a column at a time.

Kernels compute all rows of a batch at once. But Spark evaluates a branch of `case` only for the rows that take it, and the right
side of `and` only for rows whose left side is not false. That matters if the evaluation can fail: `case when n <> 0 then m / n
end`. So `Rows` has a mask of the rows to evaluate, and a column is null for the others, because no kernel fails on null.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import PenstockError
from penstock.ingestion.sql.tree import refuse

if TYPE_CHECKING:
    from collections.abc import Callable

    Values: TypeAlias = pa.Array | pa.Scalar


@dataclass(frozen=True)
class Rows:
    """The rows to evaluate: `asked` is a column of booleans without nulls, `None` for all rows."""

    batch: pa.RecordBatch
    asked: pa.Array | None = None

    def of(self, column: pa.Array) -> pa.Array:
        """Return a column of the batch, with null for the rows that are not evaluated."""
        return column if self.asked is None else pc.if_else(self.asked, column, pa.scalar(None, column.type))

    def where(self, condition: Values) -> Rows:
        """Return those of these rows for which a condition is true."""
        taken = pc.fill_null(self.spread(condition), False)  # noqa: FBT003 - Arrow's own parameter
        return replace(self, asked=taken if self.asked is None else pc.and_(self.asked, taken))

    def spread(self, values: Values) -> pa.Array:
        """Return a value for each row."""
        if isinstance(values, pa.Scalar):
            return pa.repeat(values, self.batch.num_rows)
        return values


@dataclass(frozen=True)
class Expression:
    """A value for each row, of one type.

    `fails`: the evaluation may raise for some values; `constant`: it is a literal of this kind and text.
    """

    type: pa.DataType
    run: Callable[[Rows], Values]
    fails: bool = False
    constant: tuple[str, str] | None = None

    def asked_of(self, rows: Rows, condition: Values) -> Values:
        """Return the values for the rows for which a condition is true; the values for other rows are arbitrary."""
        return self.run(rows.where(condition) if self.fails else rows)


def applied(
    kernel: Callable[..., Values], kind: pa.DataType, *arguments: Expression, fails: tuple[int, str] | None = None
) -> Expression:
    """Return a kernel over the values of other expressions. If it can fail, `fails` is its position in the text and its name."""

    def run(rows: Rows) -> Values:
        values = [argument.run(rows) for argument in arguments]
        if fails is None:
            return kernel(*values)
        try:
            return kernel(*values)
        except (pa.ArrowInvalid, ValueError, OverflowError) as error:
            at, name = fails
            reason = " ".join(str(getattr(error, "message", error)).split())
            if not rows.batch.num_rows:
                refuse(at, f"{name} fails whatever the rows are: {reason}")
            msg = (
                f"the SQL fails on a row: {name}, character {at + 1}: {reason}; exclude such rows by a condition "
                "before it (case when, where), or write try_cast for cast; nothing of this batch is visible"
            )
            raise PenstockError(msg) from error

    return Expression(kind, run, fails=fails is not None or any(argument.fails for argument in arguments))


def written(value: Any, kind: pa.DataType, constant: tuple[str, str]) -> Expression:  # noqa: ANN401 - what Arrow has for the type
    """Return a constant."""
    scalar = pa.scalar(value, kind)
    return Expression(kind, lambda _: scalar, constant=constant)
