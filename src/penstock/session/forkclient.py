"""Takes the place of a Python that Spark has started: asks the fork server for a process, and lives and ends with that process.

Run by its path, by the launcher, with nothing but the standard library: its start is all that a worker's start costs. If there is no
server, or the server refuses the request, it becomes the Python that was asked for.

Every query of a warm session waits for one such start, so this takes what `socket` and `signal` are made of: these two themselves build
tables of names (enumerations) when they are imported, which is as much work as the start of Python, and none of them is needed here.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # - only `signal` is known to mypy
import _socket as socket
import os
import sys
from array import array


def ask(path: str, arguments: list[str]) -> socket.socket | None:
    """Send the server what a process starts with; return the connection, None if there is no server."""
    connection = socket.socket(socket.AF_UNIX)
    fields = [os.getcwd(), str(len(arguments)), *arguments, *(f"{name}={value}" for name, value in os.environ.items())]
    request = os.fsencode("\0".join(fields))
    streams = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [0, 1, 2]))]
    try:
        connection.connect(path)
        connection.sendmsg([len(request).to_bytes(4, "big")], streams)
        connection.sendall(request)
    except OSError:
        return None
    return connection


def line(connection: socket.socket) -> int | None:
    """Return the next number that arrives, None if there is none."""
    text = b""
    while not text.endswith(b"\n"):
        try:
            byte = connection.recv(1)
        except OSError:
            byte = b""
        if not byte:
            return None
        text += byte
    return int(text)


def main(python: str, path: str, arguments: list[str]) -> int:
    """Return the status to end with."""
    connection = ask(path, arguments)
    child = None if connection is None else line(connection)
    if connection is None or child is None:
        os.execv(python, [python, *arguments])  # noqa: S606 - this Python is to be started
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    status = line(connection)
    if status is not None and status < 0:
        try:  # noqa: SIM105 - one more import costs one more millisecond
            signal.signal(-status, signal.SIG_DFL)
        except OSError:  # a signal that cannot be caught
            pass
        os.kill(os.getpid(), -status)
    return 1 if status is None else status


if __name__ == "__main__":
    sys.exit(main(os.environ["PENSTOCK_PYTHON"], os.environ["PENSTOCK_FORK_SERVER"], sys.argv[1:]))
