"""The format `penstock-wal`, as Spark finds it (see `pyspark_penstock`): each such package can have one format."""

from __future__ import annotations

import contextlib

with contextlib.suppress(ImportError):
    from penstock.spark.wal import LogDataSource as DefaultSource  # noqa: F401 - Spark looks for the name
