"""How long rows took: a histogram whose buckets grow by an eighth of a factor of e, so that any number of rows takes the same room."""

from __future__ import annotations

from math import expm1, log1p
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_STEPS = 8  # buckets a factor of e
_BUCKETS = 40 * _STEPS  # the last one ends at thousands of years


class Latencies:
    """How many rows took how long, of one operator."""

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        self._buckets = [0] * _BUCKETS

    def add(self, seconds: float) -> None:
        """Count a row."""
        self._buckets[int(_STEPS * log1p(seconds * 1e6))] += 1

    def counts(self) -> dict[int, int]:
        """Return how many rows took how long, by the logarithm of their microseconds; see `milliseconds`."""
        return {bucket: rows for bucket, rows in enumerate(self._buckets) if rows}


def milliseconds(latencies: Mapping[int, int], share: float) -> float | None:
    """Return what this share of the rows took at most, from the `counts` of `Latencies`; exact to an eighth."""
    left = share * sum(latencies.values())
    for bucket in sorted(latencies):
        left -= latencies[bucket]
        if left <= 0:
            return float(round(expm1((bucket + 1) / _STEPS) / 1000, 3))
    return None
