"""What a pipeline must have for itself. Two that claim the same do not run side by side: one would fence the other, or Spark refuse it."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from penstock.sink.ledger import STATE_DIRECTORY
from penstock.storage import locate

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@dataclass
class Claimants:
    """What the pipelines of a file have claimed, each by who has it, and where they write."""

    _holders: dict[Exclusive, str] = field(default_factory=dict)
    _outputs: dict[str, str] = field(default_factory=dict)
    _around: dict[str, str] = field(default_factory=dict)  # directories that an output lies in

    def take(self, name: str, mine: tuple[Exclusive, ...], output: str) -> tuple[Claimed, str] | None:
        """Enter what a pipeline claims, and its output; or return what another one has, and why that cannot be."""
        taken = next((claim for claim in mine if claim in self._holders), None)
        if taken is not None:
            return taken.kind, taken.refusal(self._holders[taken])
        place = _resolved(output)
        above = list(_above(place))
        other = next((self._outputs[each] for each in above if each in self._outputs), self._around.get(place))
        if other is not None:
            message = (
                f"of this output and that of pipeline {other!r} one lies in the other: readers of the outer one would see the rows "
                "of both, and verify call them foreign; choose a directory outside of it"
            )
            return Claimed.SINK, message
        self._holders.update(dict.fromkeys(mine, name))
        self._outputs[place] = name
        self._around.update(dict.fromkeys(above, name))
        return None


def claims(name: str, request: Request) -> tuple[Exclusive, ...]:
    """Return what a pipeline claims, the worst to share first. Raises what telling how its places are really called does."""
    checkpoint = request.checkpoint or f"{request.dst}/{STATE_DIRECTORY}/checkpoint"
    mine = [Exclusive(Claimed.CHECKPOINT, (_resolved(checkpoint),))]
    if sink_id := _option(request.sink, "sinkId"):
        mine.append(Exclusive(Claimed.SINK, (sink_id, _resolved(request.dst))))
    query = Exclusive(Claimed.QUERY, (_option(request.sink, "queryName") or name,))
    return (*mine, query, Exclusive(Claimed.NAME, (name,)))


def _above(place: str) -> Iterator[str]:
    """Yield the directories that a place lies in."""
    while (outer := posixpath.dirname(place)) not in {place, ""}:
        yield outer
        place = outer


def _option(options: dict[str, str], name: str) -> str:
    return next((value for given, value in options.items() if given.lower() == name.lower()), "")


def _resolved(location: str) -> str:
    storage, path = locate(location, name="checkpoint")
    return storage.resolve(path)
