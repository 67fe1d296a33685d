"""A sink driven as Spark drives it, without Spark."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from penstock.options import SINK, Option, parse
from penstock.sink.sink import Batch, Begun, Committed, Sink, TaskResult
from penstock.storage import LocalStorage, Storage
from penstock.testing import FakeClock

TEXT = pa.schema([("value", pa.string())])
QUERY = "q1"


class Output:
    """An output directory, a clock, and drivers and tasks that write to the directory. `rows` are (writer -> lines)."""

    def __init__(self, root: Path, time: FakeClock) -> None:
        self.root = root
        self.time = time
        self.schema = TEXT
        self.storage: Storage = LocalStorage()
        self.table: tuple[Option, ...] = SINK

    def sink(self, *, sink_id: str = "s", **options: str) -> Sink:
        """Return a sink over the directory."""
        checked = parse(self.table, {"path": str(self.root), "mergeBelow": "1", **options}, what="sink")
        sink = Sink(self.storage, str(self.root), checked, sink_id)
        sink.layout.check(self.schema)
        return sink

    def batch(
        self,
        sink: Sink,
        number: int,
        rows: dict[int, list[str]],
        *,
        owner: str = "d1",
        query: str = QUERY,
        final: bool = False,
        mark: str = "",
        until_ns: int | None = None,
    ) -> Committed:
        """Run one batch from beginning to end."""
        batch = Batch(query, number, mark, final, until_ns)
        begun = sink.begin(owner, batch)
        return sink.commit(batch, self.write(sink, begun, number, rows, query=query))

    def write(
        self, sink: Sink, begun: Begun, number: int, rows: dict[int, list[str]], *, query: str = QUERY
    ) -> list[TaskResult]:
        """Run the tasks of a batch."""
        return [
            sink.write(begun, query, number, writer, self.schema, self.batches(lines)) for writer, lines in rows.items()
        ]

    def batches(self, lines: list[str]) -> Iterator[pa.RecordBatch]:
        """Return lines as Arrow batches of the schema: each line is split at `|` into columns."""
        if lines:
            columns = list(zip(*(line.split("|") for line in lines), strict=True))
            arrays = [pa.array(c, pa.string()).cast(f.type) for c, f in zip(columns, self.schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def visible(self, suffix: str = "") -> dict[str, str]:
        """Return what an outside reader sees: path -> text of everything outside of hidden and underscored directories."""
        seen = {}
        for folder, folders, names in os.walk(self.root):
            folders[:] = [f for f in folders if not f.startswith(("_", "."))]
            for name in filter(lambda n: n.endswith(suffix), names):
                data = (Path(folder) / name).read_bytes()
                data = gzip.decompress(data) if name.endswith(".gz") else data
                seen[os.path.relpath(f"{folder}/{name}", self.root)] = data.decode()
        return dict(sorted(seen.items()))

    def lines(self) -> list[str]:
        """Return all visible lines, sorted."""
        return sorted(line for text in self.visible().values() for line in text.splitlines())

    def staged(self) -> list[str]:
        """Return the names of the staged files of sink `s`."""
        folder = self.root / "_penstock/s/staging"
        return sorted(os.listdir(folder)) if folder.exists() else []
