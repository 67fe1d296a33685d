"""The calendar in which a file counts its days: today's calendar for all times, or the Julian one before 1582-10-15.

Three writers count in the Julian calendar: Spark up to 2.4, later Spark with `datetimeRebaseModeInWrite=LEGACY`, and
Java's ORC, which Spark's ORC still uses. In their numbering the day before 1582-10-15 is 1582-10-04, as in the Pope's
calendar. Arrow takes each number for a day of today's calendar, and silently shows another day. Such writers note it in
the file: ORC in its footer, Spark in its keys in Parquet and Avro.

A day is moved to the number of the same year, month and day in today's calendar, as Spark does; 29 February becomes 1
March in a year that lacks it. Instants before 1900 also differ by the clocks of the writer's time zone, and are
refused.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.errors import BadFile
from penstock.formats.nested import leaves, with_leaves

if TYPE_CHECKING:
    from collections.abc import Mapping

REFORM = -141427  # 1582-10-15, in days from 1970
_MARCH_4801_BC = 2440588 + 32082  # days from 1 March of the Julian year -4800 to 1970
_YEAR_1900 = -2208988800  # in seconds from 1970; from then on all zones are as today
_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_SPARK = b"org.apache.spark."
# From these versions on, Spark uses today's calendar unless the file notes otherwise.
_DATES_SINCE, _INSTANTS_SINCE = (3, 0), (3, 1)


class Calendar(NamedTuple):
    """Which values of a file are in the old calendar."""

    dates: bool = False
    instants: bool = False

    @classmethod
    def of_spark(cls, keys: Mapping[bytes, bytes] | None) -> Calendar:
        """Return the calendar of a file with these keys in its footer or header; only Spark's keys matter."""
        keys = keys or {}
        version = re.match(rb"(\d+)\.(\d+)", keys.get(_SPARK + b"version", b""))
        since = tuple(map(int, version.groups())) if version else _INSTANTS_SINCE
        dates = since < _DATES_SINCE or _SPARK + b"legacyDateTime" in keys
        return cls(dates, dates or since < _INSTANTS_SINCE or _SPARK + b"legacyINT96" in keys)

    def corrected(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows in today's calendar. Raises `BadFile` for instants that cannot be moved."""
        if not any(self):
            return batch
        columns = []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if self.instants and any(map(_is_before_1900, leaves(column))):
                msg = (
                    f"column {name!r} has times before 1900 in the calendar of Spark 2 (or of datetimeRebaseModeInWrite=LEGACY), "
                    "which depend on the clocks of the writer's zone; have Spark 3 or later read the file and write it again"
                )
                raise BadFile(msg)
            is_old = self.dates and any(map(has_old_dates, leaves(column)))
            columns.append(with_leaves(column, _in_todays) if is_old else column)
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def has_old_dates(leaf: pa.Array) -> bool:
    """Tell whether a column holds dates, and one of them is before 1582-10-15."""
    return types.is_date32(leaf.type) and _lowest(leaf.cast(pa.int32())) < REFORM


def _is_before_1900(leaf: pa.Array) -> bool:
    return types.is_timestamp(leaf.type) and _lowest(leaf.cast(pa.int64())) < _YEAR_1900 * _TICKS[leaf.type.unit]


def _lowest(numbers: pa.Array) -> float:
    lowest = pc.min(numbers).as_py()
    return math.inf if lowest is None else lowest


def _in_todays(leaf: pa.Array) -> pa.Array:
    """Return days with the Julian ones moved. Years begin in March here, so that both calendars count alike within a year."""
    if not types.is_date32(leaf.type):
        return leaf
    days = leaf.cast(pa.int32()).fill_null(0).to_numpy().astype(np.int64)
    year = (4 * (days + _MARCH_4801_BC) + 3) // 1461
    moved = np.where(days < REFORM, days + 38 - year // 100 + year // 400, days)
    return pa.array(moved.astype(np.int32), pa.int32(), mask=leaf.is_null().to_numpy(zero_copy_only=False)).cast(
        leaf.type
    )
