"""Days before 1582-10-15 in files that count them in the Julian calendar; tests/spark/test_calendar.py compares with Spark itself."""

from __future__ import annotations

import datetime as dt
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from penstock.errors import BadFile, OptionError
from penstock.formats.calendar import REFORM, Calendar
from penstock.formats.registry import table_format
from tests.formats.test_tables import read

SPARK = b"org.apache.spark."
OLD = {SPARK + b"version": b"4.3.0", SPARK + b"legacyDateTime": b""}
DAYS = pa.array([-719164, None, REFORM - 1, REFORM, 0, -354280, REFORM - 1], pa.int32()).cast(pa.date32())
# The first three as Spark writes 0001-01-01, 1582-10-04 and 1000-01-01 with its calendar set to LEGACY.
MEANT = ["0001-01-01", None, "1582-10-04", "1582-10-15", "1970-01-01", "1000-01-01", "1582-10-04"]
NESTED = [
    (pa.list_(pa.date32()), lambda day: [day, None]),
    (pa.struct([("a", pa.string()), ("d", pa.date32())]), lambda day: {"a": "x", "d": day}),
    (pa.map_(pa.date32(), pa.list_(pa.date32())), lambda day: [(day, [day])]),
]


def texts(column: pa.Array) -> list[str | None]:
    """Return days as text."""
    return [None if value is None else str(value) for value in column.to_pylist()]


def test_days_are_moved() -> None:
    """Days before the reform get the same date in today's calendar, also in a slice; nulls and later days are unchanged."""
    batch = pa.record_batch({"d": DAYS, "n": range(len(DAYS))})
    moved = Calendar(dates=True).corrected(batch)
    assert texts(moved.column(0)) == MEANT
    assert moved.column(1) == batch.column(1)
    assert texts(Calendar(dates=True).corrected(batch.slice(2, 3)).column(0)) == MEANT[2:5]
    assert Calendar().corrected(batch) is batch


@pytest.mark.parametrize(("kind", "around"), NESTED)
def test_days_inside_are_moved(kind: pa.DataType, around: object) -> None:
    """Nested days are moved wherever they are in a column; null rows, null members and empty lists are unchanged."""
    assert callable(around)
    first, second = dt.date(1582, 10, 14), dt.date(1582, 10, 4)  # one date, in both calendars
    empty = [] if not pa.types.is_struct(kind) else {"a": None, "d": None}
    batch = pa.record_batch({"x": pa.array([None, around(first), empty, around(dt.date(2000, 1, 1))], kind)})
    for rows in (batch, batch.slice(1)):
        moved = Calendar(dates=True).corrected(rows).column(0)
        moved.validate(full=True)
        expected = [None, around(second), empty, around(dt.date(2000, 1, 1))][-rows.num_rows :]
        assert moved.to_pylist() == pa.array(expected, kind).to_pylist()


def test_a_leap_day_that_is_none_today_is_the_first_of_march() -> None:
    """29 February 1500 existed only in the Julian calendar; Spark reads it as the day after 28 February."""
    days = pa.array([-171597, -171596, -171595], pa.int32()).cast(pa.date32())
    [moved] = Calendar(dates=True).corrected(pa.record_batch({"d": days})).columns
    assert texts(moved) == ["1500-02-28", "1500-03-01", "1500-03-01"]


@pytest.mark.parametrize(
    ("keys", "dates", "instants"),
    [
        (None, False, False),
        ({}, False, False),
        ({b"creator": b"parquet-mr"}, False, False),
        ({SPARK + b"version": b"4.3.0"}, False, False),
        ({SPARK + b"version": b"3.0.3"}, False, True),
        ({SPARK + b"version": b"2.4.8"}, True, True),
        ({SPARK + b"version": b"no version"}, False, False),
        ({SPARK + b"version": b"3.5.1", SPARK + b"legacyINT96": b""}, False, True),
        (OLD, True, True),
    ],
)
def test_calendar_of_a_file_of_sparks(keys: dict[bytes, bytes] | None, *, dates: bool, instants: bool) -> None:
    """The calendar follows from the Spark version that wrote the file, and from the marks that it left."""
    assert Calendar.of_spark(keys) == Calendar(dates, instants)


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.list_(pa.timestamp("s")), pa.timestamp("ns")])
def test_old_times_are_refused(kind: pa.DataType) -> None:
    """A time before 1900 in a file that counts as Spark 2 did makes it a bad file; a later time is read."""
    for year, is_refused in ((1899, True), (1900, False)):
        moment = dt.datetime(year, 1, 1)
        table = pa.table({"t": pa.array([[moment] if pa.types.is_list(kind) else moment, None], kind)})
        file = io.BytesIO()
        pq.write_table(table.replace_schema_metadata(OLD), file)
        if is_refused:
            with pytest.raises(BadFile, match="column 't' has times before 1900 in the calendar of Spark 2"):
                read(table_format("parquet"), file.getvalue(), table.schema)
        else:
            assert read(table_format("parquet"), file.getvalue(), table.schema).num_rows == 2


def test_orc_of_a_writer_that_notes_no_calendar_is_of_todays() -> None:
    """Arrow's own files are read as written. Java's readers read them differently, so we never write such dates."""
    days = pa.array([dt.date(1582, 10, 4), dt.date(1, 1, 1)])
    file = io.BytesIO()
    orc.write_table(pa.table({"d": days}), file)
    assert (
        read(table_format("orc"), file.getvalue(), pa.schema([("d", pa.date32())])).column(0).to_pylist()
        == days.to_pylist()
    )
    for column in (days, pa.array([[day] for day in days.to_pylist()])):
        with pytest.raises(OptionError, match="column 'd' has a date before 1582-10-15, which orc cannot hold"):
            table_format("orc").check(pa.record_batch({"d": column}))
    table_format("orc").check(pa.record_batch({"d": DAYS.slice(3, 2)}))
