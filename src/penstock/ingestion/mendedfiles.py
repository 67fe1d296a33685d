"""Reads files again that were set aside: as they are now, or from mended copies in another directory.

A file is read under its own name, even if a copy is read instead. So directories name columns, the name shows the compression,
and the metadata column has the file's path. If the version that was set aside is still there, its planned ranges are read; a copy
is read as a whole. Another version at the same place in the source is not read here: it is a new file for the ingest, which reads
it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from penstock.errors import BadFile, BadRecord, FileChanged, StorageError
from penstock.formats.aside import FILE, RETRIED, Aside, about_file, copied, path_of
from penstock.source.cursor import FileVersion, Split
from penstock.storage import entry_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.formats.account import Account
    from penstock.ingestion.stage import Stage
    from penstock.storage import Entry, ReadHandle, Storage

_FOLLOWED = (
    "it is followed, and what it was planned by is not on its line; put what it held into a file of its own in SRC"
)
_AGAIN = "and run penstock retry again"
_GONE = "it is not there any more; give a directory with a mended copy: --mended DIR"


class FileKey(NamedTuple):
    """The key of what was set aside: a version of a file, by its path (as bytes) and time, and `size` bytes of it from `offset` on."""

    path: bytes
    modified_ns: int
    offset: int
    size: int

    @staticmethod
    def of(line: Mapping[str, Any]) -> FileKey:
        """Return the key of a line in the quarantine."""
        return FileKey(path_of(line), line["modified_ns"] or 0, line["offset"], line["size"])

    @property
    def name(self) -> str:
        """Return the path as text, in the form for the file system."""
        return self.path.decode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class Replacement:
    """The file that is read for one that was set aside: the file itself or a copy, and its version."""

    storage: Storage
    path: str
    entry: Entry
    is_copy: bool

    def open(self, _: str) -> ReadHandle:
        """Open the replacement, whatever path is given."""
        return self.storage.open(self.path)

    @property
    def told(self) -> dict[str, Any] | None:
        """Return what a receipt says about a copy; `None` for the file itself."""
        return copied(self.path, self.entry.size, self.entry.modified_ns) if self.is_copy else None


@dataclass(frozen=True)
class Searched:
    """The result of a search: files that can be read (`ready`), how many have another version by now, and the reasons why others wait."""

    ready: dict[FileKey, Replacement]
    replaced: int
    reasons: dict[FileKey, str]


def searched(stage: Stage, pending: Mapping[FileKey, str], copies: tuple[Storage, str] | None) -> Searched:
    """Look for what was set aside, given by keys and codes, in the source, or in a directory of mended copies.

    Copies have the same relative paths as the files in the source. With a directory, files without a copy are skipped.
    """
    ready: dict[FileKey, Replacement] = {}
    reasons: dict[FileKey, str] = {}
    replaced = 0
    ends = _planned_ends(pending)
    for key, code in pending.items():
        copy = copy_of(stage, key, copies) if code == FILE else None
        if copies is not None and copy is None:
            continue
        now = entry_at(stage.reading.storage, key.name)
        if now is not None and (now.size, now.modified_ns) != (ends[key.path, key.modified_ns], key.modified_ns):
            replaced += 1
        elif stage.options["follow"]:
            reasons[key] = _FOLLOWED
        elif copy is not None:
            ready[key] = copy
        elif now is None:
            reasons[key] = _GONE
        else:
            ready[key] = Replacement(stage.reading.storage, key.name, now, is_copy=False)
    return Searched(ready, replaced, reasons)


def _planned_ends(pending: Mapping[FileKey, str]) -> dict[tuple[bytes, int], int]:
    """Return the sizes of versions: the largest end of what was set aside, because after a change everything to the end is set aside."""
    ends: dict[tuple[bytes, int], int] = {}
    for key in pending:
        ends[key.path, key.modified_ns] = max(ends.get((key.path, key.modified_ns), 0), key.offset + key.size)
    return ends


def copy_of(stage: Stage, key: FileKey, copies: tuple[Storage, str] | None) -> Replacement | None:
    """Return the copy of a file in a directory; `None` if there is none."""
    if copies is None:
        return None
    storage, directory = copies
    path = f"{directory.rstrip('/')}/{_relative(stage, key) or key.name.rpartition('/')[2]}"
    entry = entry_at(storage, path)
    return Replacement(storage, path, entry, is_copy=True) if entry is not None and entry.is_file else None


def _relative(stage: Stage, key: FileKey) -> str:
    root = stage.reading.root.rstrip("/")
    return "" if key.name == root else key.name.removeprefix(f"{root}/")


class MendedFiles:
    """Files by their keys, as an ingest reads their replacements."""

    def __init__(self, stage: Stage, files: Mapping[FileKey, Replacement]) -> None:
        self._stage = stage
        self._files = files

    def bad(self) -> dict[FileKey, str]:
        """Return the files that still cannot be read to their end, and why."""
        reasons: dict[FileKey, str] = {}
        for key in self._files:
            try:
                for _ in self._rows_of(key, Aside(), None):
                    pass
            except (BadFile, BadRecord, FileChanged, StorageError) as error:  # noqa: PERF203 - each is for itself
                reasons[key] = error.message.replace(repr(key.name), repr(self._files[key].path))
        return reasons

    def rows(self, aside: Aside, account: Account | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the ingest makes of the files; bad records are set aside if the ingest does that."""
        for key in self._files:
            yield from self._rows_of(key, aside, account)

    def receipts(self) -> Iterator[pa.RecordBatch]:
        """Yield the lines that say that the files are taken in."""
        for key, file in self._files.items():
            numbers = {"offset": key.offset, "size": key.size, "modified_ns": key.modified_ns}
            yield about_file(key.name, **numbers, reason="taken in", code=RETRIED, copy=file.told)

    def _rows_of(self, key: FileKey, aside: Aside, account: Account | None) -> Iterator[pa.RecordBatch]:
        file, reading = self._files[key], self._stage.reading
        version = FileVersion(_relative(self._stage, key), file.entry.size, file.entry.modified_ns, file.entry.identity)
        span = (0, version.size) if file.is_copy else (key.offset, key.offset + key.size)
        policy = replace(reading.policy, files=False, changes=False)
        mended = replace(reading, storage=file.storage, opens=file.open, policy=policy, archive=None)
        stage = replace(self._stage, reading=replace(mended, aside=aside, again=_AGAIN))
        for rows in stage.read([Split(version, *span)], account, text=False, errors="fail"):
            if isinstance(rows, pa.RecordBatch):
                yield rows
