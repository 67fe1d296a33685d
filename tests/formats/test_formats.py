"""What all formats share: how they are described, found and refused, and how bad records are reported."""

from __future__ import annotations

import pickle
import subprocess
import sys
from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadRecord, OptionError
from penstock.formats import Dialect, ReadFormat, WriteFormat, decoder, encoder, file_extension
from penstock.formats.malformed import EXCERPT_CHARACTERS, MalformedError, excerpt, raise_bad_record

SCHEMA = pa.schema([("value", pa.string())])


def test_descriptions_travel() -> None:
    """Format descriptions are pickled to other processes and come out equal, schema included."""
    for fmt in (ReadFormat("csv", SCHEMA, csv=Dialect(sep=";", header=True)), WriteFormat("json", SCHEMA, "gzip")):
        assert pickle.loads(pickle.dumps(fmt)) == fmt  # noqa: S301 - our own bytes


@pytest.mark.parametrize("name", ["parquet", "binary"])
def test_formats_without_lines_have_no_decoder(name: str) -> None:
    """A format that is not read or written in lines is refused by name."""
    with pytest.raises(OptionError, match=f"format='{name}' is not read in lines: expected text, json or csv"):
        decoder(ReadFormat(name, SCHEMA))
    with pytest.raises(OptionError, match=f"format='{name}' is not written in lines"):
        encoder(WriteFormat(name, SCHEMA))


def test_extensions() -> None:
    """Parquet's extension names no codec, because it compresses internally; an unknown format or compression has no extension."""
    assert file_extension(WriteFormat("parquet", SCHEMA, "snappy")) == ".parquet"
    with pytest.raises(OptionError, match="format='binary' cannot be written"):
        file_extension(WriteFormat("binary", SCHEMA))
    with pytest.raises(OptionError, match="compression='lz4' is unknown"):
        file_extension(WriteFormat("csv", SCHEMA, "lz4"))


@pytest.mark.slow
def test_polars_is_loaded_when_it_is_needed() -> None:
    """Importing the formats, and reading text and csv, does not load polars, which takes a tenth of a second."""
    code = (
        "import sys, pyarrow as pa\n"
        "from penstock.formats import ReadFormat, WriteFormat, decoder, encoder\n"
        "schema = pa.schema([('a', pa.string())])\n"
        "for name in ('text', 'csv'):\n"
        "    encoder(WriteFormat(name, schema)).encode(decoder(ReadFormat(name, schema)).decode(b'x\\n'))\n"
        "assert 'polars' not in sys.modules and 'pyarrow.parquet' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@given(data=st.binary() | st.text())
def test_excerpts_are_short_lines(data: bytes | str) -> None:
    """An excerpt is one printable line of at most 80 characters, whatever its source."""
    shown = excerpt(data)
    assert len(shown) <= EXCERPT_CHARACTERS
    assert shown.isprintable()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"plain", "plain"),
        ("\N{EURO SIGN}\n".encode(), "\N{EURO SIGN}\\n"),
        (b"\xff\0", "\\xff\\x00"),
        (b"x" * 80, "x" * 80),
        (b"x" * 81, "x" * 77 + "..."),
    ],
)
def test_excerpts_show_what_is_there(data: bytes, expected: str) -> None:
    """Printable text is shown as it is, the rest is escaped, and the end of a long text is left out."""
    assert excerpt(data) == expected


@given(count=st.integers(1, 40), bad=st.sets(st.integers(0, 39), min_size=1))
def test_halving_finds_the_first_bad_record(count: int, bad: set[int]) -> None:
    """The first bad record is found by decoding about twice as many records as there are."""
    bad = {index % count for index in bad}
    block = b"".join(b"bad\n" if index in bad else b"fine\n" for index in range(count))
    starts = np.array([0, *(at + 1 for at, code in enumerate(block[:-1]) if code == ord("\n"))])
    decoded = []

    def decode(records: bytes) -> None:
        decoded.append(records.count(b"\n"))
        if b"bad" in records:
            msg = "something good"
            raise MalformedError(msg)

    with pytest.raises(BadRecord, match="found 'bad', expected something good") as caught:
        raise_bad_record(block, starts, decode, MalformedError("the block"))
    assert caught.value.offset == int(starts[min(bad)])
    assert sum(decoded) <= 2 * count + 1


def test_a_block_whose_records_are_all_fine() -> None:
    """If no single record is refused, the error of the block is reported at its last record; nothing is swallowed."""
    with pytest.raises(BadRecord, match="expected the block"):
        raise_bad_record(b"a\nb\n", np.array([0, 2]), lambda _: None, MalformedError("the block"))


def test_decimals_are_written_without_an_exponent() -> None:
    """DuckDB's CSV does not read `1E-38` as a number: small decimals, zeros of many digits and negative scales get plain digits."""
    texts = {
        (38, 38): [
            "0.00000000000000000000000000000000000001",
            "-0.99999999999999999999999999999999999999",
            "0." + "0" * 38,
        ],
        (18, 9): ["0.000000001", "-123456789.000000000", "0.000000000"],
        (5, -2): ["12300", "-100", "0"],
        (9, 2): ["1.20", "-0.01", "0.00"],
    }
    for (precision, scale), expected in texts.items():
        kind = pa.decimal128(precision, scale)
        values = [Decimal(text).quantize(Decimal(1).scaleb(-scale), context=Context(prec=60)) for text in expected]
        column = pa.array([None, values[0], *values], kind).slice(2)
        schema = pa.schema([("a", kind)])
        data = encoder(WriteFormat("csv", schema, "none")).encode(pa.RecordBatch.from_arrays([column], schema=schema))
        assert bytes(data).decode().splitlines() == expected
