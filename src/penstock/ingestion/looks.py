"""The look at what rows name (`source.looking`) as a task of Spark has it, with its notes.

It is in one of two places. What the rows of somebody's DataFrame name is looked at by a map over these. Names that our own source reads,
in lists or in the ledger of an output, are looked at where they are read: to hand them to a map, through the JVM and to a process more,
took a third of the processor time of an ingest of 150 MB.
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

_NAMES = 10_000  # that are looked at together, as many as Spark would hand to a map


@dataclass(frozen=True)
class NameLook:
    """A look at what rows name. Picklable, travels to tasks.

    `place` is the directory for notes of what was found, `None` where none are needed; `run` names the driver. `replays`: rows may
    come again.
    """

    files: NamedFiles
    place: str | None
    run: str
    replays: bool

    def splits(
        self, batches: Iterable[pa.RecordBatch], *, keep: bool, task: Task | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the splits of what rows name; see `looking.splits`. Called in a task, of Spark's unless it is said."""
        return looking.splits(self.files, batches, self._notes(task), keep=keep, replays=self.replays)

    def _notes(self, task: Task | None) -> Pins | None:
        query, batch, partition = task_place() if task is None else (task.query, task.batch, task.partition)
        if self.place is None or query is None or batch is None:
            return None
        # The run of a query is its job group, which a program may have set; one of another driver is another run all the same.
        name = xxhash.xxh3_64_hexdigest(f"{self.run} {task_run() if task is None else ''}".encode())
        return pins(locate(self.place, name="stateLocation"), Moment(query, batch, partition, name))


@dataclass(frozen=True)
class LookWhereRead:
    """The look at what our own source reads, as the text that travels in its options (`options.internal`)."""

    text: str

    @staticmethod
    def of(
        source: Mapping[str, str], schema: str, columns: NameColumns, *, place: str | None, run: str
    ) -> LookWhereRead:
        """Return that at files which `source` and `schema`, Spark's JSON, say how to read; the rest is as in `NameLook`."""
        form = {"source": dict(source), "schema": schema, "names": columns.to_json(), "notes": place, "run": run}
        return LookWhereRead(json.dumps(form))

    def splits(self, batches: Iterable[pa.RecordBatch], task: Task | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the splits of what was read: lines of lists, or events of an output. Called in a task, of Spark's unless it is said."""
        form = json.loads(self.text)
        options = parse(SOURCE, form["source"], what="source")
        files = NameColumns.from_json(form["names"]).files(options, configured.reading(options, form["schema"]))
        look = NameLook(files, form["notes"], form["run"], replays=True)
        return look.splits(_names(batches), keep=False, task=task)


def _names(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows that name files: a column of paths, and what else is known of them."""
    for batch in _told(batches):
        if "event" in batch.schema.names:
            named = batch.filter(pc.equal(batch.column("event"), EMIT)).select(["path", "size"])
        else:
            named = batch.filter(pc.not_equal(batch.column("value"), "")).select(["value"])
        for at in range(0, named.num_rows, _NAMES):
            yield named.slice(at, _NAMES)


def _told(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield what was read. Of a list that is none the reader tells which option says what it is, and that is about what is named."""
    try:
        yield from batches
    except BadRecord as error:
        reason = error.__cause__.message if isinstance(error.__cause__, BadRecord) else error.message
        msg = (
            f"{error.path!r}, byte {error.offset}: {reason.removesuffix(NO_SEPARATOR)}, in a list of names, text in UTF-8 with one name "
            "on each line; write it so, and start again: nothing of this batch is visible"
        )
        raise BadRecord(msg, path=error.path, offset=error.offset) from error
