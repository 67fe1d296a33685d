"""`penstock late`: what `penstock.ingestion.late` found and did, for people and as JSON. It needs neither Spark nor Java."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from penstock.cli.answer import Answer, moment
from penstock.cli.ingest import merged
from penstock.ingestion.late import late as not_read
from penstock.units import counted, format_size

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.ingestion.late import NotRead

_SHOWN = 100
_WHY = {
    "late": "older than the cursor by more than lateness",
    "unsure": "came late, or was read before and missing since",
    "accepted": "the next start reads it",
    "held": "changed too recently",
    "future": "its time has not come",
}


def late(
    src: str,
    dst: str,
    accept: list[str] | None,
    dismiss: list[str] | None,
    checkpoint: str | None,
    options: list[str],
    *,
    query_ended: bool,
) -> Answer:
    """List the files that are not read; accept or dismiss them. Raises what `penstock.late` raises."""
    done = not_read(
        src,
        dst,
        accept=accept or False,
        dismiss=dismiss or False,
        checkpoint=checkpoint,
        source=merged({}, options, "--source-option"),
        query_ended=query_ended,
    )
    facts: dict[str, Any] = {
        "ok": True,
        "files": [_facts(file) for file in done.files],
        "counts": dict(Counter(file.why for file in done.files)),
        "accepted": list(done.accepted),
        "dismissed": list(done.dismissed),
        "dropped": done.dropped,
    }
    return Answer(facts, lambda out: _show(facts, out))


def _facts(file: NotRead) -> dict[str, Any]:
    return asdict(file) | {"modified": _time(file.modified_ns), "since": _time(file.since_ns)}


def _time(time_ns: int) -> str:
    try:
        return moment(time_ns)
    except (ValueError, OverflowError, OSError):  # a time outside of the calendar
        return f"{time_ns} ns"


def _show(facts: dict[str, Any], out: Console) -> None:
    for name in ("accepted", "dismissed"):
        for path in facts[name]:
            out.print(f"{name} {path}", soft_wrap=True)
    for file in facts["files"][:_SHOWN]:
        size = format_size(file["size"])
        out.print(
            f"{file['why']:8} {file['path']} ({size}, of {file['modified']}, since {file['since']}: {_WHY[file['why']]})",
            soft_wrap=True,
        )
    if len(facts["files"]) > _SHOWN:
        out.print(f"... and {len(facts['files']) - _SHOWN:,} more: --json has all")
    if facts["dropped"]:
        out.print(
            f"{counted(facts['dropped'], 'file')} more came too late than are kept; touch them to have them read as new"
        )
    if not facts["files"]:
        out.print("every file that is there was read, or is read by the next start")
    if facts["accepted"]:
        out.print("the next start of the query reads what was accepted")
