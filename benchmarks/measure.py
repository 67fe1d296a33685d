"""Taking turns: A B A B A B, so that drift of the machine affects all contenders alike."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from benchmarks import room as rooms
from benchmarks.data import DataSet, Recipe, ddl, format_of, made
from benchmarks.figures import Series, shown
from benchmarks.jobs import Job
from benchmarks.output import expect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

MB = 1_000_000
_FILE_BYTES_MIN = 1000


@dataclass(frozen=True)
class Contender:
    """A contender does the work: `run` writes to a directory that does not exist yet, and returns its measurement.

    `check` raises unless the output is right. `runs` limits the number of runs of a slow contender.
    """

    label: str
    run: Callable[[Path], float]
    check: Callable[[Path], None]
    runs: int | None = None
    unit: str = "s"


@dataclass
class Bench:
    """One run of the benchmarks: the place, the scale, the number of repeats, and the receiver of messages."""

    room: rooms.Room
    scale: float
    repeat: int
    slow: bool
    tell: Callable[[str], None]

    def data(self, form: str, size: int, files: int, *, scale: float | None = None) -> DataSet:
        """Return `size` bytes, scaled, of `form` in that many files; they are read once, so that they are in memory."""
        scaled = int(size * (self.scale if scale is None else scale))
        recipe = Recipe(form, max(scaled, files * _FILE_BYTES_MIN), files)
        self.tell(f"input {recipe.name}")
        data = made(recipe, self.room.data)
        data.warm()
        return data

    def scaled(self, number: int, least: int) -> int:
        """Return a scaled number of things."""
        return max(round(number * self.scale), least)

    def directory(self, name: str) -> Path:
        """Return the path of an output directory that does not exist."""
        path = self.room.work / name
        rooms.clear(path)
        return path

    def alternate(self, contenders: Sequence[Contender], *, drop: int = 1) -> list[Series]:
        """Run all of them in turn, `repeat` times after `drop` rounds that do not count; return what each took."""
        values: dict[str, list[float]] = {contender.label: [] for contender in contenders}
        for number in range(drop + self.repeat):
            for contender in contenders:
                limited = contender.runs is not None
                if limited and number not in range(drop, drop + (contender.runs or 0)):
                    continue
                value = self._once(contender)
                dropped = " (not counted)" if number < drop else ""
                self.tell(f"{contender.label}: {shown(value, contender.unit)}{dropped}")
                if not dropped:
                    values[contender.label].append(value)
        return [Series(c.label, tuple(values[c.label]), c.unit) for c in contenders]

    def _once(self, contender: Contender) -> float:
        output = self.directory("out")
        os.sync()
        value = contender.run(output)
        contender.check(output)
        rooms.clear(output)
        return value


def job(engine: str, data: DataSet, output: Path | str, to: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - as `Job` has them
    """Return the description of a job for a worker; `output` is a directory or a URL, `more` are fields of `Job`."""
    source = {"header": "true"} if data.form == "csv" else {}
    if data.form == "csv" and engine == "spark":
        source["escape"] = '"'  # RFC 4180, as in our reader
    return asdict(Job(engine, data.directory, str(output), data.form, to, source, **more))


def warm(label: str, worker: rooms.Worker, engine: str, data: DataSet, to: str, **more: Any) -> Contender:  # noqa: ANN401 - as `Job` has them
    """Return the contender that runs a query in a session that is already up; `more` are fields of `Job`."""

    def run(output: Path) -> float:
        return float(worker.ask(op="run", job=job(engine, data, output, to, **more))["seconds"])

    return Contender(label, run, checked(to, data.rows))


def process(
    label: str,
    bench: Bench,
    engine: str,
    data: DataSet,
    to: str,
    *,
    archive: bool = True,
    variables: dict[str, str] | None = None,
) -> Contender:
    """Return the contender that runs a query in a new process, with its session; `variables` are added to its environment."""

    def run(output: Path) -> float:
        command = {"op": "run", "job": job(engine, data, output, to)}
        return rooms.whole_process(engine, command, bench.room, archive=archive, variables=variables)

    return Contender(label, run, checked(to, data.rows))


def command(label: str, bench: Bench, data: DataSet, to: str) -> Contender:
    """Return the contender that runs `penstock ingest` as typed, which starts Spark only if it needs it."""

    def run(output: Path) -> float:
        return rooms.whole_command(ingest_arguments(data, str(output), to), bench.room)

    return Contender(label, run, checked(to, data.rows))


def ingest_arguments(data: DataSet, output: str, to: str) -> list[str]:
    """Return the arguments with which `penstock` ingests a data set."""
    columns = [] if data.form == "text" else ["--schema", ddl(data.form)]
    return ["ingest", data.directory, output, "--format", format_of(data.form), "--to", to, *columns]


def crossing(worker: rooms.Worker, rows: int, width: int, **more: str) -> Contender:
    """Return the contender that only sends prepared rows through the JVM: no source is faster. See `crossing.cross`."""
    asked = {"op": "cross", "rows": rows, "width": width, **more}
    return Contender("the crossing alone", lambda _: float(worker.ask(**asked)["seconds"]), lambda _: None)


def together(
    label: str,
    workers: tuple[rooms.Worker, rooms.Worker],
    commands: Callable[[Path], list[dict[str, Any]]],
    check: Callable[[Path], None],
) -> Contender:
    """Return the contender whose two processes work at the same time; its time is the slower one's."""

    def run(output: Path) -> float:
        output.mkdir()
        asked = commands(output)
        start = time.perf_counter()
        for worker, command in zip(workers, asked, strict=True):
            worker.send(**command)
        for worker in workers:
            worker.answer()
        return time.perf_counter() - start

    return Contender(label, run, check)


def checked(form: str, rows: int, *, patience: float = 0) -> Callable[[Path], None]:
    """Return a check that an output of `form` has `rows` rows."""
    return lambda output: expect(str(output), form, rows, patience=patience)


def about(data: DataSet) -> str:
    """Return a description of a data set."""
    files = "file" if len(data.paths) == 1 else "files"
    return f"{data.size / MB:,.0f} MB, {data.rows:,} records in {len(data.paths):,} {files}"
