"""Times from their fields: numbers such as day and hour, and the times that they mean together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.formats.malformed import MalformedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]

ABSENT = -1  # marks a missing field; no field is negative
NO_OFFSET = 1 << 40  # seconds
_OFFSET_SECONDS_MAX = 18 * 3600  # Java's
_CENTURY, _EPOCH_YEAR = 2000, 1970  # the century of a year of two digits
_SECOND_MICROS = 1_000_000
_BOUNDS = {
    "year": (0, 9999),
    "month": (1, 12),
    "day": (1, 31),
    "day of year": (1, 366),
    "hour": (0, 23),
    "hour from 1": (1, 24),
    "half hour from 1": (1, 12),
    "half hour": (0, 11),
    "minute": (0, 59),
    "second": (0, 59),
}


class Moments:
    """Numbers by field, and the times that they mean. Raises `MalformedError` for an impossible time, such as a 31st of February."""

    def __init__(self, numbers: Mapping[str, Numbers], count: int) -> None:
        self._numbers = numbers
        self._count = count
        for of, (low, high) in _BOUNDS.items():
            column = numbers.get(of)
            if (
                column is not None
                and count
                and (column.max() > high or (column.min() < low and self._odd(column, low)))
            ):
                raise MalformedError

    def enter(self, rows: Numbers, days: Numbers, micros: Numbers, offsets: Numbers) -> None:
        """Enter the times that the numbers mean into the columns, at these rows."""
        days[rows], micros[rows] = self._days(), self._micros()
        shifts = self._numbers.get("offset")
        if shifts is not None:
            if ((np.abs(shifts) > _OFFSET_SECONDS_MAX) & (shifts != NO_OFFSET)).any():
                raise MalformedError
            offsets[rows] = shifts

    @staticmethod
    def _odd(column: Numbers, low: int) -> bool:
        return bool(((column < low) & (column != ABSENT)).any())

    def _days(self) -> Numbers:
        """Return the days since 1970."""
        year = (
            self._of("short year", _EPOCH_YEAR - _CENTURY) + _CENTURY
            if "short year" in self._numbers
            else self._of("year", _EPOCH_YEAR)
        )
        months = (year - _EPOCH_YEAR) * 12 + self._month() - 1
        low, high = (int(months.min()), int(months.max())) if self._count else (0, 0)
        firsts = np.arange(low, high + 2).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
        first: Numbers = firsts[months - low]
        if "day of year" in self._numbers:
            days: Numbers = first + self._of("day of year", 1) - 1
            if (days.astype("datetime64[D]").astype("datetime64[Y]").astype(np.int64) + _EPOCH_YEAR != year).any():
                raise MalformedError
            return days
        if "day" not in self._numbers:
            return first
        days = first + self._of("day", 1) - 1
        if (days >= firsts[months - low + 1]).any():
            raise MalformedError
        return days

    def _micros(self) -> Numbers:
        """Return the microseconds since midnight."""
        micros = self._hour() * 3_600_000_000
        for of, size in (("minute", 60_000_000), ("second", _SECOND_MICROS), ("fraction", 1)):
            if of in self._numbers:
                micros = micros + self._of(of, 0) * size
        return micros

    def _month(self) -> Numbers:
        of = next((of for of in ("month", "short month", "long month") if of in self._numbers), "month")
        return self._of(of, 1)

    def _hour(self) -> Numbers:
        half = self._of("half", 0)
        for of in ("half hour", "half hour from 1"):
            if of in self._numbers:
                return self._of(of, 0) % 12 + 12 * half
        hour = self._of("hour from 1", 0) % 24 if "hour from 1" in self._numbers else self._of("hour", 0)
        if "half" in self._numbers and (hour // 12 != half).any():
            raise MalformedError
        return hour

    def _of(self, of: str, default: int) -> Numbers:
        """Return a field, with the default for values that lack it."""
        column = self._numbers.get(of)
        if column is None:
            return np.full(self._count, default, np.int64)
        return np.where(column == ABSENT, default, column) if self._count and column.min() == ABSENT else column
