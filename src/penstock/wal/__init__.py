"""A write-ahead log: what was acknowledged is there after a crash, and what is read back is a prefix of what was appended.

`form` is the format, byte by byte; `writer`, `reader` and `log` say what they keep of it; `manager` is the log of an operator
that is restored from checkpoints.
"""

from __future__ import annotations

from penstock.wal.form import RECORD_BYTES_MAX, LogBatch, Position
from penstock.wal.log import Info, Log
from penstock.wal.manager import Manager
from penstock.wal.reader import Reader
from penstock.wal.salvage import Skipped
from penstock.wal.writer import Writer

__all__ = ["RECORD_BYTES_MAX", "Info", "Log", "LogBatch", "Manager", "Position", "Reader", "Skipped", "Writer"]
