"""Serving the page: for pipelines that this command runs, for one ingest, and for an output that somebody else writes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock import clock
from penstock.cli.answer import Answer, console
from penstock.cli.page.board import Board
from penstock.cli.page.door import Door, token_at
from penstock.cli.page.server import PageApplication
from penstock.cli.page.watched import Described, Failures, Views
from penstock.cli.process import stop_signals
from penstock.cli.run.status import Phase, PipelineStatus, Told
from penstock.errors import OptionError, PenstockError
from penstock.metrics.meter import Meter
from penstock.metrics.server import address, answering
from penstock.sink.ledger import STATE_DIRECTORY
from penstock.storage import locate
from penstock.verify.files import existing_sinks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.cli.run.fleet import Fleet
    from penstock.cli.run.plan import Planned
    from penstock.cli.run.status import Watcher
    from penstock.ingestion.job import Ingested

_TICK_SECONDS = 0.2


@dataclass(frozen=True)
class PageRequest:
    """Where a page is to be answered, and where its token is, as flags have it."""

    address: str
    token: str | None = None

    def door(self) -> Door:
        """Return who may look. Raises `OptionError`, and what reading the token raises."""
        host, _ = address(self.address, name="--page")
        return Door(token_at(self.token, host))


def requested(page: str | None, token: str | None) -> PageRequest | None:
    """Return what the flags ask for; `OptionError` for a token of no page."""
    if page is None and token is not None:
        msg = f"--page-token {token} is for --page: without it there is no page"
        raise OptionError(msg)
    return None if page is None else PageRequest(page, token)


@contextlib.contextmanager
def shown(
    request: PageRequest, views: Views, title: str, others: Callable[..., Iterable[bytes]] | None = None
) -> Iterator[str]:
    """Serve the page for the length of the block; yield its address. `others` answers monitors at the same one."""
    board = Board(views)
    application = PageApplication(board, request.door(), title, others)
    with answering(request.address, application, name="--page") as url:
        board.start()
        try:
            yield url
        finally:
            board.close()


class WatchedFleet:
    """The pipelines of `penstock run`, in the order of their names."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def described(self) -> list[Described]:
        """Return the pipelines there are now."""
        planned = self._fleet.plan.pipelines
        return [_described(planned[status.name]) for status in self._fleet.statuses if status.name in planned]

    def refresh(self) -> None:
        """Do nothing: what there is is known at any time."""

    def status(self, name: str) -> PipelineStatus | None:
        """Return how one is."""
        return next((status for status in self._fleet.statuses if status.name == name), None)


def _described(planned: Planned) -> Described:
    request = planned.request
    sink_id = next((value for name, value in request.sink.items() if name.lower() == "sinkid"), None)
    checkpoint = request.checkpoint or f"{request.dst}/{STATE_DIRECTORY}/checkpoint"
    return Described(planned.name, request.src, request.dst, str(planned.schedule), sink_id, checkpoint)


class WatchedOutputs:
    """The sinks of an output that somebody else writes; nothing is known of their queries but what is there."""

    def __init__(self, dst: str) -> None:
        self._dst = dst
        self._described = self._sinks()

    def _sinks(self) -> list[Described]:
        storage, root = locate(self._dst, name="DST")
        return [Described(sink.sink_id, "", root, sink_id=sink.sink_id) for sink in existing_sinks(storage, root)]

    def refresh(self) -> None:
        """See which sinks there are now; where that cannot be seen, those of before are shown with the reason."""
        with contextlib.suppress(PenstockError):
            self._described = self._sinks()

    def described(self) -> list[Described]:
        """Return the sinks that there were when they were looked for last."""
        return self._described

    def status(self, name: str) -> PipelineStatus | None:  # noqa: ARG002 - as those of pipelines are asked
        """Return nothing: only the output is seen."""
        return None


class WatchedIngest:
    """The one ingest of `penstock ingest --watch`, by the states that it reports."""

    def __init__(self, described: Described, watchers: tuple[Watcher, ...]) -> None:
        self._one = described
        first = PipelineStatus(described.name, since_ns=clock.now_ns())
        self._told = Told(watchers, first)
        for watcher in watchers:
            watcher.changed(first, first)

    def refresh(self) -> None:
        """Do nothing: it is always the same one."""

    def described(self) -> list[Described]:
        """Return it."""
        return [self._one]

    def status(self, name: str) -> PipelineStatus | None:  # noqa: ARG002 - as those of pipelines are asked
        """Return how it is."""
        return self._told.status

    def progress(self, state: Ingested) -> None:
        """Take in how far it is."""
        self._told.progress(state)
        self._told.phase(Phase.WAITING if state.waiting else Phase.RUNNING)


def page(dst: str, at: str, token: str | None) -> Answer:
    """Serve the page of an output until a signal ends it, and well."""
    request, meter = PageRequest(at, token), Meter()
    watched = WatchedOutputs(dst)
    views = Views(meter, Failures(), watched)
    title = locate(dst, name="DST")[1]
    with stop_signals() as stop, shown(request, views, title) as url:
        console(stderr=True).print(f"{url} shows {title}; Ctrl-C ends it", soft_wrap=True)
        while not stop.requested:
            clock.sleep(_TICK_SECONDS)
    return Answer({"ok": True, "path": title})
