"""Tells our sinks where the checkpoint of a query is when the session says it: `spark.sql.streaming.checkpointLocation`.

Spark then puts the checkpoint into the directory of the query's name below that location, and tells a Python sink nothing of it. For a
query without a name it makes up a new one at each start.

Failure: *an end that nobody hears.*

1. The location is in the settings of the session, and the query has a `sinkId`.
2. The sink does not know the checkpoint, and so not the id of the query. It calls its driver by `sinkId`.
3. The query ends. The listener looks for drivers of the query's id, finds none, and publishes nothing: the last rows are seen a minute
   later, when their parts are idle, or when the application ends. Without a `sinkId` the query is refused.

Rule: what Spark would make of the setting is given as the option, from which Spark takes it as well. A query that has neither a name nor a
`sinkId` is left as it is, and refused: it would read everything again at each start, for another sink.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING

from penstock import unique
from penstock.spark.directories import SINKS

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_SETTING = "spark.sql.streaming.checkpointLocation"
_NOTE = "_penstock_said"
_SINK = ""  # what `format(...)` named, which is no option: our sinks have one that is called `format`


@functools.cache
def say_checkpoint(kind: type) -> None:
    """Have PySpark's `DataStreamWriter` (`kind`, there is one for Spark Connect as well) pass the checkpoint on to our sinks."""
    for name in ("format", "queryName", "option", "options"):
        setattr(kind, name, _noting(getattr(kind, name)))
    for name in ("start", "toTable"):
        setattr(kind, name, _saying(getattr(kind, name)))


def _noting(method: Callable[..., Any]) -> Callable[..., Any]:
    parameters = inspect.signature(method)

    @functools.wraps(method)
    def call(writer: object, *given: Any, **named: Any) -> Any:  # noqa: ANN401 - PySpark's
        result = method(writer, *given, **named)
        options = vars(writer).setdefault(_NOTE, {})
        options.update(_said(parameters.bind(writer, *given, **named).arguments))
        return result

    return call


def _saying(method: Callable[..., Any]) -> Callable[..., Any]:
    parameters = inspect.signature(method)

    @functools.wraps(method)
    def call(writer: Any, *given: Any, **named: Any) -> Any:  # noqa: ANN401 - PySpark's
        options = vars(writer).get(_NOTE, {}) | _said(parameters.bind(writer, *given, **named).arguments)
        folder = options.get("queryname") or (unique.token() if "sinkid" in options else None)
        if options.get(_SINK, "").lower() in SINKS and folder and "checkpointlocation" not in options:
            session = getattr(writer, "_spark", None) or writer._session  # noqa: SLF001 - PySpark's, of Connect
            location = session.conf.get(_SETTING, None)
            if location:
                writer.option("checkpointLocation", f"{location.rstrip('/')}/{folder}")
        return method(writer, *given, **named)

    return call


def _said(arguments: dict[str, Any]) -> dict[str, str]:
    """Return the options among the arguments of one of the methods, by names in lower case, and the sink."""
    options = {_SINK: arguments.get("source", arguments.get("format")), "queryname": arguments.get("queryName")}
    options |= {name.lower(): value for name, value in arguments.get("options", {}).items()}
    if "key" in arguments:
        options[arguments["key"].lower()] = arguments["value"]
    return {name: str(value) for name, value in options.items() if value is not None}
