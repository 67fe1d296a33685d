"""Finds the buckets of time in `bucketBy`, their ends, and the largest time in rows.

The end of a bucket follows from one of its rows, not from its name: the time of the row, in the zone that names the bucket, is
rounded down to the smallest unit that the template shows, and that unit is added. When clocks are set back, an hour has two ends:
the later one counts.
"""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import TemplateError
from penstock.formats.schema import UTC_MICROS
from penstock.formats.zones import UTC, local_times, rules
from penstock.sink.names import directives
from penstock.sink.ready import ZONES_AHEAD_US, Progress

if TYPE_CHECKING:
    from penstock.sink.buckets import BucketTemplate

_UNITS = ("year", "month", "day", "hour", "minute", "second")
_SHOWS = {
    "Y": ("year",), "y": ("year",), "m": ("month",), "b": ("month",), "B": ("month",), "h": ("month",), "d": ("day",), "e": ("day",),
    "j": ("month", "day"), "F": ("year", "month", "day"), "D": ("year", "month", "day"), "H": ("hour",), "k": ("hour",), "M": ("minute",),
    "R": ("hour", "minute"), "T": ("hour", "minute", "second"), "S": ("second",),
}  # fmt: skip
_SPANS = {
    "day": timedelta(1),
    "hour": timedelta(hours=1),
    "minute": timedelta(minutes=1),
    "second": timedelta(seconds=1),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
LOCAL_BEHIND_US = 12 * 3_600_000_000  # a local time may be that far behind UTC


@dataclass(frozen=True)
class TimeBuckets:
    """The buckets of time of one template: its first `depth` directories; `path` leads to their column and is empty for the batch's time.

    `behind_us` is added to the end of a bucket without a zone if that end is compared with a moment: the largest time that a
    local clock may be behind UTC.
    """

    path: tuple[str, ...]
    depth: int
    unit: str
    zone: str | None
    behind_us: int = 0

    @staticmethod
    def of(template: BucketTemplate, schema: pa.Schema) -> TimeBuckets:
        """Return the buckets of time of a checked template; `TemplateError` if its directories are not spans of one time."""
        shown = [(place, f.path, _shown(f.path, f.spec, schema)) for place, f in enumerate(template.fields)]
        times = [(place, path, units) for place, path, units in shown if units]
        unit = _smallest({unit for _, _, units in times for unit in units})
        if unit is None or len({path for _, path, _ in times}) != 1:
            msg = (
                f"bucketBy={template.template!r} names no spans of one time, which partitionReady could find complete; "
                "expected a time from its year on, such as dt={ts:%Y-%m-%d}/hour={ts:%H}"
            )
            raise TemplateError(msg)
        last, path, _ = times[-1]
        return TimeBuckets(
            path, _depth(template.template, last), unit, template.zone if _has_zone(path, schema) else None
        )

    def time_of(self, bucket: str) -> str:
        """Return the bucket of time that contains a bucket."""
        return "/".join(bucket.split("/")[: self.depth])

    def times(self, rows: pa.RecordBatch) -> pa.Array | None:
        """Return the times of rows, in microseconds; `None` if they have the time of their batch."""
        if not self.path:
            return None
        column, *members = self.path
        values = rows.column(column)
        if members:
            values = pc.struct_field(values, members)
        kind = pa.timestamp("us", tz=getattr(values.type, "tz", None))
        return values.cast(kind, safe=False).cast(pa.int64())

    def end_us(self, time_us: int) -> int | None:
        """Return the end of the bucket that contains a time; `None` if it is after the last year of the calendar."""
        local = self._local(time_us)
        smaller = _UNITS[_UNITS.index(self.unit) + 1 :]
        begin = reduce(_floored, smaller, local.replace(microsecond=0))
        clock = timezone.utc if self.zone is None else rules(self.zone)
        try:
            end = _next(begin, self.unit)
            moments = [end.replace(tzinfo=clock, fold=fold).astimezone(timezone.utc) for fold in (0, 1)]
        except (OverflowError, ValueError):
            return None
        return (max(moments) - _EPOCH) // timedelta(microseconds=1) + self.behind_us

    def _local(self, time_us: int) -> datetime:
        """Return the local time of a moment in the zone, by the same rules that name buckets."""
        moment = pa.array([time_us], UTC_MICROS)
        local: datetime = local_times(moment, self.zone or UTC)[0].as_py()
        return local


@dataclass
class TimesSeen:
    """The times and buckets of time that one task has seen so far."""

    buckets: TimeBuckets
    time_ns: int
    _watermark: int | None = None
    _ends: dict[str, int | None] = field(default_factory=dict)

    def rows(self, rows: pa.RecordBatch) -> None:
        """Take note of the times of rows; no time counts as later than now."""
        times = self.buckets.times(rows)
        now = self.time_ns // 1000 + (0 if self.buckets.zone else ZONES_AHEAD_US)
        latest = now if times is None else pc.max(times).as_py()
        if latest is not None:
            latest = min(latest, now)
            self._watermark = latest if self._watermark is None else max(self._watermark, latest)

    def bucket(self, bucket: str, rows: pa.RecordBatch) -> None:
        """Take note that a bucket has these rows, at least one."""
        time = self.buckets.time_of(bucket)
        if time in self._ends:
            return
        times = self.buckets.times(rows.slice(0, 1))
        first = self.time_ns // 1000 if times is None else times[0].as_py()
        self._ends[time] = None if first is None else self.buckets.end_us(first)

    @property
    def progress(self) -> Progress:
        """The watermark and the ends of buckets, for the driver."""
        return Progress(self._watermark, {bucket: end for bucket, end in self._ends.items() if end is not None})


def _shown(path: tuple[str, ...], spec: str, schema: pa.Schema) -> tuple[str, ...]:
    """Return the units that a field of the template shows; none if it is not a time, or finer than any unit."""
    kind = _kind(path, schema)
    if not spec and (kind is None or pa.types.is_date(kind)):
        spec = "%Y-%m-%d"
    return tuple(unit for letter in directives(spec) for unit in _SHOWS.get(letter, ()))


def _smallest(units: set[str]) -> str | None:
    """Return the smallest unit; `None` unless the units begin with the year and have no gap."""
    return _UNITS[len(units) - 1] if units and units == set(_UNITS[: len(units)]) else None


def _has_zone(path: tuple[str, ...], schema: pa.Schema) -> bool:
    """Tell whether times are moments, whose date depends on a zone; other times are local dates and hours already."""
    kind = _kind(path, schema)
    return kind is None or (pa.types.is_timestamp(kind) and kind.tz is not None)


def _kind(path: tuple[str, ...], schema: pa.Schema) -> pa.DataType | None:
    """Return the type of the template's field; `None` for the batch's time."""
    kind: Any = None
    for name in path:
        kind = (schema if kind is None else kind).field(name).type
    return kind


def _depth(template: str, last: int) -> int:
    """Return how many directories the template has up to the one with field number `last`."""
    directories, fields = 1, -1
    for literal, name, _, _ in string.Formatter().parse(template):
        directories += literal.count("/")
        fields += name is not None
        if fields == last:
            return directories
    return directories


def _floored(moment: datetime, unit: str) -> datetime:
    if unit == "month":
        return moment.replace(month=1)
    return moment.replace(day=1) if unit == "day" else moment - timedelta(**{f"{unit}s": getattr(moment, unit)})


def _next(begin: datetime, unit: str) -> datetime:
    if unit == "year":
        return begin.replace(year=begin.year + 1)
    if unit == "month":
        return begin.replace(year=begin.year + begin.month // 12, month=begin.month % 12 + 1)
    return begin + _SPANS[unit]
