"""Columns in directory names: read by the schema, or an error; never silently nothing. Without Spark."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import dataset

from penstock.errors import BadFile, OptionError
from penstock.formats.json.lines import JsonDecoder
from penstock.options import SINK, SOURCE, parse
from penstock.sink.sink import Batch, Sink
from penstock.source import configured
from penstock.source.scan import Scan
from penstock.storage import LocalStorage

KINDS = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "decimal(10,2)": pa.decimal128(10, 2),
}
NASTY = [
    "de",
    "a b",
    "a/b",
    "a=b:c",
    "100%",
    "%41",
    "..",
    ".hidden",
    "_penstock",
    "line\nbreak",
    "Zürich",
    "{}[]^",
    "'\"\\",
    "#?*",
]


def struct(**kinds: str) -> dict[str, Any]:
    """Return Spark's JSON for a struct."""
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    return {"type": "struct", "fields": fields}


STRUCTS = {
    "metadata": struct(path="string", modified="timestamp", size="long", offset="long"),
    "bad": struct(path="string", offset="long", record="binary", reason="string"),
}


class Input:
    """A directory whose files can be put below any directories."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, path: str, data: bytes, seconds: float = 1000) -> None:
        """Write a file that has settled."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        os.utime(file, (seconds, seconds))

    def rows(self, schema: str, fmt: str = "json", **options: str) -> list[dict[str, Any]]:
        """Return what one batch of a source with these options reads; the schema is `name type, name type`."""
        fields = []
        for column in schema.split(", "):
            name, _, kind = column.partition(" ")
            kind, needed, _ = kind.partition(" not null")
            fields.append({"name": name, "type": STRUCTS.get(kind, kind), "nullable": not needed, "metadata": {}})
        text = json.dumps({"type": "struct", "fields": fields})
        checked = parse(SOURCE, {"path": str(self.root), "format": fmt, **options}, what="source")
        how = configured.reading(checked, text)
        planner = configured.planner(checked, how)
        splits = planner.splits(planner.latest(planner.initial()))
        expected = configured.expected_schema(checked, how)
        batches = list(configured.rows(checked, how, tuple(splits)))
        assert all(batch.schema.equals(expected) for batch in batches)
        return [row for batch in batches for row in batch.to_pylist()]


@pytest.fixture
def source(tmp_path: Path) -> Input:
    return Input(tmp_path / "in")


def test_column_of_the_schema_that_a_directory_names(source: Input) -> None:
    """`dt=2026-01-01/a.json` with `dt` in the schema: the file is read, without recursion, and its rows have the date."""
    source.put("dt=2026-01-01/a.json", b'{"id": 1}\n{"id": 2}\n')
    source.put("dt=2026-01-02/b.json", b'{"id": 3}\n')
    day = dt.date(2026, 1, 1)
    assert source.rows("id long, dt date") == [
        {"id": 1, "dt": day},
        {"id": 2, "dt": day},
        {"id": 3, "dt": day.replace(day=2)},
    ]
    assert [row["id"] for row in source.rows("id long")] == [1, 2, 3]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", "x", "x"),
        ("string", "007", "007"),
        ("long", "-9223372036854775808", -(1 << 63)),
        ("integer", "7", 7),
        ("double", "1.5", 1.5),
        ("boolean", "true", True),
        ("decimal(10,2)", "12.50", Decimal("12.50")),
        ("date", "2026-01-31", dt.date(2026, 1, 31)),
        ("timestamp", "2026-01-31 12%3A00%3A00", dt.datetime(2026, 1, 31, 12, tzinfo=dt.timezone.utc)),
        ("timestamp_ntz", "2026-01-31 12%3A00%3A00.5", dt.datetime(2026, 1, 31, 12, 0, 0, 500_000)),
        ("string", "__HIVE_DEFAULT_PARTITION__", None),
        ("long", "__HIVE_DEFAULT_PARTITION__", None),
    ],
)
@pytest.mark.parametrize("fmt", ["json", "csv", "parquet", "text", "binary"])
def test_values_of_every_type_and_format(source: Input, fmt: str, kind: str, text: str, value: Any) -> None:
    """A directory's value has the type of the schema; the column may be at any position."""
    column = "value" if fmt in {"text", "binary"} else "id"
    if fmt == "parquet":
        (source.root / f"k={text}").mkdir(parents=True)
        pq.write_table(pa.table({"id": pa.array(["1"])}), source.root / f"k={text}/f")
        os.utime(source.root / f"k={text}/f", (1000, 1000))
    else:
        source.put(f"k={text}/f", {"json": b'{"id": "1"}', "csv": b"1"}.get(fmt, b"1"))
    stored = "binary" if fmt == "binary" else "string"
    content = b"1" if fmt == "binary" else "1"
    for schema in (f"{column} {stored}, k {kind}", f"k {kind}, {column} {stored}"):
        assert source.rows(schema, fmt) == [{column: content, "k": value}]


@pytest.mark.parametrize(
    ("kind", "text"), [("date", "abc"), ("long", "1.5"), ("long", ""), ("integer", "3000000000"), ("boolean", "maybe")]
)
def test_value_that_is_none_of_its_type(source: Input, kind: str, text: str) -> None:
    """A value that does not fit its type is an error with the directory and advice; following it, the file is read."""
    source.put(f"k={text}/f", b'{"id": 1}')
    with pytest.raises(
        BadFile, match=rf"k={text}' names no .* in column 'k'.*rename the directory, or set partitionColumns=none"
    ):
        source.rows(f"id long, k {kind}")
    assert source.rows(f"id long, k {kind}", partitionColumns="none", recursiveFileLookup="true") == [
        {"id": 1, "k": None}
    ]
    good = {"date": "2026-01-01", "boolean": "false"}.get(kind, "5")
    (source.root / f"k={text}").rename(source.root / f"k={good}")
    assert source.rows(f"id long, k {kind}")[0]["k"] is not None


@pytest.mark.parametrize("text", ["abc", "__HIVE_DEFAULT_PARTITION__"])
def test_value_that_a_column_must_have(source: Input, text: str) -> None:
    """A NOT NULL column cannot be missing: the old advice, to treat the directory as a plain name, then failed each record."""
    source.put(f"k={text}/f", b'{"id": 1}')
    with pytest.raises(
        BadFile, match="rename the directory, or leave NOT NULL out of the schema, and set partitionColumns=none"
    ):
        source.rows("id long, k long not null")
    assert source.rows("id long, k long", partitionColumns="none", recursiveFileLookup="true") == [{"id": 1, "k": None}]


@pytest.mark.parametrize(
    ("fmt", "schema", "found"),
    [
        ("json", "id long, k long", r"names no bigint in column 'k'"),
        ("text", "value string, k long", "also has k, which no"),
    ],
)
def test_directory_that_is_wrong_is_set_aside_with_its_files(source: Input, fmt: str, schema: str, found: str) -> None:
    """`badFiles=quarantine`: a directory with a bad value, or without the column, does not keep the others from being read."""
    wrong = "k=x" if fmt == "json" else "other"
    for folder, number in ((wrong, 1), ("k=2", 3)):
        source.put(f"{folder}/a", b'{"id": 1}\n' * number)
        source.put(f"{folder}/b", b'{"id": 1}\n' * number)
    aside = {"badFiles": "quarantine", "badRecordColumn": "_bad", "splitSize": "12", "recursiveFileLookup": "true"}
    rows = source.rows(f"{schema}, _bad bad", fmt, **aside)
    assert [row["k"] for row in rows if row["_bad"] is None] == [2] * 6
    bad = [row["_bad"] for row in rows if row["_bad"]]
    assert [(each["path"][-len(wrong) - 2 :], each["offset"]) for each in bad] == [(f"{wrong}/a", 0), (f"{wrong}/b", 0)]
    assert all(re.search(found, each["reason"]) for each in bad)


def test_directories_below_directories(source: Input) -> None:
    """Several columns at any depth, also below plain directories if the scan enters them; case is handled as in Spark."""
    source.put("a=1/B=x/f1", b'{"id": 1}')
    source.put("a=2/f2", b'{"id": 2, "b": "own"}')
    source.put("a=3/plain/f3", b'{"id": 3}')
    source.put("f4", b'{"id": 4, "a": 9}')
    schema = "a long, id long, b string"
    rows = [
        {"a": 1, "id": 1, "b": "x"},
        {"a": 2, "id": 2, "b": "own"},
        {"a": 3, "id": 3, "b": None},
        {"a": 9, "id": 4, "b": None},
    ]
    by_id = sorted(source.rows(schema), key=lambda row: int(row["id"]))
    assert by_id == [rows[0], rows[1], rows[3]]
    by_id = sorted(source.rows(schema, recursiveFileLookup="true"), key=lambda row: int(row["id"]))
    assert by_id == rows


def test_directory_counts_though_the_file_has_the_column(source: Input) -> None:
    """As in Spark, the directory's value wins; a csv file in that directory does not have the field."""
    source.put("k=1/f", b'{"id": 1, "k": 2}')
    assert source.rows("id long, k long") == [{"id": 1, "k": 1}]
    csv = Input(source.root.parent / "csv")
    csv.put("k=1/f", b"5,six\n")
    csv.put("g", b"7,8,nine\n", 2000)
    assert csv.rows("id long, k long, name string", "csv") == [
        {"id": 5, "k": 1, "name": "six"},
        {"id": 7, "k": 8, "name": "nine"},
    ]


def test_names_that_are_escaped(source: Input) -> None:
    """`%XX` is decoded, also in column names; what is no escape stays as it is."""
    for text, value in (("a%2Fb", "a/b"), ("100%25", "100%"), ("%zz", "%zz"), ("x=y", "x=y"), ("", "")):
        source.put(f"k%3Dk={text}/f", b'{"id": 1}')
        assert source.rows("id long, k=k string") == [{"id": 1, "k=k": value}]
        (source.root / f"k%3Dk={text}/f").unlink()


@pytest.mark.parametrize("maker", ["pyarrow", "duckdb", "polars"])
def test_directories_of_writers_that_escape_utf_8(source: Input, maker: str) -> None:
    """Other engines write each byte of `é` as `%XX`: the value is `é` again, and not one character per byte."""
    values = ["é b", "a/b", "100%", "日本", "ü+:?#", "\U0001f600"]
    table = pa.table({"id": pa.array(range(len(values)), pa.int64()), "k": values})
    source.root.mkdir()
    place = str(source.root / maker)
    if maker == "pyarrow":
        dataset.write_dataset(table, place, format="parquet", partitioning=["k"], partitioning_flavor="hive")
    elif maker == "duckdb":
        with duckdb.connect() as engine:
            engine.register("rows", table)
            engine.sql(f"copy rows to '{place}' (format parquet, partition_by (k))")
    else:
        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame)
        frame.write_parquet(place, partition_by="k", mkdir=True)
    rows = source.rows("id long, k string", "parquet", recursiveFileLookup="true", settle="0")
    assert sorted((row["id"], row["k"]) for row in rows) == list(enumerate(values))


def test_bytes_that_are_no_utf_8_are_characters(source: Input) -> None:
    """As in Spark, which always decodes this way: `%XX` bytes that are not UTF-8 become one character each."""
    source.put("k=%ff%C3x%C3%A9/f", b'{"id": 1}')
    assert source.rows("id long, k string") == [{"id": 1, "k": "\xff\xc3x\xe9"}]


def test_metadata_beside_columns_of_directories(source: Input) -> None:
    """The metadata column has each record's place, whatever columns its directory adds."""
    source.put("k=1/f", b'{"id": 1}\n{"id": 2}\n')
    rows = source.rows("_meta metadata, k long, id long", metadataColumn="_meta")
    assert [(row["k"], row["id"], row["_meta"]["offset"]) for row in rows] == [(1, 1, 0), (1, 2, 10)]
    assert rows[0]["_meta"]["path"] == f"{source.root}/k=1/f"


def test_files_of_a_directory_are_parsed_together(source: Input, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files that alternate between two directories make two blocks, not one per file."""
    for number in range(40):
        source.put(f"k={number % 2}/f{number:02}", b'{"id": %d}\n' % number, 1000 + number)
    calls: list[int] = []
    decode = JsonDecoder.decode

    def counted(self: JsonDecoder, block: bytes) -> pa.RecordBatch:
        calls.append(len(block))
        return decode(self, block)

    monkeypatch.setattr(JsonDecoder, "decode", counted)
    rows = source.rows("id long, k long")
    assert sorted(row["id"] for row in rows) == list(range(40))
    assert all(row["k"] == row["id"] % 2 for row in rows)
    assert len(calls) == 2


def test_text_needs_directories_for_all_other_columns(source: Input) -> None:
    """A text file in a directory that does not name a column of the schema is an error, not a column of nulls."""
    source.put("k=1/f", b"line\n")
    assert source.rows("value string, k long", "text") == [{"value": "line", "k": 1}]
    source.put("f", b"line\n")
    with pytest.raises(BadFile, match="the schema also has k, which no directory of theirs names"):
        source.rows("value string, k long", "text")
    with pytest.raises(OptionError, match="format=text has one column"):
        source.rows("value string, k long", "text", partitionColumns="none")
    with pytest.raises(OptionError, match="format=text has one column"):
        source.rows("line string, k long", "text")


def test_schema_of_nothing_but_directories(source: Input) -> None:
    """A schema with only directory columns is refused, and the error says what is missing."""
    source.put("k=1/f", b'{"id": 1}')
    with pytest.raises(OptionError, match="expected one that is in the files"):
        source.rows("k long")


def test_type_that_no_name_can_hold(source: Input) -> None:
    """A directory name cannot hold a struct or bytes: such a column is refused."""
    source.put("k=1/f", b'{"id": 1}')
    with pytest.raises(OptionError, match="the name of a directory cannot hold"):
        source.rows("id long, k binary")


@pytest.mark.parametrize("recursive", ["true", "false"])
def test_names_are_names_where_that_is_asked_for(source: Input, recursive: str) -> None:
    """`partitionColumns=none`: directories are entered with recursion only, and are no columns."""
    source.put("k=1/f", b'{"id": 1}')
    source.put("_k=1/f", b'{"id": 2}')
    expected = [{"id": 1, "k": None}] if recursive == "true" else []
    assert source.rows("id long, k long", partitionColumns="none", recursiveFileLookup=recursive) == expected


def test_hidden_directories_that_are_columns(source: Input) -> None:
    """As in Spark `_k=v` is a column; `_k`, `.k=v` and the file `_k=v` are not read."""
    for path in ("_k=1/f", "_k/f", ".k=1/f", "_k=2"):
        source.put(path, b'{"id": 1}')
    assert source.rows("id long, _k long") == [{"id": 1, "_k": 1}]


def test_directories_that_are_passed_over_are_told(source: Input, caplog: pytest.LogCaptureFixture) -> None:
    """If all files are in directories, nothing is read without recursion, and a warning says so."""
    source.put("2026/01/f", b'{"id": 1}')
    with caplog.at_level(logging.INFO, "penstock.source"):
        assert source.rows("id long") == []
        assert [(r.levelname, "set recursiveFileLookup=true" in r.message) for r in caplog.records] == [
            ("WARNING", True)
        ]
        caplog.clear()
        source.put("f", b'{"id": 2}')
        assert source.rows("id long") == [{"id": 2}]
        assert [r.levelname for r in caplog.records] == ["INFO"]


@pytest.mark.parametrize("fmt", ["json", "csv", "parquet"])
def test_what_our_sink_writes_is_read_back(tmp_path: Path, fmt: str) -> None:
    """The buckets of our sink, with any text and number and with null, are read back as the same columns."""
    schema = pa.schema([("s", pa.string()), ("n", pa.int64()), ("d", pa.date32()), ("id", pa.int64())])
    day = dt.date(2026, 1, 31)
    given = [{"s": text, "n": number - 3, "d": day, "id": number} for number, text in enumerate([*NASTY, None])]
    given.append({"s": None, "n": None, "d": None, "id": 99})
    out = tmp_path / "out"
    options = {"path": str(out), "format": fmt, "bucketBy": "s={s}/n={n}/d={d}", "dropBucketColumns": "true"}
    sink = Sink(LocalStorage(), str(out), parse(SINK, options, what="sink"), "s")
    batch = Batch("q", 0, "", final=True)
    begun = sink.begin("d1", batch)
    result = sink.write(begun, "q", 0, 0, schema, iter([pa.RecordBatch.from_pylist(given, schema=schema)]))
    sink.commit(batch, [result])
    rows = Input(out).rows("id long, s string, n long, d date", fmt, settle="0")
    assert sorted(rows, key=lambda row: int(row["id"])) == [
        {"id": row["id"], "s": row["s"], "n": row["n"], "d": row["d"]} for row in given
    ]


def test_scan_enters_columns_alone(source: Input) -> None:
    """Without recursion a directory below a column is entered only if it is a column, too."""
    for path in ("a=1/b=2/f", "a=1/c/f", "d/e=1/f", "=1/f"):
        source.put(path, b"")
    options = parse(SOURCE, {"path": str(source.root)}, what="source")
    scan = Scan.of(LocalStorage(), str(source.root), options)
    assert [file.path for file, _ in scan.refresh().came] == ["a=1/b=2/f"]
    assert scan.passed_over == {"a=1/c", "d", "=1"}
