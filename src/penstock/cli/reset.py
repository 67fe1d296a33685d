"""`penstock reset`: what `penstock.ingestion.reset` would do, or did, for people and as JSON. It needs neither Spark nor Java."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.cli.answer import Answer, counted
from penstock.cli.ingest import merged
from penstock.ingestion.reset import reset as set_back
from penstock.units import format_size

if TYPE_CHECKING:
    from rich.console import Console

_SHOWN = 20


def reset(src: str, dst: str, checkpoint: str | None, options: list[str], *, yes: bool, query_ended: bool) -> Answer:
    """Tell what would be read again, or set the query back. Raises what `penstock.reset` raises."""
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
    }

    def show(out: Console) -> None:
        for path in done.files[:_SHOWN]:
            out.print(path, soft_wrap=True)
        if len(done.files) > _SHOWN:
            out.print(f"... and {len(done.files) - _SHOWN:,} more: --json has all")
        again = f"{counted(len(done.files), 'file')} ({format_size(done.bytes)})"
        kept = f"{dst} keeps the {counted(done.rows, 'row')} that it has"
        if done.batch is not None:
            out.print(f"the next start reads {again} again; {kept}", soft_wrap=True)
        elif done.files:
            out.print(f"would read {again} again; {kept}; nothing was changed: --yes does it", soft_wrap=True)
        else:
            out.print("nothing would be read again", soft_wrap=True)

    return Answer(facts, show)
