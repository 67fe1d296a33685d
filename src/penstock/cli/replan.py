"""`penstock replan`: what `penstock.ingestion.replan` did, for people and as JSON. It needs neither Spark nor Java."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cli.answer import Answer
from penstock.ingestion.replan import replan as plan_anew
from penstock.query.checkpoint import Checkpoint
from penstock.sink.sink import STATE_DIRECTORY
from penstock.storage import locate
from penstock.units import counted
from penstock.verify.files import existing_sinks

if TYPE_CHECKING:
    from rich.console import Console

_OF_INGEST = f"/{STATE_DIRECTORY}/checkpoint"


def replan(checkpoint: str, dst: str | None, *, nothing_written: bool, give_up_rest: bool) -> Answer:
    """Have the batch in flight planned again. Raises what `penstock.ingestion.replan.replan` raises."""
    _, path = locate(checkpoint, name="CHECKPOINT")
    if dst is None and path.endswith(_OF_INGEST):
        dst = path.removesuffix(_OF_INGEST)
    sinks = None if dst is None else existing_sinks(*locate(dst, name="DST"))
    done = plan_anew(Checkpoint(path), sinks, nothing_written=nothing_written, give_up_rest=give_up_rest)
    given_up = [{"path": name, "from": at} for name, at in done.given_up]
    facts = {"ok": True, "batch": done.batch, "files": done.files, "kept": done.kept, "given_up": given_up}

    def show(out: Console) -> None:
        if done.batch is None:
            out.print("every batch that was planned is committed: nothing to plan again")
            return
        for name, at in done.given_up:
            out.print(
                f"given up: {name!r} from byte {at} on; what is there is read as a new file, whole", soft_wrap=True
            )
        if done.kept is not None:
            out.print(f"what was planned is kept in {done.kept}", soft_wrap=True)
        files = f" ({counted(done.files, 'file')})" if done.files else ""
        out.print(f"batch {done.batch}{files} is planned again when the query is restarted", soft_wrap=True)

    return Answer(facts, show)
