"""More cases: kinds of work that users do with files, each compared with Spark's own source and sink, with the required result."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.json as arrow_json
import pyarrow.parquet as pq
import pyrage

from benchmarks.cases import (
    ALONE,
    COMMAND,
    INGEST,
    PARTS,
    PLAIN,
    ROUNDS_TO_WARM,
    SPARK,
    alone,
    bare,
    case,
    facts,
    sessions,
    side_by_side,
)
from benchmarks.data import LONG_AGO, DataSet, backlog
from benchmarks.figures import Figure, Series
from benchmarks.jobs import Job
from benchmarks.latency import measured
from benchmarks.logs import REAL_LOGS
from benchmarks.measure import MB, Bench, Contender, checked, command, crossing, job, process, warm
from benchmarks.output import Same, WrongResult, visible
from benchmarks.room import clear, ensure_archive, whole_command, whole_process, worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.room import Worker

WORKS = [
    "bucketed",
    "parquet-parquet",
    "gzip",
    REAL_LOGS,
    "encrypted",
    "named",
    "where",
    "group-by",
    "next-file",
    "interpreter",
    "visible",
]

_BYTES = 323 * MB
_WHOLE_BYTES = 1000 * MB
_FILES = 100_000
_STAGING_KEY = "BENCHMARKS_STAGING_KEY"
_BACKLOG_SECONDS = 3600
_VISIBLE_SECONDS = 10
_TYPES = pa.schema([
    ("id", pa.int64()),
    ("ts", pa.timestamp("us", "UTC")),
    ("user", pa.string()),
    ("country", pa.string()),
    ("score", pa.float64()),
    ("msg", pa.string()),
])  # fmt: skip


@case("bucketed", "JSON lines to Parquet in directories by a column of eight values, both in a session that is up.")
def _bucketed(bench: Bench) -> list[Figure]:
    data = bench.data("json", _BYTES, PARTS)
    return _beside_alone(bench, "bucketed", "JSON to Parquet by a column", data, 5, partition="country")


@case("parquet-parquet", "Parquet to Parquet, written by pyarrow, both in a session that is up.")
def _parquet_parquet(bench: Bench) -> list[Figure]:
    data = _as_parquet(bench.data("json", 2 * _BYTES, PARTS))
    return _beside_alone(bench, "parquet-parquet", "Parquet to Parquet", data, 4)


def _beside_alone(
    bench: Bench, name: str, what: str, data: DataSet, limit: float, partition: str | None = None
) -> list[Figure]:
    """Return the times of an ingest to Parquet, of Spark's own query, and of our parser and writer alone."""
    with sessions(bench, "ingest") as (theirs, ours), bare(bench) as pair:
        contenders = [
            warm(SPARK, theirs, "spark", data, "parquet", partition=partition),
            warm(INGEST, ours, "ingest", data, "parquet", partition=partition),
            alone(pair, data, partition),
        ]
        spark, ingest, floor = bench.alternate(contenders, drop=ROUNDS_TO_WARM)
    return [
        Figure(name, what, ingest, spark, "faster", limit, facts(data, ingest)),
        Figure(name, f"{what}: {ALONE}", floor, spark, "faster"),
    ]


@case("gzip", "Text to text packed by gzip, each with its own level, both in a session that is up.")
def _gzip(bench: Bench) -> list[Figure]:
    data = bench.data("text", _BYTES, PARTS)
    return side_by_side(bench, "gzip", "text to gzip text", data, "text", limit=5, sink={"compression": "gzip"})


@case(
    "encrypted",
    "`ingest` of text to text and of JSON to Parquet, encrypted for one recipient, with a staging key and with none, against the same in "
    "clear; in a session that is up.",
)
def _encrypted(bench: Bench) -> list[Figure]:
    ensure_archive(bench.room)
    theirs, staging = pyrage.x25519.Identity.generate(), pyrage.x25519.Identity.generate()
    to = {"encryptTo": str(theirs.to_public())}
    keys = {
        "encryptionKey=none": to | {"encryptionKey": "none"},
        "a staging key": to | {"encryptionKey": f"env:{_STAGING_KEY}"},
    }
    figures = []
    with worker("ingest", bench.room, variables={_STAGING_KEY: str(staging)}) as ours:
        for form, target in (("text", "text"), ("json", "parquet")):
            data = bench.data(form, _BYTES, PARTS)
            contenders = [warm("in clear", ours, "ingest", data, target)]
            for label, sink in keys.items():
                written = warm(label, ours, "ingest", data, target, sink=sink)
                contenders.append(replace(written, check=_opened_by(theirs, target, data.rows)))
            clear_one, *taken = bench.alternate(contenders, drop=ROUNDS_TO_WARM)
            figures += [
                Figure("encrypted", f"{form} to encrypted {target}, {series.label}", series, clear_one, "longer", 1.5)
                for series in taken
            ]
    return figures


@case(
    "named",
    "`ingest` of files that the lines of a list name, against an `ingest` of their directory; in a session that is up.",
)
def _named(bench: Bench) -> list[Figure]:
    ensure_archive(bench.room)
    text = bench.data("text", 2 * _BYTES, PARTS)
    figures = []
    with worker("ingest", bench.room) as ours:
        for data in (text, _as_parquet(bench.data("json", 2 * _BYTES, PARTS))):
            lists = bench.directory(f"lists-{data.form}")
            lists.mkdir()
            (lists / "all.txt").write_text("".join(f"{path}\n" for path in data.paths))
            os.utime(lists / "all.txt", (LONG_AGO, LONG_AGO))
            contenders = [
                _from("the directory", ours, data, {}),
                _from("names", ours, data, {"files": str(lists)}),
            ]
            directory, names = bench.alternate(contenders, drop=ROUNDS_TO_WARM)
            figures.append(
                Figure("named", f"{data.form} that a list names", names, directory, "longer", 1.1, facts(data, names))
            )
    return figures


def _from(label: str, ours: Worker, data: DataSet, source: dict[str, str]) -> Contender:
    """Return an ingest of files into files of the same form; `source` are options in addition to those of the form."""

    def run(output: Path) -> float:
        asked = job("ingest", data, output, data.form)
        return float(ours.ask(op="run", job=asked | {"source": asked["source"] | source})["seconds"])

    return Contender(label, run, checked(data.form, data.rows))


@case(
    "where",
    "JSON lines, half of which pass a condition, to Parquet by `readStream` and `writeStream`, in a session that is up.",
)
def _where(bench: Bench) -> list[Figure]:
    data = bench.data("json", _BYTES, PARTS)
    condition = "score < 0.5"
    with sessions(bench, "plain") as (theirs, ours):
        contenders = [
            replace(warm(label, who, engine, data, "parquet", where=condition), check=Same(None))
            for label, who, engine in ((SPARK, theirs, "spark"), (PLAIN, ours, "plain"))
        ]
        contenders.append(crossing(ours, data.rows, 0, where=condition))
        spark, plain, crossed = bench.alternate(contenders, drop=ROUNDS_TO_WARM)
    what = "JSON to a condition to Parquet, a plain query"
    return [
        Figure("where", what, plain, spark, "faster", 1.5, facts(data, plain)),
        Figure("where", f"{what}, against the crossing of its rows alone", plain, crossed, "longer"),
        Figure("where", "the crossing of these rows alone, to the condition and out", crossed, spark, "faster"),
    ]


@case("group-by", "JSON lines counted by a column: each row crosses into the JVM once; in a session that is up.")
def _group_by(bench: Bench) -> list[Figure]:
    data = bench.data("json", _BYTES, PARTS)

    def contender(label: str, worker: Worker, engine: str) -> Contender:
        def run(output: Path) -> float:
            clear(Path(f"{output}.checkpoint"))
            return float(worker.ask(op="count", job=job(engine, data, output, "parquet"), by="country")["seconds"])

        return Contender(label, run, lambda output: _counts(output, data.rows))

    with sessions(bench, "plain") as (theirs, ours):
        contenders = [contender(SPARK, theirs, "spark"), contender(PLAIN, ours, "plain")]
        contenders.append(crossing(ours, data.rows, 0, by="country"))
        spark, plain, crossed = bench.alternate(contenders, drop=ROUNDS_TO_WARM)
    what = "JSON counted by a column, a plain query"
    return [
        Figure("group-by", what, plain, spark, "faster", 2, facts(data, plain)),
        Figure("group-by", f"{what}, against the crossing of its rows alone", plain, crossed, "longer"),
        Figure("group-by", "the crossing of these rows alone, and a count", crossed, spark, "faster"),
    ]


@case(
    "next-file",
    "A whole process that finds one new file of a line among 100,000 that it has read before (`penstock ingest` three times, a program "
    "with Spark's own once), and one that finds nothing new.",
)
def _next_file(bench: Bench) -> list[Figure]:
    ensure_archive(bench.room)
    files = bench.scaled(_FILES, 50)
    place = {
        engine: (bench.directory(f"many-{engine}"), bench.directory(f"done-{engine}")) for engine in ("spark", "ingest")
    }

    def spark() -> float:
        source, target = map(str, place["spark"])
        told = {"op": "run", "job": asdict(Job("spark", source, target, "text", "text"))}
        return whole_process("spark", told, bench.room)

    def ours() -> float:
        return whole_command(["ingest", *map(str, place["ingest"]), "--format", "text", "--to", "text"], bench.room)

    taken = {}
    for engine, label, run, runs in (("spark", SPARK, spark, 1), ("ingest", "penstock ingest", ours, None)):
        source, target = place[engine]
        backlog(source, files, end=LONG_AGO, seconds=_BACKLOG_SECONDS)
        bench.tell(f"{label}: {files:,} files: {run():.1f} s")
        wanted = [Contender(label, _landing(source, run), _lines_of(source, target), runs)]
        if engine == "ingest":
            wanted.append(Contender(f"{label}, nothing new", _without_output(run), _lines_of(source, target)))
        taken[engine] = bench.alternate(wanted, drop=0)
        for directory in (source, target):
            clear(directory)
    (spark_new,), (new, nothing) = taken["spark"], taken["ingest"]
    what = f"whole process, one new file among {files:,}"
    return [
        Figure("next-file", what, new, spark_new, "faster"),
        Figure("next-file", f"{what}, by the clock", new, rule="below", limit=3),
        Figure("next-file", f"whole process, nothing new among {files:,}", nothing, rule="below", limit=2),
    ]


def _landing(source: Path, run: Callable[[], float]) -> Callable[[Path], float]:
    """Return a function that lands a file of one line and then runs."""

    def landed(_output: Path) -> float:
        path = f"{source}/new-{time.time_ns()}.log"
        with open(path, "wb") as file:  # noqa: PTH123 - one of 100,000
            file.write(b"one line\n")
        os.utime(path, (LONG_AGO, LONG_AGO))
        return run()

    return landed


def _without_output(run: Callable[[], float]) -> Callable[[Path], float]:
    return lambda _output: run()


def _lines_of(source: Path, target: Path) -> Callable[[Path], None]:
    """Return a check that a target has a line for each file that the source has then."""
    return lambda _output: checked("text", len(os.listdir(source)))(target)  # noqa: PTH208 - 100,000 names


@case("interpreter", "JSON to Parquet as a whole process, with `PYSPARK_PYTHON` set and without.")
def _interpreter(bench: Bench) -> list[Figure]:
    ensure_archive(bench.room)
    data = bench.data("json", _WHOLE_BYTES, PARTS)
    theirs = {"PYSPARK_PYTHON": sys.executable}
    spark, typed, unset, given = bench.alternate(
        [
            process(SPARK, bench, "spark", data, "parquet"),
            command(COMMAND, bench, data, "parquet"),
            process(f"{INGEST}, unset", bench, "ingest", data, "parquet"),
            process(f"{INGEST}, PYSPARK_PYTHON set", bench, "ingest", data, "parquet", variables=theirs),
        ]
    )
    what = "1 GB of JSON to Parquet, whole process"
    return [
        Figure("interpreter", f"{what}, the command", typed, spark, "faster", 4, facts(data, typed)),
        Figure("interpreter", f"{what}, a session of its own", unset, spark, "faster", 2, facts(data, unset)),
        Figure("interpreter", f"{what}, a session of its own, PYSPARK_PYTHON set", given, unset, "longer", 1.1),
    ]


@case(
    "visible",
    "From the rename of a file of one row to a reader that sees it, the median of 10 s: `ingest` that watches every millisecond with "
    "`rollBatches=1`, and Spark's own with its shortest trigger, in turn.",
)
def _visible(bench: Bench) -> list[Figure]:
    rates = [1, 100, 1000]
    seen: dict[tuple[str, int], list[float]] = {}
    spent: dict[tuple[str, int], list[float]] = {}
    for _ in range(bench.repeat):
        for contender in ("spark", "watch-1ms"):
            for wait in measured(contender, rates, max(_VISIBLE_SECONDS * min(bench.scale, 1), 1)):
                bench.tell(str(wait))
                seen.setdefault((contender, wait.rate), []).append(wait.median)
                spent.setdefault((contender, wait.rate), []).append(wait.cores)
    figures = []
    for rate in rates:
        ours, theirs = (
            _milliseconds(label, seen[who, rate]) for who, label in (("watch-1ms", INGEST), ("spark", SPARK))
        )
        cores = ", ".join(
            f"{label} {min(spent[who, rate]):.2f}" for who, label in (("watch-1ms", "ours"), ("spark", "Spark's"))
        )
        figures.append(
            Figure(
                "visible", f"a row seen, {rate} files a second", ours, theirs, "faster", 1, {"cores kept busy": cores}
            )
        )
    return figures


def _milliseconds(label: str, seconds: list[float]) -> Series:
    return Series(label, tuple(1000 * value for value in seconds), "ms")


def _counts(output: Path, rows: int) -> None:
    """Raise `WrongResult` unless the counts in Parquet add up to this number of rows."""
    counted = sum(sum(pq.read_table(path, columns=["count"])["count"].to_pylist()) for path in visible(str(output)))
    if counted != rows:
        msg = f"{output}: {counted:,} records were counted, expected {rows:,}"
        raise WrongResult(msg)


def _opened_by(identity: pyrage.x25519.Identity, form: str, rows: int) -> Callable[[Path], None]:
    """Return a check that the files, opened with the identity, hold this number of rows."""

    def check(output: Path) -> None:
        for path in list(visible(str(output))):
            with open(path, "rb") as source, open(path.removesuffix(".age"), "wb") as target:  # noqa: PTH123 - plain files
                pyrage.decrypt_io(source, target, [identity])
            os.unlink(path)  # noqa: PTH108 - a path is text here
        checked(form, rows)(output)

    return check


def _as_parquet(data: DataSet) -> DataSet:
    """Return JSON records as Parquet, made by pyarrow next to them unless an earlier run did."""
    directory = Path(f"{data.directory}-parquet")
    directory.mkdir(exist_ok=True)
    paths = [directory / f"{Path(path).stem}.parquet" for path in data.paths]
    for path, source in zip(paths, data.paths, strict=True):
        if not path.exists():
            options = arrow_json.ParseOptions(explicit_schema=_TYPES, unexpected_field_behavior="error")
            making = path.with_suffix(".making")
            pq.write_table(arrow_json.read_json(source, parse_options=options), making)
            os.utime(making, (LONG_AGO, LONG_AGO))
            making.rename(path)
    made = replace(
        data,
        paths=tuple(map(str, paths)),
        directory=str(directory),
        form="parquet",
        size=sum(path.stat().st_size for path in paths),
    )
    made.warm()
    return made
