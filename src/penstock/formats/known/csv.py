"""The format CSV: records by a `Dialect`. Its quotes may contain line breaks, so a cut is found by following them from a known start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.formats.charsets import UTF_8_CHARSET, charset, searchable
from penstock.formats.families import RecordFormat
from penstock.formats.format import CSV_OPTIONS, FIELD_OPTIONS, TIME_OPTIONS
from penstock.formats.lines import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from penstock.formats.account import Account
    from penstock.formats.charsets import Charset
    from penstock.formats.families import Blocks, Found, Kinds, Read, Tail
    from penstock.formats.format import Decoder, Encoder, ReadFormat, WriteFormat
    from penstock.formats.seen import Room, Seen

_HEADER_BYTES = 64 << 10


class _Csv(RecordFormat):
    name = "csv"
    extension = ".csv"
    read_options = frozenset(
        {"encoding", "encodingErrors", "sep", "multiLine", "mode", *CSV_OPTIONS, *FIELD_OPTIONS, *TIME_OPTIONS}
    )
    write_options = frozenset(CSV_OPTIONS)
    anchored = True

    def decoder(self, fmt: ReadFormat, account: Account) -> Decoder:
        from penstock.formats.csv.decoder import CsvDecoder

        return CsvDecoder(fmt, account)

    def kinds(self, fmt: ReadFormat, seen: Seen, room: Room) -> Kinds:
        from penstock.formats.csv.kinds import CsvKinds

        return CsvKinds(fmt, seen, room)

    def encoder(self, fmt: WriteFormat) -> Encoder:
        from penstock.formats.csv.encoder import CsvEncoder

        return CsvEncoder(fmt)

    def header(self, fmt: WriteFormat) -> bytes:
        from penstock.formats.csv.encoder import header_record

        return header_record(fmt) if fmt.csv.header else b""

    def read_back(self, fmt: WriteFormat, rows: pa.RecordBatch) -> pa.RecordBatch:
        from penstock.formats.csv.encoder import CsvEncoder

        return CsvEncoder(fmt).readable(rows)

    def in_bytes(self, fmt: ReadFormat) -> bool:
        # Quotes are followed in plain ASCII, after a UTF-8 mark.
        how = charset(fmt.encoding, b"")
        is_plain = (how.unit, how.bom) == (UTF_8_CHARSET.unit, UTF_8_CHARSET.bom)
        return is_plain and searchable(fmt.encoding, fmt.csv.marks.decode(), plain=True)

    def joins(self, fmt: ReadFormat) -> bool:
        return self.in_bytes(fmt) and fmt.csv.escapes is None and fmt.csv.comment is None

    def begins(self, fmt: ReadFormat, data: bytes) -> tuple[bytes, int] | None:
        _, begin = super().begins(fmt, data) or (b"", 0)
        if not fmt.csv.header:
            return b"", begin
        end = data.find(b"\n", begin) + 1
        names = data[begin:end].removesuffix(b"\n").removesuffix(b"\r")
        quoted = fmt.csv.quote and fmt.csv.quote.encode() in names
        return (data[begin:end], end) if names and b"\r" not in names and not quoted else None

    def are_whole(self, fmt: ReadFormat, data: bytes, ends: list[int]) -> bool:
        from penstock.formats.csv.cut import are_whole

        return are_whole(data, ends, fmt.csv)

    def boundaries(self, fmt: ReadFormat, read: Read, size: int, anchor: int, targets: Sequence[int]) -> list[int]:
        from penstock.formats.csv.cut import csv_cuts

        return csv_cuts(read, size, anchor, targets, fmt.csv)

    def reach(self, fmt: ReadFormat, read: Read, size: int, at: int) -> int | None:  # noqa: ARG002 - a cut is where a record begins
        return at

    def ranged(self, fmt: ReadFormat, read: Read, size: int, span: tuple[int, int], how: Charset) -> Found:  # noqa: ARG002 - as for ASCII
        from penstock.formats.csv.cut import csv_blocks, csv_header

        read = _remembering(read, size)
        start, header = csv_header(read, size, fmt.csv) if fmt.csv.header else (0, b"")
        start = max(start, span[0])
        if start >= span[1]:
            return header, iter(())
        return header, csv_blocks(read, size, start, span[1], BLOCK_BYTES, dialect=fmt.csv, refuse=fmt.refuse)

    def tail(self, fmt: ReadFormat, begin: int, how: Charset) -> Tail:  # noqa: ARG002 - as for ASCII
        from penstock.formats.csv.cut import CsvTail

        return CsvTail(begin, fmt.csv)

    def streamed(self, fmt: ReadFormat, chunks: Iterable[bytes], how: Charset) -> Found:
        from penstock.formats.csv.cut import csv_stream_header

        found = self.stream_blocks(fmt, chunks, how)
        return csv_stream_header(found, fmt.csv) if fmt.csv.header else (b"", found)

    def stream_blocks(self, fmt: ReadFormat, chunks: Iterable[bytes], how: Charset) -> Blocks:  # noqa: ARG002 - as for ASCII
        from penstock.formats.csv.cut import csv_stream_blocks

        return csv_stream_blocks(chunks, BLOCK_BYTES, dialect=fmt.csv, refuse=fmt.refuse)

    def record_starts(self, fmt: ReadFormat, block: bytes, how: Charset) -> npt.NDArray[np.int64]:  # noqa: ARG002 - as for ASCII
        from penstock.formats.csv.cut import record_starts

        return record_starts(block, fmt.csv)

    def columns(self, fmt: ReadFormat, header: bytes) -> tuple[str, ...]:
        from penstock.formats.csv.decoder import check_header, header_names

        columns = header_names(header, fmt.csv)
        check_header(fmt, columns)
        return columns


def _remembering(read: Read, size: int) -> Read:
    """Return `read` for a file of `size` bytes; it reads the file's beginning, which is needed several times, only once."""
    head = b""

    def remembering(offset: int, length: int) -> bytes:
        nonlocal head
        if offset + length > _HEADER_BYTES:
            return read(offset, length)
        head = head or read(0, min(_HEADER_BYTES, size))
        return head[offset : offset + length]

    return remembering


FORMAT = _Csv()
