"""A task's rows through the operator: Arrow batches in, Arrow batches out, calls under way in between.

Only the thread that got the input reads it and yields output; the calls go on, on the runtime's loop, whatever that
thread waits for. Input is read just far enough ahead that no slot waits for it. Output is yielded when there is a fair
amount, and at the latest after `EMIT_SECONDS`, while other calls still run: memory stays bounded, and the consumer sees
that the task is alive.

With `drain`, once every row of the input is admitted, calls under way have that long to end. Everything that is
finished is yielded as output; rows that have not ended then go to whoever keeps them for the next batch.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock import clock
from penstock.aio.function import Adapted, Context
from penstock.aio.interpreter import tuned
from penstock.aio.operator import Operator
from penstock.aio.outcome import ERROR, Carried, Failure, RowOutcome
from penstock.aio.rows import Columns, Shape, Unplaced, values_of
from penstock.aio.runtime import Owner, Runtime, borrowed
from penstock.aio.slots import GRACE_SECONDS
from penstock.errors import CallFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    import pyarrow as pa

    from penstock.aio.settings import Settings

EMIT_SECONDS = 1.0
_LOOK_SECONDS = 0.05  # for which outcomes may wait that are too few for a notification
_EMIT_ROWS = 4096
_EMIT_BYTES = 8 << 20
_AHEAD_BYTES = 64 << 20  # of waiting input, unless a single batch is larger
_SILENT_SECONDS = 60.0
_log = logging.getLogger("penstock.aio")


@dataclass(frozen=True)
class Plan:
    """Everything that a task must know about its calls: the same for every task of a query. `name` distinguishes functions."""

    name: str
    function: Adapted
    settings: Settings
    shape: Shape
    on_error: Any
    key: tuple[str, ...] = ()
    share: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """A task's position: its query, its partition, the prefix of its calls' ids, and the run of the query, if it has one."""

    query: str
    partition: int
    prefix: str
    run: str = ""


@dataclass(frozen=True)
class Carrying:
    """A task's links to the batches before and after it: which rows it takes over, and who gets the rows that it leaves.

    `columns` makes rows of the input, `identify` returns the ids of their calls. Once all rows are admitted, they have
    `drain` seconds to end; `leave` gets those that have not ended, after the last output was yielded.
    """

    columns: Callable[[pa.RecordBatch], Columns]
    identify: Callable[[Any], str]
    earlier: Sequence[Carried]
    leave: Callable[[list[Carried]], None]
    drain: float


def run(
    plan: Plan,
    place: Place,
    batches: Iterator[pa.RecordBatch],
    *,
    carrying: Carrying | None = None,
    idle: Callable[[], None] = lambda: None,
    ended: Callable[[Operator], None] = lambda _: None,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the output of all rows of `batches`, as `plan` says; `CallFailed` names the row that ended the task.

    `idle` is called before it waits, when everything yielded so far has been taken. `ended` gets the operator, for its
    counts, even after a failure. If it is closed early, or fails, only calls that refuse to be cancelled stay under
    way; and with `carrying` it leaves no rows.
    """
    context = Context(place.query, place.partition)
    owner = Owner(place.query, place.run, plan.function.name)
    with (
        borrowed(owner, plan.name, plan.function, context, plan.settings.wanted) as runtime,
        tuned(plan.settings.capacity),
    ):
        task = _Task(plan, place, batches, runtime, carrying)
        try:
            with runtime.waking(task.abandon):
                yield from task.outputs(idle)
        finally:
            task.close()
            ended(task.operator)


class _Task:
    """One call of `run`."""

    def __init__(
        self,
        plan: Plan,
        place: Place,
        batches: Iterator[pa.RecordBatch],
        runtime: Runtime,
        carrying: Carrying | None,
    ) -> None:
        self.woken = threading.Event()
        self._plan = plan
        self._place = place
        self._batches = batches
        self._runtime = runtime
        self._carrying = carrying
        self._drained_at: float | None = None  # when calls under way have had their time
        self._fed = 0
        self._ended = False
        self._waiting: deque[tuple[int, int]] = deque()  # (rows fed by then, bytes) of input that may still wait
        self._kept: list[RowOutcome] = []
        self._given = self._silent_since = clock.monotonic()
        self.operator = runtime.wait(self._operator())

    async def _operator(self) -> Operator:
        plan = self._plan
        return Operator(
            self._runtime.function,
            tuple(plan.shape.schema.names),
            plan.settings,
            notify=self.woken.set,
            on_error=plan.on_error,
            key=values_of(plan.key),
            share=values_of(plan.share),
            prefix=self._place.prefix,
            identify=self._carrying.identify if self._carrying else None,
            carried=self._carrying.earlier if self._carrying else (),
            commons=self._runtime.commons,
            enough=max(plan.settings.capacity // 4, 1),
        )

    def outputs(self, idle: Callable[[], None]) -> Iterator[pa.RecordBatch]:
        """Yield the output, in batches of a reasonable size."""
        over = False
        while not over:
            taken, over = self._take()
            if not over and self._is_drained():
                yield from self._leave(self._runtime.wait(self.operator.carry()))
                return
            if over or self._is_due():
                yield from self._flush()
                idle()
            if taken:
                self._silent_since = clock.monotonic()
            elif not over:
                self._await_outcomes()

    def _take(self) -> tuple[int, bool]:
        """Read as much as there is room for, and keep what was emitted; return how many rows that were, and whether they were the last."""
        try:
            self._feed()
            done = self.operator.done  # read before outcomes are taken, or the last ones would be left
            taken = self.operator.take(self._fair())
        except RuntimeError:
            self._runtime.check()  # raises if the loop is closed
            raise
        self._kept += taken
        self._raise_failure()
        self._runtime.check()
        return len(taken), done and not taken

    def _await_outcomes(self) -> None:
        """Wait a moment for calls to end; log it if none has ended for long, `CallFailed` if none can."""
        now = clock.monotonic()
        self.woken.wait(_LOOK_SECONDS)
        self.woken.clear()
        if now > self._silent_since + _SILENT_SECONDS:
            self._silent_since = now
            self._raise_wedged()
            _log.warning(
                "partition %d: no call has ended for %g s; is there a `timeout`?",
                self._place.partition,
                _SILENT_SECONDS,
            )

    def _is_drained(self) -> bool:
        """Tell whether all input is admitted, and calls under way have had their time."""
        if self._carrying is None or not self._ended:
            return False
        if self._drained_at is None:
            if self.operator.backlog or self.operator.counts.rows < self._fed:
                return False
            self._drained_at = clock.monotonic() + self._carrying.drain
        return clock.monotonic() >= self._drained_at

    def _leave(self, left: list[Carried]) -> Iterator[pa.RecordBatch]:
        """Yield what is finished as output, and give the rest to whoever keeps it."""
        assert self._carrying is not None  # noqa: S101 - asked by the caller
        while taken := self.operator.take(self._fair()):
            self._kept += taken
            yield from self._flush()
        yield from self._flush()
        self._raise_failure()
        self._carrying.leave([self._fitting(carried) for carried in left])

    def _fitting(self, carried: Carried) -> Carried:
        """Return a row that is left, with an outcome that fits the output."""
        if carried.outcome is None:
            return carried
        outcome = self._plan.shape.checked(carried.outcome, self._plan.on_error)
        if outcome.failure and self._plan.on_error != "column":
            raise self._failed(outcome)
        return replace(carried, outcome=outcome)

    def _raise_wedged(self) -> None:
        if self._runtime.wait(self.operator.wedged()):
            msg = (
                f"partition {self._place.partition}: rows wait, and every place is held by a call whose time is over and which "
                f"has not ended for {_SILENT_SECONDS:g} s: a thread cannot be stopped; give its client a time-out of its own"
            )
            raise CallFailed(msg)

    def _raise_failure(self) -> None:
        if self.operator.failure is not None:
            raise self._failed(self.operator.failure)

    def _feed(self) -> None:
        """Read as much input as the slots will soon need."""
        admitted = self.operator.counts.rows
        while self._waiting and self._waiting[0][0] <= admitted:
            self._waiting.popleft()
        few = 2 * self._plan.settings.capacity
        while not self._ended and self._fed - admitted < few and sum(size for _, size in self._waiting) < _AHEAD_BYTES:
            self._feed_next()

    def _feed_next(self) -> None:
        """Give the operator the next batch of the input, or note that there is none."""
        batch = next(self._batches, None)
        if batch is None:
            self._ended = True
            self._runtime.loop.call_soon_threadsafe(self.operator.end)
        elif batch.num_rows:
            self._fed += batch.num_rows
            self._waiting.append((self._fed, batch.nbytes))
            columns = self._carrying.columns if self._carrying else Columns
            self._runtime.loop.call_soon_threadsafe(self.operator.feed, columns(batch).rows())

    def _fair(self) -> int:
        """Return how many outcomes to take: one batch of them; if they are large, no more than may be in memory twice."""
        most = self._plan.settings.capacity + _EMIT_ROWS
        return max(min(_EMIT_BYTES // max(self.operator.typical_bytes, 1), most), 1)

    def _is_due(self) -> bool:
        if not self._kept:
            return False
        large = len(self._kept) * self.operator.typical_bytes >= _EMIT_BYTES
        return large or len(self._kept) >= _EMIT_ROWS or clock.monotonic() >= self._given + EMIT_SECONDS

    def _flush(self) -> list[pa.RecordBatch]:
        self._given = clock.monotonic()
        kept, self._kept = self._kept, []
        try:
            return self._plan.shape.batches(kept, self._plan.on_error)
        except Unplaced as error:
            raise self._failed(error.outcome) from None

    def _failed(self, outcome: RowOutcome) -> CallFailed:
        """Return the error that ends the task because of this outcome."""
        failure = outcome.failure or Failure(ERROR, "no reason is known", 0, 0)
        where = f"partition {self._place.partition}"
        if outcome.index >= 0:
            call = self._carrying.identify(outcome.row) if self._carrying else f"{self._place.prefix}{outcome.index}"
            noun = "attempt" if failure.attempts == 1 else "attempts"
            attempts = f"(call {call}, {failure.attempts} {noun}, {failure.elapsed_ms} ms)"
            where = f"row {outcome.index} of {where} {attempts}"
        message = " ".join(failure.message.split())
        error = CallFailed(f"{where}: {message}; on_error='column' reports such rows instead of failing")
        error.__cause__ = failure.cause
        return error

    def abandon(self) -> None:
        """Wake up because the loop has failed."""
        self.operator.abandon()
        self.woken.set()

    def close(self) -> None:
        """End everything that runs."""
        try:
            stuck = self._runtime.wait(self.operator.close(), 4 * GRACE_SECONDS)
        except CallFailed:
            return  # the loop is gone or blocked; that is reported elsewhere
        if stuck:
            _log.warning("partition %d: %d calls do not end when they are cancelled", self._place.partition, stuck)
