"""What a task reads of its splits: every record once, or a named failure. Without Spark."""

from __future__ import annotations

import bz2
import gzip
import json
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

from penstock.errors import BadFile, BadRecord, FileChanged
from penstock.formats import ReadFormat
from penstock.options import SOURCE, parse
from penstock.source.cursor import FileVersion, Split
from penstock.source.plan import Planner
from penstock.source.read import Reading
from penstock.spark import reading
from penstock.storage import LocalStorage

TIMES: dict[str, Any] = {"listed": 0, "sure": 0, "sum": ""}  # in place of what is another in each driver
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
    """A directory of input files and readings of it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, name: str, data: bytes) -> FileVersion:
        """Write a file; return the version that a plan would hold."""
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
    """Return the values of a column, as they are read."""
    return [v for batch in reading.batches(splits) for v in batch.column(column).to_pylist()]


def whole(file: FileVersion) -> Split:
    """Return the split that is all of the file."""
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
    """HZ-23: cut anywhere, into two or many ranges, read in one task or in several: the same lines."""
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
    """HZ-23: a range behind byte 2^31 is found, and its records say where they begin."""
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
    """IBM-8, IBM-9: 100 records of 100 KiB in batches that cut them, each batch read twice, the second time by a new driver."""
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


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 16, 61, 1000])
@pytest.mark.parametrize("split", [1, 5, 40, 1000])
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
    """HZ-23, APX-35: whatever a batch and a task may hold, with a new driver a batch: each record once, in order."""
    source.put("1", (head + end.join(records[:4])).encode())
    source.put("2", b"")
    source.put("3", (head + end.join(records[4:]) + end).encode())
    source.put("4.gz", gzip.compress((head + end.join(records) + end).encode()))
    source.put("5", head.encode())
    for name in "123":
        os.utime(source.root / name, (int(name), int(name)))
    os.utime(source.root / "4.gz", (4, 4))
    reading = source.reading(fmt, ROWS, header=head.strip("\ufeff").startswith("id"))
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


@settings(max_examples=150)
@given(
    lines=st.lists(st.text('ab\r\n\u00fc\0"', max_size=6), max_size=8), cuts=st.lists(st.integers(0, 60), max_size=5)
)
def test_any_text_in_any_ranges(tmp_path_factory: pytest.TempPathFactory, lines: list[str], cuts: list[int]) -> None:
    """Random lines with random ends in random ranges: the ranges together are the whole."""
    source = Input(tmp_path_factory.mktemp("x"))
    file, reading = source.put("f", "\n".join(lines).encode()), source.reading()
    splits = cut(file, cuts)
    assert [v for split in splits for v in values(reading, [split])] == values(reading, [whole(file)])


def test_small_files_keep_apart(source: Input) -> None:
    """Files that are joined into one block stay apart: one that ends with CR and one that begins with LF too."""
    files = [source.put(f"f{i}", data) for i, data in enumerate([b"a\r", b"\nb", b"", b"c\n", b"d"])]
    assert values(source.reading(), [whole(f) for f in files]) == ["a", "", "b", "c", "d"]
    assert b"".join(source.reading().text([whole(f) for f in files])) == b"a\n\nb\nc\nd\n"


def test_line_separator_of_several_bytes(source: Input) -> None:
    """lineSep may be any bytes, and is then the only one."""
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
    """HZ-24: a gz file that was cut is an error with its name, never fewer lines."""
    file = source.put("f.gz", gzip.compress(b"line\n" * 1000)[:-20])
    with pytest.raises(BadFile, match=r"f\.gz"):
        values(source.reading(), [whole(file)])


def test_bomb_is_an_error(source: Input) -> None:
    """A file that expands beyond all measure is refused while it is read, in bounded memory."""
    file = source.put("f.zst", zstandard.compress(b"\0" * (1 << 28)))
    with pytest.raises(BadFile, match=r"f\.zst"):
        values(source.reading(), [whole(file)])


@pytest.mark.parametrize("encoding", ["iso8859-1", "utf-16", "utf-16-le", "shift_jis"])
def test_encodings(source: Input, encoding: str) -> None:
    """Text of another encoding is read as UTF-8; what cannot be cut by bytes is read whole."""
    lines = ["äöü", "x"] if encoding != "shift_jis" else ["日本", "x"]
    file = source.put("f", "\n".join(lines).encode(encoding))
    reading = source.reading(encoding=encoding)
    assert values(reading, [whole(file)]) == lines
    assert reading.divisible("f") == (not encoding.startswith("utf-16"))


def test_invalid_utf8_is_named_with_its_place(source: Input) -> None:
    """A line that is not UTF-8 fails with its file and the byte at which it begins, also through plain text."""
    source.put("a", b"fine\n")
    good, bad = source.put("good", b"fine\n"), source.put("bad", b"one\ntwo \xff\xfe\nthree\n")
    for read in (source.reading().batches, source.reading().text):
        with pytest.raises(BadRecord, match="byte 4") as raised:
            list(read([whole(good), whole(bad)]))
        assert (raised.value.path, raised.value.offset) == (f"{source.root}/bad", 4)


def test_files_as_rows_are_whole(source: Input) -> None:
    """With emit=files a byte limit cuts no file: each batch has the rows of its files, and none is without rows."""
    for name in "abc":
        source.put(name, b"x" * 100)
        os.utime(source.root / name, (1000, 1000))
    options = parse(
        SOURCE,
        {"path": str(source.root), "emit": "files", "maxBytesPerTrigger": "30", "splitSize": "10"},
        what="source",
    )
    how = reading.reading(options, FILES_JSON)
    planner = reading.planner(options, how)
    at, found = planner.initial(), []
    while (end := planner.latest(at)) != at:
        tasks = planner.tasks(end)
        found.append(
            [v for task in tasks for b in reading.rows(options, how, tuple(task)) for v in b["path"].to_pylist()]
        )
        at = end
    assert found == [[f"{source.root}/{name}"] for name in "abc"]


def test_bad_json_is_named_with_its_place(source: Input) -> None:
    """A malformed record in the second of two joined files is named by that file and its own offset."""
    good = source.put("good", b'{"id": 1}\n')
    bad = source.put("bad", b'{"id": 2}\n{"id": }\n{"id": 3}\n')
    reading = source.reading("json", ROWS)
    with pytest.raises(BadRecord) as raised:
        values(reading, [whole(good), whole(bad)], "id")
    assert (raised.value.path, raised.value.offset) == (f"{source.root}/bad", 10)


@pytest.mark.parametrize("change", ["grow", "shrink", "touch", "delete"])
def test_changed_files_fail(source: Input, change: str) -> None:
    """HZ-14..18: a file that is not the planned version any more fails by name, with what changed."""
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
    """PST-203's advice, followed: a copy from a backup that kept no time, put back with `touch -d`, is read; its inode is another."""
    data = b"one\ntwo\n"
    file = source.put("f", data)
    os.utime(source.root / "f", ns=(1_700_000_000_123_456_789,) * 2)
    file = replace(file, modified_ns=1_700_000_000_123_456_789)
    path = source.root / "f"
    path.rename(source.root / "old")  # so that its inode is not given again
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
    """HZ-14: the version is checked behind the last byte too."""
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
    """CSV is cut between records only: line breaks and quotes inside quotes are data, wherever a task's share begins."""
    rows = [(i, f'say "{i}",\nagain' if i % 3 else "plain") for i in range(40)]
    data = b"id,name\n" + b"".join(f'{i},"{n.replace(chr(34), chr(34) * 2)}"\n'.encode() for i, n in rows)
    file, reading = source.put("f", data), source.reading("csv", ROWS, header=True)
    for target in range(1, len(data), 11):
        at = reading.boundary(file, 0, target)
        found = [b.to_pylist() for s in cut(file, [at]) for b in reading.batches([s])]
        assert [(r["id"], r["name"]) for batch in found for r in batch] == rows


def test_csv_of_other_separators_and_blank_lines_before_the_header(source: Input) -> None:
    """A quoted line break is data with every separator; blank lines before the header are not the header."""
    for name, pack in (("f.csv", bytes), ("g.csv.gz", gzip.compress)):
        file = source.put(name, pack(b'\r\n\nid;name\n1;"a;\nb"\n2;c\n'))
        reading = source.reading("csv", ROWS, header=True, sep=";")
        assert values(reading, [whole(file)], "name") == ["a;\nb", "c"]


def test_open_quote_is_named_with_its_place(source: Input) -> None:
    """A quote that is never closed is a bad record of its file, at the byte where the record begins."""
    file = source.put("f.csv", b'1,a\n2,"b\n3,c\n')
    with pytest.raises(BadRecord) as raised:
        values(source.reading("csv", ROWS), [whole(file)], "id")
    assert (raised.value.path, raised.value.offset) == (f"{source.root}/f.csv", 4)


def test_csv_headers_of_several_files(source: Input) -> None:
    """Each file's own header is skipped, also when files are joined or compressed."""
    files = [
        source.put("a", b"id,name\n1,x\n"),
        source.put("b", b"id,name\n"),
        source.put("c.gz", gzip.compress(b"id,name\n2,y")),
    ]
    assert values(source.reading("csv", ROWS, header=True), [whole(f) for f in files], "id") == [1, 2]


def test_parquet_by_ranges(source: Input) -> None:
    """Row groups belong to the range in which they begin; a file that is not Parquet is named."""
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
    """Also parsed records say at which byte they begin; blank lines are no records and shift nothing."""
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
