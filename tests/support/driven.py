"""A source without Spark: it plans batches, logs them as Spark logs offsets, and reads them as often as a test likes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.options import SOURCE, parse
from penstock.source import configured

if TYPE_CHECKING:
    import pyarrow as pa

TEXT = '{"type":"struct","fields":[{"name":"value","type":"string","nullable":true,"metadata":{}}]}'


class DrivenSource:
    """A source and its offset log, as in Spark; `rows` are those that `run` has read."""

    planner: Any
    """What `configured.planner` returned; a test says which of the planners it is."""

    def __init__(self, schema: str, **given: Any) -> None:
        self.given = given
        self.schema = schema
        self.log: list[str] = []
        self.rows: list[Any] = []
        self.restart()

    def restart(self) -> None:
        """Start over, as a new driver does."""
        self.options = parse(SOURCE, self.given, what="source")
        self.reading = configured.reading(self.options, self.schema)
        self.planner = configured.planner(self.options, self.reading)

    def plan(self) -> bool:
        """Plan a batch, if there is one, and log it."""
        start = json.loads(self.log[-1]) if self.log else self.planner.initial()
        end = self.planner.latest(start)
        if end == start:
            return False
        self.log.append(json.dumps(end))
        return True

    def batches(self, number: int = -1) -> list[pa.RecordBatch]:
        """Read a batch of the log."""
        splits = [split for task in self.planner.tasks(json.loads(self.log[number])) for split in task]
        return list(self.reading.batches(splits))

    def read(self, number: int = -1) -> list[Any]:
        """Read a batch of the log; return its rows: plain values if the schema is text alone, else tuples."""
        batches = self.batches(number)
        if self.schema == TEXT:
            return [row for batch in batches for row in batch.column(0).to_pylist()]
        return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]

    def run(self) -> list[Any]:
        """Take everything there is, batch by batch; return the rows."""
        rows = []
        while self.plan():
            rows += self.read()
        self.rows += rows
        return rows
