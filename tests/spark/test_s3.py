"""An ingest from and to an object store, with its checkpoint on a disk: it is killed once, and independent readers read the output."""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import closing
from pathlib import Path

import polars as pl
import pyarrow.dataset as ds
import pytest
from pyarrow.fs import S3FileSystem

from penstock.verify import verify
from tests.support.stage import run_python
from tests.support.stores import KEY, SECRET, running, use

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("programs")]

INGEST = """
import sys, penstock
src, dst, checkpoint = sys.argv[1:]
spark = penstock.local_session("local[2]", rows_in_jvm=False)
sink = {"format": "parquet", "rollSize": "20k", "bucketBy": "k={k}"}
source = {"format": "json", "schema": "n long, k string", "maxBytesPerTrigger": "50k", "settle": "0s"}
report = penstock.ingest(spark, src, dst, source=source, sink=sink, checkpoint=checkpoint)
print("DONE", report.rows)
"""
FILES, ROWS = 6, 700


@pytest.mark.timeout(300)
def test_an_ingest_from_and_to_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark is killed after the put of a record and started again: any reader then sees each row once.

    No state, offset or output contains a key of the store.
    """
    (tmp_path / "store").mkdir()
    with running("moto", tmp_path / "store") as store:
        source, output = f"{store.make('bucket')}/in", "s3a://bucket/out"
        use(store, monkeypatch)
        with closing(store.client()) as client:
            for number in range(FILES):
                rows = ({"n": number * ROWS + row, "k": "ab"[row % 2]} for row in range(ROWS))
                lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
                client.put_object(Bucket="bucket", Key=f"in/{number}.json", Body=lines)
        arguments = source, output, str(tmp_path / "checkpoint")
        killed = run_python(INGEST, *arguments, failpoints="sink.ledger.after-put=kill-jvm@2", timeout=140)
        assert "DONE" not in killed.stdout, "it was never reached"
        assert not rows_of(store.endpoint) - expected()
        final = run_python(INGEST, *arguments, timeout=140)
        assert f"DONE {FILES * ROWS}" in final.stdout, final.stderr[-3000:]
        assert rows_of(store.endpoint) == expected()
        options = {"aws_endpoint_url": store.endpoint, "aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
        glob = pl.scan_parquet("s3://bucket/out/k=*/*.parquet", storage_options={**options, "aws_region": "us-east-1"})
        assert glob.select(pl.len()).collect().item() == FILES * ROWS
        report = verify(output, source)
        assert report.ok, report
        with closing(store.client()) as client:
            keys = [found["Key"] for found in client.list_objects_v2(Bucket="bucket")["Contents"]]
            texts = [client.get_object(Bucket="bucket", Key=key)["Body"].read() for key in keys]
    texts += [file.read_bytes() for file in (tmp_path / "checkpoint").rglob("*") if file.is_file()]
    assert not [text for text in texts if SECRET.encode() in text or os.fsencode(store.endpoint) in text]
    assert SECRET not in killed.stderr + final.stderr + killed.stdout + final.stdout


def expected() -> Counter[tuple[int, str]]:
    """Return all rows."""
    return Counter((number * ROWS + row, "ab"[row % 2]) for number in range(FILES) for row in range(ROWS))


def rows_of(endpoint: str) -> Counter[tuple[int, str]]:
    """Return the rows of the output, as Arrow's own S3 client reads them."""
    system = S3FileSystem(access_key=KEY, secret_key=SECRET, endpoint_override=endpoint, region="us-east-1")
    table = ds.dataset("bucket/out", filesystem=system, format="parquet", partitioning="hive").to_table()
    return Counter(zip(table["n"].to_pylist(), table["k"].to_pylist(), strict=True))
