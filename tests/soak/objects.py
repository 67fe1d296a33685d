"""Drivers that write to one object store and are killed, with the store or without it: `python -m tests.soak.objects --minutes 5`.

No Spark runs: a driver is a process that continues with the batch after the ledger's last, as Spark would after a restart. SIGKILL ends it
at any moment, alone or with MinIO, which is started again. At times two drivers run at once, and one of them is fenced; at times a driver
is stopped (SIGSTOP) while another one continues its batch, and then goes on itself. Half of them reach the store through a relay that loses
replies, and refuses requests because there are too many. In the end every line of every batch in the ledger is in a finished object
exactly once, and `penstock verify` finds nothing wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.cli.check import verify
from penstock.errors import CommitError, StorageError
from penstock.options import SINK, parse
from penstock.sink.sink import Batch, Sink
from penstock.storage import locate
from tests.support.stores import Relay, StoreServer, running

if TYPE_CHECKING:
    from collections.abc import Iterator

TASKS, LINES = 3, 40
_SCHEMA = pa.schema([("value", pa.string())])
_DOWN_SECONDS = 2.0  # for which a killed store is down
_STOPPED, _TWO, _STORE_TOO, _RELAYED = 0.2, 0.3, 0.25, 0.5  # the probability of each
_LOSES, _STORMS = 100, 40  # of the relay: it loses one reply, and refuses one request, in so many


def opened(root: str) -> Sink:
    """Return the sink that all drivers use."""
    storage, place = locate(root)
    options = {"path": place, "rollRows": "100"}
    return Sink(storage, place, parse(SINK, options, what="sink"), "s")


def lines_of(batch: int, task: int) -> list[str]:
    """Return the lines of a task, the same in each try."""
    return [f"{batch} {task} {number}" for number in range(LINES)]


def drive(root: str, owner: str) -> None:
    """Write batches for ever, starting after the ledger's last one; end when fenced, or when the store is away."""
    sink = opened(root)
    print("begins", flush=True)  # noqa: T201 - to who kills it
    try:
        while True:
            number = sink.ledger.head().last_batch("query") + 1
            batch = Batch("query", number, str(number))
            begun = sink.begin(owner, batch)
            tasks = [
                sink.write(
                    begun,
                    "query",
                    number,
                    task,
                    _SCHEMA,
                    ["".join(f"{line}\n" for line in lines_of(number, task)).encode()],
                )
                for task in range(TASKS)
            ]
            sink.commit(batch, tasks)
    except (CommitError, StorageError) as error:
        print(f"{owner}: {type(error).__name__}", file=sys.stderr)  # noqa: T201 - a program of its own


class _Kills:
    """Drivers that are started, and the ways in which they end."""

    def __init__(self, root: str, store: StoreServer, relay: Relay, chance: random.Random) -> None:
        self._root, self._store, self._relay, self._chance = root, store, relay, chance
        self._drivers = 0

    def until(self, end: float) -> Iterator[str]:
        """Let drivers work and end, again and again; yield what happened to each."""
        while time.monotonic() < end:
            yield self._stopped() if self._chance.random() < _STOPPED else self._killed()

    def _start(self) -> subprocess.Popen[bytes]:
        owner, self._drivers = f"driver-{self._drivers}", self._drivers + 1
        command = [sys.executable, "-m", "tests.soak.objects", "--drive", self._root, "--owner", owner]
        relayed = {"AWS_ENDPOINT_URL": self._relay.endpoint} if self._chance.random() < _RELAYED else {}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ | relayed)

    def _killed(self) -> str:
        """Kill a driver, or two that run at once, without or with the store."""
        count = 1 + (self._chance.random() < _TWO)
        drivers = [self._start() for _ in range(count)]
        _begun(drivers)
        time.sleep(self._chance.uniform(0, 4.0))
        store_too = self._chance.random() < _STORE_TOO
        if store_too:
            self._store.kill()
        for driver in drivers:
            _kill(driver)
        if store_too:
            time.sleep(self._chance.uniform(0, _DOWN_SECONDS))
            self._store.start()
        return f"{count} driver{'s' * (count > 1)}{' and the store' * store_too}"

    def _stopped(self) -> str:
        """Stop a driver while another one works, and let it go on afterwards."""
        first = self._start()
        _begun([first])
        time.sleep(self._chance.uniform(0, 2.0))
        first.send_signal(signal.SIGSTOP)
        second = self._start()
        _begun([second])
        time.sleep(self._chance.uniform(1.0, 3.0))
        _kill(second)
        first.send_signal(signal.SIGCONT)
        time.sleep(self._chance.uniform(0.1, 2.0))
        _kill(first)
        return "a driver that had stood still"


def _begun(drivers: list[subprocess.Popen[bytes]]) -> None:
    """Wait until all drivers are about to work, however long a busy machine takes to load them."""
    for driver in drivers:
        assert driver.stdout is not None
        assert driver.stdout.readline(), "a driver ended before it began"


def _kill(driver: subprocess.Popen[bytes]) -> None:
    with driver:
        driver.kill()


def check(root: str) -> tuple[int, int]:
    """Finish the sink; return the number of batches, and of their lines, each of which must be there once."""
    sink = opened(root)
    sink.finish()
    head = sink.ledger.head()
    batches = head.last_batch("query") + 1
    expected = Counter(line for batch in range(batches) for task in range(TASKS) for line in lines_of(batch, task))
    storage, place = locate(root)
    found: Counter[str] = Counter()
    for entry in storage.list(place):
        if entry.is_file and entry.name[0] not in "._":
            found.update(storage.read(f"{place}/{entry.name}").decode().splitlines())
    assert found == expected, (list((found - expected).items())[:5], list((expected - found).items())[:5])
    answer = verify(root, None, transform=None, key=None, mended=None, as_json=True)
    assert answer.exit_status == 0, answer.facts
    return batches, found.total()


def main() -> int:
    """Run for a while; return 0 if all came through once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    parser.add_argument("--server", default="minio")
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    parser.add_argument("--owner", default="", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.drive:
        drive(chosen.drive, chosen.owner)
        return 0
    with (
        tempfile.TemporaryDirectory() as directory,
        running(chosen.server, Path(directory)) as store,
        Relay(store, loses=_LOSES, storms=_STORMS) as relay,
    ):
        os.environ.update(store.environment)
        root = f"{store.make('soak')}/out"
        kills = _Kills(root, store, relay, random.Random(chosen.seed))  # noqa: S311 - which moments is no secret
        ends = Counter(kills.until(time.monotonic() + 60 * chosen.minutes))
        batches, lines = check(root)
    relayed = f"{relay.requests} requests by the relay"
    print(f"seed {chosen.seed}: {dict(ends)}; {relayed}; {batches} batches, {lines} lines, each once")  # noqa: T201 - a program of its own
    return 0


if __name__ == "__main__":
    sys.exit(main())
