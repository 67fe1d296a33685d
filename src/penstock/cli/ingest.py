"""`penstock ingest`: flags become a checked request; then Spark starts, if it is needed, and one query runs until it is done or stopped.

Everything that can be wrong with the call is found before Spark starts, which takes seconds: option names and values,
paths, the module of the transform. `penstock.ingest` checks what needs Spark: the DDL of a schema, and what follows
from it.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from shlex import quote
from typing import TYPE_CHECKING, Any, Protocol

from penstock import clock
from penstock.cli.answer import Answer
from penstock.cli.process import load_told, load_transform, session, status_of, stop_signals, warnings_told
from penstock.cli.progress import Course, not_read, reporter, starting
from penstock.cli.state import beside
from penstock.errors import OptionError
from penstock.ingestion.call import IngestCall
from penstock.options.formats import COLUMNS, DEFAULT, READ, WRITTEN
from penstock.options.topics import is_topics
from penstock.storage import locate
from penstock.units import counted, format_duration, format_size, parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from rich.console import Console

    from penstock.cli.process import Stop
    from penstock.ingestion.ingested import Ingested
    from penstock.ingestion.run import IngestRun
    from penstock.ingestion.sql.query import Sql

    Flags = tuple[dict[str, str | None], list[str]]  # options that have their own flag, and K=V pairs

_BY_OTHER_MEANS = {
    "path": "SRC and DST",
    "checkpointlocation": "--checkpoint",
    "schema": "--schema",
    "ingest": "--transform",
    "statelocation": "--checkpoint",
    "tasks": "--master",
}


class Request(IngestCall):
    """The request for an ingest, checked as far as that is possible without Spark."""

    @staticmethod
    def of(
        src: list[str],
        dst: str,
        source: Flags,
        sink: Flags,
        transform: str | Sql | None,
        checkpoint: str | None,
        *,
        dry: bool = False,
    ) -> Request:
        """Merge flags and K=V pairs and check them; `UsageError` if the ingest could not run.

        Unless it is `dry`, create the directories that the ingest would create.
        """
        from_options, to_options = merged(*source, "--source-option"), merged(*sink, "--sink-option")
        if "format" not in to_options:
            to_options["format"] = same_format(from_options, flag="--to", topics=is_topics(src[0]))
        request = Request(src[0], dst, several(src, from_options), to_options, transform, checkpoint)
        request.check(dry=dry)
        return request

    def master(self) -> str:
        """Return where to run by default: on this machine; with task retries if a server is involved, as on every cluster."""
        places = (self.src, self.dst, self.checkpoint or self.dst)
        elsewhere = any(is_topics(place) or not locate(place)[0].of_this_host for place in places)
        return "local[*,4]" if elsewhere else "local[*]"

    def idle(self) -> Ingested | None:
        """Return how far the ingest is, if it has nothing to do; `None` if it has work, or only Spark can tell."""
        from penstock.ingestion.ingest import idle

        return idle(self)

    def here(self) -> IngestRun[Any] | None:
        """Return a run of the ingest that needs no Spark; `None` if the ingest needs Spark."""
        from penstock.ingestion.ingest import here

        return here(self)

    def check(self, *, dry: bool) -> None:
        """Raise whatever can be known to be wrong before Spark runs; at the end, unless `dry`, create the directories."""
        from penstock.ingestion.ingest import check
        from penstock.ingestion.topics import unsaid_columns

        if form := unsaid_columns(self.src, self.source):
            infer = "" if is_topics(self.src) else ", or --schema infer"
            msg = f"--schema is needed for format={form}, such as --schema 'id bigint, name string'{infer}"
            raise OptionError(msg)
        if isinstance(self.transform, str):
            load_transform(self.transform, name="--transform")
        load_told(self.sink)
        if dry:
            return
        check(self)

    def ingest(self, spark: SparkSession, *, watch: bool | str, progress: Callable[[Ingested], None]) -> Ingested:
        """Run it, as `penstock.ingest` does."""
        import penstock

        sides: dict[str, Any] = {"source": self.source, "sink": self.sink, "transform": self.transform}
        return penstock.ingest(
            spark, self.src, self.dst, **sides, checkpoint=self.checkpoint, watch=watch, progress=progress
        )


def transformed(transform: str | None, sql: str | None) -> str | Sql | None:
    """Return what the flags --transform and --sql do to rows; `OptionError` if both are given."""
    if sql is None:
        return transform
    if transform is not None:
        msg = f"--transform {transform} and --sql {sql!r}: expected only one of them"
        raise OptionError(msg)
    from penstock.ingestion.sql.query import Sql  # it imports Arrow, which no other check of flags needs

    return Sql(sql)


def watched(interval: str | None, *, watch: bool) -> bool | str:
    """Return how `penstock.ingest` is to watch; `OptionError` for an invalid interval, or for an interval without a watch."""
    if interval is None:
        return watch
    if not watch:
        msg = f"--interval {interval} is for --watch: without it the ingest ends when everything that is there is read"
        raise OptionError(msg)
    parse_duration(interval, name="--interval")
    return interval


class IngestWatcher(Protocol):
    """Watches an ingest while it runs."""

    def served(self) -> contextlib.AbstractContextManager[None]:
        """Return the context that surrounds everything, including Spark's start."""

    def measured(self, spark: SparkSession) -> contextlib.AbstractContextManager[None]:
        """Return the context that surrounds the query."""

    def progress(self, state: Ingested) -> None:
        """Take in how far the ingest is; called as the callback of `penstock.ingest` is."""


def run(
    request: Request,
    *,
    master: str | None,
    watch: bool | str,
    as_json: bool,
    write: Callable[[str], None],
    onlooker: IngestWatcher | None = None,
    has_work: bool = False,
) -> Answer:
    """Run the ingest; status 0 when everything there was is in (or a watch was stopped), the signal's status when it was stopped before.

    `write` prints a line on the real stdout, for progress with `as_json`. `has_work`: a first look has found work.
    """
    start = clock.monotonic()
    if not watch:
        here = master is None and onlooker is None
        answer = _unstarted(request, start, has_work=has_work, here=here, as_json=as_json, write=write)
        if answer is not None:
            return answer
    course = Course()
    with contextlib.ExitStack() as around:
        if onlooker is not None:
            around.enter_context(onlooker.served())
        starting(as_json=as_json)
        spark = around.enter_context(session(master or request.master()))
        if onlooker is not None:
            around.enter_context(onlooker.measured(spark))
        stop = around.enter_context(stop_signals())
        shown = around.enter_context(reporter(as_json=as_json, write=write))
        ready = clock.monotonic()
        progress = _watching(stop, course, shown, onlooker)
        done = _or_stopped(course, lambda: request.ingest(spark, watch=watch, progress=progress))
    facts = _facts(request, course, done, clock.monotonic() - start, ready - start)
    facts |= {"ok": bool(watch) or not stop.requested, "interrupted": stop.requested}
    return _answer(facts, status_of(stop.interrupt) if stop.interrupt else 0)


def _unstarted(
    request: Request, start: float, *, has_work: bool, here: bool, as_json: bool, write: Callable[[str], None]
) -> Answer | None:
    """Answer if Spark need not start: nothing is to do, or, if `here` allows, it is done in this process; otherwise `None`."""
    if not has_work and (state := request.idle()) is not None:
        course = Course()
        course.update(state)
        return _answer(_facts(request, course, state, clock.monotonic() - start))
    run_here = request.here() if here else None
    return None if run_here is None else _without_spark(request, run_here, start, as_json=as_json, write=write)


def _without_spark(
    request: Request, here: IngestRun[Any], start: float, *, as_json: bool, write: Callable[[str], None]
) -> Answer:
    """Run the ingest in this process, and answer as `run` does."""
    from penstock.ingestion.ingest import carried_out

    course = Course()
    course.update(here.state())  # it may end before its first report
    with warnings_told(), stop_signals() as stop, reporter(as_json=as_json, write=write) as shown:
        done = _or_stopped(course, lambda: carried_out(here, _watching(stop, course, shown)))
    facts = _facts(request, course, done, clock.monotonic() - start)
    facts |= {"ok": not stop.requested, "interrupted": stop.requested}
    return _answer(facts, status_of(stop.interrupt) if stop.interrupt else 0)


def _answer(facts: dict[str, Any], status: int = 0) -> Answer:
    return Answer(facts, lambda out: _show(facts, out), 0 if facts["ok"] else status)


def _facts(
    request: Request, course: Course, done: Ingested, seconds: float, start_seconds: float = 0.0
) -> dict[str, Any]:
    """Return the facts of a run that took `seconds`, including `start_seconds` of Spark's start."""
    new = course.new(done)
    return {
        "ok": True,
        "event": "done",
        "path": locate(request.dst)[1],
        "interrupted": False,
        "seconds": round(seconds, 1),
        "start_seconds": round(start_seconds, 1),
        "bytes_per_second": round(new["input_bytes"] / max(seconds - start_seconds, 0.001)),
        **asdict(done),
        "new": new,
    }


def _or_stopped(course: Course, ingest: Callable[[], Ingested]) -> Ingested:
    """Return what an ingest returns; or its last report, if it was asked to stop and did."""
    try:
        return ingest()
    except KeyboardInterrupt:  # a stop that was asked for
        if course.last is None or not course.ended:  # a second signal: the caller did not wait
            raise
        return course.last


def _watching(
    stop: Stop, course: Course, shown: Callable[[Course], None], onlooker: IngestWatcher | None = None
) -> Callable[[Ingested], None]:
    """Return the callback of the ingest: it reports, and ends the query once a stop was asked for."""

    def progress(state: Ingested) -> None:
        course.update(state)
        shown(course)
        if onlooker is not None:
            onlooker.progress(state)
        if stop.due() and stop.interrupt is not None:
            raise stop.interrupt  # it names the signal, also if a second signal led here
        course.ended = stop.requested  # the one report after that

    return progress


def several(src: list[str], options: dict[str, str]) -> dict[str, str]:
    """Return the options of a source with every SRC after the first; `OptionError` if `paths` is given as well."""
    if src[1:] and "paths" in options:
        msg = "SRC is several paths, and so is --source-option paths; name all of them as SRC"
        raise OptionError(msg)
    return options | {"paths": json.dumps(src[1:])} if src[1:] else options


def merged(flags: dict[str, str | None], pairs: list[str], flag: str) -> dict[str, str]:
    """Return the merged options of flags and K=V pairs; `OptionError` for what is not a pair, or is given twice."""
    options = {name: value for name, value in flags.items() if value is not None}
    names = {name.lower(): name for name in flags}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            msg = f"{flag} {pair!r}: expected NAME=VALUE, such as settle=5s"
            raise OptionError(msg)
        if name.lower() in _BY_OTHER_MEANS:
            msg = f"{flag} {pair!r}: {name} is given by {_BY_OTHER_MEANS[name.lower()]}"
            raise OptionError(msg)
        known = names.get(name.lower(), name)
        if known in options:
            msg = f"{flag} {pair!r}: {known} is given twice"
            raise OptionError(msg)
        options[known] = value
    return options


def same_format(source: dict[str, str], *, flag: str, topics: bool = False) -> str:
    """Return the output format if `flag` gives none: the source's, if it can be written; for `topics` without a format, columns."""
    if topics and "format" not in source:
        return COLUMNS
    name = source.get("format", DEFAULT).lower()
    if name in READ and name not in WRITTEN:
        msg = f"{flag} is needed: {name} files cannot be written as such; choose parquet"
        raise OptionError(msg)
    return name if name in WRITTEN else DEFAULT  # an unknown format is refused by the source's own check


def _show(facts: dict[str, Any], out: Console) -> None:
    new = facts["new"]
    if new["input_files"] or new["input_bytes"] or new["input_offsets"] or new["rows"]:
        _show_new(facts, out)
    else:
        out.print(_nothing(facts), soft_wrap=True)
    if aside := beside({name: facts[f"aside_{name}"] for name in ("records", "files", "changed")}):
        out.print(f"aside    {aside} since the sink began: penstock status {quote(facts['path'])}", soft_wrap=True)
    for text in not_read(facts):
        out.print(f"not read {text}", soft_wrap=True)
    for note in facts["notes"]:
        out.print(f"note     {note}", soft_wrap=True)
    total = f"{counted(facts['rows'], 'row')} in {counted(facts['output_files'], 'file')}, {format_size(facts['output_bytes'])}"
    out.print(f"in all   {total}, in {facts['path']}", soft_wrap=True)
    if facts["interrupted"]:
        counts = [(facts["left_files"], "file"), (facts["left_offsets"], "offset")]
        left = "".join(f"; {counted(count, thing)} left" for count, thing in counts if count)
        out.print(f"stopped{left}; what was committed is published, and the same command goes on from there")


def _nothing(facts: dict[str, Any]) -> str:
    """Say that there was nothing to read and, if nothing ever was, how to see why; for a stopped run, that it read nothing."""
    if facts["interrupted"]:
        return "nothing was read"
    if facts["input_files"] or facts["input_offsets"]:
        return "nothing new to read"
    return "nothing to read; with --dry-run the same command says what is left out, and why"


def _show_new(facts: dict[str, Any], out: Console) -> None:
    """Print what this run has read and written, and how long it took; files that rows have named do not count as read."""
    new, counts = facts["new"], facts["new"]["input_files"] or facts["new"]["input_bytes"]
    if counts:
        out.print(f"read     {counted(new['input_files'], 'file')}, {format_size(new['input_bytes'])}")
    elif new["input_offsets"]:
        out.print(f"read     {counted(new['input_offsets'], 'offset')}")
    finished = f"{counted(new['output_files'], 'file')}, {format_size(new['output_bytes'])}"
    out.print(f"wrote    {counted(new['rows'], 'row')}; finished {finished}")
    start = (
        f"{format_duration(facts['start_seconds'])} of it Spark's start" if facts["start_seconds"] else "without Spark"
    )
    took = f"{format_duration(facts['seconds'])}, {start}"
    out.print(f"took     {took}" + (f"; {format_size(facts['bytes_per_second'])} a second" if counts else ""))
