"""CSV files as the source reads them: the same records wherever they are cut, columns by name, in any encoding."""

from __future__ import annotations

import csv
import gzip
import io
import logging
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import BadFile, BadRecord
from penstock.formats import Dialect
from penstock.formats.account import Account
from penstock.formats.known import csv as known_csv
from penstock.options import SOURCE, parse
from penstock.source import configured
from penstock.source.cursor import FileVersion, Split
from penstock.source.plan import Planner
from penstock.storage import LocalStorage
from tests.source.test_read import ROWS, Input, cut, values, whole
from tests.support.effort import effort

PAIR = pa.schema([("a", pa.string()), ("b", pa.string())])
SPARK = Dialect(escape="\\")


@pytest.fixture
def source(tmp_path: Path) -> Input:
    return Input(tmp_path)


def rows(
    source: Input, splits: list[Split], dialect: Dialect, schema: pa.Schema = PAIR, **options: str
) -> list[object]:
    """Return the rows of the splits, each read by its own task."""
    reading = source.reading("csv", schema, csv=dialect, **options)
    batches = (batch for split in splits for batch in reading.batches([split]))
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def all_cuts(source: Input, file: FileVersion, dialect: Dialect) -> list[Split]:
    """Return the file in ranges of one record each."""
    reading = source.reading("csv", PAIR, csv=dialect)
    at = [0]
    while at[-1] < file.size:
        at.append(reading.boundary(file, at[-1], at[-1] + 1))
    return cut(file, at)


@pytest.mark.parametrize("options", [{}, {"metadata": "m"}])
@pytest.mark.parametrize("last", ['"a",', '"b\n",', '"",'])
def test_the_last_record_of_a_file_means_what_it_means_elsewhere(
    source: Input, last: str, options: dict[str, str]
) -> None:
    """Without a final line end, an empty last field after a quoted one was an empty string, unless another file was joined to it."""
    reading = source.reading("csv", PAIR, **options)
    for name, text in (("last", f"x,y\n{last}"), ("ended", f"x,y\n{last}\n"), ("amid", f"x,y\n{last}\nz,z")):
        file = source.put(name, text.encode())
        for splits in ([whole(file)], all_cuts(source, file, Dialect())):
            found = [row["b"] for split in splits for batch in reading.batches([split]) for row in batch.to_pylist()]
            assert found[:2] == ["y", None], (name, splits)


@pytest.mark.slow
def test_the_last_record_of_a_large_file(source: Input) -> None:
    """Nothing is joined to the last piece of a large file either."""
    file = source.put("f", b"x,y\n" * (5 << 20) + b'"a",')
    batches = list(source.reading("csv", PAIR).batches([whole(file)]))
    assert batches[-1].slice(batches[-1].num_rows - 1).to_pylist() == [{"a": "a", "b": None}]


FIELDS = st.text(st.sampled_from("ab ,\"\\'\n\r#\xe4"), max_size=6)


@settings(max_examples=effort(25, 2000), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=st.lists(st.tuples(FIELDS, FIELDS), max_size=8), data=st.data())
def test_files_of_pythons_csv_in_any_splits(tmp_path: Path, table: list[tuple[str, str]], data: st.DataObject) -> None:
    """Fields that Python's csv module writes with escapes are read back equal, in any ranges."""
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL, doublequote=False, escapechar="\\", lineterminator="\n").writerows(table)
    source = Input(tmp_path)
    file = source.put("f", text.getvalue().encode())
    reading = source.reading("csv", PAIR, csv=SPARK)
    targets = sorted(data.draw(st.lists(st.integers(0, file.size), max_size=4)))
    at = [0]
    for target in targets:
        at.append(reading.boundary(file, at[-1], target))
    assert rows(source, cut(file, at), SPARK) == table


@pytest.mark.parametrize("split", [1, 9, 1000])
@pytest.mark.parametrize("limit", [1, 7, 50, 1000])
def test_the_same_records_for_every_split_size(source: Input, limit: int, split: int) -> None:
    """Whatever the limits of batch and task, and with a new driver for each batch: each record once, in order."""
    table = [("a", "x\n#y"), ("b\\", '"'), ('\\"', "\\\\"), ("#c", ""), ("d", "e\r\n")] * 2
    lines = [
        f'"{one}","{two}"\n'
        for one, two in ([v.replace("\\", "\\\\").replace('"', '\\"') for v in row] for row in table)
    ]
    lines[3:3] = ['# "comment\n', "\n", '#\\", "\n']
    source.put("f", ("#\nb,a\n" + "".join(lines)).encode())
    given = {"path": str(source.root), "maxBytesPerTrigger": str(limit), "splitSize": str(split), "settle": "0"}
    reading = source.reading("csv", PAIR, csv=Dialect(escape="\\", comment="#", header=True))
    options, found, at, end = parse(SOURCE, given, what="source"), [], None, None
    while at is None or at != end:
        planner = Planner(
            LocalStorage(), str(source.root), options, divisible=reading.divisible, boundary=reading.boundary
        )
        at = end or planner.initial()
        end = planner.latest(at)
        for task in planner.tasks(end) if end != at else []:
            found += [(row["b"], row["a"]) for batch in reading.batches(task) for row in batch.to_pylist()]
    assert found == table


def test_comments_over_splits(source: Input) -> None:
    """A comment belongs to no record of any range, its quotes are text, and a quoted line that looks like a comment is data."""
    dialect = Dialect(comment="#", header=True)
    file = source.put("f", b'# "made by\n#\n\nb,a\n#it\'s, "odd\n1,"x\n# "" no comment"\n#end, "\n2,y\n#')
    assert rows(source, [whole(file)], dialect) == [('x\n# " no comment', "1"), ("y", "2")]
    assert rows(source, all_cuts(source, file, dialect), dialect) == [('x\n# " no comment', "1"), ("y", "2")]


def test_columns_go_by_the_names_of_each_file(source: Input) -> None:
    """Files with columns in another order or with extra columns, joined, cut or compressed, yield the same columns."""
    dialect = Dialect(header=True)
    files = [
        source.put("a", b"id,name\n1,x\n2,y\n"),
        source.put("b", b"name,id\nz,3\n"),
        source.put("c", b"id,name\n4,w"),
        source.put("d.gz", gzip.compress(b'more,"name",ID\n"?\n",v,5\n')),
        source.put("e", b"\xef\xbb\xbf\r\nname,id\r\n"),
        source.put("f", b""),
    ]
    expected = [(1, "x"), (2, "y"), (3, "z"), (4, "w"), (5, "v")]
    reading = source.reading("csv", ROWS, csv=dialect)
    batches = list(reading.batches(map(whole, files)))
    assert [tuple(row.values()) for batch in batches for row in batch.to_pylist()] == expected
    assert len(batches) == 4
    second = reading.boundary(files[0], 0, 9)
    assert rows(source, [Split(files[0], second, files[0].size)], dialect, ROWS) == [(2, "y")]


def test_a_column_that_no_header_has_is_told(source: Input) -> None:
    """A misspelt column is not read as nulls: every task's error names the file and the columns of its header."""
    file = source.put("f", b"id,nam\n" + b"1,x\n" * 10)
    for split in (whole(file), Split(file, 11, file.size)):
        with pytest.raises(BadFile) as caught:
            rows(source, [split], Dialect(header=True), ROWS)
        assert f"'{source.root}/f': the header has no column 'name' (did you mean 'nam'?)" in caught.value.message


def test_columns_that_are_not_read_are_told(
    source: Input, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns that only the header has are counted in records; a query that cannot keep the count logs it once per process."""
    monkeypatch.setattr(configured, "_logged", set())
    other = source.put("g", b"id,x,name,y\n3,?,c,?\n")
    file = source.put("f", b"id,x,name,y\n1,?,a,?\n2,?,b,?\n")
    how = source.reading("csv", ROWS, csv=Dialect(header=True))
    splits, account = [*cut(file, [12, 20]), whole(other)], Account()
    assert sum(batch.num_rows for batch in how.batches(splits, account)) == 3
    assert account.unknown == {"x": 3, "y": 3}
    options = parse(SOURCE, {"path": str(source.root), "format": "csv", "header": "true"}, what="source")
    with caplog.at_level(logging.WARNING, "penstock.source"):
        for split in splits:
            list(configured.told(options, how, (split,)))
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"'{source.root}': in the data, and in no column: 'x' 1 time, 'y' 1 time"]


def test_a_bad_record_after_a_header(source: Input) -> None:
    """The offset of a bad record counts from the start of the file, with header, comments and byte order mark."""
    data = b"\xef\xbb\xbf#\nid,name\n1,x\nsix,y\n"
    for name, text in (("f", data), ("g.gz", gzip.compress(data))):
        with pytest.raises(BadRecord) as caught:
            rows(source, [whole(source.put(name, text))], Dialect(header=True, comment="#"), ROWS)
        assert caught.value.offset == 17


JAPANESE = [("\u540d\u524d", '"\u6771\u4eac", \u5927\u962a'), ("a", "\u30bd|\u8868\\\n"), ("\u304c", "\u3042" * 20)]


@pytest.mark.parametrize("encoding", ["ISO-2022-JP", "EUC-JP", "CP932", "UTF-16"])
@pytest.mark.parametrize(("sep", "escape"), [(",", None), ("|", None), (";", "\\")])
def test_encodings_whose_characters_hold_quotes_and_separators(
    source: Input, encoding: str, sep: str, escape: str | None
) -> None:
    r"""Quotes and commas are bytes of ISO-2022-JP characters, `|` and `\` of Shift_JIS characters: there they are data."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=sep, quoting=csv.QUOTE_ALL, doublequote=escape is None, escapechar=escape)
    writer.writerows(JAPANESE)
    iconv = shutil.which("iconv")
    if iconv is None:
        pytest.skip("no iconv, which writes the files: expected the program of the C library on the path")
    made = subprocess.run([iconv, "-f", "UTF-8", "-t", encoding], input=text.getvalue().encode(), stdout=-1, check=True)
    file = source.put("f.csv", made.stdout)
    dialect = Dialect(sep=sep, escape=escape)
    reading = source.reading("csv", PAIR, csv=dialect, encoding=encoding)
    expected = [{"a": a, "b": b} for a, b in JAPANESE]
    assert [row for batch in reading.batches([whole(file)]) for row in batch.to_pylist()] == expected
    if reading.divisible("f.csv"):
        at = [reading.boundary(file, 0, target) for target in range(1, file.size)]
        assert [row for s in cut(file, at) for batch in reading.batches([s]) for row in batch.to_pylist()] == expected
    headed = source.reading("csv", pa.schema([(a, pa.string()) for a in JAPANESE[0]]), encoding=encoding)
    headed = source.reading(
        "csv", headed.format.schema, csv=Dialect(sep, escape=escape, header=True), encoding=encoding
    )
    assert values(headed, [whole(file)], JAPANESE[0][0]) == [a for a, _ in JAPANESE[1:]]


def test_small_files_are_read_once(source: Input, monkeypatch: pytest.MonkeyPatch) -> None:
    """Header, byte order mark and records of a small file take one read, also if quotes in the header make it hard to find."""
    file = source.put("f", b'"id",name\n1,x\n')
    reading = source.reading("csv", ROWS, csv=Dialect(header=True))
    counted: list[tuple[int, int]] = []
    remembering = known_csv._remembering

    def counting(read_at: Callable[[int, int], bytes], size: int) -> Callable[[int, int], bytes]:
        def call(offset: int, length: int) -> bytes:
            counted.append((offset, length))
            return read_at(offset, length)

        return remembering(call, size)

    monkeypatch.setattr(known_csv, "_remembering", counting)
    assert values(reading, [whole(file)], "id") == [1]
    assert counted == [(0, file.size)]
