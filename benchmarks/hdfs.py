"""The cases on HDFS: a NameNode and three DataNodes of this machine, started for each case and stopped after it.

Every byte is written three times, by three servers that share the machine with the contenders. Outputs are copied to a local
directory before they are counted, so that the same code counts all outputs.
"""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.cases import (
    INGEST,
    PARTS,
    PLAIN,
    PUBLISH_SECONDS,
    ROUNDS_TO_WARM,
    SPARK,
    TEXT_BYTES,
    TRIGGERS,
    TRIGGERS_DROPPED,
    case,
    facts,
    sessions,
    triggers,
)
from benchmarks.figures import Figure
from benchmarks.jobs import Job
from benchmarks.measure import MB, Contender, job
from benchmarks.output import WrongResult, expect
from benchmarks.room import ContenderFailed, clear, ensure_archive, environment, whole_process, worker
from tests.support.cluster import spark_cluster
from tests.support.hdfs import running
from tests.support.jars import NoJars

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.data import DataSet
    from benchmarks.measure import Bench
    from benchmarks.room import Worker

_JSON_BYTES = 430 * MB
_SMALL_FILES, _SMALL_FILE_BYTES = 10_000, 1000
_THREADS = 32  # closing a file waits for the servers
_COPY_BYTES = 8 << 20
_WAYS = ("local to HDFS", "HDFS to HDFS")


@dataclass(frozen=True)
class _Place:
    """A running HDFS: input is at `/in-…`, output at `/out`. No contender uses its client."""

    url: str
    client: Any  # hdfs_native.Client
    data_nodes: tuple[int, ...]  # their processes

    def data_node_seconds(self) -> float:
        """Return the processor seconds of all DataNodes since they were started."""
        times = [psutil.Process(number).cpu_times() for number in self.data_nodes]
        return float(sum(each.user + each.system for each in times))

    def holds(self, data: DataSet) -> DataSet:
        """Return the data set, copied to HDFS; its `paths` stay the local ones."""
        directory = f"/in-{Path(data.directory).name}"
        self.client.mkdirs(directory)

        def put(path: str) -> None:
            with self.client.create(f"{directory}/{Path(path).name}") as file:
                file.write(Path(path).read_bytes())

        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(put, data.paths))
        return replace(data, directory=f"{self.url}{directory}")

    def clear(self, directory: str) -> None:
        """Remove a directory and its contents, if it exists."""
        self.client.delete(directory, True)  # noqa: FBT003 - recursive; the library's own parameter

    def contender(
        self, label: str, run: Callable[[str], float], form: str, rows: int, *, patience: float = 0, unit: str = "s"
    ) -> Contender:
        """Return the contender whose `run` writes to the given URL; `patience` is the wait for the last rows."""

        def ran(_output: Path) -> float:
            self.clear("/out")
            return run(f"{self.url}/out")

        def check(output: Path) -> None:
            end = time.monotonic() + patience
            while True:
                self._copy("/out", output)
                try:
                    expect(str(output), form, rows)
                except WrongResult:
                    if time.monotonic() > end:
                        raise
                    clear(output)
                else:
                    return

        return Contender(label, ran, check, unit=unit)

    def _copy(self, directory: str, target: Path) -> None:
        """Copy the visible files below a directory."""
        target.mkdir()
        for entry in self.client.list_status(directory):
            name = entry.path.rpartition("/")[2]
            if name[0] in "._":
                continue
            if entry.isdir:
                self._copy(entry.path, target / name)
                continue
            file = self.client.read(entry.path)
            with (target / name).open("wb") as copy:
                for start in range(0, file.size, _COPY_BYTES):
                    copy.write(file.read_range(start, min(_COPY_BYTES, file.size - start)))


@contextlib.contextmanager
def an_hdfs(bench: Bench) -> Iterator[_Place]:
    """Yield an HDFS for one case."""
    import hdfs_native  # noqa: PLC0415 - the other cases need none

    directory = bench.directory("hdfs")
    directory.mkdir()
    try:
        with running(directory, small=False) as hdfs:
            yield _Place(hdfs.url, hdfs_native.Client(hdfs.url), tuple(node.pid for node in hdfs.data_nodes))
    except NoJars as error:
        raise ContenderFailed(str(error)) from error
    finally:
        clear(directory)


def _both_ways(bench: Bench, name: str, data: DataSet, to: str) -> list[Figure]:
    """Measure `data` to `to` in sessions that are already up, with the input on the local disk and on HDFS."""
    figures = []
    with (
        an_hdfs(bench) as place,
        sessions(bench, "ingest") as (theirs, ours),
        worker("ingest", bench.room, syncs=False) as not_synced,
    ):
        who = (SPARK, theirs, "spark"), (INGEST, ours, "ingest"), (f"{INGEST} without syncs", not_synced, "ingest")
        for way, source in zip(_WAYS, (data, place.holds(data)), strict=True):
            contenders = [
                place.contender(label, _asking(worker, engine, source, to), to, data.rows)
                for label, worker, engine in who
            ]
            spark, ingest, without = bench.alternate(contenders, drop=ROUNDS_TO_WARM)
            what = f"{data.form} to {to}, {way}, warm session"
            figures += [
                Figure(name, what, ingest, spark, "faster", 1.5, facts(data, ingest)),
                Figure(name, f"{what}, without syncs", without, spark, "faster"),
            ]
    return figures


def _asking(worker: Worker, engine: str, data: DataSet, to: str) -> Callable[[str], float]:
    """Return a function that makes a running session ingest all of `data` to a URL."""
    return lambda url: float(worker.ask(op="run", job=job(engine, data, url, to))["seconds"])


@case(
    "hdfs-text",
    "Text to text in a session that is up, from the local disk to HDFS and from HDFS to HDFS; also with `hsync` replaced by "
    "nothing, for Spark does not sync, and three replicas are on one disk here.",
)
def _text(bench: Bench) -> list[Figure]:
    return _both_ways(bench, "hdfs-text", bench.data("text", TEXT_BYTES, 2 * PARTS), "text")


@case("hdfs-json-parquet", "The same with JSON lines to Parquet.")
def _json_parquet(bench: Bench) -> list[Figure]:
    return _both_ways(bench, "hdfs-json-parquet", bench.data("json", _JSON_BYTES, PARTS), "parquet")


@case("hdfs-small-files", "Text files of 1 KB on HDFS, all there at once, to HDFS, whole process.")
def _small_files(bench: Bench) -> list[Figure]:
    ensure_archive(bench.room)
    files = bench.scaled(_SMALL_FILES, 20)
    local = bench.data("text", files * _SMALL_FILE_BYTES, files, scale=1)  # their number is scaled, not their size
    with an_hdfs(bench) as place:
        data = place.holds(local)

        def done(engine: str) -> Callable[[str], float]:
            return lambda url: whole_process(engine, {"op": "run", "job": job(engine, data, url, "text")}, bench.room)

        contenders = [
            place.contender(label, done(engine), "text", data.rows)
            for label, engine in ((SPARK, "spark"), (INGEST, "ingest"))
        ]
        spark, ingest = bench.alternate(contenders, drop=0)
    what = f"{files:,} files of 1 KB, HDFS to HDFS, whole process"
    return [Figure("hdfs-small-files", what, ingest, spark, "faster", 4, facts(data, ingest))]


@case(
    "hdfs-tiny-batch",
    "A batch of one line with input, output and checkpoint on HDFS: Spark's own figure for the trigger (triggerExecution), "
    "median of ten triggers.",
)
def _tiny_batch(bench: Bench) -> list[Figure]:
    labels = {"spark": SPARK, "plain": PLAIN, "ingest": INGEST}
    batches = bench.scaled(TRIGGERS, 2)
    with an_hdfs(bench) as place, sessions(bench, "plain", "ingest") as workers:

        def done(who: Worker, engine: str) -> Callable[[str], float]:
            def run(url: str) -> float:
                place.clear("/trickle")
                place.client.mkdirs("/trickle")
                return triggers(who, Job(engine, f"{place.url}/trickle", url, "text", "text"), batches)

            return run

        contenders = [
            place.contender(
                label, done(who, engine), "text", TRIGGERS_DROPPED + batches, patience=PUBLISH_SECONDS, unit="ms"
            )
            for (engine, label), who in zip(labels.items(), workers, strict=True)
        ]
        spark, plain, ingest = bench.alternate(contenders, drop=0)
    return [
        Figure(
            "hdfs-tiny-batch", "one line a trigger on HDFS, readStream and writeStream", plain, spark, "longer", 2.5
        ),
        Figure("hdfs-tiny-batch", "one line a trigger on HDFS, penstock.ingest", ingest, spark, "longer", 2.5),
    ]


@case(
    "hdfs-cluster",
    "JSON lines to Parquet, HDFS to HDFS, by penstock.ingest: a standalone master with two workers of one core against "
    "`local[2]`, both in a session that is up.",
)
def _cluster(bench: Bench) -> list[Figure]:
    ensure_archive(bench.room)
    local = bench.data("json", _JSON_BYTES, PARTS)
    directory = bench.directory("cluster")
    directory.mkdir()
    variables = environment("spark", bench.room)
    with an_hdfs(bench) as place, spark_cluster(directory, **variables) as cluster:
        data = place.holds(local)
        with (
            worker("ingest", bench.room) as one,
            worker("cluster", bench.room, variables={"BENCHMARKS_MASTER": cluster.url}) as two,
        ):
            contenders = [
                place.contender(label, _asking(who, "ingest", data, "parquet"), "parquet", data.rows)
                for label, who in (("local[2]", one), (f"{INGEST}, two workers", two))
            ]
            single, double = bench.alternate(contenders, drop=ROUNDS_TO_WARM)
    clear(directory)
    what = "JSON to Parquet, HDFS to HDFS, standalone with two workers"
    return [Figure("hdfs-cluster", what, double, single, "faster", 0.9, facts(data, double))]
