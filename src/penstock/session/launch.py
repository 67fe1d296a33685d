"""How the JVM of a session of ours is started: which Python its workers use, and which environment it gets.

Spark takes the Python of its workers from the environment of its JVM and from the environment of the process that makes the session,
and from nowhere else. Variables that are set for good would also apply to what this process starts later: a session on a cluster, whose
hosts do not have our launcher. So they are set while the session is made, and restored after that.

The launcher is what the JVM finds as `python3`, on a path that begins with the launcher's own directory:

- Spark asks a shell whether the command exists, and does not quote it. A path with a space in it is not a command, and Spark then looks
  for no formats at all (`DATA_SOURCE_NOT_FOUND`); a bare name is a command wherever it is found.
- `python3` is Spark's default if no Python is named, so what a JVM remembers of it is right for any later session.

Spark finds Python formats by asking the interpreter that the JVM takes for Python. If that is not the Python of the workers (on a
cluster, in a JVM that another program has started, with a `PYSPARK_PYTHON` of one's own), our formats are registered explicitly.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.session import direct, forkserver, interpreter, machine
from penstock.session.finding import notes, require
from penstock.session.master import check_master, is_here
from penstock.storage import is_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_log = logging.getLogger("penstock.session")
_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "launcher")
_NAME = "python3"
TOGETHER = "PENSTOCK_ONE_GROUP"
LAUNCHER = f"{_FOLDER}/{_NAME}"
_one_at_a_time = threading.RLock()
_ours: Any = None  # the gateway of the JVM that was started with the launcher
_begun: tuple[direct.BegunJvm, dict[str, str], bool, dict[str, str]] | None = (
    None  # and the settings with which it was begun, as `_with` returns them
)


def _nothing(*, apart: bool = False) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Launch:
    """How a session is started: the environment meanwhile (None: variable not set), and what is started beside the JVM.

    `beside` takes whether that runs in a process group of its own, as the JVM then does (`start_jvm`). `registers` says that Spark
    would not find our formats by itself with the Python of the workers.
    """

    variables: dict[str, str | None]
    registers: bool = False
    has_launcher: bool = False
    beside: Callable[..., None] = field(default=_nothing)

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        """Set the environment of this process to that of the session for a block, and restore it after the block."""
        global _ours  # noqa: PLW0603 - a process has one JVM
        with _one_at_a_time:
            before = {name: os.environ.get(name) for name in self.variables}
            _set(self.variables)
            try:
                yield
            finally:
                _set(before)
                if self.has_launcher:
                    _ours = _gateway()


def may_be_apart() -> bool:
    """Tell whether processes that a command starts may have groups of their own: not if the user kills everything as one group."""
    return os.environ.get(TOGETHER, "0") in {"", "0"}


def begin_jvm(settings: Mapping[str, str], options: Sequence[str], *, apart: bool, output: int | None) -> None:
    """Start the JVM of the session to come with these settings, without waiting, if there is none yet and the command is known.

    See `direct.begin`. The caller ends it with `end_jvm`, unless a session took it.
    """
    global _begun  # noqa: PLW0603 - a process has one JVM
    if _begun is None and not _has_jvm():
        jvm = direct.begin(settings, options, apart=apart, output=output)
        _begun = None if jvm is None else (jvm, *_with(settings, apart=apart))


def _with(settings: Mapping[str, str], *, apart: bool) -> tuple[dict[str, str], bool, dict[str, str]]:
    """Return with what a JVM is begun: its settings, whether it is apart, and the environment."""
    return dict(settings), apart, dict(os.environ)


def end_jvm() -> None:
    """End the JVM that was begun, if no session has taken it."""
    global _begun
    begun, _begun = _begun, None
    if begun is not None:
        begun[0].end()


def start_jvm(settings: Mapping[str, str], options: Sequence[str] | None, *, apart: bool) -> None:
    """Start the JVM of the session to come, or take the one that was begun for it, if there is none yet.

    `options` are Java's options, as `settings` have them; `None`: there may be others. `apart`: in a session of its own. Then a signal
    to a whole group (Ctrl-C in a terminal, `timeout`, a terminal that is closed) reaches only the command, which ends its queries in
    order. The JVM still ends with the command, because its standard input ends then.
    """
    if _has_jvm():
        return
    gateway = None if options is None else _begun_gateway(settings, options, apart=apart)
    if gateway is None and not apart:
        return  # PySpark starts it
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if gateway is None:
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        gateway = launch_gateway(conf, {"start_new_session": True})  # type: ignore[no-untyped-call]  # - PySpark has no types there
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - the only way to make a session use it


def _begun_gateway(settings: Mapping[str, str], options: Sequence[str], *, apart: bool) -> Any:  # noqa: ANN401 - py4j's
    """Return the gateway of the JVM that was begun, or is begun now; `None` if only Spark's scripts know how, or if the JVM has ended."""
    global _begun
    if _begun is not None and _begun[1:] != _with(settings, apart=apart):
        end_jvm()
    begin_jvm(settings, options, apart=apart, output=None)
    begun, _begun = _begun, None  # whatever the result, it is used only once
    return None if begun is None else begun[0].gateway()


def plan(master: str, *, quiet: bool = False) -> Launch:
    """Return how to start a session; `DependencyError` if none can start. Logs what will make it slow, unless `quiet`."""
    # A JVM that another program has started is used as it is.
    if _has_jvm() and (_ours is None or _gateway() is not _ours):
        return Launch({"PYSPARK_PYTHON": _named() or sys.executable}, registers=True)
    if not _has_jvm():
        _look_at_machine(master, quiet=quiet)
    return _with_python(master, {**machine.for_jvm(master), **interpreter.for_workers()})


def _look_at_machine(master: str, *, quiet: bool) -> None:
    """Raise `DependencyError` if no session can start, and warn of what makes it slow."""
    check_master(master)
    findings = machine.before_start(master)
    require(*findings)
    for note in notes(findings) if not quiet else ():
        _log.warning("Spark's start: %s", note)


def _with_python(master: str, variables: dict[str, str | None]) -> Launch:
    """Return the launch for the Python that workers will use: one on a cluster, another one here, or this one."""
    named = _named()
    if not is_here(master):
        return _on_cluster(named or sys.executable, variables)
    if named is not None and not interpreter.is_this(named):
        return _without_launcher(named, variables)
    if not is_file(LAUNCHER, executable=True):
        return _without_launcher(sys.executable, variables)
    return _with_launcher(variables)


def _on_cluster(python: str, variables: dict[str, str | None]) -> Launch:
    registers = shutil.which(python) is not None  # a Python that only executors have cannot be asked here
    return Launch(variables | {"PYSPARK_PYTHON": python}, registers=registers)


def _without_launcher(python: str, variables: dict[str, str | None]) -> Launch:
    own = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": None}
    return Launch(variables | own, registers=True)


def _with_launcher(variables: dict[str, str | None]) -> Launch:
    variables |= {
        "PATH": os.pathsep.join([_FOLDER, os.environ.get("PATH") or os.defpath]),
        "PENSTOCK_PYTHON": sys.executable,
        "PENSTOCK_PYTHON_VERSION": ".".join(map(str, sys.version_info[:2])),
        "PYSPARK_PYTHON": None,
        "PYSPARK_DRIVER_PYTHON": None,
    }
    beside: Callable[..., None] = _nothing
    # If there is no fork server, Python starts as usual.
    with contextlib.suppress(OSError, PenstockError):
        variables[forkserver.VARIABLE], beside = forkserver.prepare()
    return Launch(variables, has_launcher=True, beside=beside)


def _named() -> str | None:
    """Return the Python that the user chose for workers; an empty name counts as none."""
    return os.environ.get("PYSPARK_PYTHON") or None


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _gateway() -> Any:  # noqa: ANN401 - py4j's
    from pyspark import SparkContext

    return SparkContext._gateway  # noqa: SLF001 - the only way to find out whether there is a JVM


def _has_jvm() -> bool:
    """Tell whether this process has a JVM already: of an earlier session, or the one that has started it (`spark-submit`)."""
    return _gateway() is not None or "PYSPARK_GATEWAY_PORT" in os.environ
