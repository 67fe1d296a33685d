"""How the tasks of an ingest are called that plans and commits in this process: by processes of ours, or by Spark's executors."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_T = TypeVar("_T")
LOOK_SECONDS = 0.2


class WorkersEnded(Exception):
    """The tasks were not done: the run was asked to end, or (`killed`) a process ended in its task."""

    def __init__(self, *, killed: bool) -> None:
        super().__init__()
        self.killed = killed


class TaskCalls(ABC):
    """Calls functions with tasks until it is asked to end by `ending`. A context manager for one thread, which leaves nothing running."""

    def __init__(self, ending: threading.Event) -> None:
        self._ending = ending

    def __enter__(self) -> TaskCalls:
        """Return itself; nothing is started yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """End everything that still runs."""
        self.end()

    @abstractmethod
    def expect(self, processes: int) -> None:
        """Prepare for tasks that are worth so many processes and come soon."""

    @abstractmethod
    def each(self, call: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], *, processes: int) -> list[Any]:
        """Return `call(*task)` of all tasks in order. `processes`: how many are worth it, 0 for little work.

        `call` must be a function of a module, with picklable arguments and results. Raises `WorkersEnded`, and the error of a task.
        """

    @abstractmethod
    def end(self) -> None:
        """End all tasks at once; what they are doing does not count."""

    def here(self, call: Callable[..., _T], *given: Any) -> _T:  # noqa: ANN401 - what `call` takes
        """Return `call(*given)`, made in this process.

        Raises what the call raises, and `WorkersEnded`, after which the call runs on unheard.
        """
        called: Future[_T] = Future()
        threading.Thread(target=_answer, args=(called, call, given), name="penstock-task", daemon=True).start()
        while not called.done() and self._goes_on():
            wait([called], LOOK_SECONDS)
        return called.result()

    def _goes_on(self) -> bool:
        if self._ending.is_set():
            raise WorkersEnded(killed=False)
        return True


def _answer(called: Future[_T], call: Callable[..., _T], given: tuple[Any, ...]) -> None:
    """Make a call, and put its result or error into a future."""
    try:
        called.set_result(call(*given))
    except BaseException as error:  # noqa: BLE001 - whatever it is, who waits for it raises it
        called.set_exception(error)
