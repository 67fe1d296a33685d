"""The form of rows that travel with their identity and their past: from a partition to its lane, and from batch to batch.

One form serves both, Arrow batches: the columns of the input, then three of ours, found by position and not by name.

    origin  string            } together the id of the row's calls: the first part, and after it the row's number place
    int64             } past    struct, or null for a row that was never admitted:
        attempts  int32       that have ended
        admitted  int64       when it was first admitted, wall clock, nanoseconds since the epoch
        outputs   list<struct of the function's schema>, or null for a row that is not finished
        failure   struct of `_error`, or null

Between processes they are an Arrow IPC stream. In Spark's state its schema also has metadata: `version`, `columns` (the
columns of input and output, and the `key`; a state with other columns is refused), `run`, and `finished`: the number of
chunks of output that lie beside the rows, for the next batch to emit. If no rows are left, the stream has no columns.

**Time.** Within a run of the query a row's age is measured by the wall clock, and is never below zero. If the clock
were set ahead by an hour, all rows would time out at once. So the metadata has `host`, `now` and `monotonic`, from
which a process of the same host can tell by how much the clock was set since. A run that takes over the rows of another
run starts their time again: how long the query was down says nothing about the service, and a row whose time was over
before its first call would fail at every restart.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock import clock
from penstock.aio.outcome import Carried, Failure, RowOutcome
from penstock.aio.rows import ERROR_TYPE, Columns, Row, Shape
from penstock.errors import DamagedState
from penstock.formats.pythonvalues import of_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

VERSION = "1"
_OURS = 3


@dataclass(frozen=True)
class Form:
    """The form for one operator. `columns` describes for people the columns of input and output, and the key."""

    shape: Shape
    columns: str

    @property
    def _past(self) -> pa.DataType:
        fields = [field.with_nullable(True) for field in self.shape.schema]  # noqa: FBT003 - Arrow's
        return pa.struct(
            [
                pa.field("attempts", pa.int32()),
                pa.field("admitted", pa.int64()),
                pa.field("outputs", pa.list_(pa.struct(fields))),
                pa.field("failure", ERROR_TYPE),
            ]
        )

    def _schema(self, carried: pa.Schema) -> pa.Schema:
        ours = [pa.field("origin", pa.string()), pa.field("place", pa.int64()), pa.field("past", self._past)]
        return pa.schema([*carried, *ours])

    def fresh(self, batch: pa.RecordBatch, origin: str, places: pa.Int64Array) -> pa.RecordBatch:
        """Return rows of the input with their identity."""
        rows = batch.num_rows
        columns = [*batch.columns, pa.repeat(pa.scalar(origin), rows), places, pa.nulls(rows, self._past)]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema(batch.schema))

    def opened(self, packed: pa.RecordBatch) -> Columns:
        """Return rows whose calls have the ids that came with them."""
        width = packed.num_columns - _OURS
        origins, places = packed.column(width), packed.column(width + 1)
        ids = pc.binary_join_element_wise(origins, places.cast(pa.string()), "")
        return Columns(packed.select(range(width)), ids.to_pylist())

    def kept(self, left: Sequence[Carried], finished: int, run: str) -> bytes:
        """Return what Spark's state keeps: the rows that an operator left, whose outcomes fit the schema, and a count of chunks."""
        packed = [self._packed(list(rows)) for _, rows in groupby(left, lambda carried: id(carried.row._columns))]  # noqa: SLF001 - the row's own place
        about = {"version": VERSION, "columns": self.columns, "run": run, "finished": str(finished)} | _now()
        schema = packed[0].schema if packed else pa.schema([])
        return dumped(packed, schema.with_metadata(about))

    def _packed(self, left: list[Carried]) -> pa.RecordBatch:
        columns: Columns = left[0].row._columns  # noqa: SLF001 - the row's own batch
        places = [carried.row._place for carried in left]  # noqa: SLF001 - the row's own place
        ids = [columns.ids[place].rpartition("-") for place in places]
        now = clock.now_ns()
        past = [self._as_past(carried, now) for carried in left]
        ours = [
            pa.array([f"{origin}-" for origin, _, _ in ids]),
            pa.array([int(place) for _, _, place in ids]),
            of_values(past, pa.field("past", self._past)),  # converted as they are for the output
        ]
        rows = columns.batch.take(pa.array(places, pa.int64()))
        return pa.RecordBatch.from_arrays([*rows.columns, *ours], schema=self._schema(rows.schema))

    def _as_past(self, carried: Carried, now: int) -> dict[str, Any]:
        names, outcome = self.shape.schema.names, carried.outcome
        return {
            "attempts": carried.attempts,
            "admitted": now - int(carried.age * clock.SECOND_NS),
            "outputs": None
            if outcome is None
            else [dict(zip(names, output, strict=True)) for output in outcome.outputs],
            "failure": outcome.failure.told() if outcome and outcome.failure else None,
        }

    def taken_up(self, kept: bytes, run: str) -> tuple[list[Carried], int]:
        """Return the rows and the count that `kept` was given; `DamagedState` if they have another form."""
        stream = pa.ipc.open_stream(kept)
        about = {name.decode(): value.decode() for name, value in (stream.schema.metadata or {}).items()}
        if (about.get("version"), about.get("columns")) != (VERSION, self.columns):
            msg = (
                f"async_map: rows carried over in the query's state are of another form; found version {about.get('version', '?')}, "
                f"{about.get('columns', '?')}; expected version {VERSION}, {self.columns}; run the program that carried them "
                "once more until all has come out (trigger availableNow ends then), or begin again, with a new checkpoint and an "
                "empty output"
            )
            raise DamagedState(msg)
        same_run = about["run"] == run
        now = clock.now_ns() - _set_since(about)
        rows = [carried for batch in stream for carried in self._unpacked(batch, now if same_run else None)]
        return rows, int(about["finished"])

    def _unpacked(self, batch: pa.RecordBatch, now: int | None) -> Iterable[Carried]:
        """Yield the rows of a batch; `now` is by the clock that they were kept by, `None` if their age starts again."""
        columns = self.opened(batch)
        for row, past in zip(columns.rows(), batch.column(batch.num_columns - 1).to_pylist(), strict=True):
            age = 0.0 if now is None else max(now - past["admitted"], 0) / clock.SECOND_NS
            yield Carried(row, past["attempts"], age, _outcome(row, past))


def _now() -> dict[str, str]:
    """Return the time by both clocks of this host: the wall clock may be set meanwhile, so it alone does not tell a row's age."""
    return {"host": socket.gethostname(), "now": str(clock.now_ns()), "monotonic": repr(clock.monotonic())}


def _set_since(about: Mapping[str, str]) -> int:
    """Return by how many nanoseconds the clock was set since `_now`; 0 if that is not known: on another host, or after a reboot."""
    passed = clock.monotonic() - float(about.get("monotonic", "inf"))
    if about.get("host") != socket.gethostname() or passed < 0:
        return 0
    return clock.now_ns() - int(about["now"]) - round(passed * clock.SECOND_NS)


def _outcome(row: Row, past: dict[str, Any]) -> RowOutcome | None:
    if past["outputs"] is None:
        return None
    failure = None if past["failure"] is None else Failure(**past["failure"])
    return RowOutcome(-1, row, [tuple(output.values()) for output in past["outputs"]], failure, past["attempts"])


def id_of(row: Row) -> str:
    """Return the id that a row came with."""
    return row._columns.ids[row._place]  # noqa: SLF001 - the row's own place


def dumped(batches: Sequence[pa.RecordBatch], schema: pa.Schema | None = None) -> bytes:
    """Return batches of one schema as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema if schema is None else schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return bytes(sink.getvalue())


def loaded(stream: bytes) -> list[pa.RecordBatch]:
    """Return the batches of an Arrow IPC stream."""
    return list(pa.ipc.open_stream(stream))
