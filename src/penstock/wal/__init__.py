"""A write-ahead log: what was acknowledged survives a crash, and what is read back is a prefix of what was appended.

*What lives here.* `form` is the format, byte by byte. `writer` (with `end`), `reader` (with `walk` and `salvage`) and
`log` state their guarantees; below them are `segment` and `order`. `manager` is the log of an operator that is restored
from checkpoints, and `runs` presents a log as a stream.

*What may be touched.* One directory of segments, through `storage`. A segment is never cut and never written over.

*What it may know.* Storage and what is below it. Records are bytes; no code here interprets them.
"""

from __future__ import annotations

from penstock.wal.form import RECORD_BYTES_MAX, LogBatch, Position
from penstock.wal.log import Info, Log
from penstock.wal.manager import Manager
from penstock.wal.reader import Reader
from penstock.wal.salvage import Skipped
from penstock.wal.writer import Writer

__all__ = ["RECORD_BYTES_MAX", "Info", "Log", "LogBatch", "Manager", "Position", "Reader", "Skipped", "Writer"]
