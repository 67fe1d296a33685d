"""Tries whether a place keeps the promises of the verbs, in a directory with a unique name, which is removed afterwards."""

from __future__ import annotations

import contextlib
import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock import clock, unique
from penstock.errors import AlreadyThere, NoSpace, NotThere, StorageError
from penstock.storage._base import TEMPORARY, names_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.storage._base import Storage

_DATA = b"written by penstock doctor\n"


@dataclass(frozen=True)
class Tried:
    """One promise that was tried: its text, how long it took, and how it was broken (None: it holds); `full`: for lack of space."""

    promise: str
    seconds: float
    broken: str | None = None
    full: bool = False


@dataclass(frozen=True)
class Probe:
    """The result of a probe: the directory (the output, or where it would be made), and each promise up to the first broken one.

    `clock_seconds` is how far the clock that stamps files is ahead of this machine's; None if no file was made.
    """

    directory: str
    tried: tuple[Tried, ...]
    clock_seconds: float | None

    @property
    def holds(self) -> bool:
        """Tell whether every promise holds."""
        return all(each.broken is None for each in self.tried)


def probe(storage: Storage, path: str) -> Probe:
    """Try what an output at `path` needs from its storage; `StorageError` if the storage does not answer, or `path` is a file.

    Removes everything that it has made. If that fails, `clean` recognises the rest by its name.
    """
    directory = _nearest(storage, path)
    trial = _Trial(storage, f"{directory.rstrip('/')}/{TEMPORARY}doctor-{unique.token()}")
    try:
        tried = tuple(trial.run())
    finally:
        trial.remove()
    return Probe(directory, tried, trial.clock_seconds)


def try_move(storage: Storage, trial: str, directory: str) -> None:
    """Move a file that was made for this into a directory, as files are published there, and remove it. `StorageError` if it stays."""
    target = f"{directory}/{TEMPORARY}{unique.token()}"
    try:
        storage.publish(trial, target)
    finally:
        for path in (trial, target):
            with contextlib.suppress(StorageError):  # what moving the file has raised says more
                storage.delete(path)


def _nearest(storage: Storage, path: str) -> str:
    """Return the path, or the nearest directory above it that exists."""
    while True:
        try:
            entry = storage.stat(path)
        except NotThere:
            if not storage.has_directories:
                return path
            above = posixpath.dirname(path)
            if above in {path, ""}:
                raise
            path = above
            continue
        if not entry.is_directory:
            msg = f"{path!r} is a file; expected a directory, or the name of one that can be made"
            raise StorageError(msg)
        return path


class _Trial:
    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = directory
        self._a, self._b, self._c = (f"{directory}/{name}" for name in "abc")
        self.clock_seconds: float | None = None

    def run(self) -> Iterator[Tried]:
        """Yield promises as they are tried, up to the first broken one, because the following steps need it."""
        steps: list[tuple[str, Callable[[], str | None]]] = [
            ("a directory can be made", self._make),
            ("a file can be written, and is durable", self._write),
            ("of two that create a name one is refused", lambda: self._refused(lambda: self._storage.create(self._a))),
            ("what was written is listed and read", self._read),
            ("a file can be published", self._publish),
            ("publishing never replaces", self._publish_again),
            ("of two that put a name one is refused", self._put),
            ("a file can be removed", self._delete),
        ]
        for promise, step in steps:
            start = clock.monotonic()
            full = False
            try:
                broken = step()
            except StorageError as error:
                broken, full = error.message, isinstance(error, NoSpace)
            yield Tried(promise, clock.monotonic() - start, broken, full)
            if broken is not None:
                return

    def remove(self) -> None:
        """Remove everything that was made."""
        for path in (self._a, self._b, self._c, self._directory):
            with contextlib.suppress(StorageError):
                self._storage.delete(path)

    def _make(self) -> None:
        self._storage.make_directory(self._directory, private=True)

    def _write(self) -> None:
        with self._storage.create(self._a) as file:
            file.write(_DATA)
            file.sync()
        stamped = self._storage.stat(self._a).modified_ns
        self.clock_seconds = (stamped - clock.now_ns()) / clock.SECOND_NS

    def _read(self) -> str | None:
        names = sorted(self._storage.names(self._directory))
        if names != ["a"]:
            return f"a directory with the one file 'a' was listed as {names}"
        data = self._storage.read(self._a)
        return None if data == _DATA else f"{len(_DATA)} bytes were written, and other ones read: {data[:50]!r}"

    def _publish(self) -> str | None:
        self._storage.publish(self._a, self._b)
        names = sorted(self._storage.names(self._directory))
        return None if names == ["b"] else f"'a' was published as 'b', and then there was {names}"

    def _publish_again(self) -> str | None:
        with self._storage.create(self._a) as file:
            file.write(b"another one")
            file.sync()
        broken = self._refused(lambda: self._storage.publish(self._a, self._b))
        if broken is None and self._storage.read(self._b) != _DATA:
            return "a file that was published under a name which another one had has replaced that one"
        return broken

    def _put(self) -> str | None:
        self._storage.put_if_absent(self._c, _DATA)
        return self._refused(lambda: self._storage.put_if_absent(self._c, b"another one"))

    def _delete(self) -> str | None:
        for path in (self._a, self._b, self._c):
            self._storage.delete(path)
        names = sorted(names_at(self._storage, self._directory))
        return f"all was removed, and there was still {names}" if names else None

    def _refused(self, call: Callable[[], object]) -> str | None:
        try:
            call()
        except AlreadyThere:
            return None
        return "a name that was taken was given to another file: this storage does not keep it from that"
