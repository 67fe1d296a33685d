"""The pipelines that a page shows, and what is known of each: its status, its numbers, its output, and its failures."""

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
    """A pipeline as it was asked for; `sink_id` if the sink has a different id than its query, `checkpoint` if it is known."""

    name: str
    source: str
    sink: str
    schedule: str = ""
    sink_id: str | None = None
    checkpoint: str | None = None


@dataclass(frozen=True)
class SeenFailure:
    """A failure of a pipeline, seen `count` times in a row, the last time at `time_ns`; the message has the advice."""

    code: str
    message: str
    time_ns: int
    count: int = 1


@dataclass(frozen=True)
class PipelineView:
    """All that the page shows of one pipeline. `status` is `None` if only its output is watched; `masked` removes secrets from text."""

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
        """Return a number as monitors get it; `None` if it is not known."""
        return self.values.get((measure, label))

    def count(self, measure: str, label: str = "") -> int:
        """Return the same as a whole number; 0 if it is not known."""
        return round(self.values.get((measure, label), 0))

    @property
    def fact(self) -> dict[str, Any]:
        """Return what `penstock status` says of its sink."""
        return self.output.facts


class Watched(Protocol):
    """Anything that has pipelines to show."""

    def refresh(self) -> None:
        """See which pipelines there are now, if that takes a look at a storage."""

    def described(self) -> list[Described]:
        """Return the pipelines there are, in the order in which they are shown."""

    def status(self, name: str) -> PipelineStatus | None:
        """Return the status of a pipeline; `None` if it is not known."""


class Failures:
    """Collects the failures of pipelines, as a watcher of their statuses; keeps the last few of each."""

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
    """Combines everything that is shown. `look` reads files and may take some time; everything else is in memory."""

    meter: Meter
    failures: Failures
    watched: Watched | None = None
    masked: Callable[[str], str] = str
    trends: Trends = field(default_factory=Trends)
    _outputs: dict[Described, WatchedOutput] = field(default_factory=dict)

    def described(self) -> list[Described]:
        """Return the pipelines that there are now; none before they are known."""
        return self.watched.described() if self.watched is not None else []

    def sample(self) -> None:
        """Take a sample of all numbers."""
        values = self._values()
        self.trends.sample(clock.monotonic(), {each.name: values.get(each.name, {}) for each in self.described()})

    def look(self) -> None:
        """Look at all outputs. What was seen goes to the meter only for outputs that are just watched; for others it knows more already."""
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
