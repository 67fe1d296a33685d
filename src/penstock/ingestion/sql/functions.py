"""All functions and operators by their names: each with the types that it takes, the type of its result, and a kernel with Spark's answers.

A maker gets the typed operands and returns the expression. It refuses operands that it does not support.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.ingestion.sql import choices, conditions, dates, numbers, refused, texts
from penstock.ingestion.sql.given import Given
from penstock.ingestion.sql.tree import refuse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.ingestion.sql.expression import Expression
    from penstock.ingestion.sql.given import Maker

_MAKERS: dict[str, Maker] = conditions.MAKERS | choices.MAKERS | numbers.MAKERS | texts.MAKERS | dates.MAKERS


def made(name: str, operands: Sequence[Expression], at: int, zone: str) -> Expression:
    """Return the expression of a call. Raises `SqlError`."""
    maker = _MAKERS.get(name)
    if maker is None:
        refuse(at, refused.of_function(name, {known for known in _MAKERS if known.isidentifier()}))
    return maker(Given(name, tuple(operands), at, zone))
