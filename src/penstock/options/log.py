"""The options of a log, `format("penstock-wal")`."""

from __future__ import annotations

from penstock.options.option import Option
from penstock.options.parsers import log_starting, size, text

LOG = (
    Option("path", None, text, "directory of the log: a plain path, file:, hdfs:// or s3://"),
    Option("maxBytesPerTrigger", "1g", size, "at most that many bytes a batch, in whole groups"),
    Option("splitSize", "32m", size, "bytes that one task reads"),
    Option("startingFrom", "earliest", log_starting, "earliest, latest or a position"),
)
