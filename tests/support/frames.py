"""Rows of a DataFrame as the sink receives them, as it writes them, and as Spark prints them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.formats.conforming import conform
from penstock.formats.schema import to_arrow
from penstock.query.batch import Batch
from penstock.testing import FakeClock
from tests.support.output import Output

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame


def arrow(rows: DataFrame, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Return the rows as the sink receives them. (`toArrow` casts, and takes the members of a null struct for nulls.)"""
    return [conform(batch, schema) for batch in rows._collect_as_arrow()]  # type: ignore[operator]  # one of the classic class alone


def shown(rows: DataFrame) -> list[str]:
    """Return the rows as Spark prints them, in no order."""
    return sorted(row[0] for row in rows.selectExpr("to_json(struct(*), map('ignoreNullFields', 'false'))").collect())


def written(rows: DataFrame, root: Path, **options: str) -> str:
    """Write the rows, one batch per Arrow batch, and finish; return the directory."""
    output = Output(root, FakeClock())
    output.schema = schema = to_arrow(rows.schema.json())
    sink = output.sink(**options)
    for number, batch in enumerate(arrow(rows, schema)):
        begun = sink.begin("d")
        sink.commit(Batch("q", number), [sink.write(begun, "q", number, 0, schema, iter([batch]))])
    sink.finish()
    return str(root)
