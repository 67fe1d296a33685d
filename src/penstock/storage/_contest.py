"""Tries from several processes whether a store of objects lets exactly one of many competing puts win.

Everything that a sink promises depends on this: of several clients that put one key at the same time, exactly one succeeds. Some
servers accept `If-None-Match` but do not keep its promise: they check whether the key is free, and then store, so two puts at the
same instant both succeed. A single client cannot see that. So contenders, each a process with several threads, put the same keys
in rounds, and the puts that succeed are counted.

`contend(PATH)` is one contender, in a separate process. It prints `ready`. For each name that it reads it puts `PATH/name` from
all its threads, and prints what the winners among them had put.

If a store fails, a mark in the output says that it is unfit, and a sink there is refused (`check_fit`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from penstock import unique
from penstock.errors import AlreadyThere, NotThere, StorageError, UnfitStore
from penstock.storage._base import TEMPORARY, entry_at
from penstock.storage._locate import locate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.storage._base import Storage

_PROCESSES = 4
_THREADS = 8
_ROUNDS = 25
_PROGRAM = "import sys; from penstock.storage._contest import contend; contend(sys.argv[1])"
_MARK = "unfit-store"


def contest(storage: Storage, path: str) -> str | None:
    """Race puts of keys below an address; return how the store broke its promise, `None` if it did not. `StorageError`.

    Removes everything that it has put, as far as possible.
    """
    directory = f"{path.rstrip('/')}/{TEMPORARY}doctor-{unique.token()}"
    names = [f"{number}" for number in range(_ROUNDS)]
    try:
        with ExitStack() as running:
            contenders = [_Contender(directory, running) for _ in range(_PROCESSES)]
            for contender in contenders:
                contender.wait()
            outcomes = [_outcome(storage, f"{directory}/{name}", name, contenders) for name in names]
    finally:
        for name in names:
            with suppress(StorageError):
                storage.delete(f"{directory}/{name}")
    several = sum(winners > 1 for winners, _ in outcomes)
    if several:
        return f"in {several} of {_ROUNDS} rounds more than one of {_PROCESSES * _THREADS} simultaneous puts of one key succeeded"
    lost = sum(winners == 0 or not is_theirs for winners, is_theirs in outcomes)
    if lost:
        return f"in {lost} of {_ROUNDS} rounds the content of the put that succeeded was not there"
    return None


def _outcome(storage: Storage, path: str, name: str, contenders: list[_Contender]) -> tuple[int, bool]:
    """Run a round; return how many puts succeeded, and whether one of them has put the object that is there."""
    for contender in contenders:
        contender.begin(name)
    winners = [put for contender in contenders for put in contender.winners()]
    try:
        data = storage.read(path).decode()
    except NotThere:
        data = ""
    return len(winners), data in winners


def mark_fit(storage: Storage, state: str, broken: str | None) -> None:
    """Mark an output (by its state directory) as being on an unfit store; or remove the mark if `broken` is `None`."""
    if broken is None:
        storage.delete(f"{state}/{_MARK}")
        return
    with suppress(AlreadyThere):
        storage.put_if_absent(f"{state}/{_MARK}", broken.encode())


def check_fit(storage: Storage, state: str) -> None:
    """Raise `UnfitStore` if the store of an output was found unfit. Storages that need no contest are not checked."""
    if storage.needs_contest and entry_at(storage, f"{state}/{_MARK}") is not None:
        words = storage.read(f"{state}/{_MARK}").decode(errors="replace")
        msg = (
            f"{state!r}: penstock doctor found that its store does not keep what exactly-once needs: {words}; take another store, "
            "or, once it is mended, run penstock doctor on this output again"
        )
        raise UnfitStore(msg)


class _Contender:
    """One contender process; it ends when its input ends."""

    def __init__(self, directory: str, running: ExitStack) -> None:
        self._directory = directory
        self._process = running.enter_context(
            subprocess.Popen(  # noqa: S603 - this very interpreter, and a program of ours
                [sys.executable, "-c", _PROGRAM, directory],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )

    def wait(self) -> None:
        """Wait until the process can begin."""
        if self._line() != "ready":
            self._fail()

    def begin(self, name: str) -> None:
        """Have the process put a name."""
        if self._process.stdin is None or self._process.poll() is not None:
            self._fail()
        else:
            self._process.stdin.write(f"{name}\n")
            self._process.stdin.flush()

    def winners(self) -> Iterator[str]:
        """Yield what the threads whose puts succeeded had put."""
        line = self._line()
        if not line:
            self._fail()
        yield from json.loads(line)

    def _line(self) -> str:
        return "" if self._process.stdout is None else self._process.stdout.readline().strip()

    def _fail(self) -> None:
        self._process.kill()
        _, said = self._process.communicate()
        last = (said.strip().splitlines() or ["it died"])[-1]
        msg = f"a process that puts below {self._directory!r} could not: {last}"
        raise StorageError(msg)


def _put(storage: Storage, path: str) -> str | None:
    """Put a key; return what was put, `None` if the key was taken."""
    data = unique.token()
    try:
        storage.put_if_absent(path, data.encode())
    except AlreadyThere:
        return None
    return data


def contend(address: str) -> None:
    """Put each name that is read from the input below an address, as the module describes."""
    storage, path = locate(address)
    entry_at(storage, path)  # makes the first contact with the store
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    with ThreadPoolExecutor(_THREADS) as threads:
        for name in map(str.strip, sys.stdin):
            tries = threads.map(_put, [storage] * _THREADS, [f"{path}/{name}"] * _THREADS)
            sys.stdout.write(json.dumps([data for data in tries if data is not None]) + "\n")
            sys.stdout.flush()
