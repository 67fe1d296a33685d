"""How far an ingest is: shown as a bar on a terminal, as a line a second elsewhere, as JSON lines with `--json`."""

from __future__ import annotations

import json
from collections import deque
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from penstock import clock
from penstock.cli.answer import console, moment
from penstock.units import counted, format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.console import Console

    from penstock.ingestion.ingested import Ingested

_BAR_COLUMNS = 20  # so that a notebook, which has 115, shows all of the text after the bar
_LINE_SECONDS = 1.0
_PACE_SECONDS = 60.0
_ASIDE = ("aside_records", "aside_files", "aside_changed")
_COUNTS = ("input_files", "input_bytes", "input_offsets", "rows", "output_files", "output_bytes", *_ASIDE)


@dataclass
class Course:
    """The states of one run since its first: what it found already done, how fast it goes, and whether it waits.

    The pace covers the last minute, but begins with the first batch that the run commits: before that the query starts,
    which takes seconds.
    """

    first: Ingested | None = None
    last: Ingested | None = None
    started: float = 0.0
    # When the last batch of this run was first seen committed.
    batch_ns: int | None = None
    # Since when there has been nothing to do.
    waiting_ns: int | None = None
    # (seconds, bytes read by then).
    marks: deque[tuple[float, int]] = field(default_factory=deque)
    # A stop was asked for, and the last state is from after it.
    ended: bool = False

    def update(self, state: Ingested) -> None:
        """Take in the newest state."""
        now = clock.monotonic()
        if self.first is None or self.last is None:
            self.first, self.last, self.started = state, state, now
        if state.batch > self.last.batch:
            self.batch_ns = clock.now_ns()
        self.waiting_ns = (self.waiting_ns or clock.now_ns()) if state.waiting else None
        if state.batch > self.first.batch:
            self._mark(now, state.input_bytes)
        self.last = state

    def _mark(self, now: float, size: int) -> None:
        """Note how much has been read by now, and forget what the pace of the last minute does not need."""
        self.marks.append((now, size))
        while len(self.marks) > 1 and self.marks[1][0] <= now - _PACE_SECONDS:
            self.marks.popleft()

    def pace(self) -> float:
        """Return bytes per second over the last minute, 0 while they are not known."""
        if not self.marks or self.last is None:
            return 0.0
        since, size = self.marks[0]
        return (self.last.input_bytes - size) / max(clock.monotonic() - since, 0.001)

    def new(self, state: Ingested) -> dict[str, int]:
        """Return what this run has added up to `state`."""
        first = asdict(self.first) if self.first else dict.fromkeys(_COUNTS, 0)
        return {name: value - first[name] for name, value in asdict(state).items() if name in _COUNTS}

    @property
    def facts(self) -> dict[str, Any]:
        """Return the newest state with seconds, rate, the seconds left at this rate, and times (`None`: not known)."""
        assert self.last is not None  # noqa: S101 - called after update
        seconds = clock.monotonic() - self.started
        rate = self.pace()
        left = self.last.left_bytes / rate if rate else None
        return {
            "event": "progress",
            **asdict(self.last),
            "seconds": round(seconds, 1),
            "bytes_per_second": round(rate),
            "seconds_left": None if left is None else round(left, 1),
            "last_batch": _moment(self.batch_ns),
            "waiting_since": _moment(self.waiting_ns),
        }


def _moment(time_ns: int | None) -> str | None:
    return None if time_ns is None else moment(time_ns)


def starting(*, as_json: bool) -> None:
    """Say on a terminal that Spark is starting; the bar then takes over the line."""
    errors = console(stderr=True)
    if errors.is_terminal and not as_json:
        errors.print("starting Spark ...", end="\r")


@contextmanager
def progress_bar() -> Iterator[Callable[[Ingested], None]]:
    """Yield a function that shows how far an ingest is, for `progress` of `penstock.ingest`.

    It is the bar of `penstock ingest` in a notebook or on a terminal, and elsewhere at most one line a second. In a notebook the bar needs
    ipywidgets; without it there are lines.
    """
    course = Course()
    with reporter(as_json=False, write=_write_nothing) as shown:

        def progress(state: Ingested) -> None:
            course.update(state)
            shown(course)

        yield progress


def _write_nothing(line: str) -> None:
    """Write nothing: only JSON lines are written with `write`."""


@contextmanager
def reporter(*, as_json: bool, write: Callable[[str], None]) -> Iterator[Callable[[Course], None]]:
    """Yield a function that shows the course of an ingest; `write` prints a line on the real stdout."""
    errors = console(stderr=True)
    if as_json:
        yield _calm(lambda course: write(json.dumps(course.facts)))
    elif errors.is_terminal or (errors.is_jupyter and find_spec("ipywidgets") is not None):
        with _bar(errors) as shown:
            yield shown
    else:
        yield _calm(lambda course: _print_line(errors, course.facts))


def _calm(show: Callable[[Course], None]) -> Callable[[Course], None]:
    """Return `show`, called at most once a second and only when something has changed."""
    shown_at, shown = float("-inf"), None

    def calm(course: Course) -> None:
        nonlocal shown_at, shown
        now = clock.monotonic()
        if course.last != shown and now >= shown_at + _LINE_SECONDS:
            shown_at, shown = now, course.last
            show(course)

    return calm


def not_read(counts: Mapping[str, Any]) -> list[str]:
    """Return a line for each kind of files that a query has not read."""
    counted_files = (
        ("late_files", "came too late, not read: see penstock late"),
        ("accepted_files", "came late, accepted: the next start reads them"),
        ("held_files", "held back: changed too recently (settle)"),
        ("future_files", "in the future, until their time comes"),
        ("lost_files", "disappeared or shrank before they were read to their end"),
    )
    return [f"{counted(counts[name], 'file')} {text}" for name, text in counted_files if counts.get(name)]


def _print_line(errors: Console, facts: dict[str, Any]) -> None:
    if facts["batch"] >= 0 or facts["waiting"]:
        errors.print(line(facts), soft_wrap=True)


def line(facts: dict[str, Any]) -> str:
    """Return in one line how far an ingest is."""
    waiting = f"waiting since {facts['waiting_since']}" if facts["waiting"] else ""
    if facts["batch"] < 0:
        return f"nothing to read yet; {waiting}" if waiting else "planning"
    done = f"{_read(facts)}, {counted(facts['rows'], 'row')}"
    if aside := sum(facts[name] for name in _ASIDE):
        done += f", {aside:,} set aside"
    left_out = "".join(f"; {text}" for text in not_read(facts))
    if not waiting:
        return f"batch {facts['batch']}: {done}{_pace(facts)}{left_out}"
    at = f" at {facts['last_batch']}" if facts["last_batch"] else ""
    return f"batch {facts['batch']}{at}: {done}; {waiting}{left_out}"


def _read(facts: dict[str, Any]) -> str:
    """Return how much of the input was read: of files, or of topics."""
    if offsets := facts["input_offsets"]:
        return f"{offsets:,} of {counted(offsets + facts['left_offsets'], 'offset')}"
    total = facts["input_bytes"] + facts["left_bytes"]
    return f"{counted(facts['input_files'], 'file')}, {format_size(facts['input_bytes'])} of {format_size(total)}"


def _pace(facts: dict[str, Any]) -> str:
    """Return how fast it goes and how long it will still take, as far as these are known."""
    if not facts["bytes_per_second"]:
        return ""
    left = f", {format_duration(facts['seconds_left'])} left" if facts["seconds_left"] else ""
    return f", {format_size(facts['bytes_per_second'])}/s{left}"


@contextmanager
def _bar(errors: Console) -> Iterator[Callable[[Course], None]]:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.fields[text]}", markup=False)
    # In a notebook the output of another thread gets lost, or removes that of this thread.
    with Progress(
        SpinnerColumn(),
        BarColumn(_BAR_COLUMNS),
        text,
        TimeElapsedColumn(),
        console=errors,
        transient=errors.is_terminal,
        auto_refresh=not errors.is_jupyter,
    ) as bar:
        task = bar.add_task("", total=None, text="planning")

        seen: list[Course] = []

        def tell(course: Course) -> None:
            facts = course.facts
            unit = "offsets" if facts["input_offsets"] else "bytes"
            read, left = facts[f"input_{unit}"], facts[f"left_{unit}"]
            bar.update(task, completed=read, total=read + left, text=line(facts), refresh=errors.is_jupyter)

        def shown(course: Course) -> None:
            seen[:] = [course]
            unread = course.facts["left_offsets"] or course.facts["left_bytes"]
            # Otherwise only an earlier run has done anything.
            if unread or course.facts["waiting"] or course.last != course.first:
                tell(course)

        yield shown
        for course in seen:  # a quick run has reported only once
            tell(course)
