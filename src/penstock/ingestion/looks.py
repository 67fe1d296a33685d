"""Looks up the files that rows name (`source.looking`) in a task of Spark, with notes of what was found.

The look is in one of two places. For the rows of a user's DataFrame it is a map over them. Names that our own source reads, from
lists or from the ledger of an output, are looked up where they are read: passing them to a map, through the JVM and to another
process, took a third of the processor time of an ingest of 150 MB.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from penstock.errors import BadRecord
from penstock.formats.lines import NO_SEPARATOR
from penstock.options import SOURCE, parse
from penstock.options.published import EMIT
from penstock.session.task import task_place, task_run
from penstock.source import configured, looking
from penstock.source.named import NameColumns
from penstock.source.pinned import Moment, Pins, pins
from penstock.storage import locate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.query.batch import Task
    from penstock.source.named import NamedFiles

_NAMES = 10_000  # names that are looked up together, as many as Spark would pass to a map


@dataclass(frozen=True)
class NameLook:
    """Looks up the files that rows name. Picklable, travels to tasks.

    `place` is the directory for notes of what was found, `None` if none are needed; `run` names the driver. `replays`: rows may
    come again.
    """

    files: NamedFiles
    place: str | None
    run: str
    replays: bool

    def splits(
        self, batches: Iterable[pa.RecordBatch], *, keep: bool, task: Task | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the splits of the named files; see `looking.splits`. Called in a task: the given one, or Spark's."""
        return looking.splits(self.files, batches, self._notes(task), keep=keep, replays=self.replays)

    def _notes(self, task: Task | None) -> Pins | None:
        query, batch, partition = task_place() if task is None else (task.query, task.batch, task.partition)
        if self.place is None or query is None or batch is None:
            return None
        # The run of a query is its job group, which a program may have set. So the driver is part of the name, too:
        # another driver is another run.
        name = xxhash.xxh3_64_hexdigest(f"{self.run} {task_run() if task is None else ''}".encode())
        return pins(locate(self.place, name="stateLocation"), Moment(query, batch, partition, name))


@dataclass(frozen=True)
class LookWhereRead:
    """The look for our own source, as the text that travels in its options (`options.internal`)."""

    text: str

    @staticmethod
    def of(
        source: Mapping[str, str], schema: str, columns: NameColumns, *, place: str | None, run: str
    ) -> LookWhereRead:
        """Return the look at files that are read with `source` and `schema`, Spark's JSON; the other parameters are as in `NameLook`."""
        form = {"source": dict(source), "schema": schema, "names": columns.to_json(), "notes": place, "run": run}
        return LookWhereRead(json.dumps(form))

    def splits(self, batches: Iterable[pa.RecordBatch], task: Task | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the splits for lines of lists, or for events of an output. Called in a task: the given one, or Spark's."""
        form = json.loads(self.text)
        options = parse(SOURCE, form["source"], what="source")
        files = NameColumns.from_json(form["names"]).files(options, configured.reading(options, form["schema"]))
        look = NameLook(files, form["notes"], form["run"], replays=True)
        return look.splits(_names(batches), keep=False, task=task)


def _names(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows that name files: a column of paths, and of sizes if they are known."""
    for batch in _told(batches):
        if "event" in batch.schema.names:
            named = batch.filter(pc.equal(batch.column("event"), EMIT)).select(["path", "size"])
        else:
            named = batch.filter(pc.not_equal(batch.column("value"), "")).select(["value"])
        for at in range(0, named.num_rows, _NAMES):
            yield named.slice(at, _NAMES)


def _told(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield what was read. For a malformed list, replaces the reader's advice: the options in it are about the named files."""
    try:
        yield from batches
    except BadRecord as error:
        reason = error.__cause__.message if isinstance(error.__cause__, BadRecord) else error.message
        msg = (
            f"{error.path!r}, byte {error.offset}: {reason.removesuffix(NO_SEPARATOR)}, in a list of names, text in UTF-8 with one name "
            "on each line; write it so, and start again: nothing of this batch is visible"
        )
        raise BadRecord(msg, path=error.path, offset=error.offset) from error
