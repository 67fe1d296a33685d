"""The sink behind `format("penstock")`: the sink of files, for rows from Spark, or for splits in an ingest."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import OptionError
from penstock.formats.account import Account, Watch
from penstock.formats.conforming import conform
from penstock.formats.schema import to_arrow
from penstock.formats.strings import checked
from penstock.ingestion.loop import QueryBatches
from penstock.ingestion.writing import open_ingest, sink_of, telling_of
from penstock.sink.existing import STAGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from penstock.formats.aside import Aside
    from penstock.options import Options
    from penstock.sink.batches import FileBatches


def open_files(options: Options, schema: str, sink_id: str) -> FileBatches:
    """Return the sink of this name for rows of this schema, given as Spark's JSON."""
    if options[STAGE]:
        return open_ingest(options, sink_id)
    if options["quarantineLocation"]:
        msg = "quarantineLocation is for an ingest: what a query of your own sets aside is in its badRecordColumn"
        raise OptionError(msg)
    sink, arrow = sink_of(options, sink_id), columns_of_spark(schema)
    return QueryBatches(sink, arrow, partial(of_spark, options, arrow), telling=telling_of(sink))


def columns_of_spark(schema: str) -> pa.Schema:
    """Return the schema of rows that Spark hands over, given as Spark's JSON; `OptionError` without a column: they would be lost."""
    columns = to_arrow(schema)
    if not columns.names:
        msg = "the rows have no columns, and Spark does not tell Python how many such rows there are: expected at least one; select one"
        raise OptionError(msg)
    return columns


def of_spark(
    options: Options, schema: pa.Schema, rows: Iterator[pa.RecordBatch], account: Account, _: Aside
) -> Iterable[pa.RecordBatch]:
    """Return Spark's rows in the schema of the sink, with strings checked to be valid text; a `Conversion` of `sink.batches`."""
    return Watch(schema, account).through(checked(conform(batch, schema), options["encodingErrors"]) for batch in rows)
