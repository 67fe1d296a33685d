"""The cost of a batch of the sink as the work grows, without Spark: `python -m benchmarks.scale [CASE]...`.

The figures in `docs/scale.md` come from it.

Each case runs one thing at several sizes and prints, of the median batch after the first, the processor time of the driver (begin and
commit) and of a task, the bytes that are put and read of the sink's state, those that travel to one task, and the exponent: the
slope, between the smallest and the largest size, of the logarithm of the driver's time over that of the size. Output is in memory
where possible (`/dev/shm`), so that syncs cost nothing: the work is measured, not the disk.
"""

from __future__ import annotations

import math
import os
import pickle
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import typer

from penstock import unique
from penstock.options import SINK, parse
from penstock.sink.decide import successor
from penstock.sink.ledger import FinishedFile
from penstock.sink.sink import Batch, Sink
from penstock.source.scan import Scan
from penstock.storage import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.sink.batch import Begun, TaskResult

SCHEMA = pa.schema([("value", pa.string()), ("b", pa.int64())])
BUCKETED = {"format": "json", "bucketBy": "b={b}"}
_MEMORY = Path("/dev/shm")  # noqa: S108 - a place in memory, used for directories with names of their own


@dataclass
class Counted:
    """The cost of a batch: processor seconds, and bytes of state."""

    driver: float = 0
    tasks: list[float] = field(default_factory=list)
    put: int = 0
    read: int = 0
    travels: int = 0


class Counting(LocalStorage):
    """Counts the records that a sink puts, and the records and tables that its driver reads."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = Counted()

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Put a record."""
        self.counted.put += len(data)
        super().put_if_absent(path, data)

    def read(self, path: str) -> bytes:
        """Read a record, or a table of the driver."""
        data = super().read(path)
        self.counted.read += len(data)
        return data


class Query:
    """A query that writes to a sink in a new directory, one batch after another."""

    def __init__(self, root: Path, options: dict[str, str], schema: pa.Schema = SCHEMA) -> None:
        self.storage = Counting()
        checked = parse(SINK, {"path": str(root), **options}, what="sink")
        self.sink = Sink(self.storage, str(root), checked, "s")
        self.schema = schema
        self.batch = 0
        self.tables: dict[str, int] = {}

    def run(self, rows: dict[int, list[pa.RecordBatch]]) -> Counted:
        """Run a batch; `rows` are those of each task."""
        counted = self.storage.counted = Counted()
        batch = Batch("q", self.batch)
        self.batch += 1
        begun = self._timed(lambda: self.sink.begin("d", batch))
        sent = pickle.dumps(begun)
        counted.travels = len(sent)
        results = [self._task(sent, batch.number, writer, given) for writer, given in rows.items()]
        self._timed(lambda: self.sink.commit(batch, results))
        self.storage.counted = Counted()  # what follows does not belong to the batch
        tables = {table.file: table.size for table in self.sink.ledger.head().open.tables}
        counted.put += sum(size for file, size in tables.items() if file not in self.tables)
        self.tables = tables
        return counted

    def _task(self, sent: bytes, batch: int, writer: int, rows: Iterable[pa.RecordBatch]) -> TaskResult:
        start = time.process_time()
        begun: Begun = pickle.loads(sent)  # noqa: S301 - our own
        result = self.sink.write(begun, "q", batch, writer, self.schema, rows)
        back: TaskResult = pickle.loads(pickle.dumps(result))  # noqa: S301 - our own
        self.storage.counted.tasks.append(time.process_time() - start)
        return back

    def _timed(self, act: Callable[[], Any]) -> Any:  # noqa: ANN401 - what it returns
        start = time.process_time()
        done = act()
        self.storage.counted.driver += time.process_time() - start
        return done


def rows_of(buckets: Iterable[int]) -> list[pa.RecordBatch]:
    """Return a row for each bucket."""
    numbers = list(buckets)
    return [pa.record_batch({"value": ["a line of a log"] * len(numbers), "b": numbers}, schema=SCHEMA)]


def all_touched(root: Path, writers: int) -> list[Counted]:
    """Measure `writers` tasks, each with a hundred buckets and a row for each bucket in every batch."""
    query = Query(root, BUCKETED)
    return [query.run({writer: rows_of(range(100)) for writer in range(writers)}) for _ in range(4)]


def few_touched(root: Path, writers: int) -> list[Counted]:
    """Measure `writers` tasks, each with a hundred open parts; a batch touches ten parts of ten tasks."""
    query = Query(root, BUCKETED)
    query.run({writer: rows_of(range(100)) for writer in range(writers)})
    return [query.run({writer: rows_of(range(n, n + 10)) for writer in range(10)}) for n in range(12)]


def buckets(root: Path, number: int) -> list[Counted]:
    """Measure one task with the given number of buckets in each batch; all of them end with the batch."""
    query = Query(root, BUCKETED | {"rollBatches": "1"})
    return [query.run({0: rows_of(range(number))}) for _ in range(4)]


def open_parts(root: Path, number: int) -> list[Counted]:
    """Measure one task with the given number of open parts; a batch touches eighty."""
    query = Query(root, BUCKETED)
    query.run({0: rows_of(range(number))})
    return [query.run({0: rows_of(range(n * 7, n * 7 + 80))}) for n in range(12)]


def history(root: Path, number: int) -> list[Counted]:
    """Measure batches that finish a file each, in a ledger that already has the given number of files."""
    query = Query(root, {"format": "text", "rollBatches": "1"}, pa.schema([("value", pa.string())]))
    row = [pa.record_batch({"value": ["a line of a log"]})]
    query.run({0: row})
    _finish(query.sink, number)
    return [query.run({0: row}) for _ in range(12)]


def _finish(sink: Sink, number: int) -> None:
    """Make the ledger name the given number of files, a thousand in each record."""
    left = number
    while left:
        head = sink.ledger.head()
        count = min(left, 1000)
        files = tuple(
            FinishedFile(f"f-{number - left + n}.txt", "", 1, 16, "0" * 32, 0, 0, f"{n}.part") for n in range(count)
        )
        left -= count
        state = successor(head, write=unique.token(), finished=files)
        sink.ledger.put(state)
        sink.ledger.note_published(state.n)
        sink.ledger.forget(sink.ledger.look())
    head = sink.ledger.head()
    sink.ledger.put(successor(head, write=unique.token()))


def directory(root: Path, number: int) -> list[Counted]:
    """List, as a running query does, a directory with the given number of files and one more each time."""
    root.mkdir()
    for n in range(number):
        (root / f"f{n:07}").touch()
    scan = Scan(LocalStorage(), str(root), recursive=False, follow=False, accept=lambda _: True)
    scan.refresh(hints=True)
    taken = []
    for n in range(12):
        (root / f"new{n}").touch()
        start = time.process_time()
        came = scan.refresh(hints=True).came
        taken.append(Counted(driver=time.process_time() - start, tasks=[0.0]))
        if len(came) != 1:
            msg = f"{len(came)} files came, expected one"
            raise RuntimeError(msg)
    return taken


def batches(root: Path, number: int) -> list[Counted]:
    """So many batches of a row, one after the other: what the last hundred cost."""
    query = Query(root, {"format": "text", "rollBatches": "10"}, pa.schema([("value", pa.string())]))
    row = [pa.record_batch({"value": ["a line of a log"]})]
    taken: list[Counted] = []
    for _ in range(number):
        taken = [*taken[-99:], query.run({0: row})]
    return taken


CASES: dict[str, tuple[Callable[[Path, int], list[Counted]], list[int]]] = {
    "all-touched": (all_touched, [10, 100, 1000]),
    "few-touched": (few_touched, [10, 100, 1000]),
    "buckets": (buckets, [100, 1000, 10_000]),
    "open-parts": (open_parts, [80, 800, 8000]),
    "history": (history, [1000, 30_000, 1_000_000]),
    "batches": (batches, [100, 1000, 10_000]),
    "directory": (directory, [10_000, 100_000, 1_000_000]),
    "week": (batches, [60_480, 604_800]),  # a batch a second for a tenth of a week, and for a week
}
LONG = {"week"}  # takes an hour


def main(
    cases: Annotated[
        list[str] | None, typer.Argument(help=f"{', '.join(CASES)}; by default all but {', '.join(LONG)}.")
    ] = None,
) -> None:
    """Measure what a batch of the sink costs as the work grows."""
    for name in cases or [name for name in CASES if name not in LONG]:
        run, sizes = CASES[name]
        times = []
        for size in sizes:
            place = str(_MEMORY) if os.access(_MEMORY, os.W_OK) else None
            with tempfile.TemporaryDirectory(prefix="penstock-scale-", dir=place) as root:
                taken = run(Path(root) / "out", size)
            behind = taken[1:]
            times.append(median(one.driver for one in behind))
            tasks = median(seconds for one in behind for seconds in one.tasks)
            amounts = [
                f"{median(getattr(one, what) for one in behind) / 1000:10,.0f}" for what in ("put", "read", "travels")
            ]
            print(
                f"{name:12} {size:>9,}  driver {times[-1] * 1000:9,.1f} ms  task {tasks * 1000:8,.2f} ms  "
                f"kB put {amounts[0]} read {amounts[1]} to a task {amounts[2]}",
                flush=True,
            )
        exponent = math.log(times[-1] / times[0]) / math.log(sizes[-1] / sizes[0])
        print(f"{name:12} exponent {exponent:.2f}", flush=True)


if __name__ == "__main__":
    typer.run(main)
