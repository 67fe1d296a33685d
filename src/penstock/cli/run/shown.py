"""What the page shows about the pipelines of `penstock run`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cli.page.watched import Described
from penstock.sink.ledger import STATE_DIRECTORY

if TYPE_CHECKING:
    from penstock.cli.run.fleet import Fleet
    from penstock.cli.run.plan import Planned
    from penstock.cli.run.status import PipelineStatus


class WatchedFleet:
    """The pipelines of `penstock run`, in the order of their names."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def described(self) -> list[Described]:
        """Return the pipelines there are now."""
        planned = self._fleet.plan.pipelines
        return [_described(planned[status.name]) for status in self._fleet.statuses if status.name in planned]

    def refresh(self) -> None:
        """Do nothing: the pipelines are always known."""

    def status(self, name: str) -> PipelineStatus | None:
        """Return the status of a pipeline."""
        return next((status for status in self._fleet.statuses if status.name == name), None)


def _described(planned: Planned) -> Described:
    request = planned.request
    sink_id = next((value for name, value in request.sink.items() if name.lower() == "sinkid"), None)
    checkpoint = request.checkpoint or f"{request.dst}/{STATE_DIRECTORY}/checkpoint"
    return Described(planned.name, request.src, request.dst, str(planned.schedule), sink_id, checkpoint)
