"""What a pipeline must have for itself. Two with the same claim never run at once: one would fence the other, or Spark refuse it."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from enum import Enum
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from penstock.ingestion.inputs import place_of
from penstock.ingestion.places import lists
from penstock.sink.ledger import STATE_DIRECTORY
from penstock.source.scan import hidden
from penstock.storage import locate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.cli.ingest import Request
    from penstock.source.where import Rest, Where


class Claimed(Enum):
    """What may be claimed."""

    CHECKPOINT = "checkpoint"
    INPUT = "input"
    SINK = "sink"  # an output, by a sinkId that the user gave
    QUERY = "query"  # a name in Spark
    NAME = "name"  # in the file


@dataclass(frozen=True)
class Exclusive:
    """One thing that a pipeline claims; `what` names it, with links and such resolved."""

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
class ReadCheckpoints:
    """Which pipelines read what Spark writes into another pipeline's checkpoint. A lookup goes by location, so a thousand are cheap."""

    # By directory, then by globs.
    _inputs: dict[str, dict[tuple[Rest, ...], tuple[str, Where]]] = field(default_factory=dict)
    # By each directory below which they might be read.
    _checkpoints: dict[str, dict[str, str]] = field(default_factory=dict)

    def take(self, name: str, checkpoint: str, read: Where | None) -> tuple[Claimed, str] | None:
        """Enter a checkpoint, and what a pipeline reads, if anything; or return why one of them cannot be there."""
        why = "what Spark writes there would be read as records; choose a checkpoint outside of it"
        above = list(_listing(checkpoint))
        for place in above:
            for holder, other in self._inputs.get(place, {}).values():
                if lists(other, checkpoint):
                    return Claimed.CHECKPOINT, f"{checkpoint!r} lies in the input of pipeline {holder!r}: {why}"
        known = {} if read is None else self._inputs.setdefault(read.storage.resolve(read.root), {})
        if read is not None and read.rests not in known:
            for spoilt, holder in self._checkpoints.get(read.storage.resolve(read.root), {}).items():
                if lists(read, spoilt):
                    return Claimed.INPUT, f"the checkpoint of pipeline {holder!r} lies in it, {spoilt!r}: {why}"
            known[read.rests] = name, read
        for place in above:
            self._checkpoints.setdefault(place, {})[checkpoint] = name
        return None


@dataclass
class Claimants:
    """The claims of all pipelines of a file, each with its holder, and where they write."""

    _holders: dict[Exclusive, str] = field(default_factory=dict)
    _outputs: dict[str, str] = field(default_factory=dict)
    _around: dict[str, str] = field(default_factory=dict)  # directories that an output lies in
    _read: ReadCheckpoints = field(default_factory=ReadCheckpoints)

    def take(self, name: str, mine: tuple[Exclusive, ...], request: Request) -> tuple[Claimed, str] | None:
        """Enter what a pipeline claims, its input and its output; or return what another pipeline holds, and why both cannot be."""
        taken = next((claim for claim in mine if claim in self._holders), None)
        if taken is not None:
            return taken.kind, taken.refusal(self._holders[taken])
        [checkpoint] = [claim.what[0] for claim in mine if claim.kind is Claimed.CHECKPOINT]
        place = _resolved(request.dst)
        above = list(_above(place))
        other = next((self._outputs[each] for each in above if each in self._outputs), self._around.get(place))
        if other is not None:
            message = (
                f"of this output and that of pipeline {other!r} one contains the other: readers of the outer one would see the rows "
                "of both, and verify call them foreign; choose a directory outside of it"
            )
            return Claimed.SINK, message
        if refused := self._read.take(name, checkpoint, place_of(request.src, request.source)):
            return refused
        self._holders.update(dict.fromkeys(mine, name))
        self._outputs[place] = name
        self._around.update(dict.fromkeys(above, name))
        return None


def going_round(requests: Mapping[str, Request]) -> list[str]:
    """Return the names of a circle of pipelines: each reads what the one before writes, the first what the last writes; or none."""
    try:
        TopologicalSorter(_sources(requests)).prepare()
    except CycleError as error:
        names: list[str] = error.args[1][:-1]
        at = names.index(next(name for name in requests if name in names))
        return [*names[at:], *names[:at]]
    return []


def _sources(requests: Mapping[str, Request]) -> dict[str, set[str]]:
    """Return for each pipeline the names of those whose output it reads."""
    outputs = {_resolved(request.dst): name for name, request in requests.items()}
    places = {name: place_of(request.src, request.source) for name, request in requests.items()}
    readers: dict[str, dict[tuple[Rest, ...], list[str]]] = {}
    read_of: dict[str, set[str]] = {}
    for name, place in places.items():
        root = "" if place is None else place.storage.resolve(place.root)
        read_of[name] = {outputs[around] for around in (root, *_above(root)) if around in outputs}
        if place is not None:
            readers.setdefault(root, {}).setdefault(place.rests, []).append(name)
    for output, name in outputs.items():
        for reader in _readers(output, places, readers):
            read_of[reader].add(name)
    return read_of


def _readers(
    output: str, places: Mapping[str, Where | None], by_root: Mapping[str, Mapping[tuple[Rest, ...], list[str]]]
) -> Iterator[str]:
    """Yield the names of the pipelines whose input contains this output."""
    for root in _listing(output):
        for names in by_root.get(root, {}).values():
            place = places[names[0]]
            if place is not None and lists(place, output):
                yield from names


def claims(name: str, request: Request) -> tuple[Exclusive, ...]:
    """Return what a pipeline claims, the worst to share first. Raises what resolving its locations raises."""
    checkpoint = request.checkpoint or f"{request.dst}/{STATE_DIRECTORY}/checkpoint"
    mine = [Exclusive(Claimed.CHECKPOINT, (_resolved(checkpoint),))]
    if sink_id := _option(request.sink, "sinkId"):
        mine.append(Exclusive(Claimed.SINK, (sink_id, _resolved(request.dst))))
    query = Exclusive(Claimed.QUERY, (_option(request.sink, "queryName") or name,))
    return (*mine, query, Exclusive(Claimed.NAME, (name,)))


def _above(place: str) -> Iterator[str]:
    """Yield the directories that contain a place."""
    while (outer := posixpath.dirname(place)) not in {place, ""}:
        yield outer
        place = outer


def _listing(place: str) -> Iterator[str]:
    """Yield a directory and those above it whose listing would show it: up to the first hidden name."""
    yield place
    for outer in _above(place):
        if hidden(posixpath.basename(place)):
            return
        yield outer
        place = outer


def _option(options: dict[str, str], name: str) -> str:
    return next((value for given, value in options.items() if given.lower() == name.lower()), "")


def _resolved(location: str) -> str:
    storage, path = locate(location, name="checkpoint")
    return storage.resolve(path)
