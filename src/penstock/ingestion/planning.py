"""What plans the batches of an ingest without Spark: the planners of Spark's sources, asked in the order in which Spark asks them.

What a task is given is the text that Spark would have carried to it, so the stage reads a batch alike, whoever planned it and whoever
repeats it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.kafka import carried as topics
from penstock.kafka.offset import ranges
from penstock.source import configured
from penstock.source.dividing import weight

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.kafka.plan import TopicPlanner
    from penstock.source.plan import Planner

# What is read in less time than processes take to begin, about.
_APART_WEIGHT = 16 << 20
_APART_OFFSETS = 100_000


class Tasks(NamedTuple):
    """What is carried to the tasks of a batch, as text, and whether it is so much that they are worth processes of their own."""

    carried: list[str]
    apart: bool


class Planning(Protocol):
    """Plans one batch after the other. Each offset is JSON, and a batch is what lies between two of them; raises what its source does."""

    def initial(self) -> dict[str, Any]:
        """Return the offset in front of the first batch."""

    def prepare_available_now(self) -> None:
        """Take what is there now as all there is."""

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        """Return the offset at the end of the next batch; `start` itself if there is nothing new."""

    def committed(self, end: dict[str, Any]) -> None:
        """Forget what is needed for no batch up to this offset any more."""

    def tasks(self, start: Mapping[str, Any], end: dict[str, Any]) -> Tasks:
        """Return the tasks of a batch, from its offsets alone; one where little is to do: several would be several parts, for nothing."""


@dataclass(frozen=True)
class FilePlanning:
    """Plans files, as ranges of bytes."""

    planner: Planner

    def initial(self) -> dict[str, Any]:
        """Return the offset in front of all files."""
        return self.planner.initial()

    def prepare_available_now(self) -> None:
        """Take the files that are there now as all there are."""
        self.planner.prepare_available_now()

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        """Return the offset with the next plan."""
        return self.planner.latest(start)

    def committed(self, end: dict[str, Any]) -> None:
        """Delete plans beside offsets."""
        self.planner.committed(end)

    def tasks(self, start: Mapping[str, Any], end: dict[str, Any]) -> Tasks:  # noqa: ARG002 - one of `Planning`
        """Return the splits that the offset has, and their zone."""
        tasks, zone = self.planner.tasks(end), self.planner.zone(end)
        apart = sum(weight(split) for task in tasks for split in task) > _APART_WEIGHT
        if not apart:
            tasks = [[split for task in tasks for split in task]]
        return Tasks([configured.carried_text(task, zone) for task in tasks if task], apart)


@dataclass(frozen=True)
class TopicPlanning:
    """Plans topics, as ranges of offsets, for `count` tasks where there is much."""

    planner: TopicPlanner
    count: int

    def initial(self) -> dict[str, Any]:
        """Return where a new ingest starts."""
        return self.planner.initial()

    def prepare_available_now(self) -> None:
        """Take what is decided now as all there is."""
        self.planner.prepare_available_now()

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        """Return the offset at the end of the next batch."""
        return self.planner.latest(start)

    def committed(self, end: dict[str, Any]) -> None:
        """Do nothing: an offset is all of its plan."""

    def tasks(self, start: Mapping[str, Any], end: dict[str, Any]) -> Tasks:
        """Return the ranges between two offsets."""
        apart = sum(each.offsets for each in ranges(start, end)) > _APART_OFFSETS
        return Tasks(topics.carried(start, end, self.count if apart else 1), apart)
