"""An ingest that runs in this process, if it does not need Spark; its query is `here.QueryHere`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.ingestion.dry import is_settled
from penstock.ingestion.here import QueryHere
from penstock.ingestion.job import Job
from penstock.ingestion.stage import LIVE_SINK, Stage
from penstock.ingestion.writing import open_ingest
from penstock.options import parse
from penstock.query import driver as drivers
from penstock.query.writing import QueryWriting
from penstock.sink import keeper
from penstock.sink.existing import STAGE
from penstock.storage import locate

if TYPE_CHECKING:
    from penstock.ingestion.planning import Planning
    from penstock.options import Options


class JobHere(Job):
    """A job that can be done without Spark if `may_run` says so."""

    def may_run(self) -> bool:
        """Tell whether this ingest can do without Spark now (see `here`). Called after `describe`; changes nothing."""
        places = self._output, locate(self._checkpoint.location)[0]
        if not all(storage.of_this_host for storage in places) or self._sink_options()["onPublish"]:
            return False
        if not Stage.of(self._stage).is_ours or self._planner() is None:
            return False
        numbers, query = self._checkpoint.numbers("offsets"), self._checkpoint.query_id()
        if not numbers or query is None or is_settled(self._checkpoint, self.sink(query), numbers[-1]):
            return True
        return not self._runs(query, self.sink(query).ledger.head().owner)

    def begin(self) -> QueryHere:
        """Prepare everything that `start` prepares, and return the query that runs in this process. Called after `may_run`."""
        self.prepare()
        self._note_schema()
        self._abandon_changed_plan()
        self._checkpoint.forget_unfinished()
        keeper.sweep()
        planner, options = self._planner(), self._sink_options()
        assert planner is not None  # noqa: S101 - as `may_run` has said
        writing = QueryWriting(
            partial(open_ingest, options), checkpoint=self._checkpoint.location, sink_id=options["sinkId"]
        )
        return QueryHere(self._checkpoint, planner, writing, options["sinkId"])

    def _runs(self, query: str, driver: str) -> bool:
        """Tell whether the driver of a batch in flight is another living process of this host."""
        return driver != drivers.owner(query, None) and drivers.lives(driver)

    def _planner(self) -> Planning | None:
        return self._input.planner_here(Stage.of(self._stage), self._checkpoint.location, self._tasks)

    def _sink_options(self) -> Options:
        """Return the sink's options as Spark would give them to its processes."""
        given = {**self._sink, STAGE: self._stage.text, "checkpointLocation": self._checkpoint.location}
        return parse(LIVE_SINK, given, what="sink")
