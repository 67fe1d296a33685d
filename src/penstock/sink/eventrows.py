"""Events as rows of a stream (Arrow), and as facts for a command or a callback (values that JSON can hold)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.sink.ready import Mark

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from penstock.sink.events import Event

COLUMNS = (
    "event string, bucket string, path string, size bigint, rows bigint, digest string, "
    "batches struct<first: bigint, last: bigint>, sink string, record bigint, time timestamp"
)
_UNKNOWN_ROWS = -1  # an adopted file whose footer has no number of rows


def facts(event: Event, root: str) -> dict[str, Any]:
    """Return an event of the output `root` as names and values; `None` for an unknown value. Times are ns since the epoch."""
    of_event = {"event": event.kind, "bucket": event.bucket}
    of_record = {"sink": event.sink, "record": event.record, "time_ns": event.time_ns}
    file = event.entry
    if isinstance(file, Mark):
        return of_event | dict.fromkeys(("path", "size", "rows", "digest", "batches")) | of_record
    of_file = {
        "path": f"{root}/{file.path}",
        "size": file.bytes,
        "rows": None if file.rows == _UNKNOWN_ROWS else file.rows,
        "digest": file.digest or None,
        "batches": {"first": file.first_batch, "last": file.last_batch},
    }
    return of_event | of_file | of_record


def batch(events: Iterable[Event], root: str) -> pa.RecordBatch:
    """Return events as rows of `COLUMNS`."""
    import pyarrow as pa

    rows = [_row(facts(event, root)) for event in events]
    schema = pa.schema(
        [
            ("event", pa.string()),
            ("bucket", pa.string()),
            ("path", pa.string()),
            ("size", pa.int64()),
            ("rows", pa.int64()),
            ("digest", pa.string()),
            ("batches", pa.struct([("first", pa.int64()), ("last", pa.int64())])),
            ("sink", pa.string()),
            ("record", pa.int64()),
            ("time", pa.timestamp("us", tz="UTC")),
        ]
    )
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def _row(known: dict[str, Any]) -> dict[str, Any]:
    time_ns = known.pop("time_ns")
    # File names may hold any bytes; a string of Arrow is UTF-8.
    known["path"] = known["path"] and known["path"].encode(errors="backslashreplace").decode()
    return known | {"time": None if time_ns is None else time_ns // 1000}


def packed(events: Sequence[Event], root: str) -> bytes:
    """Return events as the bytes of an Arrow stream, which can travel to a task."""
    import pyarrow as pa

    rows = batch(events, root)
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, rows.schema) as stream:
        stream.write_batch(rows)
    travelling: bytes = buffer.getvalue().to_pybytes()
    return travelling
