"""`penstock adopt`: what `penstock.adopt` found and did, for people and as JSON. It needs neither Spark nor Java."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from penstock.cli.answer import Answer
from penstock.sink import adopt as adopting
from penstock.units import counted, format_size

if TYPE_CHECKING:
    from rich.console import Console

_SHOWN = 100


def adopt(directory: str, unlisted: str | None, *, dry_run: bool) -> Answer:
    """Take an output over, or only look; status 1 if something is left to decide. Raises what `penstock.adopt` raises."""
    done = adopting.adopt(directory, unlisted=unlisted, dry_run=dry_run)
    facts = {"ok": done.done or dry_run, "dry_run": dry_run} | asdict(done)
    return Answer(facts, lambda out: _show(facts, out), 0 if facts["ok"] else 1)


def _show(facts: dict[str, Any], out: Console) -> None:
    for kind, text in (
        ("missing", "listed, and gone or of another size"),
        ("aside", f"moved to {facts['kept_unlisted']}"),
        ("unlisted", "not listed: visible to readers that do not know Spark's log; remove it, or --unlisted aside"),
    ):
        for path in facts[kind][:_SHOWN]:
            out.print(f"{path}: {text}", soft_wrap=True)
        if len(facts[kind]) > _SHOWN:
            out.print(f"... and {len(facts[kind]) - _SHOWN:,} more: --json has all")
    rows = f"{counted(facts['rows'], 'row')} by their footers" if not facts["rows_unknown"] else "rows not known"
    size = f"{counted(facts['files'], 'file')}, {format_size(facts['bytes'])}"
    if facts["done"]:
        out.print(f"adopted: {size}; {rows}; queries of penstock's may write to {facts['path']}", soft_wrap=True)
        out.print(f"Spark's log is kept in {facts['kept_log']}; its query must not be started again", soft_wrap=True)
    else:
        out.print(f"not adopted yet: {facts['path']}", soft_wrap=True)
