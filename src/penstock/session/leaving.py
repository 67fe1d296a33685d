"""Functions that Spark calls in processes of its own: marks our errors when they leave, so that the other side can recognise them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.errors import DependencyError, PenstockError, leave

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


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


def mapped(frame: DataFrame, function: Callable[[Iterator[Any]], Iterator[Any]], fields: StructType | str) -> DataFrame:
    """Return a frame's Arrow batches mapped by a function, whose errors leave it as `leaving` says.

    Raises `DependencyError` if pandas is missing, or too old for PySpark, which asks for pandas though no row goes through it.
    """
    try:
        return frame.mapInArrow(leaving(function), fields)
    except ImportError as error:
        msg = f"PySpark needs pandas to pass rows of a DataFrame to Python ({error}); pip install 'pandas>=2.2.3,<3'"
        raise DependencyError(msg) from error


def _each(items: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from items
    except PenstockError as error:
        raise leave(error) from error.__cause__
