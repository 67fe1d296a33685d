r"""The asynchronous operator: many calls in flight, one outcome a row.

**Idea.** A *slot* is a coroutine. The operator has up to `capacity` of them on one event loop, and each takes a row, makes
its calls one attempt after the other, waits between attempts, and brings the row to its outcome; then it takes the next
row. So the state machine of a row is not a table of flags that callbacks race to change: it is where its slot stands in
`Slots`, and what happens to a row next can only happen there. The machine:

    admitted -> running 1 -> (backing off n -> running n + 1)* -> done | failed
        \\___________\\_______________\\______________\\________________-> timed out

Everything happens on the loop's thread: rows come in by `feed`, time passes by the loop's own clock, outcomes leave
through `take`. Threads that complete calls and the thread that consumes outcomes only put a callback on the loop.

**One outcome.** `Settling.settle` is the only place where a row gets its outcome, and it takes only the first. What comes later
(an answer behind the time-out, a second completion) is counted and dropped.

**Time-outs.** Both limits are the same for all rows, so the order in which rows are admitted (attempts started) *is* the
order of their deadlines: a dictionary in order of insertion and one timer for its first entry serve any number of rows.
When the time of a row is over it gets its outcome at once, whatever its slot is doing, and the slot is cancelled. A
time-out and a retry cannot race: both would have to be the slot's next step, and the cancellation is.

**A slot is free when its call has really ended.** A call that was cancelled may still be on the wire, or may refuse to end
(`in_threads` cannot stop a thread). Its row has its outcome, but the slot stays taken; so what the service sees is never
more than `capacity` calls.

**Order.** Ordered: a queue of rows in order of admission; only its head is emitted. Per key: a row whose key is busy waits in
its key's queue, holding a slot, and is run when the one before it has ended.

**Ended before its rows.** `carry` ends the operator while calls are under way and gives what it still has, in order of
admission: what was never called, what was interrupted, what is finished behind a slow head. From then on every such row is
decided here, so that an answer that comes in the same turn of the loop is late: a row is emitted, or it is carried, never
both. The next operator is given them and admits them first, so order, keys and shared calls are as if it had gone on.

**The parts**, each a file: `intake` admits rows, `queues` has those that wait for another row, `slots` bring them to their outcome by
`calling` the function and `settling` what it answered, `deadlines` and `pace` say when, and `outlet` lets them out. `element` is
a row on its way; `state` is what they share; `outcome` has what leaves them. `Operator` ties them together.

**Rejected.** *A task a call*: costs as much as the rest of the operator together. *A timer a row*: 100,000 timers armed and
cancelled are 100,000 entries in a heap. *asyncio.Queue between stages*: two wake-ups a row. *The loop on the consumer's
thread*: calls would stand still, and time out, while the consumer waits for somebody else.
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

    `names` are the columns of an output. `on_error` is `fail` (the first failure ends the operator, at once), `column` (the
    failure is the row's outcome) or a function of (row, error) that gives its outputs. `key` and `share` map a row to a
    value that is hashable. `notify` is called when there are `enough` outcomes to take, when nothing goes on before some are
    taken, or when the operator has ended. Operators of one function share its `commons`. `carried` are admitted before any
    other row. A call's id is `identify` of its row; without that, `prefix` and the row's number.
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
        """Return what happened so far."""
        return self._state.counts

    @property
    def failure(self) -> RowOutcome | None:
        """Return what has ended the operator; None as long as it goes on."""
        return self._state.failure

    @property
    def backlog(self) -> int:
        """Return how many rows wait to be admitted."""
        return len(self._state.backlog)

    @property
    def done(self) -> bool:
        """Tell whether every row has its outcome, and no more will come."""
        return self._intake.ended and not self._state.backlog and self._outlet.empty

    @property
    def typical_bytes(self) -> int:
        """Return about what the outputs of one row weigh, lately."""
        return self._outlet.typical

    def take(self, most: int) -> list[RowOutcome]:
        """Return up to `most` outcomes that were emitted; one thread at a time."""
        return self._outlet.take(most)

    def abandon(self) -> None:
        """Begin nothing any more: the loop is of no use."""
        self._state.closed = True

    # -- the loop's thread -----------------------------------------------------------------------------------------

    def feed(self, rows: Iterable[Any]) -> None:
        """Append rows to what waits to be admitted."""
        self._state.backlog.extend(rows)
        self._slots.fill()

    def end(self) -> None:
        """Say that no rows follow."""
        self._intake.ended = True
        self._slots.fill()
        if self.done:
            self._state.notify()

    @property
    def latencies(self) -> dict[int, int]:
        """Return how many rows took how long, by the logarithm of their microseconds; see `milliseconds`."""
        return self._latencies.counts()

    async def wedged(self) -> bool:
        """Tell whether rows wait, and all that is under way are calls whose rows have their outcome, and which do not end."""
        flights = self._slots.flights()
        if not flights or self.done or self._intake.gathers or self._settling.fallbacks:
            return False
        return all(element.decided for flight in flights for element in flight)

    async def close(self) -> int:
        """Cancel what runs, wait a little for it to end, and leave nothing; return how many calls do not end."""
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
        """End before the rows do; return those that are left, in order of admission.

        An attempt that this interrupts counts as not made. What `timed_out` is being asked about is waited for.
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
