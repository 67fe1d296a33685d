"""What a file's contents look like: the two descriptions users give, and what reads and writes by them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.errors import OptionError
from penstock.formats import codecs

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

TEXT_EXTENSIONS = {"text": ".txt", "json": ".json", "csv": ".csv"}


@dataclass(frozen=True)
class ReadFormat:
    r"""How files are read. Picklable: it travels from the driver to the tasks.

    `name` is text, json, csv, parquet or binary; `schema` the exact schema of every batch. `encoding` is for the text
    formats, `line_sep` (None: `\n`, `\r\n` and a lone `\r`) for text and json, `header` and `sep` for csv,
    `block_size` (None: the whole file is one value) for binary.
    """

    name: str
    schema: pa.Schema
    encoding: str = "UTF-8"
    line_sep: bytes | None = None
    header: bool = False
    sep: str = ","
    block_size: int | None = None
    zone: str = "UTC"


@dataclass(frozen=True)
class WriteFormat:
    """How files are written: `name` is text, json, csv or parquet, `compression` none, gzip or zstd.

    For Parquet `compression` is the codec inside the file (snappy, zstd, gzip, none) and leaves no mark on the name.
    """

    name: str
    schema: pa.Schema
    compression: str = "none"

    @property
    def extension(self) -> str:
        """The end of the names of such files: `.json`, `.csv.gz`, `.parquet`. Raises `OptionError`."""
        if self.name == "parquet":
            return ".parquet"
        if self.name not in TEXT_EXTENSIONS:
            msg = f"format={self.name!r} cannot be written: expected text, json, csv or parquet"
            raise OptionError(msg)
        return TEXT_EXTENSIONS[self.name] + codecs.extension(self.compression)


class Decoder(Protocol):
    """Turns bytes into rows. Made once per task by `decoder`; what a call returns depends on its arguments only."""

    def decode(self, block: bytes, *, first: bool = False) -> pa.RecordBatch:
        """Return the records of `block`, all of them, in order, as exactly the schema of the format.

        Called with blocks of whole records, as `lines.blocks` or `delimited.csv_blocks` cut them; only the last record
        of a file may lack its separator. `first` says that the block begins the file: csv then skips its header.

        Guaranteed: no record is dropped, changed or made null because it does not fit. Raises `BadRecord` for the first
        record that cannot be read; its `offset` is the byte in `block` at which the record begins.
        """

    def starts(self, block: bytes) -> npt.NDArray[np.int64]:
        """Return the byte in `block` at which each row of `decode(block)` begins. Called with blocks it has decoded."""


class Encoder(Protocol):
    """Turns rows into bytes. Made once per part by `encoder`; holds no state between calls."""

    extension: str

    def encode(self, batch: pa.RecordBatch) -> pa.Buffer | bytes:
        """Return the records of `batch`, each ended by a newline, in UTF-8, not compressed.

        Concatenated results are a file; the empty batch gives no bytes. The batch has the schema of the format. Raises
        `OptionError` for a value the format cannot hold.
        """

    def ends(self, batch: pa.RecordBatch, data: pa.Buffer | bytes) -> npt.NDArray[np.int64]:
        """Return where each row of `batch` ends in `data`, which `encode` made of it: one offset a row, rising."""
