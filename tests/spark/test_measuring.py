"""What monitors are told of plain queries: by Spark's listener, their offsets and the ledger; what of Spark that relies upon."""

from __future__ import annotations

import os
import urllib.request
from typing import TYPE_CHECKING

import pytest

import penstock
from tests.support.wait import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytest.importorskip("prometheus_client")


def test_a_plain_query_is_told_by_the_same_names(spark: SparkSession, tmp_path: Path) -> None:
    """A query of ours has the counts of its offset and its ledger, batches, a beat while it is idle, and nothing behind its end."""
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "a.txt"
    path.write_text("one\ntwo\n")
    os.utime(path, (path.stat().st_mtime - 60,) * 2)
    lines = spark.readStream.format("penstock").load(str(tmp_path / "in"))
    writer = lines.writeStream.format("penstock").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with penstock.serve_metrics(spark, ":0") as served:

        def samples() -> str:
            with urllib.request.urlopen(f"{served.url}/metrics", timeout=10) as response:  # noqa: S310 - an address of this test
                return str(response.read().decode())

        query = writer.start(str(tmp_path / "out"))
        mine = f'{{pipeline="",query="{query.id}"}}'
        try:
            wait_for(lambda: f"penstock_rows_total{mine} 2.0" in samples(), "the rows of the ledger")
            text = samples()
            for name, value in (
                ("input_files_total", 1),
                ("input_bytes_total", 8),
                ("left_files", 0),
                ("open_rows", 2),
                ("batch", 0),
            ):
                assert f"penstock_{name}{mine} {float(value)}" in text
            assert f"penstock_batches_total{mine}" in text
            first = served.meter.heartbeat(str(query.id))
            assert first is not None
            wait_for(lambda: (served.meter.heartbeat(str(query.id)) or 0) > first, "a beat of an idle query")
        finally:
            query.stop()
        wait_for(lambda: str(query.id) not in samples(), "the end")
