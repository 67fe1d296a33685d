"""The pipelines that a page shows, with what is known of each: its status, its numbers, its output, and what it failed at."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from penstock import clock
from penstock.cli.page.outputs import OutputLook, WatchedOutput
from penstock.cli.page.trends import Trend, Trends
from penstock.cli.run.measured import measured

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.cli.run.status import PipelineStatus
    from penstock.metrics.meter import Key, Meter

_FAILURES = 5


@dataclass(frozen=True)
class Described:
    """A pipeline as it was asked for; `sink_id` where its sink has another one than its query's, `checkpoint` where that is known."""

    name: str
    source: str
    sink: str
    schedule: str = ""
    sink_id: str | None = None
    checkpoint: str | None = None


@dataclass(frozen=True)
class SeenFailure:
    """What a pipeline failed at: the message has the advice. Met `count` times in a row, the last time at `time_ns`."""

    code: str
    message: str
    time_ns: int
    count: int = 1


@dataclass(frozen=True)
class PipelineView:
    """All that the page shows of one pipeline. `status` is `None` where only its output is watched; `masked` takes secrets out of text."""

    described: Described
    status: PipelineStatus | None
    values: Mapping[Key, float]
    output: OutputLook
    trend: Trend
    failures: tuple[SeenFailure, ...] = ()
    masked: Callable[[str], str] = str

    @property
    def name(self) -> str:
        """Return its name."""
        return self.described.name

    def value(self, measure: str, label: str = "") -> float | None:
        """Return a number as monitors are told it, `None` where there is none."""
        return self.values.get((measure, label))

    def count(self, measure: str, label: str = "") -> int:
        """Return the same as a whole number, 0 where there is none."""
        return round(self.values.get((measure, label), 0))

    @property
    def fact(self) -> dict[str, Any]:
        """Return what `penstock status` says of its sink."""
        return self.output.facts


class Watched(Protocol):
    """Whatever has pipelines to show."""

    def refresh(self) -> None:
        """See which pipelines there are now, where that takes a look at a storage."""

    def described(self) -> list[Described]:
        """Return the pipelines there are, in the order in which they are shown."""

    def status(self, name: str) -> PipelineStatus | None:
        """Return how one is, `None` where nobody knows."""


class Failures:
    """Takes the failures of pipelines, as a watcher of their statuses; the last few of each are kept."""

    def __init__(self) -> None:
        self._failures: dict[str, deque[SeenFailure]] = {}

    def changed(self, before: PipelineStatus, status: PipelineStatus) -> None:
        """Take in a failure."""
        if status.failures <= before.failures or status.error is None:
            return
        failures = self._failures.setdefault(status.name, deque(maxlen=_FAILURES))
        failure = SeenFailure(status.error_code or "", status.error, clock.now_ns())
        if failures and (failures[-1].code, failures[-1].message) == (failure.code, failure.message):
            failure = replace(failure, count=failures.pop().count + 1)
        failures.append(failure)

    def gone(self, name: str) -> None:
        """Forget a pipeline."""
        self._failures.pop(name, None)

    def of(self, name: str) -> tuple[SeenFailure, ...]:
        """Return the failures of a pipeline, the last one first."""
        return tuple(reversed(self._failures.get(name, ())))


@dataclass
class Views:
    """Puts together what is shown. `look` reads files and may take its time; all else is in memory."""

    meter: Meter
    failures: Failures
    watched: Watched | None = None
    masked: Callable[[str], str] = str
    trends: Trends = field(default_factory=Trends)
    _outputs: dict[Described, WatchedOutput] = field(default_factory=dict)

    def described(self) -> list[Described]:
        """Return the pipelines there are now; none before they are known."""
        return self.watched.described() if self.watched is not None else []

    def sample(self) -> None:
        """Take a sample of all numbers."""
        values = self._values()
        self.trends.sample(clock.monotonic(), {each.name: values.get(each.name, {}) for each in self.described()})

    def look(self) -> None:
        """Look at all outputs. Of those that only are watched the meter hears what was seen; of the others it knows more already."""
        if self.watched is not None:
            self.watched.refresh()
        described = self.described()
        for gone in set(self._outputs) - set(described):
            self._outputs.pop(gone, None)
        for pipeline in described:
            look = self._output(pipeline).look(self._query(pipeline.name))
            if self._status(pipeline.name) is None and look.state is not None:
                measured(self.meter, pipeline.name, look.state)

    def all(self) -> list[PipelineView]:
        """Return the pipelines as they are known now."""
        values = self._values()
        return [
            PipelineView(
                each,
                self._status(each.name),
                values.get(each.name, {}),
                self._output(each).newest,
                self.trends.of(each.name),
                self.failures.of(each.name),
                self.masked,
            )
            for each in self.described()
        ]

    def _output(self, described: Described) -> WatchedOutput:
        fresh = WatchedOutput(described.sink, described.sink_id, described.checkpoint)
        return self._outputs.setdefault(described, fresh)

    def _status(self, name: str) -> PipelineStatus | None:
        return self.watched.status(name) if self.watched is not None else None

    def _query(self, name: str) -> str:
        status = self._status(name)
        return status.state.query if status is not None and status.state is not None else ""

    def _values(self) -> dict[str, Mapping[Key, float]]:
        return {subject.pipeline or subject.query: subject.values for subject in self.meter.subjects()}
