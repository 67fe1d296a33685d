"""Drivers that write to one store of objects and are killed, with the store or without it: `python -m tests.soak.objects --minutes 5`.

Without Spark: a driver is a process that goes on with batches where the ledger is, as Spark would after a restart. It is killed by SIGKILL
at any moment, alone or with MinIO, which is started anew. At times two drivers run at once, of which one is fenced. In the end every line
of every batch that the ledger has is in a finished object exactly once, and `penstock verify` finds nothing wrong.
"""

from __future__ import annotations

import argparse
import os
import random
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
from tests.support.stores import StoreServer, running

if TYPE_CHECKING:
    from collections.abc import Iterator

TASKS, LINES = 3, 40
_SCHEMA = pa.schema([("value", pa.string())])
_DOWN_SECONDS = 2.0  # of a store that was killed


def opened(root: str) -> Sink:
    """Return the sink that all drivers have."""
    storage, place = locate(root)
    options = {"path": place, "rollRows": "100"}
    return Sink(storage, place, parse(SINK, options, what="sink"), "s")


def lines_of(batch: int, task: int) -> list[str]:
    """Return the lines of a task, the same at each try."""
    return [f"{batch} {task} {number}" for number in range(LINES)]


def drive(root: str, owner: str) -> None:
    """Write batches for ever, from behind the last one of the ledger; end when fenced, or when the store is away."""
    sink = opened(root)
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


def _start(root: str, number: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.soak.objects", "--drive", root, "--owner", f"driver-{number}"]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def _kills(root: str, store: StoreServer, chance: random.Random, until: float) -> Iterator[str]:
    """Kill a driver, two, or the store, again and again; yield what was killed."""
    number = 0
    while time.monotonic() < until:
        count = 1 + (chance.random() < 0.3)
        drivers = [_start(root, number + extra) for extra in range(count)]
        number += count
        time.sleep(chance.uniform(1.0, 6.0))
        store_too = chance.random() < 0.25
        if store_too:
            store.kill()
        for driver in drivers:
            driver.kill()
            driver.wait()
        if store_too:
            time.sleep(chance.uniform(0, _DOWN_SECONDS))
            store.start()
        yield f"{count} driver{'s' * (count > 1)}{' and the store' * store_too}"


def check(root: str) -> tuple[int, int]:
    """Finish the sink; return how many batches there are, and their lines, each of which must be there once."""
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
    with tempfile.TemporaryDirectory() as directory, running(chosen.server, Path(directory)) as store:
        os.environ.update(store.environment)
        root = f"{store.make('soak')}/out"
        killed = Counter(
            _kills(root, store, random.Random(chosen.seed), time.monotonic() + 60 * chosen.minutes)  # noqa: S311 - which moments is no secret
        )
        batches, lines = check(root)
    print(f"seed {chosen.seed}: {dict(killed)}; {batches} batches, {lines} lines, each once")  # noqa: T201 - a program of its own
    return 0


if __name__ == "__main__":
    sys.exit(main())
