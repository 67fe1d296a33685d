"""Crashes of a database batch: of the server and of the driver at each step, a lost reply, a driver that stands still."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from penstock import failpoints
from penstock.clock import use
from penstock.testing import FakeClock
from tests.support.database import At, Driver, Place, ten
from tests.support.postgres import Postgres
from tests.support.wait import wait_for

pytestmark = pytest.mark.xdist_group("db")

# Before anything, after some rows, after all rows before the id, after the id before COMMIT, after COMMIT.
POINTS = [
    "db.commit.begun",
    "db.commit.some-rows",
    "db.commit.before-id",
    "db.commit.before-commit",
    "db.commit.done",
]


@pytest.mark.parametrize("point", POINTS)
def test_server_is_killed_anywhere(at: At, postgres: Postgres, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """D2, D13: the server is killed and started again in mid batch: the driver runs it again, and it is added up once."""
    place = at(postgres.url)
    rows = [ten(1).drop_columns(["v"]), ten(2).drop_columns(["v"])]
    driver = Driver(place, options={"mode": "merge", "keyColumns": "k"}, schema=rows[0].schema)
    driver.run(0, *rows)
    driver.begin(1)
    killed: list[str] = []

    def hit(name: str) -> None:
        if name == point and not killed:
            killed.append(name)
            postgres.restart()

    monkeypatch.setattr(failpoints, "hit", hit)
    with use(FakeClock()):
        driver.commit(1, lambda: rows)
    assert killed
    assert place.rows() == [(k, 2) for k in range(10, 30)]
    assert place.last() == 1


DRIVER = """
import os, signal, sys
from penstock.db import database
from tests.support.database import Driver, Place, ten
url, table, name, first = sys.argv[1:]
database._IDLE_MILLIS = 500
driver = Driver(Place(url, table), name)
driver.begin(int(first))
if name == "stopped":
    os.kill(os.getpid(), signal.SIGSTOP)
for number in range(int(first), 2):
    driver.run(number, ten(number, of=name), ten(number, of=name))
print("DONE")
"""


def start(place: Place, name: str, first: int, armed: str = "") -> subprocess.Popen[str]:
    """Start a driver in a process of its own, which runs batches up to 1."""
    command = [sys.executable, "-c", DRIVER, place.url, place.table, name, str(first)]
    environment = os.environ | {"PENSTOCK_FAILPOINTS": armed}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_driver_is_killed_anywhere(place: Place) -> None:
    """D2: one driver after the other is killed, each a step further in batch 1; readers see all of it or nothing."""
    Driver(place).run(0, ten(0))
    for point in POINTS:
        killed = start(place, point, 1, f"{point}=kill")
        out, err = killed.communicate(timeout=60)
        assert killed.returncode == -signal.SIGKILL, out + err
        assert len(place.rows()) == (30 if point == "db.commit.done" else 10)
    out, err = start(place, "last", 1).communicate(timeout=60)
    assert "DONE" in out, err
    assert len(place.rows()) == 30
    assert {row[1] for row in place.rows() if row[0] >= 10} == {f"db.commit.done{i}" for i in range(10)}


def test_stopped_driver_is_fenced(place: Place) -> None:
    """F-D4: a process stopped by SIGSTOP behind its begin goes on when another has taken over: it ends, and changes nothing."""
    stopped = start(place, "stopped", 0)
    wait_for(lambda: os.waitpid(stopped.pid, os.WUNTRACED | os.WNOHANG)[0], "a process that stops")
    other = Driver(place, "d2")
    other.run(0, ten(0))
    other.run(1, ten(1))
    stopped.send_signal(signal.SIGCONT)
    out, err = stopped.communicate(timeout=60)
    assert "DONE" not in out
    assert "is at batch 1" in err
    assert len(place.rows()) == 20


def test_driver_stopped_in_its_transaction(at: At, postgres: Postgres) -> None:
    """Failure 7: a driver is stopped with the row's lock; the server ends its session, the next one goes on, and it is fenced."""
    place = at(postgres.url)
    stopped = start(place, "a", 0, "db.commit.before-id=stop")
    wait_for(lambda: os.waitpid(stopped.pid, os.WUNTRACED | os.WNOHANG)[0], "a process that stops")
    other = Driver(place, "d2")
    other.run(0, ten(0))
    stopped.send_signal(signal.SIGCONT)
    out, err = stopped.communicate(timeout=60)
    assert "DONE" not in out
    assert re.search(r"Fenced: \[PST-301\] .* belongs to driver d2", err)
    assert len(place.rows()) == 10


class Relay(threading.Thread):
    """Stands between a client and the server. When it is told to, it hands on one COMMIT, keeps the reply, and hangs up."""

    def __init__(self, postgres: Postgres) -> None:
        super().__init__(daemon=True)
        self._server = f"{postgres.directory}/.s.PGSQL.5432"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.armed = False
        self.lost = 0

    def run(self) -> None:
        """Relay one connection after the other, until the listener is closed."""
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(self._server)
            back = threading.Thread(target=_copy, args=(server, client), daemon=True)
            back.start()
            prepared = False
            while data := client.recv(1 << 16):
                if prepared and (data.startswith((b"B", b"Q")) or b"COMMIT\0" in data):
                    self.lost += 1
                    client.shutdown(socket.SHUT_RDWR)
                    server.sendall(data)
                    return
                server.sendall(data)
                if self.armed and b"COMMIT\0" in data:  # is parsed and described before it is executed
                    self.armed, prepared = False, True

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        return


@contextmanager
def relayed(postgres: Postgres) -> Iterator[tuple[Relay, str]]:
    """Yield a relay and the url by which clients meet it."""
    relay = Relay(postgres)
    relay.start()
    try:
        yield relay, f"postgresql://postgres@127.0.0.1:{relay.port}/postgres?sslmode=disable&gssencmode=disable"
    finally:
        relay.close()


def test_lost_reply_of_commit(at: At, postgres: Postgres) -> None:
    """F-D1: the server gets COMMIT and does it, the reply is lost: the driver looks, and the batch is there once."""
    with relayed(postgres) as (relay, url):
        place = at(url)
        driver = Driver(place)
        driver.run(0, ten(0))
        driver.begin(1)
        relay.armed = True
        loads: list[int] = []

        def rows() -> Iterator[pa.RecordBatch]:
            loads.append(1)
            yield ten(1)

        done = driver.commit(1, rows)
        assert (relay.lost, len(loads), done.skipped) == (1, 1, True)
        assert len(place.rows()) == 20
        driver.run(2, ten(2))
        assert len(place.rows()) == 30
