"""What Spark's checkpoint and task context tell a sink: read here, in one place, because none of it is documented.

- `<checkpoint>/metadata` holds the query id, before any batch.
- `<checkpoint>/offsets/<b>` is written before batch b runs and never changes: the batch in flight is the last one there,
  its content is the batch's fingerprint, and its lines from the third on are the sources' offsets.
- A task sees the query id and the batch id as local properties.

`tests/spark/test_contract.py` holds each of these against the installed Spark.
"""

from __future__ import annotations

import json
from operator import or_
from typing import TYPE_CHECKING, Any

import xxhash

from penstock.errors import NotThere, OptionError
from penstock.sink.sink import Batch
from penstock.storage import locate

if TYPE_CHECKING:
    from penstock.storage import Storage

_BATCH_ID = "streaming.sql.batchId"
_QUERY_ID = "sql.streaming.queryId"
_OFFSETS_FROM = 2  # the lines before are the version and Spark's own metadata


class Checkpoint:
    """The checkpoint of one query, as far as this process can read it."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._storage: Storage | None
        try:
            self._storage, self._path = locate(location, name="checkpointLocation")
        except OptionError:
            self._storage, self._path = None, location  # Spark may know file systems that we do not

    def query_id(self) -> str | None:
        """Return the query's id, `None` if it cannot be read here."""
        text = self._read("metadata")
        return None if text is None else str(json.loads(text)["id"])

    def current(self) -> Batch | None:
        """Return the batch in flight, `None` if it cannot be read here."""
        query = self.query_id()
        if self._storage is None or query is None:
            return None
        try:
            numbers = [int(name) for name in self._storage.names(f"{self._path}/offsets") if name.isdigit()]
        except NotThere:
            return None
        return self.batch(query, max(numbers)) if numbers else None

    def batch(self, query: str, number: int) -> Batch:
        """Return batch `number` with its fingerprint, and whether its sources say that it is the last of the run."""
        text = self._read(f"offsets/{number}")
        if text is None:
            return Batch(query, number)
        before = self._read(f"offsets/{number - 1}") or b""
        return Batch(query, number, xxhash.xxh3_64_hexdigest(text), _is_last(text.decode(), before.decode()))

    def persist(self, number: int) -> None:
        """Make batch `number` durable in the checkpoint, which Spark does not.

        Without that a power cut could take the plan of a batch that the ledger has. Spark would then plan the batch again,
        and the sink would have to refuse it. Called before the batch begins; that of the batches before it has been.
        """
        if self._storage is None:
            return
        parent, _, name = self._path.rpartition("/")
        if number == 0:
            self._storage.persist(parent or "/", [name])
            self._storage.persist(self._path, ["metadata", ".metadata.crc", "offsets"])
        self._storage.persist(f"{self._path}/offsets", [f"{number}", f".{number}.crc"])

    def _read(self, name: str) -> bytes | None:
        if self._storage is None:
            return None
        try:
            return self._storage.read(f"{self._path}/{name}")
        except NotThere:
            return None


def _is_last(text: str, before: str) -> bool:
    """Tell whether a batch is the last of its run, from its offsets and those of the batch before it.

    Each source must say so in its offset, or have had nothing for the batch: in an AvailableNow run it will then have
    nothing for another. What an idle source says is that of an earlier batch, perhaps of an earlier run.
    """
    lines, earlier = text.splitlines()[_OFFSETS_FROM:], before.splitlines()[_OFFSETS_FROM:]
    offsets = [_offset(line) for line in lines]
    still = [line in {"-", *earlier[i : i + 1]} or offsets[i].get("plan") == [] for i, line in enumerate(lines)]
    last = [offset.get("last") is True for offset in offsets]
    return any(last) and all(map(or_, last, still))


def _offset(line: str) -> dict[str, Any]:
    """Return an offset of our source, nothing for another source's."""
    try:
        offset = json.loads(line)
    except ValueError:
        return {}
    return offset if isinstance(offset, dict) and offset.get("v") == 1 else {}


def task_batch() -> tuple[str, int, int]:
    """Return (query id, batch id, partition) of the task this runs in."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query = context.getLocalProperty(_QUERY_ID) if context else None
    batch = context.getLocalProperty(_BATCH_ID) if context else None
    if context is None or query is None or batch is None:
        msg = "not in a task of a streaming query: the penstock sink is used with writeStream"
        raise OptionError(msg)
    return query, int(batch), context.partitionId()
