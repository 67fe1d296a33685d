"""The files that a command runs: locked, so that no second command runs them, and read again for a reload.

Two commands with one file: each file is locked while it is run, and the second command says so before it starts
anything. The lock is for people; the ledger makes sure that nothing is written twice.

A reload reads the files and what they refer to, and looks at every input and output. All of that runs in its own thread
(`Renewal`): a server that does not answer, or a pipe that nobody writes to, cannot prevent a stop of the pipelines. A
file with a mistake changes nothing.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from penstock import clock
from penstock.cli.run import plan as plans
from penstock.errors import Locked, NotSupported, PenstockError, StorageError
from penstock.storage import locate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.cli.run.plan import FleetPlan
    from penstock.cli.run.references import Secrets
    from penstock.storage import Hold

_log = logging.getLogger("penstock.run")
_KEEP_SECONDS = 0.2
_SILENCE_SECONDS = 30.0


class Renewal:
    """Holds the files, and reads them again on request, in its own thread; only one other thread may ask it."""

    def __init__(self, location: str, secrets: Secrets, locks: Locks, *, silence: float = _SILENCE_SECONDS) -> None:
        self._location = location
        self._secrets = secrets
        self._locks = locks
        self._silence = silence
        self._asked = threading.Event()
        self._over = False
        self._fresh: list[FleetPlan] = []
        self._times = self._answered = 0  # requests so far, and those answered
        self._told_at = float("inf")
        self._thread = threading.Thread(target=self._run, name="penstock-run-files", daemon=True)

    def __enter__(self) -> Renewal:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """End; if something does not answer, the thread is left to the end of the process."""
        self._over = True
        self._thread.join(2 * _KEEP_SECONDS)

    def ask(self) -> None:
        """Have the files read."""
        self._times += 1
        self._told_at = clock.monotonic() + self._silence
        self._asked.set()

    def taken(self) -> FleetPlan | None:
        """Return what was read since the last call, if anything; say so, once, if there is no answer."""
        if self._answered < self._times and clock.monotonic() > self._told_at:
            self._told_at = float("inf")
            _log.warning("reload: the files, or what they name, do not answer; until they do nothing is changed")
        fresh = None
        while self._fresh:  # if two were read meanwhile, the later one counts
            fresh = self._fresh.pop(0)
        return fresh

    def _run(self) -> None:
        while not self._over:
            if not self._asked.wait(_KEEP_SECONDS):
                self._locks.keep()
                continue
            self._asked.clear()
            times = self._times
            try:
                fresh = read_anew(self._location, self._secrets, self._locks)
            except Exception:  # noqa: BLE001 - whatever it is, the next reload may be well
                _log.exception("reload: nothing is changed")
                fresh = None
            self._fresh += [] if fresh is None else [fresh]
            self._answered = times


def read_anew(location: str, secrets: Secrets, locks: Locks) -> FleetPlan | None:
    """Return what the files ask for now, and lock them; `None` if they cannot be used. What is wrong with them is logged."""
    try:
        fresh = plans.plan(location, secrets)
        locks.take(fresh.files)
    except PenstockError as error:
        _log.warning("reload: nothing is changed: %s", error)
        return None
    for problem in fresh.outside:
        _log.warning("%s", problem)
    return fresh


class Locks:
    """The files that this command runs, locked so that no second command runs them."""

    def __init__(self) -> None:
        self._holds: dict[str, tuple[str, Hold]] = {}

    def __enter__(self) -> Locks:
        return self

    def __exit__(self, *exc: object) -> None:
        """Release all of them."""
        with ExitStack() as stack:
            for _, hold in list(self._holds.values()):
                stack.callback(hold.close)
        self._holds.clear()

    def take(self, files: Sequence[str]) -> None:
        """Lock these files, and no others. A file that was replaced meanwhile is locked again.

        Raises `Locked` if another command runs one of them; the locks are then as they were before.
        """
        fresh: dict[str, tuple[str, Hold]] = {}
        with ExitStack() as undone:
            for name in files:
                held = self._held(name)
                if held is not None:
                    undone.callback(held[1].close)
                    fresh[name] = held
            undone.pop_all()
        for name in (self._holds.keys() - set(files)) | (self._holds.keys() & fresh.keys()):
            self._holds.pop(name)[1].close()
        self._holds |= fresh

    def keep(self) -> None:
        """Lock again each file that was replaced since, as by an editor that renames: a second command would run the file of that name.

        What cannot be locked now is tried again at the next call: the file may be missing for a moment, or a second
        command was quicker.
        """
        for name, (_, before) in list(self._holds.items()):
            with suppress(StorageError):
                held = self._held(name)
                if held is not None:
                    self._holds[name] = held
                    before.close()

    def _held(self, name: str) -> tuple[str, Hold] | None:
        """Lock a file; `None` if the file of that name is locked already, or its storage has no locks."""
        storage, path = locate(name, name="FILE")
        identity = str(storage.stat(path).identity)
        if self._holds.get(name, ("", None))[0] == identity:
            return None
        try:
            return identity, storage.lock(path)
        except NotSupported:
            return None
        except Locked as error:
            msg = f"{name} is run by another penstock run; end that one, or have it reload a changed file by SIGHUP; nothing was started"
            raise Locked(msg) from error
