"""Sees to it that of several ingests that read the same into one output, one at a time does, whatever checkpoints they have.

Each ingest has its own ledger, named by its query, and the put of a record decides in one ledger only. The source that an ingest
reads is noted beside its ledger when its driver claims it (`sink.existing`), before anything is read for the sink.

Failure: *two first runs at one moment.*
  1. A and B start to ingest the same files into the same output, each under a checkpoint of its own: a schedule whose runs overlap,
     with the checkpoint on a disk of each run's own.
  2. Each looks for rows of the other, and finds none.
  3. Each commits: every row is there twice.
  Rule: a driver whose query has no batch in its ledger first claims its ledger, which leaves the note, and then looks at all others.
  So of two, one at least sees the other. It ends the driver of the other one by a record in that ledger (`sink.handover`). If that
  put is too late, the other one has committed, and this one is refused. Nobody asks whether the other one lives.

Failure: *a new checkpoint beside a run that goes on.*
  1. A ingests, and its source is cleaned: none of the files that A has read is there. A plans its next batch.
  2. B starts under a new checkpoint. It is not refused, because nothing there was read by A. It reads the files of A's plan.
  3. Both commit, or A is started again later, and reads what B has read.
  Rule: B ends the driver of A in the same way. The records of A's ledger then say who has taken over (`State.taken_by`). A driver
  that finds this in its own ledger looks at all others, as a first run does. It is refused if one of them has rows, other than one
  that it has taken over from itself. Otherwise it ends them, and takes back what it reads.

Failure: *a name of the sink that both have.*
  1. A and B have the same `sinkId`, so they have one ledger, and take it from each other.
  2. A looks, and finds nothing. B claims the ledger, commits, and ends. A claims it, and commits the same.
  Rule: what the ledger has of others is looked at with the record that the claim follows, so nothing can be put in between.

Two that begin at the same moment may end each other: then both fail, nothing of either is visible, and the one that is started
again goes on.
"""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from penstock.errors import CheckpointMismatch, Fenced
from penstock.ingestion.earlier import Earlier, ingests_of
from penstock.options import SOURCE, parse
from penstock.options.topics import is_topics
from penstock.query.checkpoint import Checkpoint
from penstock.query.fence import Claim
from penstock.sink import handover
from penstock.sink.batches import FileBatches
from penstock.sink.existing import STAGE
from penstock.sink.sink import Sink
from penstock.source.where import where

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.query.batch import Batch
    from penstock.sink.batch import Begun, TaskResult
    from penstock.sink.ledger import State


class IngestBatches(FileBatches):
    """A `Sink` for the rows of an ingest; see the module."""

    def _begun(self, driver: str, batch: Batch | None) -> Begun:
        """Begin a batch once no other ingest can commit what it reads. Raises `CheckpointMismatch`, and `Fenced`."""
        if batch is None:
            return super()._begun(driver, batch)
        with _told(self.sink, batch.query):
            return OneInput(self.sink, batch.query).begin(driver, batch)

    def commit(self, driver: str, batch: Batch, results: Sequence[TaskResult]) -> None:
        """Decide the batch. Raises `Fenced` if another ingest has taken over what this one reads."""
        with _told(self.sink, batch.query):
            super().commit(driver, batch, results)


@dataclass(frozen=True)
class OneInput:
    """The ingest `query` into `sink`, among all others that read what it reads. The options of the sink have its stage and checkpoint."""

    sink: Sink
    query: str

    @cached_property
    def earlier(self) -> Earlier:
        """What knows which other ingests read what this one reads, and what they have read."""
        source: Mapping[str, str] = json.loads(self.sink.options[STAGE].text)["source"]
        storage = None if is_topics(source["path"]) else where(parse(SOURCE, source, what="source")).storage
        checkpoint = Checkpoint(self.sink.options["checkpointLocation"])
        return Earlier(storage, source, self.sink.storage, self.sink.root, checkpoint)

    def begin(self, driver: str, batch: Batch) -> Begun:
        """Begin a batch of the sink. The order counts: the claim leaves the note that others see, and only then this one looks."""
        begun = self.sink.begin(driver, batch, self._check_shared)
        if self.query in begun.done and not begun.taken_by:
            return begun
        for other, source, _ in ingests_of(self.sink.storage, self.sink.root):
            if other.sink_id != self.sink.sink_id and self.earlier.is_same(other, source):
                self._take_over(other, was_taken=self.query in begun.done)
        head = self.sink.ledger.head()
        self.sink.committer.check(head, Claim(epoch=begun.epoch))
        if not begun.taken_by:
            return begun
        handover.take_back(self.sink, head)
        return self.sink.begin(driver, batch)

    def _check_shared(self, head: State) -> None:
        """Raise `CheckpointMismatch` if a ledger without a batch of this query has what it would read; `head` is its last record."""
        if self.query in head.batches or not head.total_rows:
            return
        before = Sink.existing(self.sink.storage, self.sink.root, self.sink.sink_id)
        if before.note.stage is not None and self.earlier.is_same(before, before.note.stage.source):
            self.earlier.check_unread(before, head)

    def _take_over(self, other: Sink, *, was_taken: bool) -> None:
        """Raise `CheckpointMismatch` if another sink has rows that this ingest would read again; else end its driver.

        `was_taken`: this query has batches, and another one has taken over what it reads.
        """
        while True:
            look = other.ledger.look()
            head = other.ledger.head(look)
            if not was_taken:
                self.earlier.check_unread(other, head)
            elif head.total_rows and handover.taker(head) != self.query:
                raise self._was_taken(other)
            if handover.is_taken(head):  # its driver looks at all others before it commits
                return
            with suppress(Fenced):  # it has put a record since
                handover.take(other, head, look, self.query)
                return

    def _was_taken(self, other: Sink) -> CheckpointMismatch:
        return CheckpointMismatch(
            f"what is ingested from {self.earlier.source['path']!r} into DST={self.earlier.dst!r} was taken over from the checkpoint "
            f"{self.earlier.checkpoint.location!r} by another one, {other.options['checkpointLocation']!r}: records would be there "
            "twice; go on with that checkpoint, or choose another DST"
        )


@contextmanager
def _told(sink: Sink, query: str) -> Iterator[None]:
    """Have `Fenced` say that another ingest has taken over what this one reads, if that is why."""
    try:
        yield
    except Fenced as error:
        by = handover.taker(sink.ledger.head())
        if by in {"", query}:
            raise
        places = [
            other.options["checkpointLocation"]
            for other, _, head in ingests_of(sink.storage, sink.root)
            if by in {other.sink_id, *head.batches} or (not handover.is_taken(head) and head.owner.endswith(f":{by}"))
        ]
        under = f", whose checkpoint is {places[0]!r}," if places else ""
        msg = (
            f"another ingest of the same input into {sink.root!r}, query {by}{under} has begun since, and takes it over; this one has "
            "changed nothing more; leave it to that one, or, if that has ended without a row, run the same command again"
        )
        raise Fenced(msg) from error
