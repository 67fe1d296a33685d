"""What monitors get about plain queries, from Spark's listener, their offsets and the ledger; and the behaviour of Spark it relies on."""

from __future__ import annotations

import os
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock import wal
from penstock.query import measured
from penstock.storage import HostFact
from tests.support.wait import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytest.importorskip("prometheus_client")


def test_a_plain_query_is_told_by_the_same_names(spark: SparkSession, tmp_path: Path) -> None:
    """A query of ours reports the counts of its offset and ledger, its batches, a heartbeat while idle, and nothing after its end."""
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


async def doubled(row: Any) -> dict[str, int]:  # a user's call
    return {"twice": 2 * row.offset}


@pytest.mark.soak  # `tests/metrics/test_listener.py` tests each part of this without Spark
def test_every_connector_is_told_by_the_same_names(spark: SparkSession, tmp_path: Path) -> None:
    """A log that is read, calls, and a database that is written each report their counts by query; this process reports its log."""
    with wal.Writer(tmp_path / "log") as log:
        log.append_many([b"one", b"two"])
    records = penstock.async_map(
        spark.readStream.format("penstock-wal").load(str(tmp_path / "log")), doubled, schema="twice bigint"
    )
    options = {"url": f"sqlite:///{tmp_path}/x.db", "table": "t", "checkpointLocation": str(tmp_path / "checkpoint")}
    with penstock.serve_metrics(spark, ":0") as served:
        query = records.writeStream.format("penstock-db").options(**options).start()
        mine = f'pipeline="",query="{query.id}"'

        def value(name: str, label: str = "") -> float:
            with urllib.request.urlopen(f"{served.url}/metrics", timeout=10) as response:  # noqa: S310 - an address of this test
                lines = response.read().decode().splitlines()
            return next(
                (float(line.split(" ")[-1]) for line in lines if line.startswith(f"penstock_{name}{{{label}{mine}}}")),
                -1.0,
            )

        try:
            wait_for(lambda: value("database_rows_total") == 2, "the rows of the transaction")
            assert value("database_rejected_total") == value("database_skipped_total") == 0
            assert value("database_seconds_total") > 0
            assert value("calls_total", 'outcome="rows",') == 2
            assert value("log_segment") >= 1
            assert value("log_offset") > 0
            assert value("syncs_total", 'phase="begin",') >= 1
        finally:
            query.stop()
        wait_for(lambda: value("database_rows_total") == -1, "the end")
        assert not [fact for fact in HostFact.all() if fact.path == measured._fact(str(query.id)).path]
        mine = 'pipeline="",query=""'
        assert value("log_records_total") >= 2
        assert value("syncs_total", 'phase="process",') >= 1
