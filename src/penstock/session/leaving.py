"""Functions that Spark calls in processes of its own: marks our errors when they leave, so that the other side can recognise them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError, leave

if TYPE_CHECKING:
    from collections.abc import Callable


def leaving(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function that Spark calls: our errors leave it with their note, also from an iterator that it returns."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - Spark's and ours
        try:
            outcome = function(*arguments, **named)
        except PenstockError as error:
            raise leave(error) from error.__cause__
        return _each(outcome) if isinstance(outcome, Iterator) else outcome

    return call


def _each(items: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from items
    except PenstockError as error:
        raise leave(error) from error.__cause__
