"""Calls that fail: one call of `os`, or of a disk or store of this package, returns an error or does less than was asked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage import Storage

CALLS = frozenset(
    {
        *("open", "close", "write", "pread", "lseek", "fsync", "fdatasync", "fstat", "stat", "scandir"),
        *("chmod", "link", "rename", "unlink", "rmdir", "mkdir"),
        *("put", "copy", "head", "begin", "get", "objects", "has_below", "remove"),
        *("create", "append", "recover_lease", "list", "rename", "delete", "mkdir", "set_replicas"),
    },
)


@dataclass(frozen=True)
class Fault:
    """What goes wrong: `error` (a number of `errno`) is raised; `applied`: the call has done its work nevertheless.

    So `applied` is the lost reply of a store. Without an error the call writes only half of its data, as a write may.
    """

    error: int | None
    applied: bool = False


_WRITERS = frozenset({"create", "append"})


class _FaultyWriter:
    """A file that is being written on HDFS; its calls are counted, too."""

    def __init__(self, system: FaultySystem, writer: Any) -> None:  # noqa: ANN401 - an HdfsWriter
        self._system = system
        self._writer = writer

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - its functions
        """Return the writer's function, counted and perhaps failing."""
        return self._system.counted(f"writer.{name}", getattr(self._writer, name))


class FaultySystem:
    """The functions of `system`; call number `at` (counted from 1) fails with the fault.

    A sync that fails loses what it should have made durable: Linux may drop the pages, and then report success for the next sync.
    `storage()` is a storage on it; for `os` pass it to `LocalStorage`.
    """

    def __init__(self, system: Any, fault: Fault, at: int) -> None:  # noqa: ANN401 - os is a module
        self._system = system
        self._fault = fault
        self._at = at
        self.calls = 0
        self.failed: str | None = None

    def storage(self) -> Storage:
        """Return the system's kind of storage, on this."""
        storage: Storage = type(self._system.storage())(system=self)
        return storage

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of the system
        """Return the system's function, counted and perhaps failing."""
        attribute = getattr(self._system, name)
        return self.counted(name, attribute) if name in CALLS else attribute

    def counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function as the system shows it: counted, and failing when its turn comes."""

        def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - the function's own
            self.calls += 1
            if self.calls != self._at:
                done = function(*arguments, **named)
                return _FaultyWriter(self, done) if name in _WRITERS else done
            self.failed = name
            return self._failing(name, function, arguments, named)

        return call

    def _failing(
        self, name: str, function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:  # noqa: ANN401 - what the function returns
        error = self._fault.error
        if error is None:
            if name == "write":
                descriptor, data = arguments
                return function(descriptor, data[: (len(data) + 1) // 2])
            return function(*arguments, **named)
        if self._fault.applied or name == "close":  # a close that fails has still closed the file
            done = function(*arguments, **named)
            if isinstance(done, int) and name == "open":  # the file may exist by now, but nobody has it open
                self._system.close(done)
        elif name in {"fsync", "fdatasync"} and hasattr(self._system, "forget_unsynced"):
            self._system.forget_unsynced(*arguments)
        raise OSError(error, os.strerror(error))
