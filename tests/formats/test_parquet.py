"""Parquet: row groups by range, columns by name, and files that every reader can read."""

from __future__ import annotations

import datetime as dt
import io
import itertools
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadFile, OptionError
from penstock.formats import parquet
from penstock.formats.format import WriteFormat
from penstock.formats.parquet import ParquetWriter, parquet_batches, parquet_footer, spark_schema, written_schema
from penstock.formats.parquetgroups import MAGIC, Footer
from penstock.formats.schema import spark_name, to_arrow
from penstock.formats.stored import SPARK_KEY
from penstock.storage import MemoryFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

UTC = pa.timestamp("us", tz="UTC")
NOON = dt.datetime(2024, 1, 2, 12, 0, 0, 123456, tzinfo=dt.timezone.utc)
ROW = {
    "i": 1,
    "s": "one",
    "t": NOON,
    "n": NOON.replace(tzinfo=None),
    "d": dt.date(2024, 1, 2),
    "c": Decimal("1.10"),
    "b": b"\0\xff",
    "l": ["x", None],
    "m": [("k", 1)],
    "st": {"x": 1, "y": None},
}
SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("s", pa.string()),
        ("t", UTC),
        ("n", pa.timestamp("us")),
        ("d", pa.date32()),
        ("c", pa.decimal128(10, 2)),
        ("b", pa.binary()),
        ("l", pa.list_(pa.string())),
        ("m", pa.map_(pa.string(), pa.int32())),
        ("st", pa.struct([("x", pa.int32()), ("y", pa.string())])),
    ]
)
NUMBERS = pa.schema([("a", pa.int64())])


def rows(count: int) -> pa.RecordBatch:
    """Return rows of every type, one of them all null."""
    return pa.RecordBatch.from_pylist([{**ROW, "i": i} for i in range(count - 1)] + [dict.fromkeys(ROW)], SCHEMA)


def written(*batches: pa.RecordBatch, codec: str = "snappy", **options: Any) -> bytes:
    """Return the Parquet file of the batches."""
    file = io.BytesIO()
    writer = ParquetWriter(file, WriteFormat("parquet", batches[0].schema, codec), **options)
    for batch in batches:
        writer.write(batch)
    writer.close()
    return file.getvalue()


def foreign(table: pa.Table, **options: Any) -> io.BytesIO:
    """Return a file as another program might have written it."""
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    file.seek(0)
    return file


def group_rows(data: bytes) -> list[int]:
    """Return the rows of each row group."""
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    return [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]


def read(file: Any, schema: pa.Schema, **options: Any) -> pa.Table:
    """Return the whole file as exactly `schema`."""
    source = io.BytesIO(file) if isinstance(file, bytes) else file
    batches = list(parquet_batches(source, 0, 1 << 40, schema, **options))
    assert all(batch.schema.equals(schema) for batch in batches)
    return pa.Table.from_batches(batches, schema)


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd"])
def test_rows_survive(codec: str) -> None:
    """Every type, nulls and nested values come back as they were, from a file object and from Arrow's own."""
    batch = rows(10)
    data = written(batch, codec=codec)
    assert read(data, SCHEMA) == pa.Table.from_batches([batch])
    assert read(pa.BufferReader(data), SCHEMA) == pa.Table.from_batches([batch])
    assert parquet_footer(io.BytesIO(data))[0].equals(SCHEMA)


def test_other_engines_read_the_file(tmp_path: Path) -> None:
    """DuckDB, polars and Arrow read the same values: times in microseconds, no INT96, maps, lists and decimals."""
    expected = rows(3).to_pylist()
    path = tmp_path / "a.parquet"
    path.write_bytes(written(rows(3)))
    assert pq.read_table(path).to_pylist() == expected
    flat = [name for name in SCHEMA.names if name not in {"m", "st", "l"}]
    assert pl.read_parquet(path, columns=flat).to_dicts() == [{name: row[name] for name in flat} for row in expected]
    with duckdb.connect() as connection:
        query = "select max(i), count(*), sum(c), max(len(l)), max(st.x), max(n) from read_parquet(?)"
        found = connection.execute(query, [str(path)]).fetchall()
    assert found == [(1, 3, Decimal("2.20"), 2, 1, NOON.replace(tzinfo=None))]
    group = pq.ParquetFile(path).metadata.row_group(0)
    assert "INT96" not in {group.column(index).physical_type for index in range(group.num_columns)}


def test_columns_that_arrow_knows_by_another_name(tmp_path: Path) -> None:
    """Arrow has special types for DuckDB's JSON and UUID; they are read as text and as sixteen bytes, as Spark reads them."""
    path = tmp_path / "a.parquet"
    with duckdb.connect() as connection:
        uuid = "'00112233-4455-6677-8899-aabbccddeeff'::uuid"
        connection.execute(f"copy (select {uuid} as u, '{{}}'::json as j, 'x'::enum('x', 'y') as e) to '{path}'")
    expected = {"u": bytes(range(0, 256, 17)), "j": "{}", "e": "x"}
    schema = pa.schema([("u", pa.binary()), ("j", pa.string()), ("e", pa.string())])
    assert read(path.read_bytes(), schema).to_pylist() == [expected]
    assert spark_schema(path).names == ["u", "j", "e"]
    assert [spark_name(field.type) for field in spark_schema(path)] == ["binary", "string", "string"]


def test_types_that_arrow_has_of_its_own() -> None:
    """Arrow records in its files that a text is JSON or that bytes are a UUID and returns special types: they are text and bytes here."""
    of_json = pa.array(["{}", None], pa.json_())
    columns = {
        "j": (of_json, pa.string(), ["{}", None]),
        "u": (pa.array([bytes(16), None], pa.uuid()), pa.binary(), [bytes(16), None]),
        "l": (pa.ListArray.from_arrays([0, 1, 2], of_json), pa.list_(pa.string()), [["{}"], [None]]),
        "s": (
            pa.StructArray.from_arrays([of_json], ["x"]),
            pa.struct([("x", pa.string())]),
            [{"x": "{}"}, {"x": None}],
        ),
    }
    file = foreign(pa.table({name: array for name, (array, _, _) in columns.items()}))
    wanted = pa.schema([(name, kind) for name, (_, kind, _) in columns.items()])
    assert read(file, wanted).to_pydict() == {name: values for name, (_, _, values) in columns.items()}
    assert [spark_name(field.type) for field in spark_schema(file)] == [spark_name(field.type) for field in wanted]


@pytest.mark.parametrize(
    "told",
    [
        b'{"type":"struct","fields":[{"name":"a","type"',
        b"\xff",
        b"[]",
        b'{"fields":[{"name":"a","type":"integer"}]}',
        b'{"fields":[{"name":"a","type":"decimal(99,1)","nullable":true},{"name":"b","type":"string","nullable":true}]}',
        b'{"fields":' + b"[" * 100_000,
    ],
)
def test_a_key_of_spark_that_cannot_be_read(told: bytes) -> None:
    """The columns are those of the file then, as for Spark, if the footer's key for Spark is damaged."""
    table = pa.table({"a": [1], "b": ["x"]})
    file = foreign(table.replace_schema_metadata({SPARK_KEY: told}))
    assert spark_schema(file) == written_schema(file) == table.schema


def test_columns_of_types_that_are_not_read_as_spark_has_them() -> None:
    """A variant and an interval of months in a file of Spark's are what the file has for them; other columns are as Spark says."""
    parts = pa.struct(
        [pa.field("value", pa.binary(), nullable=False), pa.field("metadata", pa.binary(), nullable=False)]
    )
    table = pa.table({
        "v": pa.array([{"value": b"\x0c\x01", "metadata": b"\x01\0\0"}], parts),
        "m": pa.array([14], pa.int32()),
        "d": pa.array([3_000_000], pa.int64()),
    })  # fmt: skip
    kinds = {"v": "variant", "m": "interval year to month", "d": "interval day to second"}
    told = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    spark = json.dumps({"type": "struct", "fields": told}).encode()
    file = foreign(table.replace_schema_metadata({SPARK_KEY: spark}))
    columns = spark_schema(file)
    assert [field.type for field in columns] == [parts, pa.int32(), pa.duration("us")]
    assert read(file, columns).to_pylist() == [{**table.to_pylist()[0], "d": dt.timedelta(seconds=3)}]


@pytest.mark.parametrize("unit", ["us", "ns"])
@pytest.mark.parametrize("micros", [-1, 86_400_000_000])
def test_times_of_day_outside_of_a_day(unit: str, micros: int) -> None:
    """They are refused, at any depth: Arrow passes them on as they are, and the rows would fail where they are used."""
    times = pa.array([micros * {"us": 1, "ns": 1000}[unit]], pa.int64()).view(pa.time64(unit))
    nested = pa.StructArray.from_arrays([times], ["t"])
    for column in (times, nested):
        with pytest.raises(BadFile, match=r"column 'x' is time\(\d\) in the file, and has a value outside of a day"):
            read(
                foreign(pa.table({"x": column})),
                pa.schema([("x", pa.time64("ns") if column is times else pa.struct([("t", pa.time64("ns"))]))]),
            )


@pytest.mark.slow
def test_every_cut_gives_each_row_group_once() -> None:
    """At any cut each row group is read once, in the range where it begins."""
    batch = pa.RecordBatch.from_pydict({"a": list(range(60))}, NUMBERS)
    data = written(batch, group_bytes=100, codec="none")
    for cut in range(len(data) + 1):
        left, right = (
            [
                value
                for batch in parquet_batches(pa.BufferReader(data), *span, NUMBERS)
                for value in batch.column(0).to_pylist()
            ]
            for span in ((0, cut), (cut, len(data)))
        )
        assert left + right == list(range(60))


def test_columns_are_found_by_name() -> None:
    """Columns are matched by name, in the schema's order; one that the file lacks is null, and extra ones are left out."""
    table = pa.table({"b": [1], "Name": ["x"], "other": [0], "st": [{"x": 5}]})
    schema = pa.schema(
        [
            ("name", pa.string()),
            ("a", pa.string()),
            ("b", pa.int64()),
            ("st", pa.struct([("y", pa.date32()), ("x", pa.int64())])),
        ]
    )
    assert read(foreign(table), schema).to_pylist() == [{"name": "x", "a": None, "b": 1, "st": {"y": None, "x": 5}}]
    assert read(foreign(table), pa.schema([("z", pa.int64())])).to_pylist() == [{"z": None}]


def test_names_that_differ_in_case_only() -> None:
    """The exact name is preferred; two columns that match only by case are ambiguous, as in Spark."""
    table = pa.table({"A": [1], "a": [2]})
    assert read(foreign(table), NUMBERS).to_pylist() == [{"a": 2}]
    with pytest.raises(BadFile, match="column 'aa' is ambiguous: found AA, Aa"):
        read(foreign(pa.table({"AA": [1], "Aa": [2]})), pa.schema([("aa", pa.int64())]))


_CATEGORY = pa.dictionary(pa.int8(), pa.large_string())


@pytest.mark.parametrize(
    ("array", "kind", "expected", "options"),
    [
        (pa.array([1], pa.int32()), pa.int64(), [1], {}),
        (pa.array([1], pa.uint8()), pa.int16(), [1], {}),
        (pa.array([0.5], pa.float32()), pa.float64(), [0.5], {}),
        (pa.array([NOON.replace(microsecond=0)], pa.timestamp("ms", "UTC")), UTC, [NOON.replace(microsecond=0)], {}),
        (pa.array([NOON], pa.timestamp("ns", "UTC")), UTC, [NOON], {}),
        (pa.array([NOON.replace(tzinfo=None)], pa.timestamp("us")), UTC, [NOON], {}),
        (
            pa.array([NOON.replace(tzinfo=None)], pa.timestamp("us")),
            UTC,
            [NOON],
            {"use_deprecated_int96_timestamps": True},
        ),
        (pa.array([b"text"]), pa.string(), ["text"], {}),
        (pa.array(["x", "x"]).dictionary_encode(), pa.string(), ["x", "x"], {}),
        (pa.array(["x"], pa.large_string()), pa.string(), ["x"], {}),
        (pa.array([[1]], pa.large_list(pa.int32())), pa.list_(pa.int64()), [[1]], {}),
        (pa.array([["x", None], None], pa.large_list(_CATEGORY)), pa.list_(pa.string()), [["x", None], None], {}),
        (pa.array([Decimal("1.5")], pa.decimal128(5, 1)), pa.decimal128(10, 2), [Decimal("1.50")], {}),
    ],
    ids=str,
)
def test_files_of_other_programs(
    array: pa.Array, kind: pa.DataType, expected: list[Any], options: dict[str, Any]
) -> None:
    """Narrower numbers, other time units, INT96, unmarked text and other encodings are read as the schema's types."""
    assert read(foreign(pa.table({"a": array}), **options), pa.schema([("a", kind)])).column(0).to_pylist() == expected


FIRST, END = -210_866_803_200_000_000, 1_515_680_380_800_000_000  # the days of INT96 begin; the year 50,000


@pytest.mark.parametrize("micros", [FIRST + 86_400_000_000, END - 1, 253_402_300_800_000_000])
def test_times_as_int96_are_read(micros: int) -> None:
    """From the second day of INT96, in 4713 BC, to the year 50,000 Arrow shows the time that is stored."""
    file = foreign(pa.table({"a": pa.array([micros, None], pa.timestamp("us"))}), use_deprecated_int96_timestamps=True)
    assert read(file, pa.schema([("a", UTC)])).column(0).cast(pa.int64()).to_pylist() == [micros, None]


@pytest.mark.parametrize("micros", [FIRST - 1, -219_951_936_000_000_000, END, -(1 << 63) + 1])
def test_times_that_arrow_takes_for_others_are_refused(micros: int) -> None:
    """Spark counts days of INT96 below zero, of which Arrow makes others, 68,146 years later: a bad file, also inside of a column."""
    kind = pa.timestamp("us")
    for kinds, value, of_schema in (
        (kind, micros, UTC),
        (pa.list_(kind), [0, micros], pa.list_(UTC)),
        (
            pa.struct([("n", pa.int64()), ("t", kind)]),
            {"n": 1, "t": micros},
            pa.struct([("n", pa.int64()), ("t", UTC)]),
        ),
        (pa.map_(pa.string(), kind), [("k", micros)], pa.map_(pa.string(), UTC)),
    ):
        table = pa.table({"b": pa.array([None], pa.list_(pa.int64())), "a": pa.array([value], kinds)})
        file = foreign(table, use_deprecated_int96_timestamps=True)
        with pytest.raises(BadFile, match="column 'a' has a time before 4713 BC or after the year 50,000 as INT96"):
            read(file, pa.schema([("a", of_schema)]))
    ours = foreign(pa.table({"a": pa.array([micros], kind)}))  # not INT96
    assert read(ours, pa.schema([("a", UTC)])).column(0).cast(pa.int64()).to_pylist() == [micros]


@pytest.mark.parametrize(
    ("values", "stored", "kind"),
    [
        ([{"e": "x"}, {"e": None}, None], pl.Struct({"e": pl.Categorical}), pa.struct([("e", pa.string())])),
        ([["x", None], [], None, ["y"]], pl.List(pl.Enum(["x", "y"])), pa.list_(pa.string())),
        ([[["x"]], None], pl.List(pl.List(pl.Categorical)), pa.list_(pa.list_(pa.string()))),
    ],
    ids=["struct", "list", "lists"],
)
def test_categories_inside_of_polars(values: list[Any], stored: Any, kind: pa.DataType) -> None:
    """Text that polars stored as categories comes from Arrow as dictionaries, at any depth: it is text, not a foreign error."""
    file = io.BytesIO()
    pl.DataFrame({"a": pl.Series(values, dtype=stored)}).write_parquet(file)
    assert read(file, pa.schema([("a", kind)])).column(0).to_pylist() == values


@pytest.mark.parametrize("view", [pa.list_view, pa.large_list_view])
def test_views_of_lists_are_read_to_the_last(view: Callable[[pa.DataType], pa.DataType]) -> None:
    """Arrow returns list views from a file of list views, and its cast empties the last list: every value must still be there."""
    lists = [[[1, None], [], [2], None, [3, 4]], [[1]], [None, [1]], [[]], []]
    for values in lists:
        file = foreign(pa.table({"a": pa.array(values, view(pa.int32()))}))
        assert read(file, pa.schema([("a", pa.list_(pa.int64()))])).column(0).to_pylist() == values
    table = pa.table({"a": pa.array([[{"X": 1}], [{"X": 2}]], view(pa.struct([("X", pa.int32())])))})
    members = pa.schema([("a", pa.list_(pa.struct([("x", pa.int64())])))])
    assert read(foreign(table), members).column(0).to_pylist() == [
        [{"x": 1}],
        [{"x": 2}],
    ]  # matched by case, not null


@pytest.mark.parametrize(
    ("array", "field", "message"),
    [
        (pa.array(["1"]), pa.field("a", pa.int64()), "another type: found string, expected bigint"),
        (pa.array([1]), pa.field("a", pa.string()), "another type: found bigint, expected string"),
        (pa.array([1.5]), pa.field("a", pa.int64()), "another type: found double, expected bigint"),
        (pa.array([NOON], UTC), pa.field("a", pa.timestamp("us")), "found timestamp, expected timestamp_ntz"),
        (pa.array([300]), pa.field("a", pa.int8()), "found bigint .*300.*; expected tinyint"),
        (pa.array([1001], pa.timestamp("ns", "UTC")), pa.field("a", UTC), "lose data"),
        (pa.array([1, None]), pa.field("a", pa.int64(), nullable=False), "has nulls"),
        (pa.array([1]), pa.field("b", pa.int64(), nullable=False), "'b' has nulls"),
    ],
    ids=str,
)
def test_values_that_do_not_fit_are_refused(array: pa.Array, field: pa.Field, message: str) -> None:
    """Another type, or a value or null that does not fit, makes a bad file; the error has the column, found and expected."""
    with pytest.raises(BadFile, match=message):
        read(foreign(pa.table({"a": array})), pa.schema([field]))


@pytest.mark.parametrize("nested", [False, True])
def test_times_of_day_that_count_nanoseconds(nested: bool) -> None:
    """polars stores all times of day in nanoseconds: whole microseconds are read, and others are refused here, not by the sink."""
    kind = pa.list_(pa.time64("ns")) if nested else pa.time64("ns")
    schema = pa.schema([("a", kind)])

    def file_of(nanos: list[int | None]) -> io.BytesIO:
        column = pl.Series("a", nanos, pl.Int64).cast(pl.Time)
        file = io.BytesIO()
        pl.DataFrame({"a": [column] if nested else column}).write_parquet(file)
        return file

    values = read(file_of([1000, None, 86_399_999_999_000]), schema).column(0).to_pylist()
    assert (values[0] if nested else values) == [dt.time(0, 0, 0, 1), None, dt.time(23, 59, 59, 999_999)]
    with pytest.raises(BadFile, match=r"digits after its microseconds.*expected time\(6\)"):
        read(file_of([1000, 1001]), schema)


def test_days_are_read_as_times_of_no_zone() -> None:
    """As in Spark 4.3, a day is read as its midnight; never as an instant, which Spark refuses; and not if the time is out of range."""
    days = [dt.date(2026, 1, 2), None, dt.date(1, 1, 1), dt.date(9999, 12, 31)]
    file = foreign(pa.table({"a": pa.array(days, pa.date32())}))
    midnights = [day and dt.datetime.combine(day, dt.time()) for day in days]
    assert read(file, pa.schema([("a", pa.timestamp("us"))])).column(0).to_pylist() == midnights
    nested = foreign(pa.table({"a": pa.array([days], pa.list_(pa.date32()))}))
    assert read(nested, pa.schema([("a", pa.list_(pa.timestamp("us")))])).column(0).to_pylist() == [midnights]
    with pytest.raises(BadFile, match="found date, expected timestamp"):
        read(file, pa.schema([("a", UTC)]))
    far = foreign(pa.table({"a": pa.array([2**31 - 1], pa.date32())}))
    with pytest.raises(BadFile, match="out of bounds"):
        read(far, pa.schema([("a", pa.timestamp("us"))]))


def test_maps_whose_keys_may_be_null_are_told() -> None:
    """Presto and old Hive writers mark keys so, and Spark reads them; Arrow reads nothing of such a file, so the error says what to do."""
    data = foreign(pa.table({"a": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))})).getvalue()
    required, optional = b"\x25\x00\x18\x03key", b"\x25\x02\x18\x03key"  # the field of the key, in the footer
    assert data.count(required) == 1
    with pytest.raises(BadFile, match="keys of a map may be null in it.*: have Spark read it, and write it again"):
        read(io.BytesIO(data.replace(required, optional)), NUMBERS)


def test_every_cut_file_is_bad() -> None:
    """A file truncated at any byte is refused, never read in part."""
    data = written(rows(20))
    for length in range(0, len(data), 7):
        with pytest.raises(BadFile, match="not a readable Parquet file"):
            parquet_footer(io.BytesIO(data[:length]))


@pytest.mark.parametrize("garbage", [b"", b"PAR1", b"PAR1" * 3, b"plain text\n" * 100, bytes(1_000)])
def test_garbage_is_bad(garbage: bytes) -> None:
    """Each function that looks at a file refuses one that is not Parquet."""
    for look in (parquet_footer, lambda file: list(parquet_batches(file, 0, 10, NUMBERS))):
        with pytest.raises(BadFile):
            look(io.BytesIO(garbage))


def test_damaged_pages_are_bad() -> None:
    """Overwritten pages make a bad file, not other values."""
    data = bytearray(written(pa.RecordBatch.from_pydict({"a": [f"{i:x}" * 9 for i in range(5_000)]})))
    data[200:2_000] = bytes(1_800)
    with pytest.raises(BadFile, match="row group 0 cannot be read"):
        read(bytes(data), pa.schema([("a", pa.string())]))


class Broken(io.BytesIO):
    """A file on which reads fail."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Fail."""
        raise OSError(5, "Input/output error", size)


def test_errors_of_the_file_come_through() -> None:
    """Errors that the file object raises are not mistaken for a bad file."""
    with pytest.raises(OSError, match="Input/output error"):
        read(Broken(written(rows(3))), SCHEMA)


def test_batches_are_bounded() -> None:
    """Batches have at most the requested number of rows, however many the row group has."""
    data = written(pa.RecordBatch.from_pydict({"a": list(range(1_000))}, NUMBERS))
    batches = list(parquet_batches(io.BytesIO(data), 0, len(data), NUMBERS, batch_rows=64))
    assert max(batch.num_rows for batch in batches) == 64
    assert [value for batch in batches for value in batch.column(0).to_pylist()] == list(range(1_000))


@pytest.mark.slow
@given(sizes=st.lists(st.integers(0, 400), max_size=8), group_bytes=st.integers(1, 4_000))
def test_any_batches_make_row_groups_of_about_the_size(sizes: list[int], group_bytes: int) -> None:
    """Batches of any sizes are cut and joined into row groups of about the requested size; no row is lost or moved."""
    whole = pa.RecordBatch.from_pydict({"a": list(range(sum(sizes)))}, NUMBERS)
    bounds = itertools.pairwise(itertools.accumulate(sizes, initial=0))
    batches = [whole.slice(0, 0), *(whole.slice(start, end - start) for start, end in bounds)]
    data = written(*batches, group_bytes=group_bytes)
    assert read(data, NUMBERS).column(0).to_pylist() == list(range(sum(sizes)))
    groups = group_rows(data)
    assert all(count <= max(group_bytes // 8 + 1, 1) for count in groups)
    assert all(8 * count >= group_bytes - 8 for count in groups[:-1])


def test_a_small_view_does_not_pin_its_batch() -> None:
    """A slice that waits for its row group keeps its own bytes in memory, not the batch it was cut from."""
    large = pa.RecordBatch.from_pydict({"a": list(range(1_000_000)), "s": ["text"] * 1_000_000})
    writer = ParquetWriter(io.BytesIO(), WriteFormat("parquet", large.schema, "none"))
    before = pa.total_allocated_bytes()
    for start in range(0, 1_000_000, 100_000):
        writer.write(large.slice(start, 10))
    schema = large.schema
    size = large.nbytes
    del large
    assert pa.total_allocated_bytes() < before - size // 2
    assert writer.bytes_estimate < 10_000
    assert writer.rows == 100
    assert schema.names == ["a", "s"]


def test_the_estimate_follows_the_file() -> None:
    """The size is estimated first with the given ratio, then with the ratio measured in the file; after closing it is the file's size."""
    file = io.BytesIO()
    batch = pa.RecordBatch.from_pydict({"a": list(range(100_000))}, NUMBERS)
    writer = ParquetWriter(file, WriteFormat("parquet", NUMBERS, "zstd"), group_bytes=2 * batch.nbytes, ratio=0.5)
    assert writer.bytes_estimate == file.tell() == 0
    writer.write(batch)
    assert writer.bytes_estimate == batch.nbytes // 2
    writer.write(batch)
    encoded = writer.bytes_estimate
    assert encoded == file.tell()
    writer.write(batch)
    assert writer.bytes_estimate == pytest.approx(1.5 * encoded, rel=0.01)
    writer.close()
    writer.close()
    assert writer.bytes_estimate == file.tell()
    assert writer.rows == 300_000
    assert not file.closed


def many(count: int, first: int = 0) -> pa.RecordBatch:
    """Return rows of every type, every seventh of them all null."""
    numbers = range(first, first + count)
    return pa.RecordBatch.from_pylist([{**ROW, "i": i} if i % 7 else dict.fromkeys(ROW) for i in numbers], SCHEMA)


def taking_over(writer: ParquetWriter, data: bytes) -> bool:
    """Have a writer take the rows of a file over, if it does; tell whether it did."""
    steps = writer.taking(MemoryFile(data), len(data))
    return steps is not None and sum(steps) > 0


@pytest.mark.parametrize("pattern", ["taken", "taken taken", "own taken", "taken own", "own taken taken own taken own"])
@pytest.mark.parametrize("codec", ["snappy", "zstd"])
def test_row_groups_are_taken_over_as_they_are(
    pattern: str, codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of rows that were taken over between rows that were encoded has all rows in order, for each engine, with their statistics."""
    monkeypatch.setattr(parquet, "_ROWS_MIN", 1)
    monkeypatch.setattr(parquet, "_SMALL_PART", 1 << 30)
    monkeypatch.setattr(parquet, "_COPIED_BYTES", 1000)
    path = tmp_path / "joined.parquet"
    file = io.BytesIO()
    writer = ParquetWriter(file, WriteFormat("parquet", SCHEMA, codec), group_bytes=4000)
    batches = [many(100, 100 * number) for number in range(len(pattern.split()))]
    for way, batch in zip(pattern.split(), batches, strict=True):
        if way == "own":
            writer.write(batch)
        else:
            data = written(batch, codec=codec, group_bytes=4000)
            assert taking_over(writer, data)
            assert (
                file.getvalue().count(data[4 : Footer.of(MemoryFile(data).read, len(data)).begin]) == 1
            )  # the very bytes
    writer.close()
    path.write_bytes(file.getvalue())
    expected = pa.Table.from_batches(batches)
    assert writer.rows == expected.num_rows
    assert read(file.getvalue(), SCHEMA).equals(expected)
    assert pq.read_table(path).equals(expected)
    rows_of = [(row["i"], row["s"]) for row in expected.to_pylist()]
    assert duckdb.read_parquet(str(path)).select("i, s").fetchall() == rows_of
    assert pl.read_parquet(path, columns=["i", "s"]).rows() == rows_of
    footer = pq.read_metadata(path)
    assert footer.num_rows == expected.num_rows
    assert footer.metadata == pq.read_metadata(io.BytesIO(written(batches[0]))).metadata
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        assert group.column(0).statistics.has_min_max
        alone = pq.ParquetFile(path).read_row_group(number)
        assert group.num_rows == alone.num_rows
        assert group.column(0).statistics.max == max(filter(None, alone["i"].to_pylist()))


def test_many_row_groups_and_columns_are_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A footer of more than 64 KiB, with lists of more than 14 structs and offsets of several bytes, is taken over."""
    monkeypatch.setattr(parquet, "_ROWS_MIN", 1)
    batch = pa.RecordBatch.from_pydict({f"c{n}": [f"{n} {row}" for row in range(100)] for n in range(40)})
    data = written(batch, group_bytes=batch.nbytes // 50)
    assert pq.read_metadata(io.BytesIO(data)).num_row_groups >= 40
    assert len(data) - Footer.of(MemoryFile(data).read, len(data)).begin > 64 << 10
    file = io.BytesIO()
    writer = ParquetWriter(file, WriteFormat("parquet", batch.schema, "snappy"))
    assert taking_over(writer, data)
    assert taking_over(writer, data)
    writer.close()
    assert pq.read_table(io.BytesIO(file.getvalue())).equals(pa.Table.from_batches([batch, batch]))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"write_page_index": True}, id="an index of pages"),
        pytest.param({"bloom_filter_options": {"a": True}}, id="a filter"),
        pytest.param({"sorting_columns": [pq.SortingColumn(0)]}, id="an order that the file cannot promise"),
    ],
)
def test_what_bytes_alone_do_not_carry_is_not_taken_over(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row groups whose footer names other places of their file, or promises an order, are left to be decoded; none is written."""
    monkeypatch.setattr(parquet, "_ROWS_MIN", 1)
    plain = written(pa.RecordBatch.from_pydict({"a": [1, 2, 3]}, NUMBERS))
    table = pa.Table.from_pydict({"a": [1, 2, 3]}, NUMBERS)
    data = foreign(table, version="2.6", **options).getvalue()
    file = io.BytesIO()
    writer = ParquetWriter(file, WriteFormat("parquet", NUMBERS, "snappy"))
    assert taking_over(writer, plain)
    size = len(file.getvalue())
    assert taking_over(writer, foreign(table, version="2.6").getvalue())
    assert len(file.getvalue()) > size
    size = len(file.getvalue())
    assert not taking_over(writer, data)
    assert len(file.getvalue()) == size
    writer.close()
    assert pq.read_table(io.BytesIO(file.getvalue()))["a"].to_pylist() == [1, 2, 3] * 2


def test_files_that_are_to_be_decoded_are_not_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other columns, small row groups, rows that wait for theirs, and what is no whole file: nothing of these is written."""
    file = io.BytesIO()
    writer = ParquetWriter(file, WriteFormat("parquet", NUMBERS, "none"))
    one = pa.RecordBatch.from_pydict({"a": [1]}, NUMBERS)
    assert not taking_over(writer, written(one, codec="none"))  # one row makes no row group that is worth keeping
    monkeypatch.setattr(parquet, "_ROWS_MIN", 1)
    data = written(one, codec="none")
    assert not taking_over(writer, written(pa.RecordBatch.from_pydict({"b": [1]}), codec="none"))
    assert not taking_over(writer, written(pa.RecordBatch.from_pydict({"a": ["1"]}), codec="none"))
    assert not taking_over(writer, written(one.slice(1), codec="none"))
    cut = [data[:end] for end in range(len(data))] + [data[begin:] for begin in range(1, len(data))]
    assert not any(taking_over(writer, piece) for piece in cut if piece[-4:] != b"PAR1" or len(piece) < 40)
    assert file.getvalue() in {b"", b"PAR1"}
    writer.write(one)
    assert not taking_over(writer, data)  # the row that waits would be a row group by itself
    writer.close()
    assert pq.read_table(io.BytesIO(file.getvalue()))["a"].to_pylist() == [1]


def test_a_file_that_ends_while_it_is_taken_over_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the bytes of row groups are fewer than the footer says, that is an error, not a shorter file."""
    monkeypatch.setattr(parquet, "_ROWS_MIN", 1)
    data = written(pa.RecordBatch.from_pydict({"a": [1, 2]}, NUMBERS))
    writer = ParquetWriter(io.BytesIO(), WriteFormat("parquet", NUMBERS, "snappy"))

    class Shrinks(MemoryFile):
        def read(self, offset: int, length: int) -> bytes:
            return super().read(offset, length) if offset != len(MAGIC) else b""

    steps = writer.taking(Shrinks(data), len(data))
    assert steps is not None
    with pytest.raises(BadFile, match="ends at byte 4"):
        list(steps)


def test_the_estimate_does_not_count_what_was_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that were taken over say nothing about how small this file's own rows become."""
    monkeypatch.setattr(parquet, "_ROWS_MIN", 1)
    batch = pa.RecordBatch.from_pydict({"a": list(range(100_000))}, NUMBERS)
    data = written(batch, codec="zstd")
    file = io.BytesIO()
    writer = ParquetWriter(file, WriteFormat("parquet", NUMBERS, "zstd"), group_bytes=2 * batch.nbytes)
    for _ in range(5):
        assert taking_over(writer, data)
    taken = len(file.getvalue())
    for _ in range(2):
        writer.write(batch)
    own = len(file.getvalue()) - taken
    writer.write(batch)
    assert writer.bytes_estimate == pytest.approx(taken + 1.5 * own, rel=0.01)


def test_a_file_without_rows_is_a_file() -> None:
    """A writer closed without rows leaves a valid file with its columns."""
    data = written(rows(2).slice(0, 0))
    assert read(data, SCHEMA).num_rows == 0
    assert parquet_footer(io.BytesIO(data))[0].equals(SCHEMA)
    assert group_rows(data) == []


def test_other_columns_are_refused() -> None:
    """A batch of another schema is refused, and the file is unchanged."""
    writer = ParquetWriter(io.BytesIO(), WriteFormat("parquet", NUMBERS, "none"))
    with pytest.raises(OptionError, match="other columns than the file"):
        writer.write(rows(1))
    assert writer.rows == 0


def test_errors_of_writing_come_through() -> None:
    """An error that the file object raises during a write reaches the caller unchanged."""

    class Full:
        def write(self, data: bytes, /) -> None:
            raise OSError(28, "No space left on device", len(data))

    writer = ParquetWriter(Full(), WriteFormat("parquet", NUMBERS, "none"))
    writer.write(pa.RecordBatch.from_pydict({"a": [1]}, NUMBERS))
    with pytest.raises(OSError, match="No space left") as caught:
        writer.close()
    assert caught.value.errno == 28


@pytest.mark.parametrize("told", ["comment", "type"])
def test_schemas_that_only_spark_tells_apart(told: str) -> None:
    """Arrow calls two schemas equal whatever Spark metadata they carry: each file has its own metadata, which a process builds once."""
    footers = []
    for value in ("interval hour", "interval day"):
        metadata = {"comment": value} if told == "comment" else {}
        kind = value if told == "type" else "long"
        fields = [{"name": "a", "type": kind, "nullable": True, "metadata": metadata}]
        schema = to_arrow(json.dumps({"type": "struct", "fields": fields}))
        for _ in range(2):
            file = io.BytesIO()
            ParquetWriter(file, WriteFormat("parquet", schema, "none")).close()
            footers.append(pq.ParquetFile(file).metadata.metadata[SPARK_KEY].decode())
    assert footers[0] == footers[1] != footers[2] == footers[3]
    assert ("interval hour" in footers[0], "interval day" in footers[2]) == (True, True)
