"""Pieces of files: bytes of whole records, and where they come from.

Small files are joined into pieces of about `BLOCK_BYTES` before they are parsed: one parser call a file would cost a hundred times
its contents. A record that cannot be parsed is reported by its own file and byte offset all the same.
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
    """What part of a piece came from: the part begins at `place` of the piece and at `offset` of what the file holds.

    `raw` is what the file has there, if the piece has it in another encoding.
    """

    place: int
    file: FileVersion
    offset: int
    charset: Charset
    raw: bytes | None

    def in_file(self, starts: npt.NDArray[np.int64], text: bytes, fmt: ReadFormat) -> npt.NDArray[np.int64]:
        """Return where in the file the records begin that begin at `starts` of `text`, all that came from here.

        Decoding changes lengths; which line is which stays.
        """
        if self.raw is None:
            return starts + self.offset
        lines = np.searchsorted(record_starts(text, sep=fmt.line_sep), starts, side="right") - 1
        return record_starts(self.raw, sep=separator(fmt, self.charset), unit=self.charset.unit)[lines] + self.offset

    def raw_records(self, starts: npt.NDArray[np.int64], fmt: ReadFormat) -> list[bytes]:
        """Return the records that begin at `starts` of what the file has, without what ends them."""
        raw, sep, unit = self.raw or b"", separator(fmt, self.charset), self.charset.unit
        every = record_starts(raw, sep=sep, unit=unit)
        ends = np.append(value_ends(raw, every, sep=sep, unit=unit), 0)
        return [raw[start : ends[np.searchsorted(every, start)]] for start in starts.tolist()]


@dataclass
class FilePiece:
    """Bytes of whole records, and where they come from, in order. Of a header alone there are none."""

    data: bytes
    origins: list[PieceOrigin]
    columns: tuple[str, ...] | None = None  # what the header of a csv file says

    def origin_of(self, at: int) -> PieceOrigin:
        """Return where the byte at `at` comes from."""
        return self.origins[bisect_right([origin.place for origin in self.origins], at) - 1]

    def data_of(self, origin: PieceOrigin) -> bytes:
        """Return the part that came from there."""
        later = [other.place for other in self.origins if other.place > origin.place]
        return self.data[origin.place : min(later, default=len(self.data))]

    def owners(self, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return of which origin each record is, by where it begins."""
        places = np.array([origin.place for origin in self.origins])
        return np.searchsorted(places, starts, side="right") - 1


def joined(pieces: Iterable[FilePiece], sep: bytes | None) -> Iterator[FilePiece]:
    """Join small pieces to blocks of about `BLOCK_BYTES`; a last line without an end is given one.

    Pieces that would grow together are kept apart: CR before LF, and any where lines end in more than one byte. So are
    those of other columns. What is a header alone is passed on.
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
    """Tell whether the end of a piece and the beginning of the next one would be other records, side by side."""
    if sep is not None:
        return len(sep) > 1
    return left.endswith(b"\r") and right.startswith(b"\n")


def ended(data: bytes, sep: bytes | None) -> bytes:
    """Return lines, the last of which ends as the others do; with a separator of several bytes, as they are."""
    if sep is None:
        return data if data.endswith((b"\n", b"\r")) else data + b"\n"
    return data if len(sep) > 1 or data.endswith(sep) else data + sep


def without_end(record: bytes, sep: bytes | None) -> bytes:
    """Return a record without what ends it."""
    if sep is not None:
        return record.removesuffix(sep)
    return record[:-2] if record.endswith(b"\r\n") else record[:-1] if record.endswith((b"\n", b"\r")) else record
