"""The command, or another program, in processes that cost no start: each is forked from a process that has imported everything.

For tests that run a command without Spark many times, kill it, or freeze it: a new Python takes a second of processor time, a
forked process an eighth of that. Each process receives signals and has its own failpoints. The process they are forked from has
opened nothing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import psutil

from tests.support.wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

# These imports only load the modules: no code of theirs runs before the fork.
COMMAND = """
import confluent_kafka.admin, pyarrow.dataset, pyarrow.parquet, pydantic, rich.console
import penstock.cli.app, penstock.cli.dry, penstock.cli.early, penstock.cli.ingest, penstock.formats.groups
import penstock.formats.known.json, penstock.formats.known.parquet, penstock.formats.known.text
import penstock.ingestion.ingest, penstock.ingestion.workers, penstock.kafka.read
from penstock.cli import main
"""

# Follows a program that has a function `main`. The waiting for a process is done in a process, too, so that several can run at
# once.
_FORKS = """
import importlib, json, os, signal, sys, traceback
from contextlib import suppress

from penstock import failpoints

def put(path, number):
    with open(path + ".new", "w") as file:
        file.write(str(number))
    os.rename(path + ".new", path)

for name in sys.argv[1:]:
    with suppress(ImportError):
        importlib.import_module(name)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    if os.fork():
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    said, points, *sys.argv[1:] = json.loads(line)
    files = [os.open(f"{said}.{stream}", os.O_WRONLY | os.O_CREAT) for stream in (1, 2)]  # there however soon it is killed
    if child := os.fork():
        put(said + ".pid", child)
        put(said + ".status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os._exit(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream, file in enumerate(files, 1):
        os.dup2(file, stream)
    failpoints.arm(points)
    status = 1
    try:
        main()
        status = 0
    except SystemExit as error:
        status = error.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in sys.stdout, sys.stderr:
            stream.flush()
        os._exit(status)
"""


@dataclass(frozen=True)
class Running:
    """A command that was started; `said` is the path, without its suffix, of the files that say what becomes of it."""

    said: Path

    def _noted(self, name: str) -> int:
        """Wait for a note of the process, and return it."""
        path = self.said.with_suffix(name)
        wait_for(path.exists, f"{name} of a command")
        return int(path.read_text())

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._noted(".pid")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def stands(self) -> None:
        """Wait until the process is stopped (SIGSTOP)."""
        process = psutil.Process(self.pid)
        wait_for(lambda: process.status() == psutil.STATUS_STOPPED, "a command that stops")

    @property
    def is_over(self) -> bool:
        """Tell whether it has ended."""
        return self.said.with_suffix(".status").exists()

    def ended(self, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Wait for its end and return how it ended; a signal is its number, negated. With `check`, assert that it succeeded."""
        status = self._noted(".status")
        out, err = (self.said.with_suffix(f".{stream}").read_text() for stream in (1, 2))
        assert not check or status == 0, err
        return subprocess.CompletedProcess("penstock", status, out, err)


class Commands:
    """Starts commands; for use in one thread."""

    def __init__(self, process: subprocess.Popen[str], room: Path) -> None:
        self._process = process
        self._room = room
        self._number = count()

    def begin(self, *arguments: object, points: str = "") -> Running:
        """Start the command with these arguments and these failpoints armed."""
        running = Running(self._room / str(next(self._number)))
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([str(running.said), points, *map(str, arguments)]) + "\n")
        self._process.stdin.flush()
        return running

    def run(self, *arguments: object, points: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run it, and return how it ended."""
        return self.begin(*arguments, points=points).ended(check=check)


@contextmanager
def forking(room: Path, program: str = COMMAND, libraries: Sequence[str] = ()) -> Iterator[Commands]:
    """Yield a `Commands` that keeps its notes in `room`; when the block ends, all processes that it has started are gone.

    Another `program` is code that imports what it needs and then defines a function `main`, which finds the arguments in
    `sys.argv`. `libraries` are modules that only these commands need; those that are installed are imported before the forks,
    too.
    """
    command = [sys.executable, "-c", program + _FORKS, *libraries]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            yield Commands(process, room)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
