"""Finding all refused items among many, by trying groups of them.

A trial tells whether anything in a group is refused, and costs about the same for one item as for hundreds. So a group
is as large as it can be while nothing in it is likely to be refused; if something is, halving finds the first. If one
item in a hundred is refused, each of the others costs about a tenth of a trial; if all are refused, each is tried once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

ErrorT = TypeVar("ErrorT", bound=Exception)


def refused(count: int, trial: Callable[[int, int], ErrorT | None]) -> list[tuple[int, ErrorT]]:
    """Return which of `count` items are refused, in order, each with its own error.

    `trial(low, high)` returns the error of the items from `low` up to, but not including, `high`; `None`: all are
    right. An item that is right alone must be right in a group of right items.
    """
    refusals: list[tuple[int, ErrorT]] = []
    at, size = 0, count
    while at < count:
        end = min(at + size, count)
        refusal = trial(at, end)
        if refusal is None:
            at, size = end, 2 * size
            continue
        first = _first(at, end, trial)
        alone = refusal if end - at == 1 else trial(first, first + 1)
        if alone is not None:
            refusals.append((first, alone))
        size = max((size + first - at) // 4, 1)
        at = first + 1
    return refusals


def _first(low: int, high: int, trial: Callable[[int, int], ErrorT | None]) -> int:
    """Return the first refused item in [low, high), which contains at least one."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if trial(low, middle) is None else (low, middle)
    return low
