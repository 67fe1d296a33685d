"""Tables to which files are added, read by engines that know neither Penstock nor each other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import fastavro
import polars as pl
import pyarrow as pa

from penstock.catalogs.follower import Catalogued, catalog
from penstock.sink.sink import Batch
from tests.support.output import QUERY, Output

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])
TABLE = "logs.events"
Row = tuple[Any, ...]


class Table:
    """A table over one output. `kind` is iceberg or delta."""

    def __init__(self, kind: str, output: Output) -> None:
        self.kind = kind
        self.root = output.root

    @property
    def flags(self) -> list[str]:
        """Return the flags for the command."""
        return ["--delta"] if self.kind == "delta" else ["--iceberg", TABLE]

    def follow(self, **options: Any) -> Catalogued:
        """Add the new files to the table."""
        return catalog(self.root, **({"delta": True} if self.kind == "delta" else {"iceberg": TABLE}), **options)

    def opened(self) -> Any:
        """Return the table as its own library opens it."""
        if self.kind == "delta":
            import deltalake  # noqa: PLC0415 - optional

            return deltalake.DeltaTable(str(self.root))
        return self.catalogue().load_table(TABLE)

    def catalogue(self) -> Any:
        """Return the catalogue that is created if none is named."""
        from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415 - optional

        place = self.root / "_iceberg"
        return SqlCatalog("penstock", uri=f"sqlite:///{place}/catalog.db", warehouse=str(place))

    def append(self, rows: Sequence[Row]) -> None:
        """Append rows, as another program does."""
        added = pa.Table.from_pylist([dict(zip(COLUMNS.names, row, strict=True)) for row in rows], COLUMNS)
        if self.kind == "delta":
            import deltalake  # noqa: PLC0415 - optional

            deltalake.write_deltalake(str(self.root), added, mode="append")
        else:
            self.opened().append(added)

    def scan(self) -> pl.DataFrame:
        """Return the rows as polars reads them."""
        if self.kind == "delta":
            return pl.scan_delta(str(self.root)).collect()
        return pl.scan_iceberg(self.opened()).collect()

    def rows(self, *columns: str) -> list[Row]:
        """Return the rows that polars reads, sorted."""
        return sorted(self.scan().select(columns or ("id", "name")).rows(), key=repr)

    def places(self) -> list[str]:
        """Return the files that the table's own metadata lists: JSON of Delta's log, Avro of Iceberg's lists."""
        return sorted(self._delta_places() if self.kind == "delta" else self._iceberg_places())

    def _delta_places(self) -> list[str]:
        added: list[str] = []
        for log in sorted((self.root / "_delta_log").glob("*.json")):
            for line in log.read_text().splitlines():
                action = json.loads(line)
                if "add" in action:
                    added.append(f"{self.root}/{unquote(action['add']['path'])}")
                if "remove" in action:
                    added.remove(f"{self.root}/{unquote(action['remove']['path'])}")
        return added

    def _iceberg_places(self) -> list[str]:
        metadata = json.loads(Path(self.opened().metadata_location).read_text())
        (snapshot,) = [shot for shot in metadata["snapshots"] if shot["snapshot-id"] == metadata["current-snapshot-id"]]
        entries = [
            entry
            for manifest in _avro(snapshot["manifest-list"])
            for entry in _avro(manifest["manifest_path"])
            if entry["status"] != 2  # status 2 means deleted
        ]
        return [entry["data_file"]["file_path"] for entry in entries]

    def count(self) -> int:
        """Return how many rows DuckDB counts in the table's files; a file that is listed twice counts twice."""
        places = [place.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]") for place in self.places()]
        with closing(duckdb.connect()) as connection:
            return sum(connection.execute("SELECT count(*) FROM read_parquet(?)", [p]).fetchall()[0][0] for p in places)


def _avro(place: str) -> list[Any]:
    with Path(place).open("rb") as file:
        return list(fastavro.reader(file))


class Writer:
    """A Parquet sink that publishes one file per list of rows."""

    def __init__(self, output: Output, sink: str = "s", **options: str) -> None:
        output.schema = COLUMNS
        self._output = output
        self._sink = output.sink(sink_id=sink, format="parquet", rollBatches="1", **options)
        self._batch = 0

    def start_at(self, batch: int) -> None:
        """Continue with this batch."""
        self._batch = batch

    def publish(self, *files: Sequence[Row], schema: pa.Schema | None = None) -> None:
        """Write a batch in which each task ends one file."""
        self._output.schema = schema or COLUMNS
        lines = {task: ["|".join(map(str, row)) for row in rows] for task, rows in enumerate(files)}
        self._output.batch(self._sink, self._batch, lines, mark=str(self._batch), query=f"of {self._sink.sink_id}")
        self._batch += 1


def write(output: Output, number: int, rows: pa.Table) -> None:
    """Publish a table as one file, as batch `number` of one query."""
    output.schema = rows.schema
    sink = output.sink(format="parquet", rollBatches="1")
    begun = sink.begin("d1", batch := Batch(QUERY, number, str(number)))
    results = [sink.write(begun, QUERY, number, 0, rows.schema, iter(rows.to_batches()))]
    sink.commit(batch, results)
