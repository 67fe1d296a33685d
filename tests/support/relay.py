"""A network between a client and PostgreSQL that loses messages on command."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from penstock.db.silence import Socket
from tests.support.postgres import Postgres


class Relay(threading.Thread):
    """Forwards messages between a client and the server.

    `armed`: it forwards one COMMIT, keeps the reply, and hangs up; `before`: it hangs up without forwarding the COMMIT. `mute`:
    it accepts data and new connections, but answers nothing any more.
    """

    def __init__(self, postgres: Postgres) -> None:
        super().__init__(daemon=True)
        self._server = f"{postgres.directory}/.s.PGSQL.5432"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.armed = self.before = self.mute = False
        self.lost = 0

    def run(self) -> None:
        """Relay one connection after another, until the listener is closed."""
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.socket(socket.AF_UNIX) as server:  # a client may reset the connection
            server.connect(self._server)
            back = threading.Thread(target=self._answer, args=(server, client), daemon=True)
            back.start()
            prepared = False
            while data := client.recv(1 << 16):
                if self.mute:
                    continue
                if prepared and (data.startswith((b"B", b"Q")) or b"COMMIT\0" in data):
                    self.lost += 1
                    client.shutdown(socket.SHUT_RDWR)
                    if self.before:
                        server.shutdown(
                            socket.SHUT_RDWR
                        )  # the other thread is reading from it: closing alone does nothing
                    else:
                        server.sendall(data)
                    return
                # A statement is parsed and described before it is executed. Check the data before forwarding it: an earlier
                # statement is executed at once, and its answer may lead the test to arm this relay.
                prepares = self.armed and b"COMMIT\0" in data
                server.sendall(data)
                if prepares:
                    self.armed, prepared = False, True
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # the other thread is reading from it: closing alone would do nothing

    def clients(self) -> frozenset[Socket]:
        """Return its clients' sockets in the form of `silence.sockets`. They are in this process, and so are the relay's own sockets.

        Each is identified by its own port, though the server does not know it: a socket that reuses the descriptor of another
        is a different one.
        """
        found = psutil.Process().net_connections("tcp")
        ends = (each for each in found if each.status == psutil.CONN_ESTABLISHED and each.raddr.port == self.port)
        return frozenset(Socket(each.fd, each.family, str(each.laddr.port), str(self.port)) for each in ends)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if not self.mute:
                    client.sendall(data)

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


@contextmanager
def relayed(postgres: Postgres) -> Iterator[tuple[Relay, str]]:
    """Yield a relay and the url that leads clients to it."""
    relay = Relay(postgres)
    relay.start()
    try:
        yield relay, f"postgresql://postgres@127.0.0.1:{relay.port}/postgres?sslmode=disable&gssencmode=disable"
    finally:
        relay.close()
