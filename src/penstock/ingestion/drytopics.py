"""Dry runs of an ingest of topics; see `ingestion.dry`.

The plan comes from the ingest's own planner, which asks the brokers from the checkpoint's position on. A sample is the beginnings
of a few ranges.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.formats.aside import Aside
from penstock.formats.schema import spark_name
from penstock.ingestion.dry import DryRun, PlannedBatch, Preview, Sample
from penstock.ingestion.replan import in_flight
from penstock.ingestion.topics import topic_offset
from penstock.kafka.carried import Share
from penstock.kafka.offset import ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from penstock.ingestion.topics import Topics
    from penstock.kafka.offset import Range

_SAMPLED_RANGES = 8
_SAMPLED_OFFSETS = 1_000  # of each of them


@dataclass
class TopicPreview(Preview):
    """A dry run of an ingest of topics."""

    topics: Topics = field(kw_only=True)

    def run(self) -> DryRun:
        """Return the dry run. Raises errors in the call; an error with the topics is the `problem` of the result."""
        self.earlier().check()
        batches: list[PlannedBatch] = []
        planned: list[Range] = []
        try:
            for number, pieces, again in self._topic_plans():
                batches.append(_batch(number, pieces, again=again))
                planned += pieces
        except PenstockError as error:
            self.problem = error
        columns = {each.name: spark_name(each.type) for each in self.sink.layout.data_schema(self.stage.schema)[0]}
        sample = self._sampled_ranges(planned, Sample(columns))
        problem = None if self.problem is None else str(self.problem)
        return DryRun(tuple(batches), {}, sample, problem, tuple(self.notes))

    def is_idle(self) -> bool:
        """Tell whether the ingest has nothing to do: what was planned is committed and visible, and nothing has come."""
        numbers = self.checkpoint.numbers("offsets")
        if self.sink.options["onPublish"] or not numbers or not self.is_settled(numbers[-1]):
            return False
        start = self.offset(numbers[-1])
        return self.topics.planner(1).latest(start) == start

    def offset(self, number: int) -> dict[str, Any]:
        """Return the offset at the end of a planned batch."""
        return topic_offset(self.checkpoint, number)

    def _topic_plans(self) -> Iterator[tuple[int, list[Range], bool]]:
        """Yield the batches that have something to read: number, ranges, and whether an earlier run has planned it."""
        planner, numbers = self.topics.planner(1), self.checkpoint.numbers("offsets")
        number = numbers[-1] if numbers else -1
        start: dict[str, Any] = self.offset(number) if numbers else planner.initial()
        if numbers and in_flight(self.checkpoint) == number:
            before = self.offset(numbers[-2]) if numbers[1:] else {}
            yield number, ranges(before or planner.initial(), start), True
        planner.prepare_available_now()
        while (end := planner.latest(start)) != start:
            number += 1
            if pieces := ranges(start, end):
                yield number, pieces, False
            start = end

    def _sampled_ranges(self, planned: list[Range], empty: Sample) -> Sample:
        """Return what the beginnings of a few ranges become; one that cannot be read is the problem of the run."""
        if self.stage.transform is not None and not callable(self.stage.transform):
            self.notes.append("the transform makes calls: no sample was read, and no service was called")
            return empty
        step = max(len(planned) / _SAMPLED_RANGES, 1.0)
        aside, buckets, offsets = Aside(), Counter[str](), 0
        for number in range(min(len(planned), _SAMPLED_RANGES)):
            whole = planned[int(number * step)]
            beginning = replace(whole, end=min(whole.begin + _SAMPLED_OFFSETS, whole.end))
            try:
                buckets.update(self.buckets([_carried(beginning)], aside))
            except PenstockError as error:
                self.problem = self.problem or error
                break
            offsets += beginning.offsets
        set_aside = sum(lines.num_rows for lines in aside.handed_on())
        by_name = dict(sorted(buckets.items()))
        return replace(empty, offsets=offsets, rows=sum(by_name.values()), buckets=by_name, set_aside=set_aside)


def _carried(piece: Range) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_pydict({"splits": [Share([piece], None).text]})


def _batch(number: int, pieces: list[Range], *, again: bool) -> PlannedBatch:
    first, last = pieces[0], pieces[-1]
    ends = f"{first.partition} from {first.begin}", f"{last.partition} up to {last.end}"
    return PlannedBatch(number, 0, 0, *ends, again, offsets=sum(each.offsets for each in pieces))
