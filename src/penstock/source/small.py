"""Small files as they come, by the thousand: each is read in a few steps, and joined with its neighbours before anything looks at it.

What reading a file takes by itself (a split that is opened, cut, checked and closed, each with its own words for what can be wrong) is many
times what a file of a few lines holds. So what is surely simple goes a short way: a whole file of the plan, plain by its name, in UTF-8,
whose lines are its records, and which the storage finds as it was planned (`Storage.whole`: before the first byte and behind the last
one). Anything else, whatever it is, is left to the long way (`cutting`), which opens it anew and tells what is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock import failpoints
from penstock.formats.charsets import UTF_8_CHARSET
from penstock.formats.lines import BLOCK_BYTES
from penstock.processes import no_collection
from penstock.source.pieces import FilePiece, PieceOrigin, ended, grow_together
from penstock.source.planned import is_plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.source.cursor import FileVersion, Split
    from penstock.source.planned import PlannedFiles

SMALL_BYTES = 256 << 10  # of more, what the long way takes is little
_BOM = UTF_8_CHARSET.bom


@dataclass(frozen=True)
class SmallFiles:
    """Small files of lines in UTF-8; `sep` ends their records. `joins`: a piece may hold records of several files."""

    files: PlannedFiles
    sep: bytes | None
    joins: bool

    def read(self, splits: Iterable[Split]) -> Iterator[FilePiece | Split]:
        """Yield what the splits hold, in their order: pieces, or the split itself where that is to be read in the long way."""
        left, run = iter(splits), _Run(self.sep, joins=self.joins)
        goes_on = True
        while goes_on:
            with no_collection():
                goes_on, found = self._next(left, run)
            yield from found

    def _next(self, left: Iterator[Split], run: _Run) -> tuple[bool, tuple[FilePiece | Split, ...]]:
        """Return whether any splits may be left, and what the next ones come to."""
        whole, root = self.files.storage.whole, self.files.root.rstrip("/")
        for split in left:
            (path, size, modified_ns, identity), start, end, followed = split
            data = None
            if not start and end == size <= SMALL_BYTES and size and path and followed is None and is_plain(path):
                failpoints.hit("source.read")
                data = whole(f"{root}/{path}", size, modified_ns, identity)
            if data is None:
                return True, (*run.taken(), split)
            if before := run.taken_for(split.file, data):
                return True, before
        return False, run.taken()


class _Run:
    """Files one behind the other, until they are a block: a piece, as `pieces.joined` would make it of one piece a file."""

    def __init__(self, sep: bytes | None, *, joins: bool) -> None:
        self._sep = sep
        self._joins = joins
        self._parts: list[bytes] = []
        self._origins: list[PieceOrigin] = []
        self._size = 0

    def taken_for(self, file: FileVersion, data: bytes) -> tuple[FilePiece, ...]:
        """Take in all of a file; return what was taken in before, where it goes no further."""
        offset = 0
        if data.startswith(_BOM):
            offset, data = len(_BOM), data[len(_BOM) :]
        before: tuple[FilePiece, ...] = ()
        if self._size >= BLOCK_BYTES or (self._size and not self._goes_on(data)):
            before = self.taken()
        if data:
            self._origins.append(PieceOrigin(self._size, file, offset, UTF_8_CHARSET, None))
            if self._joins:
                data = ended(data, self._sep)
            self._parts.append(data)
            self._size += len(data)
        return before

    def _goes_on(self, data: bytes) -> bool:
        return self._joins and not grow_together(self._parts[-1], data, self._sep)

    def taken(self) -> tuple[FilePiece, ...]:
        """Return what was taken in, and forget it."""
        if not self._size:
            return ()
        piece = FilePiece(b"".join(self._parts), self._origins)
        self._parts, self._origins, self._size = [], [], 0
        return (piece,)
