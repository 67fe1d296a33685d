"""What the kernel tells of a local directory (Linux, `inotify`): which names came and went, at the cost of these and not of all.

It is a hint and no more. Events may be dropped (the queue is bounded), and of a directory on a network none tells what another
machine did. So whoever watches lists all the same, now and then, and what he knows for certain is from a listing. What a watch says
is looked at again, name by name: an event says that there is something to see, never what.
"""

from __future__ import annotations

import ctypes
import os
import stat as stat_bits
import struct
import weakref

from penstock.storage._base import Link

_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name
_READ_BYTES = 1 << 20
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_UNMOUNT, _OVERFLOW, _IGNORED = 0x2000, 0x4000, 0x8000
_ONLY_DIRECTORY = 0x1000000
_NAMES = _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_LOST = _UNMOUNT | _OVERFLOW | _IGNORED


class LocalWatch:
    """A watch on one directory, from when it was made. Not shared between threads; ends with its last reference."""

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path
        weakref.finalize(self, os.close, fd)

    def changes(self) -> dict[str, int | None] | None:
        """Return the names that something happened to since the last call, each with what `Storage.names` has of it now.

        `None` of a name: it is not there. `None` of all: the kernel cannot tell.
        """
        names: dict[bytes, None] = {}
        while events := self._read():
            at = 0
            while at < len(events):
                _, mask, _, length = _EVENT.unpack_from(events, at)
                at += _EVENT.size + length
                if mask & _LOST:
                    return None
                names[events[at - length : at].rstrip(b"\0")] = None
        texts = map(os.fsdecode, names)
        return {name: _listed(f"{self._path}/{name}") for name in texts}

    def _read(self) -> bytes:
        try:
            return os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return b""


def watch(path: str) -> LocalWatch | None:
    """Watch a directory; `None` where the system has no such thing, or no more of them."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, AttributeError):  # not on macOS
        return None
    if fd < 0:
        return None
    if libc.inotify_add_watch(fd, os.fsencode(path), _NAMES | _ONLY_DIRECTORY) < 0:
        os.close(fd)
        return None
    return LocalWatch(fd, path)


def _listed(path: str) -> int | None:
    """Return what a listing of its directory has of a path, `None` if it is not there."""
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return None
    return Link(info.st_ino) if stat_bits.S_ISLNK(info.st_mode) else info.st_ino
