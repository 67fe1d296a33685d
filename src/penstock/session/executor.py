"""What an executor does for a task of a job of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.query.batch import Task

if TYPE_CHECKING:
    from collections.abc import Callable


def on_executor(given: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:  # noqa: ANN401 - what the function returns
    """Return what a function makes of a task in a Python worker of Spark; a `Task` among its values gets the number of its attempt.

    Raises what the function raises; Spark may try the task again then.
    """
    from pyspark import TaskContext

    from penstock.session import worker

    call, values = given
    context = TaskContext.get()
    attempt = context.attemptNumber() if context else 0
    worker.settle_writer()
    result = call(*(value._replace(attempt=attempt) if isinstance(value, Task) else value for value in values))
    worker.KEPT.give_back()
    return result
