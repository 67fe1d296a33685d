"""The measures of a query that its offsets and ledgers hold, by the names that monitors know. Pure; needs no Spark.

Called by the listener that measures queries, for each batch that ends.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.clock import SECOND_NS
from penstock.ingestion.late import counts
from penstock.ingestion.topics import left_of
from penstock.kafka.offset import OURS
from penstock.wal.form import Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.sink.ledger import State

_PARTITIONS = 100  # of one query, at most


def offsets_in(ends: Iterable[object]) -> Iterator[dict[str, Any]]:
    """Yield the offsets at which the sources of a query ended, given as objects or as JSON from Spark's reports; skip all others."""
    for end in ends:
        with suppress(ValueError, TypeError):
            offset = end if isinstance(end, dict) else json.loads(end)  # type: ignore[arg-type]  # raises for anything but text
            if isinstance(offset, dict):
                yield offset


def left_by_partition(ends: Iterable[object]) -> dict[str, float]:
    """Return how many offsets are left in each partition, over all sources of a query, for the hundred partitions with the most."""
    left = Counter[str]()
    for offset in offsets_in(ends):
        left.update(left_of(offset))
    return dict(left.most_common(_PARTITIONS))


def of_offset(offset: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the measures of the input that an offset holds; empty if the offset is not from one of our sources."""
    if {"read", "left", "sum"} <= offset.keys():
        return _of_files(offset)
    if {"v", "log", "position", "cuts"} <= offset.keys():
        at = Position.parse(offset["position"])
        return {"log_segment": at.segment, "log_offset": at.offset}
    if isinstance(own := offset.get(OURS), dict):
        return {"input_offsets": own.get("read"), "left_offsets": own.get("left")}
    return {}


def _of_files(offset: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the measures of the input that the offset of a source of files holds."""
    (files, size), (left_files, left_size) = offset["read"], offset["left"]
    oldest_ns = offset.get("oldest")
    return {
        "input_files": files,
        "input_bytes": size,
        "left_files": left_files,
        "left_bytes": left_size,
        "oldest_left_timestamp_seconds": None if oldest_ns is None else oldest_ns / SECOND_NS,
        **counts(offset),
    }


def of_ledger(head: State) -> dict[str, float | None]:
    """Return the measures of the output that the last record of a ledger holds."""
    parts = [part for part in head.open if not part.is_aside]
    opened_ns = min((part.opened_ns for part in parts), default=None)
    return {
        "rows": head.total_rows,
        "output_files": head.total_files - head.aside.parts,
        "output_bytes": head.total_bytes - head.aside.bytes,
        "open_parts": len(parts),
        "open_rows": sum(part.rows for part in parts),
        "open_since_timestamp_seconds": None if opened_ns is None else opened_ns / SECOND_NS,
    }
