"""What a storage says about changes in a large directory between two listings: hints, which are never relied on.

Listing a directory of a million names takes two seconds (on HDFS seven), at each trigger at which one is new. So a running query has
such a directory watched if the storage can do that (`Storage.watch`), and looks only at the names that the watch reports, O(new). These
rules keep a hint no more than a hint:

1. The directory is listed all the same: after `_SHARE` times as long as a listing takes, and within `_LISTED_SECONDS`. So a name that
   no watch reported is found late, but always found; a caller that accepts hints must be able to read a file that late (`HINT_NS`).
2. If a watch cannot say which names changed (the directory changed, and no name was reported; its queue ran over), the directory is
   listed at once.
3. A watch counts from the first listing that began after the watch, and belongs to one directory: not to another one that takes its
   name.
4. The time up to which all arrivals are known remains that of the last refresh without a hint (`Scan.listed_ns`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from penstock import clock
from penstock.clock import SECOND_NS

if TYPE_CHECKING:
    from collections.abc import Hashable

    from penstock.storage import DirectoryWatch, Storage

# What changes when a name in a directory changes; the last is the identity of the directory.
Stamp: TypeAlias = tuple[int, int | None, str]

_WATCHED_NAMES = 10_000  # a directory with fewer names is listed in 10 ms
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
        """Note that the directory is about to be listed: what a watch reported before is not needed; the watch counts from now on."""
        if self._told is None or self._told[2] != stamp[2]:
            self._watch = None
        self._told, self._began = stamp, clock.monotonic()
        self._counts = self._watch is not None and self._watch.changes() is not None

    def listed(self, storage: Storage, path: str, names: int, *, wanted: bool) -> None:
        """Note that a listing showed so many names: if they are many and it is `wanted`, the directory is watched from now on."""
        now = clock.monotonic()
        self._due = now + min(_SHARE * (now - self._began), _LISTED_SECONDS)
        if not self._counts:
            self._watch = storage.watch(path) if wanted and names >= _WATCHED_NAMES else None

    def names(self, stamp: Stamp) -> dict[str, Hashable | None] | None:
        """Return the names that changed since the last look, as `DirectoryWatch.changes`; `None`: the directory must be listed."""
        if self._watch is None or not self._counts or clock.monotonic() >= self._due:
            return None
        if self._told is None or self._told[2] != stamp[2]:
            return None
        names = self._watch.changes()
        if names is None or (not names and stamp != self._told):
            return None
        self._told = stamp
        return names
