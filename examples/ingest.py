"""Ingest JSON files into Parquet in one call: read, transform and write in one stage on the executors.

Run it with `python examples/ingest.py`. The same call again takes only what is new.
"""
# ruff: noqa: INP001, T201
# An example is a standalone script, and it prints what it did.

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

import penstock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock import Ingested


def in_euro(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Drop free items, and replace the price in cents by a price in euro. Runs on the executors."""
    paid = batch.filter(pc.greater(batch.column("cents"), 0))
    euro = pc.divide(paid.column("cents").cast(pa.float64()), 100.0)
    return pa.RecordBatch.from_arrays([paid.column("country"), euro], names=["country", "euro"])


def make_file(directory: Path, name: str, rows: int) -> None:
    """Write a file of sales."""
    directory.mkdir(exist_ok=True)
    sales = [{"country": ("de", "fr", None)[i % 3], "cents": 25 * (i % 4)} for i in range(rows)]
    (directory / name).write_text("".join(f"{json.dumps(sale)}\n" for sale in sales))


def ingest(spark: SparkSession, source: Path, output: Path) -> Ingested:
    """Take what is new."""
    return penstock.ingest(
        spark,
        str(source),
        str(output),
        source={"format": "json", "schema": "country string, cents bigint"},
        sink={"format": "parquet", "bucketBy": "country={country}"},
        transform=in_euro,
    )


def ingest_by_sql(spark: SparkSession, source: Path, output: Path) -> Ingested:
    """Do the same by Spark SQL, which Penstock evaluates on the executors, without Spark."""
    return penstock.ingest(
        spark,
        str(source),
        str(output),
        source={"format": "json", "schema": "country string, cents bigint"},
        sink={"format": "parquet", "bucketBy": "country={country}"},
        sql="select country, cents / 100 as euro from input where cents > 0",
    )


def main() -> None:
    """Ingest one file; then a second one; then both by SQL."""
    spark = penstock.local_session()
    with tempfile.TemporaryDirectory() as work:
        source, output = Path(work, "in"), Path(work, "out")
        for name in ("monday.json", "tuesday.json"):
            make_file(source, name, rows=1200)
            done = ingest(spark, source, output)
            print(f"{name}: batch {done.batch}; {done.input_files} files read in all, {done.rows} rows written in all")
        for path in sorted(output.glob("country=*/*.parquet")):
            print(f"  {path.relative_to(output).parent}  {path.stat().st_size} bytes")
        print(f"by SQL: {ingest_by_sql(spark, source, Path(work, 'by-sql')).rows} rows, the same")
    spark.stop()


if __name__ == "__main__":
    main()
