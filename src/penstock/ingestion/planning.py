"""What plans the batches of an ingest without Spark: the planners of Spark's sources, asked in the order in which Spark asks them.

What a task is given is the text that Spark would have carried to it, so the stage reads a batch alike, whoever planned it and whoever
repeats it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from penstock.formats.codecs import codec_of
from penstock.ingestion.topics import topic_offset
from penstock.kafka import carried as topics
from penstock.kafka.offset import ranges
from penstock.processes import no_collection
from penstock.query.batch import Task
from penstock.source import configured
from penstock.source.dividing import OPEN_COST, weight
from penstock.source.splitruns import splits_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from penstock.ingestion.looks import LookWhereRead
    from penstock.kafka.plan import TopicPlanner
    from penstock.query.batch import Batch
    from penstock.query.checkpoint import Checkpoint
    from penstock.source.cursor import Split
    from penstock.source.plan import Planner

    class Plans(Protocol):
        """What a planner is asked."""

        def initial(self) -> dict[str, Any]:
            """Return the offset in front of the first batch."""

        def prepare_available_now(self) -> None:
            """Take what is there now as all there is."""

        def latest(self, start: dict[str, Any]) -> dict[str, Any]:
            """Return the offset at the end of the next batch; `start` itself if there is nothing new."""

    class NamePlans(Plans, Protocol):
        """A planner of what names files."""

        def offset(self, checkpoint: Checkpoint, number: int) -> dict[str, Any]:
            """Return the offset at the end of a batch that was planned. Raises `DamagedState`."""

        def rows(self, start: Mapping[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch]:
            """Yield the rows of a batch that name files, the same at each call."""


# What is read in less time than processes take to begin, about; and what of a packed file counts for, which may be many times as much.
_APART_WEIGHT = 16 << 20
_PACKED = 16
_APART_OFFSETS = 100_000


class Tasks(NamedTuple):
    """The rows that are carried to each task of a batch, and in how many processes of their own so much is worth to be read: 0 in none."""

    carried: Sequence[Sequence[pa.RecordBatch]]
    processes: int


def _processes(work: int, worth_one: int) -> int:
    """Return how many processes some work is worth: none as long as one would begin for longer than it works."""
    return 0 if work <= worth_one else -(-work // worth_one)


@dataclass(frozen=True)
class Planning(ABC):
    """Plans one batch after the other. Each offset is JSON, and a batch is what lies between two of them; raises what `planner` does."""

    planner: Plans

    def initial(self) -> dict[str, Any]:
        """Return the offset in front of the first batch."""
        return self.planner.initial()

    def prepare_available_now(self) -> None:
        """Take what is there now as all there is."""
        self.planner.prepare_available_now()

    def foreseen(self, start: dict[str, Any]) -> int:  # noqa: ARG002 - where nobody knows before it is planned
        """Return how many processes of their own the next batch is worth, about, as far as that is known before it is planned.

        Looks at what is there; `latest(start)`, called next, need not do so again.
        """
        return 0

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        """Return the offset at the end of the next batch; `start` itself if there is nothing new."""
        return self.planner.latest(start)

    def committed(self, end: dict[str, Any]) -> None:  # noqa: B027 - nothing, where an offset is all of its plan
        """Forget what is needed for no batch up to this offset any more."""

    def offset(self, checkpoint: Checkpoint, number: int) -> dict[str, Any]:
        """Return the offset at the end of a batch that was planned. Raises `DamagedState`."""
        return checkpoint.only_offset(number)

    @abstractmethod
    def tasks(self, start: Mapping[str, Any], end: dict[str, Any], batch: Batch) -> Tasks:
        """Return the tasks of a batch, from its offsets; one where little is to do: several would be several parts, for nothing."""


@dataclass(frozen=True)
class FilePlanning(Planning):
    """Plans files, as ranges of bytes. `packed`: a file is packed, as a table is, also where its name does not say so."""

    planner: Planner
    packed: bool

    def foreseen(self, start: dict[str, Any]) -> int:
        """Return what the files that wait are worth, if none of them is packed."""
        if not self.planner.look(start):
            return 0
        files, size = self.planner.waiting()
        return _processes(size + files * OPEN_COST, _APART_WEIGHT)

    def committed(self, end: dict[str, Any]) -> None:
        """Delete plans beside offsets."""
        self.planner.committed(end)

    def tasks(self, start: Mapping[str, Any], end: dict[str, Any], batch: Batch) -> Tasks:  # noqa: ARG002 - one of `Planning`
        """Return the splits that the offset has, and their zone."""
        with no_collection():
            tasks, zone = self.planner.tasks(end), self.planner.zone(end)
            work = _work(chain.from_iterable(tasks), len(tasks), packed=self.packed)
            processes = _processes(work, _APART_WEIGHT)
            if not processes:
                tasks = [[split for task in tasks for split in task]]
            return Tasks([[configured.carried(task, zone)] for task in tasks if task], processes)


@dataclass(frozen=True)
class NamePlanning(Planning):
    """Plans what names files, which are looked at here, behind the plan: what was found is noted, and dealt out to `count` tasks.

    `packed` is as in `FilePlanning`.
    """

    planner: NamePlans
    look: LookWhereRead
    count: int
    packed: bool

    def offset(self, checkpoint: Checkpoint, number: int) -> dict[str, Any]:
        """Return how far what names files was read."""
        return self.planner.offset(checkpoint, number)

    def tasks(self, start: Mapping[str, Any], end: dict[str, Any], batch: Batch) -> Tasks:
        """Return the splits of what is named between two offsets, dealt out one by one. Raises what `looking.splits` does."""
        at = Task(batch.query, batch.number, 0)
        looked = list(self.look.splits(self.planner.rows(start, end), at))
        splits = chain.from_iterable(map(splits_of, looked))
        processes = _processes(_work(splits, self.count, packed=self.packed), _APART_WEIGHT)
        count = self.count if processes else 1
        dealt = [[rows.take(_every(count, first, rows.num_rows)) for rows in looked] for first in range(count)]
        return Tasks([task for task in dealt if any(rows.num_rows for rows in task)], processes)


@dataclass(frozen=True)
class TopicPlanning(Planning):
    """Plans topics, as ranges of offsets, for `count` tasks where there is much."""

    planner: TopicPlanner
    count: int

    def offset(self, checkpoint: Checkpoint, number: int) -> dict[str, Any]:
        """Return the positions in all partitions."""
        return topic_offset(checkpoint, number)

    def tasks(self, start: Mapping[str, Any], end: dict[str, Any], batch: Batch) -> Tasks:  # noqa: ARG002 - one of `Planning`
        """Return the ranges between two offsets."""
        processes = _processes(sum(each.offsets for each in ranges(start, end)), _APART_OFFSETS)
        shares = topics.carried(start, end, self.count if processes else 1)
        return Tasks([[configured.carried_row(share)] for share in shares], processes)


def _work(splits: Iterable[Split], tasks: int, *, packed: bool) -> int:
    """Return the bytes that reading the splits is, about; of what is worth a process for each of so many tasks, no more than that."""
    work = 0
    for split in splits:
        in_packs = packed or codec_of(split.file.path) is not None
        work += weight(split) + (split.end - split.start) * (_PACKED - 1 if in_packs else 0)
        if work >= tasks * _APART_WEIGHT:
            break
    return work


def _every(count: int, first: int, rows: int) -> np.ndarray[Any, Any]:
    return np.arange(first, rows, count)
