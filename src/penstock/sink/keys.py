"""Which keys of batch writes are done: a set of texts, exact and for ever, in little room.

A set that holds every key it ever had grows without end. But keys count something: batches of a query (`<query id>/17`), days
(`2026-01-31`), runs. So a key is kept as the text in front of its last number, and that number as part of a span: 0 to 17 of one query
are one span, whatever their order, and a month is one. Which key is meant can be told back from text and number, so nothing is
confused with anything: `a01` is the text `a0` and the number 1, and never `a` and 1. A key that ends in no number has the number -1.

What does not count (random keys) takes an entry each. So a record has the entries that changed lately, and tables among the staged
files the others, as with the lengths of growing files.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.sink.lengths import LengthTables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.sink.ledger import State

_NUMBERED = re.compile(r"(.*?)(0|[1-9]\d{0,17})", re.DOTALL)
_UNNUMBERED = -1


class KeyTables(LengthTables):
    """The keys that are done, of one sink. Picklable."""

    field: ClassVar[str] = "written"
    tables: ClassVar[str] = "written_tables"
    about: ClassVar[str] = "the keys of {} kinds of batch writes"
    in_record_max: ClassVar[int | None] = 64

    @staticmethod
    def _check_names(values: Mapping[str, Any]) -> None:
        """Take any text: keys are no paths."""

    def has(self, state: State, key: str) -> bool:
        """Tell whether the write of this key is done."""
        text, number = parted(key)
        return any(first <= number <= last for first, last in self.known(state).get(text, ()))

    def with_key(self, state: State, key: str) -> dict[str, list[list[int]]]:
        """Return `written` of the record behind `state`, in which the write of this key is done."""
        text, number = parted(key)
        return {**state.written, text: _added(self.known(state).get(text, []), number)}


def parted(key: str) -> tuple[str, int]:
    """Return the text in front of the last number of a key, and that number; -1 if there is none."""
    match = _NUMBERED.fullmatch(key)
    return (match[1], int(match[2])) if match else (key, _UNNUMBERED)


def _added(spans: list[list[int]], number: int) -> list[list[int]]:
    """Return the spans with a number more, in order, those that touch as one."""
    merged: list[list[int]] = []
    for first, last in sorted([*spans, [number, number]]):
        if merged and first <= merged[-1][1] + 1 and merged[-1][0] != _UNNUMBERED:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    return merged
