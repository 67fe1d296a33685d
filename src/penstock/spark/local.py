"""`penstock.local_session`: a session that starts fast, and in which our formats are found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.arguments import named
from penstock.session.local import require_pyspark, start
from penstock.spark.register import register, register_formats

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@named
def local_session(
    master: str = "local[*]",
    *,
    config: dict[str, str] | None = None,
    rows_in_jvm: bool = True,
    quiet: bool = True,
) -> SparkSession:
    """Return a local session with the fast start; an active session is returned as it is.

    `config` is Spark configuration, and wins over ours. `rows_in_jvm=False` says that only ingests will run in the session: no row
    passes through the JVM, so the JVM need not optimise its code, and is ready sooner. Otherwise the format is registered as well, so
    that what a query leaves open is published when it stops. `quiet` limits Spark's log to errors, and our own errors to a line each.

    Raises `OptionError` if `master` is not valid, and `DependencyError`, with what to do, if no session can start; `penstock doctor`
    says more. A `PYSPARK_PYTHON` that names another Python than this one is honoured, with a warning: it costs time.
    """
    return session_of(master, config or {}, rows_in_jvm=rows_in_jvm, quiet=quiet)


def session_of(
    master: str, config: dict[str, str], *, rows_in_jvm: bool, quiet: bool = True, apart: bool = False
) -> SparkSession:
    """Return a session as `local_session` does. `apart`: signals to the group of this process do not reach the processes of Spark."""
    require_pyspark()
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    session, has_formats = start(master, config, rows_in_jvm=rows_in_jvm, quiet=quiet, load=_load_ingest, apart=apart)
    if rows_in_jvm:
        register(session)
    elif not has_formats:
        register_formats(session)
    return session


def _load_ingest() -> None:
    """Import what an ingest will need."""
    import penstock.ingestion.ingest  # noqa: F401 - for its effect
