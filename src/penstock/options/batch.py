"""The options of a batch that is written, `df.write.format("penstock")`."""

from __future__ import annotations

from penstock.options.option import Option
from penstock.options.parsers import batch_key, identifier
from penstock.options.sink import SINK

SINK_ID = "batch"  # of all batches, unless the user says another one
# Of the options of a sink those about time, or about the query: a batch has no time, and leaves nothing open.
_OF_STREAMS = {
    *("rollInterval", "rollInactivity", "rollBatches", "growing", "partitionReady", "partitionReadyBy"),
    *("partitionReadyDelay", "onPublish", "quarantineLocation", "checkpointLocation", "queryName"),
}

OWN = (
    Option("batchKey", None, batch_key, "names the batch: written once, however often it is tried; unset: each time"),
    Option("sinkId", SINK_ID, identifier, "names the ledger that batches of this output have together"),
)
BATCH_SINK = (*OWN, *(option for option in SINK if option.name not in _OF_STREAMS | {"sinkId"}))
