"""A key-value store on a write-ahead log, killed with SIGKILL between any two of its steps; nothing acknowledged is lost.

Run it with `python examples/kvstore.py`. The store is a dictionary. Each change is appended to a `wal.Manager`, and is durable when
its window ends; from time to time the whole dictionary is saved, and the log forgets the earlier changes. The store is a separate
process, killed at the first write, then at the second, and so on, then at each sync, each roll, each deletion; and started again.
Each process is forked from this one, which has imported everything and opened nothing: starting Python would take most of the time.
"""
# ruff: noqa: INP001, T201
# An example is a standalone script, and it prints what it did.

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock import failpoints, wal
from penstock.storage import LocalStorage

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

FORKED = multiprocessing.get_context("fork")
WINDOWS, PUTS, SAVED_EVERY = 12, 3, 4
STEPS = ("storage.write", "storage.sync", "storage.put.link", "storage.delete", "wal.roll", "wal.rolled")


def put(state: dict[str, int], puts: list[bytes]) -> None:
    """Apply changes to the dictionary."""
    for each in puts:
        state.update(json.loads(each))


def expected(window: int) -> list[bytes]:
    """Return the changes of a window."""
    return [json.dumps({f"key {(window * 7 + n) % 10}": window * 100 + n}).encode() for n in range(PUTS)]


def run_store(root: str, failpoint: str, told: Connection) -> None:
    """Go on from what was saved and what the log has after it; say so whenever a window is durable, and at last what there is."""
    failpoints.arm(failpoint)
    storage = LocalStorage()
    saved = max((int(name) for name in storage.names(root) if name.isdigit()), default=-1)
    state: dict[str, int] = json.loads(storage.read(f"{root}/{saved}")) if saved >= 0 else {}
    with wal.Manager(f"{root}/log", lambda _, puts: put(state, puts), segment_size=600) as manager:
        for window in range(manager.restore(saved) + 1, WINDOWS):
            for each in expected(window):
                manager.append(each)
            manager.end_window(window)
            put(state, expected(window))
            told.send(window)  # the acknowledgement
            if window % SAVED_EVERY == SAVED_EVERY - 1:
                storage.put_if_absent(f"{root}/{window}", json.dumps(state).encode())
                manager.committed(window)
    told.send(state)


def start(root: str, failpoint: str) -> tuple[bool, list[int], dict[str, int]]:
    """Start the store with a kill point; return whether it came to its end, the windows that it reported, and its contents."""
    hears, told = FORKED.Pipe(duplex=False)
    store = FORKED.Process(target=run_store, args=(root, failpoint, told))
    store.start()
    told.close()
    said = []
    with hears, suppress(EOFError):
        while True:
            said.append(hears.recv())
    store.join()
    if store.exitcode:
        if store.exitcode > 0:
            sys.exit(f"the store failed at {failpoint or 'nothing'}")
        return False, said, {}
    return True, said[:-1], said[-1]


def main() -> None:
    """Kill the store at each step of each kind, start it again, and compare its contents with the changes."""
    wanted: dict[str, int] = {}
    for window in range(WINDOWS):
        put(wanted, expected(window))
    kills = 0
    for step in STEPS:
        ended, at = False, 0
        while not ended:
            at += 3  # every third place, so that the example takes only seconds
            with tempfile.TemporaryDirectory() as work:
                ended, acknowledged, _ = start(work, f"{step}=kill@{at}")
                kills += not ended
                _, done, found = start(work, "")
                if found != wanted:
                    sys.exit(f"killed at {step} number {at}: found {found}, expected {wanted}")
                if not ended and acknowledged and done and done[0] <= acknowledged[-1]:
                    sys.exit(f"killed at {step} number {at}: window {done[0]} was acknowledged, and done again")
    print(f"killed {kills} times with SIGKILL at {len(STEPS)} kinds of steps; every acknowledged put is there, once")


if __name__ == "__main__":
    main()
