"""Small facts that the processes of one host share while they live: a file each, guarded by flock.

Not durable and not needed for any promise: when it is lost, nothing is decided wrongly. So one that is damaged, which
its checksum tells, counts as lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from typing import TYPE_CHECKING, Any

import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterator


def cache_directory() -> str:
    """Return this user's cache directory for Penstock, made if need be."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = f"{base}/penstock"
    os.makedirs(path, 0o700, exist_ok=True)
    return path


def is_file(path: str, *, executable: bool = False) -> bool:
    """Tell whether this host has such a file, one that this user may execute if asked for."""
    return os.path.isfile(path) and (not executable or os.access(path, os.X_OK))


class HostFact:
    """A JSON object in the host's temporary directory, seen by this user's processes only."""

    def __init__(self, name: str) -> None:
        self.directory = f"{tempfile.gettempdir()}/penstock-{os.getuid()}"
        self.path = f"{self.directory}/{name}.json"

    @staticmethod
    def all() -> list[HostFact]:
        """Return the facts there are now."""
        fact = HostFact("")
        if not os.path.isdir(fact.directory):
            return []
        return [HostFact(n.removesuffix(".json")) for n in os.listdir(fact.directory) if n.endswith(".json")]

    @contextlib.contextmanager
    def locked(self) -> Iterator[dict[str, Any]]:
        """Yield the object, alone on this host; what the block makes of it is kept. An emptied object removes it."""
        os.makedirs(self.directory, 0o700, exist_ok=True)
        with self._lock() as fd:
            fact = _intact(os.pread(fd, os.fstat(fd).st_size, 0))
            yield fact
            os.ftruncate(fd, 0)
            if fact:
                os.pwrite(fd, json.dumps(fact | {"sum": _sum(fact)}).encode(), 0)
            else:
                os.unlink(self.path)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[int]:
        while True:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                if self._is(fd):
                    yield fd
                    return
            finally:
                os.close(fd)

    def _is(self, fd: int) -> bool:
        """Tell whether the name is still this file's: its last holder may have removed it."""
        try:
            return os.stat(self.path).st_ino == os.fstat(fd).st_ino
        except FileNotFoundError:
            return False


def _intact(text: bytes) -> dict[str, Any]:
    """Return the object, an empty one if it is not what was kept."""
    try:
        fact: dict[str, Any] = json.loads(text)
        found = fact.pop("sum")
    except (ValueError, AttributeError, TypeError, KeyError):
        return {}
    return fact if found == _sum(fact) else {}


def _sum(fact: dict[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(fact, sort_keys=True).encode())
