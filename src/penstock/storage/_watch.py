"""Watches a local directory through the kernel (Linux, `inotify`): which names came and went, at the cost of these names alone.

A watch gives hints and no more. Events may be dropped (the queue is bounded), and for a directory on a network there are no
events about what another machine did. So a caller still lists the directory from time to time, and only a listing is certain.
Each name that a watch reports is looked up again: an event says that a name has changed, never how.
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
    """A watch on one directory, which begins when it is made. Not shared between threads; ends with its last reference."""

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path
        weakref.finalize(self, os.close, fd)

    def changes(self) -> dict[str, int | None] | None:
        """Return the names that have changed since the last call, each with the value that `Storage.names` would have for it now.

        The value `None`: the name is not there. `None` instead of a mapping: the kernel cannot tell.
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
    """Watch a directory; `None` if the system has no watches, or no more of them."""
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
    """Return the value that a listing of its directory has for a path, `None` if it is not there."""
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return None
    return Link(info.st_ino) if stat_bits.S_ISLNK(info.st_mode) else info.st_ino
