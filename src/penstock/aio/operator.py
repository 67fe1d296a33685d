r"""The asynchronous operator: many calls in flight, one outcome a row.

**Idea.** A *slot* is a coroutine. The operator has up to `capacity` of them on one event loop, and each takes a row, makes
its calls one attempt after the other, waits between attempts, and brings the row to its outcome; then it takes the next
row. So the state machine of a row is not a table of flags that callbacks race to change: it is where its slot stands in
`_serve`, and what happens to a row next can only happen there. The machine:

    admitted -> running 1 -> (backing off n -> running n + 1)* -> done | failed
        \\___________\\_______________\\______________\\________________-> timed out

Everything happens on the loop's thread: rows come in by `feed`, time passes by the loop's own clock, outcomes leave
through `emit`. Threads that complete calls and the thread that consumes outcomes only put a callback on the loop.

**One outcome.** `_settle` is the only place where a row gets its outcome, and it takes only the first. What comes later
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

**Rejected.** *A task a call*: costs as much as the rest of the operator together. *A timer a row*: 100,000 timers armed and
cancelled are 100,000 entries in a heap. *asyncio.Queue between stages*: two wake-ups a row. *The loop on the consumer's
thread*: calls would stand still, and time out, while the consumer waits for somebody else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from inspect import isawaitable, iscoroutine
from itertools import takewhile
from math import expm1, log1p
from sys import getsizeof
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.aio.function import Call, outputs_of
from penstock.errors import OptionError, without_credentials

if TYPE_CHECKING:
    from penstock.aio.function import Adapted
    from penstock.aio.retry import Retry

BYTES_MAX = 64 << 20  # of outputs that are finished and not taken, and of those that are expected
GRACE_SECONDS = 1.0  # that a cancelled attempt has to end before its row is given up
_LARGE = 64 << 10
_SAMPLE = 16  # small outputs are weighed one in so many
_STEPS = 8  # of the latencies' histogram: its buckets are an eighth of a factor of e apart,
_BUCKETS = 40 * _STEPS  # and end at thousands of years

TIMEOUT, ERROR, RESULT = "timeout", "error", "result"  # kinds of failure


@dataclass(frozen=True)
class Settings:
    """What the operator does, checked: `OptionError` names what is wrong. `rate` is calls a second, of this operator alone."""

    capacity: int = 100
    ordered: bool = True
    timeout: float | None = None
    attempt_timeout: float | None = None
    retry: Retry | None = None
    rate: float | None = None
    batch_size: int = 1
    batch_wait: float = 0.01
    bytes_max: int = BYTES_MAX
    drain: float | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        for name, at_least, example in (("capacity", 1, 100), ("batch_size", 1, 10)):
            found = getattr(self, name)
            if type(found) is not int or found < at_least:  # True is no number here
                msg = f"{name}={found!r}; expected {at_least} or more, {example} for example"
                raise OptionError(msg)
        for name in ("timeout", "attempt_timeout", "rate"):
            found = getattr(self, name)
            if found is not None and not (_is_number(found) and found > 0):
                msg = f"{name}={found!r}; expected a number above 0, or None for no limit"
                raise OptionError(msg)
        for name, seconds in (("batch_wait", 0.01), ("drain", 1.0)):
            found = getattr(self, name)
            if not (_is_number(found) and found >= 0) and (name, found) != ("drain", None):
                msg = f"{name}={found!r}; expected seconds, {seconds} for example"
                raise OptionError(msg)
        if self.drain is not None and self.timeout is None:
            msg = f"drain={self.drain:g} needs a timeout: without one a call that never ends is carried on for ever; add timeout=60.0"
            raise OptionError(msg)
        if self.drain is not None and self.timeout is not None and self.drain >= self.timeout:
            msg = f"drain={self.drain:g} is not below timeout={self.timeout:g}: no call would be left to carry over; leave drain out"
            raise OptionError(msg)
        if self.batch_size > self.capacity:
            msg = f"batch_size={self.batch_size} is more than capacity={self.capacity}: such a batch would never be full; raise capacity"
            raise OptionError(msg)


@dataclass(frozen=True)
class Failure:
    """Why a row has no outputs. `kind` is timeout, error (the function raised) or result (it returned what does not fit)."""

    kind: str
    message: str
    attempts: int
    elapsed_ms: int
    cause: BaseException | None = field(default=None, compare=False, repr=False)

    def told(self) -> dict[str, Any]:
        """Return what the user is told, as the column `_error` has it."""
        return {name: getattr(self, name) for name in ("kind", "message", "attempts", "elapsed_ms")}


@dataclass(slots=True)  # frozen it would cost a microsecond a row
class Outcome:
    """What became of row number `index`, after so many attempts: its outputs, or the failure. Nobody changes it."""

    index: int
    row: Any
    outputs: list[tuple[Any, ...]]
    failure: Failure | None = None
    attempts: int = 0


@dataclass(frozen=True)
class Carried:
    """A row that an operator ended before.

    `attempts` were made to their end, `age` seconds have passed since it was first admitted, and `outcome`, if there is one,
    only has to be emitted.
    """

    row: Any
    attempts: int = 0
    age: float = 0.0
    outcome: Outcome | None = None


@dataclass
class Counts:
    """What happened so far.

    `rows` does not count those that came `Carried`; `carried` are those that left so. `late`: completions behind an
    outcome; `shared`: rows that took another row's result; `failed`: rows without a result; `rejected`: those of them
    whose result is not one.
    """

    rows: int = 0
    calls: int = 0
    retries: int = 0
    timeouts: int = 0
    late: int = 0
    shared: int = 0
    failed: int = 0
    rejected: int = 0
    carried: int = 0


def milliseconds(latencies: Mapping[int, int], share: float) -> float | None:
    """Return what this share of the rows took at most, from an operator's `latencies`; exact to an eighth."""
    left = share * sum(latencies.values())
    for bucket in sorted(latencies):
        left -= latencies[bucket]
        if left <= 0:
            return float(round(expm1((bucket + 1) / _STEPS) / 1000, 3))
    return None


class Pace:
    """The turns of calls at so many a second: spread evenly, none saved up. Shared by what calls on one loop.

    Who is cancelled in the line has used no turn: else rows that time out there would take the turns of all that follow.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._next = 0.0
        self._line = asyncio.Lock()

    async def turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for the next turn."""
        async with self._line:
            now = loop.time()
            at = max(now, self._next)
            if at > now:
                await asyncio.sleep(at - now)
            self._next = at + 1 / self._rate


class _Element(Outcome):
    """A row on its way through the operator, and once `settled` its outcome.

    It holds its place until it is emitted and nothing of it is on the wire.
    """

    __slots__ = ("began", "decided", "holds", "key", "settled", "share", "slot")

    __eq__ = object.__eq__  # one of a kind
    __hash__ = object.__hash__

    def __init__(self, index: int, row: Any, began: float) -> None:  # noqa: ANN401 - the user's row
        self.index = index
        self.row = row
        self.failure = None
        self.attempts = 0
        self.began = began
        self.decided = False  # settled, or `timed_out` is making its outcome
        self.settled = False  # `outputs` are there
        self.holds = 2  # reasons: not ended, not emitted
        self.key: Hashable = None  # that it keeps others of waiting, not one that it waits for
        self.share: Hashable = None  # as `key`
        self.slot: _Slot | None = None  # while it runs


class _Slot:
    """One coroutine of the operator, and the rows that it brings to their outcome now: one, or a batch."""

    __slots__ = ("calling", "cancelled", "expired", "flight", "grace", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.flight: list[_Element] = []
        self.calling = False  # an attempt is under way; else it waits for the next one
        self.cancelled = False  # and not revived: a function may swallow that
        self.expired = False  # the running attempt
        self.grace: asyncio.TimerHandle | None = None  # that an expired one has

    def cancel(self) -> None:
        """Cancel what the slot waits for."""
        if self.task is not None:
            self.cancelled = True
            self.task.cancel()

    def revive(self) -> None:
        """Go on after a cancellation, as if there had been none: the next call may use `asyncio.timeout`."""
        self.cancelled = False
        while self.task is not None and getattr(self.task, "cancelling", int)():  # Python 3.10 does not count
            self.task.uncancel()  # type: ignore[attr-defined]  # as above


_T = TypeVar("_T", _Element, _Slot)


class _Deadlines(Generic[_T]):
    """Deadlines that all lie equally far behind their beginning, served by one timer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, expire: Callable[[_T], None]) -> None:
        self._loop = loop
        self.seconds = seconds
        self._expire: Callable[[_T], None] = expire
        self._due: dict[_T, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def arm(self, what: _T, began: float) -> None:
        """Count from then. No earlier than for the one before."""
        due = self._due[what] = began + self.seconds
        if self._timer is None:
            self._wind(due)

    def disarm(self, what: _T) -> None:
        """Forget it. The timer stays, and finds nothing to do."""
        self._due.pop(what, None)

    def of(self, what: _T) -> float | None:
        """Return when its time is over."""
        return self._due.get(what)

    def _ring(self) -> None:
        now, self._timer = self._loop.time(), None
        expired = list(takewhile(lambda item: item[1] <= now, self._due.items()))
        for what, _ in expired:
            del self._due[what]
        for what, _ in expired:
            self._expire(what)
        for due in self._due.values():
            self._wind(due)
            break

    def _wind(self, due: float) -> None:
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._ring)

    def close(self) -> None:
        """Leave no timer."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Operator:
    """See the module. All methods but `take` are called on the loop's thread.

    `names` are the columns of an output. `on_error` is `fail` (the first failure ends the operator, at once), `column` (the
    failure is the row's outcome) or a function of (row, error) that gives its outputs. `key` and `share` map a row to a
    value that is hashable. `notify` is called when there are `enough` outcomes to take, when nothing goes on before some are
    taken, or when the operator has ended. Operators that share a `pace` share its rate. `carried` are admitted before any
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
        pace: Pace | None = None,
        enough: int = 1,
    ) -> None:
        self.counts = Counts()
        self.failure: Outcome | None = None
        self._function = function
        self._names = names
        self._settings = settings
        self._notify = notify
        self._on_error = on_error
        self._key_of = key
        self._share_of = share
        self._prefix = prefix
        self._identify = identify
        self._pace = pace or (Pace(settings.rate) if settings.rate else None)
        self._enough = enough
        self._batched = settings.batch_size > 1
        self._queues = key is not None or share is not None
        self._loop = loop = asyncio.get_running_loop()
        self._rows = _Deadlines(loop, settings.timeout, self._row_expired) if settings.timeout else None
        self._attempts = (
            _Deadlines(loop, settings.attempt_timeout, self._attempt_expired) if settings.attempt_timeout else None
        )
        self._backlog: deque[Any] = deque(carried)
        self._admitted = 0
        self._input_ended = False
        self._closed = False
        self._held = 0
        self._left = 0  # rows without an outcome that was emitted
        self._order: deque[_Element] = deque()  # rows that are not emitted, if that is done in order,
        self._open: dict[int, _Element] = {}  # and if it is not
        self._out: deque[Outcome] = deque()
        self._keys: dict[Hashable, deque[_Element]] = {}
        self._shares: dict[Hashable, deque[_Element]] = {}
        self._ready: deque[list[_Element]] = deque()
        self._gathered: list[_Element] = []
        self._gather_timer: asyncio.TimerHandle | None = None
        self._slots: set[_Slot] = set()
        self._parked: deque[asyncio.Future[None]] = deque()
        self._fallbacks: set[asyncio.Task[None]] = set()
        self._latencies = [0] * _BUCKETS
        self._bytes = 0  # of outputs that were not taken
        self._typical = 0  # bytes of one row's outputs, lately
        self._notified = False

    # -- input and output ------------------------------------------------------------------------------------------

    def feed(self, rows: Iterable[Any]) -> None:
        """Append rows to what waits to be admitted."""
        self._backlog.extend(rows)
        self._fill()

    def end(self) -> None:
        """Say that no rows follow."""
        self._input_ended = True
        self._fill()
        if self.done:
            self._notify()

    @property
    def backlog(self) -> int:
        """Return how many rows wait to be admitted. Any thread."""
        return len(self._backlog)

    @property
    def done(self) -> bool:
        """Tell whether every row has its outcome, and no more will come. Any thread."""
        return self._input_ended and not self._backlog and not self._left

    @property
    def latencies(self) -> dict[int, int]:
        """Return how many rows took how long, by the logarithm of their microseconds; see `milliseconds`."""
        return {bucket: rows for bucket, rows in enumerate(self._latencies) if rows}

    @property
    def typical_bytes(self) -> int:
        """Return about what the outputs of one row weigh, lately. Any thread."""
        return self._typical

    async def wedged(self) -> bool:
        """Tell whether rows wait, and all that is under way are calls whose rows have their outcome, and which do not end."""
        running = [slot.flight for slot in self._slots if slot.flight]
        idle = self._gather_timer is None and not self._fallbacks
        return bool(running and idle and not self.done and all(one.decided for flight in running for one in flight))

    def take(self, most: int) -> list[Outcome]:
        """Return up to `most` outcomes that were emitted; any thread, but one at a time."""
        out = self._out
        taken = [out.popleft() for _ in range(min(len(out), most))]
        if taken:
            self._loop.call_soon_threadsafe(self._took, taken)
        return taken

    def _took(self, taken: list[Outcome]) -> None:
        self._bytes = max(self._bytes - self._typical * len(taken), 0) if self._out else 0
        self._notified = False
        self._notify_of_enough()
        self._fill()

    def abandon(self) -> None:
        """Begin nothing any more: the loop is of no use. Any thread."""
        self._closed = True

    async def close(self) -> int:
        """Cancel what runs, wait a little for it to end, and leave nothing; return how many calls do not end."""
        self._closed = True
        self._backlog.clear()
        if self._gather_timer is not None:
            self._gather_timer.cancel()
        if self._rows is not None:
            self._rows.close()
        if self._attempts is not None:
            self._attempts.close()
        for slot in self._slots:
            if slot.grace is not None:
                slot.grace.cancel()
        tasks = [slot.task for slot in self._slots if slot.task] + list(self._fallbacks)
        for task in tasks:
            task.cancel()
        running = (await asyncio.wait(tasks, timeout=GRACE_SECONDS))[1] if tasks else set()
        return len(running)

    async def carry(self) -> list[Carried]:
        """End before the rows do; return those that are left, in order of admission.

        An attempt that this interrupts counts as not made. What `timed_out` is being asked about is waited for.
        """
        while self._fallbacks:
            await asyncio.wait(self._fallbacks)
        elements = list(self._order or self._open.values())
        left = [self._carried(element) for element in elements]
        left += [item if isinstance(item, Carried) else Carried(item) for item in self._backlog]
        for element in elements:
            element.decided = True
        self.counts.carried += len(left)
        await self.close()
        return left

    def _carried(self, element: _Element) -> Carried:
        interrupted = not element.decided and element.slot is not None and element.slot.calling
        outcome = element if element.settled else None
        return Carried(element.row, element.attempts - interrupted, self._loop.time() - element.began, outcome)

    # -- slots -----------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Let as many slots go on as there may be something to do for."""
        if self._closed or self.failure is not None:
            return
        wanted = min(self._settings.capacity - self._held, len(self._backlog)) + len(self._ready)
        wanted += self._input_ended and bool(self._gathered)
        while wanted > 0 and self._parked:
            parked = self._parked.popleft()
            if not parked.done():
                parked.set_result(None)
                wanted -= 1
        while wanted > 0 and len(self._slots) < self._settings.capacity:
            slot = _Slot()
            self._slots.add(slot)
            slot.task = self._loop.create_task(self._serve(slot))
            slot.task.add_done_callback(self._broken)
            wanted -= 1

    async def _serve(self, slot: _Slot) -> None:
        """Be a slot: bring rows to their outcomes until the operator ends."""
        try:
            while not self._closed and self.failure is None:
                flight = self._next()
                if flight is None:
                    parked = self._loop.create_future()
                    self._parked.append(parked)
                    await parked
                    continue
                slot.flight = flight
                for element in flight:
                    element.slot = slot
                left = flight
                while left:
                    try:
                        if self._pace is not None:
                            await self._pace.turn(self._loop)
                        slot.calling = True
                        left = self._sorted(left, await self._attempt(slot, left))
                    except asyncio.CancelledError as error:
                        left = self._failed(left, self._cancelled(slot, error))
                    except BaseException as error:  # noqa: BLE001 - whatever the function raises is the row's failure
                        left = self._failed(left, error)
                    slot.calling = False
                    if left:
                        left = await self._paused(slot, left)
                self._freed(slot)
        finally:
            self._slots.discard(slot)

    def _freed(self, slot: _Slot) -> None:
        """Note that a slot has brought its rows to their outcomes, and nothing of them is on the wire."""
        if slot.cancelled:
            slot.revive()
        flight, slot.flight = slot.flight, []
        for element in flight:
            self._ended(element)

    def _broken(self, task: asyncio.Task[None]) -> None:
        """End with what a slot itself raised: a value of `key` or `share` that cannot be had, or a mistake of ours."""
        if not task.cancelled() and (error := task.exception()) is not None:
            failure = Failure(ERROR, _named(error), 0, 0, error)
            self.failure = self.failure or Outcome(-1, None, [], failure)
            self._notify()

    def _next(self) -> list[_Element] | None:
        """Return what a slot does next."""
        while self._ready:
            flight = [element for element in self._ready.popleft() if not element.decided]
            if flight:
                return flight
        if not self._batched:
            element = self._admit()
            return None if element is None else [element]
        size, gathered = self._settings.batch_size, self._gathered
        while len(gathered) < size and (element := self._admit()) is not None:
            gathered.append(element)
        if len(gathered) == size or (gathered and self._input_ended and not self._backlog):
            return self._flush()
        if gathered and self._gather_timer is None:
            self._gather_timer = self._loop.call_later(self._settings.batch_wait, self._waited)
        return None

    def _flush(self) -> list[_Element] | None:
        if self._gather_timer is not None:
            self._gather_timer.cancel()
            self._gather_timer = None
        gathered, self._gathered = self._gathered, []
        return [element for element in gathered if not element.decided] or None

    def _waited(self) -> None:
        flight = self._flush()
        if flight:
            self._ready.append(flight)
            self._fill()

    def _admit(self) -> _Element | None:
        """Take the next row that can be called now, if there is one and there is room."""
        settings = self._settings
        while self._backlog and self._held < settings.capacity and len(self._out) < settings.capacity:
            if self._bytes + self._held * self._typical > settings.bytes_max and (self._held or self._out):
                if self._out:
                    self._notify()
                return None
            element = _Element(self._admitted, self._backlog.popleft(), self._loop.time())
            self._admitted += 1
            self._held += 1
            self._left += 1
            if settings.ordered:
                self._order.append(element)
            else:
                self._open[element.index] = element
            if type(element.row) is not Carried:
                self.counts.rows += 1
            elif self._resumed(element, element.row):
                continue
            if self._rows is not None:
                self._rows.arm(element, element.began)
            if self._queues and self._queued(element):
                continue
            return element
        return None

    def _resumed(self, element: _Element, carried: Carried) -> bool:
        """Give a row its past; tell whether nothing is left to do but to emit it."""
        element.row = carried.row
        element.attempts = carried.attempts
        element.began -= carried.age
        if carried.outcome is None:
            return False
        element.attempts = carried.outcome.attempts
        element.outputs, element.failure = carried.outcome.outputs, carried.outcome.failure
        element.decided = element.settled = True
        element.holds = 1
        self._emit_in_order(element)
        return True

    def _queued(self, element: _Element) -> bool:
        """Tell whether the row waits for another one, of its key or with its values."""
        if self._share_of is not None:
            share = (self._share_of(element.row),)
            followers = self._shares.get(share)
            if followers is not None:
                followers.append(element)
                return True
            element.share = share
            self._shares[share] = deque()
        return self._queued_by_key(element)

    def _queued_by_key(self, element: _Element) -> bool:
        if self._key_of is None:
            return False
        key = (self._key_of(element.row),)
        queue = self._keys.get(key)
        if queue is not None:
            place = len(queue)
            while place and queue[place - 1].index > element.index:
                place -= 1  # it shared the call of another row till now, and others came
            queue.insert(place, element)
            return True
        element.key = key
        self._keys[key] = deque()
        return False

    # -- a row's way -----------------------------------------------------------------------------------------------

    async def _paused(self, slot: _Slot, flight: list[_Element]) -> list[_Element]:
        """Wait for the next attempt; return the rows that it is for."""
        retry = self._settings.retry
        assert retry is not None  # noqa: S101 - nothing comes again without it
        self.counts.retries += 1
        try:
            await asyncio.sleep(retry.pause(flight[0].attempts))
        except asyncio.CancelledError as error:
            self._cancelled(slot, error)
        return [element for element in flight if not element.decided]

    def _attempt(self, slot: _Slot, flight: list[_Element]) -> Awaitable[Any]:
        """Make one call; return what its result comes from."""
        self.counts.calls += 1
        for element in flight:
            element.attempts += 1
        made = self._batch_called(flight) if self._batched else self._called(flight[0])
        return made if self._attempts is None else self._limited(self._attempts, slot, made)

    def _called(self, element: _Element) -> Awaitable[Any]:
        """Call the function for a row; return what its result comes from."""
        function = self._function
        made: Awaitable[Any]
        if not function.takes_call:
            made = function.call(element.row)
        elif function.is_async:
            made = function.call(element.row, self._call(element))
        else:
            call = self._call(element)
            made = call.expect()
            _no_output(function.call(element.row, call))
        return made

    def _batch_called(self, flight: list[_Element]) -> Awaitable[Any]:
        """Call the function for a batch; return what its results come from."""
        function = self._function
        rows = [element.row for element in flight]
        made: Awaitable[Any]
        if not function.takes_call:
            made = function.call(rows)
        elif function.is_async:
            made = function.call(rows, [self._call(element) for element in flight])
        else:
            calls = [self._call(element) for element in flight]
            waiting = [call.expect() for call in calls]
            _no_output(function.call(rows, calls))
            made = asyncio.gather(*waiting, return_exceptions=True)
        return made

    async def _limited(self, limits: _Deadlines[_Slot], slot: _Slot, made: Awaitable[Any]) -> Any:  # noqa: ANN401 - the user's result
        """Wait for one call that has a limit of its own."""
        limits.arm(slot, self._loop.time())
        slot.expired = False
        try:
            return await made
        finally:
            limits.disarm(slot)
            if slot.grace is not None:
                slot.grace.cancel()
                slot.grace = None
                slot.revive()  # it may have swallowed the cancellation

    def _call(self, element: _Element) -> Call:
        deadline = None if self._rows is None else self._rows.of(element)
        id_ = self._identify(element.row) if self._identify else f"{self._prefix}{element.index}"
        return Call(id_, element.attempts, deadline, self._loop, self._late)

    def _late(self) -> None:
        self.counts.late += 1

    def _cancelled(self, slot: _Slot, error: BaseException) -> BaseException:
        """Return what a cancellation means for rows that are not decided; raise it again at the end of the operator."""
        if self._closed:
            raise error
        slot.revive()
        if slot.expired:
            return TimeoutError(f"an attempt took longer than attempt_timeout={self._settings.attempt_timeout:g} s")
        return RuntimeError("the call was cancelled, and not by a time-out")

    def _failed(self, flight: list[_Element], error: BaseException) -> list[_Element]:
        """Decide what a failed attempt means for its rows; return those that are called again."""
        return [element for element in flight if not element.decided and self._comes_again(element, error)]

    def _comes_again(self, element: _Element, error: BaseException) -> bool:
        retry = self._settings.retry
        try:
            if retry is not None and not isinstance(error, _Misfit) and retry.after_error(element.attempts, error):
                return True
        except Exception as own:  # noqa: BLE001 - `on` of the user; there is nobody else to ask
            error = own
        self._settle(element, [], error)
        return False

    def _sorted(self, flight: list[_Element], results: Any) -> list[_Element]:  # noqa: ANN401 - the user's
        """Give the rows their results; return those that are called again."""
        if not self._batched:
            return flight if self._again(flight[0], results) else []
        unordered = isinstance(results, (str, bytes, Mapping, AbstractSet))  # or no list of results at all
        if isinstance(results, Iterable) and not unordered:
            results = list(results)
        if not isinstance(results, list) or len(results) != len(flight):
            found = f"{len(results)} results" if isinstance(results, list) else f"a {type(results).__name__}"
            misfit = _Misfit(
                f"the function returned {found} for {len(flight)} rows; expected a result for each, in order"
            )
            results = [misfit] * len(flight)
        return [element for element, result in zip(flight, results, strict=True) if self._again(element, result)]

    def _again(self, element: _Element, result: Any) -> bool:  # noqa: ANN401 - as above
        """Give the row its result; tell whether it is called again instead."""
        if element.decided:
            self.counts.late += 1
            return False
        if isinstance(result, BaseException):  # of a batch: this row's own
            return self._comes_again(element, result)
        try:
            outputs = outputs_of(result, self._names)
        except Exception as error:  # noqa: BLE001 - also what an iterator of the user's raises
            return self._comes_again(element, _Misfit(str(error)))
        retry = self._settings.retry
        try:
            if retry is not None and retry.after_result(element.attempts, outputs):
                return True
        except Exception as own:  # noqa: BLE001 - `on_result` of the user; there is nobody else to ask
            self._settle(element, [], own)
        else:
            self._settle(element, outputs, None)
        return False

    # -- time-outs -------------------------------------------------------------------------------------------------

    def _row_expired(self, element: _Element) -> None:
        """Decide the row; its call is cancelled when it has no other row to go on for."""
        self.counts.timeouts += 1
        element.decided = True
        error = TimeoutError(f"no outcome within timeout={self._settings.timeout:g} s")
        if self._function.timed_out is None:
            self._outcome(element, [], error)
        else:
            task = self._loop.create_task(self._fall_back(element, error))
            self._fallbacks.add(task)
            task.add_done_callback(self._fallbacks.discard)
        slot = element.slot
        if slot is None:
            self._ended(element)  # it was waiting for its turn
        elif all(other.decided for other in slot.flight):
            slot.cancel()

    async def _fall_back(self, element: _Element, error: BaseException) -> None:
        """Let the function say what a row that timed out becomes; it has as long again. Never another attempt."""
        assert self._function.timed_out is not None  # noqa: S101 - asked by the caller
        outputs: list[tuple[Any, ...]] = []
        failure: BaseException | None = None
        try:
            result = self._function.timed_out(element.row, self._call(element))
            if isawaitable(result):
                result = await asyncio.wait_for(result, self._settings.timeout)
            outputs = outputs_of(result, self._names)
        except asyncio.TimeoutError:
            failure = error
        except BaseException as own:  # whatever it raises is the row's failure, a cancellation of its own making too
            if self._closed:
                raise
            failure = own
        self._outcome(element, outputs, failure, own=True)

    def _attempt_expired(self, slot: _Slot) -> None:
        """Cancel the attempt; if it does not end soon, its rows fail, and the slot stays with it until it does."""
        slot.expired = True
        slot.cancel()
        slot.grace = self._loop.call_later(GRACE_SECONDS, self._give_up, slot)

    def _give_up(self, slot: _Slot) -> None:
        for element in slot.flight:
            if not element.decided:
                limit = f"attempt_timeout={self._settings.attempt_timeout:g} s"
                self._settle(
                    element,
                    [],
                    TimeoutError(f"an attempt took longer than {limit}, and does not end when it is cancelled"),
                )

    # -- outcomes --------------------------------------------------------------------------------------------------

    def _settle(self, element: _Element, outputs: list[tuple[Any, ...]], error: BaseException | None) -> None:
        """Decide the row; the first decision counts."""
        if element.decided:
            self.counts.late += 1
            return
        element.decided = True
        if self._rows is not None:
            self._rows.disarm(element)
        self._outcome(element, outputs, error)

    def _outcome(
        self, element: _Element, outputs: list[tuple[Any, ...]], error: BaseException | None, *, own: bool = False
    ) -> None:
        """Give a decided row its outcome, and emit what is in order by now. What is its `own` is not shared."""
        elapsed = self._loop.time() - element.began
        self._latencies[int(_STEPS * log1p(elapsed * 1e6))] += 1
        if error is not None:
            outputs, element.failure = self._answer(element, error, elapsed)
        element.outputs = outputs
        element.settled = True
        if element.failure is not None and self._on_error == "fail":
            self.failure = self.failure or element
            self._notify()
        self._emit_in_order(element)
        if element.share is not None:
            self._pass_on(element, outputs, ok=error is None and not own)

    def _answer(
        self, element: _Element, error: BaseException, elapsed: float
    ) -> tuple[list[tuple[Any, ...]], Failure | None]:
        """Return what a failed row becomes, by `on_error`."""
        self.counts.failed += 1
        kind = RESULT if isinstance(error, _Misfit) else TIMEOUT if isinstance(error, TimeoutError) else ERROR
        self.counts.rejected += kind == RESULT
        message = _said(error) if kind == RESULT else _named(error)
        if callable(self._on_error):
            try:
                return outputs_of(self._on_error(element.row, error), self._names), None
            except BaseException as own:  # noqa: BLE001 - the user's function; there is nobody left to ask
                self._on_error = "fail"
                message = f"on_error failed: {_named(own)}; it was asked about: {message}"
        return [], Failure(kind, without_credentials(message), element.attempts, round(elapsed * 1000), error)

    def _pass_on(self, element: _Element, outputs: list[tuple[Any, ...]], *, ok: bool) -> None:
        """Give the rows that waited for this one its outputs; after a failure the next of them is called itself."""
        followers = self._shares.pop(element.share, None)
        while followers:
            follower = followers.popleft()
            if follower.decided:
                continue
            if ok:
                self.counts.shared += 1
                self._settle(follower, list(outputs), None)
                self._ended(follower)
                continue
            follower.share = element.share
            self._shares[follower.share] = followers
            if not self._queued_by_key(follower):
                self._ready.append([follower])
                self._fill()
            return

    def _emit_in_order(self, element: _Element) -> None:
        """Emit what may be, now that this row has its outcome."""
        if not self._settings.ordered:
            del self._open[element.index]
            self._emit(element)
            return
        order = self._order
        while order and order[0].settled:
            self._emit(order.popleft())

    def _emit(self, element: _Element) -> None:
        """Let a settled row out."""
        if self._typical > _LARGE or not element.index % _SAMPLE:
            weight = sum(getsizeof(value) for output in element.outputs for value in output)
            self._typical = max(weight, self._typical * 7 // 8)
        self._bytes += self._typical
        self._left -= 1
        self._out.append(element)
        element.holds -= 1
        if not element.holds:
            self._let_go()
        if not self._notified:
            self._notify_of_enough()

    def _ended(self, element: _Element) -> None:
        """Note that nothing of the row is on the wire any more; the next one of its key may go."""
        element.slot = None
        element.holds -= 1
        if not element.holds:
            self._let_go()
        if element.key is None:
            return
        queue = self._keys[element.key]
        while queue:
            following = queue.popleft()
            if not following.decided:
                following.key = element.key
                self._ready.append([following])
                self._fill()
                return
        del self._keys[element.key]

    def _let_go(self) -> None:
        """Give a row's place free."""
        self._held -= 1
        if self._parked and (self._backlog or self._ready):
            self._fill()

    def _notify_of_enough(self) -> None:
        """Notify once, at once: the loop may have a thousand rows to bring to their outcomes before its next turn."""
        if self._out and (len(self._out) >= self._enough or not self._left):
            self._notified = True  # until some are taken
            self._notify()


def _no_output(returned: Any) -> None:  # noqa: ANN401 - the user's
    """Refuse what a plain function returns in place of completing its call: nobody would ever complete that."""
    if isinstance(returned, (dict, tuple, list, Mapping)) or iscoroutine(returned):
        if iscoroutine(returned):
            returned.close()
        msg = (
            f"the function is no `async def` and returned a {type(returned).__name__}; make it one, or complete `call`"
        )
        raise TypeError(msg)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {_said(error)}"


def _said(error: BaseException) -> str:
    """Return an error's message, whatever that is: it goes into a column."""
    try:
        return str(error).encode(errors="backslashreplace").decode()
    except Exception as own:  # noqa: BLE001 - the user's class
        return f"(its message cannot be had: {type(own).__name__})"


def _is_number(found: object) -> bool:
    return isinstance(found, (int, float)) and not isinstance(found, bool)


class _Misfit(Exception):
    """A result that is not what the schema says; the same again would not help."""
