"""Files named by rows: every record of each file once, beside its row, or a named failure. Without Spark."""

from __future__ import annotations

import gzip
import json
import os
import random
import unicodedata
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import BadFile, BadRecord, DamagedState, FileChanged, OptionError
from penstock.formats.schema import to_spark
from penstock.source import looking
from penstock.source.named import NamedFiles, NamingColumns
from penstock.source.pinned import Moment, Pins, pins
from penstock.source.small import SMALL_BYTES
from penstock.storage import LocalStorage, ObjectStorage
from penstock.storage._local import LocalReadHandle
from tests.support.keys import READER_KEY, encrypted
from tests.support.storage_contract import put
from tests.support.stores import Relay

Form: TypeAlias = Literal["NFC", "NFD"]
TEXT = pa.schema([("value", pa.string())])
ROWS = pa.schema([("id", pa.int64()), ("name", pa.string())])
BAD_FIELD = pa.field(
    "_bad",
    pa.struct([("path", pa.string()), ("offset", pa.int64()), ("record", pa.binary()), ("reason", pa.string())]),
)


class Names:
    """A directory of files, rows that name them, and the result of reading them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = root / "files"
        self.files.mkdir()

    def put(self, name: str, data: bytes) -> str:
        """Write a file; return its path."""
        path = self.files / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return str(path)

    def moment(self, *, run: str = "run", batch: int = 7, partition: int = 0) -> Pins:
        """Return the notes of a task."""
        return pins((LocalStorage(), str(self.root / "notes")), Moment("query", batch, partition, run))

    def splits(self, files: NamedFiles, rows: list[dict[str, Any]], notes: Pins | None = None) -> list[pa.RecordBatch]:
        """Return the splits of rows that have all these columns."""
        fields = [("path", pa.string()), ("start", pa.int64()), ("end", pa.int64()), ("size", pa.int64())]
        schema = pa.schema(
            [*fields, ("modified", pa.timestamp("us", tz="UTC")), ("identity", pa.string()), ("k", pa.int64())]
        )
        batch = pa.RecordBatch.from_pylist(rows, schema=schema)
        return list(looking.splits(files, [batch], notes, keep=True, replays=notes is not None))

    def read(self, files: NamedFiles, rows: list[dict[str, Any]], notes: Pins | None = None) -> list[dict[str, Any]]:
        """Return the records of the files that the rows name, with the column `k` of their rows."""
        return [
            {"k": kept, **{name: value for name, value in row.items() if not name.startswith("c")}}
            for batch in files.records(self.splits(files, rows, notes))
            for row, kept in zip(batch.to_pylist(), batch.column("c6").to_pylist(), strict=True)
        ]


@pytest.fixture
def names(tmp_path: Path) -> Names:
    return Names(tmp_path)


def reading(schema: pa.Schema = TEXT, fmt: str = "text", **options: Any) -> NamedFiles:
    """Return the reader of files whose rows have all columns that matter."""
    return NamedFiles.of({"format": fmt, **options}, to_spark(schema), NamingColumns(0, 1, 2, 3, 4, 5))


def aside(fmt: str = "text", schema: pa.Schema = TEXT, **options: Any) -> NamedFiles:
    """Return the same, with everything that can be set aside put into a column."""
    asked = {"badFiles": "quarantine", "changedFiles": "quarantine", "badRecordColumn": "_bad"}
    return reading(schema.append(BAD_FIELD), fmt, **asked, **options)


def test_each_record_stands_beside_its_row(names: Names) -> None:
    """IBM-5: small files parsed together, an empty one, one without a final line end: each record has the columns of its own row."""
    rows = []
    expected = []
    for k in range(300):
        lines = [f"{k}-{line}" for line in range(k % 4)]
        rows.append({"path": names.put(f"{k}.txt", "\n".join(lines).encode()), "k": k})
        expected += [{"k": k, "value": line} for line in lines]
    files = reading()
    assert names.read(files, rows) == expected
    rows = rows[1::2] + rows[::2]
    assert sorted(names.read(files, rows), key=str) == sorted(expected, key=str)


@pytest.mark.parametrize("fmt", ["json", "csv", "parquet"])
def test_other_formats_stand_beside_their_rows(names: Names, fmt: str) -> None:
    """Records of json, csv and tables have the columns of their rows, also if blank lines, which are no records, lie between them."""
    rows, expected = [], []
    for k in range(5):
        table = [{"id": k * 10 + n, "name": f"ü{n}"} for n in range(k)]
        path = f"{k}.{fmt}"
        if fmt == "parquet":
            pq.write_table(pa.Table.from_pylist(table, ROWS), names.files / path)
            path = str(names.files / path)
        elif fmt == "json":
            path = names.put(path, "\n\n".join(json.dumps(row) for row in table).encode())
        else:
            path = names.put(path, "".join(f'{row["id"]},"{row["name"]}"\n' for row in table).encode())
        rows.append({"path": path, "k": k})
        expected += [{"k": k, **row} for row in table]
    assert names.read(reading(ROWS, fmt), rows) == expected


def test_without_the_columns_of_the_rows(names: Names) -> None:
    """If the input columns are not kept, the output has only the columns of the records."""
    files = reading()
    path = names.put("a", b"one\ntwo\n")
    batch = pa.RecordBatch.from_arrays([pa.array([path])], names=["c0"])
    files = NamedFiles.of({"format": "text"}, to_spark(TEXT), NamingColumns(0))
    batches = list(files.records(looking.splits(files, [batch], None, keep=False, replays=False)))
    assert [batch.to_pydict() for batch in batches] == [{"value": ["one", "two"]}]


@pytest.mark.parametrize("fmt", ["text", "csv"])
def test_a_large_file_is_cut_and_no_record_is_lost(names: Names, fmt: str) -> None:
    """A file many times larger than splitSize makes as many splits, which yield its records once; also CSV with quoted line breaks."""
    records = [f'{n},"a\nb{n}"' if fmt == "csv" else f"{n} line" for n in range(5000)]
    path = names.put("big", "".join(f"{record}\n" for record in records).encode())
    files = reading(ROWS if fmt == "csv" else TEXT, fmt, splitSize="8k")
    [batch] = names.splits(files, [{"path": path, "k": 1}])
    assert batch.num_rows > 5
    spread = [batch.slice(place, 1) for place in range(batch.num_rows)]
    lines = [row for part in spread for found in files.records([part]) for row in found.to_pylist()]
    expected = [{"id": n, "name": f"a\nb{n}"} for n in range(5000)] if fmt == "csv" else [{"value": r} for r in records]
    assert [{name: row[name] for name in expected[0]} for row in lines] == expected


def test_ranges_that_lie_edge_to_edge(names: Names) -> None:
    """Rows name adjacent ranges of one file, cut anywhere: each record comes once, beside the row of the range in which it begins."""
    for fmt, schema, data in (
        ("text", TEXT, b"".join(b"line %d\n" % n for n in range(200))),
        ("csv", ROWS, b"".join(b'%d,"x\ny"\n' % n for n in range(200))),
    ):
        path = names.put(f"f.{fmt}", data)
        cuts = [0, 1, 7, 8, 500, 501, 1000, len(data) - 1, len(data)]
        rows = [{"path": path, "start": a, "end": b, "k": k} for k, (a, b) in enumerate(pairwise(cuts))]
        rows[0]["start"] = rows[-1]["end"] = None
        whole = names.read(reading(schema, fmt), [{"path": path, "k": 0}])
        parts = names.read(reading(schema, fmt), rows)
        assert [{**row, "k": 0} for row in parts] == whole
        assert [row["k"] for row in parts] == sorted(row["k"] for row in parts)


def test_many_ranges_of_quoted_records_are_found_in_one_reading(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a CSV range begins depends on all quotes before it: 400 ranges read the file once per batch, not 800 times."""
    data = b"".join(b'%d,"x\ny"\n' % n for n in range(1000))
    path = names.put("f.csv", data)
    cuts = [*range(0, len(data), len(data) // 400), len(data)]
    rows = [{"path": path, "start": a, "end": b, "k": a} for a, b in pairwise(cuts)]
    random.Random(1).shuffle(rows)  # noqa: S311 - repeatable, not secret
    files = reading(ROWS, "csv")
    lengths: list[int] = []
    read = LocalReadHandle.read

    def counted(self: LocalReadHandle, offset: int, length: int) -> bytes:
        data = read(self, offset, length)
        lengths.append(len(data))
        return data

    with monkeypatch.context() as patch:
        patch.setattr(LocalReadHandle, "read", counted)
        splits = [*names.splits(files, rows[:200]), *names.splits(files, rows[200:])]
    assert sum(lengths) <= 2 * len(data) + 100, "the file once a batch, and its first bytes"
    found = [row for batch in files.records(splits) for row in batch.to_pylist()]
    assert sorted(row["id"] for row in found) == list(range(1000))
    begins = {n: data.index(b'%d,"' % n if not n else b'\n%d,"' % n) + bool(n) for n in range(1000)}
    assert all(row["c6"] <= begins[row["id"]] < row["c6"] + len(data) // 400 for row in found)


def test_files_that_several_rows_name_are_read_together(names: Names) -> None:
    """Rows name four ranges of each file, with missing files between: files are read together, but no file twice in one run."""
    rows, expected = [], []
    for k in range(0, 400, 4):
        path = names.put(f"{k}.txt", b"0\n1\n2\n3\n")
        rows += [{"path": path, "start": 2 * n, "end": 2 * n + 2, "k": k + n} for n in range(4)]
        rows.append({"path": str(names.files / f"gone{k}"), "k": -1})
        expected += [(k + n, str(n)) for n in range(4)]
    files = aside()
    found = [batch for batch in files.records(names.splits(files, rows)) if batch.column("_bad").null_count]
    lines = [line for batch in found for line in batch.to_pylist()]
    assert sorted((line["c6"], line["value"]) for line in lines) == expected
    assert len(found) == 4, "a run for each time that a file is named again"


@pytest.mark.parametrize(
    ("span", "message"),
    [((5, 4), "names the bytes 5 to 4"), ((-1, 4), "names the bytes -1 to 4"), ((0, 999), "and the file has 8")],
)
def test_a_range_that_is_none(names: Names, span: tuple[int, int], message: str) -> None:
    """A range that goes back, begins before the file or ends after it is refused, or set aside if that is requested."""
    row = {"path": names.put("a", b"one\ntwo\n"), "start": span[0], "end": span[1], "k": 3}
    with pytest.raises(BadFile, match=message):
        names.read(reading(), [row])
    [bad] = names.read(aside(), [row])
    assert (bad["k"], bad["value"], bad["_bad"]["path"]) == (3, None, row["path"])
    assert message in bad["_bad"]["reason"]


def test_a_range_of_what_can_only_be_read_whole(names: Names) -> None:
    """A range of a compressed file is refused by its row, and not read as the whole file."""
    path = names.put("a.gz", gzip.compress(b"one\ntwo\n"))
    assert [row["value"] for row in names.read(reading(), [{"path": path, "k": 0}])] == ["one", "two"]
    with pytest.raises(BadFile, match="can only be read whole"):
        names.read(reading(), [{"path": path, "start": 3, "end": None, "k": 0}])


def bad_names(names: Names) -> dict[str, tuple[str | None, str]]:
    """Return rows that name no readable file, and the error message for each."""
    (names.files / "folder").mkdir()
    os.mkfifo(names.files / "pipe")
    os.symlink(names.files / "nowhere", names.files / "dangling")
    os.symlink(names.files / "loop", names.files / "loop")
    file = names.put("file", b"x\n")
    folder = str(names.files)
    return {
        "missing": (f"{folder}/missing", "does not exist"),
        "directory": (f"{folder}/folder", "is a directory"),
        "pipe": (f"{folder}/pipe", "is a pipe"),
        "dangling link": (f"{folder}/dangling", "does not exist"),
        "loop of links": (f"{folder}/loop", "does not exist"),
        "below a file": (f"{file}/x", "does not exist"),
        "too long": (f"{folder}/{'x' * 300}", "does not exist"),
        "null": (None, "its path is null"),
        "empty": ("", "is not a path"),
        "nul byte": (f"{folder}/a\0b", "is not a path"),
        "relative": ("file", "is relative"),
        "relative behind a scheme": ("file:file", "is relative"),
        "relative behind another": ("hdfs:file", "is relative"),
        "unknown storage": ("gopher://host/file", "is not a file system"),
        "no default cluster": ("hdfs:/file", "expected a host and port"),
        "another host": ("file://elsewhere/file", "is on the host"),
    }


def test_what_names_no_file(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories, pipes, dangling links, invalid names: each fails by name, or is set aside beside its row, and the others are read."""
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    rows = bad_names(names)
    good = names.put("good", b"good\n")
    for case, (path, message) in rows.items():
        with pytest.raises(BadFile, match=message):
            names.read(reading(), [{"path": path, "k": 0}])
        records = names.read(aside(), [{"path": good, "k": 1}, {"path": path, "k": 2}, {"path": good, "k": 3}])
        assert sorted((row["k"], row["value"]) for row in records if row["value"]) == [(1, "good"), (3, "good")], case
        [bad] = [row for row in records if row["_bad"]]
        assert bad["k"] == 2, case
        assert message in bad["_bad"]["reason"], case


@pytest.mark.parametrize(("written", "named"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_a_name_that_only_looks_like_that_of_a_file(names: Names, written: Form, named: Form) -> None:
    """What macOS writes as two characters most others write as one: which of both there is, is told in letters that differ."""
    there, other = (unicodedata.normalize(form, "Z\u00fcrich.log") for form in (written, named))
    names.put(there, b"x\n")
    with pytest.raises(BadFile, match="does not exist: expected the name of the file that looks the same") as caught:
        names.read(reading(), [{"path": str(names.files / other), "k": 0}])
    assert f"{there!a}; the row has " in caught.value.message.replace(str(names.files)[1:] + "/", "")
    assert ascii(other)[1:] in caught.value.message
    with pytest.raises(BadFile, match="expected a file to read; have it come before its name"):
        names.read(reading(), [{"path": str(names.files / "\u00e9"), "k": 0}])


def test_credentials_in_a_name_are_not_told(names: Names) -> None:
    """A name with a password, where none is expected, is refused without showing it: logs and rejected records outlive the row."""
    for name in ("s3://key:hunter2@bucket/file", "abfss://user:hunter2@host/file", "hdfs://user:hunter2@host/file"):
        with pytest.raises(BadFile, match=r"\*\*\*@") as caught:
            names.read(reading(), [{"path": name, "k": 0}])
        assert "hunter2" not in str(caught.value), name


def test_nothing_leads_out_of_base_path(names: Names) -> None:
    """With basePath neither `..`, an absolute path, another storage nor a link leads outside; a link within it is followed."""
    secret = names.root / "secret"
    secret.write_text("secret\n")
    names.put("in", b"in\n")
    os.symlink(secret, names.files / "out")
    os.symlink(names.root, names.files / "up")
    os.symlink("in", names.files / "alias")
    files = reading(basePath=str(names.files))
    for path in (
        "../secret",
        str(secret),
        "out",
        "up/secret",
        "file:" + str(secret),
        "hdfs://host/secret",
        "a/../../secret",
    ):
        with pytest.raises(BadFile, match="leads out of"):
            names.read(files, [{"path": path, "k": 0}])
    for path in ("in", "alias", "x/../in", str(names.files / "in"), f"file://{names.files}/in"):
        assert names.read(files, [{"path": path, "k": 0}]) == [{"k": 0, "value": "in"}]
    allowed = reading(basePath=str(names.files), followSymlinks=True)
    assert names.read(allowed, [{"path": "out", "k": 0}]) == [{"k": 0, "value": "secret"}]


def test_a_name_below_base_path_is_taken_as_it_stands(names: Names) -> None:
    """The name of a file is no address, whatever it begins with, and its escapes stay; only those of a `file:` URL are decoded."""
    files = reading(basePath=str(names.files))
    odd = [
        "file:x",
        "hdfs:x",
        "s3:x",
        "a%20b",
        "a b",
        "a#b?c",
        "line\nbreak",
        " blank ",
        "cafe\u0301",
        "caf\u00e9",
        "\U0001f600",
    ]
    for number, name in enumerate(odd):
        path = names.put(name, f"{number}\n".encode())
        for written in (name, path, f"file://{quote(path)}"):
            assert names.read(files, [{"path": written, "k": 0}]) == [{"k": 0, "value": str(number)}], written


def test_a_store_is_asked_about_many_files_at_a_time(names: Names, relay: Relay) -> None:
    """A store is asked about many files at once, not about one after another; each row gets its own file, or its own error."""
    storage = ObjectStorage("s3://bucket")
    paths = [f"s3://bucket/{names.root.name}/{number}" for number in range(20)]
    for number, path in enumerate(paths):
        put(storage, path, f"{number}\n".encode())
    missing = f"{paths[0]}-missing"
    relay.waits_seconds, relay.at_a_time = 0.05, 0
    splits = names.splits(aside(), [{"path": path, "k": k} for k, path in enumerate([*paths, missing, "relative"])])
    assert relay.at_a_time >= 10
    records = [row for batch in aside().records(splits) for row in batch.to_pylist()]
    assert sorted((row["c6"], row["value"]) for row in records if row["_bad"] is None) == [
        (k, str(k)) for k in range(20)
    ]
    bad = {row["c6"]: row["_bad"]["reason"] for row in records if row["_bad"]}
    assert bad.keys() == {20, 21}
    assert f"{missing!r} does not exist" in bad[20]
    assert "is relative" in bad[21]


def test_a_link_swapped_in_after_the_look(names: Names) -> None:
    """A link that replaces a file between the check and the read is not followed."""
    secret = names.root / "secret"
    secret.write_text("abc\n")
    path = names.put("in", b"xyz\n")
    files = reading(basePath=str(names.files))
    splits = names.splits(files, [{"path": "in", "k": 0}])
    info = os.stat(path)
    os.utime(secret, ns=(info.st_atime_ns, info.st_mtime_ns))
    os.remove(path)
    os.symlink(secret, path)
    with pytest.raises(FileChanged):
        list(files.records(splits))


def test_partitions_below_base_path(names: Names) -> None:
    """Directories `k=v` below basePath are columns of their files, beside the columns of the row."""
    schema = pa.schema([("value", pa.string()), ("day", pa.string())])
    for day in ("mon", "tue"):
        names.put(f"day={day}/a", f"{day} line\n".encode())
    files = reading(schema, basePath=str(names.files))
    rows = [{"path": f"day={day}/a", "k": k} for k, day in enumerate(["tue", "mon"])]
    assert names.read(files, rows) == [
        {"k": 0, "value": "tue line", "day": "tue"},
        {"k": 1, "value": "mon line", "day": "mon"},
    ]
    with pytest.raises(OptionError, match="needs basePath"):
        reading(schema, partitionColumns="auto")


def test_encrypted_files_that_rows_name(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that ends in `.age` is read with `decryptionKey`, also if a row names it."""
    monkeypatch.setenv("NAMED_KEY", READER_KEY)
    row = {"path": names.put("a.txt.age", encrypted(b"one\ntwo\n")), "k": 0}
    read = names.read(reading(decryptionKey="env:NAMED_KEY"), [row])
    assert [record["value"] for record in read] == ["one", "two"]


@pytest.mark.parametrize("form", ["text", "csv"])
def test_a_range_of_an_encrypted_file(names: Names, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """A range of cipher text has no records: the row is refused, and no record is searched for in the range."""
    monkeypatch.setenv("NAMED_KEY", READER_KEY)
    path = names.put("a.age", encrypted(b"".join(b"%d\n" % number for number in range(50))))
    size = os.path.getsize(path)
    files = reading(TEXT, form, decryptionKey="env:NAMED_KEY")
    assert len(names.read(files, [{"path": path, "start": 0, "end": size, "k": 0}])) == 50
    for start, end in ((0, size - 1), (1, size), (0, 100), (100, size), (size, size), (0, 0)):
        with pytest.raises(BadFile, match="can only be read whole; leave start and end null"):
            names.splits(files, [{"path": path, "start": start, "end": end, "k": 0}])


def version(path: str) -> dict[str, Any]:
    """Return what a row of `emit=files` says about a file."""
    info = os.stat(path)
    moment = datetime.fromtimestamp(info.st_mtime_ns // 10**9, timezone.utc)
    return {
        "path": path,
        "size": info.st_size,
        "modified": moment.replace(microsecond=info.st_mtime_ns // 1000 % 10**6),
    }


def test_a_version_that_a_row_names(names: Names) -> None:
    """Size and time in a row must match: another version fails by name, or is set aside; null means any."""
    row = version(names.put("a", b"one\n")) | {"k": 1}
    assert names.read(reading(), [row]) == [{"k": 1, "value": "one"}]
    assert names.read(reading(), [row | {"size": None, "modified": None}]) == [{"k": 1, "value": "one"}]
    for change, message in (
        ({"size": 5}, "size 4, 5 in its row"),
        ({"modified": datetime(2020, 1, 1, tzinfo=timezone.utc)}, "time"),
    ):
        with pytest.raises(FileChanged, match=message):
            names.read(reading(), [row | change])
        [bad] = names.read(aside(), [row | change])
        assert bad["k"] == 1
        assert message in bad["_bad"]["reason"]


def test_a_file_that_changes_before_it_is_read(names: Names) -> None:
    """A file that is rewritten between the check and the read fails by name."""
    path = names.put("a", b"one\n")
    files = reading()
    splits = names.splits(files, [{"path": path, "k": 0}])
    names.put("a", b"other\n")
    with pytest.raises(FileChanged, match="size 6, planned 4"):
        list(files.records(splits))


@pytest.mark.parametrize(("fmt", "schema", "start"), [("text", TEXT, None), ("csv", ROWS, None), ("csv", ROWS, 1)])
def test_a_file_that_shrinks_while_it_is_read(
    names: Names, monkeypatch: pytest.MonkeyPatch, fmt: str, schema: pa.Schema, start: int | None
) -> None:
    """A file is truncated while it is open, to find the beginning of a range or to read: it fails by name; a small file takes one read."""
    path = names.put("a", b"1,x\n2,y\n" * (SMALL_BYTES // 8 + 1))
    read = LocalReadHandle.read

    def cut(self: LocalReadHandle, offset: int, length: int) -> bytes:
        os.truncate(path, 0)
        return read(self, offset, length)

    monkeypatch.setattr(LocalReadHandle, "read", cut)
    with pytest.raises(FileChanged, match=f"{path}.*the file has shrunk.*start again"):
        names.read(reading(schema, fmt), [{"path": path, "start": start, "k": 0}])


def test_bad_records_stand_beside_their_rows(names: Names) -> None:
    """A record that cannot be parsed is set aside with the row of its own file, whichever files were parsed together."""
    rows = [{"path": names.put(f"{k}", b'{"id": 1}\nnot json %d\n{"id": 2}\n' % k), "k": k} for k in range(4)]
    files = reading(ROWS.append(BAD_FIELD), "json", badRecords="quarantine", badRecordColumn="_bad")
    records = names.read(files, rows)
    assert sorted((row["k"], row["id"]) for row in records if row["id"]) == [(k, n) for k in range(4) for n in (1, 2)]
    bad = [(row["k"], row["_bad"]["record"], row["_bad"]["offset"]) for row in records if row["_bad"]]
    assert sorted(bad) == [(k, b"not json %d" % k, 10) for k in range(4)]
    with pytest.raises(BadRecord, match="byte 10"):
        names.read(reading(ROWS, "json"), rows)


def test_a_bad_file_named_by_ranges_is_told_by_each_row(names: Names) -> None:
    """A damaged table is set aside once for each row that names a range of it: no row disappears silently."""
    path = names.put("a.parquet", b"PAR1" + b"x" * 100)
    rows = [{"path": path, "start": a, "end": b, "k": k} for k, (a, b) in enumerate([(0, 50), (50, 104)])]
    records = names.read(aside("parquet", ROWS), rows)
    assert [(row["k"], row["_bad"]["path"]) for row in records] == [(0, path), (1, path)]


def test_metadata_and_rescue_stand_beside_rows(names: Names) -> None:
    """Metadata and rescued data beside a row belong to the file that the row names."""
    meta = pa.struct(
        [("path", pa.string()), ("modified", pa.timestamp("us", "UTC")), ("size", pa.int64()), ("offset", pa.int64())]
    )
    schema = pa.schema([("id", pa.int64()), ("rest", pa.string()), ("_meta", meta)])
    rows = [{"path": names.put(f"{k}", b'{"id": 1}\n{"id": 2, "x": %d}\n' % k), "k": k} for k in range(3)]
    files = reading(schema, "json", metadataColumn="_meta", rescuedDataColumn="rest")
    records = names.read(files, rows)
    told = [
        (row["k"], row["id"], row["_meta"]["path"] == rows[row["k"]]["path"], row["_meta"]["offset"]) for row in records
    ]
    assert told == [(k, n, True, 10 * (n - 1)) for k in range(3) for n in (1, 2)]
    assert [json.loads(row["rest"])["x"] for row in records if row["rest"]] == [0, 1, 2]


def test_rows_of_one_file_twice(names: Names) -> None:
    """A file named by two rows is read for each of them."""
    path = names.put("a", b"one\ntwo\n")
    records = names.read(reading(), [{"path": path, "k": k} for k in (1, 2, 2)])
    assert [(row["k"], row["value"]) for row in records] == [(k, line) for k in (1, 2, 2) for line in ("one", "two")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maxFilesPerTrigger": 3}, "unknown option 'maxFilesPerTrigger'"),
        ({"pattern": "x"}, "unknown option 'pattern'"),
        ({"path": "x"}, "unknown option 'path'"),
        ({"badFile": "fail"}, "did you mean 'badFiles'"),
        ({"badFiles": "quarantine"}, "badRecordColumn"),
        ({"splitSize": "many"}, "splitSize"),
        ({"header": True}, "header"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], message: str) -> None:
    """Options that select files, options of other formats, misspelt ones and bad values are refused at once."""
    with pytest.raises(OptionError, match=message):
        reading(**options)


# -- replays ---------------------------------------------------------------------------------------------------------


def test_a_replay_reads_what_was_first_found_or_fails(names: Names) -> None:
    """A file rewritten since the batch first saw it fails the replay by name; restored, or without the batch's notes, it is read."""
    path = names.put("a", b"one\n")
    info = os.stat(path)
    rows = [{"path": path, "k": 0}]
    files = reading()
    assert names.read(files, rows, names.moment()) == [{"k": 0, "value": "one"}]
    names.put("a", b"two\n")
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns + 1))
    for run in ("run", "the next"):
        with pytest.raises(FileChanged, match="not what this batch first found there") as caught:
            names.read(files, rows, names.moment(run=run, partition=0 if run == "run" else 3))
    names.put("a", b"one\n")
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert names.read(files, rows, names.moment(run="a third")) == [{"k": 0, "value": "one"}]
    names.put("a", b"three\n")
    notes = Path(caught.value.message.split("delete its notes, '")[1].split("'")[0])
    for note in notes.iterdir():
        note.unlink()
    assert names.read(files, rows, names.moment(run="a fourth")) == [{"k": 0, "value": "three"}]


def test_what_was_missing_stays_missing_in_a_replay(names: Names) -> None:
    """A file that was set aside as missing is set aside again in a replay, although it exists by then."""
    path = str(names.files / "late")
    rows = [{"path": path, "k": 0}]
    first = names.read(aside(), rows, names.moment())
    names.put("late", b"x\n")
    assert names.read(aside(), rows, names.moment(run="next")) == first
    assert names.read(aside(), rows, names.moment(run="next", batch=8)) == [{"k": 0, "value": "x", "_bad": None}]


def test_what_failed_a_batch_may_come(names: Names) -> None:
    """A missing file failed the batch, and nothing was read: once the file exists the batch continues."""
    path = str(names.files / "late")
    with pytest.raises(BadFile, match="does not exist"):
        names.read(reading(), [{"path": path, "k": 0}], names.moment())
    names.put("late", b"x\n")
    assert names.read(reading(), [{"path": path, "k": 0}], names.moment(run="next")) == [{"k": 0, "value": "x"}]


def test_a_replay_in_other_partitions(names: Names) -> None:
    """Another run distributes rows to other partitions: they find the notes of whichever partition looked first."""
    paths = [names.put(str(k), b"%d\n" % k) for k in range(4)]
    files = reading()
    for partition in (0, 1):
        names.read(files, [{"path": path, "k": 0} for path in paths[partition::2]], names.moment(partition=partition))
    names.put("3", b"other\n")
    rows = [{"path": path, "k": 0} for path in paths]
    assert len(names.read(files, rows[:3], names.moment(run="next"))) == 3
    with pytest.raises(FileChanged):
        names.read(files, rows, names.moment(run="next"))


def test_two_partitions_that_found_two_versions(names: Names) -> None:
    """A file that two partitions of a batch found in different versions cannot be replayed, and the error says so."""
    path = names.put("a", b"one\n")
    files = reading()
    names.read(files, [{"path": path, "k": 0}], names.moment(partition=0))
    names.put("a", b"other\n")
    names.read(files, [{"path": path, "k": 0}], names.moment(partition=1))
    with pytest.raises(FileChanged, match="changed while the batch was first read"):
        names.read(files, [{"path": path, "k": 0}], names.moment(run="next"))


def test_a_copy_of_a_task_reads_the_same(names: Names) -> None:
    """Two copies of a task look at a file, one before and one after a rewrite: both go by the version noted first."""
    path = names.put("a", b"one\n")
    notes, copy = names.moment(), names.moment()
    assert copy.agreed({}, reasons=True) == {}  # it lists the notes before the other one puts its note
    sights = {path: [4, 5, "6"]}
    assert notes.agreed(sights, reasons=True) == {path: [[4, 5, "6"]]}
    assert copy.agreed({path: [9, 9, "9"]}, reasons=True) == {path: [[4, 5, "6"]]}


def test_a_damaged_note_is_told(names: Names) -> None:
    """A note with a flipped byte is an error, and nothing is guessed."""
    rows = [{"path": names.put("a", b"one\n"), "k": 0}]
    notes = names.moment()
    names.read(reading(), rows, notes)
    [note] = Path(notes.directory).iterdir()
    note.chmod(0o600)
    note.write_bytes(note.read_bytes().replace(b"4", b"5", 1))
    with pytest.raises(DamagedState, match="is damaged"):
        names.read(reading(), rows, names.moment())


def test_a_chunk_reads_the_notes_of_its_own_names(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure: in a batch of a million names each chunk read all earlier notes, 50 million reads for 10,000 chunks."""
    chunks, names_each = 40, 20
    asked: list[str] = []
    read = Pins._read

    def counted(notes: Pins, name: str) -> dict[str, Any]:
        asked.append(name)
        return read(notes, name)

    monkeypatch.setattr(Pins, "_read", counted)

    def noted(notes: Pins, chunk: int, size: int) -> None:
        again = [0, 1] if chunk else []  # each later chunk repeats names of the first one
        paths = [str(number) for number in (*again, *range(chunk * names_each, (chunk + 1) * names_each))]
        given: dict[str, Any] = {path: [size, 2, path] for path in paths}
        agreed = notes.agreed(given, reasons=False)
        assert agreed == {path: [[1, 2, path]] for path in paths}

    first = names.moment()
    for chunk in range(chunks):
        noted(first, chunk, 1)
    assert len(asked) == 1, "the note of the names that come again"
    second = names.moment(run="another")
    for chunk in reversed(range(chunks)):
        noted(second, chunk, 9)
    assert len(asked) <= 1 + 3 * chunks


def test_old_notes_go(names: Names) -> None:
    """Notes are kept for the batch that may be replayed and the one before it, however many batches there are."""
    rows = [{"path": names.put("a", b"one\n"), "k": 0}]
    for batch in range(6):
        names.read(reading(), rows, names.moment(batch=batch))
    assert sorted(path.name for path in (names.root / "notes/query").iterdir()) == ["000000000004", "000000000005"]


def test_a_row_that_cannot_be_replayed(names: Names) -> None:
    """Without notes a stream's row without size or time is refused: a replay could read another version."""
    files = reading()
    row = version(names.put("a", b"one\n")) | {"k": 0}
    batch = pa.RecordBatch.from_pylist([row, row | {"size": None}])
    files = NamedFiles.of({"format": "text"}, to_spark(TEXT), NamingColumns(0, None, None, 1, 2))
    assert list(looking.splits(files, [batch.slice(0, 1)], None, keep=False, replays=True))
    tagged = pa.RecordBatch.from_pylist(
        [{"path": row["path"], "identity": "an inode says nothing of what a file holds"}]
    )
    named_by_tag = NamedFiles.of({"format": "text"}, to_spark(TEXT), NamingColumns(0, identity=1))
    with pytest.raises(OptionError, match="set stateLocation"):
        list(looking.splits(named_by_tag, [tagged], None, keep=False, replays=True))
    with pytest.raises(OptionError, match="set stateLocation"):
        list(looking.splits(files, [batch], None, keep=False, replays=True))


def test_when_notes_are_needed() -> None:
    """A stream needs notes unless rows have size and time and nothing can be set aside that may exist later."""
    versioned = NamingColumns(0, None, None, 1, 2)
    text = to_spark(TEXT)
    assert not NamedFiles.of({}, text, versioned).needs_notes
    assert NamedFiles.of({}, text, NamingColumns(0)).needs_notes
    assert NamedFiles.of({}, text, NamingColumns(0, None, None, 1)).needs_notes
    assert aside().needs_notes
