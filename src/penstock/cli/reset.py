"""`penstock reset`: what `penstock.ingestion.reset` would do, or did, for people and as JSON. It needs neither Spark nor Java."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.cli.answer import Answer
from penstock.cli.ingest import merged
from penstock.ingestion.reset import reset as set_back
from penstock.units import counted, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from penstock.ingestion.reset import Reset

_SHOWN = 20
_NAMED = 3


def reset(src: str, dst: str, checkpoint: str | None, options: list[str], *, yes: bool, query_ended: bool) -> Answer:
    """Show what would be read again, or set the query back. Raises what `penstock.reset` raises."""
    done = set_back(
        src,
        dst,
        confirmed=yes,
        checkpoint=checkpoint,
        source=merged({}, options, "--source-option"),
        query_ended=query_ended,
    )
    facts: dict[str, Any] = {
        "ok": True,
        "batch": done.batch,
        "files": list(done.files),
        "bytes": done.bytes,
        "rows": done.rows,
        "reset": done.batch is not None,
        "late": list(done.late),
        "passed_over": list(done.passed_over),
    }

    def show(out: Console) -> None:
        for path in done.files[:_SHOWN]:
            out.print(path, soft_wrap=True)
        if len(done.files) > _SHOWN:
            out.print(f"... and {len(done.files) - _SHOWN:,} more: --json has all")
        if done.at_beginning:
            out.print("nothing would be read again: nothing was read", soft_wrap=True)
            return
        line = f"{_again(done, would=done.batch is None)}; {dst} keeps the {counted(done.rows, 'row')} that it has"
        out.print(line if done.batch is not None else f"{line}; nothing was changed: --yes does it", soft_wrap=True)

    return Answer(facts, show)


def _again(done: Reset, *, would: bool) -> str:
    """Return in words what is read again, or would be."""
    again = f"{counted(len(done.files), 'file')} ({format_size(done.bytes)})" if done.files else "nothing"
    parts = [f"would read {again} again" if would else f"the next start reads {again} again"]
    if done.late:
        parts.append(f"and {_some(done.late)}, which came too late, for the first time")
    if done.passed_over:
        parts.append(f"and {'would pass' if would else 'passes'} over {_some(done.passed_over)}, which nobody has read")
    return ", ".join(parts)


def _some(paths: Sequence[str]) -> str:
    """Return how many files these are, and the first of them."""
    more = ", ..." if len(paths) > _NAMED else ""
    return f"{counted(len(paths), 'file')} ({', '.join(paths[:_NAMED])}{more})"
