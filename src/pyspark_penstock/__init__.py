"""The format `penstock`, as Spark finds it: Spark imports every top-level package `pyspark_*` and registers its `DefaultSource`.

So this module must be light and must never raise, whatever is installed.
"""

from __future__ import annotations

import contextlib

with contextlib.suppress(ImportError):
    from penstock.spark.datasource import PenstockDataSource as DefaultSource  # noqa: F401 - Spark looks for the name
