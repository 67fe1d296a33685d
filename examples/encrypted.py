"""Ingest JSON files, some of them encrypted, into encrypted Parquet that two people can read, and the cluster cannot.

Run it with `python examples/encrypted.py`, after `pip install 'penstock[age]'`. The example makes its own keys; otherwise `age-keygen`
makes them, and only the readers have the readers' keys.
"""
# ruff: noqa: INP001, T201
# An example is a standalone script, and it prints what it did.

from __future__ import annotations

import io
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pyrage

import penstock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def make_files(directory: Path, to: pyrage.x25519.Recipient) -> None:
    """Write an unencrypted file of sales, and an encrypted one."""
    directory.mkdir()
    for name in ("monday.json", "tuesday.json.age"):
        sales = [{"customer": f"{name[:3]}-{i}", "cents": 25 * i} for i in range(600)]
        data = "".join(f"{json.dumps(sale)}\n" for sale in sales).encode()
        (directory / name).write_bytes(pyrage.encrypt(data, [to]) if name.endswith(".age") else data)


def ingest(spark: SparkSession, source: Path, output: Path, readers: Path) -> penstock.Ingested:
    """Take what is new."""
    return penstock.ingest(
        spark,
        str(source),
        str(output),
        source={"format": "json", "schema": "customer string, cents bigint", "decryptionKey": "env:INPUT_KEY"},
        sink={"format": "parquet", "encryptTo": f"file:{readers}", "encryptionKey": "env:STAGING_KEY"},
    )


def seen(path: Path, key: pyrage.x25519.Identity) -> str:
    """Return what the owner of a key reads from a file."""
    try:
        table = pq.read_table(io.BytesIO(pyrage.decrypt(path.read_bytes(), [key])))
    except pyrage.DecryptError:
        return "nothing"
    return f"{table.num_rows} rows"


def main() -> None:
    """Ingest, look for rows in plain text on the disk, and read as one of the readers."""
    alice, bob, cluster, staging = (pyrage.x25519.Identity.generate() for _ in range(4))
    os.environ |= {"INPUT_KEY": str(cluster), "STAGING_KEY": str(staging)}  # before Spark starts: its workers need them
    spark = penstock.local_session()
    with tempfile.TemporaryDirectory() as work:
        source, output, readers = Path(work, "in"), Path(work, "out"), Path(work, "readers")
        make_files(source, cluster.to_public())
        readers.write_text(f"# who reads sales\n{alice.to_public()}\n{bob.to_public()}\n")
        done = ingest(spark, source, output, readers)
        clear = [path for path in output.rglob("*") if path.is_file() and b"mon-" in path.read_bytes()]
        print(f"{done.rows} rows of {done.input_files} files; rows in clear below the output: {len(clear)} files")
        (path,) = output.glob("*.age")
        for name, key in (("alice", alice), ("bob", bob), ("the cluster", cluster), ("its staging key", staging)):
            print(f"  {name} reads {seen(path, key)}")
    spark.stop()


if __name__ == "__main__":
    main()
