"""The fork server: Python workers of a session of ours are forked from a process that has imported all they need.

Problem. A query of ours needs seven kinds of Python process, and Spark starts most of them one after the other, each when
it first needs it. Each imports PySpark, pyarrow and us before it does anything: 0.15 to 0.3 s of a core, seven times.

Idea. While the JVM starts, a process imports that once. What Spark starts in place of Python (`launcher/python3`) then runs
`forkclient.py`, which hands its arguments, environment and standard streams to this server; the server forks, and the
child becomes what was asked for. To Spark the client is the process it started: it passes on signals, ends when the child
ends, with its status, and the child is killed when it is.

1. The client is killed; the child would go on without anybody to stop it. Rule: a client's connection that closes is the
   child's SIGKILL.
2. The server is killed; clients would wait for a status for ever. Rule: a child holds its connection too, so it is closed
   when neither is left, and the client ends as if the child had failed. Clients that come later start Python as usual.
3. The server dies between its fork and the answer; the client starts another Python, and two processes read the same
   streams. Rule: the child itself answers, before it touches anything, and ends if nobody is there to hear it.
4. The driver is killed; the server would stay. Rule: it ends when its standard input does, which only the driver holds,
   and its last child has ended, as workers do without their JVM.

A child starts as a fresh interpreter would, but for what is decided once in a process: the server refuses whoever asks
for another `PYTHON...` setting than its own, and that one starts Python as usual. polars is not imported before a fork:
it has threads from the start. pandas is: pyarrow looks for it at the first array that it makes, and each task makes one
to answer, so that each of its workers imported it, for 0.3 s of a core, though no row of ours goes through it.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import os
import re
import runpy
import selectors
import signal
import socket
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from penstock import failpoints
from penstock.session import interpreter
from penstock.storage import listening, no_longer_listening

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

VARIABLE = "PENSTOCK_FORK_SERVER"
_IMPORTED = [
    "pyspark.worker",
    "pyspark.sql.streaming.datasource",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyarrow.parquet",
    "pyspark_penstock",
    "penstock.spark.datasource",
    "penstock.source.configured",
    "penstock.spark.writer",
    "penstock.spark.writing",
]
_FREE = {b"PYTHONUNBUFFERED", b"PYTHONDONTWRITEBYTECODE", b"PYTHONSTARTUP"}
_KIND = "fork"
_SETTING = re.compile(rb"PYTHON([A-Z]|_(GIL|JIT|CPU_COUNT)$)")  # those with another _ are Spark's
_STREAMS = 3
_LISTENER = 3  # the number of its descriptor in the server
_REQUEST_SECONDS = 10.0


@dataclass
class _Request:
    """What a client asks for; `streams` are its standard streams."""

    connection: socket.socket
    streams: list[int]
    directory: bytes
    arguments: list[bytes]
    environment: dict[bytes, bytes]

    @property
    def suits(self) -> bool:
        """Tell whether a fork of this process can be what is asked for."""
        if self.arguments[:1] != [b"-m"] or _searched(self.environment) != _searched(os.environb):
            return False
        asked = {name: value for name, value in self.environment.items() if _SETTING.match(name) and value}
        return all(os.environb.get(name) == asked[name] for name in asked.keys() - _FREE - {b"PYTHONPATH"})

    def close(self) -> None:
        """Leave what the client gave to the child, or to nobody."""
        for fd in self.streams:
            os.close(fd)
        self.connection.close()


def _searched(environment: Mapping[bytes, bytes]) -> set[bytes]:
    """Return where an interpreter with this environment looks for modules, beside its own places."""
    return {*environment.get(b"PYTHONPATH", b"").split(b":"), b""}


@cache
def prepare() -> tuple[str, Callable[..., None]]:
    """Return the path by which clients will find the server of this process, and what starts it; it ends with this process.

    Clients that come before it is started wait for it. What starts it takes whether it is to be `apart`: in a process group of its own.
    """
    listener, path = listening(_KIND)
    # The other end of it stays open as long as this process lives, and is in no other.
    end, _ = os.pipe()
    ours = {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"), "OPENBLAS_NUM_THREADS": "1"}
    environment = os.environ | ours | interpreter.for_workers()

    @cache
    def start(*, apart: bool = False) -> None:
        group: dict[str, Any] = {"setpgroup": 0} if apart else {}
        with listener:
            # Either may have the number that the other one gets, where a standard stream of this process is closed.
            kept = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _LISTENER + 1) for number in (end, listener.fileno())]
        given: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_DUP2, kept[0], 0), (os.POSIX_SPAWN_DUP2, kept[1], _LISTENER)]
        # A Python without these has none to give to what it forks, whose own come later.
        closed = [number for number, stream in ((1, sys.__stdout__), (2, sys.__stderr__)) if stream is None]
        given += [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in closed]
        try:
            os.posix_spawn(
                sys.executable, [sys.executable, "-m", __name__, path], environment, file_actions=given, **group
            )
        finally:
            for number in (end, *kept):
                os.close(number)

    return path, start


class _Server:
    """The server that listens, on the socket that it was started with, at `path`; and the clients of the children that live."""

    def __init__(self, path: str) -> None:
        self._clients: dict[int, socket.socket] = {}
        self._path = path
        self._listener = socket.socket(fileno=_LISTENER)
        self._woken, self._wake = socket.socketpair()
        self._watched = selectors.DefaultSelector()
        for end in (self._listener, self._woken, self._wake):
            end.setblocking(False)  # noqa: FBT003 - its signature
        for watched in (self._listener, self._woken, sys.stdin):
            self._watched.register(watched, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # PySpark has the JVM ignore it, and so what the JVM starts

    def serve(self) -> _Request | None:
        """Fork for whoever asks. Return the request in a child, and None in the server when it is over."""
        while self._clients or sys.stdin in self._watched.get_map():
            for key, _ in self._watched.select():
                if key.fileobj is self._listener:
                    request = self._accepted()
                    if request and not self._forked(request):
                        return request
                elif key.fileobj is self._woken:
                    self._woken.recv(1 << 16)
                else:
                    self._gone(key)
            self._reap()
        no_longer_listening(self._path)
        return None

    def _gone(self, key: selectors.SelectorKey) -> None:
        """Take note that a client, or the driver, has closed its end; the client's child ends with it."""
        self._watched.unregister(key.fileobj)
        if key.data:
            os.kill(key.data, signal.SIGKILL)  # not reaped yet, so the number is the child's

    def close(self) -> None:
        """Give up all that is the server's; called in a child."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._watched.close()
        for end in (self._listener, self._woken, self._wake, *self._clients.values()):
            end.close()

    def _accepted(self) -> _Request | None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return None
        request = _Request(connection, [], b"", [], {})
        try:
            connection.settimeout(_REQUEST_SECONDS)
            head, request.streams, _, _ = socket.recv_fds(connection, 4, _STREAMS)
            text = _received(connection, int.from_bytes(head, "big"))
            connection.settimeout(None)
            request.directory, count, *fields = text.split(b"\0")
            request.arguments = fields[: int(count)]
            request.environment = dict(field.split(b"=", 1) for field in fields[int(count) :])
        except (OSError, ValueError):
            request.close()
            return None
        if not request.suits or len(request.streams) != _STREAMS:
            request.close()
            return None
        return request

    def _forked(self, request: _Request) -> int:
        pid = os.fork()
        if pid:
            self._clients[pid] = request.connection.dup()
            self._watched.register(self._clients[pid], selectors.EVENT_READ, pid)
            request.close()
        return pid

    def _reap(self) -> None:
        while self._clients:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            with contextlib.suppress(KeyError):
                self._watched.unregister(self._clients[pid])
            with self._clients.pop(pid) as client, contextlib.suppress(OSError):
                client.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _received(connection: socket.socket, size: int) -> bytes:
    """Return the next `size` bytes; fewer where the connection ends before."""
    text = bytearray()
    while len(text) < size and (more := connection.recv(size - len(text))):
        text += more
    return bytes(text)


def _become(request: _Request) -> None:
    """Make this process what was asked for, up to its first statement; ends it if the client is gone."""
    try:
        request.connection.sendall(b"%d\n" % os.getpid())
    except OSError:
        sys.exit(1)
    for target, fd in enumerate(request.streams):
        os.dup2(fd, target)
        os.close(fd)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)  # type: ignore[union-attr]  # - they are those that Python began with
    os.chdir(request.directory)
    os.environb.clear()
    os.environb.update(request.environment)
    time.tzset()
    failpoints.arm(os.environ.get(failpoints.VARIABLE, ""))
    if not getattr(sys.flags, "safe_path", False):  # of Python 3.11; else the first place is one of Python's own
        sys.path[0] = os.getcwd()
    sys.argv = [os.fsdecode(argument) for argument in request.arguments[1:]]


def _leave() -> None:
    """End this process as Python does, but for freeing one by one what was imported: 30 ms, while somebody may be waiting."""
    if threading.active_count() > 1:
        return  # Python waits for the others
    atexit._run_exitfuncs()  # noqa: SLF001 - as multiprocessing does for its forks
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _main() -> None:
    server = _Server(sys.argv[1])
    for name in _IMPORTED:
        importlib.import_module(name)
    importlib.import_module("pyarrow").array([b""])  # has it import pandas, where there is one
    gc.collect()
    gc.freeze()
    # The allocator of pyarrow is, and knows of forks.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    warnings.filterwarnings("ignore", ".* found in sys.modules", RuntimeWarning)
    request = server.serve()
    if request is None:
        return
    server.close()
    _become(request)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    _leave()


if __name__ == "__main__":
    _main()
