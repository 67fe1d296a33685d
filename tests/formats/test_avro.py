"""Avro as other programs write and read it: fastavro and polars are independent; Spark's own Avro is not in its distribution."""

from __future__ import annotations

import datetime as dt
import importlib.util
import io
import json
import subprocess
import sys
import uuid
from decimal import Decimal
from itertools import pairwise
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

fastavro = pytest.importorskip("fastavro")
pytest.importorskip("polars_avro")

from penstock.errors import BadFile, DependencyError, OptionError  # noqa: E402 - there is nothing to test without them
from penstock.formats.known import avro  # noqa: E402
from penstock.formats.registry import table_format  # noqa: E402
from penstock.formats.trial import check_table  # noqa: E402
from tests.formats.test_tables import NUMBERS, SCHEMA, InMemory, numbers, read, rows, written  # noqa: E402

FORM = table_format("avro")
UTC = pa.timestamp("us", tz="UTC")
NOON = dt.datetime(1920, 1, 2, 12, 0, 0, 123000, tzinfo=dt.timezone.utc)


def foreign(kind: Any, values: list[Any], codec: str = "null", *, interval: int = 16000) -> bytes:
    """Return a file with one column `x`, as fastavro writes it."""
    file = io.BytesIO()
    schema = {"type": "record", "name": "row", "fields": [{"name": "x", "type": kind}]}
    fastavro.writer(file, schema, [{"x": value} for value in values], codec=codec, sync_interval=interval)
    return file.getvalue()


def logical(kind: str, logical_type: str, /, **more: Any) -> dict[str, Any]:
    """Return a logical type."""
    return {"type": kind, "logicalType": logical_type, **more}


FOREIGN = {
    "enum": ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "B", pa.string(), "B"),
    "enums": (
        {"type": "array", "items": ["null", {"type": "enum", "name": "e", "symbols": ["A", "B"]}]},
        ["B", None, "A"],
        pa.list_(pa.string()),
        ["B", None, "A"],
    ),
    "enum in a record": (
        {
            "type": "record",
            "name": "r",
            "fields": [{"name": "e", "type": {"type": "enum", "name": "e", "symbols": ["A", "B"]}}],
        },
        {"e": "B"},
        pa.struct([("e", pa.string())]),
        {"e": "B"},
    ),
    "fixed": ({"type": "fixed", "name": "f", "size": 3}, b"abc", pa.binary(), b"abc"),
    "map": ({"type": "map", "values": ["null", "long"]}, {"k": 1}, pa.map_(pa.string(), pa.int64()), [("k", 1)]),
    "uuid": (logical("string", "uuid"), uuid.UUID(int=1), pa.string(), str(uuid.UUID(int=1))),
    "milliseconds": (logical("long", "timestamp-millis"), NOON, UTC, NOON),
    "microseconds": (logical("long", "timestamp-micros"), NOON, UTC, NOON),
    "local": (logical("long", "local-timestamp-micros"), NOON.replace(tzinfo=None), UTC, NOON),
    "date": (logical("int", "date"), dt.date(1920, 1, 2), pa.date32(), dt.date(1920, 1, 2)),
    "bytes": (
        logical("bytes", "decimal", precision=9, scale=2),
        Decimal("-1.23"),
        pa.decimal128(9, 2),
        Decimal("-1.23"),
    ),
    "digits": (
        logical("fixed", "decimal", name="d", size=8, precision=9, scale=2),
        Decimal("-1.23"),
        pa.decimal128(12, 3),
        Decimal("-1.230"),
    ),
    "array": ({"type": "array", "items": ["null", "int"]}, [1, None], pa.list_(pa.int64()), [1, None]),
    "record": (
        {
            "type": "record",
            "name": "r",
            "fields": [{"name": "a", "type": ["int", "null"]}, {"name": "b", "type": "string"}],
        },
        {"a": None, "b": "x"},
        pa.struct([("b", pa.string()), ("a", pa.int64()), ("c", pa.int8())]),
        {"b": "x", "a": None, "c": None},
    ),
    "int": ("int", 7, pa.int64(), 7),
    "float": ("float", 0.5, pa.float64(), 0.5),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_types_of_others(case: str) -> None:
    """Every Avro type that a Spark column can hold is read: as a plain value, and as a union with null in either order."""
    kind, value, wanted, expected = FOREIGN[case]
    schema = pa.schema([("x", wanted)])
    assert read(FORM, foreign(kind, [value]), schema).to_pylist() == [{"x": expected}]
    for union in (["null", kind], [kind, "null"]):
        assert read(FORM, foreign(union, [value, None]), schema).to_pylist() == [{"x": expected}, {"x": None}]


def test_types_that_are_used_again_by_their_full_names() -> None:
    """A name may have its namespace in it, as of `parse_schema`: a use means the type of that namespace, also where two share a name."""
    first = {"type": "enum", "name": "org.first.e", "symbols": ["A", "B"]}
    second = {"type": "fixed", "name": "org.second.e", "size": 2}
    used = [first, second, {"type": "array", "items": "org.first.e"}, ["null", "org.second.e"]]
    fields = [{"name": f"x{place}", "type": kind} for place, kind in enumerate(used)]
    record = {"type": "record", "name": "inner", "namespace": "com.example", "fields": fields}
    file = foreign(record, [{"x0": "B", "x1": b"ab", "x2": ["A", "B"], "x3": b"cd"}])
    members = [("x0", pa.string()), ("x1", pa.binary()), ("x2", pa.list_(pa.string())), ("x3", pa.binary())]
    expected = {"x0": "B", "x1": b"ab", "x2": ["A", "B"], "x3": b"cd"}
    assert read(FORM, file, pa.schema([("x", pa.struct(members))])).to_pylist() == [{"x": expected}]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("digits", [10, 18, 25, 38])
def test_decimals_of_more_digits_than_the_file_says(digits: int, *, inside: bool) -> None:
    """A writer that keeps to no precision: such a file is bad, at any depth. Spark refuses it, too, or wraps what has more than 64 bits."""
    kind: Any = logical("bytes", "decimal", precision=9, scale=2)
    wanted: pa.DataType = pa.decimal128(9, 2)
    value: Any = (10 ** (digits - 1)).to_bytes(17, "big", signed=True)
    plain: Any = "bytes"
    if inside:
        kind, wanted, value = {"type": "array", "items": kind}, pa.list_(wanted), [value]
        plain = {"type": "array", "items": "bytes"}
    data, schema = foreign(plain, [value]), {"type": "record", "name": "row", "fields": [{"name": "x", "type": kind}]}
    body = data[data.index(data[-16:]) + 16 :]  # what is behind the header, which ends in the sync marker
    data = avro._header_bytes({b"avro.schema": json.dumps(schema).encode()}, data[-16:]) + body
    roomy = pa.list_(pa.decimal128(38, 2)) if inside else pa.decimal128(38, 2)
    for room in (wanted, roomy):
        with pytest.raises(BadFile, match=r"column 'x' is decimal\(9,2\) in the file, and has a value of more digits"):
            read(FORM, data, pa.schema([("x", room)]))


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_codecs_and_blocks_of_others(codec: str) -> None:
    """Files of many blocks are read whole and in ranges, with every compression."""
    values = list(range(5000))
    data = foreign("long", values, codec, interval=500)
    schema = pa.schema([("x", pa.int64())])
    for count in (1, 3, 40):
        cuts = [len(data) * part // count for part in range(count + 1)]
        assert read(FORM, data, schema, *pairwise(cuts)).column(0).to_pylist() == values


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_others_read_what_is_written(codec: str) -> None:
    """fastavro reads every type as it was written, and polars those that it supports; a column without nulls is not a union."""
    batch = rows(3)
    found = list(fastavro.reader(io.BytesIO(written(FORM, batch, codec=codec))))
    assert pa.RecordBatch.from_pylist(found, SCHEMA).to_pylist() == batch.to_pylist()
    assert pl.read_avro(io.BytesIO(written(FORM, numbers(9), codec=codec))).to_dicts() == numbers(9).to_pylist()
    required = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    data = written(FORM, pa.RecordBatch.from_pydict({"a": [1]}, schema=required))
    assert fastavro.reader(io.BytesIO(data)).writer_schema["fields"] == [{"name": "a", "type": "long"}]


def test_slices_of_structs_in_structs_are_written() -> None:
    """A part that was cut between rows is written whole: polars, which writes it, panics on such a slice of nested structs with nulls."""
    values = [{"c": {"d": {"e": None if row % 3 == 0 else row}, "f": row}} for row in range(22)]
    values[5]["c"]["d"] = None
    batch = pa.RecordBatch.from_pylist(values)
    for start in range(1, 21):
        found = list(fastavro.reader(io.BytesIO(written(FORM, batch.slice(start)))))
        assert found == values[start:]


def test_times_without_a_zone_are_of_the_zone() -> None:
    """A local time is in `timeZone` where an instant is expected, and stays unchanged where a local time is expected."""
    noon = dt.datetime(2024, 7, 1, 12)
    data = foreign(logical("long", "local-timestamp-micros"), [noon])
    berlin = read(FORM, data, pa.schema([("x", UTC)]), zone="Europe/Berlin").column(0)
    assert berlin.to_pylist() == [noon.replace(hour=10, tzinfo=dt.timezone.utc)]
    assert read(FORM, data, pa.schema([("x", pa.timestamp("us"))]), zone="Europe/Berlin").column(0).to_pylist() == [
        noon
    ]


@pytest.mark.parametrize("kind", [["null", "int", "string"], "null"])
def test_types_that_no_column_has(kind: Any) -> None:
    """A union of several types cannot be read as a column, and the error says so; the other columns can be read."""
    file = io.BytesIO()
    fields = [{"name": "x", "type": kind}, {"name": "y", "type": "long"}]
    fastavro.writer(file, {"type": "record", "name": "row", "fields": fields}, [{"x": None, "y": 2}])
    assert read(FORM, file.getvalue(), pa.schema([("y", pa.int64())])).to_pylist() == [{"y": 2}]
    if kind != "null":
        with pytest.raises(BadFile):
            read(FORM, file.getvalue(), pa.schema([("x", pa.string())]))


REFUSED = {
    "name": (
        pa.schema([("größe", pa.int64())]),
        "column 'größe' is bigint, which avro cannot hold .the name 'größe' is not one",
    ),
    "member": (
        pa.schema([("s", pa.struct([("a.b", pa.int64())]))]),
        "column 's' is .*the name 'a.b' is not one that Avro allows",
    ),
    "keys": (pa.schema([("m", pa.map_(pa.int64(), pa.int64()))]), "column 'm' is .* no such type in Avro: map<int64"),
    "interval": (pa.schema([("d", pa.duration("us"))]), "column 'd' is .* no such type in Avro"),
    "nothing": (pa.schema([("v", pa.null())]), "column 'v' is .* no such type in Avro"),
    "members": (pa.schema([("e", pa.struct([]))]), "column 'e' is .* no such type in Avro"),
    "nanoseconds": (pa.schema([("t", pa.list_(pa.time64("ns")))]), "column 't' is .*"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_avro_cannot_hold(case: str) -> None:
    """Names and types that Avro does not have are refused before any row is read, with the reason."""
    schema, message = REFUSED[case]
    with pytest.raises(OptionError, match=message):
        check_table(FORM, schema, "none")


def test_schemas_that_are_none() -> None:
    """A header whose schema is not a record, or cannot be parsed, makes a bad file."""
    good = foreign("long", [1])
    for schema in ({"type": "long"}, "int", {"type": "record", "name": "r", "fields": [{"name": "x", "type": "nope"}]}):
        header = avro._header_bytes({b"avro.schema": json.dumps(schema).encode()}, good[-16:])
        with pytest.raises(BadFile):
            read(FORM, header, NUMBERS)


def test_headers_larger_than_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema may be longer than the first read, but there is a limit."""
    data = written(FORM, numbers(5))
    monkeypatch.setattr(avro, "_HEADER_BYTES", 10)
    assert read(FORM, data, NUMBERS).num_rows == 5
    monkeypatch.setattr(avro, "_HEADER_BYTES_MAX", 20)
    with pytest.raises(BadFile, match="its header does not end in 40 B"):
        read(FORM, data, NUMBERS)


def test_blocks_are_read_once_and_in_megabytes() -> None:
    """A file of many small blocks is not read block by block."""
    data = foreign("long", list(range(200_000)), interval=500)
    asked: list[tuple[int, int]] = []

    class Counting(InMemory):
        def read(self, offset: int, length: int) -> bytes:
            asked.append((offset, length))
            return super().read(offset, length)

    schema = pa.schema([("x", pa.int64())])
    fmt = avro.FORMAT.rows
    batches = fmt(avro_format(schema), Counting(data), len(data), (0, len(data)))
    assert sum(batch.num_rows for batch in batches) == 200_000
    assert len(asked) <= len(data) // (1 << 20) + 3


def avro_format(schema: pa.Schema) -> Any:
    """Return the read format of such a file."""
    from penstock.formats import ReadFormat  # noqa: PLC0415 - behind what may be skipped

    return ReadFormat("avro", schema)


@pytest.mark.slow
def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, the format says what to install before anything is read; other formats do not load its library."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DependencyError, match=r"pip install 'penstock\[avro\]'"):
        FORM.prepare()
    code = "import sys; from penstock.formats.registry import names; names(lambda form: True); print('polars' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"


def test_every_type_is_tried() -> None:
    """Types that Avro can hold are not refused."""
    check_table(FORM, SCHEMA, "none")
