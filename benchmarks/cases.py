"""The cases: what is compared with what, and the required result."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.alone import halves
from benchmarks.data import DataSet, backlog
from benchmarks.figures import Figure, Series
from benchmarks.jobs import Job
from benchmarks.measure import MB, Bench, Contender, about, checked, command, crossing, job, process, together, warm
from benchmarks.memory import Watch
from benchmarks.output import Same, WrongResult
from benchmarks.room import Worker, clear, ensure_archive, worker
from benchmarks.shapes import SHAPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SPARK = "Spark"
INGEST = "penstock.ingest"
COMMAND = "penstock ingest"
PLAIN = "penstock source and sink"
ALONE = "parse + write alone"
_JSON_BYTES = 400 * MB
_SHAPE_BYTES = 150 * MB
TEXT_BYTES = 1000 * MB
PARTS = 4
ROUNDS_TO_WARM = 2  # the first query of a session loads classes and starts workers, the second still compiles
_SMALL_FILE_BYTES = 1000
TRIGGERS, TRIGGERS_DROPPED = 10, 2
_BACKLOG_SECONDS = 3600
PUBLISH_SECONDS = 20  # the keeper publishes a stopped query's open parts a moment after it


@dataclass(frozen=True)
class Case:
    """A benchmark: `about` says in a sentence what is measured and under which conditions."""

    name: str
    about: str
    run: Callable[[Bench], list[Figure]]


CASES: dict[str, Case] = {}


def case(name: str, said: str) -> Callable[[Callable[[Bench], list[Figure]]], Callable[[Bench], list[Figure]]]:
    """Add a function to the cases."""

    def add(run: Callable[[Bench], list[Figure]]) -> Callable[[Bench], list[Figure]]:
        CASES[name] = Case(name, said, run)
        return run

    return add


@case(
    "json-parquet-warm",
    "JSON lines to Parquet, both in a session that is up; and against two plain Python processes that parse and write "
    "the same files with the same decoder and Parquet writer, without Spark and without syncs.",
)
def _json_parquet_warm(bench: Bench) -> list[Figure]:
    data = bench.data("json", _JSON_BYTES, PARTS)
    with sessions(bench, "ingest") as (theirs, ours), bare(bench) as pair:
        spark, ingest, floor = bench.alternate(
            [
                warm(SPARK, theirs, "spark", data, "parquet"),
                warm(INGEST, ours, "ingest", data, "parquet"),
                alone(pair, data),
            ],
            drop=ROUNDS_TO_WARM,
        )
    name = "json-parquet-warm"
    return [
        Figure(name, "JSON to Parquet, warm session", ingest, spark, "faster", 2, facts(data, ingest)),
        Figure(name, "the same against parse + write alone", ingest, floor, "longer", 1.25),
    ]


@case(
    "json-parquet-process",
    "The same as a whole process: the command, which starts no Spark; and `penstock.ingest` in a session of its own (Spark's start, the "
    "query, the end), with the class-data archive that `penstock "
    "warmup` makes, and without.",
)
def _json_parquet_process(bench: Bench) -> list[Figure]:
    data = bench.data("json", _JSON_BYTES, PARTS)
    return _whole(bench, "json-parquet-process", "JSON to Parquet, whole process", data, "parquet")


@case("tiny-process", "One JSON file of 1 KB to Parquet, whole process: what it costs to start.")
def _tiny_process(bench: Bench) -> list[Figure]:
    data = bench.data("json", 0, 1)
    return _whole(bench, "tiny-process", "1 KB of JSON to Parquet, whole process", data, "parquet")


@case("text-text", "Text to text, both in a session that is up.")
def _text_text(bench: Bench) -> list[Figure]:
    data = bench.data("text", TEXT_BYTES, 2 * PARTS)
    return side_by_side(bench, "text-text", "text to text, warm session", data, "text", limit=2)


@case("csv-parquet", "CSV with a header and quoted fields to Parquet, both in a session that is up.")
def _csv_parquet(bench: Bench) -> list[Figure]:
    data = bench.data("csv", _JSON_BYTES, PARTS)
    return side_by_side(bench, "csv-parquet", "CSV to Parquet, warm session", data, "parquet", limit=2)


@case(
    "shapes",
    "JSON lines of shapes that nobody tuned for to Parquet, both in a session that is up, the worst first: "
    + "; ".join(shape.about for shape in SHAPES.values())
    + ". Both outputs must hold the same rows, by a third engine.",
)
def _shapes(bench: Bench) -> list[Figure]:
    figures: list[list[Figure]] = []
    with sessions(bench, "ingest") as (theirs, ours), bare(bench) as pair:
        for name, shape in SHAPES.items():
            data = bench.data(name, _SHAPE_BYTES, PARTS)
            same = Same(data.rows)
            contenders = [
                Contender(each.label, each.run, same)
                for each in (
                    warm(SPARK, theirs, "spark", data, "parquet"),
                    warm(INGEST, ours, "ingest", data, "parquet"),
                    alone(pair, data),
                )
            ]
            spark, mine, floor = bench.alternate(contenders, drop=ROUNDS_TO_WARM)
            what = f"JSON to Parquet, {shape.about}"
            figures.append(
                [
                    Figure("shapes", what, mine, spark, "faster", 3, facts(data, mine)),
                    Figure("shapes", f"{what}: {ALONE}", floor, spark, "faster"),
                ]
            )
    return [figure for two in sorted(figures, key=lambda two: two[0].ratio or 0) for figure in two]


@case(
    "small-files",
    "Text files of 1 KB, all there at once, whole process. 100,000 of them only with --slow, and then Spark once only.",
)
def _small_files(bench: Bench) -> list[Figure]:
    sizes = [(20_000, 15.0, None)] + ([(100_000, 40.0, 1)] if bench.slow else [])
    ensure_archive(bench.room)
    figures = []
    for full, limit, runs in sizes:
        files = bench.scaled(full, 20)
        data = bench.data("text", files * _SMALL_FILE_BYTES, files, scale=1)  # their number is scaled, not their size
        theirs, ours = process(SPARK, bench, "spark", data, "text"), command(COMMAND, bench, data, "text")
        limited = Contender(theirs.label, theirs.run, theirs.check, runs)
        spark, ingest = bench.alternate([limited, ours], drop=0)
        what = f"{files:,} files of 1 KB, whole process, the command"
        figures.append(Figure("small-files", what, ingest, spark, "faster", limit, facts(data, ingest)))
    return figures


@case(
    "one-new-file",
    "One new text file a trigger, with 100,000 files of the last hour already done: Spark's own figure for the trigger "
    "(triggerExecution), median of ten triggers; and the size of the last offset file.",
)
def _one_new_file(bench: Bench) -> list[Figure]:
    files = bench.scaled(100_000, 50)
    sources = {engine: bench.directory(f"backlog-{engine}") for engine in ("spark", "plain")}
    for source in sources.values():
        backlog(source, files, end=time.time() - 60, seconds=_BACKLOG_SECONDS)
    with sessions(bench, "plain") as (theirs, ours):
        spark_job, our_job = (_waiting(bench, engine, sources[engine]) for engine in ("spark", "plain"))
        for who, waiting, limit in ((theirs, spark_job, {}), (ours, our_job, {"maxFilesPerTrigger": "10000"})):
            bench.tell(f"{waiting.engine}: {files:,} files, once")
            seconds = who.ask(op="run", job=asdict(waiting) | {"source": limit})["seconds"]
            bench.tell(f"{waiting.engine}: done in {seconds:.0f} s")
        batches = bench.scaled(TRIGGERS, 2)
        contenders = [_triggers(SPARK, theirs, spark_job, batches), _triggers(PLAIN, ours, our_job, batches)]
        spark, plain = bench.alternate(contenders, drop=0)
    offset = Series("last offset file", (float(_last_offset(our_job).stat().st_size),), "bytes")
    log = sum(path.stat().st_size for path in Path(spark_job.checkpoint).rglob("*") if path.is_file())
    state = sum(path.stat().st_size for path in Path(our_job.checkpoint).rglob("*") if path.is_file())
    for directory in (*sources.values(), Path(spark_job.dst), Path(our_job.dst)):
        clear(directory)
    sizes = {"checkpoint": f"{state / MB:.2f} MB, Spark's {log / MB:.2f} MB"}
    what = f"one new file beside {files:,}, a trigger"
    return [
        Figure("one-new-file", what, plain, spark, "faster", 10, sizes),
        Figure("one-new-file", "size of the offset file", offset, rule="below", limit=4096),
    ]


@case(
    "plain-text",
    "Text through `readStream` and `writeStream` of the format penstock, where every row crosses the JVM; and the crossing "
    "alone: as many lines, as long, from a Python source that has them ready to a Python sink that drops them.",
)
def _plain_text(bench: Bench) -> list[Figure]:
    data = bench.data("text", TEXT_BYTES, 2 * PARTS)
    with sessions(bench, "plain") as (theirs, ours):
        spark, plain, crossed = bench.alternate(
            [
                warm(SPARK, theirs, "spark", data, "text"),
                warm(PLAIN, ours, "plain", data, "text"),
                crossing(ours, data.rows, data.size // data.rows - 1),
            ],
            drop=ROUNDS_TO_WARM,
        )
    case, what = "plain-text", "text to text by readStream and writeStream"
    return [
        Figure(case, what, plain, spark, "faster", 0.7, facts(data, plain)),
        Figure(case, "the same against the crossing alone", plain, crossed, "longer"),
        Figure(case, "the crossing alone", crossed, spark, "faster"),
    ]


@case(
    "tiny-batch", "A batch of one line: Spark's own figure for the trigger (triggerExecution), median of ten triggers."
)
def _tiny_batch(bench: Bench) -> list[Figure]:
    labels = {"spark": SPARK, "plain": PLAIN, "ingest": INGEST}
    sources = {engine: bench.directory(f"trickle-{engine}") for engine in labels}
    with sessions(bench, "plain", "ingest") as workers:
        contenders = [
            _fresh_triggers(label, who, engine, sources[engine], bench.scaled(TRIGGERS, 2))
            for (engine, label), who in zip(labels.items(), workers, strict=True)
        ]
        spark, plain, ingest = bench.alternate(contenders, drop=0)
    for source in sources.values():
        clear(source)
    return [
        Figure("tiny-batch", "one line a trigger, readStream and writeStream", plain, spark, "longer", 1.2),
        Figure("tiny-batch", "one line a trigger, penstock.ingest", ingest, spark, "longer", 1.2),
    ]


@case(
    "memory",
    "The largest Python worker while one file of 1 GB passes through penstock.ingest: the peak of its resident memory, a "
    "fresh session each time. The greatest peak counts.",
)
def _memory(bench: Bench) -> list[Figure]:
    figures = []
    for form, to in (("text", "text"), ("json", "parquet")):
        data = bench.data(form, TEXT_BYTES, 1)
        (peak,) = bench.alternate([_peak(bench, data, to)], drop=0)
        what = f"largest Python worker, {form} to {to}"
        figures.append(Figure("memory", what, peak, rule="below", limit=400, facts={"input": about(data)}))
    return figures


@case(
    "syncs",
    "What durability costs: text to text by penstock.ingest in a session that is up, against the same with fsync and "
    "fdatasync replaced by nothing in all its Python processes.",
)
def _syncs(bench: Bench) -> list[Figure]:
    ensure_archive(bench.room)
    data = bench.data("text", TEXT_BYTES, 2 * PARTS)
    with worker("ingest", bench.room) as synced, worker("ingest", bench.room, syncs=False) as not_synced:
        skipped = bench.room.skipped_syncs
        skipped.write_bytes(b"")
        labels = (INGEST, synced), (f"{INGEST} without syncs", not_synced)
        contenders = [warm(label, who, "ingest", data, "text") for label, who in labels]
        with_syncs, without = bench.alternate(contenders, drop=ROUNDS_TO_WARM)
        count = len(skipped.read_bytes())
    if not count:
        msg = "no sync was left out: the contender without syncs did what the other did"
        raise WrongResult(msg)
    known = facts(data, with_syncs) | {"syncs": f"{count / (ROUNDS_TO_WARM + bench.repeat):.0f} a run"}
    return [Figure("syncs", "text to text with syncs against without", with_syncs, without, "longer", facts=known)]


@contextlib.contextmanager
def bare(bench: Bench) -> Iterator[tuple[Worker, Worker]]:
    """Yield two processes without Spark."""
    with worker("bare", bench.room) as one, worker("bare", bench.room) as two:
        yield one, two


def alone(pair: tuple[Worker, Worker], data: DataSet, partition: str | None = None) -> Contender:
    """Return the contender of two processes that each parse and write half of the data: no job with these parts is faster.

    `partition` is the column whose values become directories.
    """
    ranges = halves({path: os.stat(path).st_size for path in data.paths})  # noqa: PTH116 - a path is text here

    def commands(output: Path) -> list[dict[str, Any]]:
        about = {"op": "alone", "form": data.form, "partition": partition}
        return [about | {"ranges": half, "target": f"{output}/part-{n}.parquet"} for n, half in enumerate(ranges)]

    return together(ALONE, pair, commands, checked("parquet", data.rows))


@contextlib.contextmanager
def sessions(bench: Bench, *engines: str) -> Iterator[list[Worker]]:
    """Yield a session of Spark's own and one of ours for each engine, each in a separate process."""
    ensure_archive(bench.room)
    with contextlib.ExitStack() as around:
        yield [around.enter_context(worker(engine, bench.room)) for engine in ("spark", *engines)]


def side_by_side(
    bench: Bench,
    case: str,
    what: str,
    data: DataSet,
    to: str,
    *,
    limit: float,
    **more: Any,  # noqa: ANN401 - as `Job` has them
) -> list[Figure]:
    """Return the times of an ingest and of Spark's own query, both in sessions that are already up; `more` are fields of `Job`."""
    with sessions(bench, "ingest") as (theirs, ours):
        contenders = [
            warm(SPARK, theirs, "spark", data, to, **more),
            warm(INGEST, ours, "ingest", data, to, **more),
        ]
        spark, mine = bench.alternate(contenders, drop=ROUNDS_TO_WARM)
    return [Figure(case, what, mine, spark, "faster", limit, facts(data, mine))]


def _whole(bench: Bench, case: str, what: str, data: DataSet, to: str) -> list[Figure]:
    ensure_archive(bench.room)
    spark, typed, quick, slow = bench.alternate(
        [
            process(SPARK, bench, "spark", data, to),
            command(COMMAND, bench, data, to),
            process(INGEST, bench, "ingest", data, to),
            process(f"{INGEST} without archive", bench, "ingest", data, to, archive=False),
        ]
    )
    return [
        Figure(case, f"{what}, the command", typed, spark, "faster", 4, facts(data, typed)),
        Figure(case, f"{what}, a session of its own", quick, spark, "faster", 2, facts(data, quick)),
        Figure(case, f"{what}, a session of its own, without `penstock warmup`", slow, spark, "faster"),
    ]


def facts(data: DataSet, ours: Series) -> dict[str, str]:
    """Return a figure's facts about its input and its throughput."""
    return {"input": about(data), "throughput": f"{data.size / MB / ours.median:,.0f} MB a second"}


def _waiting(bench: Bench, engine: str, source: Path) -> Job:
    return Job(engine, str(source), str(bench.directory(f"out-{engine}")), "text", "text")


def triggers(who: Worker, what: Job, batches: int) -> float:
    """Land files, one a trigger; return the median of `batches` triggers after the first ones, which have more to do."""
    answer = who.ask(op="trickle", job=asdict(what), batches=TRIGGERS_DROPPED + batches)
    return float(statistics.median(answer["milliseconds"][TRIGGERS_DROPPED:]))


def _triggers(label: str, who: Worker, what: Job, batches: int) -> Contender:
    """Return the contender that continues a query whose files are done, and lands some more, one for each trigger."""

    def run(_output: Path) -> float:
        return triggers(who, what, batches)

    def check(_output: Path) -> None:
        lines = len(os.listdir(what.src))  # noqa: PTH208 - one line a file
        checked("text", lines, patience=PUBLISH_SECONDS)(Path(what.dst))

    return Contender(label, run, check, unit="ms")


def _fresh_triggers(label: str, who: Worker, engine: str, source: Path, batches: int) -> Contender:
    """Return the contender that starts a new query on an empty directory each time, and lands files, one for each trigger."""

    def run(output: Path) -> float:
        clear(source)
        source.mkdir()
        job_of_now = Job(engine, str(source), str(output), "text", "text")
        return _triggers(label, who, job_of_now, batches).run(output)

    def check(output: Path) -> None:
        checked("text", TRIGGERS_DROPPED + batches, patience=PUBLISH_SECONDS)(output)

    return Contender(label, run, check, unit="ms")


def _last_offset(what: Job) -> Path:
    return max(
        (path for path in Path(what.checkpoint, "offsets").iterdir() if path.name.isdigit()), key=lambda p: int(p.name)
    )


def _peak(bench: Bench, data: DataSet, to: str) -> Contender:
    def run(output: Path) -> float:
        with worker("ingest", bench.room) as fresh, Watch(fresh.pid) as watch:
            fresh.ask(op="run", job=job("ingest", data, output, to))
        return watch.peak / MB

    return Contender(f"{INGEST}, {data.form} to {to}", run, checked(to, data.rows), unit="MB")
