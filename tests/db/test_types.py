"""Every type that a column can hold is stored and read as the same value; every other type is refused with its column's name."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.db.types import postgresql_types, sqlite_types
from penstock.errors import OptionError, RowRefused
from tests.docs.markdown import DOCS, table
from tests.support.database import At, Driver, Place, batch
from tests.support.postgres import Postgres

pytestmark = pytest.mark.xdist_group("db")

UTC = pa.timestamp("us", tz="UTC")
MOMENT = dt.datetime(2026, 1, 31, 12, 0, 0, 250_001)
DECIMAL = Decimal("-1234567890123456789012345678.0123456789")
# Arrow type -> a value, the text that PostgreSQL shows for it, the value that SQLite has.
VALUES: list[tuple[pa.DataType, Any, str, Any]] = [
    (pa.bool_(), True, "true", 1),
    (pa.int8(), -128, "-128", -128),
    (pa.int16(), 2**15 - 1, "32767", 32767),
    (pa.int32(), -(2**31), "-2147483648", -(2**31)),
    (pa.int64(), 2**63 - 1, "9223372036854775807", 2**63 - 1),
    (pa.float32(), 0.5, "0.5", 0.5),
    (pa.float64(), 1e308, "1e+308", 1e308),
    (pa.float64(), float("-inf"), "-Infinity", float("-inf")),
    (pa.string(), "ü'\"\\\t\n", "ü'\"\\\t\n", "ü'\"\\\t\n"),
    (pa.string(), "", "", ""),
    (pa.binary(), b"\0\xff'", "\\x00ff27", b"\0\xff'"),
    (pa.date32(), dt.date(1, 1, 1), "0001-01-01", "0001-01-01"),
    (UTC, MOMENT, "2026-01-31 12:00:00.250001+00", "2026-01-31 12:00:00.250001Z"),
    (UTC, dt.datetime(1900, 1, 1), "1900-01-01 00:00:00+00", "1900-01-01 00:00:00.000000Z"),
    (pa.timestamp("us"), MOMENT, "2026-01-31 12:00:00.250001", "2026-01-31 12:00:00.250001"),
]
IN_POSTGRESQL: list[tuple[pa.DataType, Any, str]] = [
    (pa.decimal128(38, 10), DECIMAL, str(DECIMAL)),
    (pa.decimal128(5, 0), Decimal(99999), "99999"),
    (pa.list_(pa.int64()), [1, None, 3], "{1,NULL,3}"),
    (pa.list_(pa.string()), [], "{}"),
    (pa.list_(pa.string()), ["a,b", '"'], '{"a,b","\\""}'),
    (pa.list_(pa.bool_()), [True, None], "{t,NULL}"),
    (pa.list_(pa.int8()), [1], "{1}"),
    (pa.list_(pa.float64()), [0.5], "{0.5}"),
    (pa.list_(pa.float32()), [0.5], "{0.5}"),
    (pa.list_(pa.binary()), [b"\1"], '{"\\\\x01"}'),
    (pa.list_(pa.date32()), [dt.date(2026, 1, 31)], "{2026-01-31}"),
    (pa.list_(UTC), [MOMENT], '{"2026-01-31 12:00:00.250001+00"}'),
    (pa.list_(pa.decimal128(5, 2)), [Decimal("1.25")], "{1.25}"),
]
REFUSED = [
    pa.null(),
    pa.struct([("a", pa.int64())]),
    pa.map_(pa.string(), pa.int64()),
    pa.duration("us"),
    pa.time64("ns"),
    pa.list_(pa.list_(pa.int64())),
    pa.list_(pa.struct([("a", pa.int64())])),
]


def test_values_in_both(at: At, place: Place) -> None:
    """Each value is there as it was given, and null stays null; also with an upsert."""
    names = [f"c{i}" for i in range(len(VALUES))]
    schema = pa.schema([("k", pa.int64()), *zip(names, (kind for kind, *_ in VALUES), strict=True)])
    rows = batch((1, *(value for _, value, *_ in VALUES)), (2, *(None for _ in VALUES)), schema=schema)
    wanted = [sqlite if place.is_sqlite else shown for _, _, shown, sqlite in VALUES]
    Driver(place, schema=schema).run(0, rows)
    options = {"mode": "upsert", "keyColumns": "k", "table": f"{place.table}_2"}
    Driver(place, schema=schema, sink_id="s2", options=options).run(0, rows)
    utc = at(place.url if place.is_sqlite else f"{place.url}&options=-c%20TimeZone%3DUTC")
    for suffix in ("", "_2"):
        columns = ", ".join(names if place.is_sqlite else (f"{name}::text" for name in names))
        found = utc.query(f'SELECT {columns} FROM "{place.table}{suffix}" ORDER BY k')
        assert found == [tuple(wanted), tuple(None for _ in VALUES)]


def test_values_in_postgresql(at: At, postgres: Postgres) -> None:
    """Decimals and arrays are there as they were given."""
    place = at(postgres.url + "&options=-c%20TimeZone%3DUTC")
    names = [f"c{i}" for i in range(len(IN_POSTGRESQL))]
    schema = pa.schema(list(zip(names, (kind for kind, *_ in IN_POSTGRESQL), strict=True)))
    Driver(place, schema=schema).run(0, batch(tuple(value for _, value, _ in IN_POSTGRESQL), schema=schema))
    columns = ", ".join(f"{name}::text" for name in names)
    assert place.query(f"SELECT {columns} FROM {{t}}") == [tuple(shown for *_, shown in IN_POSTGRESQL)]


@pytest.mark.parametrize("kind", [pa.date32(), UTC, pa.timestamp("us")], ids=str)
def test_times_that_the_database_has_not(place: Place, kind: pa.DataType) -> None:
    """A time that would be stored as infinity, as another time or not at all is a bad row, at both ends of the range."""
    counts = pa.int32() if kind == pa.date32() else pa.int64()
    low, high = -(2 ** (counts.bit_width - 1)), 2 ** (counts.bit_width - 1) - 1
    to_infinity = low + (10_957 if kind == pa.date32() else 946_684_800_000_000)  # PostgreSQL counts from 2000
    schema = pa.schema([("d", kind), ("n", pa.int64())])
    days = [low, to_infinity, to_infinity - 1, 0, high]
    rows = pa.RecordBatch.from_arrays(
        [pa.array(days, counts).cast(kind), pa.array(range(5), pa.int64())], schema=schema
    )
    with pytest.raises(RowRefused):
        Driver(place, schema=schema).run(0, rows)
    Driver(place, "d2", schema=schema, options={"badRows": "quarantine"}).run(0, rows)
    stored = [row[0] for row in place.query("SELECT n FROM {t} ORDER BY n")]
    # PostgreSQL has Spark's last timestamp, too; it does not have the last date.
    assert stored == ([3, 4] if not place.is_sqlite and kind != pa.date32() else [3])
    assert f'{{"d":{low},"n":0}}' in [row for _, row in place.rejected()]


def test_text_that_is_none(place: Place) -> None:
    """Bytes that Spark takes for text (half a surrogate, a character cut off) are a bad row; the rows next to it are stored."""
    schema = pa.schema([("v", pa.string()), ("n", pa.int64())])
    texts = [b"a", b"\xed\xa0\x80", None, "ü".encode(), b"ok\xc3", b""]
    column = pa.Array.from_buffers(pa.string(), len(texts), pa.array(texts, pa.binary()).buffers())
    rows = pa.RecordBatch.from_arrays([column, pa.array(range(len(texts)), pa.int64())], schema=schema)
    with pytest.raises(RowRefused, match="column 'v' is not text in UTF-8: row .*\ufffd"):
        Driver(place, schema=schema).run(0, rows)
    Driver(place, "d2", schema=schema, options={"badRows": "quarantine"}).run(0, rows)
    assert place.query("SELECT v, n FROM {t} ORDER BY n") == [("a", 0), (None, 2), ("ü", 3), ("", 5)]
    assert [reason for reason, _ in place.rejected()] == ["column 'v' is not text in UTF-8"] * 2
    if not place.is_sqlite:
        lists = pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), column.slice(0, 3))
        options = {"badRows": "quarantine", "table": f"{place.table}_lists"}
        driver = Driver(place, schema=pa.schema([("v", lists.type)]), options=options, sink_id="s2")
        done = driver.run(0, pa.RecordBatch.from_arrays([lists], ["v"]))
        assert (done.rows, done.rejected) == (1, 1)
        assert place.query(f"SELECT reason FROM {place.table}_lists_rejected") == [("column 'v' is not text in UTF-8",)]


def test_times_in_arrays_that_the_database_has_not(at: At, postgres: Postgres) -> None:
    """An array with one such time is a bad row, and the arrays next to it are not."""
    place = at(postgres.url)
    schema = pa.schema([("d", pa.list_(UTC)), ("n", pa.int64())])
    times = pa.array([[0], None, [], [0, None, -(2**63)], [None]], pa.list_(pa.int64())).cast(schema.field("d").type)
    rows = pa.RecordBatch.from_arrays([times, pa.array(range(5), pa.int64())], schema=schema)
    Driver(place, schema=schema, options={"badRows": "quarantine"}).run(0, rows)
    assert [row[0] for row in place.query("SELECT n FROM {t} ORDER BY n")] == [0, 1, 2, 4]
    assert [row for _, row in place.rejected()] == ['{"d":[0,null,-9223372036854775808],"n":3}']


def test_decimals_of_all_digits(at: At, postgres: Postgres) -> None:
    """Thirty-eight digits, wherever the point is, are there as they were given; a sum with more digits is a bad row."""
    place = at(postgres.url)
    nines = [Decimal(f"-{'9' * (38 - scale)}.{'9' * scale}".rstrip(".")) for scale in (0, 1, 18, 37, 38)]
    schema = pa.schema(
        [("k", pa.int64()), *((f"d{i}", pa.decimal128(38, s)) for i, s in enumerate((0, 1, 18, 37, 38)))]
    )
    driver = Driver(place, schema=schema, options={"mode": "merge", "keyColumns": "k", "badRows": "quarantine"})
    driver.run(0, batch((1, *nines), schema=schema))
    shown = [(format(value, "f"),) for value in nines]
    assert [place.query(f"SELECT d{i}::text FROM {{t}}")[0] for i in range(5)] == shown
    assert driver.run(1, batch((1, *nines), schema=schema)).rejected == 1
    assert place.query("SELECT d0::text FROM {t}")[0] == shown[0]


def test_times_are_converted_in_utc(at: At, postgres: Postgres) -> None:
    """PostgreSQL uses a zone to convert to the other kind of timestamp: UTC, whatever the server's zone is."""
    place = at(postgres.url)
    place.query("CREATE TABLE {t} (with_zone timestamp without time zone, without timestamp with time zone)")
    schema = pa.schema([("with_zone", UTC), ("without", pa.timestamp("us"))])
    place.query("ALTER DATABASE postgres SET TimeZone = 'Asia/Tokyo'")
    try:
        Driver(place, schema=schema).run(0, batch((MOMENT, MOMENT), schema=schema))
    finally:
        place.query("ALTER DATABASE postgres RESET TimeZone")
    shown = "2026-01-31 12:00:00.250001"
    assert place.query("SELECT with_zone::text, (without AT TIME ZONE 'UTC')::text FROM {t}") == [(shown, shown)]


@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_types_without_a_place_are_refused(kind: pa.DataType) -> None:
    """The message names the column and what to do; the database is not asked."""
    for types in (postgresql_types, sqlite_types):
        with pytest.raises(OptionError, match=r"column 'c' is of type .*convert it"):
            types(pa.schema([("c", kind)]))


def test_page_has_the_types_of_the_code() -> None:
    """The users' table of types is what the code does."""
    kinds = {"decimal(p,s)": pa.decimal128(12, 3), "array of these": pa.list_(pa.int64())}
    kinds |= {"boolean": pa.bool_(), "byte": pa.int8(), "short": pa.int16(), "int": pa.int32(), "long": pa.int64()}
    kinds |= {"float": pa.float32(), "double": pa.float64(), "string": pa.string(), "binary": pa.binary()}
    kinds |= {"date": pa.date32(), "timestamp": UTC, "timestamp_ntz": pa.timestamp("us")}
    rows = table(DOCS / "db.md", "Spark", "PostgreSQL", "SQLite")
    assert {row[0].strip("`") for row in rows[:-1]} == set(kinds)
    for name, postgresql, sqlite, *_ in rows[:-1]:
        schema = pa.schema([("c", kinds[name.strip("`")])])
        shown = postgresql_types(schema)["c"].replace("12,3", "p,s").replace("bigint[]", "the type with []")
        assert postgresql.replace("`", "").split(";")[0] == shown
        if sqlite == "refused":
            with pytest.raises(OptionError):
                sqlite_types(schema)
        else:
            assert sqlite.split("`")[1] == sqlite_types(schema)["c"]
