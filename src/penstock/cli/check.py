"""`penstock verify`: the report of `penstock.verify`, for people and as JSON."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.cli.answer import Answer, console
from penstock.cli.process import importable_here
from penstock.cli.verified import LastProof, leave
from penstock.storage import locate
from penstock.units import counted, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from penstock.verify.against import SourceCheck
    from penstock.verify.compare import Example
    from penstock.verify.files import Problem, SinkFiles
    from penstock.verify.proof import Proof

_PROBLEMS_SHOWN = 20


def verify(
    dst: str, source: str | None, *, transform: str | None, key: str | None, mended: str | None, as_json: bool
) -> Answer:
    """Verify, and note the result in the output; status 1 if anything is wrong. Raises what `penstock.verify.verify` raises."""
    from penstock import verify as verifying

    if transform is not None:
        # A transform is looked up where the ingest looked it up.
        importable_here()
    with _progress(shown=not as_json) as progress:
        report = verifying.verify(dst, source, transform=transform, key=key, mended=mended, progress=progress)
    leave(*locate(dst, name="DST"), LastProof.of(report))
    return Answer(report.to_json(), lambda out: _show(report, out), 0 if report.ok else 1)


@contextmanager
def _progress(*, shown: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """Show a bar on a terminal while the block runs."""
    errors = console(stderr=True)
    if not shown or not errors.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    amounts = DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress(TextColumn("{task.description}"), BarColumn(), *amounts, console=errors, transient=True) as bar:
        tasks = {}

        def progress(subject: str, done: int, total: int) -> None:
            if subject not in tasks:
                tasks[subject] = bar.add_task(f"comparing {subject}", total=total)
            bar.update(tasks[subject], completed=done, total=total)

        yield progress


def _show(report: Proof, out: Console) -> None:
    for sink in report.output.sinks:
        _show_sink(sink, out)
    if not report.output.sinks:
        out.print("no sink has written here yet")
    _show_problems(report.output.problems, out)
    if report.source is not None:
        _show_source(report.source, out)
    if report.ok:
        out.print("verified: every file is there, whole and once, and nothing else is", style="green")
    else:
        out.print("not verified", style="bold red")


def _show_problems(problems: tuple[Problem, ...], out: Console) -> None:
    for problem in problems[:_PROBLEMS_SHOWN]:
        out.print(f"{problem.kind}: {problem.path}: {problem.detail}", style="red", soft_wrap=True)
    if len(problems) > _PROBLEMS_SHOWN:
        out.print(f"... and {len(problems) - _PROBLEMS_SHOWN:,} more", style="red")


def _show_sink(sink: SinkFiles, out: Console) -> None:
    finished = f"{counted(sink.files, 'file')}, {counted(sink.rows, 'row')}, {format_size(sink.bytes)} finished"
    out.print(f"sink {sink.sink}: {finished}; {counted(sink.open_rows, 'row')} open")
    if sink.aside_lines:
        out.print(f"  set aside: {counted(sink.aside_lines, 'line')}, {counted(sink.aside_files, 'file')} finished")
    if sink.encrypted_files:
        locked = f"; what {sink.locked_files:,} of them hold is not known: --key" if sink.locked_files else ", whole"
        out.print(f"  encrypted: {counted(sink.encrypted_files, 'file')}{locked}")
    if sink.owed_files:
        out.print(f"  {sink.owed_files:,} of them decided, not visible yet: the next start publishes them, or finish")
    if sink.unnamed_files:
        out.print(f"  {counted(sink.unnamed_files, 'staged file')} of attempts that failed: see penstock clean")


def _show_source(check: SourceCheck, out: Console) -> None:
    aside = f" or set aside ({check.set_aside:,})" if check.set_aside else ""
    records = f"{counted(check.source_records, 'record')}; {check.output_records:,} in the output{aside}"
    out.print(f"source {check.source}: {counted(check.files, 'file')} read, {records}")
    if check.waiting_files:
        out.print(f"  {counted(check.waiting_files, 'file')} not ingested yet ({format_size(check.waiting_bytes)})")
    for note in check.notes:
        out.print(f"  note: {note}", soft_wrap=True)
    if check.proved:
        beside = " or set aside, each" if check.set_aside else ""
        out.print(f"every record that was read is in the output{beside} exactly once", style="green")
    else:
        out.print(check.reason, style="red", soft_wrap=True)
    for example in check.examples:
        _show_example(example, out)


def _show_example(example: Example, out: Console) -> None:
    count = f"{example.in_source} in the source, {example.in_output} in the output"
    out.print(f"  {example.kind} ({count}): {example.record}", style="red", soft_wrap=True)
    for file in (*example.source_files, *example.output_files):
        out.print(f"    in {file}", soft_wrap=True)
