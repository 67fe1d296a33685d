"""The window store as a program that can be crashed anywhere: owners that save their windows, and what a restart finds."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from penstock import failpoints
from penstock.errors import StorageError
from penstock.testing import Crashable, Program
from penstock.windows import WindowStore

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = "/windows"
Seen = tuple[tuple[int, int, bytes], ...]


class WindowProgram(Program):
    """Owners that save window after window, with other contents at each start, and forget committed windows.

    Its memory is the number of starts, the first window that is not forgotten, and every artifact that was saved or found, and so
    seen. `killed`: a process that dies before its sync first saves each window, while the machine stays up.
    """

    memory: tuple[int, int, Seen]

    def __init__(self, owners: list[int], *, killed: bool = False) -> None:
        self.memory = (0, 0, ())
        self._owners = owners  # of each window: the number of owners
        self._killed = killed

    def run(self, disk: Crashable, rest: Callable[[], None]) -> None:
        """Save the windows that are not saved yet."""
        starts, first, seen = self.memory
        self.memory = (starts + 1, first, seen)
        for at in range(1, 3 * len(self._owners)) if self._killed else ():
            failpoints.arm(f"storage.sync=error@{at}")
            try:
                with suppress(StorageError):
                    self._start(disk, starts, lambda: None)
            finally:
                failpoints.arm("")
        self._start(disk, starts, rest)

    def _start(self, disk: Crashable, starts: int, rest: Callable[[], None]) -> None:
        with WindowStore(ROOT, segment_size=300, storage=disk.storage()) as store:
            for window, owners in enumerate(self._owners):
                first = self.memory[1]
                for owner in range(owners) if window >= first else ():
                    if store.load(window, owner) is None:
                        store.save(window, b"%d" % starts * (1 + 50 * (window % 3)), owner)
                    self._see(window, owner, store.load(window, owner))
                if window % 2 and window > first:
                    self.memory = (self.memory[0], window, self.memory[2])
                    store.committed(window)
                rest()

    def _see(self, window: int, owner: int, artifact: bytes | None) -> None:
        starts, first, seen = self.memory
        assert artifact is not None
        if (window, owner, artifact) not in seen:
            self.memory = (starts, first, (*seen, (window, owner, artifact)))

    def check(self, disk: Crashable, *, final: bool) -> list[str]:
        """Open the store: each artifact that was seen and is not forgotten is there, unchanged."""
        _, first, seen = self.memory
        with WindowStore(ROOT, storage=disk.storage()) as store:
            found = [
                f"window {window} of {owner} is {store.load(window, owner)!r}, and was {artifact!r}"
                for window, owner, artifact in seen
                if window >= first and store.load(window, owner) != artifact
            ]
            found += [
                f"all of window {window} are {store.load_all(window)}"
                for window in range(first, len(self._owners))
                if final and len(store.load_all(window)) != self._owners[window]
            ]
            last = store.largest_completed(range(self._owners[-1]))
        if final and last != len(self._owners) - 1:
            found.append(f"completed up to {last}")
        return found
