"""What a format is: an object of one of two families, which have all the methods in which formats differ.

- `RecordFormat` (text, json, csv): a file is a sequence of records, and each record has its own bytes. Records are
  joined and cut as bytes, so a part is staged as bytes, small files are decoded together, and a file can grow.
- `TableFormat` (parquet, orc, avro; binary, which is only read): a file has its own structure, and its rows come out as
  Arrow batches. A part is staged as Arrow, or as a file of the format, and assembled by decoding and encoding.

A format is a subclass of one of them with one object, `FORMAT`, in `formats.known`. It holds no state, and touches only
files that are passed to it. Its methods import whatever is large, because a query's driver needs only its names and
rules.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pyarrow as pa
from pyarrow import types

from penstock.errors import OptionError
from penstock.formats import codecs
from penstock.formats.charsets import UTF_8, charset, searchable
from penstock.formats.codecs import LEVELS
from penstock.formats.lines import BLOCK_BYTES, BOM, LineTail, blocks, record_at, record_starts, stream_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    import numpy as np
    import numpy.typing as npt

    from penstock.formats.account import Account
    from penstock.formats.begins import Begins
    from penstock.formats.charsets import Charset
    from penstock.formats.format import Decoder, Encoder, ReadFormat, WriteFormat
    from penstock.formats.seen import Room, Seen
    from penstock.storage import ReadableFile

    # (offset, length): that many bytes, fewer only at the end of the file.
    Read: TypeAlias = Callable[[int, int], bytes]
    # (offset, bytes of whole records); blocks are adjacent.
    Blocks: TypeAlias = Iterator[tuple[int, bytes]]
    # The file's header, if it has one, and the blocks after it.
    Found: TypeAlias = tuple[bytes, Blocks]

HEAD_BYTES = 4  # the longest byte order mark
_SEPARATOR_BYTES_MAX = 255  # the most that `lines` can handle in wide code units
_REACH_BYTES = 4 << 20


class Format(ABC):
    """What the files and options of a format are. Called by planners, tasks and drivers, for any number of files."""

    name: ClassVar[str]
    extension: ClassVar[str] = ""
    """The extension of its files' names; `file_extension` adds that of a compression."""
    other_extensions: ClassVar[tuple[str, ...]] = ()
    """The extensions of such files from other writers."""
    codecs: ClassVar[tuple[str, ...]] = ()
    """The values that `compression` may have; the first is the default. None: the format is not written."""
    levels: ClassVar[Mapping[str, tuple[int, int]]] = MappingProxyType({})
    """The lowest and the highest `compressionLevel` of the compressions that have levels."""
    read_options: ClassVar[frozenset[str]] = frozenset()
    """Among the options that only some formats have (`special` in the tables): those of this format as a source."""
    write_options: ClassVar[frozenset[str]] = frozenset()
    """The same for this format as a sink."""
    anchored: ClassVar[bool] = False
    """Whether a cut must be moved to the start of a record, by reading from a known record start (`boundaries`)."""
    as_it_is: ClassVar[bool] = False
    """Whether a file is passed on unchanged, whatever it contains."""
    as_lines: ClassVar[bool] = False
    """Whether a record is the bytes of its line, which pass without being parsed."""

    def file_extension(self, compression: str) -> str:  # noqa: ARG002 - a table is compressed inside
        """Return the extension of files that are written with `compression`: `.json`, `.csv.gz`, `.parquet`."""
        return self.extension

    def prepare(self) -> None:  # noqa: B027 - few formats need one
        """Raise `DependencyError` if a library that the format needs is not installed. Called before a query begins."""

    @abstractmethod
    def divisible(self, fmt: ReadFormat, path: str) -> bool:
        """Tell whether a file of this name may be read in byte ranges."""

    def boundaries(self, fmt: ReadFormat, read: Read, size: int, anchor: int, targets: Sequence[int]) -> list[int]:
        """Return the first record start at or after each target, from the record start `anchor` on. Called if `anchored`.

        Targets ascend; for one before the anchor the result is the anchor. The file is read once, however many targets
        there are.
        """
        raise NotImplementedError

    def reach(self, fmt: ReadFormat, read: Read, size: int, at: int) -> int | None:  # noqa: ARG002 - by default it is not known
        """Return where the records end that begin before the cut `at`; `None` if there is no such place nearby.

        There is none if a record is very long, or if it depends on the whole file where a record begins.
        """
        return None


class RecordFormat(Format):
    """A format whose files are sequences of records. The defaults suit records that are lines."""

    codecs = ("none", "gzip", "zstd")
    levels = LEVELS

    @abstractmethod
    def decoder(self, fmt: ReadFormat, account: Account) -> Decoder:
        """Return a decoder that turns blocks into rows, and counts in `account` what no column has. `OptionError` if it cannot."""

    @abstractmethod
    def encoder(self, fmt: WriteFormat) -> Encoder:
        """Return an encoder that turns rows into bytes. `OptionError` for a schema or an option that it does not support."""

    def file_extension(self, compression: str) -> str:
        """Return the extension of files that are written with `compression`."""
        return self.extension + codecs.extension(compression)

    def header(self, fmt: WriteFormat) -> bytes:  # noqa: ARG002 - few formats have one
        """Return the beginning of every file, in UTF-8, not compressed."""
        return b""

    def gives_text(self, fmt: ReadFormat) -> bool:  # noqa: ARG002 - in most formats they are
        """Tell whether values are made from text, and not from bytes in the file's own encoding."""
        return True

    def read_back(self, fmt: WriteFormat, rows: pa.RecordBatch) -> pa.RecordBatch:  # noqa: ARG002 - most formats lose nothing
        """Return the rows that a reader gets when `rows` are written: different ones if two values are written alike."""
        return rows

    def advice(self, fmt: ReadFormat, record: bytes) -> str:  # noqa: ARG002 - few formats can tell
        """Return the option that is probably meant, "; set ...", if a record that begins like this cannot be read; "" if there is none."""
        return ""

    # -- small files in UTF-8, read whole ----------------------------------------------------------------------------

    def joins(self, fmt: ReadFormat) -> bool:
        """Tell whether a small file may be joined with others as the bytes that it is, subject to `begins` and `are_whole`."""
        return self.in_bytes(fmt)

    def begins(self, fmt: ReadFormat, data: bytes) -> tuple[bytes, int] | None:  # noqa: ARG002 - most formats have no header
        """Return the header of a file that contains `data`, and where its records begin; `None` unless that is obvious."""
        return b"", len(BOM) if data.startswith(BOM) else 0

    def are_whole(self, fmt: ReadFormat, data: bytes, ends: list[int]) -> bool:  # noqa: ARG002 - every line is a whole record
        """Tell whether each record of files that were joined into `data`, and end at `ends` of it, is read as in its own file."""
        return True

    # -- where records are -----------------------------------------------------------------------------------------

    def in_bytes(self, fmt: ReadFormat) -> bool:
        """Tell whether the records of such a file can be found in its bytes, from anywhere in it."""
        if fmt.line_sep is None:
            return searchable(fmt.encoding, "\r\n", plain=True)
        return len(fmt.line_sep) <= _SEPARATOR_BYTES_MAX and searchable(fmt.encoding, fmt.line_sep.decode())

    def divisible(self, fmt: ReadFormat, path: str) -> bool:
        """Tell whether a file of this name may be read in byte ranges."""
        return codecs.codec_of(path) is None and self.in_bytes(fmt)

    def reach(self, fmt: ReadFormat, read: Read, size: int, at: int) -> int | None:
        """Return where the records end that begin before the cut `at`, if that is nearby."""
        limit = at + _REACH_BYTES
        how = charset(fmt.encoding, read(0, min(HEAD_BYTES, size)))
        begin = record_at(read, size, at, limit, sep=separator(fmt, how), unit=how.unit, bom=how.bom)
        return size if begin is None and limit >= size else begin

    def ranged(self, fmt: ReadFormat, read: Read, size: int, span: tuple[int, int], how: Charset) -> Found:
        """Return the header of a file, and blocks of the records that begin in `span`, in the file's own bytes."""
        sep = separator(fmt, how)
        return b"", blocks(read, size, *span, sep=sep, unit=how.unit, bom=how.bom, block_bytes=BLOCK_BYTES)

    def tail(self, fmt: ReadFormat, begin: int, how: Charset) -> Tail:
        """Return the end of a growing file, from the record at `begin` on, to look there for whole records."""
        return LineTail(begin, sep=separator(fmt, how), unit=how.unit)

    def streamed(self, fmt: ReadFormat, chunks: Iterable[bytes], how: Charset) -> Found:
        """Return the same for a whole file that comes as a stream; offsets are in the stream's content."""
        return b"", self.stream_blocks(fmt, chunks, how)

    def stream_blocks(self, fmt: ReadFormat, chunks: Iterable[bytes], how: Charset) -> Blocks:
        """Yield the blocks of such a stream, including a header."""
        sep = separator(fmt, how)
        return stream_blocks(chunks, sep=sep, unit=how.unit, bom=how.bom, block_bytes=BLOCK_BYTES)

    def kinds(self, fmt: ReadFormat, seen: Seen, room: Room) -> Kinds:  # noqa: ARG002 - most formats can tell
        """Return an object that examines blocks and enters into `seen` which kinds of values there are. Called to infer a schema.

        `OptionError` for a format whose columns only users know.
        """
        raise _not_inferred(self.name)

    def record_starts(self, fmt: ReadFormat, block: bytes, how: Charset) -> npt.NDArray[np.int64]:
        """Return where each record begins in `block`, which is bytes of a file as stored, beginning with a record."""
        return record_starts(block, sep=separator(fmt, how), unit=how.unit)

    def columns(self, fmt: ReadFormat, header: bytes) -> tuple[str, ...]:
        """Return the names in a header, if it has the names of the schema; else `BadFile`. Called with the header that was found."""
        raise NotImplementedError


class Tail(Protocol):
    """The end of a growing file, from where a record begins; made by `RecordFormat.tail`. It is of no use once a record has ended.

    It remembers how far it has looked, so a record that grows slowly costs what it is long, however often it is looked at.
    """

    begin: int
    """Where the record begins."""
    searched: int
    """Up to where bytes were read; no record ends before that."""

    def ended(self, read: Read, size: int) -> int:
        """Return where the last record ends that surely ends within the first `size` bytes; `begin` if there is none.

        The bytes before `searched` must be those that were read then. Once another place than `begin` was returned, a new tail is needed.
        """


class Kinds(Protocol):
    """Examines blocks of records, to infer a schema; made by `RecordFormat.kinds`.

    `sorts`: columns are in the order of their names. `tells_times`: a value that is written as a time is a time, and
    not a string.
    """

    sorts: ClassVar[bool]
    tells_times: ClassVar[bool]

    def take(self, block: bytes, where: Callable[[int], str], columns: tuple[str, ...] | None) -> int:
        """Enter the kinds of the values of a block, and return how many records it has.

        `where` returns the path of the file that a byte of the block comes from; `columns` are those of its header.
        Raises `BadRecord` for the first record that cannot be read; then nothing of the block has been entered.
        """

    def starts(self, block: bytes) -> npt.NDArray[np.int64]:
        """Return the byte at which each record of a block begins, including those that cannot be read."""


class TableWriter(Protocol):
    """Writes the rows of one file of a table format; made by `TableFormat.writer`."""

    @property
    def bytes_estimate(self) -> int:
        """The size that the file would have if it were closed now."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows. `OptionError` unless `batch` has the schema of the file."""

    def taking(self, file: ReadableFile, size: int) -> Iterator[int] | None:
        """Return steps that take over all rows of a file of this format as they are stored, in place of decoding and adding them.

        Each step writes a piece, and yields its bytes. `None` if the rows are to be decoded, because the file has other columns, has rows
        in groups that are small, or has anything that its bytes alone do not carry; then nothing was written. The bytes are not looked at:
        the caller knows that they are those that a writer of this format has written, with the same codec.
        """

    def close(self) -> None:
        """Write what is left: the file is complete. A second call does nothing. The file object stays open."""


class WritableFile(Protocol):
    """The file that a table is written to: bytes are only ever appended. The writer does not close it."""

    def write(self, data: Any, /) -> Any:  # noqa: ANN401 - bytes-like objects of Arrow; the result is not used
        """Append all of `data`."""


class TableFormat(Format):
    """A format whose files have their own structure; on our side rows are Arrow batches."""

    tells_schema: ClassVar[bool] = False
    """Whether a file stores the schema of the rows that `writer` was given; if not, it is kept beside a staged file."""

    takes_over: ClassVar[bool] = False
    """Whether rows of finished files can be taken over as they are stored (`TableWriter.taking`)."""

    @abstractmethod
    def rows(
        self,
        fmt: ReadFormat,
        file: ReadableFile,
        size: int,
        span: tuple[int, int],
        account: Account | None = None,
        begins: Begins | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that begin in `span` of a file of `size` bytes, as exactly `fmt.schema`.

        Adjacent ranges yield each row once; if the file is not `divisible`, `span` is all of it. Columns that are not
        in the schema are counted in `account`. Where rows begin is added to `begins`, the same however a file is cut.
        Raises `BadFile` for a damaged file, a column of another type, or a value that does not fit.
        """

    def writer(self, file: WritableFile, fmt: WriteFormat, *, group_bytes: int, ratio: float) -> TableWriter:
        """Return a writer of one file. It buffers about `group_bytes` of Arrow; `ratio` is the sink's ratio so far.

        Called for formats with `codecs`. `OptionError` for a schema that no file of the format can have.
        """
        raise NotImplementedError

    def written_schema(self, file: ReadableFile, size: int) -> pa.Schema | None:  # noqa: ARG002 - few formats store it
        """Return the schema of the rows that `writer` was given for this file; `None` unless the format `tells_schema`."""
        return None

    def stored_schema(self, file: ReadableFile, size: int) -> pa.Schema:  # noqa: ARG002 - most formats store them
        """Return the columns in a file's footer or header, with the types that Spark reads them as. `BadFile`.

        Called to infer a schema, and to find what no column has if `unknownFields` is among the format's options.
        `OptionError` for a format whose columns only users know.
        """
        raise _not_inferred(self.name)

    def row_count(self, file: ReadableFile, size: int) -> int | None:  # noqa: ARG002 - few formats store it
        """Return the row count that a file stores, `None` if only reading the file would tell. `BadFile` if it is damaged."""
        return None

    def check(self, batch: pa.RecordBatch) -> None:
        """Raise `OptionError` for a value that no file of the format can hold. Called with all rows before they are staged."""

    def is_plain(self, field: pa.Field) -> bool:
        """Tell whether such a column needs no trial, because every format here can hold it."""
        return is_plain(field.type)


def _not_inferred(name: str) -> OptionError:
    msg = f"the columns of format={name} are not inferred: expected a schema that says them, such as 'id bigint, name string'"
    return OptionError(msg)


def is_plain(kind: pa.DataType) -> bool:
    """Tell whether a type is a number, a text, bytes, a date, or a time in microseconds."""
    checks = types.is_integer, types.is_floating, types.is_boolean, types.is_string, types.is_binary, types.is_date32
    return any(check(kind) for check in checks) or (types.is_timestamp(kind) and kind.unit == "us")


def separator(fmt: ReadFormat, how: Charset) -> bytes | None:
    """Return `lineSep` as the bytes that files in this charset have."""
    sep = fmt.line_sep
    return sep if sep is None or how.codec == UTF_8 else sep.decode().encode(how.codec)
