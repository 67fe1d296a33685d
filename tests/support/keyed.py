"""Batch writes driven as Spark drives them, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.options import SINK, parse
from penstock.sink.keyed import KeyedBatch
from penstock.sink.sink import Sink
from tests.support.output import TEXT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.sink.batch import Begun, Committed, TaskResult
    from penstock.storage import Storage


def writing(storage: Storage, root: str, key: str | None, **options: str) -> KeyedBatch:
    """Return the write of one batch of text."""
    sink = Sink(storage, root, parse(SINK, {"path": root, **options}, what="batch write"), "batch")
    return KeyedBatch(sink, TEXT, as_they_are, key)


def as_they_are(rows: Iterator[pa.RecordBatch], *_: object) -> Iterable[pa.RecordBatch]:
    """Convert nothing."""
    return rows


def staged(write: KeyedBatch, begun: Begun, rows: dict[int, list[str]]) -> list[TaskResult]:
    """Run the tasks of a batch: (partition -> lines)."""
    results = [
        write.write(begun, partition, 0, iter([pa.RecordBatch.from_arrays([pa.array(lines)], schema=TEXT)]))
        for partition, lines in rows.items()
    ]
    return [result for result in results if result is not None]


def run(write: KeyedBatch, rows: dict[int, list[str]]) -> Committed:
    """Write a batch from its beginning to its end."""
    write.check()
    begun = write.begin()
    return write.commit(begun, staged(write, begun, rows))
