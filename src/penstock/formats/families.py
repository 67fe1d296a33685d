"""What a format is: an object of one of two families, which asks and answers for all that differs between formats.

- `RecordFormat` (text, json, csv): a file is records one behind the other, each with bytes of its own. Runs of records are
  joined and cut as bytes, so a part is staged as bytes, small files are decoded together, and a file can grow.
- `TableFormat` (parquet, orc, avro; binary, which is only read): a file has a structure of its own, and rows come out of it as
  Arrow batches. A part is staged as Arrow, or as a file of the format, and assembled by decoding and encoding.

A format is a subclass of one of them with one object, `FORMAT`, in `formats.known`. It holds no state, touches no file that it is
not handed, and imports what is heavy in its methods: the driver of a query asks it for its names and rules alone.
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
from penstock.formats.lines import BLOCK_BYTES, BOM, blocks, ended, record_at, record_starts, stream_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    import numpy as np
    import numpy.typing as npt

    from penstock.formats.account import Account
    from penstock.formats.charsets import Charset
    from penstock.formats.format import Decoder, Encoder, ReadFormat, WriteFormat
    from penstock.formats.seen import Room, Seen
    from penstock.storage import ReadableFile

    # (offset, length): that many bytes, fewer only at the end of the file.
    Read: TypeAlias = Callable[[int, int], bytes]
    # Offset and bytes of whole records, edge to edge.
    Blocks: TypeAlias = Iterator[tuple[int, bytes]]
    # The file's header, if it has one, and what is behind it.
    Found: TypeAlias = tuple[bytes, Blocks]

HEAD_BYTES = 4  # the longest byte order mark
_SEPARATOR_BYTES_MAX = 255  # what `lines` can tell apart in wide code units
_REACH_BYTES = 4 << 20


class Format(ABC):
    """What files of a format are, and what its options are. Called from planners, tasks and drivers, of any number of files."""

    name: ClassVar[str]
    extension: ClassVar[str] = ""
    """The end of its files' names; `file_extension` adds that of a compression."""
    other_extensions: ClassVar[tuple[str, ...]] = ()
    """What the names of such files of other makers end in."""
    codecs: ClassVar[tuple[str, ...]] = ()
    """What `compression` may be; the first is the default. None: the format is not written."""
    levels: ClassVar[Mapping[str, tuple[int, int]]] = MappingProxyType({})
    """The least and the greatest `compressionLevel` of those that have levels."""
    read_options: ClassVar[frozenset[str]] = frozenset()
    """Of the options that only some formats have (`special` in the tables), those of this one as a source."""
    write_options: ClassVar[frozenset[str]] = frozenset()
    """The same as a sink."""
    anchored: ClassVar[bool] = False
    """Whether a cut must be moved to where a record begins, by reading from a known beginning (`boundaries`)."""
    as_it_is: ClassVar[bool] = False
    """Whether a file is handed on as it is, whatever it holds."""
    as_lines: ClassVar[bool] = False
    """Whether a record is the bytes of its line, which pass without being parsed."""

    def file_extension(self, compression: str) -> str:  # noqa: ARG002 - a table is compressed inside
        """Return the end of the names of files that are written with `compression`: `.json`, `.csv.gz`, `.parquet`."""
        return self.extension

    def prepare(self) -> None:  # noqa: B027 - few need anything
        """Raise `DependencyError` if a library that the format needs is not installed. Called before a query begins."""

    @abstractmethod
    def divisible(self, fmt: ReadFormat, path: str) -> bool:
        """Tell whether a file of this name may be read in byte ranges."""

    def boundaries(self, fmt: ReadFormat, read: Read, size: int, anchor: int, targets: Sequence[int]) -> list[int]:
        """Return the first record start at or behind each target, from the record start `anchor` on. Called if `anchored`.

        Targets ascend, and one in front of the anchor has that. The file is read once, however many there are.
        """
        raise NotImplementedError

    def reach(self, fmt: ReadFormat, read: Read, size: int, at: int) -> int | None:  # noqa: ARG002 - by default nobody knows
        """Return where the records end that begin before the cut `at`; `None` if there is no such place near.

        There is none where a record is very long, or where it depends on all of the file where one begins.
        """
        return None


class RecordFormat(Format):
    """A format whose files are records one behind the other. The defaults are those of records that are lines."""

    codecs = ("none", "gzip", "zstd")
    levels = LEVELS

    @abstractmethod
    def decoder(self, fmt: ReadFormat, account: Account) -> Decoder:
        """Return what turns blocks into rows, and enters what no column has into `account`. `OptionError` if it cannot."""

    @abstractmethod
    def encoder(self, fmt: WriteFormat) -> Encoder:
        """Return what turns rows into bytes. `OptionError` for a schema or an option that is not for it."""

    def file_extension(self, compression: str) -> str:
        """Return the end of the names of files that are written with `compression`."""
        return self.extension + codecs.extension(compression)

    def header(self, fmt: WriteFormat) -> bytes:  # noqa: ARG002 - few have one
        """Return what every file begins with, in UTF-8, not compressed."""
        return b""

    def gives_text(self, fmt: ReadFormat) -> bool:  # noqa: ARG002 - most do
        """Tell whether values are made of text, and not of bytes in the file's own encoding."""
        return True

    def read_back(self, fmt: WriteFormat, rows: pa.RecordBatch) -> pa.RecordBatch:  # noqa: ARG002 - most lose nothing
        """Return the rows that a reader of what is made of `rows` gets: others where two values are written alike."""
        return rows

    def advice(self, fmt: ReadFormat, record: bytes) -> str:  # noqa: ARG002 - few can tell
        """Return which option is probably meant, "; set ...", where a record that begins so cannot be read; "" if none is."""
        return ""

    # -- small files in UTF-8, read whole ----------------------------------------------------------------------------

    def joins(self, fmt: ReadFormat) -> bool:
        """Tell whether a small file may be taken whole, by `begins` and `are_whole`, as the bytes that it is."""
        return self.in_bytes(fmt)

    def begins(self, fmt: ReadFormat, data: bytes) -> tuple[bytes, int] | None:  # noqa: ARG002 - most have no header
        """Return the header of a file that holds `data`, and where its records begin; `None` unless that is seen at once."""
        return b"", len(BOM) if data.startswith(BOM) else 0

    def are_whole(self, fmt: ReadFormat, data: bytes, ends: list[int]) -> bool:  # noqa: ARG002 - a line is a line
        """Tell whether in the records of files that were joined to `data`, and end at `ends` of it, each is read as by itself."""
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
        """Return where the records end that begin before the cut `at`, if they end near."""
        limit = at + _REACH_BYTES
        how = charset(fmt.encoding, read(0, min(HEAD_BYTES, size)))
        begin = record_at(read, size, at, limit, sep=separator(fmt, how), unit=how.unit, bom=how.bom)
        return size if begin is None and limit >= size else begin

    def ranged(self, fmt: ReadFormat, read: Read, size: int, span: tuple[int, int], how: Charset) -> Found:
        """Return the header of a file, and blocks of the records that begin in `span`, as the file has them."""
        sep = separator(fmt, how)
        return b"", blocks(read, size, *span, sep=sep, unit=how.unit, bom=how.bom, block_bytes=BLOCK_BYTES)

    def ended(self, fmt: ReadFormat, read: Read, begin: int, size: int, how: Charset) -> int:
        """Return where the last record ends that surely ends in `size` bytes of a file that grows, from the record at `begin` on."""
        return ended(read, begin, size, sep=separator(fmt, how), unit=how.unit)

    def streamed(self, fmt: ReadFormat, chunks: Iterable[bytes], how: Charset) -> Found:
        """Return the same of all of a file that comes as a stream; offsets are in what the stream holds."""
        return b"", self.stream_blocks(fmt, chunks, how)

    def stream_blocks(self, fmt: ReadFormat, chunks: Iterable[bytes], how: Charset) -> Blocks:
        """Yield the blocks of such a stream, a header among them."""
        sep = separator(fmt, how)
        return stream_blocks(chunks, sep=sep, unit=how.unit, bom=how.bom, block_bytes=BLOCK_BYTES)

    def kinds(self, fmt: ReadFormat, seen: Seen, room: Room) -> Kinds:  # noqa: ARG002 - most tell
        """Return what looks at blocks and enters into `seen` what kinds of values there are. Called to infer a schema.

        `OptionError` for a format whose columns only users can say.
        """
        raise _not_inferred(self.name)

    def record_starts(self, fmt: ReadFormat, block: bytes, how: Charset) -> npt.NDArray[np.int64]:
        """Return where in `block`, bytes of a file as it has them that begin a record, each record begins."""
        return record_starts(block, sep=separator(fmt, how), unit=how.unit)

    def columns(self, fmt: ReadFormat, header: bytes) -> tuple[str, ...]:
        """Return the names in a header, once it is known to have those of the schema. `BadFile`. Called with what was found."""
        raise NotImplementedError


class Kinds(Protocol):
    """Looks at blocks of records, to infer a schema; made by `RecordFormat.kinds`.

    `sorts`: columns are in the order of their names. `tells_times`: what is written as a time is one, and not a string.
    """

    sorts: ClassVar[bool]
    tells_times: ClassVar[bool]

    def take(self, block: bytes, where: Callable[[int], str], columns: tuple[str, ...] | None) -> int:
        """Enter the kinds of the values of a block, and return how many records it has.

        `where` gives the path of the file that a byte of the block is of, `columns` is what its header says. Raises `BadRecord` for
        the first record that cannot be read, and then nothing of the block has been entered.
        """

    def starts(self, block: bytes) -> npt.NDArray[np.int64]:
        """Return the byte at which each record of a block begins, those that cannot be read among them."""


class TableWriter(Protocol):
    """Writes the rows of one file of a table format; made by `TableFormat.writer`."""

    @property
    def bytes_estimate(self) -> int:
        """The size that the file would have if it were closed now."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows. `OptionError` unless `batch` has the schema of the file."""

    def close(self) -> None:
        """Write what is left: the file is complete. A second call does nothing. The file object stays open."""


class WritableFile(Protocol):
    """What a table is written to: bytes are only ever appended. It is not closed by the writer."""

    def write(self, data: Any, /) -> Any:  # noqa: ANN401 - bytes-like objects of Arrow; the result is not used
        """Append all of `data`."""


class TableFormat(Format):
    """A format whose files have a structure of their own, with rows as Arrow batches on our side."""

    tells_schema: ClassVar[bool] = False
    """Whether a file tells the schema of the rows that `writer` was given; if not, it is kept beside a file that is staged."""

    @abstractmethod
    def rows(
        self, fmt: ReadFormat, file: ReadableFile, size: int, span: tuple[int, int], account: Account | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that begin in `span` of a file of `size` bytes, as exactly `fmt.schema`.

        Ranges that lie edge to edge give each row once; where the file is not `divisible`, `span` is all of it. Columns that are
        not in the schema are entered into `account`. Raises `BadFile` for a damaged file, a column of another type, or a value that
        does not fit.
        """

    def writer(self, file: WritableFile, fmt: WriteFormat, *, group_bytes: int, ratio: float) -> TableWriter:
        """Return a writer of one file. It holds about `group_bytes` of Arrow; `ratio` is the sink's so far.

        Called where there are `codecs`. `OptionError` for a schema that no file of the format can have.
        """
        raise NotImplementedError

    def written_schema(self, file: ReadableFile, size: int) -> pa.Schema | None:  # noqa: ARG002 - few files tell
        """Return the schema of the rows that `writer` was given for this file; `None` unless the format `tells_schema`."""
        return None

    def stored_schema(self, file: ReadableFile, size: int) -> pa.Schema:  # noqa: ARG002 - most tell
        """Return the columns of a file as its footer or header says them, in the types that Spark reads them as. `BadFile`.

        Called to infer a schema, and to find what no column has where the format has `unknownFields` among its options.
        `OptionError` for a format whose columns only users can say.
        """
        raise _not_inferred(self.name)

    def row_count(self, file: ReadableFile, size: int) -> int | None:  # noqa: ARG002 - few files tell
        """Return how many rows a file says that it has, `None` where only reading it would tell. `BadFile` if it is damaged."""
        return None

    def check(self, batch: pa.RecordBatch) -> None:
        """Raise `OptionError` for a value that no file of the format can hold. Called with all rows before they are staged."""

    def is_plain(self, field: pa.Field) -> bool:
        """Tell whether such a column needs no trial: what every format here has as it is."""
        return is_plain(field.type)


def _not_inferred(name: str) -> OptionError:
    msg = f"the columns of format={name} are not inferred: expected a schema that says them, such as 'id bigint, name string'"
    return OptionError(msg)


def is_plain(kind: pa.DataType) -> bool:
    """Tell whether a type is a number, a text, bytes, a date, or a time in microseconds."""
    checks = types.is_integer, types.is_floating, types.is_boolean, types.is_string, types.is_binary, types.is_date32
    return any(check(kind) for check in checks) or (types.is_timestamp(kind) and kind.unit == "us")


def separator(fmt: ReadFormat, how: Charset) -> bytes | None:
    """Return `lineSep` as files have it that are written so."""
    sep = fmt.line_sep
    return sep if sep is None or how.codec == UTF_8 else sep.decode().encode(how.codec)
