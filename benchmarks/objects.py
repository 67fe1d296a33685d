"""Object stores against the local disk of the same machine, the server included: `python -m benchmarks.objects`.

Measured is the work of an ingest without Spark, the same for all: a listing, and the splits of a batch, which two processes read, parse
and stage, and which are committed and published. Contenders take turns; the median of their ratios counts. The server is versitygw, if
it is found (on the path, or in PENSTOCK_STORES); with `--hdfs` a tiny batch is also compared with one on an HDFS that is started for it.

For each contender it also prints the processor seconds, and the server's share of these: they share the machine. Small objects
have a third contender, *bare*: a listing and one plain request of the library for each object, from as many processes, whose
data is dropped. No reader that uses this library can be faster.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
import psutil
import pyarrow as pa
from obstore.store import S3Store
from rich.console import Console

from benchmarks.data import Recipe, made, schema
from penstock.formats import ReadFormat
from penstock.formats.schema import to_arrow
from penstock.options import SINK, SOURCE, parse
from penstock.sink.sink import Batch, Begun, Sink, TaskResult
from penstock.source.ahead import OPEN_FILES
from penstock.source.cursor import FileVersion, Split
from penstock.source.read import Reading
from penstock.source.scan import Scan
from penstock.storage import locate
from tests.support import hdfs
from tests.support.stores import NoStore, running

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

MB = 1_000_000
_TASKS = 2
_SPLIT_BYTES = 32 << 20
_SMALL_FILES, _SMALL_BYTES = 10_000, 1000
_TINY_BATCHES, _TINY_DROPPED = 20, 5
_LIMITS = {"json": 1 / 0.7, "small": 2.0, "tiny": 1.5}
_BARE = "bare"
_console = Console(highlight=False, soft_wrap=True)


def _format(form: str) -> ReadFormat:
    return ReadFormat(form, to_arrow(schema(form)))


def _sink(root: str, form: str) -> Sink:
    storage, place = locate(root)
    return Sink(storage, place, parse(SINK, {"path": place, "format": form, "rollBatches": "1"}, what="sink"), "sink")


def _task(src: str, dst: str, form: str, to: str, begun: Begun, task: int, splits: Sequence[Split]) -> TaskResult:
    """Read some splits and stage their rows, in a separate process."""
    storage, root = locate(src)
    fmt = _format(form)
    reading = Reading(storage, root, fmt, None, tuple(fmt.schema.names))
    return _sink(dst, to).write(begun, "query", 0, task, fmt.schema, reading.batches(splits))


def _splits(files: Sequence[FileVersion]) -> list[Split]:
    return [
        Split(file, start, min(start + _SPLIT_BYTES, file.size))
        for file in files
        for start in range(0, file.size, _SPLIT_BYTES)
    ]


def ingested(pool: Executor, src: str, dst: str, form: str, to: str) -> float:
    """Take all that is in `src` into `dst` in one batch; return the seconds."""
    began = time.perf_counter()
    storage, root = locate(src)
    files = [
        arrival.file for arrival in Scan.of(storage, root, parse(SOURCE, {"path": root}, what="source")).refresh().came
    ]
    splits = _splits(sorted(files, key=lambda file: file.path))
    sink, batch = _sink(dst, to), Batch("query", 0, "")
    begun = sink.begin("driver", batch)
    shares = [splits[task * len(splits) // _TASKS : (task + 1) * len(splits) // _TASKS] for task in range(_TASKS)]
    tasks = [pool.submit(_task, src, dst, form, to, begun, task, share) for task, share in enumerate(shares)]
    sink.commit(batch, [task.result() for task in tasks])
    return time.perf_counter() - began


def tiny_batches(dst: str) -> float:
    """Return the median seconds of some batches of two lines; each batch ends a part."""
    sink, lines = _sink(dst, "text"), pa.schema([("value", pa.string())])
    seconds = []
    for number in range(_TINY_BATCHES):
        began = time.perf_counter()
        batch = Batch("query", number, str(number))
        begun = sink.begin("driver", batch)
        sink.commit(batch, [sink.write(begun, "query", number, 0, lines, [b"one\ntwo\n"])])
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[_TINY_DROPPED:])


def _copied(directory: str, target: str) -> str:
    """Put the files of a directory below an address; return the address."""
    storage, root = locate(target)
    paths = [path for path in Path(directory).iterdir() if path.name[0] not in "._"]

    def put(path: Path) -> None:
        with storage.create(f"{root}/{path.name}") as file:
            file.write(path.read_bytes())

    with storage.workers(16) as workers:
        list(workers.map(put, paths))
    return root


def _asked(bucket: str, keys: Sequence[str]) -> int:
    """Get some objects in a separate process, each by one plain request, and drop the data; return the number of bytes."""
    store = S3Store(bucket, endpoint=os.environ["AWS_ENDPOINT_URL"], client_options={"allow_http": True})
    with ThreadPoolExecutor(OPEN_FILES) as threads:
        return sum(threads.map(lambda key: len(obstore.get(store, key).bytes()), keys))


def bare(pool: Executor, src: str) -> float:
    """List the objects in `src`, and get all of them; return the seconds."""
    began = time.perf_counter()
    storage, root = locate(src)
    bucket, _, prefix = root.removeprefix("s3://").partition("/")
    keys = [f"{prefix}/{name}" for name in storage.names(root)]
    list(pool.map(_asked, [bucket] * _TASKS, [keys[task::_TASKS] for task in range(_TASKS)]))
    return time.perf_counter() - began


@dataclass
class Taken:
    """A contender's measurements, one for each round: seconds, processor seconds, and the server's share of these."""

    seconds: list[float]
    processor: list[float]
    server: list[float]

    def __str__(self) -> str:
        """Return all the seconds, and the minimum of the processor seconds."""
        used, server = min(zip(self.processor, self.server, strict=True))
        shown = " ".join(f"{second:.3f}" for second in self.seconds)
        return f"{shown} s, of processors {used:.2f} s ({server:.2f} the server's)"


def _used() -> float:
    """Return the processor seconds of this process and its child processes."""
    own = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in [own, *own.children(recursive=True)])


def compared(
    what: str, run: Callable[[str, int], float], places: Sequence[str], repeat: int, server: psutil.Process
) -> None:
    """Let the contenders take turns, and print how each compares with the first; the first round warms up."""
    taken = {place: Taken([], [], []) for place in places}
    for number in range(repeat + 1):
        for place in places[:: 1 if number % 2 else -1]:
            all_before, server_before = _used(), sum(server.cpu_times()[:2])
            seconds = run(place, number)
            if number:
                taken[place].seconds.append(seconds)
                taken[place].processor.append(_used() - all_before)
                taken[place].server.append(sum(server.cpu_times()[:2]) - server_before)
    base = taken[places[0]].seconds
    for place in places[1:]:
        ratio = statistics.median(store / disk for disk, store in zip(base, taken[place].seconds, strict=True))
        limit = "" if place == _BARE else f" (asked for: at most {_LIMITS[what]:.2f})"
        _console.print(f"{what}: {place} {ratio:.2f}x of {places[0]}{limit}")
    for place, measured in taken.items():
        _console.print(f"  {place}: {measured}")
    _console.print(f"  load {os.getloadavg()[0]:.1f}")


def _run(chosen: argparse.Namespace, work: Path, stack: ExitStack) -> None:
    store = stack.enter_context(running(chosen.server, _made(work / "server")))
    os.environ.update(store.environment)
    bucket = store.make("bench")
    pool = stack.enter_context(ProcessPoolExecutor(_TASKS, get_context("spawn")))
    roots = {"disk": str(work / "disk"), chosen.server: bucket}

    assert store.process is not None
    server = psutil.Process(store.process.pid)

    def case(what: str, form: str, to: str, recipe: Recipe, *more: str) -> None:
        data = made(recipe, work)
        sources = {"disk": data.directory, chosen.server: _copied(data.directory, f"{bucket}/{what}-in")}

        def run(place: str, number: int) -> float:
            if place == _BARE:
                return bare(pool, sources[chosen.server])
            dst = f"{roots[place]}/{what}-{number}"
            seconds = ingested(pool, sources[place], dst, form, to)
            assert sum(file.rows for file in _sink(dst, to).ledger.history()) == data.rows
            return seconds

        compared(what, run, [*roots, *more], chosen.repeat, server)

    case("json", "json", "parquet", Recipe("json", int(200 * MB * chosen.scale), 8))
    case("small", "text", "text", Recipe("text", _SMALL_FILES * _SMALL_BYTES, _SMALL_FILES), _BARE)
    if chosen.hdfs:
        cluster = stack.enter_context(hdfs.running(_made(work / "hdfs")))
        roots = {"hdfs": cluster.url, chosen.server: bucket}
    _console.print(
        ""
        if chosen.hdfs
        else "tiny: against the disk, whose batches no server is asked for; --hdfs has the one that counts"
    )
    compared(
        "tiny", lambda place, number: tiny_batches(f"{roots[place]}/tiny-{number}"), list(roots), chosen.repeat, server
    )


def _made(path: Path) -> Path:
    path.mkdir()
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all cases; return 0, or 1 where there is no server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="versitygw", help="versitygw, minio or moto")
    parser.add_argument("--scale", type=float, default=1.0, help="of the size of JSON")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--hdfs", action="store_true", help="compare tiny batches with an HDFS")
    chosen = parser.parse_args(arguments)
    work = Path(tempfile.mkdtemp(prefix="penstock-objects-"))
    try:
        with ExitStack() as stack:
            _run(chosen, work, stack)
    except NoStore as missing:
        _console.print(f"error: {missing}")
        return 1
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
