"""The calls of a store of objects that `_objects` uses, and nothing else: the interface at which a simulated store can replace a real one.

`_objects_native` is the real one. Keys are text without a slash at either end. Every call raises `OSError` with a number: ENOENT
(no such object), EEXIST (the key is taken), ESTALE (there is another object), EACCES (the store refuses us), ENOSPC, EILSEQ (not
a valid key of this store), EIO (all else). An error may also mean a *lost reply*: the store has done the call, and the answer is
lost. EEXIST may mean that, too: a library that repeats a put after a lost reply meets its own object. A store also answers EEXIST
to a put that met another one under way, even if nothing is left of that one.

Each call is atomic and durable when it happens: a crash comes between two of them.
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

    `tag` changes with the contents, and a copy has another tag than its source. `modified_ns` is in whole seconds, because a
    store gives no more for a single object, whatever it gives in a listing. `token` is the token that was put with the object;
    `""` if there was none, if a copy has lost it, and in listings.
    """

    key: str
    size: int
    modified_ns: int
    tag: str
    token: str = ""


class Upload(Protocol):
    """The upload of a long object in pieces; the object does not exist before `finish`. `uploads` lists one that was never finished."""

    def write(self, data: Data, /) -> object:
        """Append all of `data`."""

    def finish(self) -> None:
        """Finish the upload, and replace any object under the key; returns when the whole object is there."""


class Objects(Protocol):
    """A connection of this process to one bucket."""

    def put(self, key: str, data: bytes, token: str, /) -> None:
        """Store the whole object if the key is free, else EEXIST. Of several puts at the same time exactly one succeeds."""

    def upload(self, key: str, token: str, /) -> Upload:
        """Begin a long object under a unique key."""

    def copy(self, source: str, target: str, /) -> None:
        """Have the store copy an object to a free key; otherwise EEXIST, after copying everything in vain."""

    def head(self, key: str, /) -> ObjectStatus:
        """Return the status of the object."""

    def begin(self, key: str, length: int, /) -> tuple[ObjectStatus, bytes]:
        """Return the status of the object, and its first `length` bytes, or all if it has fewer."""

    def get(self, key: str, tag: str, start: int, end: int, /) -> bytes:
        """Return these bytes of the object with this tag, which has them all; ESTALE if the key has another object by now."""

    def objects(self, prefix: str, /) -> Iterable[tuple[str, ObjectStatus | None]]:
        """Return the names directly below a prefix (without the slash; `""` for the bucket), each with its object, `None` for a prefix."""

    def listed_after(self, prefix: str, after: str, /) -> Iterable[ObjectStatus]:
        """Yield the objects below a prefix, at any depth, whose keys are greater than `after`, in the order of keys."""

    def has_below(self, prefix: str, /) -> bool:
        """Tell whether any object is below a prefix, at any depth."""

    def remove(self, key: str, /) -> None:
        """Remove the object; no error if there is none."""

    def uploads(self, prefix: str, /) -> Iterable[tuple[str, str, int]]:
        """Yield key, number and begin (in nanoseconds) of each upload below a prefix that was neither finished nor dropped."""

    def drop(self, key: str, number: str, /) -> None:
        """Remove an unfinished upload; no error if it is gone."""

    def now_ns(self) -> int:
        """Return the store's time."""
