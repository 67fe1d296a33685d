"""The page of one ingest: `penstock ingest --page`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock import clock
from penstock.cli.answer import console
from penstock.cli.page.commands import shown
from penstock.cli.page.watched import Described, Failures, Views
from penstock.cli.run.measured import Measuring
from penstock.cli.run.status import Phase, PipelineStatus, Told
from penstock.metrics.meter import Meter
from penstock.sink.ledger import STATE_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from penstock.cli.ingest import Request
    from penstock.cli.page.request import PageRequest
    from penstock.cli.run.status import Watcher
    from penstock.ingestion.ingested import Ingested

_NAME = "ingest"


class WatchedIngest:
    """The one ingest of `penstock ingest --watch`, known by the states that it reports."""

    def __init__(self, described: Described, watchers: tuple[Watcher, ...]) -> None:
        self._one = described
        first = PipelineStatus(described.name, since_ns=clock.now_ns())
        self._told = Told(watchers, first)
        for watcher in watchers:
            watcher.changed(first, first)

    def refresh(self) -> None:
        """Do nothing: it is always the same ingest."""

    def described(self) -> list[Described]:
        """Return the one ingest."""
        return [self._one]

    def status(self, name: str) -> PipelineStatus:  # noqa: ARG002 - same signature as for pipelines
        """Return the status of the ingest."""
        return self._told.status

    def progress(self, state: Ingested) -> None:
        """Take in how far it is."""
        self._told.progress(state)
        self._told.phase(Phase.WAITING if state.waiting else Phase.RUNNING)


class IngestPage:
    """Shows an ingest, from before Spark starts to its end."""

    def __init__(self, request: PageRequest, ingest: Request) -> None:
        self._request = request
        self._meter = Meter()
        self._views = Views(self._meter, Failures())
        checkpoint = ingest.checkpoint or f"{ingest.dst}/{STATE_DIRECTORY}/checkpoint"
        described = Described(_NAME, ingest.src, ingest.dst, checkpoint=checkpoint)
        self._ingest = WatchedIngest(described, (Measuring(self._meter), self._views.failures))
        self._views.watched = self._ingest
        self._title = ingest.dst

    @contextmanager
    def served(self) -> Iterator[None]:
        """Serve the page for the length of the block."""
        with shown(self._request, self._views, self._title) as url:
            console(stderr=True).print(f"page: {url}/", soft_wrap=True)
            yield

    @contextmanager
    def measured(self, spark: SparkSession) -> Iterator[None]:
        """Let the page know what Spark reports about its batches, for the length of the block."""
        from penstock.spark.measuring import measure  # it needs PySpark, which a page of an output does not

        with measure(spark, self._meter):
            yield

    def progress(self, state: Ingested) -> None:
        """Take in how far the ingest is."""
        self._ingest.progress(state)
