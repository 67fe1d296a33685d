"""Files of this host alone: its temporary directory, a user's cache, and small facts that processes share while they live.

A fact is a file, guarded by flock. None of this is durable, and no promise depends on it: if a fact is lost, no decision goes
wrong. So a damaged fact, which its checksum shows, counts as lost.
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

from penstock import clock, unique
from penstock.clock import SECOND_NS
from penstock.errors import StorageError
from penstock.processes import process
from penstock.storage._refusal import doing

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

_TRIED_BYTES = 4096
_LEFT_NS = 3600 * SECOND_NS


def cached(name: str) -> str | None:
    """Return the file of this name in this user's cache for Penstock, None if there is none. Makes nothing.

    A file that another user than root could have written does not count, because files in the cache are executed. If the user has
    no cache, the file may be in our directory among the host's temporary files, which must be private.
    """
    places = [user_cache()]
    with contextlib.suppress(OSError, StorageError):
        _check_private(_directory())
        places.append(_directory())
    paths = [f"{place}/{name}" for place in places if place]
    return next((path for path in paths if _is_of_ours(path)), None)


def _is_of_ours(path: str) -> bool:
    """Tell whether this is a file that only this user and root can have written."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    return stat_bits.S_ISREG(status.st_mode) and status.st_uid in {os.getuid(), 0} and not status.st_mode & 0o022


def cache_directory() -> str:
    """Return this user's cache directory for Penstock, made if necessary; if that fails, our directory among the temporary files."""
    path = user_cache()
    if path is not None:
        with contextlib.suppress(OSError):
            os.makedirs(path, 0o700, exist_ok=True)
            if can_write(path):
                return path
    return os.path.dirname(private_path(""))


def user_cache() -> str | None:
    """Return the path of the user's cache for Penstock, which may not exist yet; None for a user without a home directory."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):
        return f"{named}/penstock"
    home = os.path.expanduser("~")
    return f"{home}/.cache/penstock" if os.path.isabs(home) and os.path.isdir(home) else None


def temporary_directory() -> str:
    """Return the host's directory for temporary files, TMPDIR if that can be written; `StorageError` if there is none."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        msg = f"no directory for temporary files can be written ({error}); set TMPDIR to one"
        raise StorageError(msg) from error


def can_write(directory: str) -> bool:
    """Tell whether this process can make a file in the directory, by making one: modes alone show neither that nor a full disk."""
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            return file.write(bytes(_TRIED_BYTES)) == _TRIED_BYTES
    except OSError:
        return False


def free_bytes(directory: str) -> int:
    """Return how many bytes this user may still write to the file system of a directory; `StorageError` if that is unknown."""
    with doing("ask for the free space of", directory):
        volume = os.statvfs(directory)
    return volume.f_bavail * volume.f_frsize


def private_path(name: str) -> str:
    """Return the path of a file in the host's temporary directory that only this user's processes can reach.

    Any user may make a directory there under the name of ours, with links in it that lead to our files. So our directory must
    belong to us, be closed to others, and not be a link. Raises `StorageError` otherwise.
    """
    directory = _directory()
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    _check_private(directory)
    return f"{directory}/{name}"


def passing_path(kind: str) -> str:
    """Return a private path for a file that this process removes within seconds; `kind` is without digits.

    Also removes files of dead processes that are an hour old. Younger ones may belong to a container that shares the directory.
    """
    folder, _, prefix = private_path(f"{kind}-").rpartition("/")
    for name in os.listdir(folder):
        number = name.removeprefix(prefix).partition("-")[0]
        if not name.startswith(prefix) or not number.isdigit() or process(int(number)) is not None:
            continue
        with contextlib.suppress(FileNotFoundError):
            if os.stat(f"{folder}/{name}").st_mtime_ns < clock.now_ns() - _LEFT_NS:
                os.unlink(f"{folder}/{name}")
    return f"{folder}/{prefix}{os.getpid()}-{unique.token()}"


def listening(kind: str) -> tuple[socket.socket, str]:
    """Return a Unix socket that only this user's processes can reach, and its path; `kind` is without digits.

    `no_longer_listening` removes the path; paths of processes that have died are removed here.
    """
    import socket

    folder, _, prefix = private_path(f"{kind}-").rpartition("/")
    for name in os.listdir(folder):
        number = name.removeprefix(prefix)
        if number != name and (process(int(number)) is None or int(number) == os.getpid()):
            no_longer_listening(f"{folder}/{name}")
    path = f"{folder}/{prefix}{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(path)  # the directory's path may be too long for a socket
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener, path


def no_longer_listening(path: str) -> None:
    """Remove the path of a socket."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def is_file(path: str, *, executable: bool = False) -> bool:
    """Tell whether this host has the file and, if `executable`, whether this user may execute it."""
    return os.path.isfile(path) and (not executable or os.access(path, os.X_OK))


class HostFact:
    """A JSON object in the host's temporary directory that only this user's processes see."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = f"{_directory()}/{name}.json"

    @staticmethod
    def all() -> list[HostFact]:
        """Return all facts that there are now."""
        directory = _directory()
        if not os.path.lexists(directory):
            return []
        _check_private(directory)
        return [HostFact(n.removesuffix(".json")) for n in os.listdir(directory) if n.endswith(".json")]

    @contextlib.contextmanager
    def locked(self, *, wait: bool = True) -> Iterator[dict[str, Any]]:
        """Yield the object under an exclusive lock, and keep the changes of the block. An emptied object removes the fact.

        Without `wait`, raises `BlockingIOError` if a process holds the fact; that process may have been stopped for ever.
        """
        private_path(self.name)
        with self._lock(fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB) as fd:
            fact = _intact(os.pread(fd, os.fstat(fd).st_size, 0))
            yield fact
            # Truncate after writing, not before: some file systems write a file that was truncated to nothing to disk
            # when it is closed.
            if fact:
                os.ftruncate(fd, os.pwrite(fd, json.dumps(fact | {"sum": _sum(fact)}).encode(), 0))
            else:
                os.unlink(self.path)

    def left(self) -> dict[str, Any]:
        """Return the object as its last holder has left it, without the lock; an empty one if there is none."""
        try:
            with open(self.path, "rb") as file:
                return _intact(file.read())
        except FileNotFoundError:
            return {}

    @contextlib.contextmanager
    def _lock(self, operation: int) -> Iterator[int]:
        while True:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, operation)
                if self._is(fd):
                    yield fd
                    return
            finally:
                os.close(fd)

    def _is(self, fd: int) -> bool:
        """Tell whether the name still belongs to this file, which its last holder may have removed."""
        try:
            return os.stat(self.path).st_ino == os.fstat(fd).st_ino
        except FileNotFoundError:
            return False


def _directory() -> str:
    return f"{temporary_directory()}/penstock-{os.getuid()}"


def _check_private(directory: str) -> None:
    status = os.lstat(directory)
    if not stat_bits.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        msg = (
            f"{directory!r} is not a directory of user {os.getuid()} that is closed to others (it is "
            f"{stat_bits.filemode(status.st_mode)}, user {status.st_uid}); remove it, or set TMPDIR to a directory of yours"
        )
        raise StorageError(msg)


def _intact(text: bytes) -> dict[str, Any]:
    """Return the object, an empty one if the file is damaged."""
    try:
        fact: dict[str, Any] = json.loads(text)
        checksum = fact.pop("sum")
    except (ValueError, AttributeError, TypeError, KeyError):
        return {}
    return fact if checksum == _sum(fact) else {}


def _sum(fact: dict[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(fact, sort_keys=True).encode())
