"""JSON lines: what is read, refused and written; and that the quick reader never gives a wrong result."""

from __future__ import annotations

import base64
import datetime as dt
import gzip
import json
import random
import re
import zlib
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadRecord, OptionError
from penstock.formats import ReadFormat, WriteFormat, decoder, encoder, file_extension
from penstock.formats.account import Account
from penstock.formats.json import exact as jsonexact
from penstock.formats.json import lines as jsonl
from penstock.formats.json.arrow import Lines
from penstock.formats.json.dense import DenseReader, is_strict
from penstock.formats.json.frame import FrameReader
from penstock.formats.json.quick import QuickReader
from penstock.formats.json.read import JsonReader
from penstock.formats.lines import record_starts
from penstock.formats.malformed import MalformedError
from penstock.formats.patterns import TimeForms
from penstock.formats.schema import to_arrow
from tests.formats.batches import VALUES, flat_batches, same_rows
from tests.formats.spark import ANSWERS, REFUSED, TYPES, cast_to_string, same
from tests.support.effort import effort

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

UTC = pa.timestamp("us", tz="UTC")
NOON = dt.datetime(2024, 1, 2, 12, tzinfo=dt.timezone.utc)
LONG = pa.schema([("a", pa.int64())])
STRING = pa.schema([("a", pa.string())])


def rows(block: bytes, schema: pa.Schema = LONG, *, sep: bytes | None = None) -> list[dict[str, Any]]:
    """Return the rows of a block of JSON lines; both readers must agree on them."""
    batch = decoder(ReadFormat("json", schema, line_sep=sep)).decode(block)
    batch.validate(full=True)
    assert batch.schema.equals(schema, check_metadata=True)
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


def column(*values: str, kind: pa.DataType) -> list[Any]:
    """Return what the JSON `values` are as a column of a type, one a line."""
    block = "".join(f'{{"a":{value}}}\n' for value in values).encode()
    return [row["a"] for row in rows(block, pa.schema([("a", kind)]))]


# -- reading: lines and objects


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b"", []),
        (b"\n \n\t\r\n", []),
        (b'{"a":1}', [1]),
        (b'{"a":1}\n{"a":2}\n', [1, 2]),
        (b'\n{"a":1}\r\n\r\n  \r{"a":2}\r\n', [1, 2]),
        (b'{"a":1}\r{"a":2}\r', [1, 2]),
        (b'\xef\xbb\xbf{"a":1}\n', [1]),
        (b' { "a" : 1 } \n', [1]),
        (b'{"a"\t:\t1}\n{"a"\t :2}\n', [1, 2]),
        (b'{}\n{"b":1}\n{"a":null}\n{"A":1}\n', [None, None, None, None]),
        (b'{"b":{"a":7},"a":1,"c":[{"a":8}]}\n', [1]),
        (b'{"b":"\\"a\\":5","a":1}\n', [1]),
        (b'{"b":"}\\\\","a":1}\n', [1]),
        (b'{"\\u0061":5}\n', [5]),
        (b'{"b":NaN,"a":1}\n{"b":[-INF,+Infinity],"a":2}\n', [1, 2]),
        (b'{"b":"NaN","a":1}\n', [1]),
        (b'{"b":1E400,"a":1}\n{"b":[-1e9999],"a":2}\n', [1, 2]),
        (b'{"a":1}\n\xef\xbb\xbf{"a":2}\n\xef\xbb\xbf\n', [1, 2]),
    ],
)
def test_objects_are_found_on_lines(block: bytes, expected: list[int | None]) -> None:
    """A line is an object, found by any line end; missing keys are null, unknown keys are skipped, white space and a BOM are ignored."""
    assert [row["a"] for row in rows(block)] == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        b'{"a":1} trailing',
        b'{"a":1}{"a":2}',
        b'{"a":1},',
        b"[1]",
        b'[{"a":1}]',
        b"[]",
        b"42",
        b"null",
        b'"x"',
        b"true",
        b'{"a":',
        b'{"a":1',
        b'{"a":1,}',
        b"{a:1}",
        b"{'a':1}",
        b'/* no */{"a":1}',
        b'{"a":tru}',
        b'{"b":01,"a":1}',
        b'{"b":1.,"a":1}',
        b'{"b":-NaN,"a":1}',
        b'{"b":1NaN,"a":1}',
        b'{"b":INF,"a":1}',
        b'{"b":"x\ty","a":1}',
        b'{"b":"\\q","a":1}',
        b'\0{"a":1}',
        b'\x0c{"a":1}',
        b"\xa0",
        b'{"b":"\xff","a":1}',
        b'{"b":"\xed\xa0\x80"}',
        b'{"b":' + b"[" * 2_000 + b"]" * 2_000 + b"}",
    ],
)
def test_lines_that_are_no_object_are_refused(line: bytes) -> None:
    """A line that is not one whole JSON object is a bad record, reported with its offset, whatever line comes before it."""
    for before, after in ((b"", b""), (b'{"a":1}\n\n', b'\n{"a":2}\n')):
        with pytest.raises(BadRecord, match="expected a record that is one JSON object") as caught:
            rows(before + line + after)
        assert caught.value.offset == len(before)


@pytest.mark.parametrize("level", [0, 1, 6, 9])
def test_lines_that_begin_as_packed_data_are_refused(level: int) -> None:
    """polars decompresses data that begins like zlib, gzip or zstd: such a line is a normal bad record, and later lines are not lost."""
    packed = (
        zlib.compress(b'{"a":3}', level),
        gzip.compress(b'{"a":3}', level),
        zstandard.compress(b'{"a":3}', level or 1),
    )
    for line in (
        packed[0][:2],
        packed[1][:3],
        packed[2][:4],
        *(data.replace(b"\n", b"") for data in packed),
        b"x\x01,1",
    ):
        for after in (b"", b"\n", b'\n{"a":2}\n{"a":4}\n'):
            with pytest.raises(BadRecord, match="expected a record that is one JSON object") as caught:
                rows(line + after)
            assert caught.value.offset == 0
            assert rows(b'{"a":2}\n' + after) == [{"a": 2}, *rows(after)]


@pytest.mark.parametrize(
    ("sep", "block", "expected"),
    [
        (b"\n", b'{"a":\r1}\r\n{"a":2}\n', [1, 2]),
        (b"\r\n", b'{"a":\n1}\r\n{"a":2}', [1, 2]),
        (b"|", b'{\n"a":1\n}|{"a":2}|', [1, 2]),
        (b"\n\n", b'{"a":1\n}\n\n{"a":2}', [1, 2]),
        (b"\0", b'{"a":1}\0{"a":2}\0', [1, 2]),
    ],
)
def test_other_separators(sep: bytes, block: bytes, expected: list[int]) -> None:
    """If a format has a custom separator, line breaks are white space."""
    assert [row["a"] for row in rows(block, sep=sep)] == expected


@pytest.mark.parametrize("sep", [b"\r\n", b"|"])
def test_nul_is_no_separator(sep: bytes) -> None:
    """NUL and other control characters are never separators: they make the record invalid JSON, whatever the separator is."""
    for bad in (b"\0", b"\1"):
        with pytest.raises(BadRecord) as caught:
            rows(b'{"a":1}' + sep + b'{"a":2}' + bad + b'{"a":3}', sep=sep)
        assert caught.value.offset == 7 + len(sep)


def test_the_first_of_many_bad_records_is_told() -> None:
    """Of several bad lines, the first is reported: its offset in the block, an excerpt, the column and the type."""
    lines = [b'{"a":%d}\n' % index for index in range(1_000)]
    lines[617] = b'{"a":"' + b"x" * 200 + b'"}\n'
    lines[900] = b"nonsense\n"
    with pytest.raises(
        BadRecord, match=r"found '\{\"a\":\"x{71}\.\.\.', expected bigint in column 'a', not '\"xx"
    ) as caught:
        rows(b"".join(lines))
    assert caught.value.offset == sum(map(len, lines[:617]))


# -- reading: values

# Where we deliberately differ from Spark's reader. A year without exactly four digits has no text form here.
DEVIATIONS = {
    ("tinyint", "200"): "Spark takes it for -56",
    **{(kind, "1E400"): "beyond a double; Spark reads infinity" for kind in ("float", "double")},
    ("string", "'a'"): "no JSON",
    **{("date", f'"{days}"'): "days as text, from Spark 1.5" for days in ("1", "+1", "3", "123")},
    **{("date", f'"{year}"'): "a year of other than four digits" for year in ("20240102", "99999")},
    **{
        (kind, f'"{text}"'): "a year of other than four digits, or before 0"
        for kind in ("date", "timestamp", "timestamp_ntz")
        for text in ("+12024-01-02", "-0001-01-02", "-2024-01-02", "99999")
    },
    ("timestamp", '"2024-01-02T03:04:05 Europe/Paris"'): "the rules of a zone change from release to release",
    ("timestamp", '"2024-01-02T03:04:05 PST"'): "the rules of a zone change from release to release",
    ("timestamp", '"2024-01-02T03:04:05+02:00:00"'): "an offset of seconds",
    ("timestamp", "99999999999999"): "beyond 64 bits of microseconds, which Spark lets wrap",
}
NOT_SPARKS = {("timestamp", '"2024-01-02T03Z"'): "2024-01-02 03:00:00"}  # an hour without minutes is ISO 8601


@pytest.mark.slow
@pytest.mark.parametrize("kind", ANSWERS["json answers"])
def test_values_are_read_as_spark_reads_them(kind: str) -> None:
    """For every type and many values the result, null or refusal is Spark's, except for the listed deviations.

    A gate run tests half of the values, chosen by its seed, so each run has different ones.
    """
    values = ANSWERS["json values"] + ([] if "<" in kind else ANSWERS["more json values, of scalar types"])
    decode = decoder(ReadFormat("json", pa.schema([("a", TYPES[kind])]))).decode
    wrong = []
    for text in random.sample(values, len(values) // effort(2, 1)):
        expected = ANSWERS["json answers"][kind].get(text, REFUSED)
        expected = REFUSED if (kind, text) in DEVIATIONS else NOT_SPARKS.get((kind, text), expected)
        try:
            found = cast_to_string(decode(f'{{"a":{text}}}\n'.encode()).column(0)[0])
        except BadRecord:
            found = REFUSED
        if not same(found, expected, TYPES[kind]) and not (kind == "binary" and text in _BYTES_OF_SPARK):
            wrong.append((text, found, expected))
    assert wrong == []


# Bytes that are not text, so the file of Spark's answers does not contain them.
_BYTES_OF_SPARK = ['"+INF"', '"2024"', '"\\u0000"', '"Infinity"', '"20240102"']


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        (pa.int64(), ['"abc"', '"3"', "3.7", "3.0", "1e3", "true", "[1]", '{"x":1}', "9223372036854775808", "NaN"]),
        (pa.int8(), ["300", "128", "-129"]),
        (pa.int16(), ["32768"]),
        (pa.int32(), ["2147483648"]),
        (pa.float64(), ['"1.5"', '"abc"', "true", '"nan"', '"inf"', "[1.5]"]),
        (pa.bool_(), ["1", "0", '"true"', "[true]"]),
        (pa.date32(), ["20240102", "2024", '"20240102"', '"2024-02-30"', '"02/01/2024"', '"yesterday"', "true"]),
        (UTC, ['"12:30"', '"2024-01-02T25:00:00Z"', "1.5", "true", '"1704164645"', "[1]"]),
        (pa.timestamp("us"), ["1704164645", '"2024-01-02T03:04:05Z"', '"2024-01-02T03:04:05+01:00"']),
        (pa.decimal128(5, 2), ["1234.5", "true", '"abc"', "[1]", '""', "999.995"]),
        (pa.binary(), ["1234", '"aGk"', '"a*"', "true"]),
        (pa.list_(pa.int64()), ["1", '{"0":1}', '["1"]', "[1.5]", '"[1]"']),
        (pa.struct([("x", pa.int8())]), ["1", "[1]", '{"x":300}', '{"x":"1"}', '"{}"']),
        (pa.map_(pa.string(), pa.int64()), ["1", "[1]", '{"k":"v"}', '{"k":1.5}']),
    ],
    ids=str,
)
def test_wrong_types_are_refused(kind: pa.DataType, bad: list[str]) -> None:
    """A value of another type makes a bad record, never a null, alone and among good values."""
    for value in bad:
        for before in (0, 2):
            block = b'{"a":null}\n' * before + f'{{"a":{value}}}\n'.encode() + b'{"a":null}\n'
            with pytest.raises(BadRecord, match="in column") as caught:
                rows(block, pa.schema([("a", kind)]))
            assert caught.value.offset == before * 11


def test_numbers_and_objects_become_their_text_in_string_columns() -> None:
    """A string column holds the text of a value that is not a string, exactly as it is in the file."""
    values = [
        "3",
        "3.0",
        "1.10",
        "1e3",
        "-0",
        "true",
        '{"k" : [1, 2.50]}',
        "[ ]",
        "12345678901234567890.10",
        "NaN",
        '"1.10"',
    ]
    assert column(*values, kind=pa.string()) == [value.strip('"') for value in values]
    for value in values:
        assert column(value, kind=pa.string()) == [value.strip('"')]


def test_escapes_and_half_characters() -> None:
    r"""Escapes are decoded as JSON says; an unpaired surrogate becomes a question mark, as Spark reads it."""
    values = [
        r'"\u0041\n\"\\\/\u0000"',
        r'"\ud83d\ude00"',
        r'"\ud83dx"',
        r'"\ud83d\ud83d\ude00"',
        r'"\udc00"',
        r'"\\ud83d"',
    ]
    expected = ['A\n"\\/\0', "\N{GRINNING FACE}", "?x", "?\N{GRINNING FACE}", "?", "\\ud83d"]
    assert column(*values, kind=pa.string()) == expected
    assert [column(value, kind=pa.string())[0] for value in values] == expected


def test_text_of_a_nested_value_has_its_half_characters() -> None:
    r"""When a string column takes the text of an object or array as it is, its escapes stay as written, as in Spark."""
    values = [r'["\\ud83d"]', r'["\ud83d"]', r'{"\udc00": "\ud83d\ude00"}', "1"]
    assert column(*values, kind=pa.string()) == values
    assert [column(value, kind=pa.string())[0] for value in values] == values


@pytest.mark.parametrize("quoted", [False, True])
def test_large_decimals_beside_one_to_round_are_exact(quoted: bool) -> None:
    """If one value of a block is rounded, the others keep their digits: Arrow divides some by a large power of ten wrongly."""
    whole = [str(2**bits + more) for bits in (31, 32, 63, 64, 95, 96) for more in (-2, -1, 0, 1)]
    values = [*whole, *(f"-{number}.25" for number in whole), "0.1234567890123456789012345678", "0.005"]
    read = column(*(f'"{value}"' if quoted else value for value in values), kind=pa.decimal128(38, 2))
    expected = [Decimal(value).quantize(Decimal("0.01"), ROUND_HALF_UP, Context(60)) for value in values]
    assert read == expected


def test_decimals_are_exact() -> None:
    """Decimals keep every digit of their text, in numbers and in strings; half a unit beyond the scale is rounded up, as in Spark."""
    values = [
        "12345678901234567890.123456789012345678",
        '"0.1"',
        "1e-3",
        "0.0000000000000000005",
        "-0.0000000000000000005",
    ]
    expected = [
        "12345678901234567890.123456789012345678",
        "0.1",
        "0.001",
        "0.000000000000000001",
        "-0.000000000000000001",
    ]
    assert column(*values, kind=pa.decimal128(38, 18)) == [Decimal(text) for text in expected]
    assert column("1.005", "0.1234567890123456789012345678901234567890123", kind=pa.decimal128(10, 2)) == [
        Decimal("1.01"),
        Decimal("0.12"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [pa.decimal128(38, 0), pa.decimal128(38, 19), pa.decimal128(38, 38), pa.decimal128(10, 2)]
)
@given(
    number=st.from_regex(r"-?(0|[1-9][0-9]{0,90})(\.[0-9]{1,60})?([eE]-?[1-9][0-9]?)?", fullmatch=True),
    quoted=st.booleans(),
)
def test_decimals_of_any_length_are_right_or_refused(kind: pa.DataType, number: str, quoted: bool) -> None:
    """A number becomes the nearest value of the type, or is refused if it does not fit; never another number."""
    context = Context(prec=1000, rounding=ROUND_HALF_UP)
    nearest = Decimal(number).quantize(Decimal(1).scaleb(-kind.scale), context=context)
    text = f'"{number}"' if quoted else number
    if abs(nearest) < Decimal(10) ** (kind.precision - kind.scale):
        assert column(text, kind=kind) == [nearest]
    else:
        with pytest.raises(BadRecord):  # polars refuses some integers of 40 digits and more as invalid JSON
            column(text, kind=kind)


def test_floats_are_the_nearest() -> None:
    """A float is the one nearest to the text, not to a nearby double; words stand for NaN and infinities."""
    tie = "1.00000005960464477539062500001"  # slightly above the middle of two floats: as a double it is exactly the middle
    assert column(tie, kind=pa.float32()) == [1.00000011920928955078125]
    assert column(f'1}}\n{{"a":{tie}', kind=pa.float32()) == [1.0, 1.00000011920928955078125]
    words = ["NaN", '"NaN"', "Infinity", "-INF", '"+INF"', '"-Infinity"', "null"]
    assert str(column(*words, kind=pa.float64())) == "[nan, nan, inf, -inf, inf, -inf, None]"


def test_times_of_many_forms() -> None:
    """ISO times with any zone, with or without a fraction, and seconds as numbers are read to the microsecond; no zone means UTC."""
    noon = '"2024-01-02T12:00:00Z"'
    forms = [noon, '"2024-01-02 12:00"', '"2024-01-02T14:00:00.0+02:00"', '"2024-1-2T7:0:0-0500"', "1704196800"]
    assert column(*forms, kind=UTC) == [NOON] * 5
    assert column('"2024-01-02T12:00:00.1234567Z"', kind=UTC) == [NOON.replace(microsecond=123_456)]
    assert column('"2024-01-02"', "-1", kind=UTC)[1] == dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=dt.timezone.utc)
    assert column('"2024-01-02 12:00:00.5"', kind=pa.timestamp("us")) == [
        NOON.replace(tzinfo=None, microsecond=500_000)
    ]


NESTED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("l", pa.list_(pa.list_(pa.int64()))),
        ("m", pa.map_(pa.string(), pa.decimal128(10, 2))),
        ("s", pa.struct([("x", pa.string()), ("y", pa.list_(pa.struct([("z", UTC)])))])),
    ]
)


def test_nested_values() -> None:
    """Nested lists, maps and structs are read by the same rules; null and empty are different."""
    block = (
        b'{"id":1,"l":[[1,2],[],null,[null]],"m":{"a\\n":1.005,"b":null,"a\\n":2},"s":{"x":1.10,"y":[{"z":"2024-01-02T12:00:00Z"},{}]}}\n'
        b'{"id":2,"l":[],"m":{},"s":{"unknown":{"x":1}}}\n'
        b'{"id":3,"l":null,"s":{"y":[ ],"x":{"deep":[1]}}}\n'
    )
    assert rows(block, NESTED) == [
        {
            "id": 1,
            "l": [[1, 2], [], None, [None]],
            "m": [("a\n", Decimal("1.01")), ("b", None), ("a\n", Decimal("2.00"))],
            "s": {"x": "1.10", "y": [{"z": NOON}, {"z": None}]},
        },
        {"id": 2, "l": [], "m": [], "s": {"x": None, "y": None}},
        {"id": 3, "l": None, "m": None, "s": {"x": '{"deep":[1]}', "y": []}},
    ]


@pytest.mark.parametrize(
    ("schema", "line"),
    [
        (pa.schema([pa.field("a", pa.int64(), nullable=False)]), b'{"a":null}'),
        (pa.schema([pa.field("a", pa.int64(), nullable=False)]), b"{}"),
        (pa.schema([("a", pa.list_(pa.field("element", pa.int64(), nullable=False)))]), b'{"a":[null]}'),
        (pa.schema([("a", pa.struct([pa.field("x", pa.int64(), nullable=False)]))]), b'{"a":{}}'),
    ],
    ids=str,
)
def test_a_null_where_there_must_be_none_is_a_bad_record(schema: pa.Schema, line: bytes) -> None:
    """A null, or a missing key, is refused where the schema calls a column, element or member not nullable."""
    with pytest.raises(BadRecord, match="not nullable") as caught:
        rows(b'{"a":null}\n' * schema.field("a").nullable + line + b"\n", schema)
    assert caught.value.offset == 11 * schema.field("a").nullable


def test_of_a_key_that_is_there_twice_the_last_value_counts() -> None:
    """As in Spark, the last value of a repeated key counts, also if it is null, escaped differently, or nested."""
    lines = [
        b'{"a":1,"a":2}',
        b'{"a":1,"a":null}',
        b'{"a":1,"b":0,"\\u0061":3}',
        b'{"a" :1,"a":4}',
        b'{"a":null,"a":5}',
    ]
    expected = [2, None, 3, 4, 5]
    assert [row["a"] for row in rows(b"\n".join(lines))] == expected
    assert [rows(line)[0]["a"] for line in lines] == expected
    assert rows(b'{"s":{"x":1,"x":2}}', pa.schema([("s", pa.struct([("x", pa.int64())]))])) == [{"s": {"x": 2}}]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (pa.struct([("b", pa.time64("ns"))]), r"column 'a\.b' is time"),
        (pa.map_(pa.int64(), pa.string()), "keys of a map must be strings"),
        (pa.list_(pa.null()), "column 'a' is void"),
    ],
    ids=str,
)
def test_types_without_a_text_are_refused(kind: pa.DataType, message: str) -> None:
    """A column that JSON cannot hold, at any depth, is refused by name, for reading and for writing."""
    schema = pa.schema([("a", kind)])
    for make in (lambda: decoder(ReadFormat("json", schema)), lambda: encoder(WriteFormat("json", schema))):
        with pytest.raises(OptionError, match=message):
            make()


# What Spark 4.3's own writers produce for this many microseconds.
INTERVALS = {
    0: "0 00:00:00",
    1: "0 00:00:00.000001",
    -1: "-0 00:00:00.000001",
    500_000: "0 00:00:00.5",
    3_723_500_000: "0 01:02:03.5",
    -3_723_500_000: "-0 01:02:03.5",
    86_400_000_000: "1 00:00:00",
    -86_400_000_001: "-1 00:00:00.000001",
    59_999_999: "0 00:00:59.999999",
    600_000_000: "0 00:10:00",
    86_399_999_999: "0 23:59:59.999999",
    123_456_789_012_345: "1428 21:33:09.012345",
    2**63 - 1: "106751991 04:00:54.775807",
    -(2**63): "-106751991 04:00:54.775808",
}


@pytest.mark.parametrize("form", ["json", "csv"])
def test_intervals_are_written_as_by_spark(form: str) -> None:
    """They used to be refused, with the advice to use a format that refused them too. Our own source reads them as strings."""
    column = pa.array([*INTERVALS, None], pa.int64()).view(pa.duration("us"))
    schema = pa.schema([("i", pa.duration("us"))])
    batch = pa.record_batch([column], schema=schema).slice(1)
    text = bytes(encoder(WriteFormat(form, schema)).encode(batch)).decode()
    values = [f"INTERVAL '{value}' DAY TO SECOND" for value in INTERVALS.values()][1:]
    expected = {"json": [*(f'{{"i":"{value}"}}' for value in values), "{}"], "csv": [*values, '""']}
    assert text.splitlines()[: len(values)] == expected[form][: len(values)]
    with pytest.raises(OptionError, match=f"column 'i' is interval day to second, which {form} cannot hold"):
        decoder(ReadFormat(form, schema))


@pytest.mark.parametrize(
    "kind", ["interval hour", {"type": "array", "elementType": "interval day to hour", "containsNull": True}], ids=str
)
@pytest.mark.parametrize("form", ["json", "csv"])
def test_intervals_of_fewer_parts_are_refused(form: str, kind: object) -> None:
    """Spark writes them in special forms and reads only those: they are refused by name, with the type to use instead."""
    field = {"name": "i", "type": kind, "nullable": True, "metadata": {}}
    schema = to_arrow(json.dumps({"type": "struct", "fields": [field]}))
    with pytest.raises(OptionError, match=rf"column 'i' is .*interval .*, which {form} cannot hold; make it "):
        encoder(WriteFormat(form, schema))


# -- the quick readers

FLAT = pa.schema(
    [(f"c{index}", kind) for index, kind in enumerate(VALUES)] + [("a", pa.int64()), ("\xe9", pa.binary())]
)
KEYS = [
    *(json.dumps(name, ensure_ascii=False) for name in FLAT.names),
    *('"c0" ', '"c1"\t', '"c2" \t', '"\\u0061"', '"\\u00e9"', '"xa"', '"c10_other"', '"unknown"'),
]
RAW = sorted(
    {*ANSWERS["json values"], *ANSWERS["more json values, of scalar types"], '":x"', '"\\":"', '"a\\": 1"', '{"a":2}'}
)


def good(kind: pa.DataType) -> st.SearchStrategy[str]:
    """Return JSON values that fit a type."""
    if kind == pa.binary():
        return st.binary(max_size=5).map(lambda value: json.dumps(base64.b64encode(value).decode()))
    return (
        VALUES[kind]
        .map(lambda value: json.dumps(value, default=str))
        .filter(lambda text: "NaN" not in text and "Inf" not in text)
    )


MEMBERS = st.one_of(
    *(st.tuples(st.just(json.dumps(field.name)), good(field.type)) for field in FLAT),
    st.tuples(st.sampled_from(KEYS), st.sampled_from(RAW)),
)
LINES = st.lists(MEMBERS, max_size=6).map(
    lambda members: "{" + ",".join(f"{key}:{value}" for key, value in members) + "}"
)

SHAPED = pa.schema(
    [(f"{kind}", TYPES[kind]) for kind in ("struct<x:bigint,y:string>", "array<bigint>", "decimal(10,4)", "date")]
)
DENSE = pa.schema(
    [(kind, TYPES[kind]) for kind in ("bigint", "double", "boolean", "string", "date", "timestamp", "smallint")]
)
ODD = [
    *RAW,
    "1",
    "2024",
    '"2024"',
    "12345678.12345",
    "-0",
    "-0.0",
    "1e400",
    '"2024-01-02"',
    '"x"',
    '"\\ud83d"',
    "[1,2]",
    '{"x":1,"y":"z"}',
]


def complete(schema: pa.Schema) -> st.SearchStrategy[str]:
    """Return lines that have every column, nearly all with a value of its type; a few lines have a key too many or too few."""
    usual = {
        "struct<x:bigint,y:string>": ['{"x":1,"y":"z"}', '{"y":null}'], "array<bigint>": ["[1,2]", "[]"], "decimal(10,4)": ["1.5", "2"],
        "date": ['"2024-01-02"'], "bigint": ["1", "-5"], "double": ["1.5", "1e3"], "boolean": ["true"], "string": ['"a"', '"\\":"'],
        "timestamp": ['"2024-01-02T03:04:05Z"', '"2024-01-02"'], "smallint": ["7"],
    }  # fmt: skip
    values = [st.sampled_from(usual[name]) for name in schema.names]
    odd = st.lists(st.tuples(st.sampled_from([*schema.names, "more"]), st.sampled_from(ODD)), max_size=1)
    return st.tuples(st.tuples(*values), odd).map(
        lambda drawn: (
            "{"
            + ",".join(
                f"{json.dumps(key)}:{value}" for key, value in [*zip(schema.names, drawn[0], strict=True), *drawn[1]]
            )
            + "}"
        )
    )


def read_by(read: Callable[[], pa.RecordBatch | None]) -> pa.RecordBatch | None:
    """Return the answer of a reader for a block, or None if it gives none."""
    try:
        return read()
    except MalformedError:
        return None


READ = {"any": (FLAT, LINES), "nested": (SHAPED, complete(SHAPED)), "dense": (DENSE, complete(DENSE))}


@pytest.mark.slow
@pytest.mark.parametrize(("schema", "lines"), READ.values(), ids=READ)
@settings(max_examples=effort(30, 4000))
@given(data=st.data())
def test_the_quick_readers_are_right_or_say_nothing(
    schema: pa.Schema, lines: st.SearchStrategy[str], data: st.DataObject
) -> None:
    """If a quick reader answers at all, its rows are those of the exact reader, whatever the keys and values."""
    block = "".join(f"{line}\n" for line in data.draw(st.lists(lines, min_size=1, max_size=3))).encode()
    exactly = read_by(lambda: jsonexact.exact(block, schema, TimeForms("Europe/Berlin")))
    quick = QuickReader(schema, TimeForms("Europe/Berlin"))
    answers = [read_by(lambda: quick.read(Lines(block), unknown=False)) for _ in range(2)]
    answers.append(read_by(lambda: quick.read(Lines(block), unknown=True)))
    if DenseReader.takes(schema):
        answers.append(DenseReader(schema, TimeForms("Europe/Berlin")).read(block))
    if FrameReader.takes(schema):
        most = FrameReader(schema, TimeForms("Europe/Berlin")).most(block, lambda: record_starts(block, sep=b"\n"))
        answers.append(None if most is None or len(most.doubtful) else most.rows)
    for answer in answers:
        if answer is not None:
            answer.validate(full=True)
            assert exactly is not None
            assert same_rows(answer, exactly)


USUAL = {
    "plain": '{"a":1,"s":"x"}\n{"a":2,"s":"y"}',
    "nulls and missing keys": '{"a":null,"s":"x"}\n{}\n{"s":null}',
    "unknown keys": '{"x":{"q":1},"a":1,"y":[1,"a"]}',
    "whole numbers in a string column": '{"s":12}\n{"s":34}',
    "colons and escapes": '{"s":": \\n :\\"","a":1}',
    "emoji escapes": '{"s":"\\ud83d\\ude00"}',
    "blank lines": '\n{"a":1}\n\n',
}


@pytest.mark.slow
@pytest.mark.parametrize("block", USUAL.values(), ids=USUAL)
def test_what_is_usual_does_not_need_the_exact_reader(block: str) -> None:
    """Ordinary files do not need the slower reader; and because of one odd line only a part of the file goes to it."""
    schema = pa.schema([("a", pa.int64()), ("s", pa.string())])
    reader = JsonReader(schema, TimeForms())
    assert reader.read(f"{block}\n".encode(), Account()).equals(jsonexact.exact(block.encode(), schema))
    assert reader.exact_bytes == 0
    many = b'{"a":1,"s":"some words"}\n' * 100_000
    assert reader.read(many + b'{"a":1,"a":2}\n', Account()).num_rows == 100_001
    assert 0 < reader.exact_bytes < len(many) / 4


def test_an_odd_block_does_not_change_the_next_ones() -> None:
    """After a block that was left to the exact reader, later blocks give their usual rows."""
    decode = decoder(ReadFormat("json", STRING)).decode
    for _ in range(3):
        for block in (b'{"a":1.10}\n', b'{"a":7}\n', *[b'{"a":"x"}\n'] * 10):
            assert decode(block).equals(jsonexact.exact(block, STRING))


def test_polars_is_as_strict_as_it_must_be() -> None:
    """The installed polars refuses each value of a wrong type; an older polars that does not is not used."""
    wrong = {"bigint": ["1.5", '"1"', "true", "[1]", "1e3"], "double": ['"1.5"', "true"], "boolean": ["1", '"true"']}
    for kind, values in wrong.items():
        reader = DenseReader(pa.schema([("a", TYPES[kind])]), TimeForms())
        assert [value for value in values if reader.read(f'{{"a":{value}}}\n'.encode()) is not None] == []
    assert not any(is_strict(version) for version in ("1.20.0", "2.0.3", "0.9"))
    assert is_strict("2.1.0")
    assert is_strict("10.0.0rc1")


VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 63) - 1), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=8,
)


@pytest.mark.slow
@given(
    values=st.lists(VALUE, max_size=4),
    indent=st.sampled_from([(",", ":"), (" , ", " : "), (",\t", ": ")]),
    ascii_only=st.booleans(),
)
def test_any_json_is_kept_as_text(values: list[Any], indent: tuple[str, str], ascii_only: bool) -> None:
    """A string column returns any JSON value of any depth as its exact text, and a string as its decoded value."""
    texts = [json.dumps(value, separators=indent, ensure_ascii=ascii_only) for value in values]
    half = re.compile("[\ud800-\udfff]")
    kept = [
        (text, value) for text, value in zip(texts, values, strict=True) if not half.search(text) and "\\ud" not in text
    ]
    expected = [value if isinstance(value, str) or value is None else text for text, value in kept]
    assert column(*(text for text, _ in kept), kind=pa.string()) == expected


# -- writing


def written(batch: pa.RecordBatch) -> bytes:
    """Return the JSON of a batch, after checking that each row ends where the encoder says."""
    encode = encoder(WriteFormat("json", batch.schema))
    data = bytes(encode.encode(batch))
    assert encode.ends(batch, data).tolist() == [at + 1 for at, code in enumerate(data) if code == ord("\n")]
    assert len(encode.ends(batch, data)) == batch.num_rows
    return data


HALF_A_SECOND, MICROS = dt.timedelta(milliseconds=500), dt.timedelta(microseconds=123_456)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (
            pa.string(),
            'a"b\\c/d\b\t\n\f\r\0\x1f\x7f\u2028\xe9',
            '"a\\"b\\\\c/d\\b\\t\\n\\f\\r\\u0000\\u001f\x7f\u2028\xe9"',
        ),
        (pa.string(), "", '""'),
        (pa.int64(), -(1 << 63), "-9223372036854775808"),
        (pa.float64(), 1.0, "1.0"),
        (pa.float64(), -0.0, "-0.0"),
        (pa.float64(), 1e300, "1e+300"),
        (pa.float64(), float("nan"), '"NaN"'),
        (pa.float64(), float("inf"), '"Infinity"'),
        (pa.float32(), 0.1, "0.1"),
        (pa.float32(), float("-inf"), '"-Infinity"'),
        (pa.bool_(), True, "true"),
        (pa.date32(), dt.date(1, 2, 3), '"0001-02-03"'),
        (UTC, NOON, '"2024-01-02T12:00:00.000Z"'),
        (UTC, NOON + HALF_A_SECOND, '"2024-01-02T12:00:00.500Z"'),
        (UTC, NOON + MICROS, '"2024-01-02T12:00:00.123456Z"'),
        (pa.timestamp("us"), NOON.replace(tzinfo=None), '"2024-01-02T12:00:00.000"'),
        (pa.decimal128(20, 8), Decimal("1.1"), "1.10000000"),
        (pa.decimal128(20, 8), Decimal(0), "0E-8"),
        (pa.binary(), b"hi", '"aGk="'),
        (pa.list_(pa.string()), ["x", None, ""], '["x",null,""]'),
        (pa.list_(pa.float64()), [], "[]"),
        (pa.map_(pa.string(), pa.int32()), [('"k"', 1), ("n", None)], '{"\\"k\\"":1,"n":null}'),
        (pa.struct([("x", pa.int32()), ("y", pa.string())]), {"x": None, "y": "z"}, '{"y":"z"}'),
        (pa.struct([("x", pa.int32())]), {"x": None}, "{}"),
        (pa.struct([]), {}, "{}"),
        (
            pa.list_(pa.struct([("l", pa.list_(UTC))])),
            [{"l": [NOON]}, None],
            '[{"l":["2024-01-02T12:00:00.000Z"]},null]',
        ),
    ],
)
def test_values_are_written_as_spark_writes_them(kind: pa.DataType, value: object, expected: str) -> None:
    """Each value has Spark's form, except that floats have the fewest digits possible, and microseconds, which Spark cuts off, are kept."""
    batch = pa.RecordBatch.from_arrays([pa.array([None, value, None, value], kind)], names=["a"])
    assert written(batch).decode() == f'{{}}\n{{"a":{expected}}}\n' * 2
    assert written(batch.slice(3)).decode() == f'{{"a":{expected}}}\n'
    json.loads(written(batch.slice(3)))


def test_null_members_are_left_out() -> None:
    """A null member is left out wherever it occurs, with its comma; a row of nulls is an empty object."""
    names = ["a", "b", "c"]
    batch = pa.RecordBatch.from_pylist(
        [{name: index for index, name in enumerate(names) if mask >> index & 1} for mask in range(8)],
        pa.schema([(name, pa.int64()) for name in names]),
    )
    expected = [
        "{" + ",".join(f'"{name}":{index}' for index, name in enumerate(names) if mask >> index & 1) + "}\n"
        for mask in range(8)
    ]
    assert written(batch).decode() == "".join(expected)
    assert [written(batch.slice(index, 1)).decode() for index in range(8)] == expected


def test_names_are_escaped() -> None:
    """Names of columns are JSON strings too, and are read back."""
    schema = pa.schema([('a"\\\n\N{EURO SIGN}', pa.int64()), ("", pa.int64())])
    batch = pa.RecordBatch.from_arrays([pa.array([1, None]), pa.array([2, 3])], schema=schema)
    assert written(batch).decode() == '{"a\\"\\\\\\n\N{EURO SIGN}":1,"":2}\n{"":3}\n'
    assert decoder(ReadFormat("json", schema)).decode(written(batch)).equals(batch)


def test_large_batches_are_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch too large to be converted to text at once gives the same bytes."""
    batch = pa.RecordBatch.from_pydict({"a": list(range(100)), "s": ["text"] * 100})
    expected = written(batch)
    monkeypatch.setattr(jsonl, "_ENCODED_BYTES_MAX", 50)
    assert written(batch) == expected


@pytest.mark.parametrize("kind", [pa.date32(), UTC, pa.timestamp("us")], ids=str)
@pytest.mark.parametrize("beyond", [-(1 << 40), 1 << 40])
def test_years_beyond_four_digits_are_refused(kind: pa.DataType, beyond: int) -> None:
    """A date or time that text cannot hold is refused with its column, and not written as another one."""
    number = beyond // 1_000 if kind == pa.date32() else beyond << 20
    batch = pa.RecordBatch.from_arrays([pa.array([0, number], kind)], names=["when"])
    with pytest.raises(OptionError, match="column 'when' has a date or time outside the years 0000 to 9999"):
        encoder(WriteFormat("json", batch.schema)).encode(batch)


@pytest.mark.parametrize(("compression", "name"), [("none", ".json"), ("gzip", ".json.gz"), ("zstd", ".json.zst")])
def test_extension(compression: str, name: str) -> None:
    """The extension identifies the format and the compression."""
    assert file_extension(WriteFormat("json", LONG, compression)) == name


@pytest.mark.slow
@given(batch=flat_batches(others={pa.binary(): st.binary(max_size=8)}))
def test_flat_rows_survive(batch: pa.RecordBatch) -> None:
    """Every flat batch comes back as it was, names, nulls, NaN and minus zero included."""
    found = decoder(ReadFormat("json", batch.schema)).decode(written(batch))
    assert same_rows(found, batch)


NESTED_VALUES = st.fixed_dictionaries(
    {
        "l": st.none() | st.lists(st.none() | st.lists(st.none() | VALUES[pa.int8()], max_size=3), max_size=3),
        "m": st.none() | st.lists(st.tuples(st.text(max_size=3), st.none() | VALUES[UTC]), max_size=3),
        "s": st.none()
        | st.fixed_dictionaries({"x": st.none() | VALUES[pa.string()], "y": st.none() | st.lists(VALUES[pa.date32()])}),
    }
)
NESTED_SCHEMA = pa.schema(
    [
        ("l", pa.list_(pa.list_(pa.int8()))),
        ("m", pa.map_(pa.string(), UTC)),
        ("s", pa.struct([("x", pa.string()), ("y", pa.list_(pa.date32()))])),
    ]
)


@pytest.mark.slow
@given(values=st.lists(NESTED_VALUES, max_size=5), start=st.integers(0, 2))
def test_nested_rows_survive(values: list[dict[str, Any]], start: int) -> None:
    """Nested batches, and slices of them, come back as they were."""
    batch = pa.RecordBatch.from_pylist(values, NESTED_SCHEMA).slice(start)
    assert decoder(ReadFormat("json", NESTED_SCHEMA)).decode(written(batch)).to_pylist() == batch.to_pylist()


@pytest.mark.slow
def test_real_logs_survive(loghub: Path) -> None:
    """Lines of real logs, as JSON and back, are the lines they were."""
    for path in loghub.glob("*.log"):
        lines = path.read_text(encoding="utf-8").split("\n")
        batch = pa.RecordBatch.from_pydict({"n": list(range(len(lines))), "line": lines})
        assert decoder(ReadFormat("json", batch.schema)).decode(written(batch)).equals(batch)
        assert [json.loads(line)["line"] for line in written(batch).splitlines()] == lines


def test_malformed_is_not_seen_by_callers() -> None:
    """The readers' internal error does not leave the decoder."""
    assert not issubclass(MalformedError, BadRecord)
    with pytest.raises(MalformedError):
        jsonexact.exact(b"nonsense", LONG)
