"""What every table format must do, whatever its files are: each registered format that can be written runs all these tests."""

from __future__ import annotations

import datetime as dt
import io
import random
from collections import Counter
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadFile, NoSpace, OptionError, StorageError
from penstock.formats import ReadFormat, format_named
from penstock.formats.account import Account
from penstock.formats.format import WriteFormat
from penstock.formats.registry import names, table_format
from penstock.formats.trial import check_table
from penstock.options.formats import WRITTEN
from tests.formats.batches import VALUES
from tests.support.extras import HAS_AVRO

if TYPE_CHECKING:
    from penstock.formats.families import TableFormat

NOON = dt.datetime(2024, 1, 2, 12, 0, 0, 123456, tzinfo=dt.timezone.utc)
ROW = {
    "flag": True,
    "byte": -1,
    "i": 1,
    "long": 1 << 62,
    "f": 1.5,
    "s": "öne",
    "t": NOON,
    "n": NOON.replace(tzinfo=None, year=1900, microsecond=0),
    "d": dt.date(1, 1, 1),
    "c": Decimal("-1.10"),
    "wide": Decimal("9" * 38),
    "b": b"\0\xff",
    "l": ["x", None],
    "m": [("k", 1), ("l", None)],
    "st": {"x": 1, "y": None},
    "deep": [{"a": [[("k", [Decimal("0.5"), None])]], "b": None}, None],
}
SCHEMA = pa.schema(
    [
        ("flag", pa.bool_()),
        ("byte", pa.int8()),
        ("i", pa.int32()),
        ("long", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("t", pa.timestamp("us", tz="UTC")),
        ("n", pa.timestamp("us")),
        ("d", pa.date32()),
        ("c", pa.decimal128(10, 2)),
        ("wide", pa.decimal128(38, 0)),
        ("b", pa.binary()),
        ("l", pa.list_(pa.string())),
        ("m", pa.map_(pa.string(), pa.int32())),
        ("st", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        (
            "deep",
            pa.list_(
                pa.struct([("a", pa.list_(pa.map_(pa.string(), pa.list_(pa.decimal128(3, 1))))), ("b", pa.int8())])
            ),
        ),
    ]
)
NUMBERS = pa.schema([("a", pa.int64()), ("s", pa.string())])
TABLES = [name for name in names(lambda form: not hasattr(form, "decoder"), WRITTEN) if name != "avro" or HAS_AVRO]

table = pytest.mark.parametrize("name", TABLES)
WHOLE: set[str] = set()  # formats whose files are read whole because they cannot be cut anywhere
in_ranges = pytest.mark.parametrize("name", [name for name in TABLES if name not in WHOLE])


class InMemory:
    """The bytes of a file, with the interface of an open file of a storage."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.broken_from = len(data) + 1

    def read(self, offset: int, length: int) -> bytes:
        if offset + length > self.broken_from:
            msg = "the disk is gone"
            raise StorageError(msg)
        return self.data[offset : offset + length]


def rows(count: int) -> pa.RecordBatch:
    """Return rows of every type, one of them all null."""
    return pa.RecordBatch.from_pylist([{**ROW, "i": i} for i in range(count - 1)] + [dict.fromkeys(ROW)], SCHEMA)


def numbers(count: int, begin: int = 0) -> pa.RecordBatch:
    """Return rows that can be told apart."""
    values = range(begin, begin + count)
    return pa.RecordBatch.from_pylist([{"a": value, "s": f"value {value}"} for value in values], NUMBERS)


def written(form: TableFormat, *batches: pa.RecordBatch, codec: str | None = None, group_bytes: int = 1 << 20) -> bytes:
    """Return a file of these batches."""
    file = io.BytesIO()
    codec = codec or form.codecs[0]
    writer = form.writer(file, WriteFormat(form.name, batches[0].schema, codec), group_bytes=group_bytes, ratio=0.5)
    for batch in batches:
        writer.write(batch)
    writer.close()
    writer.close()  # like a caller that closes twice after an error
    assert writer.bytes_estimate == len(file.getvalue())
    return file.getvalue()


def read(form: TableFormat, data: bytes, schema: pa.Schema, *spans: tuple[int, int], **more: Any) -> pa.Table:
    """Return the rows of the ranges, or of the whole file if there are none, as exactly `schema`."""
    fmt = ReadFormat(form.name, schema, **more)
    found = []
    for span in spans or ((0, len(data)),):
        found += list(form.rows(fmt, InMemory(data), len(data), span))
    assert all(batch.schema.equals(schema) for batch in found)
    return pa.Table.from_batches(found, schema)


@table
def test_rows_survive_each_codec(name: str) -> None:
    """Every type, nulls and nested values come back unchanged with every compression."""
    form, batch = table_format(name), rows(10)
    for codec in form.codecs:
        assert read(form, written(form, batch, codec=codec), SCHEMA).to_pylist() == batch.to_pylist()


@table
def test_files_can_be_cut(name: str) -> None:
    """One large file is split among many tasks, unless the format does not record where a row begins."""
    assert table_format(name).divisible(ReadFormat(name, NUMBERS), "f") == (name not in WHOLE)


@in_ranges
def test_ranges_have_each_row_once(name: str) -> None:
    """Whatever the cuts, adjacent ranges give all rows, in order."""
    form = table_format(name)
    chance = random.Random(name)  # noqa: S311 - a case
    values = [chance.getrandbits(63) for _ in range(6000)]  # no encoding makes this shorter, so there are many groups
    batch = pa.RecordBatch.from_pydict({"a": values, "s": [str(value) for value in values]}, schema=NUMBERS)
    data = written(form, *(batch.slice(begin, 300) for begin in range(0, 6000, 300)), codec="none", group_bytes=4000)
    for count in (1, 2, 7, 50):
        cuts = sorted({0, len(data), *chance.sample(range(len(data)), count)})
        assert read(form, data, NUMBERS, *pairwise(cuts)) == pa.Table.from_batches([batch])
    half = read(form, data, NUMBERS, (0, len(data) // 2)).num_rows
    assert 2000 < half < 4000


@pytest.mark.slow
@in_ranges
def test_a_range_for_each_byte(name: str) -> None:
    """A file cut between any two bytes still gives each row in exactly one range."""
    form = table_format(name)
    data = written(form, numbers(5), numbers(5, 5), group_bytes=10)
    assert read(form, data, NUMBERS, *((at, at + 1) for at in range(len(data)))).column("a").to_pylist() == [*range(10)]


@table
def test_slices_are_the_rows_they_show(name: str) -> None:
    """If a batch is a slice, also a nested one, exactly its visible rows are written."""
    form, batch = table_format(name), rows(9)
    views = [batch.slice(0, 2), batch.slice(2, 0), batch.slice(2, 1), batch.slice(3)]
    assert read(form, written(form, *views), SCHEMA).to_pylist() == batch.to_pylist()


@table
def test_a_file_without_rows_is_a_file(name: str) -> None:
    """A writer without rows still makes a file, with its columns; it reads as no rows."""
    form = table_format(name)
    data = written(form, numbers(0))
    assert read(form, data, NUMBERS).num_rows == 0
    assert written(form, numbers(0)).startswith(data[:3])


@table
def test_the_size_is_known_while_it_is_written(name: str) -> None:
    """The estimated size of the file, if it were closed now, is right to within a group or two."""
    form, chance = table_format(name), random.Random(1)  # noqa: S311 - a case
    values = [chance.getrandbits(63) for _ in range(40_000)]
    file = io.BytesIO()
    batch = pa.RecordBatch.from_pydict({"a": values, "s": [str(value) for value in values]}, schema=NUMBERS)
    writer = form.writer(file, WriteFormat(form.name, NUMBERS, form.codecs[0]), group_bytes=100_000, ratio=0.5)
    for begin in range(0, len(values), 1000):
        writer.write(batch.slice(begin, 1000))
    told = writer.bytes_estimate
    writer.close()
    assert abs(told - len(file.getvalue())) < len(file.getvalue()) / 4


@table
def test_columns_are_found_by_name(name: str) -> None:
    """Columns come in the schema's order, matched by name or else by case; one that the file lacks is null; extra ones are counted."""
    form = table_format(name)
    batch = pa.RecordBatch.from_pydict({"B": ["x"], "a": pa.array([1], pa.int32()), "other": [2.5]})
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("new", pa.date32())])
    account = Account()
    data = written(form, batch)
    found = list(form.rows(ReadFormat(name, schema), InMemory(data), len(data), (0, len(data)), account))
    assert pa.Table.from_batches(found).to_pylist() == [{"a": 1, "b": "x", "new": None}]
    assert account.unknown == {"other": 1}


@table
def test_members_are_found_by_name(name: str) -> None:
    """Struct members are matched like columns, also in lists and maps: reading null for a member in another case had lost a value."""
    form = table_format(name)
    member = pa.struct([("Key", pa.int32()), ("other", pa.string())])
    kind = pa.struct([("L", pa.list_(member))]) if name != "orc" else member  # ORC takes no struct in a struct
    inner = {"Key": 7, "other": "x"}
    value = {"L": [inner]} if name != "orc" else inner
    data = written(
        form,
        pa.record_batch(
            {"S": pa.array([value, None], kind), "m": pa.array([[("k", inner)], []], pa.map_(pa.string(), member))}
        ),
    )
    wanted = pa.struct([("new", pa.string()), ("kEY", pa.int64())])
    outer = pa.struct([("l", pa.list_(wanted))]) if name != "orc" else wanted
    found = read(form, data, pa.schema([("s", outer), ("m", pa.map_(pa.string(), wanted))])).to_pylist()
    as_read = {"new": None, "kEY": 7}
    assert found == [
        {"s": {"l": [as_read]} if name != "orc" else as_read, "m": [("k", as_read)]},
        {"s": None, "m": []},
    ]
    twice = pa.struct([("AA", pa.int64()), ("Aa", pa.int64())])
    with pytest.raises(BadFile, match="member 'aa' is ambiguous: found AA, Aa"):
        read(
            form,
            written(form, pa.record_batch({"s": pa.array([{"AA": 1}], twice)})),
            pa.schema([("s", pa.struct([("aa", pa.int64())]))]),
        )


@table
def test_columns_of_another_type_are_refused(name: str) -> None:
    """A column of another type is an error with its name, found and expected; so is a null where none is allowed."""
    form = table_format(name)
    data = written(form, numbers(3))
    with pytest.raises(BadFile, match="column 's' has another type: found string, expected bigint"):
        read(form, data, pa.schema([("s", pa.int64())]))
    nulls = written(form, pa.RecordBatch.from_pydict({"a": pa.array([1, None])}))
    with pytest.raises(BadFile, match="nulls where the schema allows none"):
        read(form, nulls, pa.schema([pa.field("a", pa.int64(), nullable=False)]))


@table
def test_columns_of_no_file(name: str) -> None:
    """If the file has none of the columns, its rows are still there."""
    form = table_format(name)
    assert read(form, written(form, numbers(3)), pa.schema([("z", pa.int64())])).to_pylist() == [{"z": None}] * 3


@table
def test_files_that_are_none(name: str) -> None:
    """Other bytes, an empty file, and a truncated file raise `BadFile`, and never give fewer rows."""
    form = table_format(name)
    data = written(form, numbers(50), numbers(50, 50), group_bytes=500)
    for other in (b"", b"id,name\n1,x\n", b"\0" * 100, *(data[:at] for at in range(0, len(data), 13))):
        if name == "avro" and other and other.endswith(data[-16:]):
            continue  # cut between two blocks; nothing in the file says that there were more
        with pytest.raises(BadFile):
            read(form, other, NUMBERS)


@pytest.mark.slow
@table
def test_what_is_given_up_leaves_the_process_alone(name: str) -> None:
    """Reading and writing may be abandoned anywhere, with an error in flight, without harm to the process from any library."""
    form = table_format(name)
    data = written(form, *(numbers(200, number) for number in range(20)), group_bytes=4000)
    wrong = pa.schema([pa.field("a", pa.int8()), ("s", pa.string())])

    def give_up() -> None:
        writer = form.writer(io.BytesIO(), WriteFormat(form.name, NUMBERS, form.codecs[0]), group_bytes=4000, ratio=0.5)
        writer.write(numbers(300))
        for _ in form.rows(ReadFormat(name, NUMBERS), InMemory(data), len(data), (0, len(data))):
            raise KeyError(name)

    for _ in range(100):
        with pytest.raises(BadFile):
            read(form, data, wrong)
        with pytest.raises(KeyError):
            give_up()


@table
def test_damaged_bits_lose_no_row(name: str) -> None:
    """A file with a flipped bit gives an error or all rows: it is never silently shorter."""
    form, chance = table_format(name), random.Random(name)  # noqa: S311 - a case
    data = written(form, numbers(200), numbers(200, 200), group_bytes=2000)
    outcomes: Counter[str] = Counter()
    for _ in range(150):
        damaged = bytearray(data)
        damaged[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        try:
            found = read(form, bytes(damaged), NUMBERS)
        except BadFile:
            outcomes["refused"] += 1
        else:
            outcomes["read"] += 1
            assert found.num_rows == 400 or name == "avro"  # only its blocks record their number of rows
    assert outcomes["refused"]


@table
def test_errors_of_the_storage_come_through(name: str) -> None:
    """A failing disk does not make a bad file: the storage's error comes through, so that the task is retried."""
    form = table_format(name)
    data = written(form, numbers(500), group_bytes=4000)
    for broken_from in (1, len(data) // 3, len(data) - 1):
        file = InMemory(data)
        file.broken_from = broken_from
        with pytest.raises(StorageError, match="the disk is gone"):
            list(form.rows(ReadFormat(name, NUMBERS), file, len(data), (0, len(data))))


class FullDisk:
    """A file on a disk that is full after this many bytes, and stays full."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, data: Any) -> int:
        self.room -= len(data)
        if self.room < 0:
            msg = "the disk is full"
            raise NoSpace(msg)
        return len(data)


@table
@pytest.mark.parametrize("group_bytes", [4000, 1 << 20])
def test_a_disk_that_is_full_wherever_a_file_is_written(name: str, group_bytes: int) -> None:
    """F32: whether within a group, at the end or after it, the storage's error comes through, also a second time; the process survives."""
    form = table_format(name)
    whole = len(written(form, numbers(500), group_bytes=group_bytes))
    for room in (0, 2, whole // 3, whole // 2, whole - 20, whole - 1):
        writers: list[Any] = []

        def write(room: int = room, writers: list[Any] = writers) -> None:
            writers.append(
                form.writer(
                    FullDisk(room), WriteFormat(form.name, NUMBERS, form.codecs[0]), group_bytes=group_bytes, ratio=0.5
                )
            )
            writers[0].write(numbers(500))
            writers[0].close()

        with pytest.raises(NoSpace, match="the disk is full"):
            write()
        for writer in writers:  # no writer exists if it writes at once when it is made, and that failed
            with pytest.raises(NoSpace):
                writer.close()
        writers.clear()


@table
def test_staged_files_give_the_rows_with_their_schema(name: str) -> None:
    """A format that records the schema of its rows returns exactly that schema; the others say that they do not."""
    form, schema = table_format(name), pa.schema([pa.field("a", pa.int64(), nullable=False), ("i", pa.int8())])
    batch = pa.RecordBatch.from_pydict({"a": [1], "i": [2]}, schema=schema)
    data = written(form, batch)
    told = form.written_schema(InMemory(data), len(data))
    assert form.tells_schema == (told is not None)
    assert read(form, data, told or schema).to_batches() == [batch]


@table
def test_what_cannot_be_held_is_refused_before_rows_come(name: str) -> None:
    """A type that no file of the format can hold is refused with the column's name, before anything is staged."""
    form = table_format(name)
    for kind in (pa.month_day_nano_interval(), pa.dense_union([pa.field("x", pa.int64())])):
        with pytest.raises(OptionError, match=f"column 'x' is .*, which {name} cannot hold"):
            check_table(form, pa.schema([("a", pa.int64()), ("x", kind)]), form.codecs[0])
    check_table(form, SCHEMA, form.codecs[0])


@table
def test_batches_of_other_columns_are_refused(name: str) -> None:
    """A writer accepts only rows of its own schema."""
    writer = table_format(name).writer(io.BytesIO(), WriteFormat(name, NUMBERS), group_bytes=100, ratio=1)
    with pytest.raises(OptionError, match="the batch has other columns than the file"):
        writer.write(rows(1))


LEAVES = st.sampled_from([kind for kind in VALUES if not pa.types.is_timestamp(kind)])
KINDS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda kinds: pa.struct([(f"m{n}", k) for n, k in enumerate(kinds)])
        ),
    ),
    max_leaves=4,
)


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Return values of a type, some of them null."""
    if pa.types.is_list(kind):
        value: st.SearchStrategy[Any] = st.lists(values_of(kind.value_type), max_size=3)
    elif pa.types.is_map(kind):
        value = st.dictionaries(st.text("abc", max_size=2), values_of(kind.item_type), max_size=3).map(
            lambda d: [*d.items()]
        )
    elif pa.types.is_struct(kind):
        value = st.fixed_dictionaries({member.name: values_of(member.type) for member in kind})
    else:
        value = VALUES[kind]
    return st.one_of(st.none(), value)


def has_struct_in_struct(kind: pa.DataType, *, inside: bool = False) -> bool:
    """Tell whether a struct is inside another one, at any depth."""
    if not pa.types.is_nested(kind):
        return False
    is_struct = pa.types.is_struct(kind)
    if pa.types.is_map(kind):
        return has_struct_in_struct(kind.item_type, inside=inside)
    parts = list(kind) if is_struct else [kind.value_field]
    return (is_struct and inside) or any(has_struct_in_struct(part.type, inside=inside or is_struct) for part in parts)


@pytest.mark.slow
@table
@given(st.data())
def test_any_columns_survive(name: str, data: st.DataObject) -> None:
    """Any nested types, with any values, cut into any groups, are read as they were written."""
    form = table_format(name)
    held = KINDS.filter(lambda kind: name != "orc" or not has_struct_in_struct(kind))
    kinds = data.draw(st.lists(held, min_size=1, max_size=3))
    schema = pa.schema([(f"c{number}", kind) for number, kind in enumerate(kinds)])
    count = data.draw(st.integers(0, 8))
    columns = [pa.array(data.draw(st.lists(values_of(k), min_size=count, max_size=count)), k) for k in kinds]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    file = written(form, batch, group_bytes=data.draw(st.integers(1, 2000)))
    middle = data.draw(st.integers(0, len(file)))
    found = read(form, file, schema, (0, middle), (middle, len(file)))
    assert str(found.to_pylist()) == str(batch.to_pylist())  # as text, NaN equals NaN


@table
def test_a_format_that_is_no_table(name: str) -> None:
    """Tables and record formats are told apart."""
    assert format_named(name) is table_format(name)
    with pytest.raises(OptionError, match="format='csv' is not a table: expected parquet"):
        table_format("csv")
