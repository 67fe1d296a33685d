"""What monitors see of pipelines: their counts and phases, whether one hangs, and whether all have begun."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import clock
from penstock.cli.run.status import Phase
from penstock.clock import SECOND_NS
from penstock.metrics.server import Condition

if TYPE_CHECKING:
    from penstock.cli.run.fleet import Fleet
    from penstock.cli.run.status import PipelineStatus
    from penstock.ingestion.ingested import Ingested
    from penstock.metrics.meter import Meter

_WORKS = {Phase.STARTING, Phase.RUNNING, Phase.DRAINING}
_SAME = (
    "input_files", "input_bytes", "left_files", "left_bytes", "late_files", "accepted_files", "held_files", "future_files", "rows",
    "output_files", "output_bytes", "open_parts", "open_rows", "batch",
)  # fmt: skip


class Measuring:
    """Enters in a meter what pipelines do."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def changed(self, before: PipelineStatus, status: PipelineStatus) -> None:
        """Take in the counts, the phase, and a failure."""
        name, state = status.name, status.state
        if state is None:
            self._meter.pipeline(name)
        elif state != before.state or before is status:
            measured(self._meter, name, state)
        if status.batch_ns:
            self._meter.set(name, {"batch_timestamp_seconds": status.batch_ns / SECOND_NS})
        if status.phase != before.phase or before is status:
            self._meter.labelled(name, "phase", {phase.value: float(phase == status.phase) for phase in Phase})
            self._meter.beat(name)
        if status.failures > before.failures:
            self._meter.labelled(name, "errors", {status.error_code or "": 1}, adds=True)
        self._meter.set(name, {"failures": status.failures, "retries": status.retries, "fenced": status.fenced})

    def gone(self, name: str) -> None:
        """Remove the pipeline from the meter."""
        self._meter.forget(name)


def measured(meter: Meter, name: str, state: Ingested) -> None:
    """Enter in a meter how far a pipeline is."""
    meter.pipeline(name, state.query)
    meter.set(name, _values(state))
    if state.input_offsets:
        meter.instead(name, "left_partition_offsets", state.left_by_partition)
    aside = {"record": state.aside_records, "file": state.aside_files, "changed": state.aside_changed}
    meter.labelled(name, "aside", aside)


def _values(state: Ingested) -> dict[str, float | None]:
    times = {"oldest_left": state.oldest_left_ns, "open_since": state.open_since_ns}
    values: dict[str, float | None] = {name: getattr(state, name) for name in _SAME}
    if state.input_offsets or state.left_offsets:  # its input is topics
        values |= {"input_offsets": state.input_offsets, "left_offsets": state.left_offsets}
    return values | {f"{name}_timestamp_seconds": ns / SECOND_NS if ns else None for name, ns in times.items()}


class Checks:
    """Answers `/health` and `/ready`."""

    def __init__(self, meter: Meter, hung_after: float) -> None:
        self._meter = meter
        self._hung_after = hung_after
        self._fleet: Fleet | None = None

    def look_at(self, fleet: Fleet) -> None:
        """Answer for these pipelines from now on; before that nothing is ready."""
        self._fleet = fleet

    def health(self) -> Condition:
        """Tell whether none of the pipelines hangs."""
        statuses = self._fleet.statuses if self._fleet else []
        hung = [status.name for status in statuses if self._hangs(status)]
        return Condition(
            not hung, {"hung": hung, "pipelines": {status.name: status.phase.value for status in statuses}}
        )

    def ready(self) -> Condition:
        """Tell whether all have looked at their input, or do not need to."""
        if self._fleet is None or self._fleet.stopping:
            return Condition(ok=False, facts={"waits_for": []})
        waits = [status.name for status in self._fleet.statuses if not status.ready and not _need_not(status)]
        return Condition(not waits, {"waits_for": waits})

    def _hangs(self, status: PipelineStatus) -> bool:
        beat = self._meter.heartbeat(status.name)
        watches = status.phase == Phase.WAITING and not status.next_ns
        silent = beat is not None and clock.monotonic() - beat > self._hung_after
        return (status.phase in _WORKS or watches) and silent


def _need_not(status: PipelineStatus) -> bool:
    """Tell whether a pipeline waits for its time, or has ended: either way it has begun."""
    return status.phase.over or bool(status.next_ns and status.phase == Phase.WAITING)
