"""Calls that stop before a chosen system call while others run: SIGSTOP, SIGCONT and SIGKILL for one machine of many processes.

Each actor that may stop is a thread, but only one thread runs at any time: the thread that resumes an actor waits until the actor
stops again or is done. So a run depends only on which actor is resumed when. An actor that runs to its end without a stop
needs no thread.
"""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.storage import LocalStorage
from penstock.testing import CrashDisk, SimulatedCrash
from penstock.testing.faults import CALLS

if TYPE_CHECKING:
    from collections.abc import Callable

_HERE = threading.local()


@dataclass(frozen=True)
class Stop:
    """Where an actor stops: before the next system call `call` (any call, if empty); `number` counts those calls from here."""

    call: str
    number: int


def storage() -> LocalStorage:
    """Return the storage of the actor that asks, as that actor's process has it."""
    found: LocalStorage = _HERE.storage
    return found


class Actor:
    """A process that makes one call, `work`. Its `error` is what the call raised, if it was not killed."""

    def __init__(self, name: str, disk: CrashDisk, work: Callable[[], object]) -> None:
        self.name = name
        self.done = False
        self.killed = False
        self.error: BaseException | None = None
        self.at = ""
        self._disk = disk
        self._work = work
        self._stop: Stop | None = None
        self._fails = False
        self._left = 0
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def run(self, stop: Stop | None = None, *, fails: bool = False) -> None:
        """Resume it until it reaches its next stop, or is done. `fails`: the call before which it stands raises an error."""
        self._fails = fails
        self._stop, self._left = stop, stop.number if stop else 0
        if self._thread is None:
            if stop is None or self.killed:
                self._live()
                return
            self._thread = threading.Thread(target=self._live, name=self.name, daemon=True)
            self._thread.start()
        else:
            self._go.release()
        self._back.acquire()
        if self.done:
            self._thread.join()

    def kill(self) -> None:
        """Kill it where it stands: it makes no further system call. Do nothing if it is done."""
        if not self.done:
            self.killed = True
            self.run()

    def _live(self) -> None:
        _HERE.storage = LocalStorage(_System(self, self._disk))
        try:
            if not self.killed:
                self._work()
        except SimulatedCrash:
            pass
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is for who looks at `error`
            self.error = error
        finally:
            self.done = True
            self._back.release()

    def before(self, call: str) -> None:
        """Stop here if that was requested; die if the actor was killed."""
        if not self.killed and self._stop is not None and self._stop.call in {"", call}:
            self._left -= 1
            if self._left == 0:
                self.at = call
                self._back.release()
                self._go.acquire()
        if self.killed:
            raise SimulatedCrash
        if self._fails:
            self._fails = False
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class _System:
    """The disk's functions for one actor."""

    def __init__(self, actor: Actor, disk: CrashDisk) -> None:
        self._actor = actor
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._disk, name)
        if name not in CALLS or name == "close":  # a killed actor closes its files too, whichever thread collects them
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            self._actor.before(name)
            return found(*arguments, **named)

        return call
