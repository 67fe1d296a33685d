"""Times that Parquet stores as INT96, in twelve bytes: nanoseconds of a day, and the number of the day from 4713 BC on.

Spark writes its `timestamp` so unless it is told otherwise, and counts days before the first one as negative. Arrow takes the number for
one without a sign, and silently shows a time 68,146 years later: 5000 BC is in the year 63,147. Spark also lets its largest times, from the
year 287,533 on, overflow into negative days. Such times are recognised by what Arrow makes of them, and refused: they lie
before the first day or after the year 50,000.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadFile
from penstock.formats.nested import leaves

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# 4713-11-24 BC and 50000-01-01, in microseconds from 1970.
_FIRST, _END = -210_866_803_200_000_000, 1_515_680_380_800_000_000


def int96_leaves(described: Any, schema: pa.Schema) -> dict[str, list[bool]]:  # noqa: ANN401 - pyarrow's ParquetSchema
    """Return, by the name of each column of a file with INT96 in it, which of its leaves are INT96; `schema` is that of the file."""
    stored = [described.column(place).physical_type == "INT96" for place in range(len(described))]
    if not any(stored):
        return {}
    following = iter(stored)
    marks = {field.name: [next(following) for _ in leaves(pa.nulls(0, field.type))] for field in schema}
    return {name: of_leaves for name, of_leaves in marks.items() if any(of_leaves)}


def check_int96(rows: pa.RecordBatch, marks: Mapping[str, Sequence[bool]]) -> None:
    """Raise `BadFile` if a leaf that is INT96 has a time that Arrow cannot have read right."""
    for name in rows.schema.names:
        for leaf, is_int96 in zip(leaves(rows.column(name)), marks.get(name, ()), strict=False):
            if is_int96 and not _is_within(leaf.cast(pa.int64())):
                msg = (
                    f"column {name!r} has a time before 4713 BC or after the year 50,000 as INT96, which Arrow may take for another time; "
                    "have Spark read the file and write it again with spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS"
                )
                raise BadFile(msg)


def _is_within(micros: pa.Array) -> bool:
    lowest, highest = pc.min_max(micros).as_py().values()
    return lowest is None or (lowest >= _FIRST and highest < _END)
