"""What a listener learns of a batch, and how many calls into the JVM that costs."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from py4j.clientserver import ClientServerConnection
from pyspark.sql.streaming.listener import QueryProgressEvent

from penstock.spark.listening import HeardBatch, QuickListener
from tests.support.wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest
    from pyspark.sql import SparkSession

    from tests.support.stage import Stage


class _Hearing(QuickListener):
    """Keeps what it is told of a batch, and makes no further request."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.over = False

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Note the batch."""
        self.heard.append(event)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Note the end."""
        self.over = True


def calls_of(ask: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many calls this thread makes into the JVM to get values; calls of the session's other listeners do not count."""
    asking, calls = threading.current_thread(), []
    send = ClientServerConnection.send_command

    def counted(connection: ClientServerConnection, command: str) -> str:
        if threading.current_thread() is asking:
            calls.append(command)
        return str(send(connection, command))

    with monkeypatch.context() as patch:
        patch.setattr(ClientServerConnection, "send_command", counted)
        ask()
    return len(calls)


def test_a_batch_is_heard_of_in_a_few_calls(spark: SparkSession, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener gets the values of `lastProgress` without a call for each value; PySpark makes such calls before it notifies."""
    stage.put("a.log", *"abc")
    listener = _Hearing()
    spark.streams.addListener(listener)
    try:
        frame = spark.readStream.format("penstock").load(str(stage.src))
        writer = frame.writeStream.format("penstock").option("checkpointLocation", str(stage.checkpoint))
        query = writer.trigger(availableNow=True).start(str(stage.dst))
        query.awaitTermination()
        last = query.lastProgress
        wait_for(lambda: listener.over, "the end is heard")
    finally:
        spark.streams.removeListener(listener)
    assert last is not None
    assert all(type(event) is HeardBatch for event in listener.heard)
    (event,) = (event for event in listener.heard if event.progress.batchId == last.batchId)
    heard = event.progress
    for name in ("id", "runId", "numInputRows", "durationMs", "eventTime", "timestamp", "batchDuration"):
        assert getattr(heard, name) == getattr(last, name)
    assert json.loads(heard.sources[0].endOffset) == json.loads(last.sources[0].endOffset)
    assert heard.numInputRows > 0
    told = event._event
    assert calls_of(lambda: HeardBatch(told).progress, monkeypatch) < 10
    assert calls_of(lambda: QueryProgressEvent.fromJObject(told), monkeypatch) > 100
