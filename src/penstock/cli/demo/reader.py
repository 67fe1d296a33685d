"""A reader that knows nothing of Penstock: it lists the output all the time and reads each file as soon as it appears.

It checks what it sees against the lines of the source, with the number of times each line occurs there. At no time may
a visible file change or disappear, contain a line that the source does not have (half a line would be one), or repeat a
line more often than the source has it. Lines are compared by their hashes, so no Python statement runs per line.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from penstock import clock
from penstock.errors import PenstockError
from penstock.formats.lines import BOM, with_line_feeds
from penstock.verify.files import walk
from penstock.verify.sums import hashes, lines

if TYPE_CHECKING:
    from penstock.storage import Entry, Storage
    from penstock.verify.sums import Hashes

_PAUSE_SECONDS = 0.01


class Onlooker(threading.Thread):
    """Watches `root` from `start` until `stop`. Its findings are in its attributes, which may be read after `stop`.

    `expected` are the hashes of all lines of the source. `files` and `records` count what was seen, `listings` the
    listings that were made. `wrong` describes what must never be seen; `partial` and `duplicate` count such records.
    """

    def __init__(self, storage: Storage, root: str, expected: Hashes) -> None:
        super().__init__(name="penstock-demo-reader", daemon=True)
        self._storage = storage
        self._root = root
        self._values, self._allowed = np.unique(expected, return_counts=True)
        self._seen = np.zeros_like(self._allowed)
        self._known: dict[str, Entry] = {}
        self._ended = threading.Event()
        self.listings = 0
        self.records = 0
        self.partial = 0
        self.duplicate = 0
        self.wrong: list[str] = []

    @property
    def files(self) -> int:
        """Return how many files were seen."""
        return len(self._known)

    @property
    def complete(self) -> bool:
        """Tell whether every line was seen exactly as often as the source has it."""
        return bool(np.array_equal(self._seen, self._allowed))

    def run(self) -> None:
        """Look until `stop`."""
        while not self._ended.is_set():
            self._look()
            clock.sleep(_PAUSE_SECONDS)

    def stop(self) -> None:
        """Look a last time, and end."""
        self._ended.set()
        if self.is_alive():
            self.join()
        self._look()

    def _look(self) -> None:
        self.listings += 1
        try:
            entries = self._storage.list(self._root)
            # Every reader skips hidden names. A start creates one, to see whether it may write.
            now = {entry.name: entry for entry in entries if not entry.is_directory and entry.name[0] not in "._"}
            for name in self._known.keys() - now.keys():
                self.wrong.append(f"{name} was visible and is gone")
                del self._known[name]
            for name, entry in now.items():
                self._compare(name, entry)
        except PenstockError as error:
            self.wrong.append(str(error))

    def _compare(self, name: str, entry: Entry) -> None:
        before = self._known.get(name)
        self._known[name] = entry
        if before is None:
            self._read(name)
        elif (before.size, before.modified_ns, before.identity) != (entry.size, entry.modified_ns, entry.identity):
            self.wrong.append(f"{name} changed after it was visible: {before.size} bytes, then {entry.size}")

    def _read(self, name: str) -> None:
        line_hashes = hashes("", lines(self._storage.read(f"{self._root}/{name}")))
        places = np.searchsorted(self._values, line_hashes)
        known = self._values[np.minimum(places, len(self._values) - 1)] == line_hashes
        counts = np.bincount(places[known], minlength=len(self._seen))
        room = np.maximum(self._allowed - self._seen, 0)
        partial, duplicate = int(np.count_nonzero(~known)), int(np.maximum(counts - room, 0).sum())
        self._seen += counts
        self.records += len(line_hashes)
        self.partial += partial
        self.duplicate += duplicate
        if partial or duplicate:
            self.wrong.append(
                f"{name}: {partial} lines that the source does not have, {duplicate} that were visible before"
            )


def source_hashes(storage: Storage, root: str) -> Hashes:
    """Return the hashes of all lines of all files below `root`; a last line without a line feed gets one."""
    paths = [path for path, entry in walk(storage, root) if entry.size]
    line_hashes = [hashes("", lines(_as_read(storage.read(f"{root}/{path}")))) for path in paths]
    return np.concatenate(line_hashes) if line_hashes else np.zeros(0, np.uint64)


def _as_read(data: bytes) -> bytes:
    r"""Return the lines as the text source reads them: `\n`, `\r\n` and `\r` end one, a byte order mark is not data."""
    data = with_line_feeds(data.removeprefix(BOM), None)
    return data if data.endswith(b"\n") or not data else data + b"\n"
