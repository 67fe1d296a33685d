"""`penstock.replayable`: a stream of a function whose results can be read only once. Its rules are those of `windows.replay`.

The function runs in the source's process, which Spark starts for a query in the driver and keeps as long as the query; so the function
may hold a connection. There it is unpickled from what was given to `replayable`, like a function that Spark sends to its workers. A
window is an Arrow stream in the store; a task reads it from there and yields its batches.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from penstock import clock
from penstock.aio.function import outputs_of
from penstock.arguments import check_doing, check_done, check_plain, named
from penstock.errors import Locked, OptionError
from penstock.formats.conforming import conform
from penstock.formats.pythonvalues import of_values
from penstock.formats.schema import to_arrow
from penstock.session import ddl, functions
from penstock.spark.border import border
from penstock.storage import locate
from penstock.windows.replay import Replay
from penstock.windows.store import WindowStore, artifact_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from penstock.wal import Position

# Tries are a tenth of a second apart: the process of a query that was just stopped may still be ending.
_OPENING_TRIES = 50


@named
def replayable(
    read: Callable[[pa.Table | None], Any],
    store: str,
    *,
    schema: StructType | str,
    acknowledge: Callable[[pa.Table], object] | None = None,
    spark: SparkSession | None = None,
) -> DataFrame:
    """Return a streaming DataFrame of what `read` returns: each call is a batch, saved in the directory `store` before it is emitted.

    `read(last)` is called in the driver, one call at a time, when everything that it returned before is committed and acknowledged.
    `last` is what it returned last, also before a restart, and `None` at the first call: from this a feed knows where to continue. It
    returns a list of rows (mappings, or tuples in the order of `schema`) or, faster, an Arrow table or record batch, or an object that
    Arrow accepts as one; `None` or no rows if there is nothing new. It should not wait for long. An error that it raises ends the
    query, and nothing is lost.

    `acknowledge(table)` is called with what `read` returned, when the batch is committed: not earlier, in order, and at each start
    again for the last one, so upstream must accept it twice. Until then upstream has to keep what it gave.

    With Spark Connect, `read` and `acknowledge` are called where the server runs, and the store is there; `spark` must be given.

    A store belongs to one checkpoint: `CheckpointMismatch` in the query if the two are of different times, `Locked` if another query
    has it open. Executors read the store, so on a cluster it must be where they can.
    """
    from pyspark.sql import SparkSession

    from penstock.session.connect import is_remote
    from penstock.session.sidebyside import side_by_side
    from penstock.spark.register import register

    functions_given: dict[str, tuple[object, str]] = {"read": (read, "last")}
    if acknowledge is not None:
        functions_given["acknowledge"] = acknowledge, "table"
    for name, (given, parameter) in functions_given.items():
        if not callable(given):
            msg = f"{name}={given!r} is not a function: expected a function of a table"
            raise OptionError(msg)
        (check_plain if name == "read" else check_doing)(name, given, parameter)
    session: Any = spark or SparkSession.getActiveSession()
    if not is_remote(session) and not isinstance(session, SparkSession):
        msg = f"spark={spark!r}: there is no active Spark session; give one: replayable(..., spark=session)"
        raise OptionError(msg)
    _, directory = locate(store, name="store")
    to_arrow(ddl.schema_json(schema))  # refuses a type that we do not know
    register(session)
    session.dataSource.register(ReplayableDataSource)
    side_by_side(session, ReplayableDataSource.name())
    reader = session.readStream.format(ReplayableDataSource.name()).schema(schema)
    stream: DataFrame = reader.option("functions", functions.packed((read, acknowledge))).load(directory)
    return stream


@border
class ReplayableDataSource(DataSource):
    """The data source behind `replayable`; its option `functions` holds the user's functions."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "penstock-replayable"

    def streamReader(self, schema: StructType) -> ReplayableStreamReader:  # noqa: N802 - Spark's name
        """Return the source."""
        return ReplayableStreamReader(self.options["path"], self.options["functions"], schema.json())


@dataclass
class WindowPartition(InputPartition):
    """The position of a batch's window."""

    at: Position


@border
class ReplayableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of one query. Reads upstream in the source's process, and the store in tasks."""

    def __init__(self, store: str, functions: str, schema: str) -> None:
        self._store = store
        self._functions = functions
        self._schema = to_arrow(schema)
        self._replay: Replay | None = None
        self._opened: WindowStore | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts."""
        return Replay.initial()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Do nothing: an AvailableNow run ends when `read` has nothing new."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802 - Spark's signature
        """Read the next batch, and save it."""
        return self._stream().latest(start)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the one task of a batch; the first call after a restart."""
        return [] if start == end else [WindowPartition(self._stream().position(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a window from the store."""
        assert isinstance(partition, WindowPartition)  # noqa: S101 - `partitions` made it
        storage, directory = locate(self._store)
        with pa.ipc.open_stream(artifact_at(directory, partition.at, storage=storage)) as batches:
            for batch in batches:
                yield conform(batch, self._schema)

    def stop(self) -> None:
        """Close the store."""
        if self._opened is not None:
            self._opened.close()

    def _stream(self) -> Replay:
        if self._replay is None:
            read, acknowledge = functions.unpacked(self._functions)
            self._opened = _open(self._store)

            def tell(window: bytes) -> None:
                check_done("acknowledge", acknowledge(_table(window)))

            acknowledged = None if acknowledge is None else tell
            self._replay = Replay(self._opened, lambda last: self._packed(read(last and _table(last))), acknowledged)
        return self._replay

    def _packed(self, returned: Any) -> bytes | None:  # noqa: ANN401 - the user returned it
        """Return what `read` returned as an Arrow stream; `OptionError` if it does not fit the schema."""
        if not inspect.isgenerator(returned):
            check_done("read", returned)
        batches = [] if returned is None else self._batches(returned)
        if not any(batch.num_rows for batch in batches):
            return None
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema) as stream:
            for batch in batches:
                stream.write_batch(batch)
        packed: bytes = sink.getvalue().to_pybytes()
        return packed

    def _batches(self, returned: Any) -> list[pa.RecordBatch]:  # noqa: ANN401 - the user returned it
        if hasattr(returned, "__arrow_c_stream__") or isinstance(returned, pa.RecordBatch):
            return self._of_table(pa.table(returned))
        return self._of_rows(returned)

    def _of_table(self, table: pa.Table) -> list[pa.RecordBatch]:
        if dropped := list(_unknown(table.schema, self._schema)):
            msg = (
                f"read returned columns that the schema does not have: {', '.join(map(repr, dropped))}; expected "
                f"{', '.join(self._schema.names)}; name them in schema, or drop them"
            )
            raise OptionError(msg)
        return [conform(batch, self._schema) for batch in table.to_batches()]

    def _of_rows(self, returned: Any) -> list[pa.RecordBatch]:  # noqa: ANN401 - the user returned it
        try:
            rows = outputs_of(returned, tuple(self._schema.names))
        except (TypeError, ValueError) as error:
            msg = f"read returned something other than rows: {error}"
            raise OptionError(msg) from error
        if not rows:
            return []
        by_column = zip(zip(*rows, strict=True), self._schema, strict=True)
        columns = [of_values(values, column) for values, column in by_column]
        return [pa.RecordBatch.from_arrays(columns, schema=self._schema)]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, without the store and the functions."""
        return self.__dict__ | {"_replay": None, "_opened": None, "_functions": ""}


def _open(store: str) -> WindowStore:
    """Open the store; wait a moment for a query that was just stopped to close it."""
    for _ in range(_OPENING_TRIES):
        with suppress(Locked):
            return WindowStore(store)
        clock.sleep(0.1)
    return WindowStore(store)


def _unknown(fields: Iterable[pa.Field], expected: Iterable[pa.Field], path: str = "") -> Iterator[str]:
    """Yield the names, at any depth, that are found and not expected: these would be dropped."""
    known = {field.name: field.type for field in expected}
    for field in fields:
        kind = known.get(field.name)
        if kind is None:
            yield f"{path}{field.name}"
        else:
            yield from _unknown(_members(field.type), _members(kind), f"{path}{field.name}.")


def _members(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields of a struct, also of one in lists or as the values of a map; none for other types."""
    while not pa.types.is_struct(kind):
        if pa.types.is_map(kind):
            kind = kind.item_type
        elif pa.types.is_nested(kind) and hasattr(kind, "value_type"):
            kind = kind.value_type
        else:
            return []
    return list(kind)


def _table(window: bytes) -> pa.Table:
    return pa.ipc.open_stream(window).read_all()
