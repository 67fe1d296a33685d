"""The files that are to be read: held until they stand still, then waiting for a batch, in the order of files."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from penstock.source.cursor import sort

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.source.cursor import Cursor, FileVersion

_SIZE = attrgetter("size")


class Backlog:
    """Files that are known and not planned yet, one version for each path. Holding or taking a file does not look at the others.

    `held` has, by path, the files that changed too recently to be read; only `Backlog` alters it.
    """

    def __init__(self) -> None:
        self.held: dict[str, FileVersion] = {}
        self._waiting: dict[str, FileVersion] = {}
        self._waiting_bytes = 0
        self._before_cursor_since_ns: int | None = None
        # Waiting files, the next one last; also entries of files that have disappeared or have another version by now.
        self._queue: list[FileVersion] = []

    @property
    def empty(self) -> bool:
        """Tell whether no file waits for a batch; some may be held."""
        return not self._waiting

    def waiting(self) -> tuple[int, int]:
        """Return how many files wait for a batch, and their bytes; asked at each batch, so nothing is added up here."""
        return len(self._waiting), self._waiting_bytes

    def oldest_ns(self) -> int | None:
        """Return the earliest modification time of the waiting files, `None` if there are none."""
        first = self.first()
        return None if first is None else first.modified_ns

    def files(self) -> list[FileVersion]:
        """Return the waiting files, in order."""
        files = list(self._waiting.values())
        sort(files)
        return files

    def hold(self, file: FileVersion) -> None:
        """Take in a file that is to be read when it stands still."""
        self.held[file.path] = file

    def hold_before_cursor(self, file: FileVersion, since_ns: int) -> None:
        """Take in a file before the cursor, which has been there since `since_ns`."""
        self.hold(file)
        self._before_cursor_since_ns = (
            since_ns if self._before_cursor_since_ns is None else min(self._before_cursor_since_ns, since_ns)
        )

    def before_cursor_since(self, cursor: Cursor) -> int | None:
        """Return since when the first of the waiting files before the cursor has been there, `None` if no such file waits any more."""
        files = [*self._queue[-1:], *self.held.values()]
        if not any(map(cursor.passed, files)):
            self._before_cursor_since_ns = None
        return self._before_cursor_since_ns

    def drop(self, file: FileVersion) -> None:
        """Remove this version, which is not there any more."""
        if self.held.get(file.path) == file:
            del self.held[file.path]
        if self._waits(file):
            self._no_longer_waits(file.path)

    def settle(self, until_ns: int) -> None:
        """Make held files that have not changed since `until_ns` wait for a batch."""
        settled = [file for file in self.held.values() if file.modified_ns <= until_ns]
        if not settled:
            return
        if len(settled) == len(self.held):
            for path in self.held.keys() & self._waiting.keys():
                self._no_longer_waits(path)
            self._waiting.update(self.held)
            self.held.clear()
        else:
            for file in settled:
                if file.path in self._waiting:
                    self._no_longer_waits(file.path)
                self._waiting[file.path] = self.held.pop(file.path)
        self._waiting_bytes += sum(map(_SIZE, settled))
        self._queue = [*filter(self._waits, self._queue), *settled]
        sort(self._queue, reverse=True)

    def first(self) -> FileVersion | None:
        """Return the next file that waits, `None` if none does."""
        while self._queue:
            file = self._queue[-1]
            if self._waits(file):
                return file
            self._queue.pop()
        return None

    def take(self, files: Sequence[FileVersion]) -> None:
        """Remove the files that `next` or `first` returned: they are planned, the last of them wholly or in part."""
        if not files:
            return
        while self._queue.pop() is not files[-1]:
            pass
        for file in files:
            self._no_longer_waits(file.path)

    def next(self, count: int | None, size: int | None) -> list[FileVersion]:
        """Return the next waiting files, in order: at most `count`, with at most `size` bytes together; none if the first one is larger."""
        files: list[FileVersion] = []
        for file in filter(self._waits, reversed(self._queue)):
            if len(files) == count or (size is not None and file.size > size):
                break
            files.append(file)
            if size is not None:
                size -= file.size
                if not size:
                    break
        return files

    def _no_longer_waits(self, path: str) -> None:
        self._waiting_bytes -= self._waiting.pop(path).size

    def _waits(self, file: FileVersion) -> bool:
        return self._waiting.get(file.path) == file
