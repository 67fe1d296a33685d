"""`penstock doctor`: checks this machine, says what to do about each problem, and tries whether an output can be kept at a place."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from penstock.cli.answer import Answer
from penstock.errors import PenstockError, StorageError
from penstock.storage import contest, free_bytes, locate, mark_fit, probe
from penstock.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from penstock.session.finding import Finding, State
    from penstock.storage import Probe, Storage

_SLOW_SECONDS = 1.0
_CLOCK_SECONDS = 5.0
_MARKS = {"ok": "ok", "note": "NOTE", "problem": "PROBLEM"}
_COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}


def doctor(url: str | None) -> Answer:
    """Check this machine, and with `url` that place as an output; status 1 if a finding would stop an ingest."""
    import penstock
    from penstock.session import machine
    from penstock.session.finding import Finding

    this = f"{penstock.__version__} in {os.path.dirname(penstock.__file__)}"
    findings = [Finding("penstock", "ok", this), *machine.everything()]
    findings += _archive_of(findings)
    if url is not None:
        findings += _look_at(url)
    problems = _count(findings, "problem")
    facts: dict[str, Any] = {"ok": not problems, "checks": [finding.facts for finding in findings]}
    return Answer(facts, lambda out: _show(findings, problems, out), min(problems, 1))


def _count(findings: list[Finding], state: State) -> int:
    return sum(finding.state == state for finding in findings)


def _archive_of(findings: list[Finding]) -> list[Finding]:
    """Return the findings about the archive of classes; there can be none unless PySpark and Java are fit."""
    needed = [finding for finding in findings if finding.name in {"pyspark", "java"}]
    if _count(needed, "problem"):
        return []
    from penstock.session import archive

    return [archive.finding()]


def _look_at(url: str) -> Iterator[Finding]:
    """Yield the findings about a place, by trying there what an output needs."""
    from penstock.session.finding import Finding

    try:
        storage, path = locate(url, name="URL")
        probed = probe(storage, path)
    except PenstockError as error:
        yield Finding(
            "output", "problem", error.message, "name a directory that exists or can be created, and that answers"
        )
        return
    broken = next((trial for trial in probed.tried if trial.broken is not None), None)
    if broken is not None:
        if storage.needs_contest:
            _note_broken(storage, path, str(broken.broken))
        text = f"{probed.directory}: it should be that {broken.promise}, but {broken.broken}"
        elsewhere = "choose a disk that has link(2) and fsync, or HDFS"
        remedy = (
            "free some space there, or choose another place"
            if broken.full
            else f"let this user write there; or {elsewhere}"
        )
        yield Finding("output", "problem", text, remedy)
        return
    if storage.needs_contest:
        finding = _raced(storage, path)
        yield finding
        if finding.state == "problem":
            return
    yield _speed(probed, storage)
    yield from _clock_of(probed)


def _note_broken(storage: Storage, path: str, words: str) -> None:
    """Note in the output, if it can be written, what is wrong with its store."""
    from penstock.sink.ledger import STATE_DIRECTORY

    with contextlib.suppress(StorageError):
        mark_fit(storage, f"{path}/{STATE_DIRECTORY}", words)


def _raced(storage: Storage, path: str) -> Finding:
    """Return whether a store keeps a promise that only several processes can test; note the result in the output."""
    from penstock.session.finding import Finding
    from penstock.sink.ledger import STATE_DIRECTORY

    try:
        broken = contest(storage, path)
        mark_fit(storage, f"{path}/{STATE_DIRECTORY}", broken)
    except PenstockError as error:
        return Finding("store", "problem", error.message, "see what the store says of it")
    if broken is None:
        return Finding("store", "ok", f"{path}: of several processes that put one key exactly one succeeded")
    advice = "use another store: output here would be lost or doubled, so sinks on it are refused from now on"
    return Finding("store", "problem", f"{path}: {broken}", advice)


def _clock_of(probed: Probe) -> Iterator[Finding]:
    """Yield a note if the clock that stamps the files there differs from this machine's clock."""
    from penstock.session.finding import Finding

    ahead = probed.clock_seconds or 0.0
    if abs(ahead) <= _CLOCK_SECONDS:
        return
    side = "ahead of" if ahead > 0 else "behind"
    text = f"files there are stamped {abs(ahead):.0f} s {side} this machine's clock"
    advice = "set both clocks by one server: parts roll by the one, files settle by the other"
    yield Finding("its clock", "note", text, advice)


def _speed(probed: Probe, storage: Storage) -> Finding:
    from penstock.session.finding import Finding

    slowest = max(probed.tried, key=lambda trial: trial.seconds)
    seconds = sum(trial.seconds for trial in probed.tried)
    text = f"{probed.directory}: what an output needs holds, all tried in {seconds:.2f} s"
    if storage.of_this_host:
        text += f", {format_size(free_bytes(probed.directory))} free"
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
    out.print(_sum_of(problems, _count(findings, "note")))


def _sum_of(problems: int, notes: int) -> str:
    if problems:
        return f"{problems} of these {'stops' if problems == 1 else 'stop'} what needs Spark, or this output"
    return f"everything works; {notes} could be better" if notes else "everything is well"
