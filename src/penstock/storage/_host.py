"""Small facts that the processes of one host share while they live: a file each, guarded by flock.

Not durable and not needed for any promise: when it is lost, nothing is decided wrongly. So one that is damaged, which
its checksum tells, counts as lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat as stat_bits
import tempfile
from typing import TYPE_CHECKING, Any

import xxhash

from penstock.errors import StorageError
from penstock.processes import process

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator


def cache_directory() -> str:
    """Return this user's cache directory for Penstock, made if need be."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = f"{base}/penstock"
    os.makedirs(path, 0o700, exist_ok=True)
    return path


def _private_path(name: str) -> str:
    """Return the path of a file in the host's temporary directory that only this user's processes can reach.

    Anybody may make a directory there under the name of ours, with links in it that lead to files of ours: so ours must
    belong to us, be closed to others, and be no link. Raises `StorageError` otherwise.
    """
    directory = _directory()
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    _check_private(directory)
    return f"{directory}/{name}"


def listening(kind: str) -> tuple[socket.socket, str]:
    """Return a Unix socket that only this user's processes reach, and its path; `kind` is without digits.

    The path goes with `no_longer_listening`; those of processes that died before are removed here.
    """
    import socket

    folder, _, prefix = _private_path(f"{kind}-").rpartition("/")
    for name in os.listdir(folder):
        number = name.removeprefix(prefix)
        if number != name and (process(int(number)) is None or int(number) == os.getpid()):
            no_longer_listening(f"{folder}/{name}")
    path = f"{folder}/{prefix}{os.getpid()}"
    made = socket.socket(socket.AF_UNIX)
    made.bind(path)
    made.listen()
    return made, path


def no_longer_listening(path: str) -> None:
    """Remove the path of a socket."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def is_file(path: str, *, executable: bool = False) -> bool:
    """Tell whether this host has such a file, one that this user may execute if asked for."""
    return os.path.isfile(path) and (not executable or os.access(path, os.X_OK))


class HostFact:
    """A JSON object in the host's temporary directory, seen by this user's processes only."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = f"{_directory()}/{name}.json"

    @staticmethod
    def all() -> list[HostFact]:
        """Return the facts there are now."""
        directory = _directory()
        if not os.path.lexists(directory):
            return []
        _check_private(directory)
        return [HostFact(n.removesuffix(".json")) for n in os.listdir(directory) if n.endswith(".json")]

    @contextlib.contextmanager
    def locked(self, *, wait: bool = True) -> Iterator[dict[str, Any]]:
        """Yield the object, alone on this host; what the block makes of it is kept. An emptied object removes it.

        Not to `wait` is to raise `BlockingIOError` where a process holds it: that one may stand still for ever.
        """
        _private_path(self.name)
        with self._lock(fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB) as fd:
            fact = _intact(os.pread(fd, os.fstat(fd).st_size, 0))
            yield fact
            os.ftruncate(fd, 0)
            if fact:
                os.pwrite(fd, json.dumps(fact | {"sum": _sum(fact)}).encode(), 0)
            else:
                os.unlink(self.path)

    @contextlib.contextmanager
    def _lock(self, how: int) -> Iterator[int]:
        while True:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, how)
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


def _directory() -> str:
    return f"{tempfile.gettempdir()}/penstock-{os.getuid()}"


def _check_private(directory: str) -> None:
    found = os.lstat(directory)
    if not stat_bits.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        msg = (
            f"{directory!r} is not a directory of user {os.getuid()} that is closed to others (it is "
            f"{stat_bits.filemode(found.st_mode)}, user {found.st_uid}); remove it, or set TMPDIR to a directory of yours"
        )
        raise StorageError(msg)


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
