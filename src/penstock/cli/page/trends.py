"""Five minutes of numbers, for small plots: how fast pipelines read and write, and how long batches take.

They are taken from the meter, in memory, whether somebody looks or not; `KEPT` samples per pipeline are kept.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.metrics.meter import Key

EVERY_SECONDS = 2.0
KEPT = 150
_OVER = 5  # samples per rate: a batch commits all its rows at once, which must not be a peak
_COUNTERS = (("input_bytes", ""), ("rows", ""), ("batches", ""), ("phase_seconds", "triggerExecution"))


@dataclass(frozen=True)
class MeterSample:
    """Counters at one moment (seconds of a clock that never goes back); an unknown counter is 0."""

    at: float
    counters: tuple[float, ...]


@dataclass
class Trend:
    """The samples of one pipeline."""

    samples: deque[MeterSample] = field(default_factory=lambda: deque(maxlen=KEPT))

    def take(self, at: float, values: Mapping[Key, float]) -> None:
        """Take a sample. Counters that went back belong to another query or output, so earlier samples are dropped."""
        counters = tuple(values.get(key, 0.0) for key in _COUNTERS)
        if self.samples and any(now < before for now, before in zip(counters, self.samples[-1].counters, strict=True)):
            self.samples.clear()
        self.samples.append(MeterSample(at, counters))

    def rates(self, counter: int) -> list[float]:
        """Return by how much a counter grew per second, a number for each sample but the first."""
        samples = list(self.samples)
        pairs = ((samples[max(end - _OVER, 0)], samples[end]) for end in range(1, len(samples)))
        return [
            (now.counters[counter] - before.counters[counter]) / max(now.at - before.at, 0.001) for before, now in pairs
        ]

    @property
    def bytes_read(self) -> list[float]:
        """Bytes read a second."""
        return self.rates(0)

    @property
    def rows_written(self) -> list[float]:
        """Rows committed a second."""
        return self.rates(1)

    @property
    def batch_seconds(self) -> list[float]:
        """Seconds per batch, as the mean over those that ended lately; if none did, the previous value."""
        seconds: list[float] = []
        samples = list(self.samples)
        for before, now in pairwise(samples):
            ended = now.counters[2] - before.counters[2]
            last = seconds[-1] if seconds else 0.0
            seconds.append((now.counters[3] - before.counters[3]) / ended if ended else last)
        return seconds


class Trends:
    """The trends of all pipelines, by name."""

    def __init__(self) -> None:
        self._trends: dict[str, Trend] = {}

    def sample(self, at: float, values: Mapping[str, Mapping[Key, float]]) -> None:
        """Take a sample of each pipeline that there is, and forget the others."""
        for name in self._trends.keys() - values.keys():
            del self._trends[name]
        for name, known in values.items():
            if ("rows", "") not in known:
                continue  # with 0 for an unknown count, all earlier rows would look new
            self._trends.setdefault(name, Trend()).take(at, known)

    def of(self, name: str) -> Trend:
        """Return the trend of a pipeline; an empty one if it has none yet."""
        return self._trends.get(name) or Trend()
