"""Names in the output that are taken: a file of a user, or of another sink, may have the name that one of ours would get."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.storage import entry_at

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.sink.ledger import FinishedFile
    from penstock.storage import Storage


class TakenNames:
    """The taken names that were found so far. Each path is looked up once; a directory with taken names in two look-ups is listed.

    `met` are those that a file would have got: their places by their paths below the root.
    """

    def __init__(self, storage: Storage, root: str) -> None:
        self.taken: set[str] = set()
        self.met: dict[str, str] = {}
        self._storage, self._root = storage, root
        self._free: set[str] = set()
        self._met_in: set[str] = set()
        self._resolved: dict[str, str] = {}

    def meets(self, files: Iterable[FinishedFile]) -> bool:
        """Tell whether the path of one of the files is taken; `taken` and `met` then have that path."""
        places = {file.path: file.at(self._root) for file in files if file.path not in self._free}
        met = {path for path, place in places.items() if entry_at(self._storage, place) or self._is_link(place)}
        self._free |= places.keys() - met
        self.taken |= met
        self.met |= {path: places[path] for path in met}
        folders = {path.rpartition("/")[0]: places[path].rpartition("/")[0] for path in met}
        for directory, folder in folders.items():
            if directory in self._met_in:  # the second time: the directory may be full of taken names
                self.taken |= self._names_in(directory, folder)
            self._met_in.add(directory)
        return bool(met)

    def _is_link(self, place: str) -> bool:
        """Tell whether a symbolic link has the name, which may lead to nothing; nothing can be published over it."""
        folder, _, name = place.rpartition("/")
        if folder not in self._resolved:
            self._resolved[folder] = self._storage.resolve(folder).rstrip("/")
        return self._storage.resolve(place) != f"{self._resolved[folder]}/{name}"

    def _names_in(self, directory: str, folder: str) -> set[str]:
        return {f"{directory}/{name}" if directory else name for name in self._storage.names(folder)}
