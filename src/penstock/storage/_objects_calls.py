"""What `_objects` calls of a store of objects, and nothing else: the place where a simulated store stands in for a real one.

`_objects_native` is the real one. Keys are text without a slash at either end. Every call raises `OSError` with a number: ENOENT
(no such object), EEXIST (the key is taken), ESTALE (there is another object), EACCES (the store does not let us), ENOSPC, EILSEQ (no
key of this store), EIO (all else). An error may also mean a *lost reply*: the store has done what was asked, and the answer is gone.
EEXIST may be one, too: whoever repeats a put by itself, because the reply was lost, then meets its own object; and a store says so of
a put that met another one under way, of which nothing is left.

Each call is atomic and durable when it happens: a crash lies between two of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.storage._base import Data


@dataclass(frozen=True)
class ObjectStatus:
    """One object as a store shows it.

    `tag` changes with the contents, and that of a copy is another one than that of its source. `modified_ns` is in whole seconds: that
    is what a store says when it is asked for one object, whatever it says in a listing. `token` is what was put with the object;
    `""` where nothing was, where a copy has lost it, and in listings.
    """

    key: str
    size: int
    modified_ns: int
    tag: str
    token: str = ""


class Upload(Protocol):
    """A long object on its way, in pieces; it is nowhere before `finish`. One that is dropped leaves its pieces to `uploads`."""

    def write(self, data: Data, /) -> object:
        """Append all of `data`."""

    def finish(self) -> None:
        """Return when the object is there, whole, whatever was there before."""


class Objects(Protocol):
    """One bucket, as this process sees it."""

    def put(self, key: str, data: bytes, token: str, /) -> None:
        """Store the object whole if the key is free, else EEXIST. Of several that put at one time exactly one succeeds."""

    def upload(self, key: str, token: str, /) -> Upload:
        """Begin a long object under a key that nobody else has."""

    def copy(self, source: str, target: str, /) -> None:
        """Have the store copy an object to a key that is free; else EEXIST, when all was copied in vain."""

    def head(self, key: str, /) -> ObjectStatus:
        """Return what is known of the object."""

    def begin(self, key: str, length: int, /) -> tuple[ObjectStatus, bytes]:
        """Return what is known of the object, and its first `length` bytes, or all."""

    def get(self, key: str, tag: str, start: int, end: int, /) -> bytes:
        """Return these bytes, which lie within the object that has this tag; ESTALE if it is another one by now."""

    def objects(self, prefix: str, /) -> Iterable[tuple[str, ObjectStatus | None]]:
        """Return the names directly below a prefix (without the slash; `""`: the bucket's), each with its object; `None`: a prefix."""

    def behind(self, prefix: str, after: str, /) -> Iterable[ObjectStatus]:
        """Yield the objects below a prefix, however deep, whose keys are greater than `after`, in the order of keys."""

    def has_below(self, prefix: str, /) -> bool:
        """Tell whether any object lies below a prefix, however deep."""

    def remove(self, key: str, /) -> None:
        """Remove the object; none is no error."""

    def uploads(self, prefix: str, /) -> Iterable[tuple[str, str, int]]:
        """Yield key, number and begin (in nanoseconds) of each upload below a prefix that was begun, and neither finished nor dropped."""

    def drop(self, key: str, number: str, /) -> None:
        """Remove what was uploaded; nothing there is no error."""

    def now_ns(self) -> int:
        """Return the store's time."""
