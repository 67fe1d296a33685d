"""Lines of text: rows to bytes and bytes to rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadRecord, OptionError
from penstock.formats import ReadFormat, WriteFormat, decoder, encoder, file_extension

if TYPE_CHECKING:
    from pathlib import Path

STRING = pa.schema([("value", pa.string())])
BINARY = pa.schema([("value", pa.binary())])


def lines(block: bytes, *, sep: bytes | None = None, schema: pa.Schema = STRING) -> list[str | bytes]:
    """Return the rows of a block of text."""
    batch = decoder(ReadFormat("text", schema, line_sep=sep)).decode(block)
    batch.validate(full=True)
    assert batch.schema.equals(schema)
    found: list[str | bytes] = batch.column(0).to_pylist()
    return found


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\n\n", ["a", ""]),
        (b"\n\n\na", ["", "", "", "a"]),
        (b"a\r\nb\rc\n\r\n", ["a", "b", "c", ""]),
        (b"a\r", ["a"]),
        (b"\r\r\n\n", ["", "", ""]),
        (b" a \t\n", [" a \t"]),
        (b"a\0b\n\0", ["a\0b", "\0"]),
        ("\N{EURO SIGN}\n\N{GRINNING FACE}\n".encode(), ["\N{EURO SIGN}", "\N{GRINNING FACE}"]),
        ("a\u2028b\x0bc\x0cd\x85e\n".encode(), ["a\u2028b\x0bc\x0cd\x85e"]),
        (b"\xef\xbb\xbfa\n", ["\ufeffa"]),
    ],
)
def test_blocks_are_cut_into_lines(block: bytes, expected: list[str]) -> None:
    r"""Only \n, \r\n and \r end lines; blank lines are rows, and nothing else of a line is dropped."""
    assert lines(block) == expected


@pytest.mark.parametrize(
    ("block", "sep", "expected"),
    [
        (b"a\r\nb\n", b"\n", ["a\r", "b"]),
        (b"a\nb\r\nc", b"\r\n", ["a\nb", "c"]),
        (b"Hello JavaHello Java|", b"|", ["Hello JavaHello Java"]),
        (b"a||b|||c||", b"||", ["a", "b", "|c"]),
        (b"a\n\n\nb", b"\n\n", ["a", "\nb"]),
        ("a\N{EURO SIGN}b".encode(), "\N{EURO SIGN}".encode(), ["a", "b"]),
    ],
)
def test_other_separators(block: bytes, sep: bytes, expected: list[str]) -> None:
    """With a custom separator, of any length, no other line end ends a line."""
    assert lines(block, sep=sep) == expected


@pytest.mark.parametrize("bad", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80"])
@pytest.mark.parametrize("before", [b"", b"first\r\n", "\N{EURO SIGN}\n\n".encode()])
@pytest.mark.parametrize("prefix", [b"", b"some "])
def test_invalid_utf8_is_a_bad_record(bad: bytes, before: bytes, prefix: bytes) -> None:
    """Invalid UTF-8 is refused, with the start of its line as the offset and the byte in the message."""
    with pytest.raises(BadRecord, match="expected UTF-8") as caught:
        lines(before + prefix + bad + b" end\nlast\n")
    assert caught.value.offset == len(before)
    assert f"\\x{bad[0]:02x}" in caught.value.message


def test_a_separator_across_characters_is_no_utf8() -> None:
    """A separator that cuts a character in two leaves invalid text, which is refused."""
    with pytest.raises(BadRecord):
        lines("a\N{EURO SIGN}b".encode(), sep=b"\x82")


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be", "utf-32-le"])
@pytest.mark.parametrize(
    ("text", "sep", "expected"),
    [
        ("a\r\nb\rc\n\n", None, ["a", "b", "c", ""]),
        ("\u0a0d|\u0d0a\n|", "|", ["\u0a0d", "\u0d0a\n"]),
        ("|||", "||", ["", "|"]),
        ("", None, []),
        ("a", "|", ["a"]),
    ],
)
def test_binary_lines_of_wide_code_units_are_the_bytes_of_the_file(
    codec: str, text: str, sep: str | None, expected: list[str]
) -> None:
    """Lines of UTF-16 and UTF-32 come as they are, without their separators."""
    unit = ("<" if codec.endswith("le") else ">") + f"u{int(codec[4:6]) // 8}"
    fmt = ReadFormat("text", BINARY, codec, line_sep=sep.encode(codec) if sep else None, unit=unit)
    batch = decoder(fmt).decode(text.encode(codec))
    batch.validate(full=True)
    assert batch.column(0).to_pylist() == [line.encode(codec) for line in expected]


def test_binary_lines_are_not_checked() -> None:
    """A binary column accepts lines of any bytes."""
    assert lines(b"\xff\xfe\n\x80", schema=BINARY) == [b"\xff\xfe", b"\x80"]


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([]),
        pa.schema([("a", pa.string()), ("b", pa.string())]),
        pa.schema([("a", pa.int64())]),
    ],
    ids=str,
)
def test_text_has_one_column(schema: pa.Schema) -> None:
    """Text has one string or binary column; anything else is refused by name, for reading and writing."""
    for make in (lambda: decoder(ReadFormat("text", schema)), lambda: encoder(WriteFormat("text", schema))):
        with pytest.raises(OptionError, match="text needs one string column, found"):
            make()


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_rows_become_lines(kind: pa.DataType) -> None:
    """A null is an empty line, as in Spark; slices and batches without rows are written correctly."""
    schema = pa.schema([("value", kind)])
    batch = pa.RecordBatch.from_arrays([pa.array(["no", "a", None, "", "b c", "no"], kind)], schema=schema)
    encode = encoder(WriteFormat("text", schema))
    assert bytes(encode.encode(batch.slice(1, 4))) == b"a\n\n\nb c\n"
    assert encode.ends(batch.slice(1, 4), b"").tolist() == [2, 3, 4, 8]
    assert bytes(encode.encode(batch.slice(0, 0))) == b""
    assert encode.ends(batch.slice(0, 0), b"").tolist() == []


@given(st.lists(st.none() | st.text(max_size=5)), st.integers(0, 5), st.integers(0, 5))
def test_a_piece_of_a_column_is_its_lines(values: list[str | None], start: int, length: int) -> None:
    """A slice gives the lines of its own rows, with nulls in it and around it, and no lines if it has no rows."""
    rows = pa.RecordBatch.from_arrays([pa.array(values, pa.string()).slice(start, length)], schema=STRING)
    expected = "".join(f"{value or ''}\n" for value in values[start : start + length])
    assert bytes(encoder(WriteFormat("text", STRING)).encode(rows)).decode() == expected


def test_ends_are_of_rows_not_of_lines() -> None:
    """A value that contains a newline makes two lines, as in Spark, but counts as one row when a part is cut between rows."""
    batch = pa.RecordBatch.from_pydict({"value": ["a\nb", "c"]})
    encode = encoder(WriteFormat("text", STRING))
    assert bytes(encode.encode(batch)) == b"a\nb\nc\n"
    assert encode.ends(batch, encode.encode(batch)).tolist() == [4, 6]


@given(values=st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))))
def test_lines_survive(values: list[str]) -> None:
    """Rows without line breaks come back unchanged."""
    batch = pa.RecordBatch.from_arrays([pa.array(values, pa.string())], schema=STRING)
    encode = encoder(WriteFormat("text", STRING))
    data = bytes(encode.encode(batch))
    assert lines(data) == values
    assert encode.ends(batch, data).tolist() == [index + 1 for index, code in enumerate(data) if code == ord("\n")]


@given(block=st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(block: bytes) -> None:
    """Any bytes give the lines that Python finds, or a bad record if they are invalid UTF-8; never anything else."""
    try:
        text = block.decode()
    except UnicodeDecodeError:
        with pytest.raises(BadRecord):
            lines(block)
    else:
        parts = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        assert lines(block) == (parts if parts[-1] else parts[:-1])


@pytest.mark.parametrize(("compression", "name"), [("none", ".txt"), ("gzip", ".txt.gz"), ("zstd", ".txt.zst")])
def test_extension(compression: str, name: str) -> None:
    """The extension identifies the format and the compression."""
    assert file_extension(WriteFormat("text", STRING, compression)) == name


def test_real_logs(loghub: Path) -> None:
    """Real log files are read as the lines that Python's universal newlines find."""
    for path in loghub.glob("*.log"):
        with path.open(encoding="utf-8") as file:
            assert lines(path.read_bytes()) == file.read().removesuffix("\n").split("\n")
