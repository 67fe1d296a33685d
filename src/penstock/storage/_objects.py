"""The back end for stores of objects (`s3://`, `az://`, `gs://`): one conditional put decides, one conditional copy publishes.

`_objects_calls` has the calls of a store that are used. How each promise of `_base` is kept:

- *Directories* do not exist. The common beginning of keys counts as a directory as long as an object is below it; making and
  removing one does nothing. So nobody looks for a directory in vain, and nothing is left that other programs would list. Objects
  that other programs put for directories are not files: empty objects with others below them (Azure's hierarchical accounts), or
  empty objects with a slash or `_MARKER` at their end.
- *create* checks that the key is free. The put at `sync` or `close` checks again, and makes the file exist. So nobody sees a file
  that is being written, and nothing can be appended to a synced file. A file that is longer than `_PIECE_BYTES` is uploaded in
  pieces, which a store does not show before the last one. But obstore cannot finish such an upload on the condition that the key
  is free. So it goes to a unique key, and is published from there. A caller whose name is unique already says so (`unique`): then
  the upload goes there at once, and no key is checked.
- *publish* looks at the target first (a copy that is refused has copied everything), copies to a free key, and deletes the
  source.
- *put_if_absent* is one conditional put.
- *open* is one request, which also brings the beginning of the object. A reader that continues in small steps gets bytes that
  were read ahead. Every further read names the tag: if the object was replaced or removed, that is an error, and never gives
  other bytes.
- *extend* and *lock* are refused: objects do not grow, and there are no locks.

Answers of a store that do not mean what they say:

1. *A put is refused, and nothing is there.* A put that meets another one under way is refused (409), even if the other one then
   fails; a healthy driver would be taken for a fenced one. Rule: look after every refusal; if nothing is there, put again, at the
   intervals of `_AGAIN`.
2. *A put is refused by its own object.* Its reply was lost, and the library has put it again. Rule: each put has a unique token;
   an object with this token is ours, and the put is done.
3. *A copy is done, and its reply is lost; or a crash comes between copy and deletion.* The tag of a copy differs from the tag of
   its source, on every server that was tried, and an object that was copied in parts has lost its token. Rule: a target that is
   as long as the source is compared with it, byte by byte. This happens only after a crash or an error.
4. *Times* come from the store's clock, in whole seconds. A large object may have the time at which its upload began.

*A fork.* A process whose parent has used a store would hang when it uses one, so `_objects_native` refuses it.
"""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

from penstock import clock, failpoints, unique
from penstock.errors import AccessRefused, NotSupported, NotThere, StorageError
from penstock.storage import _objects_native
from penstock.storage._base import TEMPORARY, Entry, OpenedOneByOne
from penstock.storage._in_turn import InTurn
from penstock.storage._objects_errors import way_in
from penstock.storage._refusal import refuse
from penstock.tally import synced

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Executor

    from penstock.storage._base import Data, Storage
    from penstock.storage._objects_calls import Objects, ObjectStatus, Upload

_PIECE_BYTES = 8 << 20  # a shorter file is one put
_LONGEST_BYTES = 5 << 30  # the longest object that all stores can copy
_KEY_BYTES_MAX = 1024  # the same for S3, Azure and Google
_LONGEST_S3_BYTES = 10_000 * _PIECE_BYTES  # S3 takes 10,000 pieces; longer objects are copied in parts
_BEGIN_BYTES = 256 << 10  # the beginning that `open` reads: all of a small object
_AHEAD_BYTES = 8 << 20  # read ahead for a reader in small steps, because each request costs money and time
_MARKER = "_$folder$"  # ending of the empty objects that Hadoop and EMR put for directories
# Seconds before each try of a put or copy that was refused although no object was there.
_AGAIN = (0.0, 0.05, 0.2, 0.5, 1.0, 2.0)


@contextmanager
def _doing(call: str, path: str) -> Iterator[None]:
    """Raise every `OSError` of the block as the matching `StorageError` for a store."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EACCES:
            refuse(error, call, path)
        msg = f"cannot {call} {path!r}: {error.strerror}; {way_in(error.strerror)}"
        raise AccessRefused(msg) from error


class ObjectWriteHandle:
    """An object that is being written; it does not exist before `sync` or `close`."""

    def __init__(self, storage: ObjectStorage, path: str, *, unique_name: bool) -> None:
        self._storage = storage
        self._path = path
        self._unique = unique_name
        self._token = unique.token()
        self._data = bytearray()
        self._upload: Upload | None = None
        self._sent_to = path
        self._written = 0
        self._state = "open"  # then: stored, failed, or closed

    def write(self, data: Data) -> int:
        """Append all of `data`."""
        if self._state != "open":
            msg = f"cannot write to {self._path!r}: an object is put once, and this one was, or could not be"
            raise StorageError(msg)
        view = memoryview(data).cast("B")
        if self._written + len(view) > self._storage.longest_bytes:
            msg = (
                f"{self._path!r} would be longer than {self._storage.longest_bytes >> 30} GiB, the most that is put and copied here; make "
                "parts smaller (rollSize=1g)"
            )
            raise StorageError(msg)
        with self._failing("write"):
            failpoints.hit("storage.write")
            self._append(view)
        self._written += len(view)
        return len(view)

    def _append(self, view: memoryview) -> None:
        if self._upload is None and len(self._data) + len(view) <= _PIECE_BYTES:
            self._data += view
            return
        if self._upload is None:
            if not self._unique:
                directory, _, _ = self._path.rpartition("/")
                self._sent_to = f"{directory}/{TEMPORARY}{self._token}"
            self._upload = self._storage.calls.upload(self._storage.key(self._sent_to), self._token)
            self._upload.write(self._data)
            self._data = bytearray()
        self._upload.write(view)

    @contextmanager
    def _failing(self, call: str) -> Iterator[None]:
        """After an error in the block, refuse every further write or sync of this file."""
        state, self._state = self._state, "failed"
        with _doing(call, self._path):
            yield
        self._state = state

    def tell(self) -> int:
        """Return the bytes written so far."""
        return self._written

    def sync(self) -> None:
        """Put the object, or finish its upload."""
        if self._state == "failed":
            msg = f"an earlier write or put of {self._path!r} failed; what it holds cannot be made durable any more"
            raise StorageError(msg)
        if self._state != "open":
            return
        with self._failing("sync"):
            failpoints.hit("storage.sync")
            synced(self._store)
        self._state = "stored"

    def _store(self) -> None:
        if self._upload is None:
            self._storage.put(self._path, bytes(self._data), self._token)
            self._data = bytearray()
            return
        try:
            self._upload.finish()
        except OSError:
            if not self._storage.is_mine(self._sent_to, self._token):
                raise
        self._upload = None
        if self._sent_to != self._path:
            self._storage.publish(self._sent_to, self._path)

    def close(self) -> None:
        """Put the object, unless it was put before or a call has failed."""
        try:
            if self._state == "open":
                self.sync()
        finally:
            self._state, self._upload = "closed", None

    def __enter__(self) -> ObjectWriteHandle:
        """Return itself."""
        return self

    def __exit__(self, kind: object = None, *exc: object) -> None:
        """Put the object; after an exception remove it instead, if it was put."""
        if kind is None:
            self.close()
            return
        was_put, self._state, self._upload = self._state in {"stored", "failed"}, "closed", None
        if was_put:
            with suppress(StorageError, OSError):
                if self._storage.is_mine(self._path, self._token):
                    self._storage.calls.remove(self._storage.key(self._path))


class ObjectReadHandle:
    """An open object. Reads return bytes of the object that was there when it was opened, or raise."""

    def __init__(self, calls: Objects, path: str, key: str) -> None:
        self._calls = calls
        self._path = path
        self._key = key
        with _doing("open", path):
            self._stored, self._begin = calls.begin(key, _BEGIN_BYTES)
        self._at = 0  # the end of the last read
        self._ahead = (0, b"")  # where the bytes that were read ahead begin, and the bytes

    def info(self) -> Entry:
        """Return the state of the object when it was opened; it cannot change."""
        return _entry(self._stored)

    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes at `offset`; `NotThere` if the object was removed or replaced."""
        end = min(offset + length, self._stored.size)
        if end <= offset:
            return b""
        if end <= len(self._begin):
            return self._begin[offset:end]
        start, ahead = self._ahead
        if not start <= offset <= end <= start + len(ahead):
            goes_on, self._at = offset == self._at, end
            start = offset
            ahead = self._get(start, max(end, min(start + _AHEAD_BYTES, self._stored.size) if goes_on else end))
            if goes_on:
                self._ahead = start, ahead
        self._at = end
        return ahead[offset - start : end - start]

    def _get(self, offset: int, end: int) -> bytes:
        try:
            with _doing("read", self._path):
                return self._calls.get(self._key, self._stored.tag, offset, end)
        except StorageError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ESTALE:
                msg = f"{self._path!r} is another object than the one that was opened: it was replaced meanwhile"
                raise NotThere(msg) from error.__cause__
            raise

    def close(self) -> None:
        """Do nothing: a store keeps nothing for a reader."""

    def __enter__(self) -> ObjectReadHandle:
        """Return itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""


class ObjectStorage(OpenedOneByOne):
    """One bucket: `s3://name`, `az://name`, `gs://name`. See the module for how the promises are kept.

    Paths are `s3://name/a/b`, or `/a/b` for short. An instance holds no keys and no connection: each process finds its own when
    it first needs them (see `_objects_place`). `system` is for tests: see `_objects_calls`.
    """

    goes_on = False
    reads_open = False
    tags_contents = True
    of_this_host = False
    has_directories = False
    takes_colons = True
    moves = False
    reads_ahead = False
    lists_in_order = True
    is_paid = True
    needs_contest = True

    def __init__(self, bucket: str = "", system: Objects | None = None) -> None:
        self.bucket = bucket
        self._system = system  # None for the real one, whose client cannot be pickled without its keys

    @property
    def calls(self) -> Objects:
        """Return this process's connection to the store."""
        return _objects_native.connect(self.bucket) if self._system is None else self._system

    @property
    def longest_bytes(self) -> int:
        """Return how long an object may be."""
        return _LONGEST_S3_BYTES if self.bucket.startswith("s3:") else _LONGEST_BYTES

    def checkpoint_at(self, path: str, given: str | None) -> str | None:  # noqa: ARG002 - that name is ours, not Hadoop's
        """Return the user's address if it is `s3a://`, the only one that Hadoop's jars can write to."""
        return given if (given or "").lower().startswith("s3a://") else None

    def bytes_below(self, root: str) -> int:
        """Return what remains of the longest key."""
        return _KEY_BYTES_MAX - len(os.fsencode(self.key(root))) - len("/")

    def key(self, path: str) -> str:
        """Return the path as a key of the store."""
        key = path.removeprefix(self.bucket)
        if key and not key.startswith("/"):
            msg = f"{path!r} is not in {self.bucket!r}"
            raise StorageError(msg)
        return key.strip("/")

    def create(self, path: str, *, unique: bool = False) -> ObjectWriteHandle:
        """Begin an object under a free key."""
        with _doing("create", path):
            failpoints.hit("storage.create")
            if not unique and self._head(path) is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return ObjectWriteHandle(self, path, unique_name=unique)

    def extend(self, path: str, length: int) -> NoReturn:
        """Refuse: objects do not grow."""
        msg = f"cannot extend {path!r} from byte {length}: objects cannot be appended to; growing=true needs a disk or HDFS"
        raise NotSupported(msg)

    def lock(self, path: str, *, shared: bool = False) -> NoReturn:  # noqa: ARG002 - there is none of either kind
        """Refuse: a store has no locks."""
        msg = f"cannot lock {path!r}: an object store has no locks"
        raise NotSupported(msg)

    def open(self, path: str) -> ObjectReadHandle:
        """Open the object that is there now."""
        return ObjectReadHandle(self.calls, path, self.key(path))

    def read(self, path: str) -> bytes:
        """Return the whole object."""
        with self.open(path) as file:
            return file.read(0, file.info().size)

    def list(self, path: str) -> Iterator[Entry]:
        """Yield the entries directly below the prefix."""
        yield from self.names(path).values()

    def names(self, path: str) -> dict[str, Entry]:
        """Return names, each with the entry that `stat` would show; none for a directory that is not there, because it counts as empty."""
        now = self.now_ns()
        with _doing("list", path):
            return {
                name: _prefix(name, now) if stored is None else _entry(stored)
                for name, stored in self.calls.objects(self.key(path))
                if stored is None or not _is_marker(stored)
            }

    def listed_after(self, path: str, after: str) -> Iterator[tuple[str, Entry]]:
        """Yield the objects below a prefix whose relative keys are greater than `after`, in the order of keys."""
        prefix = self.key(path)
        start = f"{prefix}/" if prefix else ""
        with _doing("list", path):
            for stored in _without_directories(self.calls.listed_after(prefix, start + after)):
                below = stored.key.removeprefix(start)
                if stored.key not in {prefix, start} and not _is_marker(stored):
                    yield below, _entry(stored)

    def stat(self, path: str) -> Entry:
        """Return the entry of the object, or of a directory if an object is below the path."""
        with _doing("look at", path):
            stored = self._head(path) if self.key(path) else None
            if stored is not None and not self._is_directory(stored):
                return _entry(stored)
            if self.key(path) and not self.calls.has_below(self.key(path)):
                raise FileNotFoundError(errno.ENOENT, "there is no such object, and nothing below it", path)
        return _prefix(path.rpartition("/")[2], self.now_ns())

    def watch(self, path: str) -> None:
        """Return nothing: a store reports no changes."""

    def resolve(self, path: str) -> str:
        """Return the path: there are no links."""
        return path

    def owns(self, path: str) -> bool:
        """Tell whether the path is in the bucket."""
        return f"{path}/".startswith(f"{self.bucket}/")

    def addressed_as(self, other: Storage, path: str) -> str:  # noqa: ARG002 - it has one address
        """Return the path."""
        return path

    def take(self, source: str, target: str) -> None:
        """Copy the object, and delete it if it is still the copied one; only an object that arrives in the instant between is lost."""
        with _doing("move", source):
            failpoints.hit("storage.take")
            before = self.calls.head(self.key(source))
            self._copy(source, target)
            if self.calls.head(self.key(source)).tag == before.tag:
                self.calls.remove(self.key(source))

    def publish(self, source: str, target: str, *, as_it_is: bool = False) -> None:  # noqa: ARG002 - a store has its own rules
        """Copy to a free key, then delete; see the module for lost replies."""
        with _doing("publish", target):
            failpoints.hit("storage.publish")
            self._copy(source, target)
            failpoints.hit("storage.publish.linked")
            self.calls.remove(self.key(source))

    def _copy(self, source: str, target: str) -> None:
        """Have the store copy the object; a target with the same bytes counts as done."""
        start, end = self.key(source), self.key(target)
        for seconds in _AGAIN:
            clock.sleep(seconds)
            occupant = self._head(target)
            if occupant is not None:
                if self._same(self.calls.head(start), occupant):
                    return
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
            try:
                self.calls.copy(start, end)
            except FileExistsError as error:
                refused = error  # another object may be there, or none: look
            except FileNotFoundError:
                raise
            except OSError:
                occupant = self._head(target)
                if occupant is None or not self._same(self.calls.head(start), occupant):
                    raise
                return
            else:
                return
        raise refused

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Put the object if the key is free."""
        with _doing("put", path):
            failpoints.hit("storage.put.link")
            self.put(path, data, unique.token())

    def put(self, path: str, data: bytes, token: str) -> None:
        """Put the object if the key is free; otherwise `OSError`. An object with the token is ours; see the module."""
        key = self.key(path)
        for seconds in _AGAIN:
            clock.sleep(seconds)
            try:
                self.calls.put(key, data, token)
            except FileExistsError as error:
                occupant = self._head(path)
                if occupant is not None and occupant.token == token:
                    return
                if occupant is not None:
                    raise
                refused = error
            except OSError:
                if not self.is_mine(path, token):
                    raise
                return
            else:
                return
        raise refused

    def is_mine(self, path: str, token: str) -> bool:
        """Tell whether the object that is there was put with this token; `False` if the store does not say."""
        try:
            occupant = self._head(path)
        except OSError:
            return False
        return occupant is not None and occupant.token == token

    def persist(self, directory: str, names: Iterable[str]) -> None:
        """Do nothing: every visible object is durable."""

    def delete(self, path: str) -> None:
        """Remove the object; objects below it stay."""
        with _doing("delete", path):
            failpoints.hit("storage.delete")
            self.calls.remove(self.key(path))

    def move_directory(self, source: str, target: str) -> None:
        """Refuse: a store has no directories."""
        msg = f"cannot move {source!r} to {target!r}: an object store has no directories; copy what is below it"
        raise NotSupported(msg)

    def make_directory(self, path: str, *, private: bool = False) -> None:
        """Do nothing: a directory exists when an object is below it. The store's own rules say who may read objects."""

    def workers(self, count: int) -> Executor:
        """Return threads: a call waits for the store, and releases Python's lock meanwhile."""
        return ThreadPoolExecutor(count, "penstock-storage") if self._system is None else InTurn()

    def persist_all(self) -> None:
        """Write out the disks of this host, where a checkpoint may be."""
        os.sync()

    def now_ns(self) -> int:
        """Return the store's time."""
        return self.calls.now_ns()

    def abandoned(self, path: str, before_ns: int) -> Iterator[tuple[str, str]]:
        """Yield the unfinished uploads of dead processes below a path: the path of each, and its number for `drop`."""
        with _doing("list uploads of", path):
            for key, number, begun_ns in self.calls.uploads(self.key(path)):
                if begun_ns < before_ns:
                    yield f"{self.bucket}/{key}", number

    def drop(self, path: str, number: str) -> None:
        """Remove an unfinished upload; no error if it is gone."""
        with _doing("remove the upload of", path):
            self.calls.drop(self.key(path), number)

    def _head(self, path: str) -> ObjectStatus | None:
        try:
            return self.calls.head(self.key(path))
        except FileNotFoundError:
            return None

    def _is_directory(self, stored: ObjectStatus) -> bool:
        """Tell whether an object stands for a directory of its name; costs a request if the object is empty."""
        return stored.size == 0 and self.calls.has_below(stored.key)

    def _same(self, mine: ObjectStatus, other: ObjectStatus) -> bool:
        """Tell whether two objects have the same bytes; reads them only if the sizes are equal."""
        return mine.size == other.size and all(
            self.calls.get(mine.key, mine.tag, start, end) == self.calls.get(other.key, other.tag, start, end)
            for start, end in _pieces(mine.size)
        )


def _pieces(size: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + _PIECE_BYTES, size)) for start in range(0, size, _PIECE_BYTES))


def _without_directories(listed: Iterable[ObjectStatus]) -> Iterator[ObjectStatus]:
    """Leave out empty objects with others below them. In the order of keys, the others come later, and not always directly after."""
    held: list[ObjectStatus] = []
    undecided: list[ObjectStatus] = []
    for stored in listed:
        directories = [empty for empty in undecided if stored.key.startswith(f"{empty.key}/")]
        if directories:
            held = [other for other in held if other not in directories]
        undecided = [empty for empty in undecided if empty not in directories and stored.key < f"{empty.key}/"]
        held.append(stored)
        if stored.size == 0:
            undecided.append(stored)
        if not undecided:
            yield from held
            held.clear()
    yield from held


def _is_marker(stored: ObjectStatus) -> bool:
    return stored.size == 0 and stored.key.endswith(("/", _MARKER))


def _entry(stored: ObjectStatus) -> Entry:
    name = stored.key.rpartition("/")[2]
    return Entry(name, is_directory=False, size=stored.size, modified_ns=stored.modified_ns, identity=stored.tag)


def _prefix(name: str, now_ns: int) -> Entry:
    """Return the entry of a directory. Its time is now, because nobody knows when it changed."""
    return Entry(name, is_directory=True, size=0, modified_ns=now_ns, identity="", is_file=False)
