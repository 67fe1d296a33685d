"""The sink of an ingest, whose rows the stage makes of the splits that a task gets."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.ingestion.oneinput import IngestBatches
from penstock.ingestion.stage import CarriedRows, Stage, passes_text
from penstock.session import functions
from penstock.sink.existing import STAGE
from penstock.sink.sink import Sink
from penstock.sink.telling import Telling
from penstock.sink.tolerance import Tolerance
from penstock.storage import locate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from penstock.formats.account import Account
    from penstock.formats.aside import Aside
    from penstock.options import Options


def open_ingest(options: Options, sink_id: str) -> IngestBatches:
    """Return the batch sink with this id for the stage in `options`, parsed by `stage.LIVE_SINK`; the rows it gets carry splits."""
    sink, stage = sink_of(options, sink_id), Stage.of(options[STAGE])
    tolerance = Tolerance(stage.options["maxBadRecords"], stage.options["maxBadFraction"])
    return IngestBatches(sink, stage.schema, partial(_of_splits, options), tolerance, telling_of(sink))


def sink_of(options: Options, sink_id: str) -> Sink:
    """Return the sink with this id at the path in the options."""
    storage, root = locate(options["path"])
    return Sink(storage, root, options, sink_id)


def telling_of(sink: Sink) -> Telling | None:
    """Return the caller of the user's function for finished files, if there is one."""
    name = sink.options["onPublish"]
    return Telling(sink, name, partial(functions.told, name)) if name else None


def _of_splits(
    options: Options, rows: Iterator[pa.RecordBatch], account: Account, aside: Aside
) -> Iterable[pa.RecordBatch | bytes]:
    """Return the rows that the stage of an ingest makes of the splits that `rows` carry."""
    stage, errors = Stage.of(options[STAGE]), options["encodingErrors"]
    return CarriedRows(stage, rows, account, aside, text=passes_text(options), errors=errors)
