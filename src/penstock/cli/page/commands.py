"""Serving the page: for pipelines that this command runs, for one ingest, and for an output that somebody else writes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from penstock import clock
from penstock.cli.answer import Answer, console
from penstock.cli.page.board import Board
from penstock.cli.page.request import PageRequest
from penstock.cli.page.server import PageApplication
from penstock.cli.page.watched import Described, Failures, Views
from penstock.cli.process import stop_signals
from penstock.errors import PenstockError
from penstock.metrics.meter import Meter
from penstock.metrics.server import answering
from penstock.storage import locate
from penstock.verify.files import existing_sinks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.cli.run.status import PipelineStatus


_TICK_SECONDS = 0.2


@contextlib.contextmanager
def shown(
    request: PageRequest, views: Views, title: str, others: Callable[..., Iterable[bytes]] | None = None
) -> Iterator[str]:
    """Serve the page for the length of the block; yield its address. `others` answers monitors at the same address."""
    board = Board(views)
    application = PageApplication(board, request.door(), title, others)
    with answering(request.address, application, name=request.flag) as url:
        board.start()
        try:
            yield url
        finally:
            board.close()


class WatchedOutputs:
    """The sinks of an output that somebody else writes; of their queries it knows only what the output shows."""

    def __init__(self, dst: str) -> None:
        self._dst = dst
        self._described = self._sinks()

    def _sinks(self) -> list[Described]:
        storage, root = locate(self._dst, name="DST")
        return [Described(sink.sink_id, "", root, sink_id=sink.sink_id) for sink in existing_sinks(storage, root)]

    def refresh(self) -> None:
        """See which sinks there are now; if that fails, the earlier ones are shown with the reason."""
        with contextlib.suppress(PenstockError):
            self._described = self._sinks()

    def described(self) -> list[Described]:
        """Return the sinks that the last look found."""
        return self._described

    def status(self, name: str) -> PipelineStatus | None:  # noqa: ARG002 - same signature as for pipelines
        """Return nothing: only the output is seen."""
        return None


def page(dst: str, at: str, token: str | None) -> Answer:
    """Serve the page of an output until a signal ends it (status 0)."""
    request, meter = PageRequest(at, token, "--at"), Meter()
    watched = WatchedOutputs(dst)
    views = Views(meter, Failures(), watched)
    title = locate(dst, name="DST")[1]
    with stop_signals() as stop, shown(request, views, title) as url:
        console(stderr=True).print(f"{url} shows {title}; Ctrl-C ends it", soft_wrap=True)
        while not stop.requested:
            clock.sleep(_TICK_SECONDS)
    return Answer({"ok": True, "path": title})
