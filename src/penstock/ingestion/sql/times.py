"""Kernels on times and days, in the zone of the session."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.formats.zones import instants, local_times

if TYPE_CHECKING:
    from penstock.ingestion.sql.expression import Values

_LOCAL = pa.timestamp("us")


def column_of(values: Values) -> pa.Array:
    """Return a scalar or a column as a column."""
    return pa.array([values.as_py()], values.type) if isinstance(values, pa.Scalar) else values


def local(values: Values, zone: str) -> pa.Array:
    """Return the local times of instants in the zone; times without a zone, and days (as midnights), stay unchanged."""
    column = column_of(values)
    if not types.is_timestamp(column.type) or column.type.tz is None:
        return column.cast(_LOCAL)
    return local_times(column, zone)


def as_given(values: Values, made: pa.Array) -> Values:
    """Return a result as a scalar if `values` is one, else as a column."""
    return made[0] if isinstance(values, pa.Scalar) else made


def day(values: Values, zone: str) -> Values:
    """Return the days of times."""
    shown = pc.floor_temporal(local(values, zone), unit="day")
    return as_given(values, shown.cast(pa.date32()))


def moment(values: Values, kind: pa.DataType, zone: str) -> Values:
    """Return days (their midnights), or times, as times of `kind`, with or without a zone."""
    shown = local(values, zone)
    return as_given(values, shown if kind.tz is None else instants(shown, zone))


def part(unit: str, values: Values, zone: str) -> Values:
    """Return a part of times or days, by the name of its function in SQL."""
    shown = local(values, zone)
    number = _PARTS[unit](shown)
    return as_given(values, number.cast(pa.int32()))


_PARTS = {
    "year": pc.year,
    "quarter": pc.quarter,
    "month": pc.month,
    "day": pc.day,
    "dayofmonth": pc.day,
    "dayofyear": pc.day_of_year,
    "weekofyear": pc.iso_week,
    "dayofweek": partial(pc.day_of_week, count_from_zero=False, week_start=7),
    "hour": pc.hour,
    "minute": pc.minute,
    "second": pc.second,
}
DAYS = ("year", "quarter", "month", "day", "dayofmonth", "dayofyear", "weekofyear", "dayofweek")
CLOCKS = ("hour", "minute", "second")


def _check_years(shown: pa.Array) -> None:
    """Raise `ArrowInvalid` for years that Java does not write with four digits."""
    years = pc.min_max(pc.year(shown))
    if years["min"].is_valid and not (years["min"].as_py() >= 0 and years["max"].as_py() <= 9999):  # noqa: PLR2004 - all of four digits
        msg = "a year of other than four digits"
        raise pa.ArrowInvalid(msg)


def day_text(values: Values) -> Values:
    """Return days as text."""
    column = column_of(values)
    _check_years(column)
    return as_given(values, column.cast(pa.string()))


def text(values: Values, zone: str) -> Values:
    """Return times as text, without zeros at the end of a fraction."""
    shown = local(values, zone)
    _check_years(shown)
    plain = pc.replace_substring_regex(shown.cast(pa.string()), r"0+$", "")
    whole = pc.strftime(shown.cast(pa.timestamp("s"), safe=False), format="%Y-%m-%d %H:%M:%S")
    return as_given(values, pc.if_else(pc.ends_with(plain, "."), whole, plain))


def formatted(values: Values, form: str, zone: str) -> Values:
    """Return times or days as text in a form of `strftime`."""
    shown = pc.floor_temporal(local(values, zone), unit="second")
    _check_years(shown)
    return as_given(values, pc.strftime(shown.cast(pa.timestamp("s")), format=form))


def moved(days: Values, count: Values) -> Values:
    """Return days so many days later. `ArrowInvalid` if a day is out of range."""
    whole = days.cast(pa.int32()) if isinstance(days, pa.Scalar) else days.view(pa.int32())
    later = pc.add_checked(whole, pc.cast(count, pa.int32()))
    return later.cast(pa.date32()) if isinstance(later, pa.Scalar) else later.view(pa.date32())


def between(end: Values, start: Values) -> Values:
    """Return the number of days between two days."""
    whole = [days.cast(pa.int32()) if isinstance(days, pa.Scalar) else days.view(pa.int32()) for days in (end, start)]
    return pc.subtract_checked(*whole)
