"""The damage that disks, copies and people do to files; and a directory that can be restored."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.storage import LocalStorage

_PAGE = 4096


def unsynced() -> LocalStorage:
    """Return a local disk that makes nothing durable, for tests that write thousands of times and cut no power."""
    return LocalStorage(_Unsynced())


class _Unsynced:
    def fsync(self, fd: int) -> None:
        """Do nothing."""

    fdatasync = fsync

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


def damages(data: bytes, *, every: int = 1) -> Iterator[tuple[str, bytes]]:
    """Yield what can become of a file: cut at every byte, one bit flipped in every byte, pages of zeros, extra bytes at the end."""
    for at in range(0, len(data), every):
        yield f"cut at {at}", data[:at]
        yield f"bit {at % 8} flipped at {at}", flipped(data, at)
    for at in range(0, len(data), _PAGE):
        page = data[at : at + _PAGE]
        yield f"page {at} zeroed", data[:at] + bytes(len(page)) + data[at + _PAGE :]
    yield "half zeroed", data[: len(data) // 2] + bytes(len(data) - len(data) // 2)
    yield "tail doubled", data + data[len(data) // 2 :]
    yield "doubled", data + data


def flipped(data: bytes, at: int) -> bytes:
    """Return the bytes with one bit of the byte at `at` flipped."""
    return data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]


def tree(root: Path) -> dict[str, bytes]:
    """Return every file below `root` by its path, hidden ones too."""
    found = {}
    below = len(str(root)) + 1
    for folder, _, names in os.walk(root):
        for name in names:
            with open(
                path := f"{folder}/{name}", "rb", buffering=0
            ) as file:  # making a Path takes longer than reading its file
                found[path[below:]] = file.read()
    return found


def exchange(path: Path, data: bytes) -> None:
    """Replace a file by a new one: what is written into an existing file ext4 flushes at once, which takes milliseconds."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


@contextmanager
def put_back(root: Path) -> Iterator[dict[str, bytes]]:
    """Yield every file below `root`, and restore them all after the block, whatever has happened there."""
    before = tree(root)
    yield before
    after = tree(root)
    for name in after.keys() - before.keys():
        (root / name).unlink()
    for name, data in before.items():
        if after.get(name) != data:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            exchange(root / name, data)
