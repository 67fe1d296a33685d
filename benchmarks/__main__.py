"""`python -m benchmarks [CASE...]`: run the cases, print their results as they come, write the report."""

from __future__ import annotations

import difflib
import tempfile
import traceback
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import hdfsclient, machine
from benchmarks.cases import CASES
from benchmarks.measure import MB, Bench
from benchmarks.output import WrongResult
from benchmarks.profiling import ONE_THREAD
from benchmarks.report import Report, Taken, table
from benchmarks.room import REPOSITORY, ContenderFailed, Room, worker
from benchmarks.works import WORKS

PROFILE, REPORT = "profile", "report"
ON_HDFS = [name for name in CASES if name.startswith(hdfsclient.PREFIX)]
PROFILES = {"json-parquet": ("json", 400, 4), "text-text": ("text", 1000, 8), "plain-text": ("text", 1000, 8)}
_REPEAT_MIN = 3

_WIDTH_MIN = 150  # on a pipe, rich would fold tables to 80

_console = Console(highlight=False, soft_wrap=True)
if not _console.is_terminal:
    _console.width = _WIDTH_MIN


def main(
    cases: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CASE]...",
            help=f"{', '.join(CASES)}, profile, or report: write the page anew. Default: all that need no HDFS.",
        ),
    ] = None,
    *,
    scale: Annotated[float, typer.Option(help="Size of the input; other than 1 only to try the harness.")] = 1,
    repeat: Annotated[int, typer.Option(min=1, help="Runs that count; at least 3 unless the scale is smaller.")] = 3,
    data: Annotated[Path | None, typer.Option(help="Where input is kept and output goes.", show_default=False)] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where the report goes: docs, for another scale than 1 report in --data.", show_default=False
        ),
    ] = None,
    slow: Annotated[bool, typer.Option("--slow", help="Also 100,000 small files, where Spark takes minutes.")] = False,
    hdfs: Annotated[bool, typer.Option("--hdfs", help="By default, the cases on HDFS instead.")] = False,
) -> None:
    """Measure Penstock against Spark's own file source and sink. Exit status 1 if a result was wrong; a miss is no error."""
    plain = [name for name in CASES if name not in ON_HDFS and name not in WORKS]
    names = _checked(cases or (ON_HDFS if hdfs else [*plain, *WORKS, PROFILE]))
    if scale >= 1 and repeat < _REPEAT_MIN:
        msg = f"--repeat {repeat}: expected at least {_REPEAT_MIN}, or a scale below 1"
        raise typer.BadParameter(msg)
    room = Room((data or Path(tempfile.gettempdir()) / "penstock-benchmarks").resolve())
    target = out or (REPOSITORY / "docs" if scale == 1 else room.root / "report")
    report = Report.load(target, scale)
    if names != [REPORT]:
        report.facts, report.command = machine.facts(room.data), machine.command()
    bench = Bench(room, scale, repeat, slow, lambda said: _console.print(f"  [dim]{said}[/]"))
    failed = [name for name in names if not _done(name, bench, report, target)]
    report.save(target)
    figures = [figure for name in names if name in report.cases for figure in report.cases[name].figures]
    if len(names) > 1 and figures:
        _console.print(table(figures))
    _console.print(f"{target}/benchmarks.md")
    if failed:
        _console.print(f"[red]failed: {', '.join(failed)}[/]")
        raise typer.Exit(1)


def _checked(names: list[str]) -> list[str]:
    known = [*CASES, PROFILE, REPORT]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            msg = f"there is no case {name!r}{hint} Known: {', '.join(known)}"
            raise typer.BadParameter(msg)
    return names


def _done(name: str, bench: Bench, report: Report, target: Path) -> bool:
    """Run one case into the report, and save it; tell whether the case completed."""
    date, commit = datetime.now(timezone.utc).isoformat(timespec="seconds"), machine.commit()
    if name == REPORT:
        return True
    _console.print(f"[bold]{name}[/]")
    if name == PROFILE:
        for what in PROFILES:
            report.profiles[what] = {"date": date, "commit": commit} | _profiled(what, bench)
        report.save(target)
        return True
    taken = Taken(date, commit, machine.load())
    try:
        taken.figures = CASES[name].run(bench)
        if not taken.figures:  # its input is not here, as it has said
            return True
        _console.print(table(taken.figures))
    except (WrongResult, ContenderFailed):
        taken.failed = traceback.format_exc()
        _console.print(taken.failed, style="red", markup=False)
    report.cases[name] = taken
    report.save(target)
    return taken.failed is None


def _profiled(what: str, bench: Bench) -> dict[str, Any]:
    form, size, files = PROFILES[what]
    data = bench.data(form, size * MB, files)
    output = bench.directory("out")
    with worker("bare", bench.room, variables=ONE_THREAD) as plain:
        answer = plain.ask(op="profile", what=what, directory=data.directory, target=str(output))
    bench.directory("out")
    whole = sum(own for _, own in answer["shares"])
    _console.print(f"  {what}: {answer['seconds']:.1f} s")
    for label, own in answer["shares"]:
        _console.print(f"    {own / whole:4.0%}  {label}")
    for label, own in answer["top"]:
        bench.tell(f"  {own:6.2f} s  {label}")
    return answer


if __name__ == "__main__":
    typer.run(main)
