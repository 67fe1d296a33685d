"""A listener for Spark that fetches about a batch only what it asks for.

PySpark copies everything about a batch out of the JVM before it calls a listener, value by value, and each of its maps ends with a Java
exception that takes a dozen more calls to inspect: hundreds of calls into the JVM for each batch, and a search of all of Spark's jars
for some of them. Here the same data is one JSON text, as in `lastProgress`, and is fetched only when it is used.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryProgressEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)


class HeardBatch(QueryProgressEvent):
    """The end of a batch. Its progress is fetched once, at the first access."""

    def __init__(self, event: Any) -> None:  # noqa: ANN401 - py4j's
        self._event = event

    @cached_property
    def progress(self) -> StreamingQueryProgress:
        """Return the progress of the batch."""
        return StreamingQueryProgress.fromJson(json.loads(self._event.progress().json()))


class QuickListener(StreamingQueryListener):
    """A listener whose `onQueryProgress` costs a query no more than the data that it uses."""

    @property
    def _jlistener(self) -> Any:  # noqa: ANN401 - py4j's
        """Return the JVM's wrapper of this listener: as PySpark makes it, but with another receiver of the calls."""
        if not hasattr(self, "_jlistenerobj"):
            jvm: Any = SparkContext._jvm  # noqa: SLF001 - has no public name
            self._jlistenerobj = jvm.PythonStreamingQueryListenerWrapper(_Told(self))
        return self._jlistenerobj


class _Told(JStreamingQueryListener):
    """The receiver of the JVM's calls."""

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: ANN401, N802 - Spark's
        """Pass a batch on to the listener."""
        self.pylistener.onQueryProgress(HeardBatch(jevent))
