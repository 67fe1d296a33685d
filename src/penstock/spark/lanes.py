"""`async_map` with `drain`: what a batch does not finish is carried in Spark's state.

Spark gives state to a processor (`transformWithState`) one key at a time, so rows are grouped by *lane*: as many as there
are partitions of state, each in a partition of its own, and all rows of a lane are called side by side. Rows of one partition
of the input, or with equal values of `key`, have the same lane in every batch.

    input --pack--> (lane, source, number, chunk) --shuffle--> lanes, with state --> (chunk) --unpack--> output

Rows travel in chunks, Arrow batches as binary values: Spark's Python form of `transformWithState` makes a Python object of every
value of every row that it is given, and that is then one of a few thousand rows. See `aio.carry` for the form.

**Failures, and the rules that kill them.**

1. A task is killed after it emitted what it finished, before its state is saved: Spark commits state and output of a batch
   together; the task is repeated from the state before. *Rows are taken out of the state and put into it in the same task that emits.*
2. A batch is replayed with another number of lanes, and a row waits behind nobody of its key. *The number is that of Spark's
   partitions of state, which a checkpoint fixes; tasks read it from the query that runs, not from the program.*
3. No input comes any more. *A lane that leaves something sets a timer for the next millisecond: the next batch takes it up, and
   there is one, because Spark runs batches without data for processors with timers.* Where it is told not to
   (`noDataMicroBatches.enabled=false`) nothing is left: the batch is the barrier.
4. A call takes longer than a batch, and is made again in each of them, for ever. *A lane without input, which holds up nobody,
   waits for as long as its oldest row is old: twice as long each time, at most its `timeout`.*
5. A timer rings in the batch that served its lane, and rows are taken up twice. *A lane is served once a task.*
6. Chunks of one partition come out of the shuffle in another order. *They are numbered, and put in order again.*
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import functions
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from penstock.aio.carry import Form, dumped, id_of, loaded
from penstock.aio.stage import Carrying
from penstock.errors import OptionError
from penstock.spark.checkpoint import task_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

    from penstock.aio.operator import Carried

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PARTITIONS = "spark.sql.shuffle.partitions"
_PARTITIONS_DEFAULT = "200"  # Spark's
_EMPTY_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
_RUN = "spark.jobGroup.id"  # of a streaming query: its run
_WATERMARK = "spark.watermarkDelayMs"
_LANE = "__penstock_lane"
_PACKED = "lane int, source int, number bigint, chunk binary"
_WORD = 0xFFFFFFFF


def check(df: DataFrame) -> None:
    """Raise `OptionError` where nothing can be carried over: the frame, its columns, the session, what is installed."""
    if not df.isStreaming:
        msg = "drain: a batch DataFrame has no next batch that would take up what this one leaves; leave drain out"
        raise OptionError(msg)
    late = [field.name for field in df.schema.fields if _WATERMARK in (field.metadata or {})]
    if late:
        msg = (
            f"drain: column {late[0]!r} has a watermark, which moves on while rows are carried over: what ends windows by it "
            "would drop them as late; leave drain out, or call withWatermark behind async_map with a delay above `timeout`"
        )
        raise OptionError(msg)
    found = df.sparkSession.conf.get(_PROVIDER)
    if found is None or not found.endswith("RocksDBStateStoreProvider"):
        msg = f"drain: Spark keeps such state in RocksDB alone; found {_PROVIDER}={found}; set it to {_ROCKS}"
        raise OptionError(msg)
    try:
        for name in ("pandas", "google.protobuf"):
            import_module(name)
    except ImportError as error:
        msg = f"drain: PySpark's state needs pandas and protobuf: {error}; pip install pandas protobuf"
        raise OptionError(msg) from error


def carried_map(
    df: DataFrame,
    form: Form,
    key: tuple[str, ...],
    operator: str,
    drain: float,
    stream: Callable[[Iterator[pa.RecordBatch], Carrying], Iterator[pa.RecordBatch]],
    fields: Any,  # noqa: ANN401 - a StructType
) -> DataFrame:
    """Return the output of `df`'s rows; `stream` is a task's."""
    keyed = df
    if key:
        keyed = df.withColumn(_LANE, functions.hash(*(functions.col(_quoted(name)) for name in key)))

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _packed(batches, form, operator, keyed=bool(key))

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for chunk in batch.column("chunk").to_pylist():
                yield from loaded(chunk)

    grouped = keyed.mapInArrow(pack, _PACKED).groupBy("lane")
    lanes = grouped.transformWithStateInPandas(_Lanes(form, drain, stream), "chunk binary", "Append", "ProcessingTime")
    return lanes.mapInArrow(unpack, fields)


def _packed(batches: Iterator[pa.RecordBatch], form: Form, operator: str, *, keyed: bool) -> Iterator[pa.RecordBatch]:
    """Yield chunks of a partition's rows, each for one lane."""
    query, number, partition = task_batch()
    origin = f"{query}-{operator}-{number}-{partition}-"
    keys = _lanes(int(_told(_PARTITIONS) or _PARTITIONS_DEFAULT))
    sent = [0] * len(keys)
    rows = 0
    for batch in batches:
        places = pa.array(np.arange(rows, rows + batch.num_rows))
        rows += batch.num_rows
        for lane, chunk in _split(form, batch, origin, places, keyed=keyed, lanes=len(keys), partition=partition):
            columns: list[list[Any]] = [[keys[lane]], [partition], [sent[lane]], [dumped([chunk])]]
            types = (pa.int32(), pa.int32(), pa.int64(), pa.binary())
            yield pa.RecordBatch.from_arrays(
                [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)],
                ["lane", "source", "number", "chunk"],
            )
            sent[lane] += 1


def _split(
    form: Form,
    batch: pa.RecordBatch,
    origin: str,
    places: pa.Int64Array,
    *,
    keyed: bool,
    lanes: int,
    partition: int,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    if not keyed:
        if batch.num_rows:
            yield partition % lanes, form.fresh(batch, origin, places)
        return
    hashed = batch.column(batch.num_columns - 1).to_numpy() % lanes
    whole = form.fresh(batch.select(range(batch.num_columns - 1)), origin, places)
    for lane in pc.unique(pa.array(hashed)).to_pylist():
        yield lane, whole.filter(pa.array(hashed == lane))


class _Lanes(StatefulProcessor):
    """One task's lanes; in fact one, as each has a partition of its own. Made anew for each task."""

    def __init__(
        self, form: Form, drain: float, stream: Callable[[Iterator[pa.RecordBatch], Carrying], Iterator[pa.RecordBatch]]
    ) -> None:
        self._form = form
        self._drain = drain
        self._stream = stream

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Ask for the state."""
        self._handle = handle
        self._kept = handle.getValueState("carried", "rows binary")
        self._served: set[Any] = set()

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: ANN401, N802, N803 - Spark's
        """Serve a lane that has input."""
        return self._serve(key, _in_order(rows), timerValues.getCurrentProcessingTimeInMs())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: ANN401, ARG002, N802, N803 - Spark's
        """Serve a lane that has none, but left something."""
        return self._serve(key, None, timerValues.getCurrentProcessingTimeInMs())

    def _serve(self, key: Any, chunks: Iterator[bytes] | None, now_ms: int) -> Iterator[Any]:  # noqa: ANN401 - Spark's
        import pandas as pd  # type: ignore[import-untyped]  # it has no types; PySpark takes nothing else

        lane = key[0]
        if lane in self._served:
            return
        self._served.add(lane)
        kept, run = self._kept.get(), _told(_RUN) or ""
        earlier = [] if kept is None else self._form.taken_up(kept[0], run)

        def leave(left: list[Carried]) -> None:
            if left:
                self._kept.update((self._form.kept(left, run),))
                self._handle.registerTimer(now_ms + 1)
            elif kept is not None:
                self._kept.clear()

        drain: float | None = self._drain
        if _told(_EMPTY_BATCHES) == "false":
            drain = None
        elif chunks is None:
            drain = max([self._drain, *(one.age for one in earlier)])
        carrying = Carrying(self._form.opened, id_of, earlier, leave, drain)
        for batch in self._stream((packed for chunk in chunks or () for packed in loaded(chunk)), carrying):
            yield pd.DataFrame({"chunk": [dumped([batch])]})

    def close(self) -> None:
        """Do nothing: every task's operator is closed when its rows are served."""


def _in_order(frames: Iterable[Any]) -> Iterator[bytes]:
    """Yield the chunks of each partition of the input in the order in which it made them."""
    following: dict[int, int] = {}
    waiting: dict[tuple[int, int], bytes] = {}
    for frame in frames:
        for source, number, chunk in zip(frame["source"], frame["number"], frame["chunk"], strict=True):
            waiting[source, number] = chunk
            while (source, following.get(source, 0)) in waiting:
                at = following.get(source, 0)
                following[source] = at + 1
                yield waiting.pop((source, at))
    assert not waiting, "a chunk is missing"  # noqa: S101 - the shuffle is Spark's


def _lanes(partitions: int) -> list[int]:
    """Return a key for each partition of state that Spark puts there: a lane has a task of its own."""
    found: dict[int, int] = {}
    key = 0
    while len(found) < partitions:
        found.setdefault(_hash(key) % partitions, key)
        key += 1
    return [found[partition] for partition in range(partitions)]


def _hash(value: int) -> int:
    """Return what Spark's `hash` says of an int: Murmur3, 32 bits, signed."""
    mixed = value * 0xCC9E2D51 & _WORD
    mixed = (mixed << 15 | mixed >> 17) * 0x1B873593 & _WORD
    mixed ^= 42
    mixed = ((mixed << 13 | mixed >> 19) & _WORD) * 5 + 0xE6546B64 & _WORD
    mixed ^= 4  # bytes
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & _WORD
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & _WORD
    mixed ^= mixed >> 16
    return mixed - (mixed >> 31 << 32)


def _told(name: str) -> str | None:
    """Return what the query that runs says of a setting."""
    context = TaskContext.get()
    told: str | None = None if context is None else context.getLocalProperty(name)
    return told


def _quoted(name: str) -> str:
    """Return a column's name as Spark's expressions have it."""
    return f"`{name.replace('`', '``')}`"
