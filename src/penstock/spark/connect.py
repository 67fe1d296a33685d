"""Sessions of Spark Connect, whose driver is somewhere else: what works with them, and what needs a driver of its own."""

from __future__ import annotations

from penstock.errors import OptionError


def is_remote(session: object) -> bool:
    """Tell whether a session, or a DataFrame, is one of Spark Connect."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def require_driver(session: object, what: str) -> None:
    """Raise `OptionError` where `what` would have to run in the driver, and that is not here."""
    if is_remote(session):
        msg = (
            f"{what} needs a session with its driver in this process, and this one is of Spark Connect; expected one of its own "
            '(local, YARN, Kubernetes); readStream and writeStream of format("penstock") do work with Spark Connect'
        )
        raise OptionError(msg)
