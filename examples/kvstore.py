"""A key-value store on a write-ahead log, killed with SIGKILL between any two of its steps; nothing acknowledged is lost.

Run it with `python examples/kvstore.py`. The store is a dictionary. What is put is appended to a `wal.Manager` and durable when
its window ends; now and then the dictionary is saved whole, and the log forgets what came before. The store is a process of its
own, killed at the first write, then at the second, and so on, then at each sync, each roll, each deletion; and started again.
"""
# ruff: noqa: INP001, S603, T201
# An example is a script of its own, it starts itself again, and it prints what it did.

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

from penstock import wal
from penstock.storage import LocalStorage

WINDOWS, PUTS, SAVED_EVERY = 12, 3, 4
STEPS = ("storage.write", "storage.sync", "storage.put.link", "storage.delete", "wal.roll", "wal.rolled")


def put(state: dict[str, int], puts: list[bytes]) -> None:
    """Apply what was put to the dictionary."""
    for each in puts:
        state.update(json.loads(each))


def expected(window: int) -> list[bytes]:
    """Return what is put in a window."""
    return [json.dumps({f"key {(window * 7 + n) % 10}": window * 100 + n}).encode() for n in range(PUTS)]


def run_store(root: str) -> None:
    """Go on from what was saved and what the log has behind it; say so whenever a window is durable."""
    storage = LocalStorage()
    saved = max((int(name) for name in storage.names(root) if name.isdigit()), default=-1)
    state: dict[str, int] = json.loads(storage.read(f"{root}/{saved}")) if saved >= 0 else {}
    with wal.Manager(f"{root}/log", lambda _, puts: put(state, puts), segment_size=600) as manager:
        for window in range(manager.restore(saved) + 1, WINDOWS):
            for each in expected(window):
                manager.append(each)
            manager.end_window(window)
            put(state, expected(window))
            print(window, flush=True)  # the acknowledgement
            if window % SAVED_EVERY == SAVED_EVERY - 1:
                storage.put_if_absent(f"{root}/{window}", json.dumps(state).encode())
                manager.committed(window)
    print(json.dumps(state), flush=True)


def start(root: str, failpoint: str) -> tuple[bool, list[str]]:
    """Run the store, with a place where it is to be killed; tell whether it came to its end, and what it said."""
    environment = os.environ | {"PENSTOCK_FAILPOINTS": failpoint}
    done = subprocess.run(
        [sys.executable, __file__, root], env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode > 0:
        sys.exit(f"the store failed at {failpoint or 'nothing'}")
    return done.returncode == 0, done.stdout.splitlines()


def main() -> None:
    """Kill it at each step of each kind, start it again, and compare what it has with what was put."""
    wanted: dict[str, int] = {}
    for window in range(WINDOWS):
        put(wanted, expected(window))
    kills = 0
    for step in STEPS:
        ended, at = False, 0
        while not ended:
            at += 3  # every third place, so that it takes seconds
            with tempfile.TemporaryDirectory() as work:
                ended, acknowledged = start(work, f"{step}=kill@{at}")
                kills += not ended
                _, said = start(work, "")
                if json.loads(said[-1]) != wanted:
                    sys.exit(f"killed at {step} number {at}: found {said[-1]}, expected {wanted}")
                if not ended and acknowledged and said[0].isdigit() and int(said[0]) <= int(acknowledged[-1]):
                    sys.exit(f"killed at {step} number {at}: window {said[0]} was acknowledged, and done again")
    print(f"killed {kills} times with SIGKILL at {len(STEPS)} kinds of steps; every acknowledged put is there, once")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_store(sys.argv[1])
    else:
        main()
