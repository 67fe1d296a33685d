"""Open files that do not come from a back end: bytes in memory, and the file object that Arrow and other libraries read from."""

from __future__ import annotations

import io
from typing import Protocol

from penstock.storage._base import Entry


class ReadableFile(Protocol):
    """The part of a `ReadHandle` that readers of records and tables need."""

    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes at `offset`; fewer only at the end of the file."""


class MemoryFile:
    """Bytes in memory as a `ReadHandle`."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def info(self) -> Entry:
        """Return an entry with nothing but the size."""
        return Entry("", is_directory=False, size=len(self._data), modified_ns=0, identity="")

    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes at `offset`; fewer only at the end."""
        return self._data[offset : offset + length]

    def close(self) -> None:
        """Do nothing: memory needs no close."""

    def __enter__(self) -> MemoryFile:
        """Return itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Do nothing."""


class SeekableFile(io.RawIOBase):
    """The first `size` bytes of an open file. Closing it leaves the handle to its opener."""

    def __init__(self, handle: ReadableFile, size: int) -> None:
        super().__init__()
        self._handle, self._size, self._at = handle, size, 0

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # - the base wants any buffer
        """Fill `buffer` as far as there are bytes; return how many were read."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes at the current place, all that is left if negative."""
        rest = max(self._size - self._at, 0)
        data = self._handle.read(self._at, rest if size < 0 else min(size, rest))
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move to `offset` from the beginning, the current place or the end."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        """Return the current place."""
        return self._at

    def readable(self) -> bool:
        """Return True: the file can be read."""
        return True

    def seekable(self) -> bool:
        """Return True: the file can be read at any place."""
        return True
