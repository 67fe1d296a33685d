"""Converting wall-clock times of a zone to instants and back, a column at a time, with the results of Java, and so of Spark.

A clock that is put forward skips an hour, and a clock that is put back shows an hour twice. Java takes a time that is
shown twice for the earlier instant, and moves a skipped time forward by as much as the clock was put forward. Both
follow from one rule: the clock reads one time just before a change and another just after it, and the offset from
before the change applies to all times before the later of the two. Python's `zoneinfo` does the same for a `datetime`
with `fold=0`. So the offset of a zone is a step function of the wall clock, and it is another step function of the instant.
Either way a column needs the steps of the years of its times, and one binary search.

Arrow's `assume_timezone` and `local_timestamp` are not used: after 2037 they know no rules, only listed changes, before
1970 no offsets with seconds, and the first gives other results for skipped times.

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

from penstock.errors import OptionError
from penstock.formats.schema import UTC_MICROS
from penstock.units import no_zone, parse_offset

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Seconds = npt.NDArray[np.int64]
    OffsetAt = Callable[[tzinfo, datetime], int]

UTC = "UTC"
_UNSAID = "?"
_UTC_NAMES = {"Etc/UTC", "Etc/UCT", "Etc/GMT", "Etc/Zulu", "Etc/Universal", "Etc/Greenwich", "Zulu", "UCT", "Universal"}
# Short names that Java has and the tz database has not (`java.time.ZoneId.SHORT_IDS`): a session of Spark may be in such a zone.
_OF_JAVA = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires", "ART": "Africa/Cairo",
    "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka", "CAT": "Africa/Harare", "CNT": "America/St_Johns",
    "CST": "America/Chicago", "CTT": "Asia/Shanghai", "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia", "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland", "PLT": "Asia/Karachi", "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh",
}  # fmt: skip
_MICROS = 1_000_000
_YEARS_CACHED = 20_000
_DAY = 86_400
_EPOCH_YEAR = 1970
# The year 9999: some zones show its last hours as those of a year that Python lacks.
_LATEST = 253_370_764_800 * _MICROS
_CYCLE = 146_097 * _DAY * _MICROS  # the calendar and the rules repeat after 400 years


def zone_name(name: str, said_by: str) -> str:
    """Return the name of a zone, `UTC` for all names of UTC: an IANA name (`Europe/Berlin`) or an offset (`+05:30`, `UTC-3`).

    Short names, such as `PST`, are those of Java, and so of Spark. Raises `OptionError`, which names `said_by` as where the name was
    given, for anything else.
    """
    name = _OF_JAVA.get(name, name)
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
    return pa.array(shown - _offsets(shown, zone, _of_clock), mask=~known).view(UTC_MICROS)


def local_times(moments: pa.Array, zone: str) -> pa.Array:
    """Return what a clock in `zone` shows at instants. Both columns are in microseconds; instants are in UTC."""
    if zone == UTC:
        return moments.cast(pa.timestamp("us"))
    micros = moments.view(pa.int64())
    numbers = micros.fill_null(0).to_numpy(zero_copy_only=False)
    within = numbers - -(-np.maximum(numbers - _LATEST, 0) // _CYCLE) * _CYCLE
    known = micros.is_valid().to_numpy(zero_copy_only=False)
    return pa.array(numbers + _offsets(within, zone, _of_instant), mask=~known).view(pa.timestamp("us"))


def _offsets(times: Seconds, zone: str, offset_at: OffsetAt) -> Seconds:
    """Return the offset from UTC at each time, all in microseconds; `offset_at` tells wall-clock times from instants."""
    if not len(times):
        return times
    years = times.view("datetime64[us]").astype("datetime64[Y]").astype(np.int64) + _EPOCH_YEAR
    first = int(years.min())
    needed = np.flatnonzero(np.bincount(years - first)) + first
    steps = [_steps(zone, int(year), offset_at) for year in needed]
    since, offsets = (np.concatenate(part) for part in zip(*steps, strict=True))
    in_force: Seconds = offsets[np.searchsorted(since, times, side="right") - 1]
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
def _steps(name: str, year: int, offset_at: OffsetAt) -> tuple[Seconds, Seconds]:
    """Return the steps of a year: times from which on an offset applies, beginning with the year, and the offsets.

    Between two midnights the offset changes at most once. No clock changed before the year 2, and Python has no year 0.
    """
    zone = rules(name)
    first = datetime(max(year, MINYEAR + 1), 1, 1)  # noqa: DTZ001 - `offset_at` says what it is
    start = int(np.datetime64(f"{year:04d}", "s").astype(np.int64))
    since, offsets = [0], [offset_at(zone, first)]
    days = 0 if year <= MINYEAR else 366 if isleap(year) else 365
    for day in range(days):
        low, high = day * _DAY, min((day + 1) * _DAY, days * _DAY - 1)
        after = offset_at(zone, first + timedelta(seconds=high))
        if after == offsets[-1]:
            continue
        while high - low > 1:
            middle = (low + high) // 2
            changed = offset_at(zone, first + timedelta(seconds=middle)) == after
            low, high = (low, middle) if changed else (middle, high)
        since.append(high)
        offsets.append(after)
    return (np.array(since, np.int64) + start) * _MICROS, np.array(offsets, np.int64) * _MICROS


def _of_clock(zone: tzinfo, shown: datetime) -> int:
    """Return the offset, in seconds, at which the zone's clock shows a time."""
    return _seconds(shown.replace(tzinfo=zone))


def _of_instant(zone: tzinfo, instant: datetime) -> int:
    """Return the offset of the zone, in seconds, at an instant in UTC."""
    return _seconds(instant.replace(tzinfo=timezone.utc).astimezone(zone))


def _seconds(shown: datetime) -> int:
    offset = shown.utcoffset()
    assert offset is not None  # noqa: S101 - every zone made here has one
    return int(offset.total_seconds())
