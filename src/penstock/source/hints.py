"""What a storage tells of a large directory between two listings: a hint, never the truth.

Listing a directory of a million names takes two seconds (on HDFS seven), at each trigger at which one is new. A query that goes on has
such a directory watched where the storage can (`Storage.watch`), and looks at the names that it tells, O(new). The rules that make a
hint of it and no more:

1. A listing comes all the same: after `_SHARE` times as long as one takes, and within `_LISTED_SECONDS`. So a name of which nobody told is
   found late, never not at all; whoever takes hints must be able to read a file that late (`HINT_NS`).
2. What a watch does not tell of at all (a directory that changed, and no name; a queue that ran over) is listed at once.
3. A watch counts from the first listing that began behind its start, and is of one directory: not of what takes its name.
4. The time before which all that had come is known stays that of the last look without a hint (`Scan.listed_ns`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from penstock import clock
from penstock.clock import SECOND_NS

if TYPE_CHECKING:
    from collections.abc import Hashable

    from penstock.storage import DirectoryWatch, Storage

Stamp: TypeAlias = tuple[int, int | None, str]  # what changes when a name in a directory does; the last is whose it is

_WATCHED_NAMES = 10_000  # a directory of fewer is listed in 10 ms
_SHARE = 20
_LISTED_SECONDS = 60.0
HINT_NS = int((_LISTED_SECONDS + 1) * SECOND_NS)  # how late a file may be found


class Hints:
    """The hints of one directory, listing by listing. Not shared between threads."""

    def __init__(self) -> None:
        self._watch: DirectoryWatch | None = None
        self._counts = False
        self._told: Stamp | None = None
        self._began = self._due = 0.0

    def listing(self, stamp: Stamp) -> None:
        """Take in that the directory is about to be listed: what a watch told before is of no use, and it counts from now on."""
        if self._told is None or self._told[2] != stamp[2]:
            self._watch = None
        self._told, self._began = stamp, clock.monotonic()
        self._counts = self._watch is not None and self._watch.changes() is not None

    def listed(self, storage: Storage, path: str, names: int, *, wanted: bool) -> None:
        """Take in that it was listed and has so many names: it is watched from now on, if that is `wanted` and they are many."""
        now = clock.monotonic()
        self._due = now + min(_SHARE * (now - self._began), _LISTED_SECONDS)
        if not self._counts:
            self._watch = storage.watch(path) if wanted and names >= _WATCHED_NAMES else None

    def names(self, stamp: Stamp) -> dict[str, Hashable | None] | None:
        """Return the names that something happened to since the last look, as `DirectoryWatch.changes`; `None`: it is to be listed."""
        if self._watch is None or not self._counts or clock.monotonic() >= self._due:
            return None
        if self._told is None or self._told[2] != stamp[2]:
            return None
        names = self._watch.changes()
        if names is None or (not names and stamp != self._told):
            return None
        self._told = stamp
        return names
