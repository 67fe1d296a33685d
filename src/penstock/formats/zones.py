"""Converting wall-clock times of a zone to instants and back, a column at a time, with the results of Java, and so of Spark.

A clock that is put forward skips an hour, and a clock that is put back shows an hour twice. Java takes a time that is
shown twice for the earlier instant, and moves a skipped time forward by as much as the clock was put forward. Both
follow from one rule: the clock reads one time just before a change and another just after it, and the offset from
before the change applies to all times before the later of the two. Python's `zoneinfo` does the same for a `datetime`
with `fold=0`. So the offset of a zone is a step function of the wall clock. A column needs the steps of the years of
its times, and one binary search.

Arrow's `assume_timezone` is not used: after 2037 it knows no rules, only listed changes, and it gives other results for
skipped times. Arrow's `local_timestamp` is used for instants within the listed changes; for others the rules are.

The rules are those of the machine's tz database, or of the package `tzdata`; the rules of future years change when a
state changes its mind.
"""

from __future__ import annotations

from calendar import isleap
from datetime import MINYEAR, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import OptionError
from penstock.formats.schema import UTC_MICROS
from penstock.units import no_zone, parse_offset

if TYPE_CHECKING:
    import numpy.typing as npt

    Seconds = npt.NDArray[np.int64]

UTC = "UTC"
_UNSAID = "?"
_UTC_NAMES = {"Etc/UTC", "Etc/UCT", "Etc/GMT", "Etc/Zulu", "Etc/Universal", "Etc/Greenwich", "Zulu", "UCT", "Universal"}
_MICROS = 1_000_000
_YEARS_CACHED = 20_000
_DAY = 86_400
_EPOCH_YEAR = 1970
_EPOCH = datetime(_EPOCH_YEAR, 1, 1, tzinfo=timezone.utc)
_LISTED = 0, 2_114_380_800 * _MICROS  # Arrow is right from 1970 (earlier offsets with seconds are not) until 2037
_EARLIEST, _LATEST = -62_135_510_400, 253_402_128_000  # what Python can hold, less an offset, in seconds
_CYCLE = 146_097 * _DAY  # the calendar repeats after 400 years


def zone_name(name: str, said_by: str) -> str:
    """Return the name of a zone, `UTC` for all names of UTC: an IANA name (`Europe/Berlin`) or an offset (`+05:30`, `UTC-3`).

    Raises `OptionError`, which names `said_by` as where the name was given, for anything else.
    """
    try:
        zone = rules(name)
    except (KeyError, ValueError, OSError) as error:
        raise no_zone(name, said_by) from error
    return UTC if name in _UTC_NAMES or zone == timezone.utc else name


def unsaid(session: str) -> str:
    """Return a placeholder for a zone that was not given, while the session's zone is `session`, which is not UTC.

    For the first time for which it would need the zone, `instants` raises an `OptionError` that says what to do.
    """
    return _UNSAID + session


def instants(local: pa.Array, zone: str) -> pa.Array:
    """Return the instants (UTC microseconds) at which a clock of `zone` shows the times `local` (microseconds, no zone)."""
    if zone == UTC:
        return local.view(UTC_MICROS)
    if zone.startswith(_UNSAID):
        if local.null_count == len(local):
            return local.view(UTC_MICROS)
        msg = (
            f"a time that says no zone, and no zone was given for such times: it would be UTC, and the zone of Spark's session is "
            f"{zone.removeprefix(_UNSAID)}; call penstock.register(spark) before readStream, and the session's zone is taken, or set "
            '.option("timeZone", "UTC") or another zone on the source, and in SQL OPTIONS (timeZone \'UTC\')'
        )
        raise OptionError(msg)
    micros = local.view(pa.int64())
    shown = micros.fill_null(0).to_numpy(zero_copy_only=False)
    known = micros.is_valid().to_numpy(zero_copy_only=False)
    return pa.array(shown - _offsets(shown, zone), mask=~known).view(UTC_MICROS)


def local_times(moments: pa.Array, zone: str) -> pa.Array:
    """Return what a clock in `zone` shows at instants. Both columns are in microseconds; instants are in UTC."""
    if zone == UTC:
        return moments.cast(pa.timestamp("us"))
    clock, micros = rules(zone), moments.view(pa.int64())
    numbers = micros.fill_null(0).to_numpy(zero_copy_only=False)
    if isinstance(clock, timezone):
        shown = numbers + _ruled(np.zeros(1, np.int64), clock)
    else:
        ruled = (numbers < _LISTED[0]) | (numbers >= _LISTED[1])
        listed = pa.array(np.where(ruled, 0, numbers)).cast(pa.timestamp("us", zone))
        shown = pc.local_timestamp(listed).view(pa.int64()).to_numpy(zero_copy_only=False).copy()
        shown[ruled] = numbers[ruled] + _ruled(numbers[ruled] // _MICROS, clock)
    known = micros.is_valid().to_numpy(zero_copy_only=False)
    return pa.array(shown, mask=~known).view(pa.timestamp("us"))


def _ruled(seconds: Seconds, clock: tzinfo) -> Seconds:
    """Return the offset of each instant in microseconds, by the rules of a zone, which are looked up once for each distinct second."""
    distinct, places = np.unique(seconds, return_inverse=True)
    beyond = -(-np.maximum(distinct - _LATEST, 0) // _CYCLE) * _CYCLE  # the rules are the same in each cycle
    asked = np.maximum(distinct - beyond, _EARLIEST).tolist()
    offsets = [(_EPOCH + timedelta(seconds=second)).astimezone(clock).utcoffset() for second in asked]
    return np.array([round((offset or timedelta()).total_seconds()) for offset in offsets], np.int64)[places] * _MICROS


def _offsets(shown: Seconds, zone: str) -> Seconds:
    """Return the offset from UTC of each wall-clock time, all in microseconds."""
    if not len(shown):
        return shown
    years = shown.view("datetime64[us]").astype("datetime64[Y]").astype(np.int64) + _EPOCH_YEAR
    first = int(years.min())
    needed = np.flatnonzero(np.bincount(years - first)) + first
    steps = [_steps(zone, int(year)) for year in needed]
    since, offsets = (np.concatenate(part) for part in zip(*steps, strict=True))
    in_force: Seconds = offsets[np.searchsorted(since, shown, side="right") - 1]
    return in_force


@lru_cache(maxsize=64)
def rules(name: str) -> tzinfo:
    """Return the rules of a zone, given as an IANA name or an offset. Raises `KeyError`, `ValueError` or `OSError` for anything else."""
    ahead = parse_offset(name)
    if ahead is not None:
        return timezone(timedelta(minutes=ahead))
    if not name or name == "localtime":  # the machine's own zone, which another machine does not have
        raise ValueError(name)
    return ZoneInfo(name)


@lru_cache(maxsize=_YEARS_CACHED)
def _steps(name: str, year: int) -> tuple[Seconds, Seconds]:
    """Return the steps of a year: wall-clock times from which on an offset applies, beginning with the year, and the offsets.

    Between two midnights the offset changes at most once. Python has no year 0; no clock changed in it.
    """
    zone = rules(name)
    first = datetime(max(year, MINYEAR), 1, 1)  # noqa: DTZ001 - a wall-clock time
    start = int(np.datetime64(f"{year:04d}", "s").astype(np.int64))
    since, offsets = [0], [_offset(zone, first)]
    days = 0 if year < MINYEAR else 366 if isleap(year) else 365
    for day in range(days):
        low, high = day * _DAY, min((day + 1) * _DAY, days * _DAY - 1)
        after = _offset(zone, first + timedelta(seconds=high))
        if after == offsets[-1]:
            continue
        while high - low > 1:
            middle = (low + high) // 2
            changed = _offset(zone, first + timedelta(seconds=middle)) == after
            low, high = (low, middle) if changed else (middle, high)
        since.append(high)
        offsets.append(after)
    return (np.array(since, np.int64) + start) * _MICROS, np.array(offsets, np.int64) * _MICROS


def _offset(zone: tzinfo, shown: datetime) -> int:
    offset = shown.replace(tzinfo=zone).utcoffset()
    assert offset is not None  # noqa: S101 - every zone made here has one
    return int(offset.total_seconds())
