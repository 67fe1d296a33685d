"""What a task reads from its splits: every record once, or a named failure. Without Spark."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import re
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadFile, BadRecord, FileChanged, OptionError
from penstock.formats import Dialect, ReadFormat
from penstock.formats.aside import Aside
from penstock.options import SOURCE, parse
from penstock.source import configured
from penstock.source.cursor import FileVersion, Split
from penstock.source.plan import Planner
from penstock.source.read import Reading, files_batch
from penstock.storage import LocalStorage
from penstock.storage._hdfs import HdfsReadHandle
from penstock.testing import CrashHdfs
from penstock.testing.objects import ObjectStore
from tests.support.driven import TEXT as TEXT_JSON
from tests.support.driven import DrivenSource
from tests.support.effort import effort

TIMES: dict[str, Any] = {"listed": 0, "sure": 0, "sum": ""}  # replaces values that differ from driver to driver
TEXT = pa.schema([("value", pa.string())])
FILES_JSON = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (("path", "string"), ("modified", "timestamp"), ("size", "long"))
        ],
    }
)
ROWS = pa.schema([("id", pa.int64()), ("name", pa.string())])


class Input:
    """A directory of input files, and readings of it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, name: str, data: bytes) -> FileVersion:
        """Write a file; return the version that a plan would have."""
        path = self.root / name
        path.write_bytes(data)
        info = path.stat()
        return FileVersion(name, info.st_size, info.st_mtime_ns, str(info.st_ino))

    def reading(
        self, fmt: str = "text", schema: pa.Schema = TEXT, *, metadata: str | None = None, **options: Any
    ) -> Reading:
        """Return a reading of the directory."""
        columns = (*schema.names, *([metadata] if metadata else []))
        return Reading(LocalStorage(), str(self.root), ReadFormat(fmt, schema, **options), metadata, columns)


@pytest.fixture
def source(tmp_path: Path) -> Input:
    return Input(tmp_path)


def values(reading: Reading, splits: list[Split], column: str = "value") -> list[Any]:
    """Return the values of a column as they are read."""
    return [v for batch in reading.batches(splits) for v in batch.column(column).to_pylist()]


def whole(file: FileVersion) -> Split:
    """Return the split that covers the whole file."""
    return Split(file, 0, file.size)


def cut(file: FileVersion, at: list[int]) -> list[Split]:
    """Return the file in ranges."""
    bounds = sorted({0, file.size, *(a for a in at if a <= file.size)})
    return [Split(file, a, b) for a, b in pairwise(bounds)]


CONTENTS = {
    "lf": b"one\ntwo\nthree\n",
    "crlf": b"one\r\ntwo\r\n\r\nfour\r\n",
    "cr": b"one\rtwo\r\rfour\r",
    "mixed": b"a\r\nb\nc\rd\n\re\r\r\nf",
    "no end": b"one\ntwo",
    "blank lines": b"\n\n\n",
    "utf-8": "ü\U0001f600\nééé\n".encode(),
    "nul": b"a\0b\n\0\n",
    "bom": b"\xef\xbb\xbfone\ntwo\n",
    "one byte": b"x",
    "long": b"x" * 1000 + b"\ny\n",
}


@pytest.mark.parametrize("name", CONTENTS)
def test_no_record_is_lost_doubled_or_cut_at_any_point(source: Input, name: str) -> None:
    """HZ-23: cut anywhere, into two or many ranges, read in one or several tasks: the same lines."""
    data = CONTENTS[name]
    file, reading = source.put("f", data), source.reading()
    text = data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    expected = text.removesuffix("\n").split("\n")
    assert values(reading, [whole(file)]) == expected
    for at in range(len(data) + 1) if len(data) < 100 else (1, 500, 999, 1000, 1001, 1002):
        parts = [values(reading, [split]) for split in cut(file, [at])]
        assert [v for part in parts for v in part] == expected
    every = cut(file, list(range(len(data))))
    assert [v for split in every for v in values(reading, [split])] == expected
    assert values(reading, every) == expected
    assert b"".join(reading.text(every)).decode() == "".join(f"{line}\n" for line in expected)


def test_places_beyond_two_gigabytes(source: Input) -> None:
    """HZ-23: a range after byte 2^31 is found, and its records have the right offsets."""
    path, at = source.root / "f", (1 << 31) + 100
    with path.open("wb") as file:
        file.seek(at)
        file.write(b"\nafter\nlast")
    info = path.stat()
    version = FileVersion("f", info.st_size, info.st_mtime_ns, str(info.st_ino))
    [batch] = source.reading(metadata="m").batches([Split(version, at - 50, info.st_size)])
    assert [(row["value"], row["m"]["offset"]) for row in batch.to_pylist()] == [("after", at + 1), ("last", at + 7)]


@pytest.mark.parametrize("fmt", ["text", "binary"])
def test_every_batch_of_a_big_file_replayed(source: Input, fmt: str) -> None:
    """IBM-8, IBM-9: 100 records of 100 KiB in batches that split the file; each batch is read twice, the second time by a new driver."""
    size, count = 100 << 10, 100
    records = [bytes([65 + i % 26]) * (size - 1) + b"\n" for i in range(count)]
    source.put("f", b"".join(records))
    schema = TEXT if fmt == "text" else pa.schema([("value", pa.binary())])
    reading = source.reading(fmt, schema, block_size=size)
    options = parse(SOURCE, {"path": str(source.root), "maxBytesPerTrigger": "1234567", "settle": "0"}, what="source")

    def planner() -> Planner:
        return Planner(LocalStorage(), str(source.root), options, divisible=reading.divisible)

    running, found = planner(), []
    at = running.initial()
    while (end := json.loads(json.dumps(running.latest(at)))) != at:
        batch = [value for task in running.tasks(end) for value in values(reading, task)]
        again = planner()
        assert batch == [value for task in again.tasks(end) for value in values(reading, task)]
        assert again.latest(at) | TIMES == end | TIMES
        found += batch
        at = end
    assert found == [r[:-1].decode() for r in records] if fmt == "text" else found == records


PAIRS = [(1, "a"), (2, 'say "b",\r\nagain\n'), (3, ""), (4, "\u00e9" * 40), (5, "\U0001f600"), (6, "x")]
QUOTED = [f'{i},"{name.replace(chr(34), chr(34) * 2)}"' for i, name in PAIRS]
OBJECTS = [json.dumps({"id": i, "name": name}, ensure_ascii=i % 2 == 0) for i, name in PAIRS]


@pytest.mark.slow
@pytest.mark.parametrize("limit", effort([1, 3, 16, 61, 1000], [1, 2, 3, 7, 16, 61, 1000]))
@pytest.mark.parametrize("split", effort([1, 5, 1000], [1, 5, 40, 1000]))
@pytest.mark.parametrize(
    ("fmt", "head", "records", "end"),
    [
        ("csv", "id,name\r\n", QUOTED, "\r\n"),
        ("csv", "\ufeffid,name\n\n", QUOTED, "\n\n"),
        ("csv", "", QUOTED, "\r"),
        ("json", "", OBJECTS, "\r\n"),
        ("json", "\ufeff\n", OBJECTS, "\r\r\n"),
    ],
)
def test_limits_cut_between_records(
    source: Input, fmt: str, head: str, records: list[str], end: str, limit: int, split: int
) -> None:
    """HZ-23, APX-35: whatever the limits of batch and task, and with a new driver for each batch: each record once, in order."""
    source.put("1", (head + end.join(records[:4])).encode())
    source.put("2", b"")
    source.put("3", (head + end.join(records[4:]) + end).encode())
    source.put("4.gz", gzip.compress((head + end.join(records) + end).encode()))
    source.put("5", head.encode())
    for name in "123":
        os.utime(source.root / name, (int(name), int(name)))
    os.utime(source.root / "4.gz", (4, 4))
    reading = source.reading(fmt, ROWS, csv=Dialect(header=head.strip("\ufeff").startswith("id")))
    given = {"path": str(source.root), "maxBytesPerTrigger": str(limit), "splitSize": str(split), "settle": "0"}
    options = parse(SOURCE, given, what="source")
    boundary = reading.boundary if fmt == "csv" else None
    at, found = None, []
    while True:
        planner = Planner(LocalStorage(), str(source.root), options, divisible=reading.divisible, boundary=boundary)
        at = at or planner.initial()
        end_offset = json.loads(json.dumps(planner.latest(at)))
        if end_offset == at:
            break
        for task in planner.tasks(end_offset):
            found += [(row["id"], row["name"]) for batch in reading.batches(task) for row in batch.to_pylist()]
        at = end_offset
    assert found == PAIRS * 2


@pytest.mark.slow
@settings(max_examples=effort(30, 3000))
@given(
    lines=st.lists(st.text('ab\r\n\u00fc\0"', max_size=6), max_size=8), cuts=st.lists(st.integers(0, 60), max_size=5)
)
def test_any_text_in_any_ranges(tmp_path_factory: pytest.TempPathFactory, lines: list[str], cuts: list[int]) -> None:
    """Random lines with random line ends in random ranges: the ranges together give the whole."""
    source = Input(tmp_path_factory.mktemp("x"))
    file, reading = source.put("f", "\n".join(lines).encode()), source.reading()
    splits = cut(file, cuts)
    assert [v for split in splits for v in values(reading, [split])] == values(reading, [whole(file)])


def test_small_files_keep_apart(source: Input) -> None:
    """Files joined into one block stay separate, also if one ends with CR and the next begins with LF."""
    files = [source.put(f"f{i}", data) for i, data in enumerate([b"a\r", b"\nb", b"", b"c\n", b"d"])]
    assert values(source.reading(), [whole(f) for f in files]) == ["a", "", "b", "c", "d"]
    assert b"".join(source.reading().text([whole(f) for f in files])) == b"a\n\nb\nc\nd\n"


def test_line_separator_of_several_bytes(source: Input) -> None:
    """lineSep may be any bytes, and is then the only separator."""
    file = source.put("f", b"a||b\nc||d|")
    reading = source.reading(line_sep=b"||")
    for at in range(file.size):
        assert [v for s in cut(file, [at]) for v in values(reading, [s])] == ["a", "b\nc", "d|"]
    assert b"".join(reading.text([whole(file)])) == b"a\nb\nc\nd|\n"


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".bz2"])
def test_compressed_files_are_read_whole(source: Input, suffix: str) -> None:
    """HZ-24: gz (of several members), zst and bz2 are decompressed; such a file is not cut."""
    lines = [f"line {i}" for i in range(1000)]
    data = "".join(f"{line}\n" for line in lines).encode()
    half = len(data) // 2
    pack = {
        ".gz": gzip.compress(data[:half]) + gzip.compress(data[half:]),
        ".zst": zstandard.compress(data),
        ".bz2": bz2.compress(data),
    }
    file, reading = source.put(f"f{suffix}", pack[suffix]), source.reading()
    assert not reading.divisible(file.path)
    assert reading.divisible("f")
    assert values(reading, [whole(file)]) == lines


def test_truncated_gzip_is_an_error(source: Input) -> None:
    """HZ-24: a truncated gz file is an error with its name, never fewer lines."""
    file = source.put("f.gz", gzip.compress(b"line\n" * 1000)[:-20])
    with pytest.raises(BadFile, match=r"f\.gz"):
        values(source.reading(), [whole(file)])


def test_bomb_is_an_error(source: Input) -> None:
    """A file that expands beyond all limits is refused while it is read, in bounded memory."""
    file = source.put("f.zst", zstandard.compress(b"\0" * (1 << 28)))
    with pytest.raises(BadFile, match=r"f\.zst"):
        values(source.reading(), [whole(file)])


@pytest.mark.parametrize("encoding", ["iso8859-1", "utf-16", "utf-16-le", "shift_jis", "iso2022_jp"])
def test_encodings(source: Input, encoding: str) -> None:
    """Text in another encoding is read as UTF-8; encodings that cannot be cut by bytes are read whole."""
    lines = ["äöü", "x"] if "jp" not in encoding and "jis" not in encoding else ["日本", "x"]
    file = source.put("f", "\n".join(lines).encode(encoding))
    reading = source.reading(encoding=encoding)
    assert values(reading, [whole(file)]) == lines
    assert reading.divisible("f") == (encoding != "iso2022_jp")


SEPARATED = {  # separators in encodings other than UTF-8, as 0.1.0 read them wrong, and similar cases
    "utf-16-le and a line feed": ("utf-16-le", "\n", ["a", "b", "c"]),
    "utf-16-le across two characters": ("utf-16-le", "\n", ["\u0a31\u0100", "\u010a\u0a00"]),
    "utf-16 with a mark": ("utf-16", "||", ["a", "|b", "日"]),
    "utf-32-be": ("utf-32-be", "|", ["a\n", "\U0001f600"]),
    "latin-1 and a paragraph": ("latin-1", "§", ["a", "bä", "c"]),
    "shift_jis and a trail byte": ("shift_jis", "|", ["ソポ", "表ポ", "a"]),
    "gb18030 and a digit": ("gb18030", "0", ["\u0452\u0453", "\U0001f600", "x"]),
    "euc_jp and a pair of halves": ("euc_jp", "、", ["\u3000◆", "日本"]),
    "mac-arabic, which has two": ("mac-arabic", "|", ["a", "b"]),
    "ebcdic": ("cp037", "\n", ["a", "b"]),
}


@pytest.mark.parametrize("case", SEPARATED)
def test_a_separator_is_found_in_what_the_bytes_mean(source: Input, case: str) -> None:
    """`lineSep` in any encoding: the same rows wherever the file is cut; no row is lost, doubled or split."""
    encoding, sep, lines = SEPARATED[case]
    file = source.put("f", sep.join([*lines, ""]).encode(encoding))
    reading = source.reading(encoding=encoding, line_sep=sep.encode())
    assert values(reading, [whole(file)]) == lines
    for at in range(file.size) if reading.divisible("f") else ():
        assert [v for split in cut(file, [at]) for v in values(reading, [split])] == lines
    objects = [json.dumps({"id": i, "name": line}, ensure_ascii=False) for i, line in enumerate(lines)]
    if not any(sep in text for text in objects):
        file = source.put("j", sep.join([*objects, ""]).encode(encoding))
        reading = source.reading("json", ROWS, encoding=encoding, line_sep=sep.encode())
        assert values(reading, [whole(file)], "name") == lines


@pytest.mark.parametrize("case", SEPARATED)
def test_binary_lines_are_the_bytes_of_the_file(source: Input, case: str) -> None:
    """A binary column gets the lines as they are in the file, not transcoded, if they can be found in its bytes."""
    encoding, sep, lines = SEPARATED[case]
    content = sep.join([*lines, ""]).encode(encoding)
    file = source.put("f", content)
    how = source.reading("text", pa.schema([("value", pa.binary())]), encoding=encoding, line_sep=sep.encode())
    if not how.divisible("f"):
        return
    concrete = "utf-16-le" if encoding == "utf-16" else encoding
    for at in range(file.size):
        assert [v for split in cut(file, [at]) for v in values(how, [split])] == [
            line.encode(concrete) for line in lines
        ]


STRING = '{"type":"struct","fields":[{"name":"value","type":"string","nullable":true,"metadata":{}}]}'


@pytest.mark.parametrize(
    ("encoding", "sep", "lines"),
    [
        ("UTF-16LE", "\n", ["a", "b", "c"]),
        ("ISO-8859-1", "§", ["a", "b", "c"]),
        ("Shift_JIS", "|", ["ポ", "ポソ", "c"]),
    ],
)
def test_line_sep_as_users_give_it(source: Input, encoding: str, sep: str, lines: list[str]) -> None:
    """`lineSep` and `encoding` as options: the same rows for every `splitSize`, one per separator."""
    source.put("f", "".join(line + sep for line in lines).encode(encoding))
    for size in range(1, 9):
        given = {"encoding": encoding, "lineSep": sep, "splitSize": str(size), "settle": "0"}
        options = parse(SOURCE, {"path": str(source.root), **given}, what="source")
        how = configured.reading(options, STRING)
        planner = configured.planner(options, how)
        assert [v for task in planner.tasks(planner.latest(planner.initial())) for v in values(how, task)] == lines


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"encoding": "Shift_JIS", "lineSep": "§\u0100"}, "lineSep='§\u0100' does not exist in encoding=shift_jis"),
        ({"encoding": "ascii", "lineSep": "é"}, "does not exist in encoding=ascii; expected characters that it has"),
        ({"lineSep": "\ufffd", "encodingErrors": "replace"}, "is what encodingErrors=replace puts in place"),
        (
            {"encoding": "latin-1", "format": "parquet"},
            "encoding is for format=text or json or csv, found format=parquet",
        ),
        ({"encodingErrors": "ignore"}, "encodingErrors='ignore' is not known: expected one of fail, replace"),
    ],
)
def test_encodings_that_cannot_be_meant(source: Input, given: dict[str, str], message: str) -> None:
    """A separator that the encoding lacks, or that replacement could produce, and options of other formats are refused by name."""
    with pytest.raises(OptionError, match=message):
        configured.reading(parse(SOURCE, {"path": str(source.root), **given}, what="source"), STRING)


def test_halves_of_characters_in_utf7(source: Input) -> None:
    """UTF-7 can spell half a character, and Python decodes it: it becomes a bad record, or U+FFFD."""
    file = source.put("f", b"a\n+2EA-b\n")
    with pytest.raises(BadRecord, match=r"found '\\ud840', expected utf-7; set encoding"):
        values(source.reading(encoding="utf-7"), [whole(file)])
    assert values(source.reading(encoding="utf-7", errors="replace"), [whole(file)]) == ["a", "\ufffdb"]


def test_csv_in_an_encoding_with_states(source: Input) -> None:
    """In ISO-2022-JP quotes, commas and line breaks are bytes of other characters, so such CSV is decoded first."""
    rows = [(1, "、”“,"), (2, "日本\n語"), (3, 'a"b')]
    text = "".join(f'{i},"{name.replace(chr(34), chr(34) * 2)}"\n' for i, name in rows)
    file, reading = source.put("f", text.encode("iso2022_jp")), source.reading("csv", ROWS, encoding="iso2022_jp")
    assert values(reading, [whole(file)], "name") == [name for _, name in rows]


@pytest.mark.parametrize(("name", "encoding"), [("f", "iso2022_jp"), ("f.gz", "utf-8"), ("f.snappy", "utf-8")])
def test_a_range_of_what_can_only_be_read_whole_is_refused(source: Input, name: str, encoding: str) -> None:
    """A plan from an older version or other options may have ranges of such a file: its records never come twice."""
    file = source.put(name, b"one\ntwo\n")
    for split in cut(file, [4]):
        with pytest.raises(BadFile, match=f"{name}': bytes . to . of 8 were planned.*can only be read whole"):
            values(source.reading(encoding=encoding), [split])


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
@pytest.mark.parametrize("fmt", ["text", "json", "csv"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_two_byte_orders_and_no_mark_is_a_bad_file(source: Input, encoding: str, fmt: str, suffix: str) -> None:
    """UTF-16 without a mark is a typed error that names two encodings to choose from, and either choice works."""
    pack = gzip.compress if suffix else bytes
    schema = TEXT if fmt == "text" else ROWS.remove(1)
    text = {"text": "7\n", "json": '{"id": 7}\n', "csv": "7\n"}[fmt]
    file = source.put(f"f{suffix}", pack(text.encode(f"{encoding}-be")))
    with pytest.raises(
        BadFile, match=f"f{suffix}'.*byte order mark.*set encoding.*{encoding.upper()}LE or {encoding.upper()}BE"
    ):
        values(source.reading(fmt, schema, encoding=encoding), [whole(file)], schema.names[0])
    found = values(source.reading(fmt, schema, encoding=f"{encoding.upper()}BE"), [whole(file)], schema.names[0])
    assert found == ["7" if fmt == "text" else 7]
    assert values(source.reading(fmt, schema, encoding=encoding), [whole(source.put("e", b""))], schema.names[0]) == []


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("fmt", ["text", "json", "csv"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("errors", ["fail", "replace"])
def test_a_mark_of_the_other_byte_order_is_a_bad_file(
    source: Input, encoding: str, fmt: str, suffix: str, errors: str
) -> None:
    """A file whose mark says that its bytes are in the other order was read as other characters; by its mark it is read right."""
    pack = gzip.compress if suffix else bytes
    schema = TEXT if fmt == "text" else ROWS.remove(1)
    text = {"text": "7\n", "json": '{"id": 7}\n', "csv": "7\n"}[fmt]
    other = encoding[:-2] + {"le": "be", "be": "le"}[encoding[-2:]]
    file = source.put(f"f{suffix}", pack(f"\ufeff{text}".encode(other)))
    with pytest.raises(BadFile, match=f"f{suffix}'.*the byte order mark of UTF.*set encoding={encoding[:6].upper()}"):
        values(source.reading(fmt, schema, encoding=encoding, errors=errors), [whole(file)], schema.names[0])
    found = values(source.reading(fmt, schema, encoding=encoding[:6], errors=errors), [whole(file)], schema.names[0])
    assert found == ["7" if fmt == "text" else 7]


def test_a_large_file_without_a_mark_is_set_aside_once(tmp_path: Path) -> None:
    """Its mark was missed when the driver cut it over several batches, which ended the query with `badFiles=quarantine`, too."""
    (tmp_path / "f").write_bytes("line\n".encode("utf-16-le") * 1000)
    given = {"path": str(tmp_path), "encoding": "UTF-16", "badFiles": "quarantine", "settle": "0s"}
    source = DrivenSource(TEXT_JSON, **given, maxBytesPerTrigger="1000")
    aside = Aside()
    rows = []
    while source.plan():
        splits = [split for task in source.planner.tasks(json.loads(source.log[-1])) for split in task]
        rows += [row for batch in replace(source.reading, aside=aside).batches(splits) for row in batch.to_pylist()]
    assert rows == []
    (line,) = [line for about in aside.handed_on() for line in about.to_pylist()]
    assert "expected a byte order mark" in line["reason"]
    assert "start again" not in line["reason"]
    assert "visible" not in line["reason"]


def test_files_of_both_byte_orders_side_by_side(source: Input) -> None:
    """Each file's own mark decides how it is read, also if small files are read together."""
    files = [source.put(f"f{i}", "\ufeffä\nb".encode(f"utf-16-{'lb'[i % 2]}e")) for i in range(4)]
    reading = source.reading(encoding="utf-16")
    assert values(reading, [whole(file) for file in files]) == ["ä", "b"] * 4
    binary = source.reading("text", pa.schema([("value", pa.binary())]), encoding="utf-16")
    expected = [line.encode(f"utf-16-{'lb'[i % 2]}e") for i in range(4) for line in ("ä", "b")]
    assert values(binary, [whole(file) for file in files]) == expected


@pytest.mark.parametrize("fmt", ["text", "csv"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_mark_in_front_of_a_later_record_is_a_character(source: Input, fmt: str, suffix: str) -> None:
    """A byte order mark is skipped only at the start of a file; the content of a later record does not depend on the cuts."""
    pack = gzip.compress if suffix else bytes
    lines = [b"a,1", b"\xef\xbb\xbfb,2", b"\xef\xbb\xbf\xef\xbb\xbfc,3", b"\xef\xbb\xbf,4"]
    content = b"\xef\xbb\xbf" + b"".join(line + b"\n" for line in lines)
    schema = TEXT if fmt == "text" else pa.schema([("value", pa.string()), ("id", pa.int64())])
    expected = [line.decode().split(",")[0] if fmt == "csv" else line.decode() for line in lines]
    file, reading = source.put(f"f{suffix}", pack(content)), source.reading(fmt, schema)
    assert values(reading, [whole(file)]) == expected
    bounds = [len(b"".join(content.splitlines(keepends=True)[:count])) for count in range(4)]
    for at in bounds if not suffix else []:
        assert [v for split in cut(file, [at]) for v in values(reading, [split])] == expected
    assert values(reading, [whole(source.put(f"{i}{suffix}", pack(content))) for i in range(3)]) == expected * 3


def test_a_mark_in_front_of_a_quote_makes_it_no_quote(source: Input) -> None:
    """As in Spark: after a mark a quote does not open a field, so such a later record has too many fields."""
    file = source.put("f", b'a,1\n\xef\xbb\xbf"x,y",2\n')
    with pytest.raises(BadRecord, match="expected 2 fields") as raised:
        values(source.reading("csv", pa.schema([("value", pa.string()), ("id", pa.int64())])), [whole(file)])
    assert raised.value.offset == 4


DAMAGED = {  # bytes that are not text, and what they become
    "utf-8": (b"one\nb\xffd \xf0\x9f\x98!\nthree\n", ["one", "b\ufffdd \ufffd!", "three"], 4),
    "utf-16-le": ("one\nb".encode("utf-16-le") + b"\x3d\xd8d\0\n\0x\0", ["one", "b\ufffdd", "x"], 8),
    "ascii": (b"one\nb\xe4d\nthree\n", ["one", "b\ufffdd", "three"], 4),
    "cp1252": (b"one\nb\x81d\nthree\n", ["one", "b\ufffdd", "three"], 4),
    "shift_jis": (b"one\nb\x81\nthree\n", ["one", "b\ufffd", "three"], 4),
    "euc_jp": (b"one\nb\x8f\nthree\n", ["one", "b\ufffd", "three"], 4),
    "gb18030": (b"one\nb\x84\x39\nthree\n", ["one", "b\ufffd9", "three"], 4),
    "iso2022_jp": (b"one\nb\xffd\nthree\n", ["one", "b\ufffdd", "three"], 5),
}


@pytest.mark.slow
@pytest.mark.parametrize("encoding", DAMAGED)
@pytest.mark.parametrize("fmt", ["text", "json", "csv"])
def test_bytes_that_are_no_text_fail_or_are_replaced(source: Input, encoding: str, fmt: str) -> None:
    """`fail` names file and byte, and its advice works; `replace` gives U+FFFD, the same wherever the file is cut."""
    content, lines, offset = DAMAGED[encoding]
    schema, column = TEXT, "value"
    if fmt == "json":
        start, end = '{"name":"'.encode(encoding), '"}'.encode(encoding)
        line_feed = "\n".encode(encoding)
        content = b"".join(start + line + end + line_feed for line in content.split(line_feed) if line)
        schema, column = ROWS, "name"
    file, reading = source.put("f", content), source.reading(fmt, schema, encoding=encoding)
    with pytest.raises(
        BadRecord, match="expected .*set encoding to what the file has, or encodingErrors=replace"
    ) as raised:
        values(reading, [whole(file)], column)
    assert raised.value.path == f"{source.root}/f"
    if fmt == "text":
        assert raised.value.offset == offset
    replacing = source.reading(fmt, schema, encoding=encoding, errors="replace")
    assert values(replacing, [whole(file)], column) == lines
    if fmt != "csv" and replacing.divisible("f"):
        for at in range(file.size):
            assert [v for split in cut(file, [at]) for v in values(replacing, [split], column)] == lines
    if fmt == "text":
        assert b"".join(replacing.text([whole(file)])).decode() == "".join(f"{line}\n" for line in lines)
        with pytest.raises(BadRecord):
            list(reading.text([whole(file)]))
        if encoding != "iso2022_jp":
            binary = source.reading("text", pa.schema([("value", pa.binary())]), encoding=encoding)
            assert len(values(binary, [whole(file)])) == len(lines)


@pytest.mark.parametrize("fmt", ["text", "json", "csv"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16-le", "shift_jis"])
@pytest.mark.parametrize("errors", ["fail", "replace"])
def test_offsets_are_those_of_the_file(source: Input, fmt: str, encoding: str, errors: str) -> None:
    """Records have their byte offset in the file, in every encoding that can be cut, also after replaced bytes."""
    texts = ["日本" if encoding == "shift_jis" else "äß", "", "x", "ポソ" if encoding == "shift_jis" else "é"]
    forms = {"text": "{0}", "json": '{{"name": "{0}"}}', "csv": '1,"{0}\n{0}"'}
    lines = [(forms[fmt].format(text) + "\n").encode(encoding) for text in texts]
    if errors == "replace" and encoding in {"utf-8", "shift_jis"}:
        at = {"text": 0, "json": -3, "csv": -2}[fmt]
        lines[0] = lines[0][:at] + b"\xff" + lines[0][at:]
    schema = TEXT if fmt == "text" else ROWS
    reading = source.reading(fmt, schema, encoding=encoding, errors=errors, metadata="m")
    file = source.put("f", b"".join(lines))
    rows = [row for batch in reading.batches([whole(file)]) for row in batch.to_pylist()]
    whole_file = fmt == "csv" and encoding == "utf-16-le"  # decoded first: offsets count in the decoded bytes
    lengths = [len(line.decode(encoding).encode()) if whole_file else len(line) for line in lines]
    assert [row["m"]["offset"] for row in rows] == [sum(lengths[:i]) for i in range(len(lines))]


def test_bad_json_in_another_encoding_is_named_with_its_place(source: Input) -> None:
    """A bad record has its own byte offset in the file, not in the decoded text, also among joined files."""
    good = source.put("good", '{"id": 1, "name": "äöü"}\n'.encode("latin-1"))
    bad = source.put("bad", '{"id": 2, "name": "äöü"}\n{"id": }\n'.encode("latin-1"))
    with pytest.raises(BadRecord) as raised:
        values(source.reading("json", ROWS, encoding="latin-1"), [whole(good), whole(bad)], "id")
    assert (raised.value.path, raised.value.offset) == (f"{source.root}/bad", 25)


def test_blank_records_between_separators_shift_no_offset(source: Input) -> None:
    """With a separator that is not white space, blank records are skipped, and the others have their own offsets."""
    file = source.put("f", b'||{"id": 1}|| ||{"id": 2}||')
    reading = source.reading("json", ROWS, line_sep=b"||", metadata="m")
    rows = [row for batch in reading.batches([whole(file)]) for row in batch.to_pylist()]
    assert [(row["id"], row["m"]["offset"]) for row in rows] == [(1, 2), (2, 16)]


@pytest.mark.parametrize("name", ["f.zip", "f.tar.gz", "f.7z", "f.Z", "f.lzo"])
@pytest.mark.parametrize("fmt", ["text", "json", "csv"])
def test_what_cannot_be_unpacked_is_not_read_as_text(source: Input, name: str, fmt: str) -> None:
    """Archives and unknown codecs are bad files, and the error says what they are; unpacked, as it advises, they are read."""
    file = source.put(name, b"1\n2\n")
    reading = source.reading(fmt, TEXT if fmt == "text" else ROWS)
    with pytest.raises(
        BadFile, match=rf"{name}': found an? .* by its name, expected a file of {fmt}.*unpack it.*pathGlobFilter"
    ):
        values(reading, [whole(file)])
    assert values(source.reading(), [whole(source.put("f", b"1\n2\n"))]) == ["1", "2"]


def test_an_archive_is_refused_before_it_is_planned(source: Input) -> None:
    """No plan contains a file that can never be read: after the archive is moved away, the same offset continues without it."""
    source.put("a", b"1\n")
    source.put("b.zip", b"PK")
    source.put("c", b"2\n")
    for number, name in enumerate(("a", "b.zip", "c")):
        os.utime(source.root / name, (number, number))
    reading = source.reading()
    options = parse(SOURCE, {"path": str(source.root), "settle": "0", "maxFilesPerTrigger": "1"}, what="source")
    planner = Planner(LocalStorage(), str(source.root), options, divisible=reading.divisible, admit=reading.files.admit)
    first = planner.latest(planner.initial())
    for _ in range(2):
        with pytest.raises(BadFile, match=r"/b\.zip'"):
            planner.latest(first)
    (source.root / "b.zip").rename(source.root.parent / "b.zip")
    second = planner.latest(first)
    assert values(reading, planner.splits(first) + planner.splits(second)) == ["1", "2"]
    assert planner.latest(second) == second


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()], ids=["marked", "bytes"])
@pytest.mark.parametrize("errors", ["fail", "replace"])
def test_parquet_with_strings_that_are_no_text(source: Input, errors: str, kind: pa.DataType) -> None:
    """A Parquet file whose strings are arbitrary bytes, as Spark writes them, or old writers without marking them as text."""
    values_of = pa.array([b"a\xffb", b"good"]).view(kind)
    pq.write_table(pa.table({"value": values_of}), source.root / "f")
    file = source.put("f", (source.root / "f").read_bytes())
    reading = source.reading("parquet", TEXT, errors=errors)
    if errors == "replace":
        assert values(reading, [whole(file)]) == ["a\ufffdb", "good"]
        return
    with pytest.raises(
        BadFile, match=r"/f': column 'value': found 'a\\xffb', expected UTF-8; set encodingErrors=replace"
    ):
        values(reading, [whole(file)])


def test_invalid_utf8_is_named_with_its_place(source: Input) -> None:
    """A line that is not UTF-8 fails with its file and byte offset, also when plain text is passed through."""
    source.put("a", b"fine\n")
    good, bad = source.put("good", b"fine\n"), source.put("bad", b"one\ntwo \xff\xfe\nthree\n")
    for read in (source.reading().batches, source.reading().text):
        with pytest.raises(BadRecord, match="byte 4") as raised:
            list(read([whole(good), whole(bad)]))
        assert (raised.value.path, raised.value.offset) == (f"{source.root}/bad", 4)


@pytest.mark.parametrize("form", ["text", "json", "csv"])
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (gzip.compress(b"1\n", mtime=0), "packed by gzip, and its name does not end in .gz"),
        (zstandard.compress(b"1\n"), "packed by zstd"),
        (bz2.compress(b"1\n"), "packed by bzip2"),
        (lzma.compress(b"1\n"), "packed by xz"),
        ("1\n\xe9\n".encode("utf-16"), "set encoding=UTF-16"),
        (b"PK\x03\x04\x14\0\xff\xfe", "is a ZIP archive"),
        (b"PAR1\x15\x04\x15\xff", "set format=parquet"),
    ],
)
def test_what_is_no_text_is_told_by_its_beginning(source: Input, form: str, data: bytes, words: str) -> None:
    """A compressed file with a plain name, a table, UTF-16: the error says what it is, and suggests no wrong encoding."""
    path = source.put("data.log.1", data)
    with pytest.raises(BadRecord, match=words) as raised:
        list(source.reading(form).batches([whole(path)]))
    assert "/data.log.1', byte 0: found" in str(raised.value)


def test_files_as_rows_say_by_what_their_version_is_known(source: Input) -> None:
    """With emit=files a row has the tag of an object; for a local file it has no identity, because a copy has another inode."""
    source.put("a", b"x")
    split = whole(source.put("b", b"y"))
    assert files_batch(source.reading(), [split])["identity"].to_pylist() == [None]
    storage = ObjectStore().storage()
    storage.put_if_absent("/in/a", b"x")
    info = storage.stat("/in/a")
    version = FileVersion("a", info.size, info.modified_ns, info.identity)
    reading = replace(source.reading(), storage=storage, root="/in")
    (row,) = files_batch(reading, [Split(version, 0, info.size)]).to_pylist()
    assert (row["path"], row["size"], row["identity"]) == ("/in/a", 1, info.identity)
    assert info.identity


def test_files_as_rows_are_whole(source: Input) -> None:
    """With emit=files a byte limit splits no file: each batch has the rows of its files, and no batch is empty."""
    for name in "abc":
        source.put(name, b"x" * 100)
        os.utime(source.root / name, (1000, 1000))
    options = parse(
        SOURCE,
        {"path": str(source.root), "emit": "files", "maxBytesPerTrigger": "30", "splitSize": "10"},
        what="source",
    )
    how = configured.reading(options, FILES_JSON)
    planner = configured.planner(options, how)
    at, found = planner.initial(), []
    while (end := planner.latest(at)) != at:
        tasks = planner.tasks(end)
        found.append(
            [v for task in tasks for b in configured.rows(options, how, tuple(task)) for v in b["path"].to_pylist()]
        )
        at = end
    assert found == [[f"{source.root}/{name}"] for name in "abc"]


@pytest.mark.parametrize(
    "given",
    [
        {"badRecords": "quarantine"},
        {"mode": "DROPMALFORMED", "format": "json"},
        {"badFiles": "quarantine"},
        {"changedFiles": "quarantine"},
        {"decryptionKey": "env:KEY"},
        {"metadataColumn": "_meta"},
        {"encoding": "UTF-16LE"},
        {"header": "true", "format": "csv"},
        {"rescuedDataColumn": "_rescued", "format": "json"},
    ],
    ids=lambda given: next(iter(given)),
)
def test_files_as_rows_take_no_option_about_contents(source: Input, given: dict[str, str]) -> None:
    """Such an option was taken and had no effect: who set bad records aside was told of none. What it says by default is taken."""
    path = {"path": str(source.root), "emit": "files"}
    with pytest.raises(OptionError, match=f"{next(iter(given))} is about the contents of files, found emit=files"):
        configured.reading(parse(SOURCE, path | given, what="source"), FILES_JSON)
    configured.reading(parse(SOURCE, path | {"badRecords": "fail", "encoding": "UTF-8"}, what="source"), FILES_JSON)


def test_bad_json_is_named_with_its_place(source: Input) -> None:
    """A malformed record in the second of two joined files is reported with that file and its own offset."""
    good = source.put("good", b'{"id": 1}\n')
    bad = source.put("bad", b'{"id": 2}\n{"id": }\n{"id": 3}\n')
    reading = source.reading("json", ROWS)
    with pytest.raises(BadRecord) as raised:
        values(reading, [whole(good), whole(bad)], "id")
    assert (raised.value.path, raised.value.offset) == (f"{source.root}/bad", 10)


@pytest.mark.parametrize("change", ["grow", "shrink", "touch", "delete"])
def test_changed_files_fail(source: Input, change: str) -> None:
    """HZ-14..18: a file that is no longer the planned version fails by name, and the error says what changed."""
    file = source.put("f", b"one\ntwo\n")
    path = source.root / "f"
    if change == "grow":
        path.write_bytes(b"one\ntwo\nthree\n")
    elif change == "shrink":
        path.write_bytes(b"one\n")
    elif change == "touch":
        os.utime(path, (1, 1))
    else:
        path.unlink()
    with pytest.raises(FileChanged, match="/f'"):
        values(source.reading(), [whole(file)])


@pytest.mark.parametrize("change", ["gone", "longer"])
def test_planned_version_is_put_back_as_the_message_says(source: Input, tmp_path: Path, change: str) -> None:
    """PST-203's advice: a copy from a backup without times is put back with `touch -d`, and is read although its inode is another."""
    data = b"one\ntwo\n"
    file = source.put("f", data)
    os.utime(source.root / "f", ns=(1_700_000_000_123_456_789,) * 2)
    file = file._replace(modified_ns=1_700_000_000_123_456_789)
    path = source.root / "f"
    path.rename(source.root / "old")  # so that its inode is not reused
    if change == "longer":
        path.write_bytes(data + b"three\n")
    with pytest.raises(FileChanged) as raised:
        values(source.reading(), [whole(file)])
    path.write_bytes(data)
    command = re.search(r"`(touch -d \S+)`", str(raised.value))
    assert command is not None
    subprocess.run([*command[1].split(), str(path)], check=True)
    assert path.stat().st_ino != int(file.identity)
    assert values(source.reading(), [whole(file)]) == ["one", "two"]


def test_file_that_changes_while_it_is_read_fails(source: Input) -> None:
    """HZ-14: the version is checked after the last byte, too."""
    file = source.put("f", b"x" * 100 + b"\n")
    batches = source.reading().batches([whole(file), whole(file)])
    (source.root / "f").write_bytes(b"y" * 200)
    with pytest.raises(FileChanged):
        list(batches)


def test_json_records(source: Input) -> None:
    """JSON lines in any ranges become typed rows."""
    data = b"".join(json.dumps({"id": i, "name": f"n{i}"}).encode() + b"\n" for i in range(50))
    file, reading = source.put("f", data), source.reading("json", ROWS)
    for at in range(0, len(data), 37):
        assert [v for s in cut(file, [at]) for v in values(reading, [s], "id")] == list(range(50))


def test_csv_with_quotes_over_lines(source: Input) -> None:
    """CSV is cut only between records: quoted line breaks and quotes are data, wherever a task's share begins."""
    rows = [(i, f'say "{i}",\nagain' if i % 3 else "plain") for i in range(40)]
    data = b"id,name\n" + b"".join(f'{i},"{n.replace(chr(34), chr(34) * 2)}"\n'.encode() for i, n in rows)
    file, reading = source.put("f", data), source.reading("csv", ROWS, csv=Dialect(header=True))
    for target in range(1, len(data), 11):
        at = reading.boundary(file, 0, target)
        found = [b.to_pylist() for s in cut(file, [at]) for b in reading.batches([s])]
        assert [(r["id"], r["name"]) for batch in found for r in batch] == rows


def test_csv_of_other_separators_and_blank_lines_before_the_header(source: Input) -> None:
    """A quoted line break is data with every separator; blank lines before the header are skipped."""
    for name, pack in (("f.csv", bytes), ("g.csv.gz", gzip.compress)):
        file = source.put(name, pack(b'\r\n\nid;name\n1;"a;\nb"\n2;c\n'))
        reading = source.reading("csv", ROWS, csv=Dialect(sep=";", header=True))
        assert values(reading, [whole(file)], "name") == ["a;\nb", "c"]


def test_open_quote_is_named_with_its_place(source: Input) -> None:
    """A quote that is never closed is a bad record of its file, at the byte where its record begins."""
    file = source.put("f.csv", b'1,a\n2,"b\n3,c\n')
    with pytest.raises(BadRecord) as raised:
        values(source.reading("csv", ROWS), [whole(file)], "id")
    assert (raised.value.path, raised.value.offset) == (f"{source.root}/f.csv", 4)


def test_csv_headers_of_several_files(source: Input) -> None:
    """Each file's own header is skipped, also if files are joined or compressed."""
    files = [
        source.put("a", b"id,name\n1,x\n"),
        source.put("b", b"id,name\n"),
        source.put("c.gz", gzip.compress(b"id,name\n2,y")),
    ]
    assert values(source.reading("csv", ROWS, csv=Dialect(header=True)), [whole(f) for f in files], "id") == [1, 2]


def test_parquet_by_ranges(source: Input) -> None:
    """Row groups belong to the range in which they begin; a file that is not Parquet is an error with its name."""
    table = pa.table({"id": list(range(1000)), "name": ["x"] * 1000})
    pq.write_table(table, source.root / "f", row_group_size=100)
    file = source.put("f", (source.root / "f").read_bytes())
    reading = source.reading("parquet", ROWS)
    for parts in (1, 2, 7):
        at = [file.size * i // parts for i in range(parts)]
        assert [v for s in cut(file, at) for v in values(reading, [s], "id")] == list(range(1000))
    with pytest.raises(BadFile, match="/bad'"):
        values(reading, [whole(source.put("bad", b"not parquet at all"))], "id")


def test_binary_files_and_blocks(source: Input) -> None:
    """IBM-9: a binary file is one value, or its blocks; blocks belong to the range in which they begin."""
    data = bytes(range(256)) * 4 + b"tail"
    file, schema = source.put("f", data), pa.schema([("value", pa.binary())])
    assert values(source.reading("binary", schema), [whole(file)]) == [data]
    reading = source.reading("binary", schema, block_size=100)
    blocks = [data[i : i + 100] for i in range(0, len(data), 100)]
    for at in (1, 99, 100, 101, 555):
        assert [v for s in cut(file, [at]) for v in values(reading, [s])] == blocks


def test_metadata_of_records(source: Input) -> None:
    """The metadata column says which file, version and byte a line came from, in every range."""
    file = source.put("f", b"a\r\nbb\rccc\n\nd")
    reading = source.reading(metadata="m")
    for at in range(file.size):
        rows = [row for s in cut(file, [at]) for batch in reading.batches([s]) for row in batch.to_pylist()]
        assert [(r["value"], r["m"]["offset"]) for r in rows] == [("a", 0), ("bb", 3), ("ccc", 6), ("", 10), ("d", 11)]
        assert {(r["m"]["path"], r["m"]["size"]) for r in rows} == {(f"{source.root}/f", 12)}


@pytest.mark.parametrize(
    ("fmt", "data", "expected"),
    [
        ("json", b'{"a": 1}\n\n  \n {"a": 2}\r\n{"a": 3}', [(1, 0), (2, 13), (3, 24)]),
        ("csv", b'1,"x\ny"\n\n2,z\n\r\n3,"""\r\n"\n', [(1, 0), (2, 9), (3, 15)]),
        ("csv", b"\xef\xbb\xbf1,x\n2,z\n", [(1, 3), (2, 7)]),
    ],
)
def test_metadata_of_parsed_records(source: Input, fmt: str, data: bytes, expected: list[tuple[int, int]]) -> None:
    """Parsed records have their byte offset, too; blank lines are no records and shift no offset."""
    file = source.put("f", data)
    schema = pa.schema([("a", pa.int64())] + [("b", pa.string())] * (fmt == "csv"))
    reading = source.reading(fmt, schema, metadata="m")
    rows = [row for batch in reading.batches(cut(file, [])) for row in batch.to_pylist()]
    assert [(row["a"], row["m"]["offset"]) for row in rows] == expected


def test_real_logs_line_by_line(source: Input, loghub: Path) -> None:
    """Real logs (CRLF, lone CR, no final newline) give the lines that Python's universal newlines give, in any ranges."""
    for path in sorted(loghub.glob("*.log")):
        data = path.read_bytes()
        expected = data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")
        file = source.put(path.name, data)
        splits = cut(file, [file.size * i // 17 for i in range(17)])
        assert [v for s in splits for v in values(source.reading(), [s])] == expected


def test_blocks_on_hdfs_are_not_copied_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """HDFS keeps its stream full for a reader that reads on: each block is one read's bytes, not a copy of several."""
    line = b"x" * 1000 + b"\n"
    storage = CrashHdfs().storage()
    storage.make_directory("/in")
    with storage.create("/in/a") as file:
        file.write(line * 40_000)
    read, asked = HdfsReadHandle.read, []

    def noting(handle: HdfsReadHandle, offset: int, length: int) -> bytes:
        asked.append((offset, length))
        return read(handle, offset, length)

    monkeypatch.setattr(HdfsReadHandle, "read", noting)
    entry = storage.stat("/in/a")
    split = Split(FileVersion("a", entry.size, entry.modified_ns, entry.identity), 0, entry.size)
    batches = Reading(storage, "/in", ReadFormat("text", TEXT), None, ("value",)).batches([split])
    assert sum(batch.num_rows for batch in batches) == 40_000
    blocks = [(offset, length) for offset, length in asked if length >= 1_000_000]
    assert sum(length for _, length in blocks) == entry.size
    assert all(offset % len(line) == length % len(line) == 0 for offset, length in blocks)
