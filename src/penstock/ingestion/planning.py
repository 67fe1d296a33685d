"""Plans the batches of an ingest without Spark, by the planners of our sources for Spark, called in the order in which Spark calls them.

A task gets the same text that Spark would have carried to it. So the stage reads a batch in the same way, whether Spark or this
module has planned it or repeats it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import accumulate, chain
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
from penstock.source.splitruns import splits_of, splits_or_none

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
        """The calls of a planner."""

        def initial(self) -> dict[str, Any]:
            """Return the offset before the first batch."""

        def prepare_available_now(self) -> None:
            """Plan nothing but what is there now."""

        def latest(self, start: dict[str, Any]) -> dict[str, Any]:
            """Return the offset at the end of the next batch; `start` itself if there is nothing new."""

    class NamePlans(Plans, Protocol):
        """A planner of lists or events that name files."""

        def offset(self, checkpoint: Checkpoint, number: int) -> dict[str, Any]:
            """Return the offset at the end of a planned batch. Raises `DamagedState`."""

        def rows(self, start: Mapping[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch]:
            """Yield the rows of a batch that name files, the same at each call."""


# About as much as is read in the time that processes need to start; and the factor for packed files, which may hold
# many times their size.
_APART_WEIGHT = 16 << 20
_PACKED = 16
_APART_OFFSETS = 100_000


class Tasks(NamedTuple):
    """The rows that are carried to each task of a batch, and how many other processes it is worth to start for them; 0 for none."""

    carried: Sequence[Sequence[pa.RecordBatch]]
    processes: int


def _processes(work: int, worth_one: int) -> int:
    """Return how many processes it is worth to start for some work: none if one would take longer to start than to work."""
    return 0 if work <= worth_one else -(-work // worth_one)


@dataclass(frozen=True)
class Planning(ABC):
    """Plans one batch after the other. Each offset is JSON, and a batch lies between two offsets; raises what `planner` raises."""

    planner: Plans

    def initial(self) -> dict[str, Any]:
        """Return the offset before the first batch."""
        return self.planner.initial()

    def prepare_available_now(self) -> None:
        """Plan nothing but what is there now."""
        self.planner.prepare_available_now()

    def foreseen(self, start: dict[str, Any]) -> int:  # noqa: ARG002 - unknown before the batch is planned
        """Return about how many processes it is worth to start for the next batch, as far as that is known before it is planned.

        Lists what is there; `latest(start)`, called next, need not list again.
        """
        return 0

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        """Return the offset at the end of the next batch; `start` itself if there is nothing new."""
        return self.planner.latest(start)

    def committed(self, end: dict[str, Any]) -> None:  # noqa: B027 - nothing, if an offset has its whole plan
        """Delete what the batches up to this offset no longer need."""

    def offset(self, checkpoint: Checkpoint, number: int) -> dict[str, Any]:
        """Return the offset at the end of a planned batch. Raises `DamagedState`."""
        return checkpoint.only_offset(number)

    @abstractmethod
    def tasks(self, start: Mapping[str, Any], end: dict[str, Any], batch: Batch) -> Tasks:
        """Return the tasks of a batch, from its offsets. For little work that is one task: several would only make several parts."""


@dataclass(frozen=True)
class FilePlanning(Planning):
    """Plans files, as ranges of bytes. `packed`: files are packed, as tables are, even if their names do not show it."""

    planner: Planner
    packed: bool

    def foreseen(self, start: dict[str, Any]) -> int:
        """Return how many processes the waiting files are worth if none of them is packed."""
        if not self.planner.look(start):
            return 0
        files, size = self.planner.waiting()
        return _processes(size + files * OPEN_COST, _APART_WEIGHT)

    def committed(self, end: dict[str, Any]) -> None:
        """Delete plans that lie beside offsets."""
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
    """Plans lists or events that name files.

    After the plan, looks up these files here, notes what was found, and gives it to `count` tasks.

    `packed` is as in `FilePlanning`.
    """

    planner: NamePlans
    look: LookWhereRead
    count: int
    packed: bool

    def offset(self, checkpoint: Checkpoint, number: int) -> dict[str, Any]:
        """Return how far the lists or events were read."""
        return self.planner.offset(checkpoint, number)

    def tasks(self, start: Mapping[str, Any], end: dict[str, Any], batch: Batch) -> Tasks:
        """Return the splits of the files that are named between two offsets, distributed by what they have to read.

        Raises what `looking.splits` raises.
        """
        at = Task(batch.query, batch.number, 0)
        looked = list(self.look.splits(self.planner.rows(start, end), at))
        splits = chain.from_iterable(map(splits_of, looked))
        processes = _processes(_work(splits, self.count, packed=self.packed), _APART_WEIGHT)
        count = self.count if processes else 1
        weights = np.array([weight(split) if split else 0 for rows in looked for split in splits_or_none(rows)])
        shares, begins = _shares(weights, count), [0, *accumulate(rows.num_rows for rows in looked)]
        dealt = [
            [
                rows.take(np.flatnonzero(shares[begin : begin + rows.num_rows] == each))
                for begin, rows in zip(begins, looked, strict=False)
            ]
            for each in range(count)
        ]
        return Tasks([task for task in dealt if any(rows.num_rows for rows in task)], processes)


@dataclass(frozen=True)
class TopicPlanning(Planning):
    """Plans topics, as ranges of offsets, for `count` tasks if there is much to read."""

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
    """Return about how many bytes it is to read the splits; stops counting at an amount that is worth a process for each of `tasks`."""
    work = 0
    for split in splits:
        in_packs = packed or codec_of(split.file.path) is not None
        work += weight(split) + (split.end - split.start) * (_PACKED - 1 if in_packs else 0)
        if work >= tasks * _APART_WEIGHT:
            break
    return work


def _shares(weights: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """Return for each split which of `count` tasks gets it: neighbours together, and about as much to read for each task.

    Dealt in turn to two tasks, the large first ranges of files would all go to one of them, and their small ends to the other.
    """
    middles = np.cumsum(weights) - weights / 2
    # What weighs nothing, after all the others, is at the end of the last share.
    shares: np.ndarray[Any, Any] = np.minimum(middles * count // max(weights.sum(), 1), count - 1)
    return shares
