"""The fork server: Python workers of a session of ours are forked from a process that has imported all they need.

Problem. A query of ours needs seven kinds of Python process, and Spark starts most of them one after the other, each when it first
needs it. Each imports PySpark, pyarrow and us before it does anything: 0.15 to 0.3 s of a core, seven times.

Idea. While the JVM starts, one process imports all of that once. The program that Spark starts in place of Python (`launcher/python3`)
then runs `forkclient.py`, which sends its arguments, environment and standard streams to this server; the server forks, and the child
becomes the process that was asked for. To Spark the client is the process that it started: the client passes on signals, and ends when
the child ends, with its status; if the client is killed, the child is killed, too.

1. The client is killed; the child would go on without anybody to stop it. Rule: when a client's connection closes, its child gets
   SIGKILL.
2. The server is killed; clients would wait for a status for ever. Rule: a child holds its connection too, so the connection is closed
   when both server and child are gone, and the client ends as if the child had failed. Clients that come later start Python as usual.
3. The server dies between its fork and the answer; the client starts another Python, and two processes read the same streams. Rule: the
   child itself answers, before it touches anything, and ends if nobody is there to receive the answer.
4. The driver is killed; the server would stay. Rule: it ends when its standard input, which only the driver holds, has ended and its
   last child has ended, which workers do without their JVM.

A child starts as a fresh interpreter would, except for what is decided once in a process: the server refuses a client that asks for
another `PYTHON...` setting than its own, and that client starts Python as usual. polars is not imported before a fork, because it has
threads from the start. pandas is imported: pyarrow looks for it at the first array that it makes, and each task makes one to answer.
Otherwise each worker would import pandas, for 0.3 s of a core, although none of our rows goes through it.
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
    "penstock.session.worker",
    "penstock.session.executor",
    "penstock.formats.known.csv",
    "penstock.formats.known.json",
    "penstock.formats.known.parquet",
    "penstock.formats.known.text",
]
_FREE = {b"PYTHONUNBUFFERED", b"PYTHONDONTWRITEBYTECODE", b"PYTHONSTARTUP"}
_KIND = "fork"
_SETTING = re.compile(rb"PYTHON([A-Z]|_(GIL|JIT|CPU_COUNT)$)")  # variables with another _ are Spark's
_STREAMS = 3
_LISTENER = 3  # the number of the listener's descriptor in the server
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
        """Tell whether a fork of this process can be the process that is asked for."""
        if self.arguments[:1] != [b"-m"] or _searched(self.environment) != _searched(os.environb):
            return False
        asked = {name: value for name, value in self.environment.items() if _SETTING.match(name) and value}
        return all(os.environb.get(name) == asked[name] for name in asked.keys() - _FREE - {b"PYTHONPATH"})

    def close(self) -> None:
        """Close this process's copies of what the client sent."""
        for fd in self.streams:
            os.close(fd)
        self.connection.close()


def _searched(environment: Mapping[bytes, bytes]) -> set[bytes]:
    """Return where an interpreter with this environment looks for modules, besides its own directories."""
    return {*environment.get(b"PYTHONPATH", b"").split(b":"), b""}


@cache
def prepare() -> tuple[str, Callable[..., None]]:
    """Return the path by which clients will find the server of this process, and a function that starts it; it ends with this process.

    Clients that come before the server is started wait for it. The function takes `apart`: whether the server is in a process group of
    its own.
    """
    listener, path = listening(_KIND)
    atexit.register(listener.close)  # a process that starts no JVM does not start the server either
    # The other end stays open as long as this process lives, and no other process holds it.
    end, _ = os.pipe()
    ours = {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"), "OPENBLAS_NUM_THREADS": "1"}
    environment = os.environ | ours | interpreter.for_workers()

    @cache
    def start(*, apart: bool = False) -> None:
        group: dict[str, Any] = {"setpgroup": 0} if apart else {}
        with listener:
            # If a standard stream of this process is closed, either descriptor may have the number that the other one is to get.
            kept = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _LISTENER + 1) for number in (end, listener.fileno())]
        given: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_DUP2, kept[0], 0), (os.POSIX_SPAWN_DUP2, kept[1], _LISTENER)]
        # A Python without standard streams has none to pass on; a forked child gets its own later.
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
    """The server that listens at `path`, on the socket with which it was started; and the clients of the children that live."""

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
        # PySpark makes the JVM ignore it, and so do the processes that the JVM starts.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def serve(self) -> _Request | None:
        """Fork for each client. Return the request in a child, and None in the server when the server ends."""
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
        """Handle a client or driver that has closed its end; a client's child is killed."""
        self._watched.unregister(key.fileobj)
        if key.data:
            os.kill(key.data, signal.SIGKILL)  # not reaped yet, so the number still belongs to the child

    def close(self) -> None:
        """Close everything that belongs to the server; called in a child."""
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
    """Return the next `size` bytes; fewer if the connection ends before."""
    text = bytearray()
    while len(text) < size and (more := connection.recv(size - len(text))):
        text += more
    return bytes(text)


def _become(request: _Request) -> None:
    """Turn this process into the requested one, up to its first statement; end it if the client is gone."""
    try:
        request.connection.sendall(b"%d\n" % os.getpid())
    except OSError:
        sys.exit(1)
    for target, fd in enumerate(request.streams):
        os.dup2(fd, target)
        os.close(fd)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)  # type: ignore[union-attr]  # - they are the streams with which Python began
    os.chdir(request.directory)
    os.environb.clear()
    os.environb.update(request.environment)
    time.tzset()
    failpoints.arm(os.environ.get(failpoints.VARIABLE, ""))
    # Python 3.11 has it; without it, the first entry is a directory of Python's own.
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.getcwd()
    sys.argv = [os.fsdecode(argument) for argument in request.arguments[1:]]


def _leave() -> None:
    """End this process as Python does, but without freeing imported modules one by one: that takes 30 ms, while somebody may be waiting."""
    if threading.active_count() > 1:
        return  # Python waits for the other threads
    atexit._run_exitfuncs()  # noqa: SLF001 - multiprocessing does so for its forks, too
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _main() -> None:
    server = _Server(sys.argv[1])
    for name in _IMPORTED:
        importlib.import_module(name)
    importlib.import_module("pyarrow").array([b""])  # makes it import pandas, if that is installed
    gc.collect()
    gc.freeze()
    # pyarrow's allocator has threads, and copes with forks.
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
