"""Names in the output that somebody has: a file of users', or of another sink, may be called as one of ours would be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.storage import entry_at

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.storage import Storage


class TakenNames:
    """The names that were met so far. Each path is looked at once; a directory where names are met twice is listed."""

    def __init__(self, storage: Storage, root: str) -> None:
        self.taken: set[str] = set()
        self._storage, self._root = storage, root
        self._free: set[str] = set()
        self._met_in: set[str] = set()

    def meets(self, paths: Iterable[str]) -> bool:
        """Tell whether something is at one of the paths, below the root; it is among `taken` then."""
        unknown = set(paths) - self._free
        met = {path for path in unknown if entry_at(self._storage, f"{self._root}/{path}")}
        self._free |= unknown - met
        self.taken |= met
        for directory in {path.rpartition("/")[0] for path in met}:
            if directory in self._met_in:  # more than one: it may be full of them
                self.taken |= self._names_in(directory)
            self._met_in.add(directory)
        return bool(met)

    def _names_in(self, directory: str) -> set[str]:
        folder = f"{self._root}/{directory}" if directory else self._root
        return {f"{directory}/{name}" if directory else name for name in self._storage.names(folder)}
