"""What the writers of tables share: rows are gathered into groups, and the size of the file is known before it is closed.

Memory is bounded by one group. A group is what the format encodes at once: a row group, a stripe, a block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.formats.families import WritableFile

_ROWS_PER_GROUP_MAX = 1 << 20
_SPARSE = 2  # a batch that pins more than this times its own bytes is copied before it is kept


class GroupWriter(ABC):
    """Writes batches of `schema` to one file in groups of about `group_bytes` of Arrow data.

    `file` gets bytes appended and is neither flushed nor closed. `ratio` is what a byte of Arrow will take, as far as is known.
    After an error the writer is done for, and so is the file.
    """

    def __init__(self, file: WritableFile, schema: pa.Schema, group_bytes: int, *, ratio: float) -> None:
        self._file = _Counted(file)
        self._schema = schema
        self._ratio = ratio
        self._group_bytes = group_bytes
        self._buffered: list[pa.RecordBatch] = []
        self._buffered_bytes = 0
        self._buffered_rows = 0
        self._encoded_of_bytes = 0
        self._unwritten_bytes = 0  # of Arrow, which the library has and the file has not
        self._is_open = True
        self.rows = 0

    @property
    def bytes_estimate(self) -> int:
        """The size the file would have if it were closed now: what is encoded, and the rest at this file's ratio."""
        written = self._file.written
        seen = written / self._encoded_of_bytes if self._encoded_of_bytes else self._ratio
        return written + int((self._unwritten_bytes + self._buffered_bytes) * seen)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows. Raises `OptionError` unless `batch` has the schema of the file."""
        if not batch.schema.equals(self._schema):
            msg = f"the batch has other columns than the file: found {batch.schema}, expected {self._schema}"
            raise OptionError(msg)
        self.rows += batch.num_rows
        for piece in self._pieces(batch):
            self._buffered.append(_compact(piece))
            self._buffered_bytes += piece.nbytes
            self._buffered_rows += piece.num_rows
            if self._buffered_bytes >= self._group_bytes or self._buffered_rows >= _ROWS_PER_GROUP_MAX:
                self._flush()

    def close(self) -> None:
        """Write what is buffered, and what ends the file: it is complete. A second call does nothing."""
        if self._is_open:
            self._flush()
            self._end()
            self._file.check()
            self._unwritten_bytes = 0
            self._is_open = False

    def arrow_file(self) -> pa.PythonFile:
        """Return the file for Arrow to write to."""
        return pa.PythonFile(self._file, "w")

    @abstractmethod
    def _put(self, batches: list[pa.RecordBatch]) -> None:
        """Encode one group. Called with batches of the schema, one of which at least has a row."""

    @abstractmethod
    def _end(self) -> None:
        """Write what is behind the last group. Called once."""

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Cut the batch where groups end."""
        begin = 0
        while begin < batch.num_rows:
            rest = batch.slice(begin)
            room = max(self._group_bytes - self._buffered_bytes, 1)
            rows = rest.num_rows if rest.nbytes <= room else max(rest.num_rows * room // rest.nbytes, 1)
            rows = min(rows, _ROWS_PER_GROUP_MAX - self._buffered_rows)
            yield rest.slice(0, rows)
            begin += rows

    def _flush(self) -> None:
        if not self._buffered:
            return
        before = self._file.written
        self._put(self._buffered)
        self._file.check()
        self._unwritten_bytes += self._buffered_bytes
        if self._file.written > before:
            self._encoded_of_bytes += self._unwritten_bytes
            self._unwritten_bytes = 0
        self._buffered, self._buffered_bytes, self._buffered_rows = [], 0, 0


class _Counted:
    """The file object that a library writes to: counts, and keeps the file open.

    It never raises into the library: an error there, while it ends an ORC file, ends the process. The first error is kept, what is
    written behind it goes nowhere, and `check` raises it once the library has returned, as what it was.
    """

    closed = False

    def __init__(self, file: WritableFile) -> None:
        self._file = file
        self._error: BaseException | None = None
        self.written = 0

    def write(self, data: pa.Buffer | bytes) -> int:
        if self._error is None:
            try:
                self._file.write(data)
            except BaseException as error:  # noqa: BLE001 - also an interrupt: it is raised as soon as it can be
                self._error = error
        self.written += len(data)
        return len(data)

    def check(self) -> None:
        """Raise what has gone wrong in writing, if anything has."""
        if self._error is not None:
            raise self._error

    def tell(self) -> int:
        return self.written

    def flush(self) -> None:
        """Leave that to the owner of the file."""

    def close(self) -> None:
        """Leave that to the owner of the file."""


def _compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return `batch` on buffers of its own if it is a small view of large ones, which it would keep in memory."""
    if batch.get_total_buffer_size() <= _SPARSE * batch.nbytes:
        return batch
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)
