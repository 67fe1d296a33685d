"""Planners, without Spark, of the lists and events that name the files of an ingest, and the rows that their sources would give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.options import SOURCE, Options, parse
from penstock.sink import eventrows
from penstock.sink.published import Published
from penstock.source import configured
from penstock.source.plan import Planner
from penstock.source.schemas import LINES
from penstock.storage import locate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from penstock.query.checkpoint import Checkpoint
    from penstock.source.read import Reading

_TASK_EVENTS = 10_000  # events that become rows at a time


@dataclass(frozen=True)
class ListPlanner:
    """Plans lists of names as other files are planned."""

    options: Options
    reading: Reading
    planner: Planner

    @staticmethod
    def of(source: Mapping[str, str]) -> ListPlanner | None:
        """Return the planner for the options of the source that reads lists; `None` for lists that grow or are not on this host."""
        options = parse(SOURCE, source, what="source")
        reading = configured.reading(options, LINES)
        if options["follow"] or not reading.storage.of_this_host:
            return None
        planner = configured.planner(options, reading)
        assert isinstance(planner, Planner)  # noqa: S101 - another one is of files that are followed
        return ListPlanner(options, reading, planner)

    def initial(self) -> dict[str, Any]:
        """Return the offset before the first list."""
        return self.planner.initial()

    def prepare_available_now(self) -> None:
        """Plan no lists but those that are there now."""
        self.planner.prepare_available_now()

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        """Return the offset after the next part of the lists."""
        return self.planner.latest(start)

    def offset(self, checkpoint: Checkpoint, number: int) -> dict[str, Any]:
        """Return the offset at the end of a planned batch."""
        return checkpoint.only_offset(number)

    def rows(self, start: Mapping[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - one of `NamePlans`
        """Yield the planned lines. Raises what `Reading.batches` raises."""
        splits = tuple(split for task in self.planner.tasks(end) for split in task)
        return configured.told(self.options, self.reading, splits)


class EventPlanner:
    """Plans the events of an output; `options` are those of `emit=published`."""

    def __init__(self, options: Options) -> None:
        self._options = options
        storage, self._root = locate(options["path"])
        self._published = Published(storage, self._root, options["sinkId"])
        self._until: Mapping[str, int] | None = None

    def initial(self) -> dict[str, Any]:
        """Return where a new query begins."""
        return self._published.begin(self._options["startingFrom"])

    def prepare_available_now(self) -> None:
        """Plan no events but those that are published now."""
        self._until = self._published.ends()

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        """Return the offset after the next events."""
        return self._published.plan(start, self._options["maxFilesPerTrigger"], self._until)

    def offset(self, checkpoint: Checkpoint, number: int) -> dict[str, Any]:
        """Return the offset at the end of a planned batch."""
        return checkpoint.sole_offset(number, "published files", Published.place)

    def rows(self, start: Mapping[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        """Yield the events of a batch. Raises `EventsLost`."""
        events = self._published.events(start, end)
        for at in range(0, len(events), _TASK_EVENTS):
            yield eventrows.batch(events[at : at + _TASK_EVENTS], self._root)
