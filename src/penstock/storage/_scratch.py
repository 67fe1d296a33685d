"""Bytes that one process holds for a while, and nobody else: in memory, and beyond that in a file that has no name."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from penstock.storage._host import temporary_directory
from penstock.storage._refusal import doing

if TYPE_CHECKING:
    from types import TracebackType

_MEMORY_BYTES = 32 << 20


class Scratch:
    """What was written to it can be read anywhere; gone when it is closed, or its process dies.

    Up to 32 MiB are in memory, more in a file of the temporary directory, the owner's alone, whose name is removed before anything
    is in it. Not shared between threads.
    """

    def __init__(self) -> None:
        self._place = temporary_directory()
        self._file = tempfile.SpooledTemporaryFile(max_size=_MEMORY_BYTES, dir=self._place)  # noqa: SIM115 - `close` closes it
        self.size = 0

    def write(self, data: bytes) -> int:
        """Append all of `data`; `NoSpace`, `StorageError`. Called before anything is read."""
        with doing("write a temporary file in", self._place):
            self._file.write(data)
        self.size += len(data)
        return len(data)

    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes at `offset`; fewer only at the end."""
        with doing("read a temporary file in", self._place):
            self._file.seek(offset)
            return self._file.read(length)

    def close(self) -> None:
        """Let go of all of it. Idempotent."""
        self._file.close()

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()
