"""Failpoints: named places at which a test may make this process die, fail or wait.

A failpoint is a call `failpoints.hit("sink.commit.before-put")` between two durable steps. If none is armed, it costs
one truth test of an empty dictionary. Tests arm failpoints with the environment variable `PENSTOCK_FAILPOINTS`, which
reaches every process of a local Spark::

    PENSTOCK_FAILPOINTS="sink.commit.before-put=kill-jvm"          the whole Spark process tree, SIGKILL
    PENSTOCK_FAILPOINTS="sink.write.staged=kill@2"                 this process, at its second hit
    PENSTOCK_FAILPOINTS="sink.commit.after-put=sleep:5,sink.publish.one=error"

Actions: `kill` (this process), `kill-jvm` (the JVM that started it, then this process), `stop` (SIGSTOP this process),
`error` (raise `OSError(EIO)`), `nospace` (raise `OSError(ENOSPC)`), `sleep:SECONDS`. `@N` acts at the Nth hit in this
process. `/FILE` at the end lets the action happen only once over all processes: the process that creates FILE acts.
"""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import dataclass

from penstock import clock

VARIABLE = "PENSTOCK_FAILPOINTS"
_ERRORS = {"error": errno.EIO, "nospace": errno.ENOSPC}


@dataclass
class _Armed:
    action: str
    at: int
    once: str | None
    hits: int = 0


def _parse(text: str) -> dict[str, _Armed]:
    armed = {}
    for item in filter(None, text.split(",")):
        name, _, action = item.partition("=")
        action, _, once = action.partition("/")
        action, _, at = action.partition("@")
        armed[name] = _Armed(action, int(at or 1), f"/{once}" if once else None)
    return armed


_armed = _parse(os.environ.get(VARIABLE, ""))


def arm(text: str) -> None:
    """Replace all armed failpoints of this process; `text` has the form of the environment variable, `""` disarms."""
    _armed.clear()
    _armed.update(_parse(text))


def hit(name: str) -> None:
    """Die, fail or wait if `name` is armed; otherwise return at once."""
    if _armed and name in _armed:
        _act(name, _armed[name])


def _act(name: str, armed: _Armed) -> None:
    armed.hits += 1
    if armed.hits != armed.at or (armed.once and not _first(armed.once)):
        return
    kind, _, argument = armed.action.partition(":")
    if kind == "sleep":
        clock.sleep(float(argument))
    elif kind in _ERRORS:
        raise OSError(_ERRORS[kind], f"failpoint {name}")
    else:
        if kind == "kill-jvm":
            _kill_jvm()
        os.kill(os.getpid(), signal.SIGSTOP if kind == "stop" else signal.SIGKILL)


def _first(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def _kill_jvm() -> None:
    from penstock.processes import jvm

    process = jvm()
    if process:
        process.kill()
