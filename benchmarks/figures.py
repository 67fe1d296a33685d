"""Measurements and their meaning: medians, spreads, ratios, verdicts. Nothing here runs or writes anything."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Rule = Literal["faster", "longer", "below"]
"""How a figure is read: `faster` base / ours, `longer` ours / base, `below` ours against a fixed bound."""


@dataclass(frozen=True)
class Series:
    """One contender's repeated measurements, in the order they were taken; smaller is better. Never empty."""

    label: str
    values: tuple[float, ...]
    unit: str = "s"

    @property
    def median(self) -> float:
        """Return the median."""
        return statistics.median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        """Return the least and the greatest."""
        return min(self.values), max(self.values)

    @staticmethod
    def from_json(form: dict[str, Any]) -> Series:
        """Return the series that `asdict` has written."""
        return Series(form["label"], tuple(form["values"]), form["unit"])


@dataclass(frozen=True)
class Figure:
    """One comparison of a case: `ours` against `base` by `rule`, with the required `limit` (`None` if there is no requirement).

    With the rule `below` the limit is in the unit of `ours` and there is no `base`.
    """

    case: str
    what: str
    ours: Series
    base: Series | None = None
    rule: Rule = "faster"
    limit: float | None = None
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Return the ratio of the medians, `None` without a comparison."""
        if self.base is None:
            return None
        return _ratio(self.rule, self.ours.median, self.base.median)

    @property
    def ratio_spread(self) -> tuple[float, float] | None:
        """Return the least and the greatest ratio of measurements that were taken side by side.

        If one side ran less often, any two measurements are compared.
        """
        if self.base is None:
            return None
        ours, base = self.ours.values, self.base.values
        pairs = list(zip(ours, base, strict=True)) if len(ours) == len(base) else [(a, b) for a in ours for b in base]
        ratios = [_ratio(self.rule, mine, other) for mine, other in pairs]
        return min(ratios), max(ratios)

    @property
    def passed(self) -> bool | None:
        """Tell whether the requirement is met, `None` without one."""
        if self.limit is None:
            return None
        if self.rule == "below":
            return self.ours.spread[1] < self.limit
        assert self.ratio is not None
        return self.ratio >= self.limit if self.rule == "faster" else self.ratio <= self.limit

    @property
    def asked(self) -> str:
        """Return the requirement in words; `-` without one."""
        if self.limit is None:
            return "-"
        if self.rule == "below":
            return f"< {shown(self.limit, self.ours.unit)}"
        return f"{'≥' if self.rule == 'faster' else '≤'} {self.limit:g} x"

    @property
    def measured(self) -> str:
        """Return the ratio in words, or the worst value where there is a bound instead."""
        if self.ratio is None:
            return shown(self.ours.spread[1], self.ours.unit)
        return f"{self.ratio:.2f} x as {'fast' if self.rule == 'faster' else 'long'}"

    @property
    def verdict(self) -> str:
        """Return pass, miss, or `-`."""
        return {True: "pass", False: "miss", None: "-"}[self.passed]

    def to_json(self) -> dict[str, Any]:
        """Return the figure with its derived values, for people who read the JSON."""
        return asdict(self) | {"ratio": self.ratio, "ratio_spread": self.ratio_spread, "passed": self.passed}

    @staticmethod
    def from_json(form: dict[str, Any]) -> Figure:
        """Return the figure of `to_json`."""
        base = form["base"]
        return Figure(
            form["case"],
            form["what"],
            Series.from_json(form["ours"]),
            Series.from_json(base) if base else None,
            form["rule"],
            form["limit"],
            dict(form["facts"]),
        )


def _ratio(rule: Rule, ours: float, base: float) -> float:
    return base / ours if rule == "faster" else ours / base


def shown(value: float, unit: str) -> str:
    """Return a value with its unit and about three digits: `3.91 s`, `112 ms`, `2,310 bytes`."""
    if unit == "bytes":
        return f"{value:,.0f} bytes"
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0  # noqa: PLR2004 - three digits
    return f"{value:,.{digits}f} {unit}"


def spread(series: Series) -> str:
    """Return the spread in words: `3.80-4.02`; one value if there is only one measurement."""
    low, high = (shown(value, series.unit).rpartition(" ")[0] for value in series.spread)
    return low if len(series.values) == 1 else f"{low}-{high}"
