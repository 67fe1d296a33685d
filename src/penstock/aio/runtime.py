"""A runtime: a user's function in a process, with one event loop in its own thread and one instance, opened once for many batches.

**Idea.** Tasks of Spark come and go in a worker process; connections should stay. So a process keeps a `Runtime` for
each function of a query. The first task that needs it makes it (so it is made after the fork), and each task only
borrows it.

**Which function it is** is decided by a digest of everything that the function holds, and of what its calls share
(`commons`): `foreachBatch` may create the function again for every batch, and it is still the same one. A function that
holds something different each time is a different one each time. Of such functions with one name, in one run of a
query, only the last idle one stays open beside those at work (two operators of one class may take turns in a worker). A
new run of a query opens its own: whoever starts a query again has a reason, such as a password that has changed.

**Its end.** Nobody tells a worker that its query has ended, and Spark kills a worker that was idle for a minute,
without notice. So a runtime that was not used for `IDLE_SECONDS` closes itself. A query whose batches are further apart
opens it again, in a worker that it would have lost anyway. A worker that goes on to another query starts with another
runtime: it shares nothing with the first.

**The watchdog.** Everything, including time-outs, happens on the one loop, so a function that blocks it stops all
calls. A thread watches: if the loop does not answer for a second, the stack of what blocks it is logged; if it does not
answer for `BLOCKED_SECONDS`, the tasks that wait for it fail. They fail at once if a function has stopped the loop.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import math
import os
import sys
import threading
import traceback
from concurrent.futures import CancelledError as Cancelled
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from penstock import clock
from penstock.aio.commons import Commons, Wanted
from penstock.aio.interpreter import new_loop
from penstock.aio.outcome import described
from penstock.aio.slots import GRACE_SECONDS
from penstock.errors import CallFailed, without_credentials

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from types import FrameType

    from penstock.aio.function import Adapted, Context

IDLE_SECONDS = 50.0
BLOCKED_SECONDS = 60.0
OPEN_SECONDS = 300.0  # within which `open` must return
_REPORT_SECONDS = 1.0
_LOOK_SECONDS = 0.25
_log = logging.getLogger("penstock.aio")
_T = TypeVar("_T")

_NOTHING = Wanted()

_runtimes: dict[_Key, Runtime] = {}
_lock = threading.Lock()


class Owner(NamedTuple):
    """The owner of runtimes: a query, a run of it, and the name of a function."""

    query: str
    run: str
    function: str


class _Key(NamedTuple):
    process: int
    owner: Owner
    digest: str
    wanted: Wanted


class Runtime:
    """See the module. Only `borrowed` makes one."""

    def __init__(self, key: _Key, function: Adapted, context: Context) -> None:
        self.function = function
        self.commons = Commons(key.wanted)
        self.failure: CallFailed | None = None  # of the loop itself, which then is of no more use
        self._key = key
        self._context = context
        self._users = 0
        self._superseded = False
        self._wakers: set[Callable[[], None]] = set()
        self._used = threading.Event()
        self._opening = threading.Lock()
        self._opened = False
        self._closing = False
        self._forgotten = False
        self.loop = new_loop()
        self._thread = threading.Thread(target=self._run, name="penstock-loop", daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch, name="penstock-watchdog", daemon=True).start()

    # -- what tasks do ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the function, once; `CallFailed` if it cannot be opened."""
        with self._opening:
            if self._opened:
                return
            try:
                self.wait(self.function.open(self._context), OPEN_SECONDS)
            except CallFailed:
                self._forget()
                raise
            except BaseException as error:  # whatever the user's function raises
                self._forget()
                why = without_credentials(described(error))
                msg = f"the function could not be opened: {why}; mend it, or what it connects to, and start again"
                raise CallFailed(msg) from error
            self._opened = True

    def wait(self, work: Coroutine[Any, Any, _T], seconds: float | None = None) -> _T:
        """Return the result of the work on the loop; `CallFailed` if the loop has failed, or when the time is over."""
        if self.failure is not None:
            work.close()
            raise self.failure
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        over = clock.monotonic() + (math.inf if seconds is None else seconds)
        while True:
            try:
                return future.result(_LOOK_SECONDS)
            except Cancelled:  # noqa: PERF203 - a wait, not a loop
                self.check()  # raises if it was cancelled with the loop
                raise
            except NotYet:
                if future.done():
                    raise  # the work itself was cancelled
                self.check()
                if clock.monotonic() >= over:
                    future.cancel()
                    msg = f"{getattr(work, '__name__', work)}() of the function did not return within {seconds:g} s"
                    raise CallFailed(msg) from None

    def check(self) -> None:
        """Raise the loop's failure, if it has failed."""
        if self.failure is not None:
            raise self.failure

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Have `wake` called if the loop fails."""
        self._wakers.add(wake)
        try:
            yield
        finally:
            self._wakers.discard(wake)

    # -- the threads -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            if not self._closing:
                self._fail("the event loop has ended: the function stopped it; it belongs to all calls")
            with suppress(RuntimeError):
                for task in asyncio.all_tasks(self.loop):
                    task.cancel()
                self.loop.run_until_complete(asyncio.sleep(0))
                self.loop.close()

    def _fail(self, message: str) -> None:
        self.failure = CallFailed(message)
        self._forget()
        for wake in list(self._wakers):
            wake()

    def _forget(self) -> None:
        """Have the next task start with a new runtime."""
        with _lock:
            if _runtimes.get(self._key) is self:
                del _runtimes[self._key]
        self._forgotten = True
        self._used.set()

    def _watch(self) -> None:
        while not self._forgotten:
            is_due = not self._used.wait(IDLE_SECONDS) or self._superseded
            if is_due and self._idle():
                self.close()
                return
            if not self._answers():
                return
            clock.sleep(_LOOK_SECONDS)
        if not self._closing and self.failure is None:
            self.close()  # it could not be opened

    def _answers(self) -> bool:
        """Tell whether the loop goes on, possibly after a pause that is reported."""
        answered = threading.Event()
        with suppress(RuntimeError):  # it was closed meanwhile
            self.loop.call_soon_threadsafe(answered.set)
        return answered.wait(_REPORT_SECONDS) or self._goes_on(answered)

    def _idle(self) -> bool:
        """Tell whether nobody uses it; from then on nobody can."""
        with _lock:
            if self._users:
                return False
            if _runtimes.get(self._key) is self:
                del _runtimes[self._key]
            return True

    def supersede(self) -> None:
        """Have it closed as soon as nobody uses it. Called under the lock of all runtimes."""
        self._superseded = True
        self._used.set()

    def borrow(self) -> None:
        """Count a user. Called under the lock of all runtimes."""
        self._users += 1
        self._superseded = False
        self._used.set()

    def give_back(self) -> None:
        """Count one user less. Called under the lock of all runtimes."""
        self._users -= 1
        if not self._users:
            self._used.clear()

    @property
    def is_idle(self) -> bool:
        """Tell whether nobody uses it."""
        return not self._users

    def _goes_on(self, answered: threading.Event) -> bool:
        """Report what blocks the loop, and wait for the loop to go on; tell whether it did."""
        if self._closing or self.failure is not None:
            return False
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001 - documented for debuggers
        _log.warning(
            "the event loop is blocked for more than a second: no call continues and none times out; use in_threads for what "
            "blocks. It is in:\n%s",
            "".join(traceback.format_stack(frame)[-6:]) if frame else "(it has ended)\n",
        )
        if answered.wait(BLOCKED_SECONDS - _REPORT_SECONDS):
            _log.warning("the event loop continues")
            return True
        at = _place_of(frame) if frame else ""
        self._fail(
            f"the event loop did not answer for {BLOCKED_SECONDS:g} s: the function blocks it{at}; use in_threads for what blocks"
        )
        self._closing = True
        self.loop.call_soon_threadsafe(self.loop.stop)  # takes effect if it ever goes on
        return False

    def close(self) -> None:
        """Close the function, then what it left behind, then the loop. Errors are logged: nobody waits for them."""
        self._closing = True
        self._used.set()
        if self.failure is not None or not self._thread.is_alive():
            return
        try:
            asyncio.run_coroutine_threadsafe(self._shut(), self.loop).result(4 * GRACE_SECONDS)
        except Exception:  # noqa: BLE001 - the user's function may raise anything, and no task waits
            _log.exception("the function could not be closed")
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(GRACE_SECONDS)

    async def _shut(self) -> None:
        if self._opened:
            closing = asyncio.create_task(self._close_function())
            if not (await asyncio.wait([closing], timeout=2 * GRACE_SECONDS))[0]:
                _log.warning("close() of the function did not return within %g s", 2 * GRACE_SECONDS)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            _log.warning("the function left %d tasks behind; they were cancelled", len(left))
            await asyncio.wait(left, timeout=GRACE_SECONDS)
        await self.loop.shutdown_asyncgens()

    async def _close_function(self) -> None:
        """Close the function. If it raises `SystemExit`, that must not end the loop before the rest is done."""
        try:
            await self.function.close()
        except BaseException:  # noqa: BLE001 - the user's function may raise anything, and no task waits
            _log.exception("close() of the function failed")


def _place_of(frame: FrameType) -> str:
    """Return in words where a thread is."""
    last = traceback.extract_stack(frame)[-1]
    return f" in {last.name}, {last.filename}:{last.lineno}"


@contextmanager
def borrowed(
    owner: Owner, digest: str, function: Adapted, context: Context, wanted: Wanted = _NOTHING
) -> Iterator[Runtime]:
    """Yield this process's runtime of a function, opened; it is made from the first borrower's function and context."""
    key = _Key(os.getpid(), owner, digest, wanted)
    with _lock:
        runtime = _runtimes.pop(key, None) or Runtime(key, function, context)
        _let_go_of_idle(key.process, owner)
        _runtimes[key] = runtime  # the most recently used one is last
        runtime.borrow()
    try:
        runtime.open()
        yield runtime
    finally:
        with _lock:
            runtime.give_back()


def _let_go_of_idle(process: int, owner: Owner) -> None:
    """Release an owner's idle runtimes, except the one that was used last."""
    of_owner = [runtime for key, runtime in _runtimes.items() if key[:2] == (process, owner)]
    idle = [runtime for runtime in of_owner if runtime.is_idle]
    for runtime in idle[:-1]:
        runtime.supersede()


@atexit.register
def close_all() -> None:
    """Close every runtime of this process."""
    with _lock:
        mine = [runtime for key, runtime in _runtimes.items() if key.process == os.getpid()]
        _runtimes.clear()
    for runtime in mine:
        runtime.close()
