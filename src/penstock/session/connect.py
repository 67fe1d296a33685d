"""Sessions that callers give: whether they are any, and what works with those of Spark Connect, whose driver is elsewhere."""

from __future__ import annotations

from penstock.errors import OptionError


def is_remote(session: object) -> bool:
    """Tell whether a session, or a DataFrame, is one of Spark Connect."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def is_dataframe(value: object) -> bool:
    """Tell whether a value is a DataFrame of Spark, without importing what would make one."""
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(value).__mro__}
    return "pyspark.sql.dataframe.DataFrame" in kinds


def require_session(session: object, caller: str) -> None:
    """Raise `OptionError` for what is no session, or one that was stopped; `caller` is the function that was given it."""
    if is_remote(session):
        return
    from pyspark.sql import SparkSession

    if not isinstance(session, SparkSession):
        msg = f"{caller}: spark={session!r}; expected a session, such as penstock.local_session()"
        raise OptionError(msg)
    if session.sparkContext._jsc is None:  # noqa: SLF001 - PySpark says it nowhere else
        msg = f"{caller}: the session was stopped; make a new one, such as penstock.local_session()"
        raise OptionError(msg)


def require_driver(session: object, caller: str) -> None:
    """Raise `OptionError` where the function `caller` would have to run in the driver, and that is not here."""
    if is_remote(session):
        msg = (
            f"{caller} needs a session with its driver in this process, and this one is of Spark Connect; expected one of its own "
            '(local, YARN, Kubernetes); readStream and writeStream of format("penstock") do work with Spark Connect'
        )
        raise OptionError(msg)
