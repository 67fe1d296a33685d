"""Counters of what this process has done, for monitors: waits for a disk, rows of databases, records of logs. They only grow.

Code that does such work counts it here, in a microsecond, without knowing who will ask; nothing is decided by a count.
Many processes work for one query. Each sends what it counted (`Counted`) along with its results to the place where the
batch is committed, and from there it reaches the code that measures the query (`query.measured`). Work that belongs to
no query, such as a log that this process writes, is reported for the process.

A name is that of a measure in `metrics.names`; after a space follows the value of its label.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from penstock import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ResultT = TypeVar("ResultT")

SYNCS, SYNC_SECONDS = "syncs", "sync_seconds"
LOG_RECORDS, LOG_BYTES, LOG_FLUSHES = "log_records", "log_bytes", "log_flushes"
DATABASE_ROWS, DATABASE_REJECTED, DATABASE_SKIPPED = "database_rows", "database_rejected", "database_skipped"
DATABASE_SECONDS = "database_seconds"
CALLS = "calls"

_lock = threading.Lock()
_amounts: Counter[str] = Counter()


def _unlock() -> None:
    global _lock  # noqa: PLW0603 - at a fork, a thread that the child does not have may hold it
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)


def add(amounts: Mapping[str, float]) -> None:
    """Count up."""
    with _lock:
        for name, amount in amounts.items():
            _amounts[name] += amount  # type: ignore[assignment]  # seconds are added up as well


def synced(sync: Callable[..., ResultT], *given: object) -> ResultT:
    """Call what waits until something is durable; count the call and the time that it took."""
    begin = clock.monotonic()
    try:
        return sync(*given)
    finally:
        add({SYNCS: 1, SYNC_SECONDS: clock.monotonic() - begin})


def amounts() -> dict[str, float]:
    """Return everything that was counted in this process."""
    with _lock:
        return dict(_amounts)


def of_process() -> dict[str, float]:
    """Return the counts that are reported for the process itself: its logs, and its waits for a disk."""
    own = {name: amount for name, amount in amounts().items() if name.startswith("log_")}
    waits = {f"{name} process": amount for name, amount in amounts().items() if name in {SYNCS, SYNC_SECONDS}}
    return own | waits if own else {}


class Counted:
    """What this process counts from now on, in any of its threads."""

    def __init__(self) -> None:
        self._before = amounts()

    def amounts(self) -> dict[str, float]:
        """Return what was added so far, and 0 for what was never counted before, so that a monitor knows of it."""
        before = self._before
        grown = {name: amount - before.get(name, 0) for name, amount in amounts().items()}
        return {name: amount for name, amount in grown.items() if amount or name not in before}
