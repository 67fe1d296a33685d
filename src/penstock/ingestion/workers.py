"""The tasks of an ingest without Spark: in this process where there is little to do, in one process a processor where there is much.

A process of its own takes a second to begin, so what is read in less than that is read here. What takes longer is not, even where it is one
task: this process can be asked to end, and answers at once. What it does itself is done in a thread that nobody waits for any more then: a
broker that does not answer keeps it for minutes, and all it could still do is write what does not count. The others are new
interpreters, no copies of this process, which has threads. They end with it, however it ends:

1. The ingest is killed, and its processes wait for a next task, each holding both ends of the queue of tasks: they wait for ever.
   Rule: each watches the process that has started it.
2. Ctrl-C goes to the whole group: a process raises in its task, and the driver takes that for what went wrong.
   Rule: they do not hear it. The driver ends them, once it stops.
3. A process is killed before the executor's thread has looked at it: it begins one for a task after it has woken that thread, which then
   waits for the others and for results alone, and the dead one's task is awaited for ever.
   Rule: whoever waits looks for himself whether all live.

The module imports nothing of ours: a process that begins is told how many threads it has before it imports Arrow.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait as wait_for_end
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.process import BaseProcess

_T = TypeVar("_T")
_LOOK_SECONDS = 0.2
_ENDED_STATUS = 1


class WorkersEnded(Exception):
    """The tasks were not done: the run was asked to end, or (`killed`) a process of theirs has ended under way."""

    def __init__(self, *, killed: bool) -> None:
        super().__init__()
        self.killed = killed


class Workers:
    """Calls functions with tasks, at most `count` at a time; see the module. Used in one thread, as a context: it leaves no process."""

    def __init__(self, count: int, ending: threading.Event) -> None:
        self._count = count
        self._ending = ending
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        """Begin: no process yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """End what there is."""
        self._end()

    def each(self, call: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], *, apart: bool) -> list[Any]:
        """Return `call(*task)` of all tasks in their order, `apart` in processes of their own; what one raises, the others are ended.

        `call` is one of a module, and what it is given and returns can be sent. Raises `WorkersEnded`.
        """
        if not apart or not self._begin():
            return self.here(lambda: [call(*task) for task in tasks if self._goes_on()])
        assert self._pool is not None  # noqa: S101 - it was just begun
        try:
            return self._awaited([self._pool.submit(call, *task) for task in tasks])
        except BrokenProcessPool:
            self._end()
            raise WorkersEnded(killed=True) from None
        except BaseException:  # also what interrupts: nothing is left behind
            self._end()
            raise

    def here(self, call: Callable[..., _T], *given: Any) -> _T:  # noqa: ANN401 - what `call` takes
        """Return `call(*given)`, made in this process. Raises what it does, and `WorkersEnded`: it goes on, and nobody hears of it."""
        called: Future[_T] = Future()
        threading.Thread(target=_answer, args=(called, call, given), name="penstock-task", daemon=True).start()
        (answer,) = self._awaited([called])
        return answer

    def _awaited(self, calls: list[Future[_T]]) -> list[_T]:
        waiting = set(calls)
        while waiting and self._goes_on():
            self._check_processes()
            ended, waiting = wait(waiting, timeout=_LOOK_SECONDS, return_when=FIRST_EXCEPTION)
            for call in ended:
                call.result()  # or what it has raised
        return [call.result() for call in calls]

    def _check_processes(self) -> None:
        """Raise `BrokenProcessPool` if one of the processes has ended: none does by itself."""
        if any(process.exitcode is not None for process in self._processes()):
            raise BrokenProcessPool

    def _processes(self) -> list[BaseProcess]:
        return list(((self._pool and self._pool._processes) or {}).values())  # noqa: SLF001 - it has no other name

    def _goes_on(self) -> bool:
        if self._ending.is_set():
            raise WorkersEnded(killed=False)
        return True

    def _begin(self) -> bool:
        """Have processes; tell whether there can be any: some machines have no semaphores."""
        if self._pool is None:
            try:
                self._pool = ProcessPoolExecutor(
                    self._count, multiprocessing.get_context("spawn"), initializer=_settle, initargs=(os.getpid(),)
                )
            except (OSError, ImportError, NotImplementedError):
                return False
        return True

    def _end(self) -> None:
        """End all processes at once; what they do counts for nothing."""
        if self._pool is None:
            return
        for process in self._processes():
            process.kill()
        pool, self._pool = self._pool, None
        pool.shutdown(wait=True, cancel_futures=True)


def _answer(called: Future[_T], call: Callable[..., _T], given: tuple[Any, ...]) -> None:
    """Have a future be what a call returns, or raises."""
    try:
        called.set_result(call(*given))
    except BaseException as error:  # noqa: BLE001 - whatever it is, who waits for it raises it
        called.set_exception(error)


def _settle(driver: int) -> None:
    """Make a process one of these; called there before anything else."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if os.environ.get("PENSTOCK_DEBUG") != "1":  # what Spark's workers say of a task is not shown, either
        logging.getLogger("penstock").addHandler(logging.NullHandler())
    threading.Thread(target=_end_with, args=(driver,), name="penstock-parent", daemon=True).start()


def _end_with(driver: int) -> None:
    """End this process when the one that has started it is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() == driver:
        wait_for_end([parent.sentinel])
    os._exit(_ENDED_STATUS)
