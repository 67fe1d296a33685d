"""An object store: whole puts, conditional puts, and nothing that a disk has besides.

`ObjectStore` has what such stores have in common: an object is put whole, unconditionally or only if its key is free,
copied by the store itself, read by ranges, listed by prefix, deleted. Each is atomic and durable when it happens: a crash
lies between two of them. What goes wrong instead is the *reply*: a put that was applied is reported as failed. Wrap it in
`FaultySystem` for that.

`ObjectStorage` is `penstock.storage.Storage` on one. How each promise is kept, and what is different:

- *create* asks whether the key is free; the put at `sync` or `close` asks again, and is the moment at which the file is
  there. So nobody sees a file that is being written, and nothing can be appended after `sync`.
- *publish* is a copy to a free key, then a deletion. Both keys with the same bytes count as not yet moved: a copy has another
  tag than its source, on every server that was tried (S3, Azure), so after a crash the bytes are compared.
- *put_if_absent* is the conditional put. Directories are empty objects whose key ends in a slash.
- *extend* is refused: an object cannot grow.
- An open file reads only the object that was opened: one that was replaced or removed is an error.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

import xxhash

from penstock import clock
from penstock.errors import AlreadyThere, NotSupported, StorageError
from penstock.storage import Entry, InTurn, entry_at
from penstock.storage._refusal import doing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Executor

    from penstock.storage._base import Data, Storage


@dataclass(frozen=True)
class StoredObject:
    """One object. The tag is of its contents, as the tag of an object that was put in one piece is; that of a copy is another."""

    data: bytes = field(repr=False)
    modified_ns: int
    copied: bool = False

    @property
    def tag(self) -> str:
        """Return what changes when other contents take the key."""
        return xxhash.xxh3_128_hexdigest(self.data) + ("-1" if self.copied else "")


@dataclass(frozen=True)
class StoreImage:
    """What is in a store after a crash: everything that was put."""

    objects: tuple[tuple[str, StoredObject], ...] = ()

    def key(self) -> frozenset[tuple[str, bytes]]:
        """Return a value that two images share if no program can tell them apart (but by times)."""
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
        self.omit = omit  # never asked: there are no syncs
        self.calls = 0
        self._objects = dict(image.objects) if image else {}

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        """Store the object whole; `if_absent`: only if the key is free (`FileExistsError`)."""
        self._changes("put")
        if if_absent and key in self._objects:
            raise FileExistsError(errno.EEXIST, "precondition failed", key)
        self._objects[key] = StoredObject(data, clock.now_ns())

    def copy(self, source: str, target: str) -> None:
        """Store a copy under a key that is free (`FileExistsError`)."""
        self._changes("copy")
        data = self._object(source).data
        if target in self._objects:
            raise FileExistsError(errno.EEXIST, "precondition failed", target)
        self._objects[target] = StoredObject(data, clock.now_ns(), copied=True)

    def head(self, key: str) -> StoredObject:
        """Return what is known of the object (`FileNotFoundError`)."""
        return self._object(key)

    def get(self, key: str, tag: str, start: int, end: int) -> bytes:
        """Return bytes of the object with this tag (`FileNotFoundError` when there is another one, or none)."""
        stored = self._object(key)
        if stored.tag != tag:
            raise FileNotFoundError(errno.ENOENT, "another object", key)
        return stored.data[start:end]

    def objects(self, prefix: str) -> dict[str, StoredObject | None]:
        """Return what is directly below the prefix, by name; `None` stands for what are prefixes themselves."""
        below: dict[str, StoredObject | None] = {}
        for key, stored in self._objects.items():
            if key.startswith(prefix) and key != prefix:
                name, deeper, _ = key.removeprefix(prefix).partition("/")
                below[name] = None if deeper else stored
        return below

    def remove(self, key: str) -> None:
        """Remove the object; none is no error."""
        self._changes("remove")
        self._objects.pop(key, None)

    def storage(self) -> ObjectStorage:
        """Return the storage on this store."""
        return ObjectStorage(self)

    def image(self) -> StoreImage:
        """Return everything that is stored."""
        return StoreImage(tuple(self._objects.items()))

    def images(self, seed: int | str = 0, *, limit: int = 1) -> Iterator[StoreImage]:  # noqa: ARG002 - there is one
        """Yield what a crash leaves: what was put."""
        yield self.image()

    def state(self) -> tuple[object, ...]:
        """Return a value that two stores share if no program can tell them apart."""
        return (self.image().key(),)

    def _changes(self, call: str) -> None:
        self.calls += 1
        if self.watch is not None:
            self.watch(self, call)

    def _object(self, key: str) -> StoredObject:
        if key not in self._objects:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), key)
        return self._objects[key]


class _Writing:
    """An object that is being written; it is nowhere before `sync` or `close`."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store = store
        self._key = key
        self._data = bytearray()
        self._state = "open"  # then: stored, failed, or closed

    def write(self, data: Data) -> int:
        """Append all of `data`."""
        if self._state != "open":
            msg = f"cannot write to {self._key!r}: an object is put once"
            raise StorageError(msg)
        view = memoryview(data).cast("B")
        self._data += view
        return len(view)

    def tell(self) -> int:
        """Return the bytes written so far."""
        return len(self._data)

    def sync(self) -> None:
        """Put the object."""
        if self._state == "failed":
            msg = f"an earlier put of {self._key!r} failed; whether it was applied is not known"
            raise StorageError(msg)
        if self._state != "open":
            return
        self._state = "failed"
        with doing("put", self._key):
            self._store.put(self._key, bytes(self._data), if_absent=True)
        self._state = "stored"

    def close(self) -> None:
        """Put the object unless that was done."""
        if self._state == "open":
            self.sync()
        self._state = "closed"

    def __enter__(self) -> _Writing:
        """Return itself."""
        return self

    def __exit__(self, kind: object = None, *exc: object) -> None:
        """Put the object, but not after an exception."""
        if kind is None:
            self.close()
            return
        stored, self._state = self._state in {"stored", "failed"}, "closed"
        if stored:
            with suppress(OSError):
                self._store.remove(self._key)


class _Reading:
    """An open object."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        with doing("open", key):
            self._info = _entry(key, store.head(key))
        self._store = store
        self._key = key

    def info(self) -> Entry:
        """Return what was opened: it cannot change."""
        return self._info

    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes at `offset`."""
        with doing("read", self._key):
            return self._store.get(self._key, self._info.identity, offset, offset + length)

    def close(self) -> None:
        """Do nothing."""

    def __enter__(self) -> _Reading:
        """Return itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Do nothing."""


def _entry(key: str, stored: StoredObject) -> Entry:
    return Entry(
        key.rpartition("/")[2],
        is_directory=False,
        size=len(stored.data),
        modified_ns=stored.modified_ns,
        identity=stored.tag,
    )


class ObjectStorage:
    """See the module for how the promises of `penstock.storage.Storage` are kept."""

    goes_on = False
    reads_open = False
    tags_contents = True
    of_this_host = False

    def __init__(self, system: ObjectStore) -> None:
        self._store = system

    def create(self, path: str) -> _Writing:
        """Begin an object under a key that is free."""
        if self._exists(path):
            msg = f"cannot create {path!r}: it is there"
            raise AlreadyThere(msg)
        return _Writing(self._store, path)

    def extend(self, path: str, length: int) -> NoReturn:
        """Refuse: objects do not grow."""
        msg = f"cannot extend {path!r} from byte {length}: objects cannot be appended to; growing=true needs a disk or HDFS"
        raise NotSupported(msg)

    def lock(self, path: str, *, shared: bool = False) -> NoReturn:  # noqa: ARG002 - there is none of either kind
        """Refuse: a store has no locks."""
        msg = f"cannot lock {path!r}: an object store has no locks"
        raise NotSupported(msg)

    def open(self, path: str) -> _Reading:
        """Open the object that is there now."""
        return _Reading(self._store, path)

    def read(self, path: str) -> bytes:
        """Return the whole object."""
        with self.open(path) as file:
            return file.read(0, file.info().size)

    def list(self, path: str) -> Iterator[Entry]:
        """Yield what is directly below the prefix."""
        for name, stored in self._below("list", path).items():
            yield (
                Entry(name, is_directory=True, size=0, modified_ns=0, identity="", is_file=False)
                if stored is None
                else _entry(name, stored)
            )

    def names(self, path: str) -> dict[str, str]:
        """Return names and tags."""
        return {name: "" if stored is None else stored.tag for name, stored in self._below("list", path).items()}

    def stat(self, path: str) -> Entry:
        """Return the object, or the directory, at the path."""
        with doing("look at", path):
            try:
                return _entry(path, self._store.head(path))
            except FileNotFoundError:
                if not self._store.objects(f"{path}/"):
                    self._store.head(f"{path}/")
        return Entry(path.rpartition("/")[2], is_directory=True, size=0, modified_ns=0, identity="", is_file=False)

    def resolve(self, path: str) -> str:
        """Return the path: there are no links."""
        return path

    def take(self, source: str, target: str) -> None:
        """Copy, then delete: a store moves nothing."""
        self.publish(source, target, as_it_is=True)

    def publish(self, source: str, target: str, *, as_it_is: bool = False) -> None:  # noqa: ARG002 - a store has its own rules
        """Copy to a free key, then delete."""
        with doing("publish", target):
            mine = self._store.head(source)
            try:
                self._store.copy(source, target)
            except FileExistsError:
                if not self._same(mine, source, target):
                    raise
            self._store.remove(source)

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Put the object if the key is free."""
        with doing("put", path):
            self._store.put(path, data, if_absent=True)

    def persist(self, directory: str, names: Iterable[str]) -> None:  # noqa: ARG002 - everything there is durable
        """Do nothing: what can be seen is durable."""
        self._below("sync", directory)

    def delete(self, path: str) -> None:
        """Remove the object, or the directory if nothing is in it."""
        with doing("delete", path):
            if self._store.objects(f"{path}/"):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
            for key in (path, f"{path}/"):
                self._store.remove(key)

    def move_directory(self, source: str, target: str) -> None:
        """Refuse: a store has no directories."""
        msg = f"cannot move {source!r} to {target!r}: an object store has no directories; copy what is below it"
        raise NotSupported(msg)

    def make_directory(self, path: str, *, private: bool = False) -> None:  # noqa: ARG002 - a store has its own rules
        """Put an empty object for the directory."""
        if path and not self._exists(path):
            with doing("make directory", path):
                self._store.put(f"{path}/", b"")
        elif path and not self.stat(path).is_directory:
            msg = f"{path!r} is a file, expected a directory"
            raise StorageError(msg)

    def workers(self, count: int) -> Executor:  # noqa: ARG002 - one after another
        """Return what runs calls in turn."""
        return InTurn()

    def now_ns(self) -> int:
        """Return the store's time."""
        return clock.now_ns()

    def _same(self, mine: StoredObject, source: str, target: str) -> bool:
        """Tell whether two keys have the same bytes, which are read only if there are as many."""
        other = self._store.head(target)
        size = len(mine.data)
        if len(other.data) != size:
            return False
        return self._store.get(source, mine.tag, 0, size) == self._store.get(target, other.tag, 0, size)

    def addressed_as(self, other: Storage, path: str) -> str:  # noqa: ARG002 - it has one address
        """Return the path."""
        return path

    def _exists(self, path: str) -> bool:
        return entry_at(self, path) is not None

    def _below(self, call: str, path: str) -> dict[str, StoredObject | None]:
        with doing(call, path):
            below = self._store.objects(f"{path}/")
            if not below:
                self._store.head(f"{path}/")
        return below
