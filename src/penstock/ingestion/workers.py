"""Runs the tasks of an ingest without Spark: in this process if there is little to do, in one process for each processor if there is much.

A new process takes a second to start, so a batch that is read in less time is read in this process. Longer work goes to another
process, even a single task, so that this process can be asked to end and answers at once. What this process does itself runs in a
thread. After a request to end, nobody waits for that thread: a broker that does not answer could keep it for minutes, and it
could only write what does not count. The other processes are new interpreters, not copies of this process, because it has
threads. Each has a connection to this process whose two ends nobody else holds, so each side learns when the other is gone, for
whatever reason:

1. The ingest is killed, and its processes wait for a next task, or write on for nobody.
   Rule: each reads its standard input, which only this process holds open, and ends when the input ends.
2. Ctrl-C and a closed terminal (SIGHUP) go to the whole process group, and a supervisor may send SIGTERM to everything that it has
   started: a process ends in its task, or while it starts, and the driver takes that for the cause of a failure.
   Rule: the processes are started with these signals blocked. The driver ends them when it stops.
3. A process is killed: before it has started, in a task, or halfway through its answer. A driver that waits for a shared queue,
   which this process holds open, too, waits for ever.
   Rule: there is no queue and no lock. The end of a connection, even within an answer, counts as an answer.
4. The program that runs the command came from standard input, or does not check its `__name__`: `multiprocessing` makes each
   process run it first, and so start the ingest again.
   Rule: a process imports this module, the module that the driver names, and the modules that its tasks name, but never the main
   program.

Rejected: `ProcessPoolExecutor`, because 3 and 4 happened with it. It also does not work on a machine without semaphores.
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
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from multiprocessing.connection import wait as wait_for_any
from typing import TYPE_CHECKING, Any

from penstock.errors import debugging, unforeseen
from penstock.ingestion.taskcalls import LOOK_SECONDS, TaskCalls, WorkersEnded
from penstock.processes import keep_blocks, without_pandas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_ENDED_STATUS = 1
_STDIN = 0
# The new process searches for modules where this one does, and sets that before its first import of ours.
_PROGRAM = f"import sys; at, loads, *sys.path[:] = sys.argv[1:]; from {__name__} import serve; serve(int(at), loads)"


class Workers(TaskCalls):
    """Calls functions with tasks, at most `count` at a time; see the module. Leaves no process.

    Each process imports the module `loads` before its first task arrives, while the driver still plans. The imports of an ingest's tasks
    take 0.2 to 0.3 s of a processor.
    """

    def __init__(self, count: int, ending: threading.Event, loads: str) -> None:
        super().__init__(ending)
        self._count = count
        self._loads = loads
        self._processes: list[_Process] = []

    def expect(self, processes: int) -> None:
        """Start so many processes, at most `count`, for tasks that come soon, because processes need a while to start."""
        self._begin(processes)

    def each(self, call: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], *, processes: int) -> list[Any]:
        """Return `call(*task)` of all tasks in order, from this process or from `processes` others; an error ends all of them.

        `call` must be a function of a module, with picklable arguments and results. Raises `WorkersEnded`; an error in another
        process comes as a `PenstockError`.
        """
        if not self._begin(min(processes, len(tasks))):
            return self.here(lambda: [call(*task) for task in tasks if self._goes_on()])
        try:
            return self._answers(call, tasks)
        except (EOFError, OSError):  # from a connection
            self.end()
            raise WorkersEnded(killed=True) from None
        except BaseException:  # also for an interrupt: leave no process
            self.end()
            raise

    def _answers(self, call: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        results: list[Any] = [None] * len(tasks)
        left, idle = deque(enumerate(tasks)), list(self._processes)
        busy: dict[Connection, tuple[int, _Process]] = {}
        while self._goes_on() and (left or busy):
            while left and idle:
                process, (number, task) = idle.pop(), left.popleft()
                process.connection.send((call, task))
                busy[process.connection] = number, process
            for connection in wait_for_any(list(busy), LOOK_SECONDS):
                number, process = busy.pop(connection)  # type: ignore[call-overload]  # - it is one of those that were given
                results[number] = process.answer()
                idle.append(process)
        return results

    def _begin(self, wanted: int) -> bool:
        """Start processes up to `wanted`, or as many as possible; tell whether any is wanted and there."""
        with suppress(OSError):  # a limit of this machine: fewer processes suffice
            while len(self._processes) < min(self._count, wanted):
                self._processes.append(_Process(self._loads))
        return bool(wanted and self._processes)

    def end(self) -> None:
        """End all processes at once; what they are doing does not count."""
        while self._processes:
            self._processes.pop().end()


class _Process:
    """One process that runs `serve`, and this end of the connection to it."""

    def __init__(self, loads: str) -> None:
        """Start the process. Raises `OSError`."""
        self.connection, its_end = Pipe()
        with its_end, _unheard(signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            number = its_end.fileno()
            self._process = subprocess.Popen(  # noqa: S603 - this very interpreter, and a program of ours
                [sys.executable, "-c", _PROGRAM, str(number), loads, *sys.path],
                stdin=subprocess.PIPE,
                pass_fds=[number],
                env={"OMP_NUM_THREADS": "1"} | os.environ,
            )

    def answer(self) -> Any:  # noqa: ANN401 - what a call has returned
        """Return the result of the task, or raise its error. Raises `EOFError` or `OSError` if the process has ended."""
        error, result = self.connection.recv()
        if error is not None:
            raise error
        return result

    def end(self) -> None:
        """Kill the process now."""
        self._process.kill()
        self._process.wait()
        self.connection.close()
        if self._process.stdin is not None:
            self._process.stdin.close()


@contextmanager
def _unheard(*numbers: int) -> Iterator[None]:
    """Block these signals for processes that this thread starts within the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(number: int, loads: str) -> None:
    """Import a module, then do the tasks that come over the connection with this descriptor in turn. Called in the new process."""
    if not debugging():  # logs of Spark's workers are not shown, either
        logging.getLogger("penstock").addHandler(logging.NullHandler())
    keep_blocks()
    threading.Thread(target=_end_with_driver, name="penstock-driver", daemon=True).start()
    with suppress(Exception):  # the first task meets the same error, and its answer reports it
        without_pandas()
        import_module(loads)
    connection = Connection(number)
    with suppress(ConnectionError):  # the driver is gone
        while True:
            connection.send(_answered(connection))


def _answered(connection: Connection) -> tuple[Exception | None, Any]:
    """Take the next task, and return its error and its result."""
    try:
        call, task = connection.recv()
        return None, call(*task)
    except Exception as error:  # noqa: BLE001 - the driver raises it
        if debugging():
            traceback.print_exc()
        return unforeseen(error), None


def _end_with_driver() -> None:
    """End this process when the process that started it is gone."""
    while os.read(_STDIN, 1):
        pass
    os._exit(_ENDED_STATUS)
