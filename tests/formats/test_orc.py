"""ORC where it differs from other tables: values it cannot hold, times without a zone, and stripes."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal

import pyarrow as pa
import pytest
from pyarrow import orc

from penstock.errors import BadFile, OptionError
from penstock.formats.registry import table_format
from penstock.formats.trial import check_table
from tests.formats.test_tables import read, written

FORM = table_format("orc")
UTC = pa.timestamp("us", tz="UTC")
INNER = pa.struct([("a", pa.int64())])


def foreign(table: pa.Table) -> bytes:
    """Return a file as Arrow alone writes it."""
    file = io.BytesIO()
    orc.write_table(table, file)
    return file.getvalue()


@pytest.mark.parametrize(
    "kind",
    [
        pa.struct([("s", INNER)]),
        pa.struct([("l", pa.list_(INNER))]),
        pa.list_(pa.struct([("m", pa.map_(pa.string(), INNER))])),
    ],
)
def test_structs_in_structs_are_refused(kind: pa.DataType) -> None:
    """For a null struct inside another, Arrow's writer stores values of other rows, so such columns are refused before any row."""
    with pytest.raises(OptionError, match="column 's' is .* which orc cannot hold .a struct inside a struct"):
        check_table(FORM, pa.schema([("id", pa.int64()), ("s", kind)]), "zstd")


def test_the_library_still_mixes_up_structs() -> None:
    """When this test fails, Arrow writes nested structs correctly, and they need not be refused any more."""
    rows = [{"s": {"a": number}} if number % 2 else {"s": None} for number in range(6)]
    table = pa.table({"x": pa.array(rows, pa.struct([("s", INNER)]))})
    assert orc.ORCFile(io.BytesIO(foreign(table))).read().to_pylist() != table.to_pylist()


@pytest.mark.parametrize(
    "kind", [UTC, pa.list_(UTC), pa.struct([("t", pa.timestamp("us"))]), pa.map_(pa.string(), UTC)]
)
@pytest.mark.parametrize("year", [1600, 2300])
def test_times_that_arrow_cannot_read(kind: pa.DataType, year: int) -> None:
    """A time that Arrow could not read back is refused before it is staged, at any depth of a column."""
    moment = dt.datetime(year, 1, 1, tzinfo=dt.timezone.utc)
    value = {pa.list_(UTC): [moment], pa.map_(pa.string(), UTC): [("k", moment)], UTC: moment}.get(
        kind, {"t": moment.replace(tzinfo=None)}
    )
    batch = pa.RecordBatch.from_arrays([pa.array([None, value], kind)], ["x"])
    with pytest.raises(OptionError, match="column 'x' has a time before 1677-09-22 or after 2262-04-11"):
        FORM.check(batch)
    FORM.check(batch.slice(0, 1))


def test_times_without_a_zone_are_of_the_zone() -> None:
    """A local time is an instant in `timeZone` if the column wants an instant, and otherwise stays as it is."""
    noon = dt.datetime(2024, 7, 1, 12)
    data = foreign(pa.table({"x": pa.array([noon, None], pa.timestamp("us"))}))
    berlin = read(FORM, data, pa.schema([("x", UTC)]), zone="Europe/Berlin").column(0)
    assert berlin.to_pylist() == [noon.replace(hour=10, tzinfo=dt.timezone.utc), None]
    local = read(FORM, data, pa.schema([("x", pa.timestamp("us"))]), zone="Europe/Berlin").column(0)
    assert local.to_pylist() == [noon, None]


def test_times_inside_are_utc_or_refused() -> None:
    """Nested times without a zone are read as UTC; if another zone is set, the error says what to do."""
    noon = dt.datetime(2024, 7, 1, 12)
    data = foreign(pa.table({"x": pa.array([[noon]], pa.list_(pa.timestamp("us")))}))
    wanted = pa.schema([("x", pa.list_(UTC))])
    assert read(FORM, data, wanted).to_pylist() == [{"x": [noon.replace(tzinfo=dt.timezone.utc)]}]
    with pytest.raises(BadFile, match="set timeZone=UTC"):
        read(FORM, data, wanted, zone="Europe/Berlin")


@pytest.mark.parametrize("name", ["a.b", "größe", "x y", "a"])
def test_names_of_any_kind(name: str) -> None:
    """A column is found whatever its name, among others, although Arrow takes a dot for a member."""
    table = pa.table({"a": [1], name: [2]} if name != "a" else {"a": [2], "b": [1]})
    schema = pa.schema([(name, pa.int64())])
    assert read(FORM, foreign(table), schema).to_pylist() == [{name: 2}]
    assert read(FORM, written(FORM, table.to_batches()[0]), schema).to_pylist() == [{name: 2}]


def test_fractions_before_1970_are_refused() -> None:
    """Arrow writes a negative fraction for them, on which Java's readers fail; whole seconds it writes as all others do."""
    whole = dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=dt.timezone.utc)
    FORM.check(pa.RecordBatch.from_arrays([pa.array([whole, None], UTC)], ["x"]))
    with pytest.raises(OptionError, match="column 'x' has a time before 1970 with a fraction of a second"):
        FORM.check(pa.RecordBatch.from_arrays([pa.array([whole.replace(microsecond=1)], UTC)], ["x"]))


def test_decimals_of_hive_0_11_are_refused() -> None:
    """Its files do not declare how many digits a decimal has. Arrow cuts off what is after the sixth one; other columns are read."""
    table = pa.table({"n": [1], "x": pa.array([[Decimal("1.2345678901")]], pa.list_(pa.decimal128(38, 10)))})
    data = foreign(table)
    undeclared = data.replace(
        b"\x08\x0e\x20\0\x28\x26\x30\x0a", b"\x08\x0e\x20\0\x28\0\x30\0"
    )  # its type: precision and scale
    assert len(undeclared) == len(data)
    assert undeclared != data
    cut = orc.ORCFile(io.BytesIO(undeclared)).read(columns=["x"])
    assert cut.to_pylist() == [{"x": [Decimal("1.234567")]}], "Arrow reads them right now, and they need not be refused"
    with pytest.raises(BadFile, match="column 'x' has decimals of Hive 0.11"):
        read(FORM, undeclared, table.schema)
    assert read(FORM, undeclared, pa.schema([("n", pa.int64())])).to_pylist() == [{"n": 1}]
    assert read(FORM, data, table.schema).to_pylist() == table.to_pylist()


def test_a_zone_that_only_java_knows() -> None:
    """A file of a writer in the zone PST says what to do: Arrow looks for it in the IANA database, and advises to install that."""
    noon = dt.datetime(2024, 7, 1, 12)
    data = foreign(pa.table({"x": pa.array([noon], pa.timestamp("us"))})).replace(b"\x1a\x03GMT", b"\x1a\x03PST")
    assert b"PST" in data
    with pytest.raises(BadFile, match="PST.*; .* have Spark read it, and write it again"):
        read(FORM, data, pa.schema([("x", pa.timestamp("us"))]))


def test_columns_without_names() -> None:
    """A file of Hive before 2.0 has no names: by any but its numbers all columns would be null. Spark takes them in their order."""
    file = foreign(pa.table({"_col0": [1], "_col1": ["x"]}))
    with pytest.raises(BadFile, match="columns have no names.*'_col0 bigint, _col1 string'"):
        read(FORM, file, pa.schema([("id", pa.int64()), ("name", pa.string())]))
    numbered = pa.schema([("_col1", pa.string()), ("other", pa.int64())])
    assert read(FORM, file, numbered).to_pylist() == [{"_col1": "x", "other": None}]
    named = foreign(pa.table({"_col0": [1], "n": ["x"]}))
    assert read(FORM, named, pa.schema([("id", pa.int64())])).to_pylist() == [{"id": None}]
