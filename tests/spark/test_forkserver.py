"""A forked worker has what Spark asked for (arguments, streams, status and end), and nothing of the fork server is left over.

The driver is a process that starts a server and waits. What it starts is a module that prints facts about itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
import pytest

from penstock.session import forkclient, forkserver, launch
from tests.support.wait import PATIENCE_SECONDS, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

pytest.importorskip("pyspark")

DRIVER = "from penstock.session import forkserver; path, start = forkserver.prepare(); print(path, start() or '', flush=True); input()"

TELLING = """
import json, os, signal, sys, time
from penstock import failpoints
print(json.dumps({
    "pid": os.getpid(), "parent": os.getppid(), "arguments": sys.argv, "name": __name__, "directory": os.getcwd(),
    "variable": os.environ.get("GIVEN"), "jvm": os.environ["PENSTOCK_JVM"], "path": sys.path[0], "hash": hash("a"),
    "imported": {"pyarrow", "penstock.formats.known.json", "penstock.formats.known.parquet"} <= set(sys.modules),
    "pandas": "pandas" in sys.modules, "armed": sorted(failpoints._armed),
    "streams": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    "ignored": signal.getsignal(signal.SIGINT) is signal.SIG_IGN, "child": signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL,
}))
for line in sys.stdin:
    print(line.strip()[::-1], file=sys.stderr)
what = sys.argv[1]
if what == "wait":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
    print("waits")
    while True:
        time.sleep(60)
if what == "raise":
    raise ValueError("on purpose")
if what == "die":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(what))
"""


WITHOUT_STREAMS = """
import os, subprocess, sys
from penstock.session import forkserver, launch
path, start = forkserver.prepare()
start()
environment = os.environ | {"PENSTOCK_PYTHON": sys.executable, forkserver.VARIABLE: path}
command = [launch.LAUNCHER, "-m", "telling", "7"]
done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
os.write(int(sys.argv[1]), f"{done.returncode} {done.stdout}".encode())
"""


class Driver:
    """A process with a fork server, and the Python workers that its Spark would start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "telling.py").write_text(TELLING)
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", DRIVER]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdout
        self.path = self.process.stdout.readline().strip()
        (self.server,) = psutil.Process(self.process.pid).children()

    def start(self, what: str, **variables: str) -> subprocess.Popen[str]:
        """Start a worker as Spark does."""
        environment = os.environ | {"PENSTOCK_PYTHON": sys.executable, forkserver.VARIABLE: self.path} | variables
        command = [launch.LAUNCHER, "-m", "telling", what]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, cwd=self.folder, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    def run(self, what: str, words: str = "", **variables: str) -> tuple[dict[str, Any], str, int]:
        """Run a worker to its end; return its facts about itself, its other output, and its status."""
        worker = self.start(what, **variables)
        said, besides = worker.communicate(words, timeout=PATIENCE_SECONDS)
        return json.loads(said.splitlines()[0]), besides, worker.returncode

    def waiting(self) -> tuple[subprocess.Popen[str], psutil.Process]:
        """Start a worker that waits; return it and the child."""
        worker = self.start("wait")
        assert worker.stdin
        assert worker.stdout
        worker.stdin.close()
        child = psutil.Process(json.loads(worker.stdout.readline())["pid"])
        assert worker.stdout.readline() == "waits\n"
        return worker, child

    def end(self) -> None:
        """Let the driver end."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path)
    yield made
    made.process.kill()
    let_go(made.process)


def gone(process: psutil.Process) -> bool:
    """Tell whether the process has ended."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def catches_sigterm(pid: int) -> bool:
    """Tell whether a process has a handler for SIGTERM."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (signal.SIGTERM - 1) & 1)


def let_go(worker: subprocess.Popen[str]) -> None:
    """Wait for the end of a process without reading its output, and close its streams."""
    worker.wait(PATIENCE_SECONDS)
    for stream in (worker.stdin, worker.stdout, worker.stderr):
        if stream:
            stream.close()


def test_a_driver_without_a_jvm_ends_without_a_warning() -> None:
    """If no JVM was started, and so no server, Python warned at its end of a socket that was left open."""
    command = [sys.executable, "-W", "always", "-c", "from penstock.session import forkserver; forkserver.prepare()"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    assert done.stderr == ""


def test_nothing_is_put_in_front_of_a_safe_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With PYTHONSAFEPATH the current directory took the first place of PYTHONPATH, and the modules of that entry were not found."""
    first = tmp_path / "first"
    first.mkdir()
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("PYTHONPATH", f"{first}:{os.environ.get('PYTHONPATH', '')}")
    driver = Driver(tmp_path)
    try:
        (tmp_path / "telling.py").rename(first / "telling.py")
        facts, _, status = driver.run("0", PENSTOCK_JVM="1")
    finally:
        driver.process.kill()
        let_go(driver.process)
    assert (facts["path"], facts["imported"], status) == (str(first), True, 0)


def test_child_is_what_was_asked_for(driver: Driver) -> None:
    """A child has the arguments, directory, environment and streams of the start, the preloaded imports, and the server as its parent."""
    said, besides, status = driver.run("7", "drawer\nspool\n", GIVEN="as given")
    assert (said["arguments"][1:], said["name"], said["variable"]) == (["7"], "__main__", "as given")
    assert (said["directory"], said["path"]) == (str(driver.folder), str(driver.folder))
    assert (said["parent"], said["imported"]) == (driver.server.pid, True)
    assert said["pandas"] == bool(find_spec("pandas")), "pyarrow looks for it when a worker first answers"
    assert said["jvm"] == str(os.getpid())
    assert (said["ignored"], said["child"]) == (True, True)
    assert len(said["streams"]) == 4, "its streams, and the connection to its client"
    assert (besides, status) == ("reward\nloops\n", 7)


def test_a_client_loads_no_tables_of_names() -> None:
    """Each query waits for the start of a client, half of which was the import of `socket` and `signal`."""
    looking = "import sys; exec(open(sys.argv[1]).read(), {'__name__': 'client'}); print(*sys.modules)"
    command = [sys.executable, "-IS", "-c", looking, forkclient.__file__]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not {"enum", "re", "selectors", "signal", "socket"} & set(loaded)


def test_workers_of_our_sessions_are_forked(spark: SparkSession) -> None:
    """A worker in one of our sessions descends from the fork server: the server accepts Spark's request with its whole environment."""

    def above(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            found = [" ".join(process.cmdline()) for process in psutil.Process().parents()]
            yield pa.RecordBatch.from_arrays([pa.array([" <- ".join(found)])], names=["above"])

    (row,) = spark.range(1).mapInArrow(above, "above string").collect()
    assert row.above.count("penstock.session.forkserver") == 2, "the daemon that forks, and the server that forked it"


def test_error_in_a_child_is_told_and_counts(driver: Driver) -> None:
    """A child that raises prints what Python would, and its client ends with Python's status; the server goes on."""
    _, besides, status = driver.run("raise")
    assert "ValueError: on purpose" in besides
    assert status == 1
    assert driver.run("0")[0]["parent"] == driver.server.pid


def test_signal_that_ends_a_child_ends_its_client(driver: Driver) -> None:
    """If a child is killed, its client ends as if it had been killed too."""
    assert driver.run("die")[2] == -signal.SIGKILL


def test_client_passes_on_sigterm(driver: Driver) -> None:
    """Java's `destroy` reaches the child, which may end as it likes."""
    worker, child = driver.waiting()
    # The child may be quicker than the client that has asked for it.
    wait_for(lambda: catches_sigterm(worker.pid), "the client, which passes SIGTERM on")
    worker.terminate()
    let_go(worker)
    assert (worker.returncode, gone(child)) == (9, True)


def test_killed_client_takes_its_child_along(driver: Driver) -> None:
    """Failure 1: otherwise nobody could stop the child."""
    worker, child = driver.waiting()
    worker.kill()
    let_go(worker)
    wait_for(lambda: gone(child), "the child's end")
    assert driver.run("0")[2] == 0


def test_killed_server_leaves_children_and_later_starts_alone(driver: Driver) -> None:
    """Failure 2: a child goes on, and its client ends after it; a later start uses a new Python process."""
    worker, child = driver.waiting()
    driver.server.kill()
    wait_for(lambda: gone(driver.server), "the server's end")
    assert not gone(child)
    said, _, status = driver.run("5")
    assert (said["parent"], said["imported"], status) == (os.getpid(), False, 5)
    child.kill()
    let_go(worker)
    assert worker.returncode == 1


def test_server_ends_after_its_driver_and_its_last_child(driver: Driver) -> None:
    """Failure 4: the driver ends or is killed; the processes that Spark started end by themselves; then nothing is left."""
    worker, child = driver.waiting()
    assert Path(driver.path).is_socket()
    driver.process.kill()
    driver.process.wait()
    assert not gone(child)
    assert not gone(driver.server)
    worker.terminate()
    let_go(worker)
    wait_for(lambda: gone(driver.server), "the server's end")
    assert not Path(driver.path).exists()


def test_killed_server_leaves_its_socket_to_the_next(driver: Driver, tmp_path: Path) -> None:
    """A killed server cannot remove its socket; the next server does, and only if that socket's driver is gone."""
    lives = Driver(tmp_path)
    driver.server.kill()
    driver.process.kill()
    let_go(driver.process)
    wait_for(lambda: gone(driver.server), "the server's end")
    later = Driver(tmp_path)
    assert [Path(each.path).exists() for each in (driver, lives, later)] == [False, True, True]
    for each in (lives, later):
        each.process.kill()
        let_go(each.process)


def test_idle_server_ends_with_its_driver(driver: Driver) -> None:
    """Failure 4, without a child."""
    driver.end()
    wait_for(lambda: gone(driver.server), "the server's end")
    assert not Path(driver.path).exists()


@pytest.mark.parametrize(
    "variables", [{"PYTHONHASHSEED": "1"}, {"PYTHONPATH": "/nowhere"}, {"PYTHONWARNINGS": "error"}]
)
def test_other_settings_of_python_start_a_python(driver: Driver, variables: dict[str, str]) -> None:
    """Python reads some settings only when it starts. A fork cannot change them, so the client starts a Python without the server."""
    said, _, status = driver.run("0", **variables)
    assert (said["parent"], said["imported"], status) == (os.getpid(), False, 0)


def test_failpoints_are_those_of_the_child(driver: Driver) -> None:
    """A process reads its failpoints once; a child reads them from its own environment, not from the server's."""
    assert driver.run("0", PENSTOCK_FAILPOINTS="a=error,b=stop")[0]["armed"] == ["a", "b"]
    assert driver.run("0")[0]["armed"] == []


def test_hashes_are_the_same_in_all_children(driver: Driver) -> None:
    """Spark gives its workers one hash seed, because they exchange hashes."""
    assert driver.run("0", PYTHONHASHSEED="0")[0]["hash"] == driver.run("0", PYTHONHASHSEED="0")[0]["hash"]


def test_connection_that_asks_for_nothing_is_left(driver: Driver) -> None:
    """A client that ends before it has sent its request blocks nobody."""
    import socket  # noqa: PLC0415 - for this test

    for words in (b"", b"\0\0\0\5abc", b"\0\0\0\3a\0b"):
        with socket.socket(socket.AF_UNIX) as lone:
            lone.connect(driver.path)
            lone.sendall(words)
    assert driver.run("0")[2] == 0


@pytest.mark.parametrize("closed", ["<&-", "<&- >&- 2>&-"])
def test_driver_without_standard_streams(tmp_path: Path, closed: str) -> None:
    """If a driver's streams are closed, its first descriptors get their numbers; the server's listener has one of these numbers."""
    (tmp_path / "telling.py").write_text(TELLING)
    ours, theirs = os.pipe()
    command = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", WITHOUT_STREAMS, str(theirs)]
    subprocess.run(command, cwd=tmp_path, pass_fds=[theirs], check=True)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        status, facts = pipe.read().split(maxsplit=1)
    assert (status, json.loads(facts)["imported"]) == ("7", True)
