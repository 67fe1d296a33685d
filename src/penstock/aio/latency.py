"""How long rows took: a histogram with eight buckets per factor of e, which takes the same space for any number of rows."""

from __future__ import annotations

from math import expm1, log1p
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_STEPS = 8  # buckets per factor of e
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
        """Return how many rows took how long, by bucket (logarithm of microseconds); `milliseconds` reads it."""
        return {bucket: rows for bucket, rows in enumerate(self._buckets) if rows}


def milliseconds(latencies: Mapping[int, int], share: float) -> float | None:
    """Return within which time this share of the rows ended, from the `counts` of `Latencies`; exact to an eighth."""
    left = share * sum(latencies.values())
    for bucket in sorted(latencies):
        left -= latencies[bucket]
        if left <= 0:
            return float(round(expm1((bucket + 1) / _STEPS) / 1000, 3))
    return None
