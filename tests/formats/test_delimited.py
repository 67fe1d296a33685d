"""CSV: where records begin, against a reader that walks from byte to byte; rows to bytes and bytes to rows."""

from __future__ import annotations

import csv
import io
import itertools
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadRecord, FileChanged, OptionError
from penstock.formats import ReadFormat, WriteFormat, decoder, delimited, encoder
from penstock.formats.delimited import csv_blocks, csv_cut, csv_stream_blocks
from tests.formats.batches import flat_batches, same_rows
from tests.formats.spark import ANSWERS, REFUSED, TYPES, cast_to_string, same

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BOM = b"\xef\xbb\xbf"
ONE = pa.schema([("a", pa.string())])
TWO = pa.schema([("a", pa.string()), ("b", pa.string())])


def walked(data: bytes, sep: bytes = b",") -> tuple[list[int], bool, list[int]]:
    """Return the offset behind each record, whether the end is inside quotes, and where text is behind a closing quote."""
    ends, at, inside, field_begins = [], 0, False, True
    strays = []
    while at < len(data):
        byte = data[at : at + 1]
        at += 1
        if inside:
            doubled = byte == b'"' and data.startswith(b'"', at)
            at += doubled
            inside = byte != b'"' or doubled
            field_begins = False
            if not inside and data[at : at + 1] not in {b"", b"\n", b"\r", sep}:
                strays.append(at)
        elif byte in {b"\n", b"\r"}:
            at += byte == b"\r" and data.startswith(b"\n", at)
            ends.append(at)
            field_begins = True
        else:
            inside = byte == b'"' and field_begins
            field_begins = byte == sep
    return ends, inside, strays


def starts_of(data: bytes, sep: bytes = b",") -> list[int]:
    """Return the offset of each record."""
    return [start for start in [0, *walked(data, sep)[0]] if start < len(data)]


def reader(data: bytes) -> Callable[[int, int], bytes]:
    """Return `data` as a file to read from; no read may go behind its end."""

    def read(offset: int, length: int) -> bytes:
        assert offset + length <= len(data)
        return data[offset : offset + length]

    return read


def rows(block: bytes, schema: pa.Schema = TWO, *, first: bool = False, **options: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a block of CSV."""
    batch = decoder(ReadFormat("csv", schema, **options)).decode(block, first=first)
    batch.validate(full=True)
    assert batch.schema.equals(schema)
    return [tuple(row.values()) for row in batch.to_pylist()]


@pytest.fixture
def small_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let cuts be searched for through many pieces also in short files."""
    monkeypatch.setattr(delimited, "_SCAN_BYTES", 3)


@pytest.mark.usefixtures("small_scans")
def test_every_cut_of_every_short_file() -> None:
    """For every short mix of quotes, separators and line breaks, each target is cut at the next record's start."""
    for length in range(6):
        for codes in itertools.product(b'a",\n\r', repeat=length):
            data = bytes(codes)
            starts = starts_of(data)
            for target in range(1, length + 1):
                expected = next((start for start in starts if start >= target), length)
                assert csv_cut(reader(data), length, 0, target) == expected, data


def test_blocks_of_every_short_file() -> None:
    """For every short file blocks lie edge to edge and begin at records; quotes that are not right are refused instead."""
    for length in range(1, 5):
        for codes in itertools.product(b'a",\n\r', repeat=length):
            data = bytes(codes)
            starts, (_, unclosed, strays) = starts_of(data), walked(data)
            for found in (_in_ranges(data, 1), _in_ranges(data, 3), _in_a_stream(data, 1), _in_a_stream(data, 3)):
                if strays:
                    assert found == max(start for start in starts if start < strays[0])
                elif unclosed:
                    assert found == starts[-1]
                else:
                    assert isinstance(found, list)
                    assert b"".join(block for _, block in found) == data
                    assert {offset for offset, _ in found} <= set(starts)


def _in_ranges(data: bytes, block_bytes: int) -> list[tuple[int, bytes]] | int | None:
    """Return the blocks of a file, or the offset of its bad record."""
    try:
        return list(csv_blocks(reader(data), len(data), 0, len(data), block_bytes))
    except BadRecord as error:
        return error.offset


def _in_a_stream(data: bytes, block_bytes: int) -> list[tuple[int, bytes]] | int | None:
    try:
        return list(csv_stream_blocks([data[:2], data[2:]], block_bytes))
    except BadRecord as error:
        return error.offset


def test_decoder_and_cuts_agree() -> None:
    """What the decoder takes for records is what the cuts are made between, for every short file it accepts."""
    decode = {1: decoder(ReadFormat("csv", ONE)).decode, 2: decoder(ReadFormat("csv", TWO)).decode}
    for length, width in itertools.product(range(5), (1, 2)):
        for codes in itertools.product(b'a",\n\r', repeat=length):
            data = bytes(codes)
            bounds = [*starts_of(data), len(data)]
            records = [data[a:b] for a, b in itertools.pairwise(bounds) if data[a:b].strip(b"\r\n")]
            try:
                found = decode[width](data).num_rows
            except BadRecord as error:
                assert error.offset in bounds, data  # noqa: PT017 - most are refused, and that is right
            else:
                assert not walked(data)[1], data
                assert found == len(records), data


QUOTED = b'1,"plain"\n2,"with ""doubled"" quotes"\r\n3,"two\nlines, and a comma"\n\n4,""\r5,"\r\n"\n6,"""all"""\n7,5" pipe\n8,"\xc3\xa4"'
QUOTED_ROWS = [
    ("1", "plain"),
    ("2", 'with "doubled" quotes'),
    ("3", "two\nlines, and a comma"),
    ("4", ""),
    ("5", "\r\n"),
    ("6", '"all"'),
    ("7", '5" pipe'),
    ("8", "\N{LATIN SMALL LETTER A WITH DIAERESIS}"),
]


@pytest.mark.usefixtures("small_scans")
@pytest.mark.parametrize("block_bytes", [1, 10, 1_000])
def test_quoted_fields_at_every_cut(block_bytes: int) -> None:
    """Doubled quotes, and line breaks and separators inside quotes, survive a cut at any byte."""
    size = len(QUOTED)
    for target in range(size + 1):
        cut = csv_cut(reader(QUOTED), size, 0, target)
        found = []
        for span in ((0, cut), (cut, size)):
            for _, block in csv_blocks(reader(QUOTED), size, *span, block_bytes):
                found += rows(block)
        assert found == QUOTED_ROWS


# How Python writes; unless the line end has both, its QUOTE_MINIMAL leaves line breaks bare that end a record elsewhere.
DIALECTS = [
    {"quoting": csv.QUOTE_MINIMAL, "lineterminator": "\r\n"},
    *({"quoting": csv.QUOTE_ALL, "lineterminator": end} for end in ("\n", "\r\n", "\r")),
]


@settings(max_examples=60)
@given(
    table=st.lists(st.tuples(*[st.text(st.sampled_from('ab ",;\n\r\xe4'), max_size=6)] * 2), max_size=8),
    dialect=st.sampled_from(DIALECTS),
    sep=st.sampled_from([",", ";", "\t"]),
    data=st.data(),
)
def test_files_of_pythons_csv(
    table: list[tuple[str, str]], dialect: dict[str, Any], sep: str, data: st.DataObject
) -> None:
    """What Python's csv module writes is read as the same fields, in any ranges, blocks and streams."""
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=sep, **dialect).writerows(table)
    content = data.draw(st.sampled_from([b"", BOM])) + file.getvalue().encode()
    size, bare = len(content), dialect["quoting"] == csv.QUOTE_MINIMAL
    expected = [tuple(field or (None if bare else "") for field in row) for row in table]
    cuts = [0]
    for target in sorted(data.draw(st.lists(st.integers(0, size), max_size=3))):
        cuts.append(csv_cut(reader(content), size, cuts[-1], target, sep=sep))
    block_bytes = data.draw(st.integers(1, 30))
    spans = itertools.pairwise([*cuts, size])
    found = [block for span in spans for _, block in csv_blocks(reader(content), size, *span, block_bytes, sep=sep)]
    assert [row for block in found for row in rows(block, sep=sep)] == expected
    pieces = [content[at : at + 5] for at in range(0, size, 5)]
    streamed = [block for _, block in csv_stream_blocks(pieces, block_bytes, sep=sep)]
    assert [row for block in streamed for row in rows(block, sep=sep)] == expected


def test_a_cut_counts_from_its_anchor() -> None:
    """A cut follows the quotes from the record it is told, not from the start of the file, and never goes back."""
    content = b'stray " quote\n"a\nb"\nc\n'
    assert csv_cut(reader(content), len(content), 14, 16) == 20
    assert csv_cut(reader(content), len(content), 14, 14) == 14
    assert csv_cut(reader(content), len(content), 14, 3) == 14
    assert csv_cut(reader(content), len(content), 14, 21) == len(content)


@pytest.mark.parametrize(
    "find", [lambda read: csv_cut(read, 100, 0, 90), lambda read: list(csv_blocks(read, 100, 0, 100))]
)
def test_a_file_that_shrank_is_an_error(find: Any) -> None:
    """A file that ends before its planned size is an error, and never a short result."""
    with pytest.raises(FileChanged, match="shrank"):
        find(lambda offset, length: (b"a,b\n" * 10)[offset : offset + length])


def test_a_record_above_the_limit_is_refused() -> None:
    """An opening quote that is never closed does not read the whole file into memory: the record's offset is told."""
    content = b'a\n"' + b"x\n" * 5_000
    with pytest.raises(BadRecord, match="more than 1000 B") as caught:
        list(csv_blocks(reader(content), len(content), 0, len(content), 10, record_bytes_max=1_000))
    assert caught.value.offset == 2


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b"", []),
        (b"\n\r\n\r", []),
        (b"1,2", [("1", "2")]),
        (b"1,2\n\n\n3,4\n", [("1", "2"), ("3", "4")]),
        (b'1,\n,2\n"",""\n,\n', [("1", None), (None, "2"), ("", ""), (None, None)]),
        (b' 1 , "2"\n', [(" 1 ", ' "2"')]),
        (b'a"b,"a""b"\n', [('a"b', 'a"b')]),
        (b"a\0b,\0\n", [("a\0b", "\0")]),
        (b"a\\,b\\n\n", [("a\\", "b\\n")]),
        (BOM + b"1,2\n", [("\ufeff1", "2")]),
        ("\N{EURO SIGN},\N{GRINNING FACE}\n".encode(), [("\N{EURO SIGN}", "\N{GRINNING FACE}")]),
    ],
)
def test_blocks_are_cut_into_fields(block: bytes, expected: list[tuple[str | None, str | None]]) -> None:
    """An empty field is null, one in quotes an empty string; white space, NUL and backslashes are data; blank lines none."""
    assert rows(block) == expected


def test_the_header_is_the_first_record_of_the_file() -> None:
    """The header is skipped in the first block only, quoted line breaks and all, with any number of fields."""
    header = b'\n"two\nlines, one field"\r\n'
    assert rows(header + b"1,2\n", header=True, first=True) == [("1", "2")]
    assert rows(b"a,b\n1,2\n", header=True) == [("a", "b"), ("1", "2")]
    assert rows(b"a,b\n1,2\n", first=True) == [("a", "b"), ("1", "2")]
    assert rows(b"a,b", header=True, first=True) == []
    with pytest.raises(BadRecord) as caught:
        rows(b"a,b\n1,2\n3\n", header=True, first=True)
    assert caught.value.offset == 8


@pytest.mark.parametrize(
    ("block", "offset", "found"),
    [
        (b"1,2\n3\n4,5\n", 4, "found '3', expected 2 fields (a, b) separated by ','"),
        (b"1,2\r\n3,4,5\r\n", 5, "found '3,4,5', expected 2 fields"),
        (b"1,2,\n", 0, "expected 2 fields"),
        (b'1,"a\nb"\n2,"c"x",y\n', 8, "expected 2 fields"),
        (b'1,2\n3,"4\n5,6\n', 4, "closing quote"),
        (b'1,2\n3,"4', 4, "closing quote"),
        (b"1,2\n3,\xff\n", 4, r"found '3,\xff', expected UTF-8"),
    ],
)
def test_malformed_records_are_told_by_offset(block: bytes, offset: int, found: str) -> None:
    """Too few or many fields, an open quote or invalid UTF-8 are a bad record: its offset, what was found and expected."""
    with pytest.raises(BadRecord) as caught:
        rows(block)
    assert caught.value.offset == offset
    assert found in caught.value.message


def test_the_first_of_many_bad_records_is_told() -> None:
    """Among many records, the first bad one is the one that is named."""
    lines = [b"%d,x\n" % index for index in range(1_000)]
    lines[617] = b"six,x\n"
    lines[900] = b"nine\n"
    with pytest.raises(BadRecord, match=r"found 'six,x', expected bigint in column 'n', not 'six'") as caught:
        rows(b"".join(lines), pa.schema([("n", pa.int64()), ("s", pa.string())]))
    assert caught.value.offset == sum(map(len, lines[:617]))


# What we answer differently from Spark's reader, on purpose.
DEVIATIONS: dict[tuple[str, str], tuple[str | None, str]] = {
    ("string", '""'): ("", "an empty string that was written as one is read as one"),
    ("string", '"a"b'): ("ab", "RFC 4180 has no text behind a closing quote: no block has such a record"),
    **{
        (kind, text): (REFUSED, "Java's notation, not CSV's")
        for kind in ("float", "double")
        for text in ("0x1p3", "1d", "1f")
    },
    ("timestamp", "2024-01-02T03:04:05 Europe/Paris"): (REFUSED, "the rules of a zone change from release to release"),
}


@pytest.mark.parametrize("kind", ANSWERS["csv answers"])
def test_fields_are_read_as_spark_reads_them(kind: str) -> None:
    """For every scalar type and many fields the value, null or refusal is Spark's, but for the deviations listed."""
    wrong = []
    for text in ANSWERS["csv values"]:
        expected = ANSWERS["csv answers"][kind].get(text, REFUSED)
        expected = DEVIATIONS.get((kind, text), (expected, ""))[0]
        schema = pa.schema([("i", pa.int32()), ("a", TYPES[kind])])
        try:
            batch = decoder(ReadFormat("csv", schema)).decode(f"7,{text}\n".encode())
            found = cast_to_string(batch.column(1)[0])
        except BadRecord:
            found = REFUSED
        if not same(found, expected, TYPES[kind]):
            wrong.append((text, found, expected))
    assert wrong == []


@pytest.mark.parametrize("field", ['"a"b', '""x', '"a" ', '"a\n"b', '"a"""b', '"a"b"c"', '"a,"b'])
@pytest.mark.parametrize("block_bytes", [1, 50, 1000])
def test_text_behind_a_closing_quote_is_a_bad_record(field: str, block_bytes: int) -> None:
    """RFC 4180 has none, and what it would be read as is anybody's guess: the record is named, and not another value."""
    good = b'"x","y"\n5" pipe,"""q"", r"\n"",""""\n'
    data = good + f"{field},1\n".encode() + good
    with pytest.raises(BadRecord, match="behind the closing quote") as caught:
        list(csv_blocks(reader(data), len(data), 0, len(data), block_bytes))
    assert caught.value.offset == len(good)
    assert b"".join(block for _, block in csv_blocks(reader(good), len(good), 0, len(good), block_bytes)) == good


def test_a_null_where_there_must_be_none_is_a_bad_record() -> None:
    """An empty field in a column that is not nullable is refused with its record."""
    schema = pa.schema([pa.field("a", pa.string()), pa.field("b", pa.int64(), nullable=False)])
    with pytest.raises(BadRecord, match="'b', which is not nullable") as caught:
        rows(b"x,1\ny,\n", schema)
    assert caught.value.offset == 4


NO_CSV = [
    pa.binary(),
    pa.list_(pa.string()),
    pa.struct([("x", pa.int64())]),
    pa.duration("us"),
    pa.time64("ns"),
    pa.null(),
]


@pytest.mark.parametrize("kind", NO_CSV, ids=str)
def test_types_without_a_text_are_refused(kind: pa.DataType) -> None:
    """A column that CSV cannot hold is refused by name, for reading and writing, before any record."""
    schema = pa.schema([("ok", pa.int64()), ("bad", kind)])
    for make in (lambda: decoder(ReadFormat("csv", schema)), lambda: encoder(WriteFormat("csv", schema))):
        with pytest.raises(OptionError, match=r"column 'bad' is .* which csv cannot hold"):
            make()


@pytest.mark.parametrize("sep", ["", ",,", '"', "\n", "\N{EURO SIGN}"])
def test_separators_are_one_ascii_character(sep: str) -> None:
    """A separator of another length, beyond ASCII, or with another meaning is refused."""
    with pytest.raises(OptionError, match="cannot separate the fields"):
        decoder(ReadFormat("csv", TWO, sep=sep))


def test_line_separators_are_line_breaks() -> None:
    """Records of CSV end with line breaks; another separator is refused rather than ignored."""
    assert rows(b"1,2\r\n", line_sep=b"\r\n") == [("1", "2")]
    with pytest.raises(OptionError, match=r"lineSep=b'\|' is not for csv"):
        decoder(ReadFormat("csv", TWO, line_sep=b"|"))


def test_a_schema_needs_columns() -> None:
    """A schema without columns is refused."""
    with pytest.raises(OptionError, match="at least one column"):
        decoder(ReadFormat("csv", pa.schema([])))


def test_columns_may_have_one_name() -> None:
    """Columns go by position, so that two may have the same name."""
    batch = decoder(ReadFormat("csv", pa.schema([("a", pa.int64()), ("a", pa.string())]))).decode(b"1,x\n")
    assert [column.to_pylist() for column in batch.columns] == [[1], ["x"]]


def written(batch: pa.RecordBatch) -> bytes:
    """Return the CSV of a batch, after a check that each row ends where the encoder says."""
    encode = encoder(WriteFormat("csv", batch.schema))
    data = bytes(encode.encode(batch))
    ends = encode.ends(batch, data).tolist()
    one_by_one = [len(bytes(encode.encode(batch.slice(index, 1)))) for index in range(batch.num_rows)]
    assert ends == list(itertools.accumulate(one_by_one))
    return data


def test_fields_are_quoted_where_needed() -> None:
    """Quotes are put around separators, quotes, line breaks and empty strings, and around nothing else; null is empty."""
    values = ["a", "a,b", 'a"b', "a\nb", "a\rb", "", None, " a ", "#", "'", "\\"]
    batch = pa.RecordBatch.from_pydict({"a": values, "n": list(range(len(values)))})
    fields = ["a", '"a,b"', '"a""b"', '"a\nb"', '"a\rb"', '""', "", " a ", "#", "'", "\\"]
    assert written(batch) == "".join(f"{field},{index}\n" for index, field in enumerate(fields)).encode()


def test_a_single_null_is_a_record() -> None:
    """A null alone in its row is written as an empty string: its line would be blank, and blank lines are no records."""
    assert written(pa.RecordBatch.from_pydict({"a": ["x", None, ""]})) == b'x\n""\n""\n'
    batch = pa.RecordBatch.from_pydict({"a": pa.array([1, None], pa.int64())})
    assert written(batch) == b'1\n""\n'
    assert rows(written(batch), batch.schema) == [(1,), (None,)]


@pytest.mark.parametrize(("compression", "name"), [("none", ".csv"), ("gzip", ".csv.gz"), ("zstd", ".csv.zst")])
def test_extension(compression: str, name: str) -> None:
    """The extension tells the format and the compression."""
    assert encoder(WriteFormat("csv", TWO, compression)).extension == name


@given(batch=flat_batches())
def test_rows_survive(batch: pa.RecordBatch) -> None:
    """Every flat batch comes back as it was, but for the null of a single string column, which CSV cannot tell."""
    if batch.num_columns == 1 and batch.schema.field(0).type == pa.string():
        batch = batch.filter(batch.column(0).is_valid())
    found = decoder(ReadFormat("csv", batch.schema)).decode(written(batch))
    assert same_rows(found, batch)


def test_real_files(loghub: Path) -> None:
    """Real CSV files are read as the fields that Python's csv module finds, in blocks of any size."""
    for path in loghub.glob("*.csv"):
        content = path.read_bytes()
        with path.open(encoding="utf-8", newline="") as file:
            header, *expected = csv.reader(file)
        schema = pa.schema([(name, pa.string()) for name in header])
        for block_bytes in (10_000, 1 << 20):
            found = [
                row
                for offset, block in csv_blocks(reader(content), len(content), 0, len(content), block_bytes)
                for row in rows(block, schema, header=True, first=offset == 0)
            ]
            assert [[field or "" for field in row] for row in found] == expected
