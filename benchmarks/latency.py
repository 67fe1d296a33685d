"""How soon a reader sees a row: from the rename of a file to the reader's read of its row. `python -m benchmarks.latency [CONTENDER]...`.

A query watches a directory; files of one row are renamed into it at a steady rate; a reader looks every five milliseconds for files
of the output that it has not read. Besides the latency: the processor seconds of all of the query's processes for each second of the
run, and while no file came. Contenders: Spark's own source and sink with its shortest trigger, and `penstock.ingest` that looks every
second, and as often as it can, with `rollBatches=1` and `settle=0`.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import psutil
import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

_QUERY = """
import sys
src, dst, what = sys.argv[1:]
import penstock
spark = penstock.local_session("local[2]")
spark.sparkContext.setLogLevel("ERROR")
if what == "spark":
    lines = spark.readStream.schema("value string").format("text").load(src)
    query = lines.writeStream.format("text").option("checkpointLocation", dst + ".checkpoint").start(dst)
    query.awaitTermination()
else:
    given = {"source": {"format": "text", "settle": "0s"}, "sink": {"format": "text", "rollBatches": "1"}}
    penstock.ingest(spark, src, dst, **given, watch=what)
"""
CONTENDERS = {"spark": "spark", "watch-1s": "1s", "watch-1ms": "1ms"}
_LOOK_SECONDS = 0.005
_WARM_ROWS = 10
_START_SECONDS_MAX = 600  # of a session, on a busy machine
_END_SECONDS_MAX = 300  # until the last row is seen at a rate that is too high


class Reader:
    """Sees the rows of an output as any reader of the directory does, and notes when.

    Spark's sink shows a file before it has contents: a file that does not end with a line end is read again.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._read: set[str] = set()
        self.seen: dict[int, float] = {}

    def look(self) -> None:
        """Read the new files."""
        with suppress(FileNotFoundError):
            for name in os.listdir(self._root):  # noqa: PTH208 - names are enough
                if name[0] not in "._" and name not in self._read:
                    text = (self._root / name).read_text()
                    at = time.time()
                    for line in text[: text.rfind("\n") + 1].split():
                        self.seen.setdefault(int(line), at)
                    if text.endswith("\n"):
                        self._read.add(name)

    def wait(self, count: int, seconds: float) -> None:
        """Look until this number of rows was seen; otherwise raise `TimeoutError`."""
        end = time.time() + seconds
        while len(self.seen) < count:
            self.look()
            if time.time() > end:
                msg = f"{len(self.seen)} of {count} rows are there after {seconds} s"
                raise TimeoutError(msg)
            time.sleep(_LOOK_SECONDS)


def _cpu(process: psutil.Process) -> float:
    """Return the processor seconds of a process and its child processes, including those that ended."""
    total = 0.0
    for each in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


@contextmanager
def _querying(src: Path, dst: Path, what: str) -> Iterator[psutil.Process]:
    command = [sys.executable, "-c", _QUERY, str(src), str(dst), what]
    query = subprocess.Popen(command, start_new_session=True)  # its error output stays visible
    try:
        yield psutil.Process(query.pid)
    finally:
        os.killpg(query.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            query.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(query.pid, signal.SIGKILL)


@dataclass(frozen=True)
class Wait:
    """How long rows waited at a rate of files a second, in seconds, and the share of a core that was used; rate 0 is idle."""

    contender: str
    rate: int
    median: float
    longest_but_one_percent: float
    cores: float

    def __str__(self) -> str:
        """Return it as a line."""
        if not self.rate:
            return f"{self.contender:10} idle: {self.cores:.3f} of a core"
        waits = f"p50 {self.median:6.3f} s, p99 {self.longest_but_one_percent:6.3f} s"
        return f"{self.contender:10} {self.rate:5} files/s: {waits}, {self.cores:5.2f} of a core"


def measured(contender: str, rates: list[int], seconds: float) -> Iterator[Wait]:
    """Yield the measurements of one contender at each rate, and idle."""
    with tempfile.TemporaryDirectory(prefix="penstock-latency-") as room:
        src, dst, out = Path(room, "src"), Path(room, "dst"), Path(room, "out")
        for folder in (src, out):
            folder.mkdir()
        number, renamed, reader = 0, {}, Reader(dst)

        def put() -> None:
            nonlocal number
            (out / str(number)).write_text(f"{number}\n")
            renamed[number] = time.time()
            (out / str(number)).rename(src / f"f{number}")
            number += 1

        with _querying(src, dst, CONTENDERS[contender]) as query:
            for _ in range(_WARM_ROWS):
                put()
                reader.wait(number, _START_SECONDS_MAX)
            for rate in rates:
                first, begun, before = number, time.time(), _cpu(query)
                while (at := time.time()) < begun + seconds:
                    while number - first < (at - begun) * rate:
                        put()
                    reader.look()
                    time.sleep(_LOOK_SECONDS)
                reader.wait(number, _END_SECONDS_MAX)
                spent, took = _cpu(query) - before, time.time() - begun
                waits = sorted(reader.seen[n] - renamed[n] for n in range(first, number))
                yield Wait(contender, rate, statistics.median(waits), waits[int(len(waits) * 0.99)], spent / took)
            before, begun = _cpu(query), time.time()
            time.sleep(seconds)
            yield Wait(contender, 0, 0, 0, (_cpu(query) - before) / (time.time() - begun))


def main(
    contenders: Annotated[list[str] | None, typer.Argument(help=f"{', '.join(CONTENDERS)}; all by default.")] = None,
    *,
    rate: Annotated[list[int] | None, typer.Option(help="Files a second.")] = None,
    seconds: float = 20,
) -> None:
    """Measure how soon rows are seen, and what that costs."""
    for contender in contenders or CONTENDERS:
        for wait in measured(contender, rate or [1, 100, 1000], seconds):
            print(wait, flush=True)


if __name__ == "__main__":
    typer.run(main)
