"""The tasks of an ingest without Spark: in this process where there is little to do, in one process a processor where there is much.

A process of its own takes a second to begin, so what is read in less than that is read here. What takes longer is not, even where it is one
task: this process can be asked to end, and answers at once. What it does itself is done in a thread that nobody waits for any more then: a
broker that does not answer keeps it for minutes, and all it could still do is write what does not count. The others are new interpreters,
no copies of this process, which has threads.
Each has a connection to this process whose two ends nobody else holds, so either learns when the other is gone, however it went:

1. The ingest is killed, and its processes wait for a next task, or write on for nobody.
   Rule: each reads its standard input, which only this process holds open, and ends when that does.
2. Ctrl-C goes to the whole group, and SIGTERM of a supervisor to all it has started: a process ends in its task, or while it begins, and
   the driver takes that for what went wrong.
   Rule: they are begun with these signals blocked. The driver ends them, once it stops.
3. A process is killed: before it has begun, in a task, halfway through its answer. Who waits for a queue, which all of them share and this
   process holds open, too, waits for ever.
   Rule: no queue and no lock. The end of a connection, also within an answer, is an answer.
4. The program that runs the command came from standard input, or does not ask for its `__name__`: `multiprocessing` has each process run
   it first, and so begin the ingest again.
   Rule: a process imports this module, and what its tasks name.

Rejected: `ProcessPoolExecutor`, with which 3 and 4 happened. Nor can it be had on a machine without semaphores.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections import deque
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from multiprocessing.connection import wait as wait_for_any
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import debugging, unforeseen
from penstock.processes import keep_blocks, without_pandas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_T = TypeVar("_T")
_LOOK_SECONDS = 0.2
_ENDED_STATUS = 1
_STDIN = 0
# Modules are found where this process finds them, and never in the current directory before that is said.
_PROGRAM = f"import sys; at, loads, *sys.path[:] = sys.argv[1:]; from {__name__} import serve; serve(int(at), loads)"


class WorkersEnded(Exception):
    """The tasks were not done: the run was asked to end, or (`killed`) a process of theirs has ended under way."""

    def __init__(self, *, killed: bool) -> None:
        super().__init__()
        self.killed = killed


class Workers:
    """Calls functions with tasks, at most `count` at a time; see the module. Used in one thread, as a context: it leaves no process.

    Each process imports the module `loads` before its first task arrives, while the driver still plans. What the tasks of an ingest import
    takes 0.2 to 0.3 s of a processor.
    """

    def __init__(self, count: int, ending: threading.Event, loads: str) -> None:
        self._count = count
        self._ending = ending
        self._loads = loads
        self._processes: list[_Process] = []

    def __enter__(self) -> Workers:
        """Begin: no process yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """End what there is."""
        self._end()

    def expect(self, processes: int) -> None:
        """Begin so many processes, or as many as there are at a time, for tasks that come soon: they need a while until they can work."""
        self._begin(processes)

    def each(self, call: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], *, processes: int) -> list[Any]:
        """Return `call(*task)` of all tasks in their order, in this process or in so many others; what one raises, the others are ended.

        `call` is one of a module, and what it is given and returns can be sent. Raises `WorkersEnded`; what is raised in another process
        is a `PenstockError`.
        """
        if not self._begin(min(processes, len(tasks))):
            return self.here(lambda: [call(*task) for task in tasks if self._goes_on()])
        try:
            return self._answers(call, tasks)
        except (EOFError, OSError):  # of a connection
            self._end()
            raise WorkersEnded(killed=True) from None
        except BaseException:  # also what interrupts: nothing is left behind
            self._end()
            raise

    def here(self, call: Callable[..., _T], *given: Any) -> _T:  # noqa: ANN401 - what `call` takes
        """Return `call(*given)`, made in this process. Raises what it does, and `WorkersEnded`: it goes on, and nobody hears of it."""
        called: Future[_T] = Future()
        threading.Thread(target=_answer, args=(called, call, given), name="penstock-task", daemon=True).start()
        while not called.done() and self._goes_on():
            wait([called], _LOOK_SECONDS)
        return called.result()

    def _answers(self, call: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        results: list[Any] = [None] * len(tasks)
        left, idle = deque(enumerate(tasks)), list(self._processes)
        busy: dict[Connection, tuple[int, _Process]] = {}
        while self._goes_on() and (left or busy):
            while left and idle:
                process, (number, task) = idle.pop(), left.popleft()
                process.connection.send((call, task))
                busy[process.connection] = number, process
            for connection in wait_for_any(list(busy), _LOOK_SECONDS):
                number, process = busy.pop(connection)  # type: ignore[call-overload]  # - it is one of those that were given
                results[number] = process.answer()
                idle.append(process)
        return results

    def _goes_on(self) -> bool:
        if self._ending.is_set():
            raise WorkersEnded(killed=False)
        return True

    def _begin(self, wanted: int) -> bool:
        """Have so many processes, or as many as there can be; tell whether there is any that is wanted."""
        with suppress(OSError):  # a limit of this machine: fewer do it, too
            while len(self._processes) < min(self._count, wanted):
                self._processes.append(_Process(self._loads))
        return bool(wanted and self._processes)

    def _end(self) -> None:
        """End all processes at once; what they do counts for nothing."""
        while self._processes:
            self._processes.pop().end()


def _answer(called: Future[_T], call: Callable[..., _T], given: tuple[Any, ...]) -> None:
    """Have a future be what a call returns, or raises."""
    try:
        called.set_result(call(*given))
    except BaseException as error:  # noqa: BLE001 - whatever it is, who waits for it raises it
        called.set_exception(error)


class _Process:
    """One process that serves, and this end of the connection to it."""

    def __init__(self, loads: str) -> None:
        """Begin it. Raises `OSError`."""
        self.connection, its_end = Pipe()
        with its_end, _unheard(signal.SIGINT, signal.SIGTERM):
            number = its_end.fileno()
            self._process = subprocess.Popen(  # noqa: S603 - this very interpreter, and a program of ours
                [sys.executable, "-c", _PROGRAM, str(number), loads, *sys.path],
                stdin=subprocess.PIPE,
                pass_fds=[number],
                env={"OMP_NUM_THREADS": "1"} | os.environ,
            )

    def answer(self) -> Any:  # noqa: ANN401 - what a call has returned
        """Return what the task came to, or raise it. Raises `EOFError` or `OSError` where the process has ended."""
        error, result = self.connection.recv()
        if error is not None:
            raise error
        return result

    def end(self) -> None:
        """End it now."""
        self._process.kill()
        self._process.wait()
        self.connection.close()
        if self._process.stdin is not None:
            self._process.stdin.close()


@contextmanager
def _unheard(*numbers: int) -> Iterator[None]:
    """Have what this thread begins within the block never hear of these signals."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(number: int, loads: str) -> None:
    """Import a module, and do the tasks that come over the connection of this number one after another. Called in a process of its own."""
    if not debugging():  # what Spark's workers say of a task is not shown, either
        logging.getLogger("penstock").addHandler(logging.NullHandler())
    keep_blocks()
    threading.Thread(target=_end_with_driver, name="penstock-driver", daemon=True).start()
    with suppress(Exception):  # the first task meets it, too, and its answer says so
        without_pandas()
        import_module(loads)
    connection = Connection(number)
    with suppress(ConnectionError):  # the driver is gone
        while True:
            connection.send(_answered(connection))


def _answered(connection: Connection) -> tuple[Exception | None, Any]:
    """Take the next task, and return what it came to."""
    try:
        call, task = connection.recv()
        return None, call(*task)
    except Exception as error:  # noqa: BLE001 - the driver raises it
        if debugging():
            traceback.print_exc()
        return unforeseen(error), None


def _end_with_driver() -> None:
    """End this process when the one that has started it is gone."""
    while os.read(_STDIN, 1):
        pass
    os._exit(_ENDED_STATUS)
