"""CSV: rows to bytes and bytes to rows, compared with a reader that goes character by character."""

from __future__ import annotations

import csv
import io
import itertools
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadFile, BadRecord, OptionError
from penstock.formats import Dialect, ReadFormat, WriteFormat, decoder, encoder, file_extension
from penstock.formats.csv.cut import csv_blocks, csv_stream_blocks
from penstock.formats.csv.decoder import header_names
from penstock.formats.csv.encoder import CsvEncoder
from penstock.formats.registry import record_format
from tests.formats.batches import flat_batches, same_rows
from tests.formats.csvmodel import csv_cut, read
from tests.formats.spark import ANSWERS, REFUSED, TYPES, cast_to_string, same
from tests.formats.test_csvcut import EVERY, reader, short_files
from tests.support.effort import effort

if TYPE_CHECKING:
    from pathlib import Path

BOM = b"\xef\xbb\xbf"
ONE = pa.schema([("a", pa.string())])
TWO = pa.schema([("a", pa.string()), ("b", pa.string())])


def rows(
    block: bytes, schema: pa.Schema = TWO, columns: tuple[str, ...] | None = None, **options: Any
) -> list[tuple[Any, ...]]:
    """Return the rows of a block of CSV; `options` are those of a dialect."""
    batch = decoder(ReadFormat("csv", schema, csv=Dialect(**options), columns=columns)).decode(block)
    batch.validate(full=True)
    assert batch.schema.equals(schema)
    return [tuple(row.values()) for row in batch.to_pylist()]


def columns_of(width: int) -> pa.Schema:
    """Return a schema of this many string columns."""
    return pa.schema([(name, pa.string()) for name in "abcd"[:width]])


def all_of(data: bytes, width: int, dialect: Dialect, block_bytes: int) -> list[tuple[str | None, ...]] | int | None:
    """Return the rows of a file that is read in such blocks, or the offset of its first bad record."""
    decode = decoder(ReadFormat("csv", columns_of(width), csv=dialect)).decode
    found: list[tuple[str | None, ...]] = []
    try:
        for offset, block in csv_blocks(reader(data), len(data), 0, len(data), block_bytes, dialect=dialect):
            at = offset
            found += zip(*(column.to_pylist() for column in decode(block).columns), strict=True)
    except BadRecord as error:
        bad = error.offset or 0
        return at + bad if error.__cause__ else bad  # the decoder knows only the block
    return found


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize("width", [1, 2])
def test_every_short_file_has_the_rows_of_its_records(dialect: Dialect, width: int) -> None:
    """Every value is what the bytes of its record say, in whichever block it is read, with a final line end or without.

    Arrow takes the empty last field of a file for a quoted one if the field before it is quoted.
    """
    for text in short_files(dialect, effort(3, 4)):
        records = read(text, dialect)
        expected = [tuple(t if quoted or t else None for t, quoted in fields) for _, fields in records.rows]
        bad = [start for start, fields in records.rows if len(fields) != width] + [records.bad(len(text))]
        first = min((offset for offset in bad if offset is not None), default=None)
        for block_bytes in (1, len(text) + 1):
            found = all_of(text.encode(), width, dialect, block_bytes)
            assert found == (expected if first is None else first) or found in bad, (text, found)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('"a",', ("a", None)),
        ('"",', ("", None)),
        (',"a"', (None, "a")),
        (',""', (None, "")),
        ('"a",""', ("a", "")),
        (",", (None, None)),
        ('"a\nb",', ("a\nb", None)),
    ],
)
@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\r"])
def test_an_empty_last_field_is_null_without_a_line_end_too(line: str, expected: tuple[str, str], end: str) -> None:
    """A field means the same whether or not the file ends after it: `"a",` used to end in an empty string there."""
    assert rows(f"x,y\n{line}{end}".encode()) == [("x", "y"), expected]


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


@pytest.mark.slow
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


# How Python writes. Its QUOTE_MINIMAL does not quote line breaks, which end a record elsewhere, unless the line end has both.
DIALECTS = [
    {"quoting": csv.QUOTE_MINIMAL, "lineterminator": "\r\n"},
    *({"quoting": csv.QUOTE_ALL, "lineterminator": end} for end in ("\n", "\r\n", "\r")),
]


@pytest.mark.slow
@settings(max_examples=effort(30, 3000))
@given(
    table=st.lists(st.tuples(*[st.text(st.sampled_from('ab ",;\n\r\xe4'), max_size=6)] * 2), max_size=8),
    python=st.sampled_from(DIALECTS),
    sep=st.sampled_from([",", ";", "\t"]),
    data=st.data(),
)
def test_files_of_pythons_csv(
    table: list[tuple[str, str]], python: dict[str, Any], sep: str, data: st.DataObject
) -> None:
    """Files that Python's csv module writes are read as the same fields, in any ranges, blocks and streams."""
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=sep, **python).writerows(table)
    dialect = Dialect(sep)
    content = data.draw(st.sampled_from([b"", BOM])) + file.getvalue().encode()
    size, bare = len(content), python["quoting"] == csv.QUOTE_MINIMAL
    expected = [tuple(field or (None if bare else "") for field in row) for row in table]
    cuts = [0]
    for target in sorted(data.draw(st.lists(st.integers(0, size), max_size=3))):
        cuts.append(csv_cut(reader(content), size, cuts[-1], target, dialect))
    block_bytes = data.draw(st.integers(1, 30))
    spans = itertools.pairwise([*cuts, size])
    found = [
        block for span in spans for _, block in csv_blocks(reader(content), size, *span, block_bytes, dialect=dialect)
    ]
    assert [row for block in found for row in rows(block, sep=sep)] == expected
    pieces = [content[at : at + 5] for at in range(0, size, 5)]
    streamed = [block for _, block in csv_stream_blocks(pieces, block_bytes, dialect=dialect)]
    assert [row for block in streamed for row in rows(block, sep=sep)] == expected


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
    """An empty field is null, a quoted one an empty string; white space, NUL and backslashes are data; blank lines are skipped."""
    assert rows(block) == expected


@pytest.mark.parametrize(
    ("block", "offset", "found"),
    [
        (b"1,2\n3\n4,5\n", 4, "found '3', expected 2 fields (a, b) separated by ','"),
        (b"1,2\r\n3,4,5\r\n", 5, "found '3,4,5', expected 2 fields"),
        (b"1,2,\n", 0, "expected 2 fields"),
        (b'1,"a\nb"\n2,"c"x",y\n', 8, "expected 2 fields"),
        (b"1,2\n3,\xff\n", 4, r"found '3,\xff', expected UTF-8"),
    ],
)
def test_malformed_records_are_told_by_offset(block: bytes, offset: int, found: str) -> None:
    """A record with too few or too many fields or invalid UTF-8 is bad: the error has its offset, what was found and what was expected."""
    with pytest.raises(BadRecord) as caught:
        rows(block)
    assert caught.value.offset == offset
    assert found in caught.value.message


def test_the_first_of_many_bad_records_is_told() -> None:
    """If many records are bad, the error names the first one."""
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ANSWERS["csv answers"])
def test_fields_are_read_as_spark_reads_them(kind: str) -> None:
    """For every scalar type and many fields, the value, null or refusal is the same as Spark's, except for the listed deviations."""
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


def test_a_null_where_there_must_be_none_is_a_bad_record() -> None:
    """An empty field in a column that is not nullable is refused, and the error names its record."""
    schema = pa.schema([pa.field("a", pa.string()), pa.field("b", pa.int64(), nullable=False)])
    with pytest.raises(BadRecord, match="'b', which is not nullable") as caught:
        rows(b"x,1\ny,\n", schema)
    assert caught.value.offset == 4


NO_CSV = [
    pa.binary(),
    pa.list_(pa.string()),
    pa.struct([("x", pa.int64())]),
    pa.time64("ns"),
    pa.null(),
]


@pytest.mark.parametrize("kind", NO_CSV, ids=str)
def test_types_without_a_text_are_refused(kind: pa.DataType) -> None:
    """A column that CSV cannot hold is refused by name before any record, for reading and for writing."""
    schema = pa.schema([("ok", pa.int64()), ("bad", kind)])
    for make in (lambda: decoder(ReadFormat("csv", schema)), lambda: encoder(WriteFormat("csv", schema))):
        with pytest.raises(OptionError, match=r"column 'bad' is .* which csv cannot hold"):
            make()


def test_line_separators_are_line_breaks() -> None:
    """CSV records end with line breaks; any other separator is refused, not ignored."""
    assert decoder(ReadFormat("csv", TWO, line_sep=b"\r\n")).decode(b"1,2\r\n").num_rows == 1
    with pytest.raises(OptionError, match=r"lineSep=b'\|' is not for csv"):
        decoder(ReadFormat("csv", TWO, line_sep=b"|"))


def test_a_schema_needs_columns() -> None:
    """A schema without columns is refused."""
    with pytest.raises(OptionError, match="at least one column"):
        decoder(ReadFormat("csv", pa.schema([])))


def test_columns_may_have_one_name() -> None:
    """Columns are matched by position, so two may have the same name."""
    batch = decoder(ReadFormat("csv", pa.schema([("a", pa.int64()), ("a", pa.string())]))).decode(b"1,x\n")
    assert [column.to_pylist() for column in batch.columns] == [[1], ["x"]]


def written(batch: pa.RecordBatch, **options: Any) -> bytes:
    """Return the CSV of a batch, after checking that each row ends where the encoder says."""
    encode = encoder(WriteFormat("csv", batch.schema, csv=Dialect(**options)))
    data = bytes(encode.encode(batch))
    ends = encode.ends(batch, data).tolist()
    one_by_one = [len(bytes(encode.encode(batch.slice(index, 1)))) for index in range(batch.num_rows)]
    assert ends == list(itertools.accumulate(one_by_one))
    return data


def test_fields_are_quoted_where_needed() -> None:
    """A field is quoted if some reader needs it, and otherwise not; null is an empty field."""
    values = ["a", "a,b", 'a"b', "a\nb", "a\rb", "", None, " a ", "a#", "#a", "'a'", "a'", "\\", "\ufeffa", "\uff01"]
    batch = pa.RecordBatch.from_pydict({"a": values, "n": list(range(len(values))), "b": values})
    fields = [
        "a",
        '"a,b"',
        '"a""b"',
        '"a\nb"',
        '"a\rb"',
        '""',
        "",
        " a ",
        "a#",
        "#a",
        "\"'a'\"",
        "a'",
        "\\",
        "\ufeffa",
        "\uff01",
    ]
    first = [f'"{field}"' if field[:1] in {"#", "\ufeff"} else field for field in fields]
    lines = zip(first, range(len(fields)), fields, strict=True)
    assert written(batch) == "".join(f"{a},{index},{b}\n" for a, index, b in lines).encode()


def test_escaped_quotes() -> None:
    """With a backslash as escape, quoted fields escape quotes and backslashes, as Spark's default reader expects."""
    values = ["a", 'a"b', "a\\", "\\", '\\"', "a,b", "", None]
    batch = pa.RecordBatch.from_pydict({"a": values, "n": list(range(len(values)))})
    fields = ["a", r'"a\"b"', r'"a\\"', r'"\\"', r'"\\\""', '"a,b"', '""', ""]
    assert written(batch, escape="\\") == "".join(f"{field},{index}\n" for index, field in enumerate(fields)).encode()


def test_what_stands_for_null_and_for_the_empty_string() -> None:
    """`nullValue` is null without quotes and a value in quotes; the empty string is written as `emptyValue`."""
    schema = pa.schema([("a", pa.string()), ("n", pa.int64())])
    batch = pa.RecordBatch.from_pydict({"a": [None, "", "NA", "0", "x"], "n": [None, 0, 1, 2, 3]}, schema=schema)
    assert written(batch, null_value="NA") == b'NA,NA\n"",0\n"NA",1\n0,2\nx,3\n'
    assert written(batch, null_value="0") == b'0,0\n"","0"\nNA,1\n"0",2\nx,3\n'
    assert written(batch, empty_value="EMPTY") == b",\nEMPTY,0\nNA,1\n0,2\nx,3\n"
    assert written(batch, empty_value="") == b",\n,0\nNA,1\n0,2\nx,3\n"
    assert written(batch, empty_value='""') == b',\n"",0\nNA,1\n0,2\nx,3\n'
    assert written(batch, empty_value="a,b") == b',\n"a,b",0\nNA,1\n0,2\nx,3\n'


def test_a_single_field_of_white_space_is_a_record() -> None:
    """Spark's reader takes a line of white space for a blank line, so such a value is quoted if it is alone in its record."""
    assert written(pa.RecordBatch.from_pydict({"a": [" ", "\t", " a", "\0"]})) == b'" "\n"\t"\n a\n"\0"\n'


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [(None, None), ("", None), ("NA", 7), ("NA", 7), ("EMPTY", 7)]),
        ({"null_value": "NA"}, [(None, None), ("", None), (None, 7), ("NA", 7), ("EMPTY", 7)]),
        ({"null_value": "7"}, [(None, None), ("", None), ("NA", None), ("NA", 7), ("EMPTY", None)]),
        ({"empty_value": "EMPTY"}, [(None, None), ("EMPTY", REFUSED), ("NA", 7), ("NA", 7), ("EMPTY", 7)]),
        ({"empty_value": "5"}, [(None, None), ("5", 5), ("NA", 7), ("NA", 7), ("EMPTY", 7)]),
        ({"empty_value": ""}, [(None, None), (None, None), ("NA", 7), ("NA", 7), ("EMPTY", 7)]),
        ({"empty_value": "NA", "null_value": "NA"}, [(None, None), (None, None), (None, 7), ("NA", 7), ("EMPTY", 7)]),
    ],
)
def test_null_and_empty_fields(options: dict[str, Any], expected: list[tuple[str | None, int | str | None]]) -> None:
    """Unquoted, an empty field and `nullValue` are null; quoted, they are values, and `emptyValue` is the empty string."""
    schema = pa.schema([("a", pa.string()), ("n", pa.int64())])
    lines = [b",\n", b'"",""\n', b"NA,7\n", b'"NA","7"\n', b"EMPTY,7\n"]
    for line, row in zip(lines, expected, strict=True):
        if row[1] == REFUSED:
            with pytest.raises(BadRecord, match="bigint in column 'n', not 'EMPTY'"):
                rows(line, schema, **options)
        else:
            assert rows(line, schema, **options) == [row]


def test_null_in_quotes_is_null_where_it_is_no_value() -> None:
    """In a column of numbers `"NULL"` can only mean null, and Spark reads it so; `"7"` is seven even if `nullValue` is 7."""
    schema = pa.schema([("n", pa.int64()), ("t", pa.timestamp("us", tz="UTC"))])
    assert rows(b'"NULL",NULL\nNULL,"NULL"\n', schema, null_value="NULL") == [(None, None)] * 2
    assert rows(b'"7",\n7,\n', schema, null_value="7") == [(7, None), (None, None)]


@pytest.mark.parametrize(
    ("options", "text", "expected"),
    [
        ({"quote": "'"}, b"'a,b',\"x\"\n'it''s',''\n", [("a,b", '"x"'), ("it's", "")]),
        ({"quote": "'", "escape": "\\"}, b"'it\\'s',\\'\n", [("it's", "\\'")]),
        ({"quote": ""}, b'"a,b"\n"",\n', [('"a', 'b"'), ('""', None)]),
        ({"escape": "\\"}, rb'"a\nb\\\"c","\\"' + b"\n", [('a\\nb\\"c', "\\")]),
        ({"escape": "\\"}, rb"a\nb\\,\"" + b"\n", [("a\\nb\\\\", '\\"')]),
        ({"comment": "#"}, b'# it\'s, "so\na,#b\n#\n"#a\n#b",c\n#', [("a", "#b"), ("#a\n#b", "c")]),
        ({"sep": ";", "comment": "%"}, b"%\n\na;b", [("a", "b")]),
    ],
)
def test_dialects(options: dict[str, Any], text: bytes, expected: list[tuple[str | None, str | None]]) -> None:
    """Quotes, escapes and comments follow the options; an escape means nothing outside quotes or before other characters."""
    assert rows(text, **options) == expected


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"quote": ","}, "quote=',' is sep, too"),
        ({"escape": ","}, "escape=',' is sep, too"),
        ({"comment": '"'}, "comment='\"' is quote, too"),
        ({"null_value": "a,b"}, "nullValue='a,b' cannot be told from a value"),
        ({"null_value": '"'}, "nullValue='\"' cannot be told"),
        ({"null_value": "a\nb"}, "cannot be told"),
    ],
)
def test_dialects_that_contradict_themselves_are_refused(options: dict[str, str], found: str) -> None:
    """A character with two meanings, and a null that is not a field, are refused with the names of the options."""
    with pytest.raises(OptionError) as caught:
        Dialect(**options)  # type: ignore[arg-type]
    assert found in caught.value.message


def test_nothing_is_written_without_quotes() -> None:
    """A writer needs quotes: `quote` may be empty for reading only."""
    with pytest.raises(OptionError, match="quote='' is for reading"):
        encoder(WriteFormat("csv", TWO, csv=Dialect(quote="")))


THREE = pa.schema([("id", pa.int64()), ("name", pa.string()), ("Day", pa.date32())])


def test_columns_are_taken_by_their_names() -> None:
    """Reordered columns, extra columns and names in another case are accepted: each value goes to the column that the header names."""
    columns = header_names(b'name,x,"i""d",DAY,id\n', Dialect())
    assert columns == ("name", "x", 'i"d', "DAY", "id")
    found = rows(b"a,?,?,2024-01-31,7\n,?,?,,\n", THREE, columns)
    assert [(row[0], row[1]) for row in found] == [(7, "a"), (None, None)]
    assert str(found[0][2]) == "2024-01-31"
    with pytest.raises(BadRecord, match=r"expected 5 fields \(name, x, i\"d, DAY, id\)"):
        rows(b"a,?,?,2024-01-31\n", THREE, columns)


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        (("id", "nam", "Day"), "no column 'name' (did you mean 'nam'?), found 'id', 'nam', 'Day'"),
        (("x",), "no column 'id', 'name', 'Day', found 'x'"),
        (("id", "name", "Day", "id"), "2 columns 'id', expected 1"),
        (("id", "NAME", "Name", "Day"), "2 columns 'name', expected 1"),
    ],
)
def test_headers_that_do_not_have_the_columns_are_told(columns: tuple[str, ...], found: str) -> None:
    """A missing or repeated column makes a bad file, and the error says so: never nulls, never a guess."""
    with pytest.raises(BadFile) as caught:
        rows(b"", THREE, columns)
    assert found in caught.value.message


def test_columns_of_one_name_are_in_the_order_of_the_header() -> None:
    """Two columns with the same name are taken in order; a name that has an exact match is not matched by case."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("a", pa.int64())])
    batch = decoder(ReadFormat("csv", schema, columns=("a", "a", "b"))).decode(b"1,2,3\n")
    assert [column.to_pylist() for column in batch.columns] == [[1], [3], [2]]
    upper = pa.schema([("A", pa.string()), ("a", pa.string())])
    assert decoder(ReadFormat("csv", upper, columns=("a", "A"))).decode(b"1,2\n").column(0).to_pylist() == ["2"]


def test_a_header_of_a_million_fields_is_refused() -> None:
    """Names cost time: as many are accepted as Spark accepts, long ones too; a file with more is refused with an error."""
    names = tuple(f"column {number} " + "x" * 100 for number in range(20_480))
    assert header_names(",".join(names).encode(), Dialect()) == names
    with pytest.raises(BadFile, match="more than 20480 fields"):
        header_names(b"," * 1_000_000 + b"\n", Dialect())


def test_a_header_that_is_no_utf8_is_told() -> None:
    """A header in another encoding makes a bad file, and the error shows its bytes."""
    with pytest.raises(BadFile, match=r"found the header 'a,\\xff"):
        header_names(b"a,\xff\n", Dialect())


@pytest.mark.parametrize("escape", ['"', "\\"])
@pytest.mark.parametrize("header", ['a,"b"c', '"b"c,a', '"b" ,a', '"b,c"d,a', '"b"c"d",a'])
def test_a_header_with_text_after_a_closing_quote_is_refused(header: str, escape: str) -> None:
    """`"b"c` was the name `bc`, which nobody had written; in a header it is refused as it is in a record."""
    with pytest.raises(BadFile, match=r"found the header .*after each closing quote"):
        header_names(f"{header}\n".encode(), Dialect(escape=escape))


@pytest.mark.parametrize("options", [{}, {"escape": "\\"}, {"quote": "'"}, {"null_value": "a"}])
def test_headers_are_read_as_they_were_written(options: dict[str, str]) -> None:
    """Names that contain separators, quotes, comments or nothing are read back, whatever `nullValue` is."""
    names = ["a", "a,b", 'c"d', "it's", "", "#e", "\ufefff", "g\nh", "\\", " ", "A"]
    dialect = Dialect(header=True, **options)
    fmt = WriteFormat("csv", pa.schema([(name, pa.int64()) for name in names]), csv=dialect)
    assert list(header_names(record_format("csv").header(fmt), dialect)) == names
    single = WriteFormat("csv", pa.schema([(" ", pa.int64())]), csv=dialect)
    assert header_names(record_format("csv").header(single), dialect) == (" ",)
    assert record_format("csv").header(WriteFormat("csv", fmt.schema)) == b""


def test_a_single_null_is_a_record() -> None:
    """A null that is alone in its row is written as an empty string: its line would be blank, and a blank line is not a record."""
    assert written(pa.RecordBatch.from_pydict({"a": ["x", None, ""]})) == b'x\n""\n""\n'
    batch = pa.RecordBatch.from_pydict({"a": pa.array([1, None], pa.int64())})
    assert written(batch) == b'1\n""\n'
    assert rows(written(batch), batch.schema) == [(1,), (None,)]


@pytest.mark.parametrize(("compression", "name"), [("none", ".csv"), ("gzip", ".csv.gz"), ("zstd", ".csv.zst")])
def test_extension(compression: str, name: str) -> None:
    """The extension identifies the format and the compression."""
    assert file_extension(WriteFormat("csv", TWO, compression)) == name


WRITTEN = st.builds(
    Dialect,
    quote=st.sampled_from("\"'|-1"),
    escape=st.sampled_from([None, "\\", "^", "0"]),
    null_value=st.sampled_from(["", "", "NA", "0", " ", "true"]),
    empty_value=st.sampled_from([None, None, "", "NA", "0", "''", "#"]),
)


@pytest.mark.slow
@settings(max_examples=effort(30, 4000))
@given(batch=flat_batches(), dialect=WRITTEN)
def test_rows_survive(batch: pa.RecordBatch, dialect: Dialect) -> None:
    """Every flat batch is read back in any dialect as `readable` predicts: unchanged, unless the options give two values one spelling."""
    encode = CsvEncoder(WriteFormat("csv", batch.schema, csv=dialect))
    reading = Dialect(quote=dialect.quote, escape=dialect.escape, null_value=dialect.null_value)
    data = bytes(encode.encode(batch))
    found = decoder(ReadFormat("csv", batch.schema, csv=reading)).decode(data)
    assert same_rows(found, encode.readable(batch))
    assert len(encode.ends(batch, data)) == batch.num_rows
    if dialect.empty_value is None and batch.num_columns > 1:
        assert same_rows(found, batch)


def test_a_null_string_alone_is_read_as_an_empty_one() -> None:
    """It is the only value that CSV cannot tell from another, and `readable` says so; with `nullValue` it can."""
    batch = pa.RecordBatch.from_pydict({"a": ["x", None, ""]})
    assert CsvEncoder(WriteFormat("csv", batch.schema)).readable(batch).column(0).to_pylist() == ["x", "", ""]
    told = CsvEncoder(WriteFormat("csv", batch.schema, csv=Dialect(null_value="NA")))
    assert told.readable(batch).equals(batch)


def test_real_files(loghub: Path) -> None:
    """Real CSV files are read as the fields that Python's csv module finds, in blocks of any size."""
    for path in loghub.glob("*.csv"):
        content = path.read_bytes()
        with path.open(encoding="utf-8", newline="") as file:
            header, *expected = csv.reader(file)
        schema = pa.schema([(name, pa.string()) for name in header])
        for block_bytes in (10_000, 1 << 20):
            blocks = csv_blocks(reader(content), len(content), 0, len(content), block_bytes)
            found = [row for _, block in blocks for row in rows(block, schema)]
            assert [[field or "" for field in row] for row in found] == [header, *expected]


def test_record_of_bytes_with_another_number_of_fields() -> None:
    """A record with invalid UTF-8 and too many fields is set aside as that, and Arrow prints nothing on stderr."""
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    sifted = decoder(ReadFormat("csv", schema)).sift(b"1,a\n\xff,2,3\n4,b\n")
    assert (sifted.rows.to_pylist(), sifted.reasons) == (
        [{"id": 1, "name": "a"}, {"id": 4, "name": "b"}],
        ["expected UTF-8"],
    )
    short = decoder(ReadFormat("csv", schema.remove(1), columns=("id", "other"))).sift(b"1,a\n2,\xff\n\xff\n3,x,\xff\n")
    assert ([row["id"] for row in short.rows.to_pylist()], short.starts.tolist()) == ([1, 2], [8, 10])
