"""What Spark finds: it imports every top-level package named `pyspark_*` and registers its `DefaultSource`.

So this must be light and must never raise, whatever is installed.
"""

from __future__ import annotations

import contextlib

with contextlib.suppress(ImportError):
    from penstock.spark.datasource import PenstockDataSource as DefaultSource  # noqa: F401 - Spark looks for the name
