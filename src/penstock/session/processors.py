"""How many processors a process may use at a time."""

from __future__ import annotations

import os
from contextlib import suppress

from penstock.errors import StorageError
from penstock.storage import LocalStorage

_QUOTA = "/sys/fs/cgroup/cpu.max"


def cores() -> int:
    """Return how many processors this process may use at a time, as Java counts them: its CPU affinity, limited by its group's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(StorageError, ValueError):  # another system, or no limit ("max")
        quota, period = map(int, LocalStorage().read(_QUOTA).split())
        count = min(count, max(-(-quota // period), 1))
    return count
