"""An ingest that plans and commits in this process if it needs no query of Spark; what runs is `here.QueryHere`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.ingestion.dry import is_settled
from penstock.ingestion.here import QueryHere
from penstock.ingestion.job import Job
from penstock.ingestion.sparktasks import SparkTasks
from penstock.ingestion.stage import LIVE_SINK, Stage
from penstock.ingestion.workers import Workers
from penstock.ingestion.writing import open_ingest
from penstock.options import parse
from penstock.processes import without_pandas
from penstock.query import driver as drivers
from penstock.query.writing import QueryWriting
from penstock.session.connect import is_remote
from penstock.session.heard import is_heard
from penstock.session.processors import cores
from penstock.sink import keeper
from penstock.sink.existing import STAGE
from penstock.storage import locate

if TYPE_CHECKING:
    import threading

    from pyspark.sql import SparkSession

    from penstock.ingestion.planning import Planning
    from penstock.ingestion.taskcalls import TaskCalls
    from penstock.options import Options


class JobOfTasks(Job, ABC):
    """A job that can be done without a query of Spark if `may_run` says so: planned and committed in this process."""

    @abstractmethod
    def _calls(self, ending: threading.Event) -> TaskCalls:
        """Return what calls the tasks until `ending` is set."""

    def may_run(self) -> bool:
        """Tell whether this ingest can do without a query of Spark now (see `here`). Called after `describe`; changes nothing."""
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
        return QueryHere(self._checkpoint, planner, writing, options["sinkId"], self._owner, self._calls)

    def _planner(self) -> Planning | None:
        return self._input.planner_here(Stage.of(self._stage), self._checkpoint.location, self._tasks)

    def _sink_options(self) -> Options:
        """Return the sink's options as Spark would give them to its processes."""
        given = {**self._sink, STAGE: self._stage.text, "checkpointLocation": self._checkpoint.location}
        return parse(LIVE_SINK, given, what="sink")


class JobHere(JobOfTasks):
    """A job without Spark: in processes of ours, for which this process is the driver."""

    def begin(self) -> QueryHere:
        """Do what `JobOfTasks.begin` does, in a process that imports no pandas for it."""
        without_pandas()
        return super().begin()

    def _calls(self, ending: threading.Event) -> TaskCalls:
        return Workers(cores(), ending, open_ingest.__module__)

    def _owner(self, query: str) -> str:
        return drivers.owner(query, None)

    def _runs(self, query: str, driver: str) -> bool:
        """Tell whether the driver of a batch in flight is another living process of this host."""
        return driver != self._owner(query) and drivers.lives(driver)


class JobInSession(JobOfTasks):
    """A job of a session that is up: by the executors of the session if `may_run` says so, otherwise by a query of it.

    Both have one name as drivers, that of the session's JVM: they follow each other without a takeover.
    """

    def __init__(self, spark: SparkSession, *given: Any) -> None:  # noqa: ANN401 - what `Job` takes
        super().__init__(*given)
        self._spark = spark

    def may_run(self) -> bool:
        """Tell whether nobody needs a query: no name is given for it, no listener waits for it, and none runs that would be refused."""
        if is_remote(self._spark) or self._sink_options()["queryName"] or is_heard(self._spark):
            return False
        query = self._checkpoint.query_id()
        if any(str(active.id) == query for active in self._spark.streams.active):
            return False
        return super().may_run()

    def _calls(self, ending: threading.Event) -> TaskCalls:
        return SparkTasks(self._spark, ending, f"penstock.ingest into {self._dst}")
