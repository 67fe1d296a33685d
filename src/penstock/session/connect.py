"""Sessions that callers give: whether they are sessions at all, and what works with Spark Connect, whose driver is elsewhere."""

from __future__ import annotations

from typing import Any

from penstock.errors import OptionError

_PROBED_ROWS = 1 << 16  # more than there are tasks


def is_remote(session: object) -> bool:
    """Tell whether a session, or a DataFrame, belongs to Spark Connect."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def is_dataframe(value: object) -> bool:
    """Tell whether a value is a DataFrame of Spark, without importing PySpark."""
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(value).__mro__}
    return "pyspark.sql.dataframe.DataFrame" in kinds


def require_session(session: object, caller: str) -> None:
    """Raise `OptionError` for a value that is not a session, or a session that was stopped; `caller` is the function that got it."""
    if is_remote(session):
        return
    from pyspark.sql import SparkSession

    if not isinstance(session, SparkSession):
        msg = f"{caller}: spark={session!r}; expected a session, such as penstock.local_session()"
        raise OptionError(msg)
    if session.sparkContext._jsc is None:  # noqa: SLF001 - PySpark shows it nowhere else
        msg = f"{caller}: the session was stopped; make a new one, such as penstock.local_session()"
        raise OptionError(msg)


def require_driver(session: object, caller: str, instead: str) -> None:
    """Raise `OptionError` if the driver is not in this process, where what `caller` names must be; `instead` says what to do."""
    if is_remote(session):
        msg = f"{caller} needs a session with its driver in this process, and this one is of Spark Connect; {instead}"
        raise OptionError(msg)


def tasks_at_a_time(session: Any) -> int:  # noqa: ANN401 - a session of either kind
    """Return how many tasks a session runs at a time; a session of Connect is asked by a job, because it says so in no other way."""
    if not is_remote(session):
        return int(session.sparkContext.defaultParallelism)
    frame = session.range(_PROBED_ROWS).selectExpr("spark_partition_id() as task").selectExpr("max(task)")
    return int(frame.collect()[0][0]) + 1


def application(session: Any) -> str:  # noqa: ANN401 - a session of either kind
    """Return an identifier that no other application, or session of Connect, has."""
    return str(session.session_id if is_remote(session) else session.sparkContext.applicationId)
