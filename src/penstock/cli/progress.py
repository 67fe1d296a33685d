"""How far an ingest is: a bar on a terminal, a line a second elsewhere, JSON lines with `--json`."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from penstock import clock
from penstock.cli.answer import console, counted
from penstock.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from penstock.spark.ingest import Ingested

_LINE_SECONDS = 1.0
_COUNTS = ("input_files", "input_bytes", "rows", "output_files", "output_bytes")


@dataclass
class Course:
    """The states of one run, from the first on: what it found done, and how fast it goes.

    The pace is measured from the first batch that it commits on: before that the query starts, which takes seconds.
    """

    first: Ingested | None = None
    last: Ingested | None = None
    started: float = 0.0
    paced: tuple[float, int] | None = None  # since when, from how many bytes on
    ended: bool = False  # a stop was asked for, and the last state is from behind it

    def update(self, state: Ingested) -> None:
        """Take in the newest state."""
        now = clock.monotonic()
        if self.first is None:
            self.first, self.started = state, now
        if self.paced is None and state.batch > self.first.batch:
            self.paced = now, state.input_bytes
        self.last = state

    def pace(self) -> float:
        """Return bytes a second, 0 while that is not known."""
        if self.paced is None or self.last is None or self.last.input_bytes <= self.paced[1]:
            return 0.0
        return (self.last.input_bytes - self.paced[1]) / max(clock.monotonic() - self.paced[0], 0.001)

    def new(self, state: Ingested) -> dict[str, int]:
        """Return what this run has added up to `state`."""
        first = asdict(self.first) if self.first else dict.fromkeys(_COUNTS, 0)
        return {name: value - first[name] for name, value in asdict(state).items() if name in _COUNTS}

    @property
    def facts(self) -> dict[str, Any]:
        """Return the newest state with seconds, rate and the seconds that are left at this rate (`None`: not known)."""
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
        }


def starting(*, as_json: bool) -> None:
    """Say on a terminal that Spark is being started; the bar takes the line over."""
    errors = console(stderr=True)
    if errors.is_terminal and not as_json:
        errors.print("starting Spark ...", end="\r")


@contextmanager
def reporter(*, as_json: bool, write: Callable[[str], None]) -> Iterator[Callable[[Course], None]]:
    """Yield what shows the course of an ingest; `write` puts a line on the real stdout."""
    errors = console(stderr=True)
    if as_json:
        yield _calm(lambda course: write(json.dumps(course.facts)))
    elif errors.is_terminal:
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


def _print_line(errors: Console, facts: dict[str, Any]) -> None:
    if facts["batch"] >= 0:
        errors.print(_line(facts), soft_wrap=True)


def _line(facts: dict[str, Any]) -> str:
    left = "" if facts["seconds_left"] is None else f", {format_duration(facts['seconds_left'])} left"
    total = facts["input_bytes"] + facts["left_bytes"]
    size = f"{format_size(facts['input_bytes'])} of {format_size(total)}"
    pace = f", {format_size(facts['bytes_per_second'])}/s{left}" if facts["bytes_per_second"] else ""
    return f"batch {facts['batch']}: {counted(facts['input_files'], 'file')}, {size}, {counted(facts['rows'], 'row')}{pace}"


@contextmanager
def _bar(errors: Console) -> Iterator[Callable[[Course], None]]:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.fields[text]}", markup=False)
    with Progress(SpinnerColumn(), BarColumn(), text, TimeElapsedColumn(), console=errors, transient=True) as bar:
        task = bar.add_task("", total=None, text="planning")

        def shown(course: Course) -> None:
            facts = course.facts
            if facts["left_bytes"] or course.last != course.first:  # else it is only what an earlier run has done
                total = facts["input_bytes"] + facts["left_bytes"]
                bar.update(task, completed=facts["input_bytes"], total=total, text=_line(facts))

        yield shown
