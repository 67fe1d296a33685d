"""The status of a pipeline, seen from outside: its phase, its counts, and its last failure. Any thread may read it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from penstock import clock
from penstock.errors import Fenced, PenstockError

if TYPE_CHECKING:
    from penstock.ingestion.ingested import Ingested


class Phase(str, Enum):
    """What a pipeline does."""

    STARTING = "starting"  # its query is being started
    RUNNING = "running"  # a batch is under way, or is being planned
    WAITING = "waiting"  # for input, or for its time
    BACKING_OFF = "backing off"  # it has failed, and will be tried again
    DRAINING = "draining"  # it was asked to stop, and ends the batch under way
    STOPPED = "stopped"  # it was asked to stop, and has
    DONE = "done"  # it ran once, and took all there was
    FAILED = "failed"  # it was given up; a reload or a new start tries again

    @property
    def over(self) -> bool:
        """Whether nothing of it runs any more."""
        return self in {Phase.STOPPED, Phase.DONE, Phase.FAILED}


@dataclass(frozen=True)
class PipelineStatus:
    """A pipeline at one moment; times are in nanoseconds since the epoch, 0 for never.

    `failures` counts those in a row, `retries` and `fenced` all since this command started; `ready`: it has looked at
    its input once.
    """

    name: str
    phase: Phase = Phase.STARTING
    since_ns: int = 0
    state: Ingested | None = None
    batch_ns: int = 0
    failures: int = 0
    retries: int = 0
    fenced: int = 0
    error: str | None = None
    error_code: str | None = None
    next_ns: int = 0
    ready: bool = False

    @property
    def facts(self) -> dict[str, object]:
        """Return the status as it is printed in JSON."""
        done = self.state
        return {
            "pipeline": self.name,
            "phase": self.phase.value,
            "query": done.query if done else "",
            "batch": done.batch if done else -1,
            "rows": done.rows if done else 0,
            "left_files": done.left_files if done else 0,
            "failures": self.failures,
            "error": self.error,
            "error_code": self.error_code,
        }


class Watcher(Protocol):
    """Gets what pipelines do; called in the thread of the pipeline, so it must be quick, and not raise."""

    def changed(self, before: PipelineStatus, status: PipelineStatus) -> None:
        """Take in that something about a pipeline has changed; called once for a new one, too, with the same status twice."""

    def gone(self, name: str) -> None:
        """Take in that a reload has removed a pipeline."""


@dataclass
class Told:
    """The status of one pipeline, and the watchers that get each change of it."""

    watchers: tuple[Watcher, ...]
    status: PipelineStatus
    started: Ingested | None = field(default=None)

    def phase(self, phase: Phase, *, next_ns: int = 0) -> None:
        """Enter a phase, if it is a different one."""
        if phase != self.status.phase or next_ns != self.status.next_ns:
            self._set(replace(self.status, phase=phase, since_ns=clock.now_ns(), next_ns=next_ns))

    def progress(self, state: Ingested) -> bool:
        """Take in how far the ingest is; tell whether a batch was committed since the last time."""
        before = self.status.state
        moved = before is not None and before.query == state.query and state.batch > before.batch
        batch_ns = clock.now_ns() if moved else self.status.batch_ns
        if before != state:
            self._set(replace(self.status, state=state, batch_ns=batch_ns, ready=True))
        return moved

    def recovered(self) -> None:
        """Note that the pipeline works again."""
        if self.status.failures:
            self._set(replace(self.status, failures=0, error=None, error_code=None))

    def failed(self, error: PenstockError, message: str) -> int:
        """Note a failure; return how many there were in a row."""
        status = self.status
        failures, fenced = status.failures + 1, status.fenced + isinstance(error, Fenced)
        self._set(replace(status, failures=failures, fenced=fenced, error=message, error_code=error.code))
        return failures

    def retried(self) -> None:
        """Note that it is tried again."""
        self._set(replace(self.status, retries=self.status.retries + 1))

    def _set(self, status: PipelineStatus) -> None:
        before, self.status = self.status, status
        for watcher in self.watchers:
            watcher.changed(before, status)
