"""An executor that runs one call after the other in the caller's thread, for storages that gain nothing by threads."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


class InTurn(Executor):
    """Runs each submitted call immediately; a `BaseException` (a simulated crash) goes straight to the caller."""

    def submit(self, function: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:  # noqa: ANN401 - the function's own
        """Run the function; return its result or error as a future that is done."""
        future: Future[_T] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the future raises it
            future.set_exception(error)
        return future
