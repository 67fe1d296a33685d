"""The border between our code and Spark's: errors that cross it can be recognised on the other side (`penstock.errors.of`).

Spark calls our objects in processes of its own and takes nothing from them but text, which its JVM passes on to the user.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import PenstockError, debugging
from penstock.session.leaving import leaving

if TYPE_CHECKING:
    from collections.abc import Callable

_Kind = TypeVar("_Kind", bound=type)
_PICKLING = "__getstate__"
_CALLED_BY_SPARK = (_PICKLING, "__init__")


def border(kind: _Kind) -> _Kind:
    """Decorate a class whose methods Spark calls: our errors leave them with their note, also from iterators that they return."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and (not name.startswith("_") or name in _CALLED_BY_SPARK):
            setattr(kind, name, leaving(_quietly(method) if name == _PICKLING else method))
    return kind


def _quietly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method called by pickle: PySpark prints any error but a pickling error, with its stack, and wraps it."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:  # noqa: ANN401 - what pickle passes
        try:
            return function(*arguments)
        except PenstockError as error:
            if not debugging():
                kind = type(error)
                error.__class__ = type(kind.__name__, (kind, _pickling_error()), {"__module__": kind.__module__})
            raise

    return call


def _pickling_error() -> type[Exception]:
    """Return Python's own pickling error, without importing its module, which can execute what it reads."""
    from pyspark.errors import PySparkException, PySparkPicklingError

    bases = (base for base in PySparkPicklingError.__bases__ if issubclass(base, Exception))
    return next(base for base in bases if not issubclass(base, PySparkException))
