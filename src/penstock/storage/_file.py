"""An open file of any storage as the file object that Arrow and other libraries read from."""

from __future__ import annotations

import io
from typing import Protocol


class _ReadInPlaces(Protocol):
    """What is read of a `ReadHandle`."""

    def read(self, offset: int, length: int) -> bytes: ...


class SeekableFile(io.RawIOBase):
    """The first `size` bytes of an open file. Closing it leaves the handle to its opener."""

    def __init__(self, handle: _ReadInPlaces, size: int) -> None:
        super().__init__()
        self._handle, self._size, self._at = handle, size, 0

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # - the base wants any buffer
        """Fill `buffer` as far as there are bytes; return how many."""
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
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that it can be read anywhere."""
        return True
