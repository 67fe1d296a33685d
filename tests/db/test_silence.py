"""The watch of a connection touches no other connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from penstock.db import silence
from penstock.db.silence import Socket, heard, sockets


@pytest.fixture
def mute() -> Iterator[socket.socket]:
    """Yield a connection to a server that accepts it and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        yield client


def watched(listed: Socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Watch `listed` until the watch has looked several times."""
    monkeypatch.setattr(silence, "_ASK_SECONDS", 0.01)
    monkeypatch.setattr(silence, "_ANSWER_SECONDS", 0.01)
    looks, enough = [], threading.Event()

    def own() -> list[Socket]:
        looks.append(listed)
        if len(looks) > 3:  # the third is over by then
            enough.set()
        return [listed]

    with heard(own):
        assert enough.wait(30)


def is_open(connection: socket.socket) -> bool:
    """Tell whether the socket can still send."""
    try:
        return connection.send(b"x") == 1
    except BrokenPipeError:
        return False


def test_a_connection_without_an_answer_is_shut_down(mute: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other tests would see this if they were wrong."""
    (listed,) = [each for each in sockets() if each.number == mute.fileno()]
    watched(listed, monkeypatch)
    assert not is_open(mute)


def test_a_number_that_another_connection_has_by_now(mute: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection was closed between the list and the look, and another connection has its number: that one is left alone."""
    watched(Socket(mute.fileno(), socket.AF_INET, "1", str(mute.getpeername()[1])), monkeypatch)
    assert is_open(mute)


def test_a_number_that_a_socket_of_another_family_has_by_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a socket's peer has no port: the watching thread once ended with a TypeError, and nothing was watched any more."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        watched(Socket(ours.fileno(), socket.AF_INET, "1", "2"), monkeypatch)
        assert is_open(ours)


def test_a_number_that_a_file_has_by_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch neither closes that file nor leaves one of our descriptors open."""
    with open(__file__, "rb") as file:
        before = sorted(each.number for each in sockets())
        watched(Socket(file.fileno(), socket.AF_INET, "1", "2"), monkeypatch)
        assert file.read(1) == b'"'
        assert sorted(each.number for each in sockets()) == before
