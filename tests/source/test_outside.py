"""Situations from the tests and bug reports of other projects' file sources: what lies in a directory, and what is read of it.

Most inputs come from other writers: Python's compressors, DuckDB, polars, Arrow. All of it runs without Spark.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import zlib
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from penstock.errors import BadFile, BadRecord, OptionError, PenstockError
from penstock.formats.ddl import parsed
from penstock.options import SOURCE, parse
from penstock.source import configured

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.soak

LINES = b"a\nb\n"
PACKED = gzip.compress(LINES)
TWO = "a string, b string"
AB = ["a", "b"]


def rows(path: Path, schema: str = "value string", **options: str) -> list[Any]:
    """Return what all batches of a source read: plain values if there is one column, else tuples."""
    given = {"path": str(path), "settle": "0s", **options}
    checked = parse(SOURCE, given, what="source")
    reading = configured.reading(checked, str(parsed(schema)))
    planner = configured.planner(checked, reading)
    values: list[Any] = []
    start = planner.initial()
    while (end := planner.latest(start)) != start:
        start = json.loads(json.dumps(end))
        splits = tuple(split for task in planner.tasks(start) for split in task)
        for batch in configured.rows(checked, reading, splits):
            values += (
                batch.column(0).to_pylist()
                if batch.num_columns == 1
                else [tuple(row.values()) for row in batch.to_pylist()]
            )
    return values


def expect(path: Path, expected: list[Any] | type[PenstockError], schema: str, options: dict[str, str]) -> None:
    """Compare the rows read, or the kind of error, with what is expected."""
    if isinstance(expected, list):
        assert rows(path, schema, **options) == expected
        return
    with pytest.raises(expected, match=r"\[PST-"):
        rows(path, schema, **options)


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("members.gz", gzip.compress(b"a\n") + gzip.compress(b"b\n"), AB),
        ("in mid line.gz", gzip.compress(b"a") + gzip.compress(b"b\n"), ["ab"]),
        ("empty member.gz", gzip.compress(b"a\n") + gzip.compress(b"") + gzip.compress(b"b\n"), AB),
        ("nothing.gz", gzip.compress(b""), []),
        ("garbage.gz", PACKED + b"garbage", BadFile),
        ("cut.gz", PACKED[:-3], BadFile),
        ("sum.gz", PACKED[:-8] + bytes(4) + PACKED[-4:], BadFile),
        ("length.gz", PACKED[:-4] + b"\0\0\0\1", BadFile),
        ("plain.gz", LINES, BadFile),
        ("UPPER.GZ", PACKED, AB),
        ("members.bz2", bz2.compress(b"a\n") + bz2.compress(b"b\n"), AB),
        ("cut.bz2", bz2.compress(LINES * 1000)[:-4], BadFile),
        ("frames.zst", zstandard.compress(b"a\n") + zstandard.compress(b"b\n"), AB),
        ("skippable.zst", b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + zstandard.compress(LINES), AB),
        ("cut.zst", zstandard.compress(LINES * 10_000)[:-4], BadFile),
        ("members.xz", lzma.compress(b"a\n") + lzma.compress(b"b\n"), AB),
        ("padded.xz", lzma.compress(LINES) + bytes(4), AB),
        ("cut.xz", lzma.compress(LINES * 100)[:-5], BadFile),
        ("zlib.deflate", zlib.compress(LINES), AB),
        ("archive.zip", b"PK\3\4" + bytes(50), BadFile),
    ],
)
def test_compressed_files(tmp_path: Path, name: str, data: bytes, expected: list[Any] | type[PenstockError]) -> None:
    """Compressed files of every writer are read whole; of a damaged one nothing is read."""
    (tmp_path / name).write_bytes(data)
    expect(tmp_path, expected, "value string", {})


@pytest.mark.parametrize("size", ["1", "2", "3", "64"])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a\r\nb\r\n", AB),
        (b"a\rb", AB),
        (b"a\r\n\rb\n\nc", ["a", "", "b", "", "c"]),
        (b"\n\n\n", ["", "", ""]),
        (b"a\0b\n", ["a\0b"]),
        ("a\x0bb\x0cc\u2028d\x85e\n".encode(), ["a\x0bb\x0cc\u2028d\x85e"]),
        ("ü\n€\n😀\n".encode(), ["ü", "€", "😀"]),
        (b"a\n\xff\n", BadRecord),
        (b"\xed\xa0\x80\n", BadRecord),
        (b"\xc0\x80\n", BadRecord),
    ],
)
def test_lines(tmp_path: Path, data: bytes, expected: list[Any] | type[PenstockError], size: str) -> None:
    """Lines end at their line ends, and are text or refused, wherever the file is cut."""
    (tmp_path / "x").write_bytes(data)
    expect(tmp_path, expected, "value string", {"splitSize": size})


NAMES = [
    "a b",
    "a%20b",
    "a#b",
    "a?b",
    "a:b",
    "-a",
    "a\nb",
    "ü",
    "a" * 255,
    "a;b",
    "a\\b",
    "[x]",
    "{a,b}",
    "*",
    "~",
    "a,b",
    "a=b",
]


@pytest.mark.parametrize("name", [*NAMES, "😀", "a..b", os.fsdecode(b"\xff\xfe")])
def test_names(tmp_path: Path, name: str) -> None:
    """A file is read whatever its name is."""
    (tmp_path / name).write_bytes(b"x\n")
    assert rows(tmp_path) == ["x"]


@pytest.mark.parametrize("name", [".a", "_a", "a.tmp", "a.inprogress", "a._COPYING_", "._a"])
def test_names_of_what_is_unfinished(tmp_path: Path, name: str) -> None:
    """Hidden and unfinished files are not read."""
    (tmp_path / name).write_bytes(b"x\n")
    assert rows(tmp_path) == []


@pytest.mark.parametrize("time_ns", [0, -1, -(10**18), 1, 999_999_999, 10**9])
def test_times_that_nobody_meant(tmp_path: Path, time_ns: int) -> None:
    """Modification times at and before the epoch are valid times."""
    (tmp_path / "a").write_bytes(b"x\n")
    os.utime(tmp_path / "a", ns=(time_ns, time_ns))
    assert rows(tmp_path) == ["x"]


@pytest.mark.parametrize(
    ("data", "options", "expected"),
    [
        (b'x,"y', {}, BadRecord),
        (b'1,2\nx,"y\n3,4\n', {}, BadRecord),
        (b'x,"y""', {}, BadRecord),
        (b'"x', {"escape": "\\"}, BadRecord),
        (b'a,"b\n1,2\n', {"header": "true"}, BadFile),
        (b'x,"y"z\n', {}, BadRecord),
        (b"1\n", {}, BadRecord),
        (b"1,2,3\n", {}, BadRecord),
        (b"a,a\n1,2\n", {"header": "true"}, PenstockError),
        (b"a,b", {"header": "true"}, []),
        (b"", {"header": "true"}, []),
        (b"\n\na,b\n1,2\n", {"header": "true"}, [("1", "2")]),
        (b'\xef\xbb\xbf"a",b\n1,2\n', {"header": "true"}, [("1", "2")]),
        ("a,b\n1,2\n".encode("utf-16"), {"header": "true", "encoding": "UTF-16"}, [("1", "2")]),
        (b"#c\na,b\n1,2\n", {"header": "true", "comment": "#"}, [("1", "2")]),
        (b'1,"a\nb"\r\n2,"c""d"\r\n3,e', {"splitSize": "1"}, [("1", "a\nb"), ("2", 'c"d'), ("3", "e")]),
        (b"1,2\r3,4\r", {}, [("1", "2"), ("3", "4")]),
    ],
)
def test_csv(tmp_path: Path, data: bytes, options: dict[str, str], expected: list[Any] | type[PenstockError]) -> None:
    """Records are whole or refused: a file that ends within quotes has a bad record; Spark invents the closing quote."""
    (tmp_path / "x.csv").write_bytes(data)
    expect(tmp_path, expected, TWO, {"format": "csv", **options})


@pytest.mark.parametrize(
    ("data", "options", "expected"),
    [
        (b'{"a":1}\n\n{"a":2}\r{"a":3}', {"splitSize": "1"}, [1, 2, 3]),
        ('{"a":1}\n{"a":2}\n'.encode("utf-16"), {"encoding": "UTF-16"}, [1, 2]),
        (b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}\n", {}, BadRecord),
        (b'{"\\u0061":1}\n', {}, [1]),
        (b'{"a":1.0}\n', {}, BadRecord),
        (b'{"a":1} 2\n', {}, BadRecord),
        (b'{"a":1}{"a":2}\n', {}, BadRecord),
        (b"{'a':1}\n", {}, BadRecord),
        (b'[{"a":1},\n{"a":2}]\n', {"multiLine": "true"}, [1, 2]),
        (b"[]", {"multiLine": "true"}, []),
    ],
)
def test_json(tmp_path: Path, data: bytes, options: dict[str, str], expected: list[Any] | type[PenstockError]) -> None:
    """One object per line, or one document per file; nothing similar is accepted."""
    (tmp_path / "x.json").write_bytes(data)
    expect(tmp_path, expected, "a bigint", {"format": "json", **options})


def stored(table: pa.Table, **options: Any) -> bytes:
    """Return a Parquet file written by Arrow."""
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


def of_polars(frame: pl.DataFrame) -> bytes:
    """Return a Parquet file written by polars."""
    file = io.BytesIO()
    frame.write_parquet(file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "schema", "expected"),
    [
        (stored(pa.table({"a": pa.array([], pa.int64())})), "a bigint", []),
        (stored(pa.table({"b": [1]})), "a bigint, b bigint", [(None, 1)]),
        (stored(pa.table({"A": [1]})), "a bigint", [1]),
        (stored(pa.table({"AA": [1], "Aa": [2]})), "aa bigint", BadFile),
        (stored(pa.table({"a": pa.nulls(2)})), "a bigint", [None, None]),
        (stored(pa.table({"a": pa.array([[1, 2]], pa.list_(pa.int64(), 2))})), "a array<bigint>", [[1, 2]]),
        (stored(pa.table({"a": pa.array([1.5], pa.float16())})), "a double", [1.5]),
        (stored(pa.table({"a": [1]}), data_page_version="2.0"), "a bigint", [1]),
        (stored(pa.table({"a": [1]}), compression="brotli"), "a bigint", [1]),
        (of_polars(pl.DataFrame({"a": pl.Series(["x"], dtype=pl.Categorical)})), "a string", ["x"]),
        (stored(pa.table({"a": list(range(1000))}))[:-5], "a bigint", BadFile),
        (b"1,2\n", "a bigint", BadFile),
    ],
)
def test_parquet(tmp_path: Path, data: bytes, schema: str, expected: list[Any] | type[PenstockError]) -> None:
    """Parquet files of other writers, and files that are not Parquet."""
    (tmp_path / "a.parquet").write_bytes(data)
    expect(tmp_path, expected, schema, {"format": "parquet"})


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        ("1::hugeint", "a double", [1.0]),
        ("'x'::enum('x', 'y')", "a string", ["x"]),
        ("{'x': 1}", "a struct<x: int>", [{"x": 1}]),
        ("map(['k'], [1])", "a map<string, int>", [[("k", 1)]]),
        ("time '01:02:03'", "a string", BadFile),
    ],
)
def test_parquet_of_duckdb(tmp_path: Path, value: str, schema: str, expected: list[Any] | type[PenstockError]) -> None:
    """DuckDB's own types are read as what they are stored as, or are refused."""
    duckdb.sql(f"copy (select {value} as a) to '{tmp_path / 'a.parquet'}'")
    expect(tmp_path, expected, schema, {"format": "parquet"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxFilesPerTrigger", "0"),
        ("maxFilesPerTrigger", "-1"),
        ("maxFilesPerTrigger", "10.1"),
        ("maxFilesPerTrigger", "not-an-integer"),
        ("pathGlobFilter", "[a"),
        ("pattern", "("),
        ("lateness", "-1s"),
        ("modifiedAfter", "soon"),
        ("latestFirst", "true"),
        ("maxFileAge", "7d"),
        ("ignoreCorruptFiles", "true"),
        ("cloudFiles.format", "json"),
        ("wholetext", "true"),
        ("columnNameOfCorruptRecord", "_c"),
    ],
)
def test_options_of_others_and_bad_values(tmp_path: Path, name: str, value: str) -> None:
    """An unknown option, or a bad value of an option, is refused by name."""
    with pytest.raises(OptionError, match=name):
        rows(tmp_path, **{name: value})
