"""A file that was cut over several batches: whether the file that is there now still has the rest of what was read before.

The failures and their rules are numbers 10 and 14 in `plan`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

from penstock.errors import FileChanged, OptionError, StorageError
from penstock.source import advice
from penstock.source.cursor import FileVersion, is_version
from penstock.storage import entry_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.source.cursor import Cursor
    from penstock.storage import ReadHandle, Storage

SEEN_BYTES = 64 << 10  # at the beginning and at the end of what was read
_GIVE_UP = (
    "give the rest up (`penstock replan CHECKPOINT DST --give-up-rest`): then what is there under this name is read as a new "
    "file, whole"
)


class BegunFiles:
    """Begun files of the source at `root`, looked at one by one; see `plan.Planner` for `reach`."""

    def __init__(self, storage: Storage, root: str, reach: Callable[[ReadHandle, int, int], int | None]) -> None:
        self._storage = storage
        self._root = root
        self._reach = reach

    def now(self, file: FileVersion) -> FileVersion | None:
        """Return the version that is at the file's path now, whether or not it is read; `None` if there is no file."""
        entry = entry_at(self._storage, self._path(file))
        if entry is None or not entry.is_file:
            return None
        return FileVersion(file.path, entry.size, entry.modified_ns, entry.identity)

    def digest(self, file: FileVersion, at: int) -> str | None:
        """Return a digest of how far the records before a cut at `at` reach, and of the first and last bytes up to there.

        `None` if the file is not that version, cannot be read, or its reach cannot be determined.
        """
        try:
            with self._storage.open(self._path(file)) as handle:
                end = self._reach(handle, file.size, at)
                if end is None or not is_version(self._storage, handle.info(), file):
                    return None
                head = handle.read(0, min(end, SEEN_BYTES))
                tail = handle.read(max(end - SEEN_BYTES, 0), min(end, SEEN_BYTES))
        except (StorageError, FileChanged):
            return None
        return xxhash.xxh3_128_hexdigest(b"%d\0" % end + head + tail)

    def check_rest(self, cut: FileVersion, cursor: Cursor, now: FileVersion | None) -> str:
        """Raise `FileChanged` unless `now` begins with the bytes of `cut` that were read up to the cursor; return a description of them."""
        at = cursor.at
        begun = self._begun(cut, at)
        choice = f"{advice.put_back(cut)}, or {_GIVE_UP}"
        if now is None:
            msg = f"{begun}; it is gone, and with it the rest of {cut.size - at} bytes; {choice}"
            raise FileChanged(msg)
        if cursor.digest is None or now.size < at or self.digest(now, at) != cursor.digest:
            msg = f"{begun}; what is there now does not begin with the same bytes, so nobody can tell where the rest is; {choice}"
            raise FileChanged(msg)
        return begun

    def check_options(self, cut: FileVersion, cursor: Cursor) -> None:
        """Raise `OptionError` if, under the present options, the rest does not begin with the record after those that were read.

        Nothing is raised for a file that is not that version or cannot be read: the task that reads the rest will notice.
        """
        if cursor.digest is None or self.digest(cut, cursor.at) == cursor.digest:
            return
        try:
            with self._storage.open(self._path(cut)) as handle:
                if not is_version(self._storage, handle.info(), cut):
                    return
        except (StorageError, FileChanged):
            return
        msg = (
            f"{self._begun(cut, cursor.at)}; under the present options, or because it was rewritten with its old size and time, its rest "
            "does not begin with the record after these: records would be left out, or read twice; set format, encoding, lineSep and "
            f"blockSize as they were until the file is read to its end, or {_GIVE_UP}"
        )
        raise OptionError(msg)

    def _begun(self, cut: FileVersion, at: int) -> str:
        return f"{self._path(cut)!r}: its first {at} bytes were read in earlier batches"

    def _path(self, file: FileVersion) -> str:
        return f"{self._root}/{file.path}" if file.path else self._root
