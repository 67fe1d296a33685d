"""The segments in a directory by their names, and a segment that is being read. `order` knows which follows which."""

from __future__ import annotations

import re
import struct
import sys
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from penstock.errors import DamagedState, NotSupported, NotThere, UsageError
from penstock.storage import MemoryFile
from penstock.wal import form

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.storage import Hold, ReadHandle, Storage
    from penstock.wal.form import Header, LogBatch

_NAME = re.compile(r"(\d{12})\.wal")
_COPY = re.compile(r"(\d{12})\.wal\.broken(?:\.(\d+))?")
_CHUNK_BYTES_MIN, _CHUNK_BYTES_MAX = 64 << 10, 4 << 20


def path_of(directory: str, number: int) -> str:
    """Return the path of a segment."""
    return f"{directory}/{number:012d}.wal"


def held(storage: Storage, path: str, *, shared: bool = False) -> Hold | None:
    """Take the lock of a path, `None` if the storage has no locks; `Locked` if another holder has it."""
    with suppress(NotSupported):
        return storage.lock(path, shared=shared)
    return None


@contextmanager
def locked(storage: Storage, path: str) -> Iterator[None]:
    """Hold the lock of a path for the length of the block, if the storage has locks; `Locked` if another holder has it."""
    hold = held(storage, path)
    try:
        yield
    finally:
        if hold is not None:
            hold.close()


def copies(storage: Storage, directory: str) -> dict[int, str]:
    """Return the segments that a repair has moved away, each with the name of its newest copy."""
    return copies_in(names_in(storage, directory))


def check_directory(storage: Storage, directory: str) -> None:
    """Make sure that this is the directory of a log, or a new one, which is an empty log.

    `NotThere` if it does not exist, on a storage with directories; `UsageError` if it is a file, or contains other
    things and no log.
    """
    names = [name for name in names_in(storage, directory) if not name.startswith(".")]
    if not names:
        _check_is_directory(storage, directory)
    elif not any(map(_NAME.fullmatch, names)) and not copies_in(names):
        _check_is_directory(storage, directory)  # HDFS lists a file as its own content
        msg = f"{directory!r} has {min(names)!r} and no segment of a log, such as 000000000001.wal; name the directory of a log"
        raise UsageError(msg)


def _check_is_directory(storage: Storage, directory: str) -> None:
    try:
        is_directory = storage.stat(directory).is_directory
    except NotThere as error:
        if not storage.has_directories:
            return  # a storage without directories: nothing is there yet
        msg = f"{directory!r} does not exist; expected the directory of a log, which its writer makes"
        raise NotThere(msg) from error
    if not is_directory:
        msg = f"{directory!r} is a file; expected the directory of a log"
        raise UsageError(msg)


def names_in(storage: Storage, directory: str) -> list[str]:
    """Return the names of everything in a directory; `NotThere` if it does not exist, `UsageError` if it is a file."""
    try:
        names = list(storage.names(directory))
    except NotThere:
        _check_is_directory(storage, directory)
        raise
    if not names and not storage.has_directories:
        _check_is_directory(storage, directory)  # a file contains no names
    return names


def numbers_in(names: list[str]) -> list[int]:
    """Return the numbers of the segments among these names, in order."""
    return sorted(int(name[:12]) for name in names if _NAME.fullmatch(name))


def copies_in(names: list[str]) -> dict[int, str]:
    """Return the segments that have a copy among these names, in order, each with the name of its newest copy."""
    matches = filter(None, map(_COPY.fullmatch, names))
    copied = sorted((int(match[1]), int(match[2] or 1), match[0]) for match in matches)
    return {number: name for number, _, name in copied}


class SegmentEnd(NamedTuple):
    """Where the groups of a segment end.

    `at` is that byte, `check` the checksum before it, `sequence` the number of the next record, and `durable` the byte
    up to which the segment was synced, as the last group says.
    """

    at: int
    check: int
    sequence: int
    durable: int


class LogSegment:
    """An open segment. `header` is `None` while it has none: its writer is just making it, or has died.

    If the storage has locks, the segment is held until it is closed or dropped, shared with other readers, so that no
    purge deletes it.
    """

    _hold: Hold | None = None

    def __init__(
        self, storage: Storage, directory: str, number: int, *, hold: bool = False, data: bytes | None = None
    ) -> None:
        self.number = number
        self.path = path_of(directory, number)
        self._storage = storage
        self._file: ReadHandle = MemoryFile(data or b"")
        self._buffer, self._from = b"", 0
        self._chunk = _CHUNK_BYTES_MIN
        try:
            if hold:
                self._hold = held(storage, self.path, shared=True)
            if data is None:
                self._file = storage.open(self.path)
            self.header = self._read_header()
        except BaseException:  # whatever is raised, nothing stays open
            self.close()
            raise

    def _read_header(self) -> Header | None:
        size = self.size  # read first: a writer may be adding the header right now, and a group after it
        header = form.decode_header(self._file.read(0, form.HEADER_BYTES), self.path)
        if header is None and size > form.HEADER_BYTES:
            msg = (
                f"{self.path!r} is damaged at byte 0: its header does not fit its checksum, expected {form.HEADER_BYTES} "
                "bytes that do; restore it from a copy, or repair the log, which drops what comes after"
            )
            raise DamagedState(msg)
        if header is not None and header.number != self.number:
            msg = f"{self.path!r} is segment {header.number}, expected {self.number}: it was moved here; restore the log from a copy"
            raise DamagedState(msg)
        return header

    @property
    def size(self) -> int:
        """Return the length of the file."""
        return self._file.info().size

    def close(self) -> None:
        """Close the segment and release its lock."""
        try:
            self._file.close()
        finally:
            if self._hold is not None:
                self._hold.close()

    def __del__(self, *, _at_the_end: Callable[[], bool] = sys.is_finalizing) -> None:
        """Release the lock, as a writer does: a dropped reader would otherwise block every purge."""
        if self._hold is not None and not _at_the_end():
            self.close()

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied: two copies would close the same file."""
        msg = "an open segment of a log cannot be pickled or copied; close the reader first, or open another one at its position"
        raise TypeError(msg)

    def __enter__(self) -> LogSegment:
        """Return itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""
        self.close()

    def refresh(self) -> None:
        """Forget what was read of it: a writer may be writing to it."""
        self._buffer, self._from = b"", 0
        with suppress(NotThere):  # purged; the open file stays readable
            before, self._file = self._file, self._storage.open(self.path)
            before.close()
        if self.header is None:
            self.header = self._read_header()

    def _load(self, start: int, length: int) -> int:
        """Load these bytes into the buffer; return where they begin in it, -1 if the file does not have them (yet)."""
        index = start - self._from
        if index < 0 or index + length > len(self._buffer):
            if start + length > self.size:  # checked before memory is allocated: a length may be damaged
                return -1
            self._buffer, self._from = self._file.read(start, max(self._chunk, length)), start
            self._chunk = min(self._chunk * 2, _CHUNK_BYTES_MAX)
            index = 0 if len(self._buffer) >= length else -1
        return index

    def batch(self, at: int) -> LogBatch | None:
        """Return the group that begins at this byte, `None` if there is none, or it is invalid."""
        start = at - form.CHECK_BYTES
        index = self._load(start, form.CHECK_BYTES + form.GROUP_HEAD_BYTES) if self.header else -1
        if self.header is None or index < 0:
            return None
        length = form.group_length(self._buffer, index + form.CHECK_BYTES)
        index = self._load(start, form.CHECK_BYTES + length) if length else -1
        return (
            form.decode_group(self.header, at, self._buffer, index + form.CHECK_BYTES, length) if index >= 0 else None
        )

    def head_of(self, entry: int) -> int:
        """Return where a group begins if one of its records has its entry at this byte."""
        data = self._file.read(entry, 4)
        index = int.from_bytes(data, "little") if len(data) == 4 else entry  # noqa: PLR2004 - the size of an index
        return entry - form.GROUP_HEAD_BYTES - form.ENTRY_BYTES * index

    def end(self) -> SegmentEnd:
        """Return where the groups end, by reading all of them; byte 0 without a header."""
        if self.header is None:
            return SegmentEnd(0, 0, 0, 0)
        end = SegmentEnd(form.HEADER_BYTES, self.header.check, self.header.sequence, 0)
        while (batch := self.batch(end.at)) is not None and batch.sequence == end.sequence:
            end = SegmentEnd(batch.end, batch.check, end.sequence + batch.count, batch.durable)
        return end

    def read(self, at: int, length: int) -> bytes:
        """Return bytes of the file."""
        return self._file.read(at, length)

    def ends_at(self, follower: Header) -> bool:
        """Tell whether this segment contains the end that the header of the next one names."""
        at = follower.end - form.CHECK_BYTES
        last = self._file.read(at, form.CHECK_BYTES) if at >= 0 else b""
        return last == struct.pack("<Q", follower.last)  # no other log has it: the log's id is part of every checksum

    def find(self, at: int, sequence: int) -> LogBatch | None:
        """Return the first valid group after byte `at` with this sequence number or a higher one."""
        import numpy as np

        size = self.size
        words = np.frombuffer(self._file.read(at, (size - at) // 8 * 8), dtype="<u8")
        lengths = words[:-1] & np.uint64(0xFFFFFFFF)
        likely = (words[:-1] >> np.uint64(48) == 0) & (lengths >= form.GROUP_BYTES_MIN) & (lengths % np.uint64(8) == 0)
        likely &= (words[1:] >= np.uint64(sequence)) & (words[1:] <= np.uint64(sequence + size))
        batches = (self.batch(at + 8 * index) for index in np.flatnonzero(likely).tolist())
        return next(filter(None, batches), None)

    def is_torn(self, at: int, sequence: int) -> bool:
        """Tell whether the invalid group at byte `at` is the rest of a write that was never acknowledged."""
        return not self._was_durable(at, sequence) and not self._is_all_there(at)

    def _was_durable(self, at: int, sequence: int) -> bool:
        """Tell whether a group after byte `at` says that this byte was synced before."""
        later = self.find(at + 8, sequence) if self.size > at + 8 else None
        while later is not None and later.durable <= at:
            later = self.batch(later.end)
        return later is not None

    def _is_all_there(self, at: int) -> bool:
        """Tell whether every sector of the group at byte `at` was written: an unwritten one would be zeros."""
        head = self._file.read(at, form.GROUP_HEAD_BYTES)
        length = form.group_length(head, 0) if len(head) == form.GROUP_HEAD_BYTES else 0
        if not length or at + length > self.size:
            return False
        group = self._file.read(at, length)
        cuts = [0, *range(-at % form.SECTOR_BYTES or form.SECTOR_BYTES, length, form.SECTOR_BYTES), length]
        return all(any(group[start:end]) for start, end in pairwise(cuts))
