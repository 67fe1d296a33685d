"""Requests to a server before a reader needs their answers: files that are opened ahead, and ranges of large files.

Opening a file in an object store is a request, which brings all of a small object; a task that reads thousands of files would wait for
each of them. And a task that works while no request is on its way, and then waits for the next range while it does no work, takes as
long as both together.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Executor, Future

    from penstock.storage import Opener, ReadableFile, ReadHandle

OPEN_FILES = 32  # each has the first 256 KiB of its object
WINDOW_BYTES = 8 << 20  # as much as a store's handle asks for at once
WINDOWS_AHEAD = 2  # on their way while a reader works on the window before


class OpenedAhead:
    """Opens `paths` for one reader, in their order, before it asks for them; any other file when it asks for it.

    An error is raised when the reader asks for the file.
    """

    def __init__(self, opens: Opener, paths: Iterable[str], workers: Executor) -> None:
        self._opens = opens
        self._paths = iter(paths)
        self._workers = workers
        self._coming: deque[tuple[str, Future[ReadHandle]]] = deque()
        self._fill()

    def open(self, path: str) -> ReadHandle:
        """Return the file, which may have been opened a while ago; the paths before it can no longer be asked for."""
        if all(path != known for known, _ in self._coming):
            return self._opens(path)
        while True:
            known, opened = self._coming.popleft()
            if known == path:
                self._fill()
                return opened.result()
            opened.cancel()

    def _fill(self) -> None:
        while len(self._coming) < OPEN_FILES and (path := next(self._paths, None)) is not None:
            self._coming.append((path, self._workers.submit(self._opens, path)))


class WindowsAhead:
    """An open file for one reader, of which several windows are requested in parallel before they are read.

    A reader that says it reads on from `at` has the next `WINDOWS_AHEAD` on their way at once. A reader that does not say so may jump
    about in the file, as libraries of tables do: windows begin only when a read continues where the last one ended, and no more windows
    are on their way than were used since. So at most as many windows are requested in vain as were of use. Nothing is requested ahead
    from `end` on, and nothing twice unless a reader goes back by more than a window. An error is raised when its bytes are read.
    """

    def __init__(self, file: ReadableFile, end: int, workers: Executor, at: int | None = None) -> None:
        self._file = file
        self._end = end
        self._workers = workers
        self._first = end if at is None else at  # where window 0 begins; at the end: nobody reads on yet
        self._ahead = -1 if at is None else WINDOWS_AHEAD
        self._used = -1  # the last window from which bytes were read
        self._windows: dict[int, Future[bytes]] = {}
        self._read_to = -1  # where the last read ended

    def read(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes at `offset`; fewer only at the end of the file."""
        goes_on = offset == self._read_to or length >= 2 * WINDOW_BYTES
        self._read_to = offset + length
        if not self._is_near(offset):
            if not goes_on or offset >= self._end:
                return self._file.read(offset, length)
            self.close()
            self._first, self._ahead, self._used = offset, -1, -1
        stop = min(offset + length, self._end)
        pieces = self._taken(offset, stop)
        if stop < offset + length:
            pieces.append(self._file.read(stop, offset + length - stop))
        return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Request nothing more; nobody uses what is still on its way."""
        for window in self._windows.values():
            window.cancel()
        self._windows.clear()

    def _is_near(self, offset: int) -> bool:
        """Tell whether an offset is in a window that is held or on its way, or in the next one or two."""
        if not self._first <= offset < self._end:
            return False
        number = (offset - self._first) // WINDOW_BYTES
        return min(self._windows, default=0) <= number <= max(self._windows, default=-1) + 2

    def _taken(self, start: int, stop: int) -> list[bytes | memoryview]:
        low, high = (start - self._first) // WINDOW_BYTES, (stop - 1 - self._first) // WINDOW_BYTES
        for number in [number for number in self._windows if number < low - 1]:
            self._windows.pop(number).cancel()
        if high > self._used:
            self._used, self._ahead = high, min(self._ahead + 1, WINDOWS_AHEAD)
        for number in range(low, high + 1 + self._ahead):
            self._ask(number)
        pieces: list[bytes | memoryview] = []
        for number in range(low, high + 1):
            begin, data = self._first + number * WINDOW_BYTES, self._windows[number].result()
            inside = slice(max(start - begin, 0), min(stop - begin, len(data)))
            pieces.append(data if inside == slice(0, len(data)) else memoryview(data)[inside])
        return pieces

    def _ask(self, number: int) -> None:
        begin = self._first + number * WINDOW_BYTES
        if begin < self._end and number not in self._windows:
            length = min(WINDOW_BYTES, self._end - begin)
            self._windows[number] = self._workers.submit(self._file.read, begin, length)
