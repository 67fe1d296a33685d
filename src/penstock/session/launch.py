"""How the JVM of a session of ours is started: which Python its workers are, and what it finds in its environment.

Spark takes the Python of its workers from the environment of its JVM and from that of the process that makes the session,
and from nowhere else. What is set there for good is there, too, for what this process starts later: a session on a
cluster, whose hosts have no launcher of ours. So it is set while the session is made, and is behind that what it was.

The launcher is what the JVM finds as `python3`, on a path that begins with the launcher's own directory:

- Spark asks a shell whether there is such a command, and does not quote it. A path with a space in it is no command, and
  Spark then looks for no formats at all (`DATA_SOURCE_NOT_FOUND`); a bare name is one wherever it is found.
- `python3` is what Spark takes where nothing is said, so what a JVM remembers of it is right for any later session.

Spark finds formats of Python's by asking what the JVM takes for Python. Where that is not the Python of the workers (on a
cluster, in a JVM that somebody else has started, with a `PYSPARK_PYTHON` of one's own) ours are registered by hand.
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
    None  # with what it was begun with, as `_with` has it
)


def _nothing(*, apart: bool = False) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Launch:
    """How a session is started: what the environment is meanwhile (None: not there), and what is started beside the JVM.

    `beside` takes whether that is to be in a process group of its own, as the JVM then is (`start_jvm`).
    `registers` says that Spark would not find our formats by itself for the Python that the workers are.
    """

    variables: dict[str, str | None]
    registers: bool = False
    has_launcher: bool = False
    beside: Callable[..., None] = field(default=_nothing)

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        """Let the environment of this process be what the session is to be made with, and behind the block what it was."""
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
    """Tell whether what a command starts may be in groups of its own: not for who wants all of it gone with one kill of the group."""
    return os.environ.get(TOGETHER, "0") in {"", "0"}


def begin_jvm(settings: Mapping[str, str], options: Sequence[str], *, apart: bool, output: int | None) -> None:
    """Start the JVM of the session to come, which has these settings, without waiting for it, if there is none yet and it is known how.

    See `direct.begin`. Who has it begun ends it with `end_jvm`, unless a session took it.
    """
    global _begun  # noqa: PLW0603 - a process has one JVM
    if _begun is None and not _has_jvm():
        jvm = direct.begin(settings, options, apart=apart, output=output)
        _begun = None if jvm is None else (jvm, *_with(settings, apart=apart))


def _with(settings: Mapping[str, str], *, apart: bool) -> tuple[dict[str, str], bool, dict[str, str]]:
    """Return what a JVM is begun with: its settings, whether it is apart, and the environment."""
    return dict(settings), apart, dict(os.environ)


def end_jvm() -> None:
    """End the JVM that was begun, if no session has taken it."""
    global _begun
    begun, _begun = _begun, None
    if begun is not None:
        begun[0].end()


def start_jvm(settings: Mapping[str, str], options: Sequence[str] | None, *, apart: bool) -> None:
    """Start the JVM of the session to come, or take the one that was begun for it, if there is none yet.

    `options` are Java's, as `settings` have them; `None`: there may be others. `apart`: in a session of its own. A signal that goes to
    a whole group (Ctrl-C in a terminal, `timeout`, a terminal that is closed) then reaches the command alone, which ends its queries in
    order. The JVM ends with it all the same: its standard input does.
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
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - the only way to have a session take it


def _begun_gateway(settings: Mapping[str, str], options: Sequence[str], *, apart: bool) -> Any:  # noqa: ANN401 - py4j's
    """Return what reaches the JVM that was begun, or is begun now; `None` where Spark must say how, or it has ended."""
    global _begun
    if _begun is not None and _begun[1:] != _with(settings, apart=apart):
        end_jvm()
    begin_jvm(settings, options, apart=apart, output=None)
    begun, _begun = _begun, None  # whatever comes of it, nobody asks it again
    return None if begun is None else begun[0].gateway()


def plan(master: str, *, quiet: bool = False) -> Launch:
    """Return how to start a session; `DependencyError` where none can start. Says what will make it slow, unless `quiet`."""
    # A JVM that somebody else has started is as it is.
    if _has_jvm() and (_ours is None or _gateway() is not _ours):
        return Launch({"PYSPARK_PYTHON": _named() or sys.executable}, registers=True)
    if not _has_jvm():
        _look_at_machine(master, quiet=quiet)
    return _with_python(master, {**machine.for_jvm(master), **interpreter.for_workers()})


def _look_at_machine(master: str, *, quiet: bool) -> None:
    """Raise `DependencyError` for what no session can start with, and warn of what makes it slow."""
    check_master(master)
    findings = machine.before_start(master)
    require(*findings)
    for note in notes(findings) if not quiet else ():
        _log.warning("Spark's start: %s", note)


def _with_python(master: str, variables: dict[str, str | None]) -> Launch:
    """Return the launch for the Python that workers will be: of a cluster's, another one here, or this one."""
    named = _named()
    if not is_here(master):
        return _on_cluster(named or sys.executable, variables)
    if named is not None and not interpreter.is_this(named):
        return _without_launcher(named, variables)
    if not is_file(LAUNCHER, executable=True):
        return _without_launcher(sys.executable, variables)
    return _with_launcher(variables)


def _on_cluster(python: str, variables: dict[str, str | None]) -> Launch:
    registers = shutil.which(python) is not None  # what only executors have cannot be asked here
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
    # Without a fork server Python starts as usual.
    with contextlib.suppress(OSError, PenstockError):
        variables[forkserver.VARIABLE], beside = forkserver.prepare()
    return Launch(variables, has_launcher=True, beside=beside)


def _named() -> str | None:
    """Return what the user wants workers to be; an empty name is none."""
    return os.environ.get("PYSPARK_PYTHON") or None


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _gateway() -> Any:  # noqa: ANN401 - py4j's
    from pyspark import SparkContext

    return SparkContext._gateway  # noqa: SLF001 - the only way to know of a JVM


def _has_jvm() -> bool:
    """Tell whether this process has a JVM already: of a session before, or the one that has started it (`spark-submit`)."""
    return _gateway() is not None or "PYSPARK_GATEWAY_PORT" in os.environ
