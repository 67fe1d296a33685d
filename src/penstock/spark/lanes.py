"""`async_map` with `drain`: a batch does not wait for its slowest call, and what it calls the next one emits.

Spark gives state to a processor (`transformWithState`) one key at a time, so rows are grouped by *lane*: as many as there
are partitions of state, each in a partition of its own, and all rows of a lane are called side by side. Rows of one partition
of the input, or with equal values of `key`, have the same lane in every batch.

    input --pack--> (lane, source, number, chunk) --shuffle--> lanes, with state --> (chunk) --unpack--> output

Rows travel in chunks, Arrow batches as binary values: Spark's Python form of `transformWithState` makes a Python object of every
value of every row that it is given, and that is then one of a few thousand rows. See `aio.carry` for the form.

**What a batch emits follows from committed state alone.** A lane's batch N does three things, in this order:

    1. emits the chunks of output that the state of N - 1 holds, and forgets them;
    2. calls the rows that this state carries, then those of its input, and puts output into the state, chunk by chunk;
    3. when its time is over, puts what has not ended into the state.

So every try of N emits the same rows, in the same order, byte for byte, whichever calls end in which of them.

**Failures, and the rules that kill them.**

1. Batch N calls rows 1, 2 and 3; 1 and 2 end in time, 3 is carried. The sink commits N. Spark is killed before it notes that, and
   after the restart repeats N from the state of N - 1. This time 1 and 3 end. The sink has N, and drops what it is given;
   the state now says that 3 is done and 2 is carried. *What N emits does not depend on what ends in N.*
2. Two attempts at a task run side by side (speculation); the output of one counts, and the state of the other. *The same.*
3. A batch is replayed with another number of lanes, and a row waits behind nobody of its key. *The number is that of Spark's
   partitions of state, which a checkpoint fixes; tasks read it from the query that runs, not from the program.*
4. No input comes any more. *A lane that holds anything sets a timer for the next millisecond: the next batch takes it up, and
   there is one, because Spark runs batches without data for processors with timers.*
5. A call takes longer than a batch, and is made again in each of them, for ever. *A batch without input, which holds up nobody,
   waits for as long as the lane's oldest row is old, up to `_IDLE_SECONDS`, unless it has something to emit.* `timeout` ends
   what takes longer.
6. A lane has no input in a batch that others have input in, and holds it up as if nobody waited. *A partition that has rows
   tells every lane.*
7. A timer rings in the batch that served its lane, and rows are taken up twice. *A lane is served once a task.*
8. Chunks of one partition come out of the shuffle in another order. *They are numbered, and put in order again.*
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
from penstock.session.leaving import mapped
from penstock.session.task import task_batch, task_run
from penstock.spark.border import border

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

    from penstock.aio.outcome import Carried

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PARTITIONS = "spark.sql.shuffle.partitions"
_PARTITIONS_DEFAULT = "200"  # Spark's
_WATERMARK = "spark.watermarkDelayMs"
_LANE = "__penstock_lane"
_PACKED = "lane int, source int, number bigint, chunk binary"
_PIECE = pa.schema({"lane": pa.int32(), "source": pa.int32(), "number": pa.int64(), "chunk": pa.binary()})
_WORD = 0xFFFFFFFF
_IDLE_SECONDS = 5.0


def check(df: DataFrame) -> None:
    """Raise `OptionError` where nothing can be carried over: the frame, its columns, the session, what is installed."""
    if not df.isStreaming:
        msg = "drain: a batch DataFrame has no next batch that would take up what this one leaves; leave drain out"
        raise OptionError(msg)
    _check_watermarks(df)
    _check_store(df.sparkSession)
    _check_installed()


def _check_watermarks(df: DataFrame) -> None:
    late = [field.name for field in df.schema.fields if _WATERMARK in (field.metadata or {})]
    if late:
        msg = (
            f"drain: column {late[0]!r} has a watermark, which moves on while rows are carried over: what ends windows by it "
            "would drop them as late; leave drain out, or call withWatermark behind async_map with a delay above `timeout`"
        )
        raise OptionError(msg)


def _check_store(spark: SparkSession) -> None:
    provider = spark.conf.get(_PROVIDER)
    if provider is None or not provider.endswith("RocksDBStateStoreProvider"):
        msg = f"drain: Spark keeps such state in RocksDB alone; found {_PROVIDER}={provider}; set it to {_ROCKS}"
        raise OptionError(msg)


def _check_installed() -> None:
    try:
        for name in ("pandas", "google.protobuf"):
            import_module(name)
    except ImportError as error:
        msg = f"drain: PySpark's state needs pandas and protobuf: {error}; pip install pandas protobuf"
        raise OptionError(msg) from error


def carried_map(
    df: DataFrame,
    form: Form,
    key: list[str],
    operator: str,
    drain: float,
    *,
    named: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    stream: Callable[[Iterator[pa.RecordBatch], Carrying], Iterator[pa.RecordBatch]],
    tell: Callable[[], None],
) -> DataFrame:
    """Return the output of `df`'s rows, for `unpacked`.

    `stream` is a task's, `named` gives columns the users' names, and `tell` is called by every task that has a lane, idle or not.
    """
    keyed = df.withColumn(_LANE, functions.hash(*key)) if key else df

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _packed(named(batches), form, operator, keyed=bool(key))

    grouped = mapped(keyed, pack, _PACKED).groupBy("lane")
    lanes = _Lanes(form, drain, stream, tell)
    return grouped.transformWithStateInPandas(lanes, "chunk binary", "Append", "ProcessingTime")


def unpacked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the output that came in chunks."""
    for batch in batches:
        for chunk in batch.column("chunk").to_pylist():
            yield from loaded(chunk)


def _packed(batches: Iterator[pa.RecordBatch], form: Form, operator: str, *, keyed: bool) -> Iterator[pa.RecordBatch]:
    """Yield chunks of a partition's rows, each for one lane; an empty one for a lane that has none of them."""
    query, number, partition, _ = task_batch()
    origin = f"{query}-{operator}-{number}-{partition}-"
    keys = _lanes(int(_property(_PARTITIONS) or _PARTITIONS_DEFAULT))
    sent = [0] * len(keys)
    rows = 0
    for batch in batches:
        places = pa.array(np.arange(rows, rows + batch.num_rows))
        rows += batch.num_rows
        for lane, chunk in _split(form, batch, origin, places, keyed=keyed, lanes=len(keys), partition=partition):
            yield _piece(keys[lane], partition, sent[lane], dumped([chunk]))
            sent[lane] += 1
    if rows:
        yield from (_piece(key, partition, 0, b"") for key, chunks in zip(keys, sent, strict=True) if not chunks)


def _piece(*values: int | bytes) -> pa.RecordBatch:
    """Return one row of what goes through the shuffle."""
    return pa.RecordBatch.from_pylist([dict(zip(_PIECE.names, values, strict=True))], schema=_PIECE)


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


@border
class _Lanes(StatefulProcessor):
    """One task's lanes; in fact one, as each has a partition of its own. Made anew for each task."""

    def __init__(
        self,
        form: Form,
        drain: float,
        stream: Callable[[Iterator[pa.RecordBatch], Carrying], Iterator[pa.RecordBatch]],
        tell: Callable[[], None],
    ) -> None:
        self._form = form
        self._drain = drain
        self._stream = stream
        self._tell = tell

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Ask for the state."""
        self._tell()
        self._handle = handle
        self._kept = handle.getValueState("carried", "rows binary")
        self._finished = handle.getMapState("finished", "number int", "chunk binary")
        self._served: set[Any] = set()

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: ANN401, N802, N803 - Spark's
        """Serve a lane that has input."""
        return self._serve(key, _in_order(rows), timerValues.getCurrentProcessingTimeInMs())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: ANN401, ARG002, N802, N803 - Spark's
        """Serve a lane that has none, but left something."""
        return self._serve(key, None, timerValues.getCurrentProcessingTimeInMs())

    def _serve(self, key: Any, chunks: Iterator[bytes] | None, now_ms: int) -> Iterator[Any]:  # noqa: ANN401 - Spark's
        """Yield what the batch before has made for a lane, have its rows called, and keep what they make and leave.

        Once in a task. It stays one function: each of its values goes into the state at its end.
        """
        lane = key[0]
        if lane in self._served:
            return
        self._served.add(lane)
        kept, run = self._kept.get(), task_run()
        earlier, finished = ([], 0) if kept is None else self._form.taken_up(kept[0], run)
        yield from self._emitted(finished)
        left: list[Carried] = []
        chunks_made = 0
        if earlier or chunks is not None:
            seconds = self._seconds(earlier, has_input=chunks is not None, emits=finished > 0)
            carrying = Carrying(self._form.opened, id_of, earlier, left.extend, seconds)
            for batch in self._stream(_loaded(chunks or ()), carrying):
                self._finished.updateValue((chunks_made,), (dumped([batch]),))
                chunks_made += 1
                # Whoever waits for output sees that the task lives.
                yield _frame()
        if left or chunks_made:
            self._kept.update((self._form.kept(left, chunks_made, run),))
            self._handle.registerTimer(now_ms + 1)
        elif kept is not None:
            self._kept.clear()

    def _emitted(self, finished: int) -> Iterator[Any]:
        """Yield the chunks of output that the batch before has made, and forget them."""
        for number in range(finished):
            chunk = self._finished.getValue((number,))
            assert chunk is not None  # noqa: S101 - `kept` has counted them
            yield _frame(bytes(chunk[0]))
        if finished:
            self._finished.clear()

    def _seconds(self, earlier: list[Carried], *, has_input: bool, emits: bool) -> float:
        """Return how long calls under way have: longer where nobody waits for the end of the batch."""
        if has_input or emits:
            return self._drain
        return max(self._drain, min(_IDLE_SECONDS, max(carried.age for carried in earlier)))

    def close(self) -> None:
        """Do nothing: every task's operator is closed when its rows are served."""


def _loaded(chunks: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    for chunk in chunks:
        yield from loaded(chunk)


def _frame(*chunks: bytes) -> Any:  # noqa: ANN401 - a data frame
    """Return output for Spark."""
    import pandas as pd  # type: ignore[import-untyped]  # it has no types; PySpark takes nothing else

    return pd.DataFrame({"chunk": pd.Series(chunks, dtype=object)})


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
                if ready := waiting.pop((source, at)):
                    yield ready
    assert not waiting, "a chunk is missing"  # noqa: S101 - the shuffle is Spark's


def _lanes(partitions: int) -> list[int]:
    """Return a key for each partition of state that Spark puts there: a lane has a task of its own."""
    keys: dict[int, int] = {}
    key = 0
    while len(keys) < partitions:
        keys.setdefault(_hash(key) % partitions, key)
        key += 1
    return [keys[partition] for partition in range(partitions)]


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


def _property(name: str) -> str | None:
    """Return what the query that runs says of a setting."""
    context = TaskContext.get()
    value: str | None = None if context is None else context.getLocalProperty(name)
    return value
