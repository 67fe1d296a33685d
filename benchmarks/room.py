"""The contenders' directories and processes: each has one process, and only one process works at any time."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.session import launch

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parent.parent
_NO_SYNC = Path(__file__).resolve().parent / "nosync"
_ANSWER_SECONDS_MAX = 7200
_END_SECONDS_MAX = 60
_POLL_SECONDS = 0.02
_LOG_SHOWN = 2000


class ContenderFailed(Exception):
    """A contender's process has died, or reports an error."""


@dataclass(frozen=True)
class Room:
    """The places below one directory: input that is kept, output that is not, logs, and a separate cache."""

    root: Path

    @property
    def data(self) -> Path:
        """Return the directory of data sets."""
        return self._directory("data")

    @property
    def work(self) -> Path:
        """Return the directory of outputs, on the file system of the input."""
        return self._directory("work")

    @property
    def logs(self) -> Path:
        """Return the directory for the stderr of contenders."""
        return self._directory("logs")

    @property
    def skipped_syncs(self) -> Path:
        """Return the file with one byte for each sync that a contender without syncs skipped."""
        return self.work / "skipped-syncs"

    def cache(self, *, archive: bool) -> Path:
        """Return the cache directory of a contender, with or without the class-data archive of `penstock warmup`."""
        return self._directory("cache" if archive else "cache-without-archive")

    def _directory(self, name: str) -> Path:
        path = self.root / name
        path.mkdir(parents=True, exist_ok=True)
        return path


def clear(path: Path) -> None:
    """Remove a directory and its contents, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def environment(kind: str, room: Room, *, archive: bool = True, syncs: bool = True) -> dict[str, str]:
    """Return the environment of a contender's process: this process's, with the contender's variables."""
    base = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "PENSTOCK_"))}
    base[launch.TOGETHER] = "1"  # the group is waited for and killed
    base["BENCHMARKS_SKIPPED_SYNCS"] = str(room.skipped_syncs)
    inherited = [str(Path(entry).resolve()) for entry in base.get("PYTHONPATH", "").split(os.pathsep) if entry]
    first = [] if syncs else [str(_NO_SYNC)]
    base["PYTHONPATH"] = os.pathsep.join([*first, str(REPOSITORY), *inherited])
    base["XDG_CACHE_HOME"] = str(room.cache(archive=archive))
    if kind == "spark":
        base["PYSPARK_PYTHON"] = sys.executable
    return base


def ensure_archive(room: Room) -> None:
    """Make in our own cache what `penstock warmup` makes, unless it exists."""
    code = "from penstock.session import archive, direct; archive.flags() or archive.make(); direct.learn()"
    _completed([sys.executable, "-c", code], environment("ingest", room), room, "warmup")


def whole_process(
    kind: str, command: dict[str, Any], room: Room, *, archive: bool = True, variables: dict[str, str] | None = None
) -> float:
    """Run one command in a new process, with additional environment variables; return the seconds from its start to its end."""
    arguments = [sys.executable, "-m", "benchmarks.worker", kind, json.dumps(command)]
    return _completed(arguments, environment(kind, room, archive=archive) | (variables or {}), room, kind)


def whole_command(arguments: list[str], room: Room) -> float:
    """Run `penstock` with these arguments; return the seconds from its start to its end."""
    return _completed([sys.executable, "-m", "penstock", *arguments], environment("ingest", room), room, "penstock")


def _completed(arguments: list[str], variables: dict[str, str], room: Room, label: str) -> float:
    path = room.logs / f"{label}.log"
    with path.open("wb") as log:
        start = time.perf_counter()
        with _process(arguments, room, variables, log.fileno(), subprocess.DEVNULL) as process:
            status = process.wait(_ANSWER_SECONDS_MAX)
            seconds = time.perf_counter() - start
    if status:
        msg = f"{label} ended with status {status}: {_end_of(path)}"
        raise ContenderFailed(msg)
    return seconds


@contextlib.contextmanager
def _process(
    arguments: list[str], room: Room, variables: dict[str, str], log: int, stdout: int
) -> Iterator[subprocess.Popen[str]]:
    """Yield a process in its own group; at the end wait for the group (a JVM takes a while), then kill it."""
    process = subprocess.Popen(
        arguments,
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=log,
        text=True,
        env=variables,
        cwd=room.work,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            _signal(process.pid, signal.SIGKILL)
            process.wait()
        end = time.monotonic() + _END_SECONDS_MAX
        while _signal(process.pid, 0):
            if time.monotonic() > end:
                _signal(process.pid, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _signal(group: int, number: int) -> bool:
    """Send a signal to a group that we started; tell whether any process is left in it."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def _end_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")[-_LOG_SHOWN:].strip()


class Worker:
    """A contender's process that keeps its session; see `benchmarks.worker`. Made by `worker`."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.pid = process.pid
        self._process = process
        self._log = log

    def ask(self, **command: Any) -> dict[str, Any]:  # noqa: ANN401 - what JSON holds
        """Run a command; return its answer. Raises `ContenderFailed`."""
        self.send(**command)
        return self.answer()

    def send(self, **command: Any) -> None:  # noqa: ANN401 - what JSON holds
        """Send a command, without waiting for its end."""
        assert self._process.stdin is not None
        try:
            print(json.dumps(command), file=self._process.stdin, flush=True)
        except BrokenPipeError as error:
            raise ContenderFailed(self._died()) from error

    def answer(self) -> dict[str, Any]:
        """Wait for the answer to the last command."""
        stdout = self._process.stdout
        assert stdout is not None
        ready, _, _ = select.select([stdout], [], [], _ANSWER_SECONDS_MAX)
        line = stdout.readline() if ready else ""
        if not line:
            raise ContenderFailed(self._died())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ContenderFailed(answer["error"])
        return answer

    def _died(self) -> str:
        return f"no answer from process {self.pid} (status {self._process.poll()}): {_end_of(self._log)}"


@contextlib.contextmanager
def worker(
    kind: str, room: Room, *, archive: bool = True, syncs: bool = True, variables: dict[str, str] | None = None
) -> Iterator[Worker]:
    """Yield a contender (an engine, or bare: without Spark) whose session is up; it ends with the block."""
    merged = environment(kind, room, archive=archive, syncs=syncs) | (variables or {})
    path = room.logs / f"{kind}-{time.time_ns()}.log"
    arguments = [sys.executable, "-m", "benchmarks.worker", kind]
    with path.open("wb") as log, _process(arguments, room, merged, log.fileno(), subprocess.PIPE) as process:
        made = Worker(process, path)
        made.answer()
        yield made
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died meanwhile; the caller of `ask` knows
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS_MAX)
    path.unlink()
