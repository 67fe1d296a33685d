"""System calls that fail: one call of `os`, or of a `CrashDisk`, returns an error, or does less than was asked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = frozenset(
    {
        *("open", "close", "write", "pread", "lseek", "fsync", "fdatasync", "fstat", "stat", "scandir"),
        *("chmod", "link", "unlink", "rmdir", "mkdir"),
    },
)


@dataclass(frozen=True)
class Fault:
    """What goes wrong: `error` (a number of `errno`) is raised; `applied`: though the call has done what it should.

    Without an error the call writes only half of what it is given, as a write may.
    """

    error: int | None
    applied: bool = False


class FaultySystem:
    """The functions of `system`, of which call number `at` (counted from 1) meets with the fault.

    A sync that fails loses what it should have made durable: Linux may drop the pages, and then report success for the
    next sync. Give it to `LocalStorage`.
    """

    def __init__(self, system: Any, fault: Fault, at: int) -> None:  # noqa: ANN401 - os is a module
        self._system = system
        self._fault = fault
        self._at = at
        self.calls = 0
        self.failed: str | None = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the system has
        """Return the system's function, counted and perhaps failing."""
        found = getattr(self._system, name)
        return self._counted(name, found) if name in CALLS else found

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - the function's own
            self.calls += 1
            if self.calls != self._at:
                return function(*arguments, **named)
            self.failed = name
            return self._failing(name, function, arguments, named)

        return call

    def _failing(
        self, name: str, function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:  # noqa: ANN401 - as above
        error = self._fault.error
        if error is None:
            if name == "write":
                descriptor, data = arguments
                return function(descriptor, data[: (len(data) + 1) // 2])
            return function(*arguments, **named)
        if self._fault.applied or name == "close":  # a close that fails has closed
            done = function(*arguments, **named)
            if name == "open":  # the file may be there by now, but nobody has it open
                self._system.close(done)
        elif name in {"fsync", "fdatasync"} and hasattr(self._system, "forget_unsynced"):
            self._system.forget_unsynced(*arguments)
        raise OSError(error, os.strerror(error))
