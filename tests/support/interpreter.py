"""One interpreter that runs programs one after another: each one that starts Spark finds the warm JVM of the one before it.

A program runs as Python would run it, except for what an interpreter does once: what earlier programs imported is already
there. None of them starts the JVM. What a session sets once it exists becomes the default of all later sessions
(`spark.executorEnv.…`, too).
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.cluster import kill
from tests.support.wait import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

# If a program leaves its session running, the session is stopped when the program ends, as it would be with its process.
_RUN = """
import json, os, runpy, sys, traceback

def run(path, *arguments):
    before, sys.path[0], sys.argv = sys.path[0], os.path.dirname(path), [path, *arguments]
    try:
        runpy.run_path(path, run_name="__main__")
        return 0
    except SystemExit as error:
        return error.code
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.path[0] = before
        sql = sys.modules.get("pyspark.sql")
        session = sql and sql.SparkSession.getActiveSession()
        if session:
            session.stop()

requests, answers = os.fdopen(os.dup(0)), os.fdopen(int(sys.argv[1]), "w", buffering=1)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
for request in requests:
    said, *program = json.loads(request)
    for stream in 1, 2:
        file = os.open(f"{said}.{stream}", os.O_WRONLY | os.O_CREAT)
        os.dup2(file, stream)
        os.close(file)
    status = run(*program)
    if isinstance(status, str):
        print(status, file=sys.stderr)
    for stream in sys.stdout, sys.stderr:
        stream.flush()
    print(status if isinstance(status, int) else int(status is not None), file=answers)
"""

# Forget the modules that a command has imported from its directory: the next command may have others of the same name.
_COMMAND = """
import os, sys
from penstock.cli import main

before, path, known = os.getcwd(), list(sys.path), set(sys.modules)
os.chdir(sys.argv[1])
sys.argv = ["penstock", *sys.argv[2:]]
os.environ["COLUMNS"] = "160"
try:
    main()
finally:
    here = os.getcwd() + os.sep
    os.chdir(before)
    sys.path[:] = path
    for name in sys.modules.keys() - known:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(here):
            del sys.modules[name]
"""


# A test's directory is removed after it. If a command started the JVM there, Spark's workers would later begin in a removed
# directory.
_START = """
import penstock

penstock.local_session().stop()
"""


class Interpreter:
    """A process that runs one program after another, all in one directory, which is empty at first."""

    def __init__(self, process: subprocess.Popen[str], answers: int, room: Path) -> None:
        self._process = process
        self._answers = answers
        self._room = room
        self._number = count()
        self._is_begun = False
        self.directory = room / "in"

    def penstock(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run the command `penstock` in a directory, for tests that do not need a separate process for it.

        The output of Spark and its workers is not captured, and the workers do not import from `cwd`: they belong to the
        program that started the JVM.
        """
        return self.run(_COMMAND, str(cwd), *arguments)

    def run(
        self, program: Path | str, *arguments: str, timeout: float = PATIENCE_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run a file, or code; return how it ended. A program that takes too long is killed together with the interpreter."""
        if not self._is_begun:
            self._is_begun = True
            self.run(_START)
        said = self._room / str(next(self._number))
        if isinstance(program, str):
            (path := said.with_suffix(".py")).write_text(program, encoding="utf-8")
            program = path
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([str(said), str(program), *arguments]) + "\n")
        self._process.stdin.flush()
        if not select.select([self._answers], [], [], timeout)[0]:
            kill(self._process)
        status = int(os.read(self._answers, 100) or -1)
        out, err = (said.with_suffix(f".{stream}").read_text() for stream in (1, 2))
        return subprocess.CompletedProcess(str(program), status, out, err)


@contextmanager
def interpreter(room: Path) -> Iterator[Interpreter]:
    """Yield an interpreter that keeps its files in `room`; when the block ends, all that its programs have started is gone."""
    reading, writing = os.pipe()
    (room / "in").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN, str(writing)],
        stdin=subprocess.PIPE, cwd=room / "in", pass_fds=[writing], text=True, start_new_session=True,
    )  # fmt: skip
    os.close(writing)
    try:
        yield Interpreter(process, reading, room)
    finally:
        kill(process)
        assert process.stdin is not None
        process.stdin.close()
        os.close(reading)
