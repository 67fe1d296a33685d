"""Columns of Parquet that are not worth a dictionary; DuckDB shows what the files contain."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from penstock.formats.distinct import ROWS_MIN, worth_a_dictionary
from penstock.formats.format import WriteFormat
from penstock.formats.parquet import ParquetWriter

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 200_000
NUMBERS = np.arange(ROWS)
CHANCE = np.random.default_rng(7)

# Each entry is (values, whether the column gets a dictionary); its name says why.
COLUMNS: dict[str, tuple[Any, bool]] = {
    "counts on": (NUMBERS, False),
    "random doubles": (CHANCE.random(ROWS), False),
    "times that differ": (pa.array(NUMBERS * 1_000_003, pa.timestamp("us", "UTC")), False),
    "some are null": (pa.array(NUMBERS, mask=NUMBERS % 3 == 0), False),
    "narrow": (pa.array(CHANCE.random(ROWS), pa.float32()), False),
    "each twice, side by side": (NUMBERS // 2, True),
    "the same again behind 20,000 rows": (NUMBERS % 20_000, True),
    "the same again behind half": (NUMBERS % (ROWS // 2), True),
    "drawn of 100,000": (CHANCE.integers(0, 100_000, ROWS), True),
    "one value": (np.zeros(ROWS), True),
    "hardly any value": (pa.array(NUMBERS, mask=NUMBERS % 100 != 0), True),
    "nothing but null": (pa.nulls(ROWS, pa.int64()), True),
    "bytes": (pa.array(NUMBERS % 256, pa.uint8()), True),
    "texts that differ": (pa.array(NUMBERS).cast(pa.string()), False),
    "texts that differ, where there are any": (pa.array(NUMBERS, mask=NUMBERS % 3 == 0).cast(pa.string()), False),
    "texts that come twice": (pa.array(NUMBERS // 2).cast(pa.string()), True),
    "texts of few": (pa.array(NUMBERS % 1000).cast(pa.string()), True),
    "truth": (pa.array(NUMBERS % 2 == 0), True),
}


@pytest.mark.parametrize("what", COLUMNS)
def test_values_that_hardly_come_twice_have_no_dictionary(what: str) -> None:
    """Values that repeat, near or far, get a dictionary; numbers, times and texts that do not repeat get none."""
    values, has_dictionary = COLUMNS[what]
    worth = worth_a_dictionary(pa.table({"a": values}))
    assert worth is True if has_dictionary else worth == []


def test_few_rows_say_nothing() -> None:
    """A file of few rows keeps its dictionaries."""
    assert worth_a_dictionary(pa.table({"a": NUMBERS[: ROWS_MIN - 1]})) is True
    assert worth_a_dictionary(pa.table({"a": NUMBERS[:ROWS_MIN]})) == []


@pytest.mark.slow
def test_rows_and_all_other_dictionaries_stay(tmp_path: Path) -> None:
    """In one file, columns and members of structs without a dictionary do not affect others, lists and names with dots."""
    inner = pa.StructArray.from_arrays([pa.array(NUMBERS).cast(pa.string()), pa.array(NUMBERS % 3)], ["x", "y"])
    struct = pa.StructArray.from_arrays([pa.array(NUMBERS), inner], ["x", "y"], mask=pa.array(NUMBERS % 9 == 0))
    table = pa.table({
        "id": NUMBERS,
        "a.b": NUMBERS % 5,
        "word": pa.array(NUMBERS % 7).cast(pa.string()),
        "struct": struct,
        "list": pa.array([[n % 4] for n in range(ROWS)]),
        "score": CHANCE.random(ROWS),
    })  # fmt: skip
    path, file = tmp_path / "a.parquet", io.BytesIO()
    writer = ParquetWriter(file, WriteFormat("parquet", table.schema, compression="snappy"), 8 << 20)
    for batch in table.to_batches(max_chunksize=10_000):
        writer.write(batch)
    writer.close()
    path.write_bytes(file.getvalue())
    with duckdb.connect() as connection:
        query = "select path_in_schema, list_distinct(list(encodings)) from parquet_metadata(?) group by 1"
        encodings = {name: str(found) for name, found in connection.execute(query, [str(path)]).fetchall()}
        read = connection.execute("select * from read_parquet(?)", [str(path)]).fetchall()
    assert {name for name, found in encodings.items() if "DICTIONARY" not in found} == {
        "id",
        "score",
        "struct, x",
        "struct, y, x",
    }  # fmt: skip - DuckDB's form of paths
    assert len(encodings) == 8
    assert read == [tuple(row.values()) for row in table.to_pylist()]


@pytest.mark.parametrize("rows", [0, 1])
def test_file_of_no_row_is_whole(rows: int) -> None:
    """A writer that is closed before it had a row group still writes a valid file."""
    file = io.BytesIO()
    table = pa.table({"a": NUMBERS[:rows]})
    writer = ParquetWriter(file, WriteFormat("parquet", table.schema, compression="snappy"))
    for batch in table.to_batches():
        writer.write(batch)
    writer.close()
    assert pa.parquet.read_table(file).equals(table)
