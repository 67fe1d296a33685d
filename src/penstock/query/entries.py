"""Writes entries of a checkpoint in Spark's own form, so that Spark and a query without Spark can continue what the other began.

An entry is put only where no entry is (`Checkpoint.put`).
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import UUID

from penstock import clock, unique
from penstock.errors import AlreadyThere
from penstock.query.offsetlog import LogEntry
from penstock.storage import locate

if TYPE_CHECKING:
    from penstock.query.checkpoint import Checkpoint

_KEPT_BATCHES = 100  # Spark's spark.sql.streaming.minBatchesToRetain
_MILLISECOND_NS = 1_000_000


class Entries:
    """The entries of one checkpoint, on this host. Each is durable when its call returns, and is put once."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._storage, self._path = locate(checkpoint.location, name="checkpoint")

    def begin(self) -> str:
        """Make the directories, and name the query, unless it has a name; return the name that counts."""
        for log in ("offsets", "commits"):
            self._storage.make_directory(f"{self._path}/{log}")
        if (named := self._checkpoint.query_id()) is not None:
            return named
        query = str(UUID(unique.token()))
        with suppress(AlreadyThere):  # another driver has named it since
            self._checkpoint.put("metadata", json.dumps({"id": query}, separators=(",", ":")).encode())
        return self._checkpoint.query_id() or query

    def plan(self, number: int, offset: str) -> None:
        """Write the entry of batch `number` to the offset log, with the offset of its one source; `AlreadyThere` if it has one.

        Spark's settings for state and the name of the source are copied from the entry before. A query whose first batch was not
        planned by Spark has no such settings: Spark then takes those of its session, and this query has no state.
        """
        before = self._checkpoint.entry(number - 1)
        version, *own = before.head if before.sources else (b"v1",)
        settings = json.loads(own[0]) if own else {"batchWatermarkMs": 0, "conf": {}}
        settings |= {"batchTimestampMs": clock.now_ns() // _MILLISECOND_NS}
        entry = LogEntry((version, json.dumps(settings, separators=(",", ":")).encode()))
        text = entry.written(dict.fromkeys(before.sources or ("0",), offset.encode()))
        self._checkpoint.put(f"offsets/{number}", text)

    def done(self, number: int) -> None:
        """Note that batch `number` is committed, and delete the entries of batches that Spark would not keep any more."""
        with suppress(AlreadyThere):
            self._checkpoint.put(f"commits/{number}", b'v1\n{"nextBatchWatermarkMs":0}')
        for log in ("commits", "offsets"):
            for old in self._checkpoint.numbers(log):
                if old >= number - _KEPT_BATCHES:
                    break
                self._storage.delete(f"{self._path}/{log}/.{old}.crc")
                self._storage.delete(f"{self._path}/{log}/{old}")
