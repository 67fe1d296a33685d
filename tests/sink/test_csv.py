"""CSV files of a sink: each begins with exactly one header, however it was made, and never mixes dialects."""

from __future__ import annotations

import csv
import gzip
import io
import re

import pyarrow as pa
import pytest

from penstock.errors import OptionError
from penstock.sink.byteparts import BytePart
from penstock.sink.sink import Sink
from penstock.verify import verify
from tests.support.output import Output

PAIRS = pa.schema([("id", pa.int64()), ('na"me', pa.string())])
HEADER = 'id,"na""me"\n'
CSV = {"format": "csv", "header": "true", "fileName": "p{writer}-{seq}"}


@pytest.fixture
def pairs(output: Output) -> Output:
    output.schema = PAIRS
    return output


def table(output: Output) -> list[tuple[int, str]]:
    """Return the rows of all files as Python reads them, each file by its header, sorted."""
    readers = [csv.DictReader(io.StringIO(text, newline=""), strict=True) for text in output.visible().values()]
    return sorted((int(row["id"]), row['na"me']) for reader in readers for row in reader)


def rows_of(batch: int) -> dict[int, list[str]]:
    """Return what two writers write in a batch, which is also what a reader must find."""
    return {writer: [f'{batch * 10 + writer * 5 + n}|say "{n}", x' for n in range(3)] for writer in range(2)}


EXPECTED = sorted(
    (int(i), name) for batch in range(4) for rows in rows_of(batch).values() for i, name in (r.split("|") for r in rows)
)

WAYS = {
    "merged by the driver": {"mergeBelow": "1m"},
    "closed by the tasks": {"mergeBelow": "1"},
    "rolled by rows": {"rollRows": "4"},
    "rolled by size": {"rollSize": "80"},
    "a file a batch": {"rollBatches": "1"},
    "compressed": {"compression": "gzip"},
    "compressed and rolled": {"compression": "gzip", "rollSize": "100"},
    "growing": {"growing": "true", "fileName": "all.csv"},
    "growing and compressed": {"growing": "true", "fileName": "all.csv", "compression": "gzip"},
}


@pytest.mark.slow
@pytest.mark.parametrize("own_files", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_each_file_begins_with_one_header(
    pairs: Output, way: str, monkeypatch: pytest.MonkeyPatch, *, own_files: bool
) -> None:
    """Parts that span batches and writers, that are written at once or assembled, or that grow: the header is there exactly once."""
    if own_files:
        monkeypatch.setattr(BytePart, "stage_bytes", 1)
    sink = pairs.sink(**(CSV | WAYS[way]))
    for batch in range(4):
        pairs.batch(sink, batch, rows_of(batch))
        assert verify(str(pairs.root)).ok
    sink.finish()
    texts = pairs.visible()
    assert {text.count(HEADER) for text in texts.values()} == {1}
    assert all(text.startswith(HEADER) for text in texts.values())
    assert table(pairs) == EXPECTED
    report = verify(str(pairs.root))
    assert report.ok
    assert report.output.sinks[0].rows == len(EXPECTED)


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_the_header_counts_for_the_size_of_a_file(pairs: Output, compression: str) -> None:
    """The header never makes a file larger than rollSize, whether tasks write the file or the driver merges parts of several batches."""
    limit = 120 if compression == "none" else 400
    sink = pairs.sink(**CSV, rollSize=str(limit), mergeBelow="1m", compression=compression)
    for batch in range(4):
        pairs.batch(sink, batch, rows_of(batch))
    sink.finish()
    sizes = [path.stat().st_size for path in pairs.root.iterdir() if path.is_file()]
    assert len(sizes) > 1
    assert max(sizes) <= limit
    assert table(pairs) == EXPECTED


@pytest.mark.parametrize(
    "change", [{"header": "false"}, {"escape": "\\"}, {"quote": "'"}, {"nullValue": "NULL"}, {"emptyValue": "EMPTY"}]
)
def test_another_dialect_is_another_file(pairs: Output, change: dict[str, str]) -> None:
    """A query that continues with another dialect closes its open parts as they were: no file has two dialects."""
    options = {"format": "csv", "header": "true", "fileName": "p{seq}"}
    pairs.batch(pairs.sink(**options), 0, {0: ['1|say "x"', "2|"]})
    sink = pairs.sink(**(options | change))
    pairs.batch(sink, 1, {0: ['3|say "y"', "4|"]}, owner="d2")
    sink.finish()
    first, second = pairs.visible().values()
    assert first == HEADER + '1,"say ""x"""\n2,""\n'
    assert re.search("^3,", second, re.MULTILINE)
    assert not re.search("^1,", second, re.MULTILINE)


def test_what_begins_a_field_with_a_comment_goes_on_in_its_part(pairs: Output) -> None:
    """`comment` changes only what is quoted, not what the rows mean: open parts continue."""
    pairs.batch(pairs.sink(format="csv"), 0, {0: ["1|x"]})
    sink = pairs.sink(format="csv", comment="%")
    pairs.batch(sink, 1, {0: ["2|%"]}, owner="d2")
    assert len(sink.ledger.head().open) == 1


def test_a_part_is_finished_by_whoever_does_not_know_its_columns(pairs: Output) -> None:
    """`penstock finish` knows the options but not the schema: the ledger keeps the header with the open part."""
    pairs.batch(pairs.sink(**CSV, compression="gzip"), 0, rows_of(0))
    sink = Sink.existing(pairs.storage, str(pairs.root), "s")
    assert {part.kind.header for part in sink.ledger.head().open} == {HEADER}
    sink.finish()
    [path] = [path for path in pairs.root.iterdir() if path.is_file()]
    assert gzip.decompress(path.read_bytes()).decode().startswith(HEADER)


@pytest.mark.parametrize("option", ["header", "quote", "escape", "comment", "nullValue", "emptyValue"])
def test_csv_options_of_other_formats_are_refused(output: Output, option: str) -> None:
    """A CSV option with another format is a mistake that is reported before anything is written."""
    value = "true" if option == "header" else "x"
    with pytest.raises(OptionError, match=f"{option} is for format=csv, found format=json"):
        output.sink(format="json", **{option: value})
