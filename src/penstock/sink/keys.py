"""Remembers which keys of batch writes are done: a set of texts, exact and for ever, in little space.

A set that holds every key ever written grows without end. But keys usually count something: batches of a query (`<query id>/17`),
days (`2026-01-31`), runs. So a key is kept as the text before its last number, and that number as part of a span: 0 to 17 of one
query are one span, whatever their order, and a month is one span. Text and number together give back the key, so two keys are
never confused: `a01` is the text `a0` and the number 1, never `a` and 1. A key that does not end in a number has the number -1.

Keys that do not count anything (random keys) take one entry each. So a record has the entries that changed lately, and tables
among the staged files have the others, as with the lengths of growing files.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.sink.lengths import LengthTables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.sink.ledger import State

_NUMBERED = re.compile(r"(.*?)(0|[1-9][0-9]{0,17})", re.DOTALL)  # `\d` would also be the digits of other scripts
_UNNUMBERED = -1


class KeyTables(LengthTables):
    """The keys of one sink whose writes are done. Picklable."""

    field: ClassVar[str] = "written"
    tables: ClassVar[str] = "written_tables"
    about: ClassVar[str] = "the keys of {} kinds of batch writes"
    in_record_max: ClassVar[int | None] = 64

    @staticmethod
    def _check_names(values: Mapping[str, Any]) -> None:
        """Accept any text, because keys are not paths."""

    def has(self, state: State, key: str) -> bool:
        """Tell whether the write of this key is done."""
        text, number = parted(key)
        return any(first <= number <= last for first, last in self.known(state).get(text, ()))

    def with_key(self, state: State, key: str) -> dict[str, list[list[int]]]:
        """Return `written` for the record that follows `state`, in which the write of this key is done."""
        text, number = parted(key)
        return {**state.written, text: _added(self.known(state).get(text, []), number)}


def parted(key: str) -> tuple[str, int]:
    """Return the text before the last number of a key, and that number; -1 if the key does not end in one."""
    match = _NUMBERED.fullmatch(key)
    return (match[1], int(match[2])) if match else (key, _UNNUMBERED)


def _added(spans: list[list[int]], number: int) -> list[list[int]]:
    """Return the spans with one more number, in order; adjacent spans are merged."""
    merged: list[list[int]] = []
    for first, last in sorted([*spans, [number, number]]):
        if merged and first <= merged[-1][1] + 1 and merged[-1][0] != _UNNUMBERED:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    return merged
