"""Pieces of files: bytes of whole records, and where they come from.

Small files are joined into pieces of about `BLOCK_BYTES` before they are parsed: one parser call for each file would cost a hundred
times what its contents cost. A record that cannot be parsed is still reported with its own file and byte offset.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.formats.families import separator
from penstock.formats.lines import BLOCK_BYTES, record_starts, value_ends

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from penstock.formats import ReadFormat
    from penstock.formats.charsets import Charset
    from penstock.source.cursor import FileVersion


class PieceOrigin(NamedTuple):
    """Where a part of a piece came from: the part begins at `place` in the piece and at `offset` in the contents of the file.

    `raw` are the bytes in the file, if the piece has them in another encoding.
    """

    place: int
    file: FileVersion
    offset: int
    charset: Charset
    raw: bytes | None

    def in_file(self, starts: npt.NDArray[np.int64], text: bytes, fmt: ReadFormat) -> npt.NDArray[np.int64]:
        """Return where in the file the records begin that begin at `starts` of `text`, all of which came from this origin.

        Decoding changes lengths, but not which line is which.
        """
        if self.raw is None:
            return starts + self.offset
        lines = np.searchsorted(record_starts(text, sep=fmt.line_sep), starts, side="right") - 1
        return record_starts(self.raw, sep=separator(fmt, self.charset), unit=self.charset.unit)[lines] + self.offset

    def raw_records(self, starts: npt.NDArray[np.int64], fmt: ReadFormat) -> list[bytes]:
        """Return the records that begin at `starts` in the bytes of the file, without their line ends."""
        raw, sep, unit = self.raw or b"", separator(fmt, self.charset), self.charset.unit
        every = record_starts(raw, sep=sep, unit=unit)
        ends = np.append(value_ends(raw, every, sep=sep, unit=unit), 0)
        return [raw[start : ends[np.searchsorted(every, start)]] for start in starts.tolist()]


@dataclass
class FilePiece:
    """Bytes of whole records, and where they come from, in order. A header alone has no bytes."""

    data: bytes
    origins: list[PieceOrigin]
    columns: tuple[str, ...] | None = None  # the names in the header of a csv file

    def origin_of(self, at: int) -> PieceOrigin:
        """Return where the byte at `at` comes from."""
        return self.origins[bisect_right([origin.place for origin in self.origins], at) - 1]

    def data_of(self, origin: PieceOrigin) -> bytes:
        """Return the part that came from there."""
        later = [other.place for other in self.origins if other.place > origin.place]
        return self.data[origin.place : min(later, default=len(self.data))]

    def owners(self, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the index of the origin of each record, by where the record begins."""
        places = np.array([origin.place for origin in self.origins])
        return np.searchsorted(places, starts, side="right") - 1


def joined(pieces: Iterable[FilePiece], sep: bytes | None) -> Iterator[FilePiece]:
    """Join small pieces to blocks of about `BLOCK_BYTES`; a last line without an end is given one.

    Pieces whose joined ends would form other records are kept apart: CR before LF, and all pieces if lines end in more than one byte.
    So are pieces with other columns. A header alone is passed on.
    """
    data: list[bytes] = []
    origins: list[PieceOrigin] = []
    columns: tuple[str, ...] | None = None
    size = 0
    for piece in pieces:
        if size and (
            size >= BLOCK_BYTES
            or not piece.data
            or columns != piece.columns
            or grow_together(data[-1], piece.data, sep)
        ):
            yield FilePiece(b"".join(data), origins, columns)
            data, origins, size = [], [], 0
        columns = piece.columns
        if not piece.data or (not size and len(piece.data) >= BLOCK_BYTES // 2):
            yield piece
        else:
            origins += [PieceOrigin(size + o.place, o.file, o.offset, o.charset, o.raw) for o in piece.origins]
            data.append(ended(piece.data, sep))
            size += len(data[-1])
    if size:
        yield FilePiece(b"".join(data), origins, columns)


def grow_together(left: bytes, right: bytes, sep: bytes | None) -> bool:
    """Tell whether joining the end of a piece to the beginning of the next one would form other records."""
    if sep is not None:
        return len(sep) > 1
    return left.endswith(b"\r") and right.startswith(b"\n")


def ended(data: bytes, sep: bytes | None) -> bytes:
    """Return lines of which the last ends as the others do; with a separator of several bytes, return them unchanged."""
    if sep is None:
        return data if data.endswith((b"\n", b"\r")) else data + b"\n"
    return data if len(sep) > 1 or data.endswith(sep) else data + sep


def without_end(record: bytes, sep: bytes | None) -> bytes:
    """Return a record without its line end."""
    if sep is not None:
        return record.removesuffix(sep)
    return record[:-2] if record.endswith(b"\r\n") else record[:-1] if record.endswith((b"\n", b"\r")) else record
