"""A server that says nothing any more: whoever waits for it is woken.

Failure: a server stands still (SIGSTOP, a machine that is frozen), or the network swallows what is sent.
  1. The driver has sent a statement, and waits for the reply.
  2. Nothing comes, ever. The kernel at the other end may go on to acknowledge what it gets, so no time-out of TCP helps; and a
     statement may take as long as it likes, so a limit of ours would be wrong for somebody.
  Rule: while a transaction runs, another connection asks the same address every ten seconds whether somebody is there, by the
  first message of PostgreSQL's protocol, which a server answers before it asks who is there. Without an answer within ten
  seconds our own connection is shut down, and the wait ends as that for a connection that was lost.
  (`test_server_that_stands_still`, `test_network_that_swallows_everything`)
"""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_ASK_SECONDS = 10.0
_ANSWER_SECONDS = 10.0
_SSL_REQUEST = bytes.fromhex(
    "00000008 04d2162f"
)  # eight bytes, and a version of the protocol that means: do you speak TLS?


class Socket(NamedTuple):
    """A connected socket of this process: descriptor, family, and the port by which a server knows it: our own, or that of its path.

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
        with suppress(OSError), socket.fromfd(number, family, socket.SOCK_STREAM) as connection:
            peer, own = connection.getpeername(), connection.getsockname()
            of_path = str(peer).rpartition(".")[2]
            ports = (of_path, of_path) if family == socket.AF_UNIX else (str(own[1]), str(peer[1]))
            open_sockets.add(Socket(number, family, *ports))
    return frozenset(open_sockets)


@contextmanager
def heard(own: Callable[[], Iterable[Socket]]) -> Iterator[None]:
    """Within the block, shut down connections among `own` as soon as nobody answers at their other end."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_ASK_SECONDS):
            for number, family, *_ in _now(own):
                # A duplicate: the number may be that of another file by the time that nobody has answered.
                with suppress(OSError), socket.fromfd(number, family, socket.SOCK_STREAM) as connection:
                    if not _answers(family, connection.getpeername()) and not done.is_set():
                        connection.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=watch, name="penstock-heard", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _now(own: Callable[[], Iterable[Socket]]) -> list[Socket]:
    """Return the connections as they are; none if they cannot be read now, since who watches must go on."""
    try:
        return list(own())
    except (
        OSError,
        RuntimeError,
        psutil.Error,
    ):  # `psutil` finds lines of /proc that change under it, and says so in many ways
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
            return True  # a proxy that does not like the question is there
    return True
