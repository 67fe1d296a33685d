"""Which columns of Parquet are not worth a dictionary: numbers and times that hardly ever repeat.

Parquet's writer begins each column of a row group with a dictionary, and gives the dictionary up at a megabyte: by then
it has looked up 131,072 numbers of eight bytes for nothing. For six columns (two numbers, a time, three texts) and
300,000 rows, encoding without dictionaries took 0.067 processor seconds instead of 0.090, and the file had 2 % more
bytes; a column of random doubles took a sixth of the time.

So 16,384 values of the first row group are counted, in short runs spread over it. Values that repeat nearby show within
a run, values that repeat anywhere show in several runs. If two of a hundred are repeated, there is a dictionary. If
fewer are, there would be some 400,000 distinct values or more if they were in random order, so a dictionary would be
given up. Texts keep their dictionary: they soon fill a megabyte.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

if TYPE_CHECKING:
    from collections.abc import Sequence

ROWS_MIN = 1 << 16
_RUNS, _RUN_ROWS = 128, 128
_VALUES_MIN = 4096
_DISTINCT_MIN = 0.98
# Where each run begins in its part of the group: at random, because evenly spaced runs would miss values that repeat at
# such distances.
_PLACES = np.random.default_rng(0).random(_RUNS)


def worth_a_dictionary(table: pa.Table) -> bool | list[str]:
    """Return the paths of the leaves that get a dictionary, in the form of pyarrow's `use_dictionary`; `True` for all.

    `table` is the first row group of a file. Fewer than `ROWS_MIN` rows prove nothing.
    """
    if table.num_rows < ROWS_MIN:
        return True
    distinct = {name for name, column in zip(table.schema.names, table.columns, strict=True) if _is_distinct(column)}
    return [leaf for leaf in _leaves(table.schema) if leaf not in distinct] if distinct else True


def _is_distinct(column: pa.ChunkedArray) -> bool:
    kind = column.type
    if not (types.is_timestamp(kind) or types.is_floating(kind) or (types.is_integer(kind) and kind.bit_width >= 32)):  # noqa: PLR2004 - fewer bits, few values
        return False
    seen = _runs(column)
    values = len(seen) - seen.null_count
    return values >= _VALUES_MIN and bool(pc.count_distinct(seen, mode="only_valid").as_py() >= _DISTINCT_MIN * values)


def _runs(column: pa.ChunkedArray) -> pa.ChunkedArray:
    part = len(column) // _RUNS
    begins = (np.arange(_RUNS) * part + _PLACES * (part - _RUN_ROWS)).astype(int).tolist()
    return pa.chunked_array([chunk for begin in begins for chunk in column.slice(begin, _RUN_ROWS).chunks], column.type)


def _leaves(schema: pa.Schema) -> Sequence[str]:
    """Return the path of each leaf of the schema in a file: pyarrow tells these only for files."""
    import pyarrow.parquet as pq  # importing it takes as long as everything else in a small process

    empty = io.BytesIO()
    pq.write_table(schema.empty_table(), empty)
    columns = pq.read_metadata(empty).schema
    return [columns.column(index).path for index in range(len(columns))]
