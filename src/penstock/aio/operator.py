r"""The asynchronous operator: many calls in flight, and one outcome for each row.

**Idea.** A *slot* is a coroutine. The operator has up to `capacity` slots on one event loop. Each takes a row, makes
its calls one attempt after the other, waits between attempts, and brings the row to its outcome; then it takes the next
row. So a row's state machine is not a table of flags that callbacks race to change. The state is the point that the
slot has reached in `Slots`, and the row's next step can only happen there. The machine:

    admitted -> running 1 -> (backing off n -> running n + 1)* -> done | failed
        \\___________\\_______________\\______________\\________________-> timed out

Everything happens on the loop's thread: rows come in by `feed`, time passes by the loop's own clock, outcomes leave by
`take`. Threads that complete calls, and the thread that consumes outcomes, only put a callback on the loop.

**One outcome.** `Settling.settle` is the only place where a row gets its outcome, and it accepts only the first. What
comes later (an answer after the time-out, a second completion) is counted and dropped.

**Time-outs.** Each limit is the same for all rows, so the order in which rows are admitted (attempts started) *is* the
order of their deadlines: a dictionary in order of insertion and one timer for its first entry serve any number of rows.
When a row's time is over, it gets its outcome at once, whatever its slot is doing, and the slot is cancelled. A
time-out and a retry cannot race: both would have to be the slot's next step, and the cancellation is.

**A slot is free when its call has really ended.** A cancelled call may still be on the wire, or may refuse to end
(`in_threads` cannot stop a thread). Its row has its outcome, but the slot stays taken. So the service never sees more
than `capacity` calls.

**Order.** Ordered: a queue of rows in order of admission; only its head is emitted. Per key: a row whose key is busy
waits in the queue of its key, holding a slot, and runs when the row before it has ended.

**Ended before its rows.** `carry` ends the operator while calls are under way, and returns what is left, in order of
admission: rows that were never called, rows whose call was interrupted, and rows that are finished but wait for a
slow head. From then on each of these rows counts as decided, so an answer that comes in the same turn of the loop is
late: a row is emitted or carried, never both. The next operator gets them and admits them first, so order, keys and
shared calls are as if the first operator had gone on.

**The parts**, each a file: `intake` admits rows, `queues` holds rows that wait for another row, `slots` bring rows to
their outcome by `calling` the function and `settling` its answer, `deadlines` and `pace` say when, and `outlet` emits
rows. `element` is a row inside the operator; `state` is what the parts share; `outcome` has what leaves the operator.
`Operator` ties them together.

**Rejected.** *A task per call*: it costs as much as the rest of the operator together. *A timer per row*: 100,000
timers, armed and cancelled, are 100,000 entries in a heap. *asyncio.Queue between stages*: two wake-ups per row. *The
loop on the consumer's thread*: calls would stall, and time out, while the consumer waits for something else.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from penstock.aio.calling import Calling
from penstock.aio.commons import Commons
from penstock.aio.deadlines import Deadlines
from penstock.aio.intake import Intake
from penstock.aio.latency import Latencies
from penstock.aio.outcome import Carried
from penstock.aio.outlet import Outlet
from penstock.aio.queues import Queues
from penstock.aio.settling import Settling
from penstock.aio.slots import GRACE_SECONDS, Slots
from penstock.aio.state import OperatorState

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from penstock.aio.element import Element
    from penstock.aio.function import Adapted
    from penstock.aio.outcome import Counts, RowOutcome
    from penstock.aio.settings import Settings


class Operator:
    """See the module. All methods but `take` are called on the loop's thread.

    `names` are the columns of an output. `on_error` is `fail` (the first failure ends the operator, at once), `column`
    (the failure is the row's outcome) or a function of (row, error) that returns its outputs. `key` and `share` map a
    row to a hashable value. `notify` is called when there are `enough` outcomes to take, when nothing can go on before
    some are taken, or when the operator has ended. Operators of one function share its `commons`. `carried` rows are
    admitted before any other row. A call's id is `identify` of its row or, without `identify`, `prefix` and the row's
    number.
    """

    def __init__(  # noqa: PLR0913 - each is one of the promises
        self,
        function: Adapted,
        names: tuple[str, ...],
        settings: Settings,
        *,
        notify: Callable[[], None],
        on_error: str | Callable[[Any, BaseException], Any] = "fail",
        key: Callable[[Any], Hashable] | None = None,
        share: Callable[[Any], Hashable] | None = None,
        prefix: str = "",
        identify: Callable[[Any], str] | None = None,
        carried: Iterable[Carried] = (),
        commons: Commons | None = None,
        enough: int = 1,
    ) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._state = state = OperatorState(notify)
        state.backlog.extend(carried)
        commons = commons or Commons(settings.wanted)
        self._latencies = Latencies()
        self._outlet = Outlet(state, loop, ordered=settings.ordered, enough=enough)
        self._deadlines = Deadlines(loop, settings.timeout, self._expired) if settings.timeout else None
        queues = Queues(state, key, share, commons.kept)
        self._intake = Intake(state, settings, loop, self._outlet, queues, self._deadlines)
        calling = Calling(
            state,
            loop,
            function,
            self._deadlines,
            batched=settings.batch_size > 1,
            prefix=prefix,
            identify=identify,
            budget=commons.budget,
        )
        self._settling = Settling(
            state,
            settings,
            loop,
            function,
            names,
            on_error,
            calling=calling,
            deadlines=self._deadlines,
            outlet=self._outlet,
            queues=queues,
            latencies=self._latencies,
            commons=commons,
        )
        self._slots = Slots(
            state,
            settings,
            loop,
            intake=self._intake,
            calling=calling,
            settling=self._settling,
            queues=queues,
            pace=commons.pace,
        )
        state.fill = self._slots.fill

    # -- any thread ------------------------------------------------------------------------------------------------

    @property
    def counts(self) -> Counts:
        """Return the counts so far."""
        return self._state.counts

    @property
    def failure(self) -> RowOutcome | None:
        """Return the outcome that has ended the operator; None while it goes on."""
        return self._state.failure

    @property
    def backlog(self) -> int:
        """Return how many rows wait to be admitted."""
        return len(self._state.backlog)

    @property
    def done(self) -> bool:
        """Tell whether every row has its outcome, and no more rows will come."""
        return self._intake.ended and not self._state.backlog and self._outlet.empty

    @property
    def typical_bytes(self) -> int:
        """Return the approximate size of the recent outputs of one row."""
        return self._outlet.typical

    def take(self, most: int) -> list[RowOutcome]:
        """Return up to `most` outcomes that were emitted; one thread at a time."""
        return self._outlet.take(most)

    def abandon(self) -> None:
        """Start nothing more: the loop is unusable."""
        self._state.closed = True

    # -- the loop's thread -----------------------------------------------------------------------------------------

    def feed(self, rows: Iterable[Any]) -> None:
        """Append rows to those that wait to be admitted."""
        self._state.backlog.extend(rows)
        self._slots.fill()

    def end(self) -> None:
        """Note that no rows follow."""
        self._intake.ended = True
        self._slots.fill()
        if self.done:
            self._state.notify()

    @property
    def latencies(self) -> dict[int, int]:
        """Return how many rows took how long, by bucket (logarithm of microseconds); `milliseconds` reads it."""
        return self._latencies.counts()

    async def wedged(self) -> bool:
        """Tell whether rows wait while every running call belongs to a row that has its outcome, and does not end."""
        flights = self._slots.flights()
        if not flights or self.done or self._intake.gathers or self._settling.fallbacks:
            return False
        return all(element.decided for flight in flights for element in flight)

    async def close(self) -> int:
        """Cancel what runs, and wait a little for it to end; return how many calls do not end."""
        self._state.closed = True
        self._state.backlog.clear()
        self._intake.close()
        if self._deadlines is not None:
            self._deadlines.close()
        tasks = self._slots.cancel() + list(self._settling.fallbacks)
        for task in self._settling.fallbacks:
            task.cancel()
        running = (await asyncio.wait(tasks, timeout=GRACE_SECONDS))[1] if tasks else set()
        return len(running)

    async def carry(self) -> list[Carried]:
        """End before the rows do; return the rows that are left, in order of admission.

        An attempt that this interrupts counts as not made. Running calls of `timed_out` are waited for.
        """
        while self._settling.fallbacks:
            await asyncio.wait(self._settling.fallbacks)
        elements = self._outlet.inside()
        left = [self._carried(element) for element in elements]
        left += [row if isinstance(row, Carried) else Carried(row) for row in self._state.backlog]
        for element in elements:
            element.decided = True
        self._state.counts.carried += len(left)
        await self.close()
        return left

    def _carried(self, element: Element) -> Carried:
        interrupted = not element.decided and element.slot is not None and element.slot.calling
        outcome = element if element.settled else None
        return Carried(element.row, element.attempts - interrupted, self._loop.time() - element.began, outcome)

    def _expired(self, element: Element) -> None:
        self._settling.expired(element)
