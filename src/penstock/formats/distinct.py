"""Which columns of Parquet are not worth a dictionary: numbers, times and texts that hardly ever repeat.

Parquet's writer begins each column of a row group with a dictionary, and gives the dictionary up at a megabyte: by then
it has looked up 131,072 numbers of eight bytes, or 80,000 texts of nine, for nothing, and has written an index beside
each. A column of random doubles takes a sixth of the time without one, a column of numbers as texts two thirds, and
the files are smaller.

So 16,384 rows of the first row group are counted, in short runs spread over it. Values that repeat nearby show within
a run, values that repeat anywhere show in several runs. If two of a hundred are repeated, there is a dictionary. If
fewer are, there would be some 400,000 distinct values or more if they were in random order, so a dictionary would be
given up. The members of structs count as columns, the elements of lists and maps keep their dictionary.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import types

if TYPE_CHECKING:
    from collections.abc import Sequence

ROWS_MIN = 1 << 15
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
    seen = _sample(table)
    distinct = {name for name, column in zip(seen.schema.names, seen.columns, strict=True) if _is_distinct(column)}
    return [leaf for leaf in _leaves(table.schema) if leaf not in distinct] if distinct else True


def _sample(table: pa.Table) -> pa.Table:
    """Return some of the rows, with the members of structs as columns that are named by their paths."""
    part = table.num_rows // _RUNS
    begins = (np.arange(_RUNS) * part + _PLACES * (part - _RUN_ROWS)).astype(int).tolist()
    plain = table.select(
        [index for index, kind in enumerate(table.schema.types) if types.is_struct(kind) or _may_differ(kind)]
    )
    seen = pa.concat_tables([plain.slice(begin, _RUN_ROWS) for begin in begins]).combine_chunks()
    while any(map(types.is_struct, seen.schema.types)):
        seen = seen.flatten()
    return seen


def _may_differ(kind: pa.DataType) -> bool:
    """Tell whether a column of this type may have a value for each row; of fewer than 32 bits, there are few values."""
    whole = types.is_integer(kind) and kind.bit_width >= 32  # noqa: PLR2004 - the bits of the docstring
    return bool(whole or types.is_floating(kind) or types.is_timestamp(kind) or types.is_string(kind))


def _is_distinct(seen: pa.ChunkedArray) -> bool:
    values = len(seen) - seen.null_count
    if not _may_differ(seen.type) or values < _VALUES_MIN:
        return False
    different = len(seen.unique()) - bool(seen.null_count)  # null is one of them; `count_distinct` takes twice as long
    return bool(different >= _DISTINCT_MIN * values)


def _leaves(schema: pa.Schema) -> Sequence[str]:
    """Return the path of each leaf of the schema in a file: pyarrow tells these only for files."""
    import pyarrow.parquet as pq  # importing it takes as long as everything else in a small process

    empty = io.BytesIO()
    pq.write_table(schema.empty_table(), empty)
    columns = pq.read_metadata(empty).schema
    return [columns.column(index).path for index in range(len(columns))]
