"""A faster path for thousands of small files: each is read in a few steps, and joined with its neighbours before it is parsed.

The fixed cost of reading a file (a split that is opened, cut, checked and closed, each with its own error messages) is many times the
cost of a few lines. So files that are certainly simple take a short path: a whole file of the plan, plain by its name, in UTF-8, whose
header, if it has one, is visible at once, and that the storage finds as it was planned (`Storage.whole`: checked before the first byte
and after the last one). All other files are left to the long path (`cutting`), which opens them anew and reports errors. So are
neighbours that, once joined, would not all keep their own records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock import failpoints
from penstock.errors import BadFile, OptionError
from penstock.formats.charsets import UTF_8_CHARSET
from penstock.formats.lines import BLOCK_BYTES
from penstock.processes import no_collection
from penstock.source.cursor import Split
from penstock.source.pieces import FilePiece, PieceOrigin, ended, grow_together
from penstock.source.planned import is_plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.formats import ReadFormat
    from penstock.formats.families import RecordFormat
    from penstock.source.cursor import FileVersion
    from penstock.source.planned import PlannedFiles

SMALL_BYTES = 256 << 10  # for larger files, the cost of the long path is small
_HEADERS = 64  # headers of files that are remembered


@dataclass(frozen=True)
class SmallFiles:
    """Small files in UTF-8 of a format that `joins`. With `joins`, a piece may hold records of several files."""

    files: PlannedFiles
    form: RecordFormat
    format: ReadFormat
    joins: bool

    def read(self, splits: Iterable[Split]) -> Iterator[FilePiece | Split]:
        """Yield the contents of the splits, in their order: pieces, or the split itself if it must take the long path."""
        left, run = iter(splits), _Run(self)
        goes_on = True
        while goes_on:
            with no_collection():
                goes_on, contents = self._next(left, run)
            yield from contents

    def _next(self, left: Iterator[Split], run: _Run) -> tuple[bool, list[FilePiece | Split]]:
        """Return whether any splits may be left, and what the next ones yield."""
        whole, root = self.files.storage.whole, self.files.root.rstrip("/")
        for split in left:
            (path, size, modified_ns, identity), start, end, followed = split
            data = None
            if not start and end == size <= SMALL_BYTES and size and path and followed is None and is_plain(path):
                failpoints.hit("source.read")
                data = whole(f"{root}/{path}", size, modified_ns, identity)
            before = None if data is None else run.add(split.file, data)
            if before is None:
                return True, [*run.taken(), split]
            if before:
                return True, before
        return False, run.taken()


class _Run:
    """Consecutive files, up to a block: a piece, as `pieces.joined` would make it from one piece for each file."""

    def __init__(self, how: SmallFiles) -> None:
        self._how = how
        self._format = how.format
        self._begins = how.form.begins
        self._sep = how.format.line_sep
        self._headers: dict[bytes, tuple[str, ...] | None] = {b"": None}
        self._columns: tuple[str, ...] | None = None
        self._parts: list[bytes] = []
        self._origins: list[PieceOrigin] = []
        self._size = 0

    def add(self, file: FileVersion, data: bytes) -> list[FilePiece | Split] | None:
        """Take in a whole file; return the files taken in before, if the file cannot join them; `None` if it cannot be taken in."""
        beginning = self._begins(self._format, data)
        if beginning is None or (beginning[0] not in self._headers and not self._is_known(beginning[0])):
            return None
        header, offset = beginning
        if offset:
            data = data[offset:]
        columns, before = self._headers[header], list[FilePiece | Split]()
        if self._size and (self._size >= BLOCK_BYTES or not self._goes_on(data, columns)):
            before = self.taken()
        if data:
            self._columns = columns
            self._origins.append(PieceOrigin(self._size, file, offset, UTF_8_CHARSET, None))
            if self._how.joins:
                data = ended(data, self._sep)
            self._parts.append(data)
            self._size += len(data)
        return before

    def _is_known(self, header: bytes) -> bool:
        """Tell whether a header is known or valid, and note its columns; the long path reports what is wrong with other headers."""
        try:
            columns = self._how.form.columns(self._format, header)
        except (BadFile, OptionError):
            return False
        if len(self._headers) > _HEADERS:
            self._headers = {b"": None}
        self._headers[header] = columns
        return True

    def _goes_on(self, data: bytes, columns: tuple[str, ...] | None) -> bool:
        same = self._how.joins and (columns is self._columns or columns == self._columns)
        return same and not grow_together(self._parts[-1], data, self._sep)

    def taken(self) -> list[FilePiece | Split]:
        """Return what was taken in, and forget it."""
        if not self._size:
            return []
        origins, data = self._origins, b"".join(self._parts)
        self._parts, self._origins, self._size = [], [], 0
        ends = [*(origin.place for origin in origins[1:]), len(data)]
        if self._how.form.are_whole(self._format, data, ends):
            return [FilePiece(data, origins, self._columns)]
        return [Split(origin.file, 0, origin.file.size) for origin in origins]
