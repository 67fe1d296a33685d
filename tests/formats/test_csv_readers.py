"""What the CSV sink writes, as others read it: DuckDB, polars, pandas, Arrow and Python. Spark is in `tests/spark`.

The table in `docs/options.md` lists the options with which each of them reads every value.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import csv as arrow_csv

from penstock.formats import Dialect, ReadFormat, WriteFormat, decoder, encoder
from penstock.formats.registry import record_format
from tests.support.effort import effort

if TYPE_CHECKING:
    from collections.abc import Callable

    Rows = list[tuple[str | None, ...]]

SCHEMA = pa.schema([("id", pa.string()), ("a", pa.string()), ("b", pa.string())])
ODD = [
    "",
    "NA",
    "NULL",
    "null",
    "nan",
    "\\N",
    '"',
    '""',
    "\\",
    'a\\"',
    '5" pipe',
    '5" pipe, x',
    " a",
    "a ",
    "#x",
    "'q'",
    "1e5",
    "\ufeffa",
]
VALUES = st.one_of(
    st.none(),
    st.sampled_from(ODD),
    st.text(st.sampled_from("ab ,;|\"'\\\n\r\t#\x01\x00\x7f\xe4\u2028\U0001f600"), max_size=8),
)
TABLES = st.lists(st.tuples(VALUES, VALUES), min_size=2, max_size=12)


def put(path: Path, table: list[tuple[str | None, str | None]], dialect: Dialect) -> Rows:
    """Write a table as the sink does; return its rows with an id as the first column."""
    rows: Rows = [(f"r{index}", *row) for index, row in enumerate(table)]
    columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
    form = WriteFormat("csv", SCHEMA, csv=dialect)
    path.write_bytes(
        record_format("csv").header(form) + encoder(form).encode(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    )
    return rows


def ours(path: Path, dialect: Dialect) -> Rows:
    """Return the rows as the source reads them."""
    block = path.read_bytes().removeprefix(b"id,a,b\n")
    batch = decoder(ReadFormat("csv", SCHEMA, csv=dialect)).decode(block)
    return [tuple(row.values()) for row in batch.to_pylist()]


def in_duckdb(path: Path, escape: str) -> Rows:
    """Return the rows as DuckDB reads them."""
    options = f"header=true, all_varchar=true, delim=',', quote='\"', escape='{escape}', allow_quoted_nulls=false"
    return duckdb.execute(f"select * from read_csv('{path}', {options})").fetchall()


def in_arrow(path: Path, **parsing: Any) -> Rows:
    """Return the rows as Arrow reads them."""
    converting = arrow_csv.ConvertOptions(
        column_types={name: pa.string() for name in SCHEMA.names},
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        null_values=[""],
    )
    options = arrow_csv.ParseOptions(newlines_in_values=True, **parsing)
    table = arrow_csv.read_csv(path, parse_options=options, convert_options=converting)
    return [tuple(row.values()) for row in table.to_pylist()]


def in_python(path: Path, **options: Any) -> Rows:
    """Return the rows as Python reads them; Python's csv has no null."""
    with path.open(encoding="utf-8", newline="") as file:
        rows: list[Any] = list(csv.reader(file, strict=True, **options))
    return [tuple(row) for row in rows[1:]]


def in_pandas(path: Path, **options: Any) -> Rows:
    """Return the rows as pandas reads them, with its guesses about null turned off."""
    import pandas as pd  # type: ignore[import-untyped]  # noqa: PLC0415 - it has no types, and takes long to import

    frame = pd.read_csv(path, dtype=str, keep_default_na=False, **options)
    return [tuple(row) for row in frame.itertuples(index=False)]


DEFAULT: dict[str, Callable[[Path], Rows]] = {
    "penstock": lambda path: ours(path, Dialect()),
    "duckdb": lambda path: in_duckdb(path, '"'),
    "polars": lambda path: pl.read_csv(path, infer_schema=False).rows(),
    "arrow": in_arrow,
    "python": in_python,
    "pandas": in_pandas,
}
ESCAPED: dict[str, Callable[[Path], Rows]] = {
    "penstock": lambda path: ours(path, Dialect(escape="\\")),
    "duckdb": lambda path: in_duckdb(path, "\\"),
    "arrow": lambda path: in_arrow(path, escape_char="\\", double_quote=False),
    "python": lambda path: in_python(path, escapechar="\\", doublequote=False),
    "pandas": lambda path: in_pandas(path, escapechar="\\", doublequote=False),
}
WITHOUT_NULL = {"python", "pandas"}


def expected_of(rows: Rows, reader: str) -> Rows:
    """Return the rows as this reader can distinguish them."""
    if reader in WITHOUT_NULL:
        rows = [tuple(value or "" for value in row) for row in rows]
    if reader == "pandas":  # these readers end a string at a NUL
        rows = [tuple((value or "").partition("\0")[0] for value in row) for row in rows]
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("reader", DEFAULT)
@settings(max_examples=effort(25, 3000), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(table=TABLES)
def test_every_value_is_read_by_readers_of_rfc4180(
    tmp_path: Path, reader: str, table: list[tuple[str | None, str | None]]
) -> None:
    """With the defaults, quotes, backslashes, line breaks, null, the empty string and text that looks like null come back."""
    path = tmp_path / "f.csv"
    rows = put(path, table, Dialect(header=True))
    assert DEFAULT[reader](path) == expected_of(rows, reader)


@pytest.mark.slow
@pytest.mark.parametrize("reader", ESCAPED)
@settings(max_examples=effort(25, 3000), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(table=TABLES)
def test_every_value_is_read_by_readers_of_escapes(
    tmp_path: Path, reader: str, table: list[tuple[str | None, str | None]]
) -> None:
    """With a backslash as escape the same is true of readers set to that escape, also of those that accept escapes anywhere."""
    path = tmp_path / "f.csv"
    rows = put(path, table, Dialect(header=True, escape="\\"))
    assert ESCAPED[reader](path) == expected_of(rows, reader)


def test_readers_that_guess_are_kept_from_it(tmp_path: Path) -> None:
    """DuckDB detects quotes and comments itself: fields that begin with such a character are quoted, so it detects the right dialect."""
    path = tmp_path / "f.csv"
    rows = put(path, [("'a'", "#b"), ("'c'", "#d"), ("#e", "'f"), ("\\", "g;h")], Dialect(header=True))
    guessed = duckdb.execute(f"select * from read_csv('{path}')").fetchall()
    assert guessed == rows
