"""Calls the tasks of a batch as one job of Spark, in a session that is up: its executors, its retries, its pools and its user interface.

Failure: *a job that nobody waits for.*
  1. The caller of an ingest is interrupted while a job runs. The run ends, and with it the thread that waited for the job.
  2. The tasks go on, keep the cores of the session, and stage rows that count for nothing.
  Rule: the jobs of a run have a tag of their own, and are cancelled by it however the run ends.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock import unique
from penstock.ingestion.taskcalls import TaskCalls
from penstock.session.executor import on_executor

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

_DESCRIPTION = "spark.job.description"


class SparkTasks(TaskCalls):
    """Calls functions with tasks on Spark's executors; see the module. `about` describes the jobs, unless the caller's thread does."""

    def __init__(self, spark: SparkSession, ending: threading.Event, about: str) -> None:
        super().__init__(ending)
        self._spark = spark
        self._about = about
        self._tag = f"penstock-{unique.token()}"
        self._in_flight = False

    def expect(self, processes: int) -> None:
        """Do nothing: Spark has its processes."""

    def each(self, call: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], *, processes: int) -> list[Any]:  # noqa: ARG002 - little work is a task of Spark's, too
        """Return `call(*task)` of all tasks in order, from one job. A `Task` among a task's values gets the number of its attempt.

        Raises Spark's error if a task has failed as often as it may.
        """
        from pyspark.util import inheritable_thread_target

        def job() -> list[Any]:
            context = self._spark.sparkContext
            context.addJobTag(self._tag)
            if context.getLocalProperty(_DESCRIPTION) is None:
                context.setJobDescription(self._about)
            self._goes_on()  # a job that does not run yet cannot be cancelled
            return context.parallelize([(call, task) for task in tasks], len(tasks)).map(on_executor).collect()

        if not tasks:
            return []
        self._in_flight = True
        results: list[Any] = self.here(inheritable_thread_target(self._spark)(job))
        self._in_flight = False
        return results

    def end(self) -> None:
        """Cancel the job in flight, if there is one."""
        if self._in_flight:
            with suppress(Exception):  # the JVM may be gone, and the job with it; how the run ended says more
                self._spark.sparkContext.cancelJobsWithTag(self._tag)
