"""A query that reads what it writes: its output lies where its source looks, and each row would come round for ever.

An ingest knows both directories before it starts. Of a query of Spark's own the source does not know where the rows go, nor the sink
where they come from. But the plan of the batch in flight is in the checkpoint, which the sink knows, with the hash of the source's path:
if the output is that directory, or lies below it, and the plan has one of the sink's own files, the batch is refused before any of its
rows is written. Files of others in the same directory are input like any: `pathGlobFilter` may tell them from the sink's.

A source of several paths has another hash, and a plan that is too long for the offset (`stateLocation`) lies elsewhere: of these nothing is
known.
"""

from __future__ import annotations

import os
from shlex import quote
from typing import TYPE_CHECKING

import xxhash

from penstock.errors import OptionError
from penstock.sink.batches import FileBatches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.query.batch import Batch
    from penstock.sink.batch import Begun
    from penstock.sink.sink import Sink


class QueryBatches(FileBatches):
    """A `Sink` for the rows of a query whose source is not known."""

    def begin(self, driver: str, batch: Batch | None) -> Begun:
        """Begin a batch; `OptionError` for one that would read what the sink has written."""
        if batch is not None:
            check_no_loop(self.sink, batch)
        return super().begin(driver, batch)


def check_no_loop(sink: Sink, batch: Batch) -> None:
    """Raise `OptionError` if a batch of the sink's query reads a file of the sink's own."""
    planned = set(_planned_below(sink, batch))
    if not planned:
        return
    own = planned.intersection(file.path for file in sink.ledger.history())
    own |= planned & sink.lengths.all_of(sink.ledger.head()).keys()
    if own:
        location = str(sink.options["checkpointLocation"])
        msg = (
            f"{sink.root + '/' + min(own)!r} was written by this query, which is about to read it: the output lies where the source looks, "
            "so each row would come round for ever; begin anew with an output outside of the source's path, and a new checkpoint; or have "
            f"pathGlobFilter or pattern leave its files out, and then: penstock replan {quote(location)} {quote(sink.root)}"
        )
        raise OptionError(msg)


def _planned_below(sink: Sink, batch: Batch) -> Iterator[str]:
    """Yield what of the sink's directory a batch is about to read, by paths below it."""
    for offset in batch.plans:
        way = _way(sink, offset.get("root"))
        if way is not None and isinstance(offset.get("plan"), list):
            yield from (path.removeprefix(way) for path, *_ in offset["plan"] if path.startswith(way))


def _way(sink: Sink, mark: str | None) -> str | None:
    """Return what leads from the source's path, of which there is the hash, to the output; `None` if that is not below it."""
    for root in (sink.root, sink.storage.resolve(sink.root)):
        names = root.split("/")
        for depth in range(len(names), 1, -1):
            if xxhash.xxh3_64_hexdigest(os.fsencode("/".join(names[:depth]))) == mark:
                return "".join(f"{name}/" for name in names[depth:])
    return None
