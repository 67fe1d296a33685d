"""Descriptions of a file's contents: the two that users give, and the decoders and encoders that follow them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from penstock.errors import OptionError
from penstock.formats.patterns import TimeForms

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    import numpy as np
    import numpy.typing as npt

    from penstock.formats.malformed import Sifted
    from penstock.options import Options

    Refuse: TypeAlias = Callable[[int, bytes, str], None]

TIME_OPTIONS = ("timestampFormat", "timestampNTZFormat", "dateFormat")  # of the formats that store times as text
CSV_OPTIONS = ("header", "quote", "escape", "comment", "nullValue", "emptyValue")  # of source and sink
FIELD_OPTIONS = ("unknownFields", "missingFields", "rescuedDataColumn")  # of formats whose records name their fields


@dataclass(frozen=True)
class Dialect:
    r"""How CSV is written. The default is RFC 4180: a quote inside quotes is doubled. Raises `OptionError`.

    `quote` `""`: nothing is quoted. `escape` `None`: the quote itself; another character stands, inside quotes, before
    a quote or before itself. `comment`: records that begin with it are skipped. `null_value`: a text that stands for
    null without quotes, in addition to an empty field. `empty_value`: the text that stands for the empty string
    (`None`: two quotes).
    """

    sep: str = ","
    quote: str = '"'
    escape: str | None = None
    comment: str | None = None
    header: bool = False
    null_value: str = ""
    empty_value: str | None = None

    def __post_init__(self) -> None:
        marks = {"sep": self.sep, "quote": self.quote, "escape": self.escapes, "comment": self.comment}
        for (name, mark), (other, same) in combinations(marks.items(), 2):
            if mark and mark == same:
                msg = f"{other}={same!r} is {name}, too; expected characters that differ"
                raise OptionError(msg)
        if any(mark in self.null_value for mark in (self.sep, self.quote or "\n", "\r", "\n")):
            msg = (
                f"nullValue={self.null_value!r} cannot be told from a value: expected a text without separator, quote and "
                "line break, such as NULL"
            )
            raise OptionError(msg)

    @staticmethod
    def of(options: Options) -> Dialect:
        """Return the dialect that the options of a source or a sink describe. Raises `OptionError`."""
        header, quote, escape, comment, null, empty = (options[name] for name in CSV_OPTIONS)
        return Dialect(options.values.get("sep", ","), quote, escape, comment, header, null or "", empty)

    @property
    def escapes(self) -> str | None:
        """The character that escapes quotes; `None` if they are doubled, or if there are none."""
        return self.escape if self.quote and self.escape != self.quote else None

    @property
    def marks(self) -> bytes:
        """The ASCII characters with a special meaning, including line breaks."""
        return "".join((self.sep, self.quote, self.escapes or "", self.comment or "", "\r\n")).encode()


@dataclass(frozen=True)
class ReadFormat:
    r"""How files are read. Picklable: it travels from the driver to the tasks.

    `name` is that of a format, `schema` the exact schema of every batch, `zone` the time zone of times that name none.
    The other fields, with what `None` means:

    - text formats: `encoding`, and `errors`, which decides about text that is not in this encoding (fail, replace).
      `timestamp`, `timestamp_ntz` and `date` are the patterns of these types in json and csv (ISO 8601).
    - text and json: `line_sep`, in UTF-8 (`\n`, `\r\n` and a lone `\r`).
    - json: `multi_line`, a file is one document.
    - csv: its dialect `csv`; `columns` are the names in a file's header, by which columns are then found.
    - binary: `block_size` (the whole file is one value).
    - formats whose records name their fields: `unknown` decides about names that no column has (ignore, fail, rescue);
      `missing` about columns that a record does not name (None, null, fail); `rescued` is the column of the schema that
      gets what no other column has or accepts. Decoders put the members of a JSON object there, without braces.

    `refuse`, in a task, gets what cannot be cut into records, if that is set aside: offset, bytes, and what was
    expected.

    Decoders get UTF-8 whatever the encoding. The exception are the binary values of text: their blocks have the file's
    own bytes, with matching `line_sep` and `unit`, NumPy's type of a code unit.
    """

    name: str
    schema: pa.Schema
    encoding: str = "UTF-8"
    line_sep: bytes | None = None
    csv: Dialect = Dialect()
    block_size: int | None = None
    zone: str = "UTC"
    errors: str = "fail"
    unit: str = "u1"
    columns: tuple[str, ...] | None = None
    refuse: Refuse | None = None
    timestamp: str | None = None
    timestamp_ntz: str | None = None
    date: str | None = None
    multi_line: bool = False
    unknown: str = "ignore"
    missing: str | None = None
    rescued: str | None = None

    @property
    def is_strict(self) -> bool:
        """Whether records are checked beyond their columns."""
        return self.unknown != "ignore" or self.missing == "fail" or self.rescued is not None

    @property
    def data_schema(self) -> pa.Schema:
        """The columns that are read from records: all but the rescue column."""
        return pa.schema([field for field in self.schema if field.name != self.rescued])

    def with_rescued(self, columns: list[pa.Array], rescued: pa.Array | None, rows: int) -> pa.RecordBatch:
        """Return a batch of the schema from columns of `data_schema` and the rescued text of each row; `None`: nothing was rescued."""
        left = iter(columns)
        nothing = pa.nulls(rows, pa.string()) if rescued is None else rescued
        arrays = [nothing if field.name == self.rescued else next(left) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    @property
    def times(self) -> TimeForms:
        """How the text formats write times and dates."""
        return TimeForms(self.zone, self.timestamp, self.timestamp_ntz, self.date)


@dataclass(frozen=True)
class WriteFormat:
    """How files are written: `name` is that of a format, `compression` one of its codecs with its `level`, `csv` for csv.

    For a table `compression` is the codec inside the file, and the file's name does not show it.
    """

    name: str
    schema: pa.Schema
    compression: str = "none"
    csv: Dialect = Dialect()
    level: int | None = None


class Decoder(Protocol):
    """Turns bytes into rows. Made once per task by `decoder`; what a call returns depends only on its arguments."""

    def decode(self, block: bytes) -> pa.RecordBatch:
        """Return the records of `block`, all of them, in order, as exactly the schema of the format.

        Called with blocks of whole records, as `lines.blocks` or `csv.cut.csv_blocks` cut them; only the last record of
        a file may lack its separator. No block contains the header of a csv file.

        Guaranteed: no record is dropped, changed or made null because it does not fit. Raises `BadRecord` for the first
        record that cannot be read; its `offset` is the byte in `block` where the record begins.
        """

    def sift(self, block: bytes) -> Sifted:
        """Return the rows of the records of `block` that can be read, in order, and all records that cannot be read.

        Each record is in one of the two. The rows are those that `decode` would return for the readable records alone.
        """

    def starts(self, block: bytes) -> npt.NDArray[np.int64]:
        """Return the byte in `block` at which each row of `decode(block)` begins. Called with blocks it has decoded."""


class Encoder(Protocol):
    """Turns rows into bytes. Made once per part by `encoder`; holds no state between calls."""

    def encode(self, batch: pa.RecordBatch) -> pa.Buffer | bytes:
        """Return the records of `batch`, each ended by a newline, in UTF-8, not compressed.

        Concatenated results are a file; the empty batch gives no bytes. The batch has the schema of the format. Raises
        `OptionError` for a value the format cannot hold.
        """

    def ends(self, batch: pa.RecordBatch, data: pa.Buffer | bytes) -> npt.NDArray[np.int64]:
        """Return where each row of `batch` ends in `data`, the result of `encode` for it: one offset per row, ascending."""
