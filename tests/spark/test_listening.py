"""What a listener hears of a batch, and what that costs the JVM that tells it."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from py4j.clientserver import ClientServerConnection

from penstock.spark.listening import QuickListener
from tests.support.wait import wait_for

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession

    from tests.support.stage import Stage

_CALLS_MAX = 120  # for a start, a batch and an end, which two listeners hear; PySpark itself takes some hundreds for a batch and listener


class _Hearing(QuickListener):
    """Asks for all that there is about a batch; `calls` is how many calls into the JVM were made behind the query."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.over = False
        self.calls = 0

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Note the batch."""
        self.heard.append(event.progress)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Note the end."""
        self.over = True


def test_a_batch_is_heard_of_in_a_few_calls(spark: SparkSession, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a listener hears is what `lastProgress` says, and no call is made for each value of it."""
    stage.put("a.log", *"abc")
    listener = _Hearing()
    send = ClientServerConnection.send_command

    def counted(connection: ClientServerConnection, command: str) -> str:
        listener.calls += threading.current_thread() is not threading.main_thread()
        return str(send(connection, command))

    monkeypatch.setattr(ClientServerConnection, "send_command", counted)
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
    (heard,) = (progress for progress in listener.heard if progress.batchId == last.batchId)
    for name in ("id", "runId", "numInputRows", "durationMs", "eventTime", "timestamp", "batchDuration"):
        assert getattr(heard, name) == getattr(last, name)
    assert json.loads(heard.sources[0].endOffset) == json.loads(last.sources[0].endOffset)
    assert heard.numInputRows > 0
    assert listener.calls <= _CALLS_MAX
