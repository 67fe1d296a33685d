"""What a Python worker of Spark is told once: PySpark collects garbage after every task, 25 ms of looking at modules.

What is there by then is exempt, so that a task of a few megabytes does not cost a quarter more than it has to.
"""

from __future__ import annotations

import gc
from datetime import datetime, timezone
from functools import cache

import pyarrow as pa

from penstock.errors import OptionError
from penstock.formats.zones import UTC, zone_name


@cache
def settle_reader() -> None:
    """Exempt what a task that reads, or calls, has imported; called when it begins, once a process counts."""
    gc.freeze()


def session_zone() -> str:
    """Return the zone of the session of this task: what was set, else that of the machine, as in Spark.

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
    """Import what PySpark will import to answer, and exempt it all; called before the first row is asked for.

    pyarrow looks for pandas at its first array, PySpark makes one of the answer, and this can be done while what sends
    the rows still starts.
    """
    pa.array([b""])
    gc.freeze()
