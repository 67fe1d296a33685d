"""Spark's calls to the sink, made by hand: what a checkpoint tells a driver that is not the only one."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import CheckpointMismatch, Fenced
from penstock.options import SINK, parse
from penstock.sink.sink import Sink
from penstock.spark import writing
from penstock.spark.checkpoint import Checkpoint

TEXT = pa.schema([("value", pa.string())])


class Query:
    """A checkpoint as Spark keeps it, and the sink of its query."""

    def __init__(self, root: Path) -> None:
        self.offsets = root / "checkpoint" / "offsets"
        self.offsets.mkdir(parents=True)
        (root / "checkpoint" / "metadata").write_text('{"id": "q"}')
        options = {"path": str(root / "out"), "checkpointLocation": str(root / "checkpoint")}
        self.sink: Sink = writing.sink(parse(SINK, options, what="sink"), TEXT)

    def plan(self, number: int) -> None:
        """Have Spark plan a batch."""
        (self.offsets / str(number)).write_text(f"v1\n{{}}\n{json.dumps({'offset': number})}")

    def run(self, number: int, owner: str) -> None:
        """Have a driver plan, write and commit a batch of one row."""
        self.plan(number)
        batch = Checkpoint(str(self.offsets.parent)).batch("q", number)
        begun = self.sink.begin(owner, batch)
        self.sink.commit(batch, [self.sink.write(begun, "q", number, 0, TEXT, [b"row\n"])])


@pytest.fixture
def query(tmp_path: Path) -> Query:
    made = Query(tmp_path)
    made.run(0, "first")
    made.plan(1)
    return made


def test_driver_that_is_overtaken_before_its_batch_begins_is_fenced(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the checkpoint, stands still in the sync that follows, and finds the sink further on: that is `Fenced`."""
    persist = Checkpoint.persist

    def stand_still(self: Checkpoint, number: int) -> None:
        persist(self, number)
        for later in range(1, 4):
            query.run(later, "second")

    monkeypatch.setattr(Checkpoint, "persist", stand_still)
    with pytest.raises(Fenced, match="batch 1 of query q is not the last one"):
        writing.begin(query.sink)
    assert query.sink.ledger.head().owner == "second"


def test_restored_checkpoint_is_not_fenced(query: Query) -> None:
    """A checkpoint that is older than the output, and that nobody moves, is a mismatch."""
    for later in range(1, 4):
        query.run(later, "second")
    for later in range(2, 4):
        (query.offsets / str(later)).unlink()
    with pytest.raises(CheckpointMismatch, match="restored from an older copy"):
        writing.begin(query.sink)
