"""What Spark finds of the format `penstock-kafka`, as `pyspark_penstock` is for `penstock`: one such package has one format."""

from __future__ import annotations

import contextlib

with contextlib.suppress(ImportError):
    from penstock.spark.kafka import TopicDataSource as DefaultSource  # noqa: F401 - Spark looks for the name
