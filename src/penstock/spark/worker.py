"""What a Python worker of Spark is told once: PySpark collects garbage after every task, 25 ms of looking at modules.

What is there by then is exempt, so that a task of a few megabytes does not cost a quarter more than it has to.
"""

from __future__ import annotations

import gc
from functools import cache

import pyarrow as pa


@cache
def settle_reader() -> None:
    """Exempt what a task that reads, or calls, has imported; called when it begins, once a process counts."""
    gc.freeze()


@cache
def settle_writer() -> None:
    """Import what PySpark will import to answer, and exempt it all; called before the first row is asked for.

    pyarrow looks for pandas at its first array, PySpark makes one of the answer, and this can be done while what sends
    the rows still starts.
    """
    pa.array([b""])
    gc.freeze()
