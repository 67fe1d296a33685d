"""An object store that loses power and replies: the calls that `ObjectStorage` makes on a store, in memory.

`ObjectStore` has the calls of `penstock.storage._objects_calls.Objects`, so the same code that runs on a real store runs on this one.
Every call is atomic and durable when it happens: a crash lies between two of them. What can go wrong instead is the *reply*: a put that
was applied is reported as failed. Wrap the store in `FaultySystem` for that. As on every real store that was tried:

- The copy of an object has another tag than its source, and not the token that was put with the source.
- Times are whole seconds. There are no directories: a common prefix of keys counts as one as long as there are such keys.
- What a long upload has sent before a crash is left behind, and only `uploads` shows it.
- A put may be refused because another put of the same key is in progress, which then leaves nothing (409): `conflicts` is how many of
  the next puts are refused so. The library may repeat a put that was applied, and the repetition is then refused because of its own
  object (412): `repeats`.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import xxhash

from penstock import clock
from penstock.clock import SECOND_NS
from penstock.storage import ObjectStorage
from penstock.storage._objects_calls import ObjectStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.storage._base import Data


@dataclass(frozen=True)
class StoredObject:
    """One object. The tag follows from its contents, like the tag of an object that was put in one piece; a copy has another tag."""

    data: bytes = field(repr=False)
    modified_ns: int
    copied: bool = False
    token: str = ""

    @property
    def tag(self) -> str:
        """Return the tag, which changes when other contents take the key."""
        return xxhash.xxh3_128_hexdigest(self.data) + ("-1" if self.copied else "")

    def shown(self, key: str, *, listed: bool = False) -> ObjectStatus:
        """Return the store's status of it."""
        seconds = self.modified_ns // SECOND_NS * SECOND_NS
        return ObjectStatus(key, len(self.data), seconds, self.tag, "" if listed else self.token)


@dataclass(frozen=True)
class StoreImage:
    """What is in a store after a crash: everything that was put, and the parts of unfinished uploads."""

    objects: tuple[tuple[str, StoredObject], ...] = ()
    uploads: tuple[tuple[str, str, int], ...] = ()

    def key(self) -> frozenset[tuple[str, bytes]]:
        """Return a value that two images share if no program can tell them apart (except by times)."""
        return frozenset((key, stored.data) for key, stored in self.objects)


class ObjectStore:
    """See the module. `watch`, if given, is called with the store and the name of a call before the call changes anything."""

    def __init__(
        self,
        image: StoreImage | None = None,
        *,
        watch: Callable[[ObjectStore, str], None] | None = None,
        omit: Callable[[str], bool] | None = None,
    ) -> None:
        self.watch = watch
        self.omit = omit  # never called: there are no syncs
        self.calls = 0
        self.conflicts = 0
        self.repeats = 0
        self._objects = dict(image.objects) if image else {}
        self._uploads = {number: (key, begun) for key, number, begun in image.uploads} if image else {}

    def storage(self) -> ObjectStorage:
        """Return a storage on this store, of the class for real ones."""
        return ObjectStorage(system=self)

    # -- calls of a store --------------------------------------------------------------------------------------------

    def put(self, key: str, data: bytes, token: str) -> None:
        """Store the object whole if the key is free."""
        self._changes("put")
        if self.conflicts:
            self.conflicts -= 1
            raise FileExistsError(errno.EEXIST, "another put of this key is under way", key)
        if key in self._objects:
            raise FileExistsError(errno.EEXIST, "precondition failed", key)
        self._objects[key] = StoredObject(data, clock.now_ns(), token=token)
        if self.repeats:
            self.repeats -= 1
            raise FileExistsError(errno.EEXIST, "precondition failed", key)

    def upload(self, key: str, token: str) -> _Upload:
        """Begin a long object."""
        self._changes("upload")
        number = f"{len(self._uploads)}-{token}"
        self._uploads[number] = key, clock.now_ns()
        return _Upload(self, key, token, number)

    def finish(self, upload: _Upload) -> None:
        """Put together what was uploaded, in place of any object with the key."""
        self._changes("finish")
        del self._uploads[upload.number]
        self._objects[upload.key] = StoredObject(bytes(upload.data), clock.now_ns(), token=upload.token)

    def copy(self, source: str, target: str) -> None:
        """Store a copy under a key that is free."""
        self._changes("copy")
        data = _stored(self._objects, source).data
        if target in self._objects:
            raise FileExistsError(errno.EEXIST, "precondition failed", target)
        self._objects[target] = StoredObject(data, clock.now_ns(), copied=True)

    def head(self, key: str) -> ObjectStatus:
        """Return the status of the object."""
        return _stored(self._objects, key).shown(key)

    def begin(self, key: str, length: int) -> tuple[ObjectStatus, bytes]:
        """Return the status of the object, and its first bytes."""
        stored = _stored(self._objects, key)
        return stored.shown(key), stored.data[:length]

    def get(self, key: str, tag: str, start: int, end: int) -> bytes:
        """Return bytes of the object with this tag."""
        stored = _stored(self._objects, key)
        if stored.tag != tag:
            raise OSError(errno.ESTALE, "another object has the key", key)
        return stored.data[start:end]

    def objects(self, prefix: str) -> Iterator[tuple[str, ObjectStatus | None]]:
        """Yield the objects and common prefixes directly below the prefix."""
        below: dict[str, ObjectStatus | None] = {}
        start = f"{prefix}/" if prefix else ""
        for key, stored in self._objects.items():
            if key.startswith(start):
                name, deeper, _ = key.removeprefix(start).partition("/")
                below[name] = None if deeper else stored.shown(key, listed=True)
        yield from below.items()

    def listed_after(self, prefix: str, after: str) -> Iterator[ObjectStatus]:
        """Yield the objects below the prefix with keys after `after`."""
        keys = sorted(key for key in self._objects if key.startswith(f"{prefix}/") and key > after)
        yield from (self._objects[key].shown(key, listed=True) for key in keys)

    def has_below(self, prefix: str) -> bool:
        """Tell whether any object lies below the prefix."""
        return any(key.startswith(f"{prefix}/") for key in self._objects)

    def remove(self, key: str) -> None:
        """Remove the object; it is no error if there is none."""
        self._changes("remove")
        self._objects.pop(key, None)

    def uploads(self, prefix: str) -> Iterator[tuple[str, str, int]]:
        """Yield the uploads that were begun, and neither finished nor dropped."""
        for number, (key, begun_ns) in self._uploads.items():
            if not prefix or key.startswith(f"{prefix}/"):
                yield key, number, begun_ns

    def drop(self, key: str, number: str) -> None:  # noqa: ARG002 - the number is enough
        """Remove what was uploaded."""
        self._changes("drop")
        self._uploads.pop(number, None)

    def now_ns(self) -> int:
        """Return the store's time."""
        return clock.now_ns()

    # -- what a crash leaves -----------------------------------------------------------------------------------------

    def image(self) -> StoreImage:
        """Return everything that is stored."""
        uploads = tuple((key, number, begun) for number, (key, begun) in self._uploads.items())
        return StoreImage(tuple(self._objects.items()), uploads)

    def images(self, seed: int | str = 0, *, limit: int = 1) -> Iterator[StoreImage]:  # noqa: ARG002 - there is only one image
        """Yield what a crash leaves: what was put."""
        yield self.image()

    def state(self) -> tuple[object, ...]:
        """Return a value that two stores share if no program can tell them apart."""
        return (self.image().key(),)

    def _changes(self, call: str) -> None:
        self.calls += 1
        if self.watch is not None:
            self.watch(self, call)


def _stored(objects: Mapping[str, StoredObject], key: str) -> StoredObject:
    if key not in objects:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), key)
    return objects[key]


class _Upload:
    """A long upload in progress."""

    def __init__(self, store: ObjectStore, key: str, token: str, number: str) -> None:
        self._store = store
        self.key = key
        self.token = token
        self.number = number
        self.data = bytearray()

    def write(self, data: Data) -> None:
        """Append all of `data`."""
        self.data += memoryview(data)

    def finish(self) -> None:
        """Put the object."""
        self._store.finish(self)
