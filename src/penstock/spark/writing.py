"""What `format("penstock")` writes to: the sink of files, for rows of Spark's, or for splits in an ingest."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import OptionError
from penstock.formats.account import Account, Watch
from penstock.formats.conforming import conform
from penstock.formats.schema import to_arrow
from penstock.formats.strings import checked
from penstock.ingestion.stage import CarriedRows, Stage, passes_text
from penstock.session import functions
from penstock.sink.batches import FileBatches
from penstock.sink.existing import STAGE
from penstock.sink.sink import Sink
from penstock.sink.telling import Telling
from penstock.sink.tolerance import Tolerance
from penstock.storage import locate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from penstock.formats.aside import Aside
    from penstock.options import Options


def open_files(options: Options, schema: str, sink_id: str) -> FileBatches:
    """Return the sink of this name for rows of this schema, Spark's JSON."""
    stage = options[STAGE]
    arrow = Stage.of(stage).schema if stage else to_arrow(schema)
    storage, root = locate(options["path"])
    sink = Sink(storage, root, options, sink_id)
    name = options["onPublish"]
    telling = Telling(sink, name, partial(functions.told, name)) if name else None
    if not stage:
        if options["quarantineLocation"]:
            msg = "quarantineLocation is for an ingest: what a query of your own sets aside is in its badRecordColumn"
            raise OptionError(msg)
        return FileBatches(sink, arrow, partial(of_spark, options, arrow), telling=telling)
    source = Stage.of(stage).options
    tolerance = Tolerance(source["maxBadRecords"], source["maxBadFraction"])
    return FileBatches(sink, arrow, partial(_of_splits, options), tolerance, telling)


def of_spark(
    options: Options, schema: pa.Schema, rows: Iterator[pa.RecordBatch], account: Account, _: Aside
) -> Iterable[pa.RecordBatch]:
    """Return Spark's rows in the schema of the sink, with strings that are text; a `Conversion` of `sink.batches`."""
    return Watch(schema, account).through(checked(conform(batch, schema), options["encodingErrors"]) for batch in rows)


def _of_splits(
    options: Options, rows: Iterator[pa.RecordBatch], account: Account, aside: Aside
) -> Iterable[pa.RecordBatch | bytes]:
    """Return what the stage of an ingest makes of the splits that Spark's rows carry."""
    stage, errors = Stage.of(options[STAGE]), options["encodingErrors"]
    return CarriedRows(stage, rows, account, aside, text=passes_text(options), errors=errors)
