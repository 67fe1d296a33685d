"""Loaded by every Python of a contender without syncs, and by no other: written data is not made durable.

At its start Python imports a module of this name from any directory on PYTHONPATH. Each skipped sync adds one
byte to the file that BENCHMARKS_SKIPPED_SYNCS names, so that the case can check that syncs were skipped.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any


def _nothing(fd: Any) -> None:  # noqa: ANN401, ARG001 - the signature of what it replaces
    """Do nothing but count."""
    with open(os.environ["BENCHMARKS_SKIPPED_SYNCS"], "ab", buffering=0) as count:  # noqa: PTH123 - pathlib need not be loaded
        count.write(b".")


os.fsync = os.fdatasync = _nothing
with contextlib.suppress(ImportError):
    import hdfs_native

    hdfs_native.FileWriter.hsync = _nothing
