"""Found by every Python of a contender without syncs, and by nobody else: what is written is not made durable.

Python imports a module of this name at its start from any directory on PYTHONPATH. Each sync that is left out adds one
byte to the file that BENCHMARKS_SKIPPED_SYNCS names, so that the case can tell that it measured what it says.
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
