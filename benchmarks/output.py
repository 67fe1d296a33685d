"""A contender's output, as an independent reader sees it: only visible files, and their number of rows."""

from __future__ import annotations

import gzip
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BLOCK_BYTES = 8 << 20
_POLL_SECONDS = 0.2


class WrongResult(Exception):
    """A contender's output does not match its input: its time means nothing."""


def visible(directory: str) -> Iterator[str]:
    """Yield the paths of the files that every engine reads: no name, of the file or of a directory above, begins with `_` or `.`."""
    for folder, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if name[0] not in "._"]
        yield from (f"{folder}/{name}" for name in names if name[0] not in "._")


def rows(directory: str, form: str) -> int:
    """Return the number of rows in the visible files. Raises `WrongResult` for Parquet with nulls: our input has none."""
    count = _parquet_rows if form == "parquet" else _lines
    return sum(count(path) for path in visible(directory))


def expect(directory: str, form: str, expected: int, *, patience: float = 0) -> None:
    """Raise `WrongResult` unless there are exactly `expected` rows; wait up to `patience` seconds for the last ones."""
    end = time.monotonic() + patience
    while (found := rows(directory, form)) < expected and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
    if found != expected:
        msg = f"{directory} holds {found:,} rows, expected {expected:,}"
        raise WrongResult(msg)


class Same:
    """Checks with DuckDB that Parquet outputs hold the same rows, and `rows` of them if given, in whatever order and files."""

    def __init__(self, rows: int | None) -> None:
        self._rows = rows
        self._first: tuple[Any, ...] | None = None

    def __call__(self, output: Path) -> None:
        """Raise `WrongResult` if this output differs from the first one."""
        import duckdb  # noqa: PLC0415 - counting lines needs no engine

        query = (
            "select count(*), bit_xor(hash(t)), sum(hash(t)::hugeint) from read_parquet(?, hive_partitioning=false) t"
        )
        with duckdb.connect() as connection:
            (counted,) = connection.execute(query, [list(visible(str(output)))]).fetchall()
        self._first = self._first or counted
        if counted != self._first or counted[0] != (self._rows or counted[0]) or not counted[0]:
            msg = f"{output}: expected {self._rows or 'some'} rows like {self._first}, found {counted}"
            raise WrongResult(msg)


def _lines(path: str) -> int:
    with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:  # noqa: PTH123 - many small ones
        return sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK_BYTES), b""))


def _parquet_rows(path: str) -> int:
    import pyarrow.parquet as pq  # noqa: PLC0415 - counting lines needs no Arrow

    with pq.ParquetFile(path) as file:
        metadata = file.metadata
    for group in (metadata.row_group(index) for index in range(metadata.num_row_groups)):
        for column in (group.column(index) for index in range(group.num_columns)):
            if column.statistics is not None and column.statistics.null_count:
                msg = f"{path}: {column.statistics.null_count:,} nulls in {column.path_in_schema}, expected none"
                raise WrongResult(msg)
    return int(metadata.num_rows)
