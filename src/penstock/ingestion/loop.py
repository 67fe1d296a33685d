"""Refuses a query that reads what it writes: its output is where its source looks, and each row would go round for ever.

An ingest knows both directories before it starts. In a query of Spark, the source does not know where the rows go, and the sink
does not know where they come from. But the sink knows the checkpoint, which has the plan of the batch in flight and the hash of
the source's path, or of the directory that contains its paths. If the output is that directory, or is below it, and the plan has
one of the sink's own files, the batch is refused before any of its rows is written. Other files in the same directory are normal
input; `pathGlobFilter` may separate them from the sink's. A plan beside the offset (`stateLocation`) is read from the place that
the offset names; if it cannot be read there, the source reports that.

The offsets of a query of published files (`emit=published`) name the sinks, and have a mark of their events. If these are the
sink's own, the query reads the events of what it has written.
"""

from __future__ import annotations

import os
from contextlib import suppress
from shlex import quote
from typing import TYPE_CHECKING, Any, NoReturn

import xxhash

from penstock.errors import EventsLost, OptionError, PenstockError
from penstock.sink.batches import FileBatches
from penstock.sink.events import EventLog, EventPosition
from penstock.source.sides import SideRecords
from penstock.storage import locate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.query.batch import Batch
    from penstock.sink.batch import Begun
    from penstock.sink.sink import Sink


class QueryBatches(FileBatches):
    """A `Sink` for the rows of a query whose source is unknown."""

    def begin(self, driver: str, batch: Batch | None) -> Begun:
        """Begin a batch; `OptionError` if it would read what the sink has written."""
        if batch is not None:
            check_no_loop(self.sink, batch)
        return super().begin(driver, batch)


def check_no_loop(sink: Sink, batch: Batch) -> None:
    """Raise `OptionError` if a batch of the sink's query reads one of the sink's own files."""
    if own_event := next(_published(sink, batch), None):
        _refuse(
            sink,
            f"{sink.root + '/' + own_event!r} belongs to this query, which is about to read the event of it: the query reads the events of "
            "its own output, so each row would be read and written for ever; begin anew with another output, and a new checkpoint; or "
            "name the sink whose events you want with the source option sinkId",
        )
    planned = set(_planned_below(sink, batch))
    if not planned:
        return
    own = planned.intersection(file.path for file in sink.ledger.history())
    own |= planned & sink.lengths.all_of(sink.ledger.head()).keys()
    if own:
        _refuse(
            sink,
            f"{sink.root + '/' + min(own)!r} was written by this query, which is about to read it: the output lies where the source looks, "
            "so each row would be read and written for ever; begin anew with an output outside of the source's path, and a new checkpoint; "
            "or exclude its files by pathGlobFilter or pattern",
        )


def _refuse(sink: Sink, reason: str) -> NoReturn:
    location = str(sink.options["checkpointLocation"])
    msg = f"{reason}, and then: penstock replan {quote(location)} {quote(sink.root)}"
    raise OptionError(msg)


def _published(sink: Sink, batch: Batch) -> Iterator[str]:
    """Yield the sink's own files, or buckets of time, whose events a batch reads."""
    log = EventLog(sink.ledger, sink.sink_id, "the ledger")
    for offset in batch.plans:
        start, end = (
            EventPosition(*offset.get(which, {}).get(sink.sink_id, (0, ""))) for which in ("before", "published")
        )
        if start.number < end.number:
            with suppress(EventsLost):  # the offset is about another output, with a sink of this name
                yield from (event.path or event.bucket for event in log.between(start, end) if event.is_shown)


def _planned_below(sink: Sink, batch: Batch) -> Iterator[str]:
    """Yield the files in the sink's directory that a batch is about to read, as paths below it."""
    for offset in batch.plans:
        way = _way(sink, offset.get("base", offset.get("root")))
        if way is not None:
            yield from (path.removeprefix(way) for path, *_ in _plan(offset) if path.startswith(way))


def _plan(offset: Mapping[str, Any]) -> list[Any]:
    """Return the splits that an offset plans; none if they cannot be read here."""
    plan = offset.get("plan", [])
    if isinstance(plan, list):
        return plan
    with suppress(PenstockError):
        return SideRecords(locate(plan["at"]), writes=False).load(plan) if "at" in plan else []
    return []


def _way(sink: Sink, mark: str | None) -> str | None:
    """Return the relative path from the source's directory, given by its hash, to the output; `None` if the output is not below it."""
    for root in (sink.root, sink.storage.resolve(sink.root)):
        names = root.split("/")
        for depth in range(len(names), 1, -1):
            if xxhash.xxh3_64_hexdigest(os.fsencode("/".join(names[:depth]))) == mark:
                return "".join(f"{name}/" for name in names[depth:])
    return None
