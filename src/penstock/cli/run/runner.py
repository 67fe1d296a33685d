"""One pipeline: a thread that runs its ingest by its schedule, retries failures, and ends when it is asked to.

A stop drains the pipeline: it waits for the batch under way, and interrupts the ingest between two batches. Correctness
does not depend on that, because the next start repeats an interrupted batch, once; but then its input need not be read
again. The wait is bounded: after it the ingest is interrupted wherever it is.

What is retried: everything that may be well later by itself. Not retried is what would fail the same way (a wrong
option, a schema that lost a column), what a person has to look at (damaged state, a checkpoint that disagrees with the
ledger), and `Fenced`: another driver runs this pipeline, and taking it back and forth would help nobody.
"""

from __future__ import annotations

import threading
from datetime import datetime
from typing import TYPE_CHECKING

from penstock import clock
from penstock.cli.run.status import Phase, Told
from penstock.clock import SECOND_NS
from penstock.errors import CheckpointMismatch, DamagedState, Fenced, NotThere, PenstockError, StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.cli.run.plan import Planned
    from penstock.cli.run.references import Secrets
    from penstock.ingestion.ingested import Ingested

    Ingest = Callable[[Planned, Callable[[Ingested], None]], Ingested]


class Stopped(KeyboardInterrupt):
    """The pipeline was asked to stop; `penstock.ingest` is interrupted with this."""


class Runner:
    """A pipeline that runs. `ingest` runs it once, or for ever if it watches."""

    def __init__(self, planned: Planned, ingest: Ingest, told: Told, secrets: Secrets) -> None:
        self.planned = planned
        self._ingest = ingest
        self._told = told
        self._secrets = secrets
        self._asked = threading.Event()
        self._until = float("inf")  # when a stop no longer waits
        self._before: Ingested | None = None  # the last report before the stop was seen
        self._batch: int | None = None  # the last batch when the stop was seen
        self._interrupted = False
        self._thread = threading.Thread(target=self._run, name=f"penstock-run-{planned.name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Have it end with the batch under way, or after `seconds` at the latest. May be repeated with fewer."""
        self._until = min(self._until, clock.monotonic() + seconds)
        self._asked.set()

    @property
    def asked(self) -> bool:
        """Whether it was asked to stop."""
        return self._asked.is_set()

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def join(self, seconds: float) -> bool:
        """Wait for its end; tell whether it has come."""
        self._thread.join(max(seconds, 0.0))
        return self.over

    def _run(self) -> None:
        while self._await_time():
            self._told.phase(Phase.STARTING)
            self._before, self._batch, self._interrupted = None, None, False
            try:
                self._ingest(self.planned, self._progress)
            except Stopped:
                break
            except PenstockError as error:
                if not self._try_again(error):
                    return
            except BaseException as error:  # noqa: BLE001 - whatever ends an ingest is a failure of that pipeline alone
                wrapped = PenstockError(f"{type(error).__name__}: {' '.join(str(error).split())}")
                if not self._try_again(wrapped):
                    return
            else:
                self._told.recovered()
                if self.planned.schedule.once:
                    self._told.phase(Phase.DONE)
                    return
        self._told.phase(Phase.STOPPED)

    def _try_again(self, error: PenstockError) -> bool:
        """Note a failure and wait; tell whether to go on: not if a stop was asked for, or the pipeline is given up."""
        failures = self._told.failed(error, self._secrets.masked(error.message))
        wait = None if is_final(error) else self.planned.retrying.wait(failures)
        if wait is None:
            self._told.phase(Phase.FAILED)
            return False
        self._told.phase(Phase.BACKING_OFF, next_ns=clock.now_ns() + round(wait * SECOND_NS))
        if self._asked.wait(wait):
            self._told.phase(Phase.STOPPED)
            return False
        self._told.retried()
        return True

    def _await_time(self) -> bool:
        """Wait until it is time to run; false if a stop was asked for."""
        schedule, status = self.planned.schedule, self._told.status
        if schedule.cron is not None and not status.failures:
            due_ns = next_ns(schedule.cron, schedule.zone, clock.now_ns())
            self._told.phase(Phase.WAITING, next_ns=due_ns)
            while (left_ns := due_ns - clock.now_ns()) > 0:
                # The clock may be set meanwhile, so a long wait is cut into pieces.
                if self._asked.wait(min(left_ns / SECOND_NS, 30.0)):
                    return False
        return not self._asked.is_set()

    def _progress(self, state: Ingested) -> None:
        if self._told.progress(state):
            self._told.recovered()
        if self._interrupted:  # by this call: another report may still come
            return
        if not self._asked.is_set():
            self._before = state
            self._told.phase(Phase.WAITING if state.waiting else Phase.RUNNING)
            return
        self._told.phase(Phase.DRAINING)
        if self._is_between(state) or clock.monotonic() >= self._until:
            self._interrupted = True
            raise Stopped

    def _is_between(self, state: Ingested) -> bool:
        """Tell whether no batch is under way, or one has ended since the stop. A report from before the stop proves neither."""
        if state is self._before:
            return False
        self._batch = state.batch if self._batch is None else self._batch
        return state.waiting or state.batch > self._batch


def is_final(error: PenstockError) -> bool:
    """Tell whether an error will not go away by itself; see the module."""
    if isinstance(error, UsageError):
        return not isinstance(error.__cause__, (StorageError, NotThere))  # the input may still come
    return isinstance(error, (Fenced, DamagedState, CheckpointMismatch))


def next_ns(cron: str, zone: str, now_ns: int) -> int:
    """Return the next time of a cron schedule after `now_ns`."""
    from cronsim import CronSim

    from penstock.formats.zones import rules

    here = datetime.fromtimestamp(now_ns / SECOND_NS, rules(zone))
    due = next(CronSim(cron, here))
    return round(due.timestamp()) * SECOND_NS
