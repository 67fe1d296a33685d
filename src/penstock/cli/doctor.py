"""`penstock doctor`: what is well on this machine and what is not, with what to do; and whether an output can be kept somewhere."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from penstock.cli.answer import Answer
from penstock.errors import PenstockError
from penstock.storage import LocalStorage, free_bytes, locate, probe
from penstock.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from penstock.spark.machine import Finding
    from penstock.storage import Probe, Storage

_SLOW_SECONDS = 1.0
_CLOCK_SECONDS = 5.0
_MARKS = {"ok": "ok", "note": "NOTE", "problem": "PROBLEM"}
_COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}


def doctor(url: str | None) -> Answer:
    """Look at this machine, and with `url` at that place as an output; 1 if anything is found that would stop an ingest."""
    import penstock
    from penstock.spark import machine
    from penstock.spark.machine import Finding

    this = f"{penstock.__version__} in {os.path.dirname(penstock.__file__)}"
    findings = [Finding("penstock", "ok", this), *machine.everything()]
    if all(finding.state != "problem" for finding in findings if finding.name in {"pyspark", "java"}):
        from penstock.spark import archive

        findings.append(archive.finding())
    if url is not None:
        findings += _look_at(url)
    problems = sum(finding.state == "problem" for finding in findings)
    facts: dict[str, Any] = {"ok": not problems, "checks": [finding.facts for finding in findings]}
    return Answer(facts, lambda out: _show(findings, problems, out), 1 if problems else 0)


def _look_at(url: str) -> Iterator[Finding]:
    """Yield what is found of a place by trying there what an output needs."""
    from penstock.spark.machine import Finding

    try:
        storage, path = locate(url, name="URL")
        found = probe(storage, path)
    except PenstockError as error:
        yield Finding(
            "output", "problem", error.message, "name a directory that is there, or can be made, and that answers"
        )
        return
    broken = next((each for each in found.tried if each.broken is not None), None)
    if broken is not None:
        text = f"{found.directory}: it should be that {broken.promise}, but {broken.broken}"
        yield Finding(
            "output", "problem", text, "let this user write there; or choose a disk that has link(2) and fsync, or HDFS"
        )
        return
    yield _speed(found, storage)
    ahead = found.clock_seconds or 0.0
    if abs(ahead) > _CLOCK_SECONDS:
        text = (
            f"files there are stamped {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this machine's clock"
        )
        yield Finding(
            "its clock", "note", text, "set both clocks by one server: parts roll by the one, files settle by the other"
        )


def _speed(found: Probe, storage: Storage) -> Finding:
    from penstock.spark.machine import Finding

    slowest = max(found.tried, key=lambda each: each.seconds)
    text = (
        f"{found.directory}: what an output needs holds, all tried in {sum(each.seconds for each in found.tried):.2f} s"
    )
    if isinstance(storage, LocalStorage):
        text += f", {format_size(free_bytes(found.directory))} free"
    if slowest.seconds > _SLOW_SECONDS:
        slow = f"{text}; but {slowest.seconds:.1f} s of them until it was seen that {slowest.promise}"
        return Finding("output", "note", slow, "expect as much for each batch")
    return Finding("output", "ok", text)


def _show(findings: list[Finding], problems: int, out: Console) -> None:
    from rich.text import Text

    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark = Text(f"{_MARKS[finding.state]:<8}", style=_COLOURS[finding.state])
        out.print(mark, f"{finding.name:<{width}}  {finding.text}", sep="", soft_wrap=True)
        if finding.advice:
            out.print(f"{'':<{width + 10}}-> {finding.advice}", soft_wrap=True)
    out.print()
    notes = sum(finding.state == "note" for finding in findings)
    if problems:
        out.print(f"{problems} of these {'stops' if problems == 1 else 'stop'} what needs Spark, or this output")
    else:
        out.print(f"everything works; {notes} could be better" if notes else "everything is well")
