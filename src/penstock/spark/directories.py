"""Refuses `partitionBy` and `clusterBy` of a stream that one of our sinks writes.

Spark 4.3 tells a Python sink of neither, so without this they would be ignored and all files would lie in one directory. Nothing on
the side of the sink can notice that; PySpark's three methods can, in whatever order they are called.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from penstock.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SINKS = ("penstock", "penstock-db")
_COLUMNS = ("partitionBy", "clusterBy")
_NOTE = "_penstock_called"


@functools.cache
def refuse_directories(kind: type) -> None:
    """Have PySpark's `DataStreamWriter` (`kind`, there is one for Spark Connect as well) refuse columns of directories for our sinks."""
    for name in ("format", *_COLUMNS):
        setattr(kind, name, _checking(name, getattr(kind, name)))


def _checking(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(writer: object, *given: Any, **named: Any) -> Any:  # noqa: ANN401 - PySpark's
        result = method(writer, *given, **named)
        called = vars(writer).setdefault(_NOTE, {})
        called[name] = [each for one in (*given, *named.values()) for each in ([one] if isinstance(one, str) else one)]
        _check(called)
        return result

    return call


def _check(called: dict[str, list[str]]) -> None:
    """Raise `OptionError` for columns of directories and a sink of ours; `called` has what each method was given."""
    sink = next(iter(called.get("format", ())), "").lower()
    method = next((name for name in _COLUMNS if called.get(name)), None)
    if method is None or sink not in SINKS:
        return
    columns = called[method]
    instead = "a table has no directories"
    if sink == "penstock":
        template = "/".join(f"{column}={{{column}}}" for column in columns)
        instead = f"expected .option('bucketBy', '{template}').option('dropBucketColumns', 'true')"
    call = f"{method}({', '.join(map(repr, columns))})"
    msg = f"{call} has no effect on format {sink}, because Spark tells no Python sink of it; leave it out; {instead}"
    raise OptionError(msg)
