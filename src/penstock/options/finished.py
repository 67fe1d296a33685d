"""The options of the finished files of an output, read as a batch: `spark.read.format("penstock")`."""

from __future__ import annotations

from penstock.options.option import Option
from penstock.options.parsers import any_text, as_of, flag, identifier, text
from penstock.options.source import SOURCE

# The options of a source that say how a file is read. The ledgers say which files are read.
_READING = {"format", "schema", "splitSize", "partitionColumns", "metadataColumn", "decryptionKey"}
_ZONES = {"timeZone", "sessionTimeZone"}
BATCH = "batchRead"  # set by `penstock.register` for a batch read; a source cannot find this out in any other way

READING = tuple(
    option
    for option in SOURCE
    if (option.special and option.name != "mode") or option.name in _READING or option.name in _ZONES
)

OWN = (
    Option("path", None, text, "the output, whose finished files are read"),
    Option("sinkId", None, identifier, "of this sink only; unset: of all that write there"),
    Option(
        "asOf", None, as_of, "as it was with this record of the ledger: 12, or orders:12,returns:7; unset: as it is"
    ),
    Option("ignoreMissingFiles", "false", flag, "true: files that were deleted since they were published are left out"),
    Option("pathGlobFilter", None, text, "glob on the file name"),
)
FINISHED = (*OWN, *READING)
LIVE_FINISHED = (*FINISHED, Option(BATCH, None, any_text, ""))

# Options that only one kind of reading has, in lower case: an option of these tells which kind is meant.
FOR_BATCHES = frozenset({BATCH.lower(), "asof", "ignoremissingfiles"})
FOR_STREAMS = frozenset({"paths", "basepath", "emit", "statelocation", "sessiontimezone", "sessioncores"})
