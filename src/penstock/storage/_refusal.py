"""From what a back end says (an `OSError` and its number) to the errors that callers are promised."""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING, NoReturn

from penstock.errors import AlreadyThere, NoSpace, NotThere, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def refuse(error: OSError, doing: str, path: str) -> NoReturn:
    """Raise the kind of `StorageError` that `error` means."""
    kind = _KINDS.get(error.errno or 0, StorageError)
    remedy = _REMEDY.get(kind)
    msg = f"cannot {doing} {path!r}: {error.strerror or error}" + (f"; {remedy}" if remedy else "")
    raise kind(msg) from error


@contextlib.contextmanager
def doing(call: str, path: str) -> Iterator[None]:
    """Raise every `OSError` of the block as the `StorageError` that it means."""
    try:
        yield
    except OSError as error:
        refuse(error, call, path)
