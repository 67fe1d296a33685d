"""A local Spark that starts fast, for the sessions that we start ourselves (`penstock.local_session`).

Measured (2 cores, 338 MB of JSON to Parquet, whole process): 11.7 s without these measures, 8.5 s when Python workers import compiled
modules, 7.6 s when the JVM compiles with C1 only, 5.0 s with a class-data archive. So:

- Python workers start through a launcher (`launch`), which removes the zips of PySpark from their path: these contain no compiled
  files, and each of the seven kinds of worker would compile what it imports, 0.5 s instead of 0.12 s each. And they are forked from a
  process that imports everything while the JVM starts (`forkserver`): 0.02 s.
- C1 only, and no code generation, if no data passes through the JVM, as in an ingest.
- A class-data archive in the user's cache, made by `penstock warmup`, keyed by Java and PySpark; silently unused if it is not there or
  does not fit.
- What PySpark imports at its first call into the JVM (pandas) is imported while the JVM starts.
- Spark writes its checkpoint through the older one of Hadoop's interfaces: the newer one, its default, has no native code on most
  machines and starts ten processes (`chmod`, `readlink`) for each file, and two of the files are in every batch. The older one starts
  two, and is as atomic on local disks and HDFS.

Rows that do pass through the JVM reach Python over Unix sockets: a quarter faster than TCP on the loopback. On a cluster the user makes
the session.

Everything that prevents any session from starting is found before the JVM is started (`machine`); the environment of this process is
restored after the start (`launch`).
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from functools import partial
from typing import TYPE_CHECKING

from penstock import clock
from penstock.errors import PenstockError
from penstock.session import archive, host, launch, noise, pythons
from penstock.session.finding import require
from penstock.session.master import is_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

ZONE = "UTC"  # of the sessions that we start, whatever the machine's zone is
_ENDING_SECONDS = 1.0
_EXECUTORS_SECONDS = 10.0
_NO_CODE_GENERATION = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def require_pyspark() -> None:
    """Raise `DependencyError` unless a PySpark with which we work can be imported."""
    require(pythons.pyspark())


def start(
    master: str,
    config: dict[str, str],
    *,
    rows_in_jvm: bool,
    quiet: bool,
    load: Callable[[], None],
    apart: bool = False,
) -> tuple[SparkSession, bool]:
    """Return a new local session as `penstock.local_session` promises it, and whether Spark finds our formats in it.

    Called when no session is active. `load` imports what will be needed, and is called while the JVM starts. `apart`: a signal to the
    group of this process reaches only this process. Raises `DependencyError`.
    """
    apart = apart and launch.may_be_apart()
    planned = launch.plan(master)
    beside = partial(planned.beside, apart=apart)
    ours, options = _settings(master, rows_in_jvm=rows_in_jvm, quiet=quiet)
    settings = _named(master) | ours | config
    with planned.environment():
        if is_here(master) and not config:
            launch.begin_jvm(settings, options, apart=apart, output=None)
        threading.Thread(target=_prepare, args=(load, beside), name="penstock-prepare", daemon=True).start()
        from pyspark.sql import SparkSession

        launch.start_jvm(settings, options if is_here(master) and not config else None, apart=apart)
        builder = SparkSession.builder
        for name, value in settings.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
    _keep_from_others(session, ours.keys() - config.keys())
    if quiet:
        noise.hush()
        session.sparkContext.setLogLevel("ERROR")
    if not is_here(master):
        _await_executors(session)
    return session, not planned.registers


def _keep_from_others(session: SparkSession, names: Iterable[str]) -> None:
    """Remove our settings from what a JVM remembers: it would give the settings with which it was started to each later session."""
    if (jvm := session.sparkContext._jvm) is not None:  # noqa: SLF001 - has no public name
        remembered = jvm.java.lang.System.getProperties()
        for name in names:
            remembered.remove(name)


def _await_executors(spark: SparkSession) -> None:
    """Wait until no further executor has come for a second, because an ingest makes as many tasks as the executors have cores.

    The executors of a cluster come one by one, seconds after their session. If none come before there are tasks, the wait simply ends.
    """
    until = clock.monotonic() + _EXECUTORS_SECONDS
    before, now = 0, 0
    while (now == 0 or now > before) and clock.monotonic() < until:
        clock.sleep(1)
        status = spark.sparkContext._jsc.sc().getExecutorMemoryStatus()  # noqa: SLF001 - has no public name
        before, now = now, status.size() - 1  # the driver is one of them


def has_ended(spark: SparkSession, seconds: float = _ENDING_SECONDS) -> bool:
    """Tell whether the session's JVM has ended, or ends within `seconds`: its driver sees only a lost connection."""
    process = getattr(spark.sparkContext._gateway, "proc", None)  # noqa: SLF001 - the only access to its process
    if process is None:
        return False
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def begin(master: str, *, output: int | None) -> None:
    """Start the JVM for the ingest session that `start` will make with `apart`, quietly, without waiting for it.

    Nothing is raised: `start` will report what is wrong. `output` is where the JVM writes its output, `None`: to the output of this
    process.
    """
    if not is_here(master):
        return
    with contextlib.suppress(PenstockError, OSError):
        require_pyspark()
        planned = launch.plan(master, quiet=True)
        ours, options = _settings(master, rows_in_jvm=False, quiet=True)
        with planned.environment():
            launch.begin_jvm(_named(master) | ours, options, apart=launch.may_be_apart(), output=output)


def end_begun() -> None:
    """End the JVM that `begin` started, if no session has taken it."""
    launch.end_jvm()


def _named(master: str) -> dict[str, str]:
    return {"spark.master": master, "spark.app.name": "penstock"}


def _settings(master: str, *, rows_in_jvm: bool, quiet: bool) -> tuple[dict[str, str], list[str]]:
    """Return our settings for a session, and the Java options in them."""
    compiler = [] if rows_in_jvm else [archive.QUICK_COMPILER]
    log_options = noise.jvm_options() if quiet else []
    generator = {} if rows_in_jvm else _NO_CODE_GENERATION
    # Executors on other hosts could not reach the driver on a loopback address.
    address = _LOOPBACK if is_here(master) else {}
    java_options = [*compiler, *archive.flags(), *host.java_options(), *log_options]
    own = {
        "spark.driver.extraJavaOptions": archive.as_options(java_options),
        "spark.python.unix.domain.socket.enabled": str(host.has_sockets()).lower(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.artifact.isolation.enabled": "false",
        "spark.sql.session.timeZone": ZONE,
    }
    return generator | _checkpoint_files() | address | own, java_options


def _checkpoint_files() -> dict[str, str]:
    """Return the setting for checkpoint files, for Spark versions whose class names are known."""
    import pyspark

    package = "org.apache.spark.sql.execution.streaming.checkpointing"
    name = "spark.sql.streaming.checkpointFileManagerClass"
    return {name: f"{package}.FileSystemBasedCheckpointFileManager"} if pyspark.__version__.startswith("4.3.") else {}


def _prepare(load: Callable[[], None], beside: Callable[[], None]) -> None:
    """Import what the session will need, then start the fork server, which imports for workers; a starting JVM leaves a core free."""
    try:
        with contextlib.suppress(ImportError):
            import pyspark.testing.utils  # noqa: F401 - for its effect
        load()
    finally:
        beside()
