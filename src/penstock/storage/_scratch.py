"""Scratch space of one process: bytes in memory, and beyond a limit in a file without a name."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from penstock.storage._host import temporary_directory
from penstock.storage._refusal import doing

if TYPE_CHECKING:
    from types import TracebackType

_MEMORY_BYTES = 32 << 20


class Scratch:
    """Bytes that are written once and can then be read at any place; gone when it is closed, or its process dies.

    Up to 32 MiB are in memory. More are in a file of the temporary directory that only its owner can read, and whose name is
    removed before anything is written. Not shared between threads.
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
        """Release everything. Idempotent."""
        self._file.close()

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()
