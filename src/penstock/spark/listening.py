"""A listener of Spark's that hears of a batch what it asks for.

PySpark copies all that there is about a batch out of the JVM before it tells a listener, value by value, and each of its maps ends with
an exception of Java's that is looked into by a dozen calls more: hundreds of calls into the JVM for each batch, and a search of all of
Spark's jars for some of them. Here the same is one text of JSON, as `lastProgress` has it, and is had when somebody asks.
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
    """The end of a batch. What there is about it is asked for once, where it is asked for."""

    def __init__(self, event: Any) -> None:  # noqa: ANN401 - py4j's
        self._event = event

    @cached_property
    def progress(self) -> StreamingQueryProgress:
        """Return what there is about it."""
        return StreamingQueryProgress.fromJson(json.loads(self._event.progress().json()))


class QuickListener(StreamingQueryListener):
    """A listener whose `onQueryProgress` costs a query no more than what it asks for."""

    @property
    def _jlistener(self) -> Any:  # noqa: ANN401 - py4j's
        """Return the listener as the JVM knows it: what PySpark makes of it, but for who is told."""
        if not hasattr(self, "_jlistenerobj"):
            jvm: Any = SparkContext._jvm  # noqa: SLF001 - has no other name
            self._jlistenerobj = jvm.PythonStreamingQueryListenerWrapper(_Told(self))
        return self._jlistenerobj


class _Told(JStreamingQueryListener):
    """Who is called by the JVM."""

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: ANN401, N802 - Spark's
        """Tell the listener of a batch."""
        self.pylistener.onQueryProgress(HeardBatch(jevent))
