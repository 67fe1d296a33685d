"""`penstock.register`: registers the formats explicitly, and publishes the last parts of a query as soon as it ends."""

from __future__ import annotations

import atexit
import functools
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from penstock.arguments import named
from penstock.errors import DependencyError
from penstock.session.connect import is_remote, require_session
from penstock.session.heard import add_listener_of_ends
from penstock.session.local import require_pyspark
from penstock.session.sidebyside import side_by_side
from penstock.session.zone import say_session
from penstock.spark.checkpoints import say_checkpoint
from penstock.spark.directories import refuse_directories

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.spark.listener import EndListener

_HEARING_MILLISECONDS = 2000
_registered: WeakKeyDictionary[SparkSession, EndListener] = WeakKeyDictionary()


@named
def register(spark: SparkSession) -> None:
    """Register the formats `penstock`, `penstock-wal`, `penstock-db` and `penstock-kafka` with a session. Safe to repeat.

    Spark finds them without this when the package is installed. This function adds three things. Times without a zone are read in the
    zone of the session, as Spark reads them, and a local session's cores share out a batch; the session is asked when the format is
    named. And the parts that a query leaves open are
    published when it ends, and not only when they are idle or the application ends. A listener does that; if the program waits for the
    end (`awaitTermination`, `stop`), it is done before that call returns. And `partitionBy` of a stream, which Spark does not pass on,
    is refused with what to write instead.

    Raises `DependencyError` if the Python that executors take (`PYSPARK_PYTHON`) is not on this machine, too.
    """
    require_pyspark()
    from penstock.spark.listener import EndListener

    require_session(spark, "register")
    if spark in _registered:
        return
    if not is_remote(spark):
        _require_python(spark.sparkContext.pythonExec)
    register_formats(spark)
    say_session(remote=is_remote(spark))
    refuse_directories(_stream_writer(spark))
    say_checkpoint(_stream_writer(spark))
    if is_remote(spark):
        # Its queries end in another process: their parts are published when they are idle, or when their application ends.
        return
    if not _registered:
        atexit.register(_leave)
        _be_there_at_the_end()
    _registered[spark] = EndListener(spark)
    add_listener_of_ends(spark, _registered[spark])


def _require_python(name: str) -> None:
    """Raise `DependencyError` if the Python with this name is not on this machine, where Spark plans with it."""
    if shutil.which(name) is None:
        msg = (
            f"PYSPARK_PYTHON={name!r} is not found on this machine, where Spark starts it to plan a query and to commit its batches; "
            "name one that this machine and those of the executors have. If executors unpack it from an archive, unpack it here, "
            "too, so that this path leads to it"
        )
        raise DependencyError(msg)


def register_formats(spark: SparkSession) -> None:
    """Register only the formats, for the Python of the session's workers."""
    from penstock.spark.database import DatabaseDataSource
    from penstock.spark.datasource import PenstockDataSource
    from penstock.spark.kafka import TopicDataSource
    from penstock.spark.wal import LogDataSource

    sources = (PenstockDataSource, LogDataSource, DatabaseDataSource, TopicDataSource)
    for source in sources:
        spark.dataSource.register(source)
    side_by_side(spark, *(source.name() for source in sources))


def _stream_writer(spark: SparkSession) -> type:
    """Return the class of `df.writeStream`."""
    if is_remote(spark):
        from pyspark.sql.connect.streaming.readwriter import DataStreamWriter as RemoteWriter

        return RemoteWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    return DataStreamWriter


@functools.cache
def _be_there_at_the_end() -> None:
    """Publish what queries of registered sessions leave open before PySpark reports that they have ended.

    Spark tells listeners through a queue, when `awaitTermination` may already have returned: a program that reads the output then would
    miss the last rows. Spark has no hook before that, so PySpark's two methods are wrapped.
    """
    from pyspark.sql.streaming.query import StreamingQuery

    for name in ("awaitTermination", "stop"):
        setattr(StreamingQuery, name, _publishing(getattr(StreamingQuery, name)))


def _publishing(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(query: StreamingQuery, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - PySpark's
        outcome: Any = False
        try:
            outcome = method(query, *arguments, **named)
        except Exception:  # whatever error the query ended with, it has ended
            outcome = None
            raise
        finally:
            if outcome is not False:
                _ended(query)
        return outcome

    return call


def _ended(query: StreamingQuery) -> None:
    with suppress(Exception):  # its JVM may be gone, and then the keeper notices that
        name, run = str(query.id), str(query.runId)
        for listener in list(_registered.values()):
            listener.ended(name, run)


def _leave() -> None:
    """Process pending events and remove the listeners before Python ends: Spark logs a stack for a listener that does not answer.

    If a query still runs, its keepers notice the end of the application.
    """
    for spark, listener in list(_registered.items()):
        context = spark.sparkContext._jsc  # noqa: SLF001 - None once the session is stopped
        if context is None:
            continue
        with suppress(Exception):  # its JVM may be gone; or events may never stop
            context.sc().listenerBus().waitUntilEmpty(_HEARING_MILLISECONDS)
        with suppress(Exception):
            spark.streams.removeListener(listener)
