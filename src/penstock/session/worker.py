"""Settings of a Spark Python worker: which objects the garbage collector skips, and when memory is given back.

PySpark collects garbage after every task, and spends 25 ms on scanning modules. Objects that exist when a worker begins are exempt, so
that a task of a few megabytes does not cost a quarter more than it has to.

Spark keeps its workers, and they take turns: the worker that has waited longest gets the next task. A query has two workers for each
core, one that reads and one that writes, so soon all of them have had a large task. Allocators keep the memory of a task for the next
one, and a waiting worker would hold a hundred megabytes for nothing.
"""

from __future__ import annotations

import ctypes
import gc
import time
from datetime import datetime, timezone
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import OptionError
from penstock.formats.zones import UTC, zone_name
from penstock.processes import keep_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

_WORKED_SECONDS = 4.0  # giving a hundred megabytes back and getting them again takes a tenth of a second


@cache
def settle_reader() -> None:
    """Exempt what a task that reads, or calls, has imported; called when a task begins, and effective once in a process."""
    gc.freeze()


def session_zone() -> str:
    """Return the zone of the session of this task: the zone that was set, otherwise that of the machine, as in Spark.

    A zone that Python does not know is returned as it is.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    name: str | None = context.getLocalProperty("spark.sql.session.timeZone") if context else None
    if name is None:
        return UTC if _is_utc_here() else "that of this machine"
    try:
        return zone_name(name, "timeZone")
    except OptionError:
        return name


def _is_utc_here() -> bool:
    moments = (datetime(2026, month, 1, tzinfo=timezone.utc) for month in (1, 7))
    return not any(moment.astimezone().utcoffset() for moment in moments)


@cache
def settle_writer() -> None:
    """Import what PySpark will import to answer, and exempt it all; keep the memory of blocks. Called before the first row is requested.

    pyarrow looks for pandas at its first array, and PySpark makes an array of the answer; this can be done while the sender of the rows
    still starts.
    """
    pa.array([b""])
    gc.freeze()
    keep_blocks()


class KeptMemory:
    """The memory that the allocators of this process keep although nothing is in it."""

    def __init__(self, worked_seconds: float = _WORKED_SECONDS) -> None:
        self._worked_seconds = worked_seconds
        self._given_back = 0.0

    def give_back(self) -> None:
        """Give it back to the machine, unless the process has hardly worked since the last time; called when a task ends."""
        if time.process_time() - self._given_back < self._worked_seconds:
            return
        pa.default_memory_pool().release_unused()
        if (trim := _trim()) is not None:
            trim(0)
        self._given_back = time.process_time()


@cache
def _trim() -> Callable[[int], int] | None:
    """Return the C library's function that gives back unused memory; only one library has it."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


KEPT = KeptMemory()
