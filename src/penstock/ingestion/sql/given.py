"""The operands of a call, and the checks before an expression is made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import pyarrow as pa
from pyarrow import types

from penstock.formats.schema import spark_name
from penstock.ingestion.sql.coercion import converted
from penstock.ingestion.sql.tree import refuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.ingestion.sql.expression import Expression

    Maker: TypeAlias = Callable[["Given"], Expression]

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
        """Return an operand if it is of a kind, else raise `SqlError`; a bare null is of every kind."""
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
        """Return the text of a literal."""
        constant = self.operands[place].constant
        if constant is None or not types.is_string(self.operands[place].type):
            self.refuse("expected a text that is written down, in quotes, and no column or expression")
        return constant[1]

    def number(self, place: int) -> int:
        """Return the value of a whole-number literal."""
        constant = self.operands[place].constant
        if constant is None or self.operands[place].type != INTEGER:
            self.refuse("expected a whole number that is written down, and no column or expression")
        return int(constant[1])
