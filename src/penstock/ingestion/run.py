"""One run of an ingest's query, in a separate thread, so that the caller who waits for it can be interrupted.

An ingest is a scope: however its call is left, its query has stopped, what was committed is published, and its keeper has ended.
Two failures determine how this is done:

Failure: *an answer that is taken for another's.*
  1. The caller waits for an answer of the JVM, and is interrupted: by Ctrl-C, a time-out of its own, any signal that raises.
  2. The answer comes, and nobody reads it. The next call on the connection takes it for its own answer, and so do all later
     calls.
  3. The call that stops the query fails in this way: the query runs on, or the session is unusable.
  Rule: a thread of the ingest, which nothing interrupts, makes all calls into the JVM. The caller's thread waits for it, reports,
  and asks it to end.

Failure: *a query without a handle.*
  1. The caller is interrupted while the query is started, which takes seconds.
  2. The query starts, and nobody can stop it.
  Rule: the thread that starts it checks whether it should end, before anything else.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock import clock, errors
from penstock.ingestion.failures import meaning
from penstock.ingestion.ingested import Ingested
from penstock.ingestion.job import Job
from penstock.ingestion.jobhere import JobHere, JobInSession, JobOfTasks

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession


JobT = TypeVar("JobT", bound=Job)
_POLL_SECONDS = 0.2
# While a watching query waits for input, because each look asks the JVM, the checkpoint and the ledger.
_IDLE_POLL_SECONDS = 1.0


class IngestRun(ABC, Generic[JobT]):
    """One run of an ingest's query, in a separate thread; see the module. `describe` makes the job, in that thread."""

    def __init__(self, describe: Callable[[], JobT]) -> None:
        self._describe = describe
        self._job: JobT | None = None
        self._query: tuple[str, str] | None = None  # once it is started: its id and the name of its driver
        self._thread: threading.Thread | None = None
        self._waiting = False  # for input
        self._ending = threading.Event()  # set when the run should end
        self._over = threading.Event()
        self._error: BaseException | None = None

    @abstractmethod
    def _await(self, job: JobT) -> None:
        """Start the query of the job, note its id and driver, and return when it is over; it ends when `_ending` is set."""

    def _target(self) -> Callable[[], object]:
        """Return the function that the thread runs."""
        return self._run

    def follow(self, progress: Callable[[Ingested], None] | None) -> None:
        """Start the run, report while it runs, and raise the error with which it ended."""
        self._thread = threading.Thread(target=self._target(), name="penstock-ingest", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._thread = None
            raise errors.unforeseen(error) from error
        state, known_until = None, 0.0
        while not self._over.wait(_POLL_SECONDS):
            if progress is None or self._query is None:
                continue
            idles = state is not None and state.waiting and self._waiting
            if state is None or not idles or clock.monotonic() >= known_until:
                state, known_until = self.state(), clock.monotonic() + _IDLE_POLL_SECONDS
            progress(state)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Have the run end, and wait for that. If the caller is interrupted here, the run ends all the same."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()

    def publish(self) -> None:
        """Publish what the query left open, if there is one."""
        if self._job is not None and self._query is not None:
            self._job.finish(*self._query)

    def state(self) -> Ingested:
        """Return the report of the ingest."""
        return Ingested(-1, 0, 0, 0, 0, 0, 0, 0, 0) if self._job is None else self._job.state(waiting=self._waiting)

    def _run_here(self, job: JobOfTasks) -> None:
        """Run a job whose `may_run` has said so."""
        query = job.begin()
        self._query = query.named()
        query.run(*self._query, self._ending)

    def _run(self) -> None:
        try:
            self._job = self._describe()
            if not self._ending.is_set():
                self._await(self._job)
        except BaseException as error:  # noqa: BLE001 - whatever it is, `follow` raises it
            self._error = error
        finally:
            self._over.set()


class SparkRun(IngestRun[JobInSession]):
    """A run in a session, which looks for new files at the interval `every` in seconds, or reads what is there.

    It is a query of Spark's unless the job can do without one (`JobInSession.may_run`).
    """

    def __init__(self, spark: SparkSession, describe: Callable[[], JobInSession], *, every: float | None) -> None:
        super().__init__(describe)
        self._spark = spark
        self._every = every

    def _target(self) -> Callable[[], object]:
        """Return the function with the caller's scheduler pool and tags."""
        from pyspark.util import inheritable_thread_target

        target: Callable[[], object] = inheritable_thread_target(self._spark)(self._run)
        return target

    def _await(self, job: JobInSession) -> None:
        """Run it, by a query if it needs one."""
        try:
            if self._every is None and job.may_run():
                self._run_here(job)
            else:
                self._run_query(job)
        except errors.PenstockError:
            raise
        except Exception as error:  # Spark may wrap an error in anything
            raise meaning(error, job.checkpoint, self._spark) from error

    def _run_query(self, job: JobInSession) -> None:
        """Start the query, and poll its state until it is over."""
        query = job.start(self._spark, every=self._every)
        try:
            self._query = job.named(query)
            while not self._ending.is_set() and not query.awaitTermination(_POLL_SECONDS):  # type: ignore[arg-type]  # - it takes fractions
                self._waiting = job.waits(query)
                if self._waiting and self._every is not None:
                    self._ending.wait(_IDLE_POLL_SECONDS - _POLL_SECONDS)
        finally:
            self._waiting = False
            query.stop()


class RunHere(IngestRun[JobHere]):
    """A run without Spark, in this process. Before it begins, `state` reports what earlier runs have done."""

    def __init__(self, job: JobHere) -> None:
        super().__init__(lambda: job)
        self._job = job

    def _await(self, job: JobHere) -> None:
        """Run it."""
        try:
            self._run_here(job)
        except errors.PenstockError:
            raise
        except Exception as error:  # an error of a library, or a fault of ours: reported in the same way as with Spark
            raise errors.unforeseen(error) from error
