"""From the splits of files in records to pieces: bytes of whole records, as UTF-8 if their values are text.

A range owns the records that begin in it. If the encoding allows it (`charsets`), records are found in the bytes of a file, each block
is decoded by itself, and offsets are those of the file. Otherwise the file is decoded as a stream; records are found, and offsets
counted, in the decoded stream.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock import failpoints
from penstock.errors import BadFile, FileChanged
from penstock.formats.aside import about_records
from penstock.formats.charsets import UTF_8_CHARSET, Charset, by_mark, charset, may_be_marked, to_utf8
from penstock.formats.families import separator
from penstock.formats.lines import record_starts, value_ends, without_bom
from penstock.formats.trials import refused
from penstock.source import follow
from penstock.source.pieces import FilePiece, PieceOrigin, without_end
from penstock.source.planned import Contents
from penstock.source.small import SmallFiles
from penstock.source.transcoding import chunks_of, refusal, stream_of, transcoded, undecodable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from penstock.formats import ReadFormat
    from penstock.formats.families import Found, RecordFormat
    from penstock.source.cursor import FileVersion, Split
    from penstock.source.planned import PlannedFiles
    from penstock.storage import ReadableFile

_CUTS_MAX = 3  # how often a file may be cut while one range of it is read


@dataclass(frozen=True)
class Cutting:
    """How files in records are cut into pieces; records that cannot even be told apart are reported as lines (`aside.LINES`).

    `gives_text`: values are text, and not the bytes of the file as they are. `sifts_records`: bad records are set aside. `sifts_text`:
    records that are not valid text in their encoding are set aside.
    """

    files: PlannedFiles
    form: RecordFormat
    format: ReadFormat
    gives_text: bool
    sifts_records: bool
    sifts_text: bool

    def read(self, split: Split) -> Iterator[FilePiece | pa.RecordBatch]:
        """Yield the pieces of one split, and lines about what in it is not a record.

        Raises `FileChanged`, `BadFile`, and `BadRecord` unless bad records are set aside.
        """
        failpoints.hit("source.read")
        file, files = split.file, self.files
        files.admit(file.path)
        if split.followed is not None:
            yield from self._followed(split)
            return
        keys = files.keys(files.full_path(file))
        with files.open(file) as handle:
            with (
                files.ahead(handle, split, at=split.start) as opened,
                files.naming(file),
                files.contents(opened, file, keys) as contents,
            ):
                yield from self._pieces_of(contents, split)
            files.check(handle, file)

    def small(self, *, joins: bool) -> SmallFiles | None:
        """Return a faster reader of small files, which yields the splits that it leaves to `read`; `None` if there is no faster way.

        `joins`: one of its pieces may come from several files.
        """
        fmt = self.format
        known = None if by_mark(fmt.encoding) else charset(fmt.encoding, b"")
        if known != UTF_8_CHARSET or not self.form.joins(fmt) or self._decodes(known):
            return None
        return SmallFiles(self.files, self.form, fmt, joins)

    def _followed(self, split: Split) -> Iterator[FilePiece | pa.RecordBatch]:
        """Yield the pieces of a split of a followed file; if the file is cut meanwhile, the rest is read from its copy."""
        files, path = self.files, self.files.full_path(split.file)
        at, tries = split.start, _CUTS_MAX
        while tries:
            tries -= 1
            # Lines about records before the next piece, or before the end.
            about: list[FilePiece | pa.RecordBatch] = []
            with (
                follow.opened(files.storage, files.root, split) as handle,
                files.ahead(handle, split._replace(start=at), at=at) as opened,
                files.naming(split.file),
            ):
                try:
                    for item in self._pieces_of(Contents(opened, split.file.size), split._replace(start=at)):
                        about.append(item)
                        if not isinstance(item, FilePiece):
                            continue
                        follow.check(handle, split, path)  # before anything is done with it
                        yield from about
                        about.clear()
                        origin = item.origins[0]
                        at = origin.offset + len(item.data if origin.raw is None else origin.raw)
                    follow.check(handle, split, path)
                except FileChanged:
                    if not tries:
                        raise
                else:
                    yield from about
                    return

    def _pieces_of(self, contents: Contents, split: Split) -> Iterator[FilePiece | pa.RecordBatch]:
        """Yield what one split holds. Raises `BadFile`, and `BadRecord` without a path."""
        if not self.sifts_records:
            yield from self._cut(contents, split)
            return
        refusals: list[tuple[int, bytes, str]] = []
        refusing = replace(self.format, refuse=lambda *refusal: refusals.append(refusal))
        columns: tuple[str, ...] | None = None
        for piece in replace(self, format=refusing)._cut(contents, split):  # noqa: SLF001 - this object itself, with a place for refused records
            columns = piece.columns if isinstance(piece, FilePiece) else columns
            yield from self._refused(split, refusals, columns)
            yield piece
        yield from self._refused(split, refusals, columns)

    def _refused(
        self, split: Split, refusals: list[tuple[int, bytes, str]], columns: tuple[str, ...] | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield lines about the refused records, and forget them."""
        if refusals:
            offsets, records, reasons = zip(*refusals, strict=True)
            refusals.clear()
            held = [without_end(record, self.format.line_sep) for record in records]
            yield self._about(split.file, np.array(offsets), held, reasons, columns)

    def _about(
        self,
        file: FileVersion,
        offsets: npt.NDArray[np.int64],
        records: list[bytes],
        reasons: Sequence[str],
        columns: tuple[str, ...] | None,
    ) -> pa.RecordBatch:
        path, data = self.files.full_path(file), pa.array(records, pa.binary())
        return about_records(path, offsets, data, reasons, modified_ns=file.modified_ns, columns=columns)

    def _cut(self, contents: Contents, split: Split) -> Iterator[FilePiece | pa.RecordBatch]:
        form, fmt = self.form, self.format
        known = None if may_be_marked(fmt.encoding) else charset(fmt.encoding, b"")
        in_place = form.in_bytes(fmt)
        decodes = in_place and self._decodes(known)
        _check_range(split, whole=not in_place or contents.streams)
        chunks, written = stream_of(contents, fmt.encoding, known)
        read = self._blocks if in_place else self._decoded
        header, blocks = read(contents.file, split, chunks, written)
        if decodes and header:
            header = self._text(header, 0, written)
        columns = form.columns(fmt, header) if header else None
        if columns is not None and not split.start:
            yield _piece(b"", b"", split.file, 0, written, columns)  # yielded whether records follow or not
        for offset, data in blocks:
            yield from self._block_of(split.file, offset, data, written, columns, decodes=decodes)

    def _block_of(
        self,
        file: FileVersion,
        offset: int,
        data: bytes,
        how: Charset,
        columns: tuple[str, ...] | None,
        *,
        decodes: bool,
    ) -> Iterator[FilePiece | pa.RecordBatch]:
        """Yield a block of a file, as text if `decodes`, otherwise as it is."""
        if decodes and self.sifts_text:
            yield from self._legible(file, offset, data, how, columns)
        else:
            text = self._text(data, offset, how) if decodes else data
            yield _piece(text, data, file, offset, how, columns)

    def _decodes(self, known: Charset | None) -> bool:
        """Tell whether blocks of a file must be decoded, or checked to be UTF-8, before they are parsed."""
        return self.gives_text and not (known == UTF_8_CHARSET and self.format.errors == "fail")

    def _legible(
        self, file: FileVersion, offset: int, data: bytes, how: Charset, columns: tuple[str, ...] | None
    ) -> Iterator[FilePiece | pa.RecordBatch]:
        """Yield the valid text of a block, and a line about each record that is not valid; a piece ends before each such record."""
        starts = self.form.record_starts(self.format, data, how)
        bounds = [*starts.tolist(), len(data)]
        bad = refused(len(starts), lambda low, high: refusal(data[bounds[low] : bounds[high]], how.codec, self._errors))
        at = 0
        for place, _ in [*bad, (len(starts), None)]:
            if bounds[place] > at:
                part = data[at : bounds[place]]
                yield _piece(self._text(part, offset + at, how), part, file, offset + at, how, columns)
            at = bounds[min(place + 1, len(starts))]
        if bad:
            ends = [*value_ends(data, starts, sep=separator(self.format, how), unit=how.unit).tolist()]
            records = [data[bounds[place] : ends[place]] for place, _ in bad]
            offsets = offset + starts[[place for place, _ in bad]]
            yield self._about(file, offsets, records, [f"expected {self.format.encoding}"] * len(bad), columns)

    def _blocks(self, handle: ReadableFile, split: Split, chunks: Iterator[bytes] | None, how: Charset) -> Found:
        """Return the records of a split as the bytes of the file."""
        form, fmt = self.form, self.format
        if chunks is not None:
            return form.streamed(fmt, chunks, how)
        size, span, base = split.file.size, (split.start, split.end), split.followed.base if split.followed else 0
        if not base or form.anchored:
            return form.ranged(fmt, handle.read, size, span, how)

        def after_base(offset: int, length: int) -> bytes:
            return handle.read(base + offset, length)

        unmarked = replace(how, bom=b"")
        header, ranged = form.ranged(fmt, after_base, size - base, (span[0] - base, span[1] - base), unmarked)
        return header, ((offset + base, data) for offset, data in ranged)

    def _decoded(self, handle: ReadableFile, split: Split, chunks: Iterator[bytes] | None, how: Charset) -> Found:
        """Return the records of a file that is decoded as a stream, with offsets in its UTF-8. Raises `BadRecord` without a path."""
        # Any other mark is decoded to U+FEFF, and is removed then.
        mark = how.bom if how.bom == UTF_8_CHARSET.bom else b""
        taken, rest = without_bom(chunks or chunks_of(handle, split.file.size), mark)
        # The decoder checks UTF-8 itself, record by record.
        is_text = how.codec == UTF_8_CHARSET.codec and self.format.errors == "fail"
        text = chain((mark[:taken],), rest if is_text else transcoded(rest, how.codec, self._errors, taken))
        return self.form.streamed(self.format, text, UTF_8_CHARSET)

    @property
    def _errors(self) -> str:
        """Return `encodingErrors` as Python's codecs call it."""
        return "strict" if self.format.errors == "fail" else self.format.errors

    def _text(self, data: bytes, offset: int, how: Charset) -> bytes:
        """Return a block as UTF-8."""
        try:
            return to_utf8(data, how.codec, self._errors)
        except UnicodeDecodeError as error:
            starts = record_starts(data, sep=separator(self.format, how), unit=how.unit)
            begin = int(starts[np.searchsorted(starts, error.start, side="right") - 1])
            raise undecodable(data[error.start : error.start + 4], offset + begin, self.format.encoding) from error


def _piece(
    text: bytes, data: bytes, file: FileVersion, offset: int, how: Charset, columns: tuple[str, ...] | None
) -> FilePiece:
    """Return `text`, which is `data` itself or `data` decoded, as a piece of one file."""
    return FilePiece(text, [PieceOrigin(0, file, offset, how, None if text is data else data)], columns)


def _check_range(split: Split, *, whole: bool) -> None:
    """Raise `BadFile` for a range of a file that can only be read whole: otherwise each range of it would yield all records."""
    if whole and (split.start, split.end) != (0, split.file.size):
        msg = (
            f"bytes {split.start} to {split.end} of {split.file.size} were planned, and such a file can only be read whole: it was "
            "planned with another encoding or lineSep, or by an older version; set them as they were, or read it under a new "
            "checkpoint"
        )
        raise BadFile(msg)
