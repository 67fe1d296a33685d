"""Who watches a connection touches no other one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from penstock.db import silence
from penstock.db.silence import Socket, heard, sockets


@pytest.fixture
def mute() -> Iterator[socket.socket]:
    """Return a connection to a server that takes it and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        yield client


def watched(listed: Socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Watch `listed` until it has been looked at some times."""
    monkeypatch.setattr(silence, "_ASK_SECONDS", 0.01)
    monkeypatch.setattr(silence, "_ANSWER_SECONDS", 0.01)
    looks, enough = [], threading.Event()

    def own() -> list[Socket]:
        looks.append(listed)
        if len(looks) > 3:  # the third is over then
            enough.set()
        return [listed]

    with heard(own):
        assert enough.wait(30)


def is_open(connection: socket.socket) -> bool:
    """Tell whether something could still be sent."""
    try:
        return connection.send(b"x") == 1
    except BrokenPipeError:
        return False


def test_a_connection_without_an_answer_is_shut_down(mute: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the next tests would see if they were wrong."""
    (listed,) = [each for each in sockets() if each.number == mute.fileno()]
    watched(listed, monkeypatch)
    assert not is_open(mute)


def test_a_number_that_another_connection_has_by_now(mute: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the list and the look the connection was closed, and somebody else's has its number: that one is left alone."""
    watched(Socket(mute.fileno(), socket.AF_INET, "1", str(mute.getpeername()[1])), monkeypatch)
    assert is_open(mute)


def test_a_number_that_a_socket_of_another_family_has_by_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its peer has no port: the thread that watches ended with a TypeError, and nobody watched any more."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        watched(Socket(ours.fileno(), socket.AF_INET, "1", "2"), monkeypatch)
        assert is_open(ours)


def test_a_number_that_a_file_has_by_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither that file nor a descriptor of ours is left open or closed by it."""
    with open(__file__, "rb") as file:
        before = sorted(each.number for each in sockets())
        watched(Socket(file.fileno(), socket.AF_INET, "1", "2"), monkeypatch)
        assert file.read(1) == b'"'
        assert sorted(each.number for each in sockets()) == before
