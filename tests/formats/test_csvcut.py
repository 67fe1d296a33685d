"""Where records of CSV begin, in every dialect, compared with a reader that goes character by character."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadRecord, FileChanged
from penstock.formats import Dialect
from penstock.formats.csv import cut as csvcut
from penstock.formats.csv.cut import (
    csv_blocks,
    csv_cuts,
    csv_header,
    csv_stream_blocks,
    csv_stream_header,
    row_starts,
    with_doubled_quotes,
    without_comments,
)
from tests.formats.csvmodel import csv_cut, read
from tests.support.effort import effort

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BOM = b"\xef\xbb\xbf"
SPARK = Dialect(escape="\\")
# The pieces from which files are made: everything to which a dialect gives a meaning.
ALPHABETS = {
    Dialect(): 'a",\n\r',
    SPARK: 'a",\n\\',
    Dialect(comment="#"): '#",\na',
    Dialect(comment="#", escape="\\"): '#",\n\\',
    Dialect(sep=";", quote="'", escape="^", comment="%"): "';\n^%",
    Dialect(quote=""): 'a",\n\r',
    Dialect(quote="", comment="#"): '#",\n\r',
}
EVERY = pytest.mark.parametrize("dialect", ALPHABETS, ids=str)


def reader(data: bytes) -> Callable[[int, int], bytes]:
    """Return `data` as a file to read from; no read may go past its end."""

    def read_at(offset: int, length: int) -> bytes:
        assert offset + length <= len(data)
        return data[offset : offset + length]

    return read_at


def short_files(dialect: Dialect, length_max: int) -> Iterator[str]:
    """Yield every file of up to this many characters."""
    for length in range(length_max + 1):
        yield from map("".join, itertools.product(ALPHABETS[dialect], repeat=length))


@pytest.fixture
def small_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the search for a cut go through many pieces also in short files."""
    monkeypatch.setattr(csvcut, "_SCAN_BYTES", 3)
    monkeypatch.setattr(csvcut, "_HEADER_BYTES", 3)


@pytest.mark.slow
@EVERY
@pytest.mark.usefixtures("small_scans")
def test_every_cut_of_every_short_file(dialect: Dialect) -> None:
    """For every short mix of special characters, each target is cut at the start of the next record."""
    for text in short_files(dialect, 4):
        data, size = text.encode(), len(text)
        starts = read(text, dialect).starts(size)
        for target in range(1, size + 1):
            expected = next((start for start in starts if start >= target), size)
            assert csv_cut(reader(data), size, 0, target, dialect) == expected, text


@pytest.mark.slow
@EVERY
def test_blocks_of_every_short_file(dialect: Dialect) -> None:
    """For every short file, blocks are adjacent and begin at records; a file with invalid quotes is refused instead."""
    for text in short_files(dialect, effort(3, 4)):
        data, records = text.encode(), read(text, dialect)
        for found in (_in_ranges(data, dialect, 1), _in_ranges(data, dialect, 3), _in_a_stream(data, dialect, 1)):
            bad = records.bad(len(text))
            if bad is not None:
                assert found == bad, text
            else:
                assert isinstance(found, list)
                assert b"".join(block for _, block in found) == data
                assert {offset for offset, _ in found} <= set(records.starts(len(text)))


def _in_ranges(data: bytes, dialect: Dialect, block_bytes: int) -> list[tuple[int, bytes]] | int | None:
    """Return the blocks of a file, or the offset of its bad record."""
    try:
        return list(csv_blocks(reader(data), len(data), 0, len(data), block_bytes, dialect=dialect))
    except BadRecord as error:
        return error.offset


def _in_a_stream(data: bytes, dialect: Dialect, block_bytes: int) -> list[tuple[int, bytes]] | int | None:
    try:
        return list(csv_stream_blocks([data[:2], data[2:]], block_bytes, dialect=dialect))
    except BadRecord as error:
        return error.offset


FILES = st.sampled_from(list(ALPHABETS)).flatmap(
    lambda dialect: st.tuples(st.just(dialect), st.text(st.sampled_from(ALPHABETS[dialect] + "\rb"), max_size=80))
)


@pytest.mark.slow
@settings(max_examples=effort(50, 6000))
@given(file=FILES, data=st.data())
def test_any_file_in_any_pieces(file: tuple[Dialect, str], data: st.DataObject) -> None:
    """The records of a file are the same however it is cut, and in however many pieces the search for a cut reads it."""
    dialect, text = file
    content, size = text.encode(), len(text)
    records = read(text, dialect)
    cuts = [0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csvcut, "_SCAN_BYTES", data.draw(st.integers(1, 30)))
        for target in sorted(data.draw(st.lists(st.integers(0, size), max_size=3))):
            cuts.append(csv_cut(reader(content), size, cuts[-1], target, dialect))
            expected = (start for start in records.starts(size) if start >= target)
            assert cuts[-1] == max(cuts[-2], next(expected, size) if target else 0)
    block_bytes = data.draw(st.integers(1, 40))
    found, bad = [], None
    try:
        for start, end in itertools.pairwise([*cuts, size]):
            found += list(csv_blocks(reader(content), size, start, end, block_bytes, dialect=dialect))
    except BadRecord as error:
        bad = error.offset
    assert bad == records.bad(size)
    if bad is None:
        assert b"".join(block for _, block in found) == content
        starts = [offset + start for offset, block in found for start in row_starts(block, dialect)]
        assert starts == [start for start, _ in records.rows]


@pytest.mark.slow
@EVERY
@pytest.mark.usefixtures("small_scans")
def test_the_header_of_every_short_file(dialect: Dialect) -> None:
    """The header is the first record that is neither a blank line nor a comment, in ranges and in a stream."""
    for text in short_files(dialect, effort(3, 4)):
        data, records = text.encode(), read(text, dialect)
        if records.bad(len(text)) is not None:
            continue
        begin = records.rows[0][0] if records.rows else len(text)
        end = next((end for end in records.ends if end > begin), len(text))
        assert csv_header(reader(data), len(data), dialect) == (end, data[begin:end]), text
        header, blocks = csv_stream_header(csv_stream_blocks([data], 2, dialect=dialect), dialect)
        assert (header, b"".join(block for _, block in blocks)) == (data[begin:end], data[end:]), text


def test_a_header_after_long_comments_is_found() -> None:
    """Megabytes of comments are read through once, and not once a comment."""
    comments = b'# "quotes", and more\n' * 100_000
    data = BOM + comments + b"a,b\n1,2\n"
    lengths: list[int] = []

    def read_at(offset: int, length: int) -> bytes:
        lengths.append(length)
        return data[offset : offset + length]

    end, header = csv_header(read_at, len(data), Dialect(comment="#"))
    assert (header, data[end:]) == (b"a,b\n", b"1,2\n")
    assert sum(lengths) < 1.1 * len(data)


@pytest.mark.slow
@EVERY
def test_every_short_file_with_doubled_quotes(dialect: Dialect) -> None:
    """Without its comments, and with its quotes doubled, a file has the same rows."""
    doubled = Dialect(sep=dialect.sep, quote=dialect.quote)
    for text in short_files(dialect, 5):
        records = read(text, dialect)
        if records.bad(len(text)) is None:
            plain = with_doubled_quotes(without_comments(text.encode(), dialect), dialect).decode()
            found = read(plain, doubled)
            assert [fields for _, fields in found.rows] == [fields for _, fields in records.rows], text


@pytest.mark.usefixtures("small_scans")
@pytest.mark.parametrize("dialect", [Dialect(), SPARK, Dialect(quote="")])
def test_all_cuts_of_one_reading_are_those_of_many(dialect: Dialect) -> None:
    """Cuts that are searched for together, even several at one place, are the same as cuts that are found one by one."""
    content = b'stray " quote\n"a\nb"\nc\n\n"d""\n\n\n\\"e"\nf'
    for anchor in (0, 14):
        targets = [0, 0, *range(len(content) + 2), len(content) + 1]
        one_by_one = [csv_cut(reader(content), len(content), anchor, target, dialect) for target in targets]
        assert csv_cuts(reader(content), len(content), anchor, sorted(targets), dialect) == sorted(one_by_one)


def test_a_cut_counts_from_its_anchor() -> None:
    """A cut follows the quotes from the record given as its anchor, not from the start of the file, and never goes back."""
    content = b'stray " quote\n"a\nb"\nc\n'
    assert csv_cut(reader(content), len(content), 14, 16) == 20
    assert csv_cut(reader(content), len(content), 14, 14) == 14
    assert csv_cut(reader(content), len(content), 14, 3) == 14
    assert csv_cut(reader(content), len(content), 14, 21) == len(content)


def test_where_nothing_is_quoted_a_cut_reads_only_what_it_needs() -> None:
    """Without quotes, the search for a cut reads only the bytes at its target."""
    content = b'a",b\n' * 1_000_000
    offsets: list[int] = []

    def read_at(offset: int, length: int) -> bytes:
        offsets.append(offset)
        return content[offset : offset + length]

    assert csv_cut(read_at, len(content), 0, 4_000_001, Dialect(quote="")) == 4_000_005
    assert min(offsets) >= 4_000_000


@pytest.mark.parametrize("escape", [None, "\\"])
def test_a_run_of_escapes_over_pieces_counts_whole(escape: str | None) -> None:
    """Whether a quote is escaped depends on all escapes before it, in however many pieces they are read."""
    dialect = Dialect(escape=escape)
    for count in range(7):
        field = (escape or '"') * count
        text = f'"{field}"\n,x\n'
        expected = read(text, dialect)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(csvcut, "_SCAN_BYTES", 2)
            cut = csv_cut(reader(text.encode()), len(text), 0, 1, dialect)
        assert cut == (expected.ends[0] if expected.ends else len(text))


@pytest.mark.usefixtures("small_scans")
@pytest.mark.parametrize(("dialect", "mark"), [(Dialect(), b'"'), (SPARK, b"\\")])
def test_a_file_of_quotes_without_end_is_not_held(
    dialect: Dialect, mark: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a long stretch leaves the state of the quotes open, the driver stops looking for a place to cut and reads no further."""
    monkeypatch.setattr(csvcut, "_HELD_BYTES_MAX", 100)
    offsets: list[int] = []

    def read_at(offset: int, length: int) -> bytes:
        offsets.append(offset)
        return mark * length

    assert csv_cut(read_at, 1_000_000, 0, 10, dialect) == 1_000_000
    assert max(offsets) <= 110


@pytest.mark.parametrize(
    "find", [lambda read_at: csv_cut(read_at, 100, 0, 90), lambda read_at: list(csv_blocks(read_at, 100, 0, 100))]
)
def test_a_file_that_shrank_is_an_error(find: Callable[[Callable[[int, int], bytes]], object]) -> None:
    """A file that ends before its planned size is an error, and never a short result."""
    with pytest.raises(FileChanged, match="has shrunk"):
        find(lambda offset, length: (b"a,b\n" * 10)[offset : offset + length])


def test_a_record_above_the_limit_is_refused() -> None:
    """An opening quote that is never closed does not read the whole file into memory: the error names the offset of the record."""
    content = b'a\n"' + b"x\n" * 5_000
    with pytest.raises(BadRecord, match="more than 1000 B") as caught:
        list(csv_blocks(reader(content), len(content), 0, len(content), 10, record_bytes_max=1_000))
    assert caught.value.offset == 2


@pytest.mark.parametrize("field", ['"a"b', '""x', '"a" ', '"a\n"b', '"a"""b', '"a"b"c"', '"a,"b'])
@pytest.mark.parametrize("block_bytes", [1, 50, 1000])
def test_text_after_a_closing_quote_is_a_bad_record(field: str, block_bytes: int) -> None:
    """RFC 4180 does not allow it, and readers differ on its meaning: the error names the record, and no value is guessed."""
    good = b'"x","y"\n5" pipe,"""q"", r"\n"",""""\n'
    data = good + f"{field},1\n".encode() + good
    with pytest.raises(BadRecord, match="after the closing quote") as caught:
        list(csv_blocks(reader(data), len(data), 0, len(data), block_bytes))
    assert caught.value.offset == len(good)
    assert b"".join(block for _, block in csv_blocks(reader(good), len(good), 0, len(good), block_bytes)) == good


def test_doubled_quotes_where_they_are_escaped_are_told() -> None:
    """In a file of the other dialect the record is bad, and the error names the option to set; no value is guessed."""
    data = b'1,"plain"\n2,"5"" pipe"\n'
    with pytest.raises(BadRecord, match="set escape to the quote") as caught:
        list(csv_blocks(reader(data), len(data), 0, len(data), dialect=SPARK))
    assert caught.value.offset == 10
    assert list(csv_blocks(reader(data), len(data), 0, len(data))) == [(0, data)]
