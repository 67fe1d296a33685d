"""`local_session`: a local Spark that starts fast, for the sessions that we start ourselves.

Measured (2 cores, 338 MB of JSON to Parquet, whole process): 11.7 s as it comes, 8.5 s when Python workers import
compiled modules, 7.6 s when the JVM compiles with C1 only, 5.0 s with a class-data archive. So:

- Python workers start through `python.sh`, which drops the zips of PySpark from their path: they hold no compiled
  files, and each of the seven kinds of worker would compile what it imports, 0.5 s instead of 0.12 s each. And they are
  forked from a process that imports it all while the JVM starts (`forkserver`): 0.02 s.
- C1 only, and no code generation, where no data passes through the JVM, as in an ingest.
- A class-data archive in the user's cache, made by `penstock warmup`, keyed by Java and PySpark; silently unused where it
  is not there or does not fit.

- What PySpark imports at its first call into the JVM (pandas) is imported while the JVM starts.
- Spark writes its checkpoint by the older one of Hadoop's interfaces: the newer one, its default, has no native code on
  most machines and starts ten processes (`chmod`, `readlink`) for each file, and two of the files are in every batch.
  The older one starts two, and is as atomic on local disks and HDFS.

Rows that do pass reach Python over Unix sockets: a quarter faster than TCP on the loopback. On a cluster the session is
the user's.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from penstock import clock
from penstock.arguments import named
from penstock.errors import DependencyError, PenstockError
from penstock.spark import archive, forkserver
from penstock.storage import is_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

_ENDING_SECONDS = 1.0
_EXECUTORS_SECONDS = 10.0
_NO_CODE_GENERATION = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_LAUNCHER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "python.sh")


def require_pyspark() -> None:
    """Raise `DependencyError` unless a PySpark that we work with can be imported."""
    try:
        import pyspark
    except ImportError as error:
        msg = "PySpark is not installed; install it with: pip install 'penstock[spark]' (a cluster brings its own)"
        raise DependencyError(msg) from error
    if tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < (4, 3):
        msg = f"PySpark {pyspark.__version__} is too old: expected 4.3 or newer; upgrade with: pip install -U 'penstock[spark]'"
        raise DependencyError(msg)


@named
def local_session(
    master: str = "local[*]",
    *,
    config: dict[str, str] | None = None,
    rows_in_jvm: bool = True,
    quiet: bool = True,
) -> SparkSession:
    """Return a local session with the fast start; an active session is returned as it is.

    `config` is Spark configuration, and wins over ours. `rows_in_jvm=False` says that only ingests will run in it: no row
    passes through the JVM, so it need not optimise its code, and is ready sooner; else the format is registered, too, so
    that what a query leaves open is published when it stops. `quiet` keeps Spark's log to errors.
    """
    require_pyspark()
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    os.environ.setdefault("PYSPARK_PYTHON", _worker_python(master))
    threading.Thread(target=_prepare, args=(_fork_server(),), name="penstock-prepare", daemon=True).start()
    settings = _settings(master, rows_in_jvm=rows_in_jvm) | (config or {})
    builder = SparkSession.builder.master(master).appName("penstock")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    if quiet:
        session.sparkContext.setLogLevel("ERROR")
    if not _is_here(master):
        _await_executors(session)
    if rows_in_jvm:
        from penstock.spark.register import register

        register(session)
    return session


def _await_executors(spark: SparkSession) -> None:
    """Wait until no other executor has come for a second: an ingest makes as many tasks as they have cores.

    Those of a cluster come one by one, seconds after their session; where none come before there are tasks, that is all.
    """
    until = clock.monotonic() + _EXECUTORS_SECONDS
    before, now = 0, 0
    while (now == 0 or now > before) and clock.monotonic() < until:
        clock.sleep(1)
        status = spark.sparkContext._jsc.sc().getExecutorMemoryStatus()  # noqa: SLF001 - has no other name
        before, now = now, status.size() - 1  # the driver is one of them


def has_ended(spark: SparkSession) -> bool:
    """Tell whether the session's JVM is gone, or going: all that its driver sees of that is a lost connection."""
    process = getattr(spark.sparkContext._gateway, "proc", None)  # noqa: SLF001 - the only way to its process
    if process is None:
        return False
    try:
        process.wait(_ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _settings(master: str, *, rows_in_jvm: bool) -> dict[str, str]:
    compiler = [] if rows_in_jvm else [archive.QUICK_COMPILER]
    generator = {} if rows_in_jvm else dict(_NO_CODE_GENERATION)
    return (
        generator
        | _checkpoint_files()
        | (_LOOPBACK if _is_here(master) else {})  # executors elsewhere would look for the driver in vain
        | {
            "spark.driver.extraJavaOptions": " ".join([*compiler, *archive.flags()]),
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.artifact.isolation.enabled": "false",
            "spark.sql.session.timeZone": "UTC",
        }
    )


def _checkpoint_files() -> dict[str, str]:
    """Return the setting for checkpoint files, for the Spark whose classes are known."""
    import pyspark

    package = "org.apache.spark.sql.execution.streaming.checkpointing"
    name = "spark.sql.streaming.checkpointFileManagerClass"
    return {name: f"{package}.FileSystemBasedCheckpointFileManager"} if pyspark.__version__.startswith("4.3.") else {}


def _fork_server() -> Callable[[], None]:
    """Return what starts the fork server for workers that start through our launcher; where there can be none, nothing."""
    if os.environ["PYSPARK_PYTHON"] == _LAUNCHER:
        with contextlib.suppress(OSError, PenstockError):
            os.environ[forkserver.VARIABLE], start = forkserver.prepare()
            return start
    return lambda: None


def _prepare(start: Callable[[], None]) -> None:
    """Import what the session and an ingest will need, then have workers' imports made; a JVM that starts leaves a core free."""
    try:
        with contextlib.suppress(ImportError):
            import pyspark.testing.utils  # noqa: F401 - for its effect
        import penstock.spark.ingest  # noqa: F401 - for its effect
    finally:
        start()


def _worker_python(master: str) -> str:
    """Return the interpreter for workers: ours, through the launcher where it can run, which executors elsewhere cannot."""
    os.environ["PENSTOCK_PYTHON"] = sys.executable
    return _LAUNCHER if _is_here(master) and is_file(_LAUNCHER, executable=True) else sys.executable


def _is_here(master: str) -> bool:
    """Tell whether tasks run in the driver's JVM; else their processes may be on other machines."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None
