"""What the writers of tables share: they gather rows into groups, and estimate the size of the file before it is closed.

Memory is bounded by one group. A group is the unit that the format encodes at once: a row group, a stripe, a block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.formats.families import WritableFile
    from penstock.storage import ReadableFile

_ROWS_PER_GROUP_MAX = 1 << 20
_SPARSE = 2  # a batch that keeps more than this times its own bytes in memory is copied


class GroupWriter(ABC):
    """Writes batches of `schema` to one file in groups of about `group_bytes` of Arrow data.

    Bytes are appended to `file`, which is neither flushed nor closed. `ratio` is the expected number of bytes in the
    file per byte of Arrow, as far as it is known. After an error the writer and the file are unusable.
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
        self._unwritten_bytes = 0  # of Arrow, which the library holds and has not written to the file
        self._taken_bytes = 0  # of other files, which were written as they are
        self._is_open = True
        self.rows = 0

    @property
    def bytes_estimate(self) -> int:
        """The size of the file if it were closed now: what is encoded, and an estimate for the rest by this file's ratio."""
        written = self._file.written
        seen = (written - self._taken_bytes) / self._encoded_of_bytes if self._encoded_of_bytes else self._ratio
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
        """Write what is buffered and the end of the file, which then is complete. A second call does nothing."""
        if self._is_open:
            self._flush()
            self._end()
            self._file.check()
            self._unwritten_bytes = 0
            self._is_open = False

    def arrow_file(self) -> pa.PythonFile:
        """Return the file for Arrow to write to."""
        return pa.PythonFile(self._file, "w")

    def taking(self, file: ReadableFile, size: int) -> Iterator[int] | None:  # noqa: ARG002 - most formats decode
        """Return steps as `TableWriter.taking` has it; `None` for a format whose rows cannot be taken over."""
        return None

    @abstractmethod
    def _put(self, batches: list[pa.RecordBatch]) -> None:
        """Encode one group. Called with batches of the schema, at least one of which has rows."""

    @abstractmethod
    def _end(self) -> None:
        """Write the part of the file after the last group. Called once."""

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Cut the batch at the ends of groups."""
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
    """The file object that a library writes to: counts bytes, and keeps the file open.

    It never raises into the library: an error there, while the library ends an ORC file, would end the process. The
    first error is kept, and anything written after it is dropped. When the library has returned, `check` raises the
    kept error.
    """

    closed = False

    def __init__(self, file: WritableFile) -> None:
        self._file = file
        self._error: BaseException | None = None
        self._kept: bytearray | None = None
        self.written = 0

    @contextmanager
    def kept(self) -> Iterator[bytearray]:
        """Keep what is written meanwhile, and write none of it."""
        self._kept, before = bytearray(), self.written
        try:
            yield self._kept
        finally:
            self._kept, self.written = None, before

    def write(self, data: pa.Buffer | bytes) -> int:
        if self._kept is not None:
            self._kept += data
        elif self._error is None:
            try:
                self._file.write(data)
            except BaseException as error:  # noqa: BLE001 - also an interrupt, which is raised as soon as possible
                self._error = error
        self.written += len(data)
        return len(data)

    def check(self) -> None:
        """Raise the first error of writing, if there was one."""
        if self._error is not None:
            raise self._error

    def tell(self) -> int:
        return self.written

    def flush(self) -> None:
        """Do nothing: flushing is left to the owner of the file."""

    def close(self) -> None:
        """Do nothing: closing is left to the owner of the file."""


def _compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return `batch` with its own buffers if it is a small view of large ones, which it would keep in memory."""
    if batch.get_total_buffer_size() <= _SPARSE * batch.nbytes:
        return batch
    return pa.ipc.read_record_batch(batch.serialize(), batch.schema)
