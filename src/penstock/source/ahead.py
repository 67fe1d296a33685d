"""Files of a store that are opened before they are asked for, in the order in which they will be.

To open one is a request, which brings a small object whole; a task that reads thousands of them would wait for each.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Executor, Future

    from penstock.storage import ReadHandle, Storage

OPEN_FILES = 16  # each has the first 256 KiB of its object


class OpenedAhead:
    """A storage for one reader, which opens `paths` in their order; any other file is opened when it is asked for.

    An error is raised where its file is asked for. Everything else is the storage's own.
    """

    def __init__(self, storage: Storage, paths: Iterable[str], workers: Executor) -> None:
        self._storage = storage
        self._paths = iter(paths)
        self._workers = workers
        self._coming: deque[tuple[str, Future[ReadHandle]]] = deque()
        self._fill()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a storage has
        """Return what the storage has."""
        return getattr(self._storage, name)

    def open(self, path: str) -> ReadHandle:
        """Return the file, which may have been opened a while ago; those in front of it are not asked for any more."""
        if all(path != known for known, _ in self._coming):
            return self._storage.open(path)
        while True:
            known, opened = self._coming.popleft()
            if known == path:
                self._fill()
                return opened.result()
            opened.cancel()

    def _fill(self) -> None:
        while len(self._coming) < OPEN_FILES and (path := next(self._paths, None)) is not None:
            self._coming.append((path, self._workers.submit(self._storage.open, path)))
