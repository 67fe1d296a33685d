"""The commands `run`, `check` and `init`."""

from __future__ import annotations

import contextlib
import json
import logging
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING, Any

import typer

from penstock import clock, tally
from penstock.cli.answer import Answer
from penstock.cli.page.commands import shown
from penstock.cli.page.watched import Failures, Views
from penstock.cli.process import hangups, session, status_of, stop_signals
from penstock.cli.run import draft as drafts
from penstock.cli.run import model
from penstock.cli.run import plan as plans
from penstock.cli.run.fleet import Fleet
from penstock.cli.run.locks import Locks, Renewal
from penstock.cli.run.logs import Journal, logged
from penstock.cli.run.measured import Checks, Measuring
from penstock.cli.run.shown import WatchedFleet
from penstock.cli.run.status import Phase
from penstock.errors import PenstockError
from penstock.metrics.meter import Meter
from penstock.session.local import has_ended, require_pyspark
from penstock.units import counted

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession
    from rich.console import Console

    from penstock.cli.page.request import PageRequest
    from penstock.cli.process import Stop
    from penstock.cli.run.plan import FleetPlan, Planned
    from penstock.cli.run.status import Watcher
    from penstock.cli.run.toml import Flaw
    from penstock.ingestion.ingested import Ingested

_log = logging.getLogger("penstock.run")
_TICK_SECONDS = 0.2
_ENDING_SECONDS = 15.0  # for queries to stop and parts to be published, after the time that a stop waits for batches
# Otherwise the tasks of one pipeline's large batch would go before those of all other pipelines.
_FAIR = {"spark.scheduler.mode": "FAIR"}
_JVM_ENDED = (
    "Spark's JVM has ended under way (killed, or out of memory); what is committed stays, nothing else is visible, and the "
    "same command goes on from there"
)


def check(location: str) -> Answer:
    """Return whether the files can run, and everything that is wrong with them."""
    plan, problems = plans.looked_at(location)
    ok = plan is not None and not problems
    pipelines = [] if plan is None else [_planned(planned) for planned in plan.pipelines.values()]
    facts = {
        "ok": ok,
        "files": [] if plan is None else list(plan.files),
        "pipelines": pipelines,
        "problems": [_problem(problem) for problem in problems],
    }
    mistaken = any(not problem.outside for problem in problems)
    return Answer(facts, lambda out: _show_check(facts, problems, out), 2 if mistaken else 0 if ok else 1)


def _planned(planned: Planned) -> dict[str, Any]:
    request = planned.request
    return {"name": planned.name, "source": request.src, "sink": request.dst, "schedule": str(planned.schedule)}


def _problem(problem: Flaw) -> dict[str, Any]:
    return {
        "file": problem.file,
        "line": problem.line,
        "key": problem.key,
        "message": problem.message,
        "outside": problem.outside,
    }


def _show_check(facts: dict[str, Any], problems: list[Flaw], out: Console) -> None:
    for planned in facts["pipelines"]:
        out.print(f"{planned['name']}: {planned['source']} -> {planned['sink']}, {planned['schedule']}", soft_wrap=True)
    for problem in problems:
        out.print(str(problem), soft_wrap=True)
    well = "all that can be known without Spark is well"
    out.print(counted(len(problems), "problem") if problems else well)


def json_schema() -> Answer:
    """Return the JSON schema of a file of pipelines."""
    schema = model.json_schema()
    return Answer(schema, lambda _: typer.echo(json.dumps(schema, indent=2)))


def init(src: str, *, dst: str | None, file: str, format_name: str | None) -> Answer:
    """Write a first file of pipelines, or print it if `file` is `-`."""
    text = drafts.draft(src, dst, format_name)
    if file == "-":
        return Answer({"ok": True, "file": None, "content": text}, lambda _: typer.echo(text, nl=False))
    path = drafts.write(text, file)
    facts = {"ok": True, "file": path, "content": text}
    return Answer(
        facts, lambda out: out.print(f"wrote {path}; look at it, then: penstock check {quote(file)}", soft_wrap=True)
    )


def run(
    location: str,
    *,
    metrics: str | None,
    otel: bool,
    page: PageRequest | None,
    as_json: bool,
    write: Callable[[str], None],
) -> Answer:
    """Run the pipelines until all are done, or a signal asks for an end; `metrics` is the address for Prometheus, `page` for browsers."""
    require_pyspark()
    with Locks() as locks, contextlib.ExitStack() as around:
        plan = plans.plan(location)
        locks.take(plan.files)
        around.enter_context(logged(write if as_json else _to_stderr, plan.secrets, as_json=as_json))
        reload = around.enter_context(hangups())  # from now on: a hangup during Spark's start would end this process
        meter = Meter(tally.of_process)
        checks = Checks(meter, plan.hung_after)
        if otel:
            around.enter_context(_telemetry(meter))
        views = Views(meter, Failures(), masked=plan.secrets.masked)
        for url in _served(around, metrics, page, checks, views, location):
            _log.info("%s", url)
        spark = around.enter_context(session(plan.master or _master(plan), _FAIR | plan.config))
        stop = around.enter_context(stop_signals())
        watchers: list[Watcher] = [Journal()]
        if metrics is not None or otel or page is not None:
            around.enter_context(_measured(spark, meter))
            watchers += [Measuring(meter), views.failures]
        fleet = Fleet(plan, _ingesting(spark), watchers)
        checks.look_at(fleet)
        views.watched = WatchedFleet(fleet)
        fleet.start()
        with Renewal(location, plan.secrets, locks) as renewal:
            attend(fleet, renewal, stop, reload, lambda: has_ended(spark, 0))
        late = _drained(fleet)
        return _answer(fleet, stop, late)


def attend(fleet: Fleet, renewal: Renewal, stop: Stop, reload: threading.Event, ended: Callable[[], bool]) -> None:
    """Look after the pipelines until all are over, or a stop is asked for. Raises `PenstockError` when Spark has `ended`.

    It calls no storage, so a stop takes effect at once even if a storage does not answer.
    """
    while not fleet.over and not stop.requested:
        clock.sleep(_TICK_SECONDS)
        if ended():
            raise PenstockError(_JVM_ENDED)
        if reload.is_set():
            reload.clear()
            renewal.ask()
        if (fresh := renewal.taken()) is not None:
            fleet.take(fresh)
        fleet.tick()


def _served(
    around: contextlib.ExitStack,
    metrics: str | None,
    page: PageRequest | None,
    checks: Checks,
    views: Views,
    location: str,
) -> Iterator[str]:
    """Serve metrics and the page, by one server if they have the same address; yield a line about each."""
    from penstock.metrics.server import answering, monitors  # only this needs prometheus-client

    watching = None if metrics is None else monitors(views.meter, checks.health, checks.ready)
    shared = page is not None and page.address == metrics
    if metrics is not None and watching is not None and not shared:
        yield f"metrics: {around.enter_context(answering(metrics, watching, name='--metrics'))}/metrics"
    if page is not None:
        yield f"page: {around.enter_context(shown(page, views, location, watching if shared else None))}/"


def _telemetry(meter: Meter) -> contextlib.AbstractContextManager[None]:
    from penstock.metrics.telemetry import exported  # only this needs OpenTelemetry

    return exported(meter)


def _measured(spark: SparkSession, meter: Meter) -> contextlib.AbstractContextManager[Any]:
    from penstock.spark.measuring import measure

    return measure(spark, meter)


def _drained(fleet: Fleet) -> list[str]:
    """Stop what still runs, within the time limit; return the names of pipelines that have not ended by then."""
    fleet.stop(fleet.plan.drain)
    return fleet.join(fleet.plan.drain + _ENDING_SECONDS)


def _answer(fleet: Fleet, stop: Stop, late: list[str]) -> Answer:
    statuses = fleet.statuses
    failed = [status.name for status in statuses if status.phase == Phase.FAILED]
    broken_off = [
        status.name
        for status in statuses
        if status.phase != Phase.DONE and (planned := fleet.plan.pipelines.get(status.name)) and planned.schedule.once
    ]
    status = 1 if failed or late else status_of(stop.interrupt) if stop.interrupt and broken_off else 0
    pipelines = [status.facts for status in statuses]
    facts = {
        "ok": not status, "event": "done", "interrupted": stop.requested, "pipelines": pipelines, "failed": failed, "late": late
    }  # fmt: skip
    return Answer(facts, lambda out: _show(facts, out), status)


def _show(facts: dict[str, Any], out: Console) -> None:
    for pipeline in facts["pipelines"]:
        error = f": [{pipeline['error_code']}] {pipeline['error']}" if pipeline["error"] else ""
        rows = counted(pipeline["rows"], "row")
        out.print(f"{pipeline['pipeline']}: {pipeline['phase']}, {rows} in all{error}", soft_wrap=True)
    for name in facts["late"]:
        out.print(f"{name}: did not end in time, and was left; nothing of it is visible in part", soft_wrap=True)


def _master(plan: FleetPlan) -> str:
    """Return where to run by default: with task retries if a pipeline uses a server."""
    masters = {planned.request.master() for planned in plan.pipelines.values()}
    return max(masters, key=len)


def _ingesting(spark: SparkSession) -> Callable[[Planned, Callable[[Ingested], None]], Ingested]:
    """Return a function that runs a pipeline in a session, under its name there and with its share of the cores."""

    def ingest(planned: Planned, progress: Callable[[Ingested], None]) -> Ingested:
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", planned.name)
        request = replace(planned.request, sink={"queryName": planned.name} | planned.request.sink)
        return request.ingest(spark, watch=planned.schedule.watch, progress=progress)

    return ingest


def _to_stderr(line: str) -> None:
    typer.echo(line, err=True)
