"""Finding all that is refused among many, by trying groups of them.

A trial tells of a group whether anything in it is refused, and costs about the same for one as for hundreds. So a group is
as large as it can be while nothing in it is likely to be refused; where something is, halving finds the first. If one in a hundred is
refused, each of the others costs about a tenth of a trial; if all are, each is tried once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

ErrorT = TypeVar("ErrorT", bound=Exception)


def refused(count: int, trial: Callable[[int, int], ErrorT | None]) -> list[tuple[int, ErrorT]]:
    """Return which of `count` things are refused, in order, each with what is said of it alone.

    `trial(low, high)` returns what is said of those of them that are in front of `high`, from `low` on; `None`: all are right.
    What is right alone must be right in a group of others that are.
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
    """Return the first that is refused of those in [low, high), of which one is."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if trial(low, middle) is None else (low, middle)
    return low
