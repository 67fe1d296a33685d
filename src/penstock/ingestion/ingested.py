"""The report of what an ingest has done, for its caller, the pages and the metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.ingestion.late import counts
from penstock.ingestion.topics import counts_of, left_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.sink.ledger import State
    from penstock.sink.sink import Sink


@dataclass(frozen=True)
class Ingested:
    """What an ingest has done: input since the checkpoint began, output since the sink began.

    - `batch`: the last batch. `query`: the id by which Spark knows the query, once it has one.
    - `input_*`: what was planned. `left_*`: input that is there and was not planned yet; `oldest_left_ns` is the modification
      time of the oldest such file, 0 if there is none.
    - `rows`, `output_*`: what was written. `open_parts` are not finished yet; `open_since_ns` is when the oldest of them was
      opened, 0 if there is none.
    - `waiting`: a watching ingest has read everything that is there, and waits for more.
    - Files that were not read (see `penstock.late`): `late_files` came too late; `accepted_files` came too late, were accepted,
      and wait for the next batch; `held_files` changed too recently; `future_files` have a time in the future.
    - `lost_files`: followed files that were removed or cut before they were read to their end; at least `lost_bytes` are lost.
    - `aside_*`: what was set aside since the sink began: bad records, bad files, and files that changed before they were read.
    - Topics: `input_offsets` were planned, `left_offsets` were not; `left_by_partition` has at most a hundred partitions
      ("orders-0"), those with the most offsets left.

    About the rows that this call has read: `null_columns` were null in every row; `unknown_fields` counts names in the data that
    no column has, at most a hundred names; `rescued` counts the records from which something was rescued; `notes` say all this in
    words.
    """

    batch: int
    input_files: int
    input_bytes: int
    left_files: int
    left_bytes: int
    rows: int
    output_files: int
    output_bytes: int
    open_rows: int
    waiting: bool = False
    late_files: int = 0
    accepted_files: int = 0
    held_files: int = 0
    future_files: int = 0
    null_columns: tuple[str, ...] = ()
    unknown_fields: Mapping[str, int] = field(default_factory=dict)
    rescued: int = 0
    notes: tuple[str, ...] = ()
    aside_records: int = 0
    aside_files: int = 0
    aside_changed: int = 0
    query: str = ""
    open_parts: int = 0
    open_since_ns: int = 0
    oldest_left_ns: int = 0
    lost_files: int = 0
    lost_bytes: int = 0
    input_offsets: int = 0
    left_offsets: int = 0
    left_by_partition: Mapping[str, int] = field(default_factory=dict)


def standing(sink: Sink, head: State, *, query: str, batch: int, offset: Mapping[str, Any]) -> Ingested:
    """Return the report of a query, from its offset of `batch` and the last record of its sink; without what only one call knows."""
    files, size = offset.get("read", (0, 0))
    left_files, left_size = offset.get("left", (0, 0))
    grown = sink.lengths.known(head)
    parts = [part for part in head.open if not part.is_aside]
    not_read: dict[str, Any] = counts(offset) | counts_of(offset)
    return Ingested(
        batch=batch,
        input_files=files,
        input_bytes=size,
        left_files=left_files,
        left_bytes=left_size,
        rows=head.total_rows,
        output_files=head.total_files - head.aside.parts + len(grown),
        output_bytes=head.total_bytes - head.aside.bytes + sum(grown.values()),
        open_rows=sum(part.rows for part in parts),
        **not_read,
        left_by_partition=left_of(offset),
        aside_records=head.aside.records,
        aside_files=head.aside.files,
        aside_changed=head.aside.changes,
        query=query,
        open_parts=len(parts),
        open_since_ns=min((part.opened_ns for part in parts), default=0),
        oldest_left_ns=offset.get("oldest", 0),
    )
