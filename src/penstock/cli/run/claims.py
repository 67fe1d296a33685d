"""What a pipeline must have for itself. Two that claim the same do not run side by side: one would fence the other, or Spark refuse it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from penstock.sink.ledger import STATE_DIRECTORY
from penstock.storage import locate

if TYPE_CHECKING:
    from penstock.cli.ingest import Request


class Claimed(Enum):
    """What may be claimed."""

    CHECKPOINT = "checkpoint"
    SINK = "sink"  # an output, by a sinkId of one's own
    QUERY = "query"  # a name in Spark
    NAME = "name"  # in the file


@dataclass(frozen=True)
class Exclusive:
    """One thing that a pipeline claims; `what` says which, as it is really called."""

    kind: Claimed
    what: tuple[str, ...]

    def refusal(self, holder: str) -> str:
        """Return why another pipeline cannot have it, too, and what to do."""
        has = f"pipeline {holder!r}"
        if self.kind is Claimed.CHECKPOINT:
            return f"{has} has the same checkpoint, {self.what[0]!r}; give one of them another sink, or a checkpoint"
        if self.kind is Claimed.SINK:
            sink_id, place = self.what
            same = f"{has} writes to {place!r} by sinkId={sink_id!r}, too"
            return f"{same}: one would fence the other; leave sinkId out, or give each its own"
        name = f"{has} has the name {self.what[0]!r} in Spark, too"
        return f"{name}, and Spark runs one query of a name; give one of them another queryName"


def claims(name: str, request: Request) -> tuple[Exclusive, ...]:
    """Return what a pipeline claims, the worst to share first. Raises what telling how its places are really called does."""
    checkpoint = request.checkpoint or f"{request.dst}/{STATE_DIRECTORY}/checkpoint"
    mine = [Exclusive(Claimed.CHECKPOINT, (_resolved(checkpoint),))]
    if sink_id := _option(request.sink, "sinkId"):
        mine.append(Exclusive(Claimed.SINK, (sink_id, _resolved(request.dst))))
    query = Exclusive(Claimed.QUERY, (_option(request.sink, "queryName") or name,))
    return (*mine, query, Exclusive(Claimed.NAME, (name,)))


def _option(options: dict[str, str], name: str) -> str:
    return next((value for given, value in options.items() if given.lower() == name.lower()), "")


def _resolved(location: str) -> str:
    storage, path = locate(location, name="checkpoint")
    return storage.resolve(path)
