"""Writes values as text for names of directories, as Spark's own `partitionBy` does.

So Spark, Hive and others infer the same from the directories of a table, whichever program wrote it. Times are local times;
`tests/spark/test_buckets.py` compares each type with the installed Spark.

| Type | Written as |
|---|---|
| whole numbers, text | as they are |
| `boolean` | `true`, `false` |
| `float`, `double` | as Java does: `1.5`, `1.0E10`, `1.0E-4`, `NaN`, `-Infinity`; -0.0 is written as 0.0, since they are equal |
| `decimal` | all digits of its scale: `1.5000` |
| `date` | `2026-01-31` |
| `timestamp` | `2026-01-31 23:30:00.5`, without zeros at the end of a fraction, and without a fraction of zero |
| `interval day to second` | `INTERVAL '1 02:03:04.5' DAY TO SECOND` |
| `time` | `23:30:00.5` (Spark's own sink cannot do that) |
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import types

if TYPE_CHECKING:
    from collections.abc import Callable
    from decimal import Decimal

_PLAIN_FROM, _PLAIN_BELOW = 1e-3, 1e7  # Java writes other numbers with an exponent


# Numbers that have a fixed text; -0.0 is equal to 0.0.
_NAMED = {0.0: "0.0", float("inf"): "Infinity", float("-inf"): "-Infinity"}


def texts(values: pa.Array) -> list[str | None]:
    """Return the text of each value, `None` for a null. Raises `OverflowError`, `ValueError` for times outside the calendar."""
    if types.is_time(values.type):  # Python's own times have no nanoseconds
        return [value and _shortened(value) for value in values.cast(pa.string()).to_pylist()]
    for is_kind, writes in _WRITERS:
        if is_kind(values.type):
            return [None if value is None else writes(value) for value in _python_values(values)]
    written: list[str | None] = values.cast(pa.string()).to_pylist()
    return written


def _python_values(values: pa.Array) -> Any:  # noqa: ANN401 - a sequence of values or None
    """Return the values as Python objects; floats as numpy's, which know how many digits distinguish a value from its neighbours."""
    if not types.is_floating(values.type):
        return values.to_pylist()
    numbers = values.to_numpy(zero_copy_only=False)
    return [number if valid else None for number, valid in zip(numbers, values.is_valid().to_pylist(), strict=True)]


def _number(value: np.floating[Any]) -> str:
    if name := _NAMED.get(float(value), "NaN" if np.isnan(value) else ""):
        return name
    if _PLAIN_FROM <= abs(value) < _PLAIN_BELOW:
        return np.format_float_positional(value, unique=True, trim="0")
    mantissa, _, exponent = np.format_float_scientific(value, unique=True, trim="0").partition("e")
    closer, _, power = f"{float(value):.1e}".partition("e")  # Java takes two digits where one would do: 4.9E-324
    if mantissa.endswith(".0") and type(value)(f"{closer}e{power}") == value:
        mantissa, exponent = closer, power
    return f"{mantissa}E{int(exponent)}"


def _decimal(value: Decimal) -> str:
    return format(value, "f")


def _flag(value: bool) -> str:  # noqa: FBT001 - a value of a column
    return "true" if value else "false"


def _moment(value: datetime) -> str:
    return _shortened(f"{_day(value)} {value:%H:%M:%S.%f}")


def _day(value: date) -> str:
    return f"{value.year:04d}-{value.month:02d}-{value.day:02d}"


def _shortened(clock: str) -> str:
    """Return a time of day without the zeros at the end of its fraction."""
    whole, dot, fraction = clock.partition(".")
    return (whole + dot + fraction.rstrip("0")).rstrip(".")


def _interval(value: timedelta) -> str:
    sign, value = ("-", -value) if value < timedelta(0) else ("", value)
    minutes, seconds = divmod(value.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    clock = _shortened(f"{hours:02d}:{minutes:02d}:{seconds:02d}.{value.microseconds:06d}")
    return f"INTERVAL '{sign}{value.days} {clock}' DAY TO SECOND"


_WRITERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], str]], ...] = (
    (types.is_boolean, _flag),
    (types.is_floating, _number),
    (types.is_decimal, _decimal),
    (types.is_timestamp, _moment),
    (types.is_date, _day),
    (types.is_duration, _interval),
)
