"""Crashes of a database batch: of server and driver at each step, a lost reply, a driver that stands still."""

from __future__ import annotations

import re
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pyarrow as pa
import pytest

from penstock import failpoints
from penstock.clock import use
from penstock.db import database, postgresql, silence
from penstock.db.target import ports_of
from penstock.errors import DatabaseAway
from penstock.testing import FakeClock
from tests.support.database import At, Driver, Place, ten
from tests.support.effort import effort
from tests.support.forked import Commands, forking
from tests.support.postgres import Postgres
from tests.support.relay import relayed
from tests.support.wait import wait_for

pytestmark = pytest.mark.xdist_group("db")

# Before anything; after some rows; after all rows, before the id; after the id, before COMMIT; after COMMIT.
POINTS = [
    "db.commit.begun",
    "db.commit.some-rows",
    "db.commit.before-id",
    "db.commit.before-commit",
    "db.commit.done",
]


@pytest.mark.parametrize("point", effort(POINTS[1::2] + POINTS[-1:], POINTS))
def test_server_is_killed_anywhere(at: At, postgres: Postgres, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """D2, D13: the server is killed and restarted in the middle of a batch: the driver repeats it, and it is counted once."""
    place = at(postgres.url)
    place.table = f"invalid URI {place.table}"  # errors repeat statements: their text is not the cause
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
import adbc_driver_postgresql.dbapi, adbc_driver_sqlite.dbapi
from penstock.db import postgresql
from tests.support.database import Driver, Place, ten

def main():
    url, table, name, first = sys.argv[1:]
    postgresql._IDLE_MILLIS = 500
    driver = Driver(Place(url, table), name)
    driver.begin(int(first))
    if name == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    for number in range(int(first), 2):
        driver.run(number, ten(number, of=name), ten(number, of=name))
    print("DONE")
"""


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Yield a function that starts drivers as processes, with url, table, name and first batch; each runs the batches up to 1."""
    with forking(tmp_path_factory.mktemp("drivers"), DRIVER) as begins:
        yield begins


@pytest.mark.slow
def test_driver_is_killed_anywhere(place: Place, drivers: Commands) -> None:
    """D2: one driver after another is killed, each a step later in batch 1; readers see the whole batch or nothing."""
    Driver(place).run(0, ten(0))
    for point in effort(POINTS[3:], POINTS):
        killed = drivers.run(place.url, place.table, point, 1, points=f"{point}=kill", check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
        assert len(place.rows()) == (30 if point == "db.commit.done" else 10)
    assert "DONE" in drivers.run(place.url, place.table, "last", 1).stdout
    assert len(place.rows()) == 30
    assert {row[1] for row in place.rows() if row[0] >= 10} == {f"db.commit.done{i}" for i in range(10)}


@pytest.mark.slow
def test_stopped_driver_is_fenced(place: Place, drivers: Commands) -> None:
    """F-D4: a process stopped by SIGSTOP after its begin goes on when another has taken over: it ends, and changes nothing."""
    stopped = drivers.begin(place.url, place.table, "stopped", 0)
    stopped.stands()
    other = Driver(place, "d2")
    other.run(0, ten(0))
    other.run(1, ten(1))
    stopped.signal(signal.SIGCONT)
    done = stopped.ended(check=False)
    assert "DONE" not in done.stdout
    assert "ends with batch 1" in done.stderr
    assert len(place.rows()) == 20


def test_driver_stopped_in_its_transaction(at: At, postgres: Postgres, drivers: Commands) -> None:
    """Failure 7: a driver is stopped while it locks the row; the server ends its session, the next driver goes on, the first is fenced."""
    place = at(postgres.url)
    stopped = drivers.begin(place.url, place.table, "a", 0, points="db.commit.before-id=stop")
    stopped.stands()
    other = Driver(place, "d2")
    other.run(0, ten(0))
    stopped.signal(signal.SIGCONT)
    done = stopped.ended(check=False)
    assert "DONE" not in done.stdout
    assert re.search(r"Fenced: \[PST-301\] .* belongs to driver 'd2'", done.stderr)
    assert len(place.rows()) == 10


@pytest.mark.parametrize("arrives", [True, False])
def test_lost_reply_of_commit(at: At, postgres: Postgres, arrives: bool) -> None:
    """F-D1: the connection breaks at COMMIT, which was or was not applied: the driver checks, and the batch is there once."""
    with relayed(postgres) as (relay, url):
        place = at(url)
        driver = Driver(place)
        driver.run(0, ten(0))
        driver.begin(1)
        relay.armed, relay.before = True, not arrives
        loads: list[int] = []

        def rows() -> Iterator[pa.RecordBatch]:
            loads.append(1)
            yield ten(1)

        done = driver.commit(1, rows)
        assert (relay.lost, len(loads), done.skipped) == ((1, 1, True) if arrives else (1, 2, False))
        assert len(place.rows()) == 20
        driver.run(2, ten(2))
        assert len(place.rows()) == 30


@pytest.mark.parametrize(
    ("url", "ports"),
    [
        ("postgresql://u@h/db", {"5432"}),
        ("postgresql://u@h:6543/db", {"6543"}),
        ("postgres://a:1,b:2,[::1]:3/db?x=y", {"1", "2", "3"}),
        ("postgresql:///db?host=%2Ftmp%2Fx&port=7", {"7"}),
        ("postgresql://[::1]/db", {"5432"}),
    ],
)
def test_ports_of_a_url(url: str, ports: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket to another port is not ours, whichever thread opens it while we connect."""
    monkeypatch.delenv("PGPORT", raising=False)
    assert ports_of(url) == ports


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Let another thread connect to a silent server during the first connection to a database; return both connections."""
    listener, client = socket.create_server(("127.0.0.1", 0)), socket.socket()
    found = silence.sockets

    def sockets() -> frozenset[silence.Socket]:
        before = found()
        with suppress(OSError):  # it is already connected
            client.connect(listener.getsockname())
        return before

    monkeypatch.setattr(postgresql, "sockets", sockets)
    with listener, client:
        yield listener, client


@contextmanager
def asked_soon() -> Iterator[None]:
    """Make a silent server count as dead soon, within a block: outside of it a busy server would be taken for a silent one."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(silence, "_ASK_SECONDS", 0.1)
        patched.setattr(silence, "_ANSWER_SECONDS", 0.5)
        yield


def test_server_that_stands_still(
    at: At, postgres: Postgres, monkeypatch: pytest.MonkeyPatch, foreign: tuple[socket.socket, socket.socket]
) -> None:
    """All server processes are stopped (SIGSTOP) in the middle of a batch: it ends as `DatabaseAway`; none of it is applied.

    A connection that another thread opens to a silent server at the same time is left alone, and not probed.
    """
    monkeypatch.setattr(database, "_DELAYS", ())
    place = at(postgres.url)
    driver = Driver(place)
    driver.run(0, ten(0))
    driver.begin(1)

    def hit(name: str) -> None:
        if name == "db.commit.some-rows":
            postgres.stand_still()

    with monkeypatch.context() as patched, asked_soon():
        patched.setattr(failpoints, "hit", hit)
        try:
            with pytest.raises(DatabaseAway, match="see that it runs"):
                driver.commit(1, lambda: [ten(1)])
        finally:
            postgres.go_on()
    listener, client = foreign
    with listener.accept()[0] as other:
        other.sendall(b"!")
        assert client.recv(1) == b"!"
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert (place.last(), len(place.rows())) == (0, 10)
    driver.run(1, ten(1))
    assert len(place.rows()) == 20
    wait_for(lambda: "penstock-heard" not in {each.name for each in threading.enumerate()}, "nobody who still listens")


def test_who_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that says nothing, or does not listen, is away; a proxy that hangs up on the probe is there."""
    monkeypatch.setattr(silence, "_ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        assert not silence._answers(socket.AF_INET, address)
        listener.accept()[0].close()

        def hang_up() -> None:
            with listener.accept()[0] as one:
                one.recv(8)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # abort it with a reset

        proxy = threading.Thread(target=hang_up)
        proxy.start()
        assert silence._answers(socket.AF_INET, address)
        proxy.join()
    assert not silence._answers(socket.AF_INET, address)


def test_who_watches_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a look at this process's connections fails, because its files in /proc change meanwhile, the watch goes on with the next look."""
    monkeypatch.setattr(silence, "_ASK_SECONDS", 0.02)
    monkeypatch.setattr(silence, "_ANSWER_SECONDS", 0.1)
    failures: list[Exception] = [RuntimeError("malformed line"), psutil.NoSuchProcess(1), FileNotFoundError()]
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as connection:
        listed = [each for each in silence.sockets() if each.number == connection.fileno()]

        def own() -> list[silence.Socket]:
            if failures:
                raise failures.pop()
            return listed

        with silence.heard(own):
            connection.settimeout(30)
            assert connection.recv(1) == b""
    assert not failures


def test_network_that_swallows_everything(at: At, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first rows nothing comes through, and new connections get no answer: each wait ends, and then it is `DatabaseAway`."""
    monkeypatch.setattr(database, "_DELAYS", (0.1,))
    with relayed(postgres) as (relay, url):
        monkeypatch.setattr(postgresql, "sockets", relay.clients)
        place = at(f"{url}&connect_timeout=2")
        driver = Driver(place)
        driver.run(0, ten(0))
        driver.begin(1)

        def rows() -> Iterator[pa.RecordBatch]:
            relay.mute = True
            yield ten(1)

        with asked_soon(), pytest.raises(DatabaseAway, match="tried 2 times"):
            driver.commit(1, rows)
        relay.mute = False
        driver.run(1, ten(1))
        assert len(place.rows()) == 20
