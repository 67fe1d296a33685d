"""The files that are to be read: held until they stand still, then waiting for a batch, in the order of files."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.source.cursor import Cursor, FileVersion


class Backlog:
    """What is known and not planned yet, one version a path. Holding and taking a file costs no look at the others.

    `held` has, by path, what changed too recently to be read; only `Backlog` alters it.
    """

    def __init__(self) -> None:
        self.held: dict[str, FileVersion] = {}
        self._waiting: dict[str, FileVersion] = {}
        self._behind_since_ns: int | None = None
        # What waits, the next one last; and some that waited before and went, or have another version now.
        self._queue: list[tuple[tuple[int, bytes], FileVersion]] = []

    @property
    def empty(self) -> bool:
        """Tell whether no file waits for a batch; some may be held."""
        return not self._waiting

    def waiting(self) -> tuple[int, int]:
        """Return how many files wait for a batch, and their bytes."""
        return len(self._waiting), sum(file.size for file in self._waiting.values())

    def oldest_ns(self) -> int | None:
        """Return the earliest modification time of what waits for a batch, `None` if nothing does."""
        return min((file.modified_ns for file in self._waiting.values()), default=None)

    def files(self) -> list[FileVersion]:
        """Return what waits for a batch, in order."""
        return sorted(self._waiting.values(), key=lambda file: file.order)

    def hold(self, file: FileVersion) -> None:
        """Take in a file that is to be read when it stands still."""
        self.held[file.path] = file

    def hold_behind(self, file: FileVersion, since_ns: int) -> None:
        """Take in a file behind the cursor, which is there since then."""
        self.hold(file)
        self._behind_since_ns = since_ns if self._behind_since_ns is None else min(self._behind_since_ns, since_ns)

    def behind_since(self, cursor: Cursor) -> int | None:
        """Return since when the first of the files is there that wait behind the cursor, `None` if none does any more."""
        files = [*(file for _, file in self._queue[-1:]), *self.held.values()]
        if not any(map(cursor.passed, files)):
            self._behind_since_ns = None
        return self._behind_since_ns

    def drop(self, file: FileVersion) -> None:
        """Take in that this version is not there any more."""
        for expected in (self.held, self._waiting):
            if expected.get(file.path) == file:
                del expected[file.path]

    def settle(self, until_ns: int) -> None:
        """Let wait for a batch what was held and has not changed since `until_ns`."""
        settled = [file for file in self.held.values() if file.modified_ns <= until_ns]
        if not settled:
            return
        for file in settled:
            del self.held[file.path]
            self._waiting[file.path] = file
        self._queue = [item for item in self._queue if self._waits(item[1])] + [(file.order, file) for file in settled]
        self._queue.sort(key=lambda item: item[0], reverse=True)

    def first(self) -> FileVersion | None:
        """Return the next file that waits, `None` if none does."""
        while self._queue:
            file = self._queue[-1][1]
            if self._waits(file):
                return file
            self._queue.pop()
        return None

    def take(self, file: FileVersion) -> None:
        """Take out the file that `first` has returned: it is planned, wholly or in part."""
        self._queue.pop()
        del self._waiting[file.path]

    def _waits(self, file: FileVersion) -> bool:
        return self._waiting.get(file.path) == file
