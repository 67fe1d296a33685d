"""`metadataColumn` of tables and blocks: where a row is does not depend on how its file was cut. Without Spark."""

from __future__ import annotations

import io
import json
import os
from typing import TYPE_CHECKING

import fastavro
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import orc
from pyarrow import parquet as pq

from tests.support.advice import penstock

if TYPE_CHECKING:
    from pathlib import Path

PLACE = "_at struct<path: string, modified: timestamp, size: bigint, offset: bigint>"
ROWS = 5_000
CUT = ("--source-option", "splitSize=8k", "--source-option", "maxBytesPerTrigger=20k")


def table(name: str) -> bytes:
    """Return a file of rows in several row groups, stripes or blocks."""
    rows = pa.table({"id": range(ROWS), "text": [f"row {number}" for number in range(ROWS)]})
    file = io.BytesIO()
    if name == "parquet":
        pq.write_table(rows, file, row_group_size=500)
    elif name == "orc":
        orc.write_table(rows, file, stripe_size=4_000, batch_size=200)
    else:
        fields = [{"name": "id", "type": "long"}, {"name": "text", "type": "string"}]
        schema = {"type": "record", "name": "row", "fields": fields}
        fastavro.writer(file, schema, rows.to_pylist(), sync_interval=2_000)
    return file.getvalue()


def put(path: Path, data: bytes) -> None:
    """Write an input file that has settled."""
    path.parent.mkdir()
    path.write_bytes(data)
    os.utime(path, (1e9, 1e9))


@pytest.mark.parametrize("name", ["parquet", "orc", "avro"])
def test_rows_of_a_table_have_one_place_however_it_is_cut(tmp_path: Path, name: str) -> None:
    """A table that is read in ranges gives the places that it gives as a whole, in order; `verify` finds each row with its place."""
    put(tmp_path / "in/a", table(name))
    places = []
    for out, options in (("cut", CUT), ("whole", ())):
        schema = ("--schema", f"id bigint, text string, {PLACE}", "--source-option", "metadataColumn=_at")
        command = ("ingest", tmp_path / "in", tmp_path / out, "--format", name, "--to", "json", *schema, *options)
        status, said = penstock(*command)
        assert status == 0, said
        lines = [json.loads(line) for path in (tmp_path / out).glob("*.json") for line in path.read_text().splitlines()]
        places.append({line["id"]: line["_at"]["offset"] for line in lines})
        status, said = penstock("verify", tmp_path / out, "--source", tmp_path / "in")
        assert status == 0, said
    assert places[0] == places[1]
    in_order = [places[0][number] for number in range(ROWS)]
    assert in_order == sorted(in_order)
    assert in_order[0] < in_order[-1] < len(table(name))


def test_blocks_of_a_binary_file_are_put_together_by_their_offsets(tmp_path: Path) -> None:
    """APX-36: blocks of 1,500 bytes say where they begin, over batches and ranges; in their order they are the file."""
    data = b"".join(number.to_bytes(3, "big") for number in range(41_000))
    put(tmp_path / "in/a", data)
    options = ("--source-option", "metadataColumn=_at", "--source-option", "blockSize=1500", *CUT)
    status, said = penstock(
        "ingest", tmp_path / "in", tmp_path / "out", "--format", "binary", "--to", "parquet", *options
    )
    assert status == 0, said
    blocks = pl.read_parquet(tmp_path / "out/*.parquet").with_columns(offset=pl.col("_at").struct.field("offset"))
    assert sorted(blocks["offset"].to_list()) == list(range(0, len(data), 1_500))
    assert b"".join(blocks.sort("offset")["value"].to_list()) == data
    status, said = penstock("verify", tmp_path / "out", "--source", tmp_path / "in")
    assert status == 0, said
