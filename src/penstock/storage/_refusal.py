"""Turns the errors of a back end (an `OSError` and its number) into the errors that callers are promised."""

from __future__ import annotations

import errno
from typing import NoReturn

from penstock.errors import AlreadyThere, NoSpace, NotThere, StorageError

_KINDS: dict[int, type[StorageError]] = {
    errno.EEXIST: AlreadyThere,
    errno.ENOENT: NotThere,
    errno.ENOTDIR: NotThere,
    errno.ELOOP: NotThere,
    errno.ENAMETOOLONG: NotThere,
    errno.ENOSPC: NoSpace,
    errno.EDQUOT: NoSpace,
    errno.EFBIG: NoSpace,
}
_REMEDY = {
    NoSpace: "free some space first; nothing that was committed or acknowledged is lost",
    AlreadyThere: "nothing was replaced",
}
_RIGHT = "give this user the right to it, or run as one who has it"
_ELSEWHERE = "name a place on another file system, or have this one mounted so that it can do that"
_REMEDY_OF = {
    errno.EACCES: _RIGHT,
    errno.EPERM: _RIGHT,
    errno.ENOSYS: _ELSEWHERE,
    errno.EOPNOTSUPP: _ELSEWHERE,
    errno.ENOLCK: _ELSEWHERE,
    errno.EXDEV: "it is on another file system than what would be moved there; have no mount point between the two, or name another place",
    errno.EFBIG: "raise the limit of this user for the size of a file (ulimit -f unlimited), or name a place on another file system",
    errno.EROFS: "it is on a file system that is mounted to be read; name another place, or mount it to be written",
    errno.EMFILE: "this process has as many files open as it may; raise the limit (ulimit -n 4096)",
    errno.ENFILE: "this machine has as many files open as it may; end what else runs, or raise fs.file-max",
    errno.EIO: "the disk, or what it is reached by, fails; look at the kernel's log (dmesg) before anything is started again",
}


def refuse(error: OSError, doing: str, path: str) -> NoReturn:
    """Raise the kind of `StorageError` that matches `error`."""
    kind = _KINDS.get(error.errno or 0, StorageError)
    remedy = _REMEDY_OF.get(error.errno or 0) or _REMEDY.get(kind)
    msg = f"cannot {doing} {path!r}: {error.strerror or error}" + (f"; {remedy}" if remedy else "")
    raise kind(msg) from error


def doing(call: str, path: str) -> Doing:
    """Raise every `OSError` of the block as the matching `StorageError`."""
    return Doing(call, path)


class Doing:
    """The context manager of `doing`. Not a generator: it surrounds every call of a storage, and costs a quarter of a generator."""

    __slots__ = ("_call", "_path")

    def __init__(self, call: str, path: str) -> None:
        self._call = call
        self._path = path

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Raise the matching `StorageError` for an `OSError`."""
        if isinstance(error, OSError):
            refuse(error, self._call, self._path)
