"""A watch for servers that have fallen silent: it wakes the code that waits for them.

Failure: a server stands still (SIGSTOP, a frozen machine), or the network swallows what is sent.
  1. The driver has sent a statement, and waits for the reply.
  2. No reply ever comes. The kernel at the other end may still acknowledge what it gets, so no TCP time-out helps. A
     statement may take as long as it likes, so any limit of ours would be wrong for somebody.
  Rule: while a transaction runs, another connection asks the same address every ten seconds whether a server is there.
  It sends the first message of PostgreSQL's protocol, which a server answers before it asks who connects. If there is
  no answer within ten seconds, our own connection is shut down, and the wait ends as for a lost connection.
  (`test_server_that_stands_still`, `test_network_that_swallows_everything`)
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_ASK_SECONDS = 10.0
_ANSWER_SECONDS = 10.0
# Eight bytes: a length, and a protocol version that asks the server whether it speaks TLS.
_SSL_REQUEST = bytes.fromhex("00000008 04d2162f")


class Socket(NamedTuple):
    """A connected socket of this process: descriptor, family, and the port by which a server knows it (our own, or that of its path).

    `asked` is the port at the other end.
    """

    number: int
    family: int
    port: str
    asked: str


def sockets() -> frozenset[Socket]:
    """Return the connected sockets of this process."""
    open_sockets = set()
    for number, family in {
        (each.fd, each.family) for each in psutil.Process().net_connections("all") if each.type == socket.SOCK_STREAM
    }:
        with suppress(OSError), _duplicate(number) as connection:
            if connection.family == family:
                open_sockets.add(_as_listed(number, connection))
    return frozenset(open_sockets)


def _duplicate(number: int) -> socket.socket:
    """Duplicate the socket that now has this descriptor, of whatever family; OSError if it is not a socket."""
    duplicate = os.dup(number)
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        raise


def _as_listed(number: int, connection: socket.socket) -> Socket:
    """Return the facts about a duplicate of the descriptor `number`; OSError if it is not connected."""
    peer, own = connection.getpeername(), connection.getsockname()
    of_path = str(peer).rpartition(".")[2]
    ports = (of_path, of_path) if connection.family == socket.AF_UNIX else (str(own[1]), str(peer[1]))
    return Socket(number, connection.family, *ports)


@contextmanager
def heard(own: Callable[[], Iterable[Socket]]) -> Iterator[None]:
    """Within the block, shut down each connection among `own` as soon as nobody answers at its other end."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_ASK_SECONDS):
            for listed in _now(own):
                # A duplicate, because the descriptor may belong to another file by the time the check has failed. It
                # may even have changed since the connections were listed; then it is not ours, and its family may be
                # any.
                with suppress(OSError), _duplicate(listed.number) as connection:
                    if _as_listed(listed.number, connection) != listed:
                        continue
                    if not _answers(listed.family, connection.getpeername()) and not done.is_set():
                        connection.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=watch, name="penstock-heard", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _now(own: Callable[[], Iterable[Socket]]) -> list[Socket]:
    """Return the connections as they are; none if they cannot be read now, because the watch must go on."""
    try:
        return list(own())
    # /proc changes while `psutil` reads it, which raises many kinds of errors.
    except (OSError, RuntimeError, psutil.Error):
        return []


def _answers(family: int, address: tuple[object, ...] | str) -> bool:
    with socket.socket(family) as asking:
        asking.settimeout(_ANSWER_SECONDS)
        try:
            asking.connect(address)
        except OSError:
            return False
        try:
            asking.sendall(_SSL_REQUEST)
            asking.recv(1)
        except TimeoutError:
            return False
        except OSError:
            return True  # even a proxy that refuses the question is alive
    return True
