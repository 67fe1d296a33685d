"""What Spark does not tell our source of the session that it is part of: its time zone, and whether a batch is read.

And what the zone of a session would be that is started here, for whoever starts none.
"""

from __future__ import annotations

import functools
import os
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from penstock.errors import StorageError
from penstock.options.finished import BATCH
from penstock.storage import LocalStorage, entry_at

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

_LINK, _NAME = "/etc/localtime", "/etc/timezone"
_UTC_NAMES = {"UTC", "Etc/UTC", "Zulu", "Etc/UCT", "UCT", "Universal"}


def time_zone(spark: SparkSession) -> str:
    """Return the zone of a session."""
    return str(spark.conf.get("spark.sql.session.timeZone"))


def zone_of_machine() -> str | None:
    """Return the zone that a session would have which is started here with nothing said; `None` where only Java can tell.

    That is the variable TZ, or else where the machine's link leads; any setting of Java's or Spark's that may say otherwise is for them.
    """
    if _is_set_elsewhere():
        return None
    named = os.environ.get("TZ")
    if named is None:
        return _linked_zone()
    with suppress(ValueError, OSError, KeyError):
        return ZoneInfo(named.removeprefix(":")).key
    return None


def _is_set_elsewhere() -> bool:
    """Tell whether options of Java's, or defaults of Spark's, may name a zone."""
    variables = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", "PYSPARK_SUBMIT_ARGS")
    texts = [os.environ.get(name, "") for name in variables]
    homes = [os.environ.get("SPARK_CONF_DIR", ""), os.path.join(os.environ.get("SPARK_HOME", ""), "conf")]
    for home in filter(os.path.isabs, homes):
        with suppress(StorageError):
            texts.append(LocalStorage().read(f"{home}/spark-defaults.conf").decode("utf-8", "replace"))
    return any("timezone" in text.lower() for text in texts)


def _linked_zone() -> str | None:
    """Return the zone that the machine's link names; where another file says another one, it depends on the Java which of them counts."""
    storage = LocalStorage()
    name = storage.resolve(_LINK).partition("/zoneinfo/")[2]
    if not name:
        return None if entry_at(storage, _LINK) or entry_at(storage, _NAME) else "UTC"
    names = {name}
    with suppress(StorageError):
        names.add(storage.read(_NAME).decode("ascii", "replace").strip())
    return name if len(names - _UTC_NAMES) + bool(names & _UTC_NAMES) == 1 else None


@functools.cache
def say_zone(*, remote: bool) -> None:
    """Have PySpark's readers say the zone of their session to our source, from now on; those of Connect if `remote`.

    A source in Python is told its options, and nothing else. So whoever names the format sets an option, too; what the user
    says by `timeZone` is another one, and counts before it. Readers of batches say that they are such: a source that is asked for its
    schema cannot tell.
    """
    stream: Any
    batch: Any
    if remote:
        # They need gRPC, as such a session does.
        from pyspark.sql.connect.readwriter import DataFrameReader as RemoteBatch
        from pyspark.sql.connect.streaming.readwriter import DataStreamReader as RemoteReader

        stream, batch, session = RemoteReader, RemoteBatch, "_client"
    else:
        from pyspark.sql.readwriter import DataFrameReader as LocalBatch
        from pyspark.sql.streaming.readwriter import DataStreamReader as LocalReader

        stream, batch, session = LocalReader, LocalBatch, "_spark"
    stream.format = _saying(stream.format, session)
    batch.format = _saying(batch.format, session, {BATCH: "true"})


def _saying(
    method: Callable[..., Any], session: str, facts: Mapping[str, str] = MappingProxyType({})
) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(reader: Any, source: str) -> Any:  # noqa: ANN401 - a reader of PySpark's, of streams or of batches
        named = method(reader, source)
        if source.lower() != "penstock":
            return named
        return named.options(sessionTimeZone=time_zone(getattr(reader, session)), **facts)

    return call
