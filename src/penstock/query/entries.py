"""What a query that runs without Spark writes to its checkpoint: Spark's own entries, so that Spark goes on from them, and it from Spark's.

Spark keeps a checksum beside each of its files, takes one that has none as it is, and one with a checksum of another file for damaged:
so an entry is put where none is, behind the removal of a checksum that is alone there.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock import clock
from penstock.errors import AlreadyThere
from penstock.storage import entry_at, locate

if TYPE_CHECKING:
    from penstock.query.checkpoint import Checkpoint

_KEPT_BATCHES = 100  # Spark's spark.sql.streaming.minBatchesToRetain
_MILLISECOND_NS = 1_000_000


class Entries:
    """The entries of one checkpoint, on this host. Each is durable when its call returns, and is put once."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._storage, self._path = locate(checkpoint.location, name="checkpoint")

    def begin(self, query: str) -> str:
        """Make the directories, and name the query, unless it has a name; return the name that counts."""
        for log in ("offsets", "commits"):
            self._storage.make_directory(f"{self._path}/{log}")
        with suppress(AlreadyThere):
            self._put("metadata", json.dumps({"id": query}, separators=(",", ":")))
        return self._checkpoint.query_id() or query

    def plan(self, number: int, offset: str) -> None:
        """Give batch `number` its entry in the offset log, with the offset of its one source; `AlreadyThere` if it has one.

        Spark's settings for state are those of the entry before. A query whose first batch Spark has not planned has none there: Spark
        takes those of its session then, and this query has no state.
        """
        before = self._checkpoint.entry(number - 1)[0][1:]
        settings = json.loads(before[0]) if before else {"batchWatermarkMs": 0, "conf": {}}
        settings |= {"batchTimestampMs": clock.now_ns() // _MILLISECOND_NS}
        self._put(f"offsets/{number}", "\n".join(("v1", json.dumps(settings, separators=(",", ":")), offset)))

    def done(self, number: int) -> None:
        """Note that batch `number` is committed, and forget the batches that Spark would not keep any more."""
        with suppress(AlreadyThere):
            self._put(f"commits/{number}", 'v1\n{"nextBatchWatermarkMs":0}')
        for log in ("commits", "offsets"):
            for old in self._checkpoint.numbers(log):
                if old >= number - _KEPT_BATCHES:
                    break
                self._storage.delete(f"{self._path}/{log}/{old}")
                self._storage.delete(f"{self._path}/{log}/.{old}.crc")

    def _put(self, name: str, text: str) -> None:
        path = f"{self._path}/{name}"
        if entry_at(self._storage, path) is None:
            directory, _, own = path.rpartition("/")
            self._storage.delete(f"{directory}/.{own}.crc")
        self._storage.put_if_absent(path, text.encode())
