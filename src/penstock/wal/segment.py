"""One segment as it is read, and which segment follows which."""

from __future__ import annotations

import re
import struct
import sys
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn

from penstock.errors import DamagedState, Locked, NotSupported, NotThere, StorageError, UsageError
from penstock.storage import Entry
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


def numbers(storage: Storage, directory: str) -> list[int]:
    """Return the numbers of the segments there are, in order. `DamagedState` if a repair stopped half way."""
    names = _names(storage, directory)
    there = _numbers(names)
    if waiting := _interrupted(storage, directory, names):
        msg = f"{path_of(directory, waiting[0])!r} is missing: its repair was interrupted behind the copy; repair the log again"
        raise DamagedState(msg)
    return there


def copies(storage: Storage, directory: str) -> dict[int, str]:
    """Return the segments that a repair has moved out of the way, each with the name of its newest copy."""
    return _copies(_names(storage, directory))


def check_directory(storage: Storage, directory: str) -> None:
    """Make sure that this is the directory of a log, or a new one, which is an empty log.

    `NotThere` if there is none, `UsageError` if it is a file, or has something else in it and no log.
    """
    names = [name for name in _names(storage, directory) if not name.startswith(".")]
    if not names:
        _check_is_directory(storage, directory)
    elif not any(map(_NAME.fullmatch, names)) and not _copies(names):
        _check_is_directory(storage, directory)  # HDFS lists a file as what is in it
        msg = f"{directory!r} has {min(names)!r} and no segment of a log, such as 000000000001.wal; name the directory of a log"
        raise UsageError(msg)


def _check_is_directory(storage: Storage, directory: str) -> None:
    try:
        is_directory = storage.stat(directory).is_directory
    except NotThere as error:
        msg = f"{directory!r} does not exist; expected the directory of a log, which its writer makes"
        raise NotThere(msg) from error
    if not is_directory:
        msg = f"{directory!r} is a file; expected the directory of a log"
        raise UsageError(msg)


def interrupted(storage: Storage, directory: str) -> tuple[int, bytes] | None:
    """Return the segment that a repair has deleted and not put back yet, and its copy."""
    return _interrupted(storage, directory, _names(storage, directory))


def _names(storage: Storage, directory: str) -> list[str]:
    try:
        return list(storage.names(directory))
    except NotThere:
        _check_is_directory(storage, directory)
        raise


def _numbers(names: list[str]) -> list[int]:
    return sorted(int(name[:12]) for name in names if _NAME.fullmatch(name))


def _copies(names: list[str]) -> dict[int, str]:
    copied = sorted((int(m[1]), int(m[2] or 1), m[0]) for m in map(_COPY.fullmatch, names) if m)
    return {number: name for number, _, name in copied}


def _interrupted(storage: Storage, directory: str, names: list[str]) -> tuple[int, bytes] | None:
    """Return the first copy behind the last segment if it was written behind what is there now: see `log`."""
    there = _numbers(names)
    copied = [number for number in _copies(names) if number > max(there, default=0)]
    if not copied:
        return None
    name = _copies(names)[min(copied)]
    data = storage.read(f"{directory}/{name}")
    with suppress(DamagedState):
        header = form.decode_header(data, f"{directory}/{name}")
        if header is not None and header.previous in there:
            with LogSegment(storage, directory, header.previous) as segment:
                return (min(copied), data) if segment.ends_at(header) else None
        return (min(copied), data) if header is not None and not there else None
    return None


class _Memory:
    """A segment that is no file."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def info(self) -> Entry:
        return Entry("", is_directory=False, size=len(self._data), modified_ns=0, identity="")

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

    def close(self) -> None:
        """Do nothing."""


class LogSegment:
    """An open segment. `header` is `None` as long as it has none: whoever made it is at it, or died.

    Where the storage has locks it is held, shared with other readers, so that no purge takes it away, until it is closed or dropped.
    """

    _hold: Hold | None = None

    def __init__(
        self, storage: Storage, directory: str, number: int, *, hold: bool = False, data: bytes | None = None
    ) -> None:
        self.number = number
        self.path = path_of(directory, number)
        self._storage = storage
        self._file: ReadHandle | _Memory = _Memory(data or b"")
        self._buffer, self._from = b"", 0
        self._chunk = _CHUNK_BYTES_MIN
        try:
            if hold:
                with suppress(NotSupported):
                    self._hold = storage.lock(self.path, shared=True)
            if data is None:
                self._file = storage.open(self.path)
            self.header = self._read_header()
        except BaseException:  # whatever it is, nothing stays open
            self.close()
            raise

    def _read_header(self) -> Header | None:
        size = self.size  # asked first: a writer may be putting the header there right now, and a group behind it
        header = form.decode_header(self._file.read(0, form.HEADER_BYTES), self.path)
        if header is None and size > form.HEADER_BYTES:
            msg = (
                f"{self.path!r} is damaged at byte 0: its header does not fit its checksum, expected {form.HEADER_BYTES} "
                "bytes that do; restore it from a copy, or repair the log, which drops what is behind"
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
        """Close it and let it go."""
        try:
            self._file.close()
        finally:
            if self._hold is not None:
                self._hold.close()

    def __del__(self, *, _at_the_end: Callable[[], bool] = sys.is_finalizing) -> None:
        """Let go of what is held, which a reader that was dropped would keep from every purge; as a writer does."""
        if self._hold is not None and not _at_the_end():
            self.close()

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied: two would close the same file."""
        msg = "an open segment of a log cannot be pickled or copied; close the reader first, or open another one at its position"
        raise TypeError(msg)

    def __enter__(self) -> LogSegment:
        """Return itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""
        self.close()

    def refresh(self) -> None:
        """Forget what was read of it: somebody may be writing to it."""
        self._buffer, self._from = b"", 0
        with suppress(NotThere):  # purged; what is open stays
            before, self._file = self._file, self._storage.open(self.path)
            before.close()
        if self.header is None:
            self.header = self._read_header()

    def _load(self, start: int, length: int) -> int:
        """Have these bytes in the buffer; return where they begin in it, -1 if the file does not have them (yet)."""
        index = start - self._from
        if index < 0 or index + length > len(self._buffer):
            if start + length > self.size:  # asked before anything is allocated: a length may be damaged
                return -1
            self._buffer, self._from = self._file.read(start, max(self._chunk, length)), start
            self._chunk = min(self._chunk * 2, _CHUNK_BYTES_MAX)
            index = 0 if len(self._buffer) >= length else -1
        return index

    def batch(self, at: int) -> LogBatch | None:
        """Return the group that begins at this byte, `None` if there is none, or it is not right."""
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
        """Return where the group begins whose record has its entry at this byte, if one has."""
        data = self._file.read(entry, 4)
        index = int.from_bytes(data, "little") if len(data) == 4 else entry  # noqa: PLR2004 - the size of an index
        return entry - form.GROUP_HEAD_BYTES - form.ENTRY_BYTES * index

    def end(self) -> tuple[int, int, int, int]:
        """Return where the groups end, by looking at all of them.

        That is that byte, the checksum before it, the next sequence number, and up to where it is known to be durable.
        """
        if self.header is None:
            return 0, 0, 0, 0
        at, check, sequence, durable = form.HEADER_BYTES, self.header.check, self.header.sequence, 0
        while (batch := self.batch(at)) is not None and batch.sequence == sequence:
            at, check, sequence, durable = batch.end, batch.check, sequence + batch.count, batch.durable
        return at, check, sequence, durable

    def read(self, at: int, length: int) -> bytes:
        """Return bytes of the file."""
        return self._file.read(at, length)

    def ends_at(self, follower: Header) -> bool:
        """Tell whether there is, in this segment, the end that the header of the next one names."""
        at = follower.end - form.CHECK_BYTES
        last = self._file.read(at, form.CHECK_BYTES) if at >= 0 else b""
        return last == struct.pack("<Q", follower.last)  # which no other log has: its id is in every checksum

    def find(self, at: int, sequence: int) -> LogBatch | None:
        """Return the first group behind byte `at` that is right and has this sequence number or a higher one."""
        import numpy as np

        size = self.size
        words = np.frombuffer(self._file.read(at, (size - at) // 8 * 8), dtype="<u8")
        lengths = words[:-1] & np.uint64(0xFFFFFFFF)
        likely = (words[:-1] >> np.uint64(48) == 0) & (lengths >= form.GROUP_BYTES_MIN) & (lengths % np.uint64(8) == 0)
        likely &= (words[1:] >= np.uint64(sequence)) & (words[1:] <= np.uint64(sequence + size))
        for index in np.flatnonzero(likely).tolist():
            batch = self.batch(at + 8 * index)
            if batch is not None:
                return batch
        return None

    def is_torn(self, at: int, sequence: int) -> bool:
        """Tell whether what is at byte `at`, and is no group, is the rest of a write that nobody acknowledged."""
        behind = self.find(at + 8, sequence) if self.size > at + 8 else None
        while behind is not None:
            if behind.durable > at:
                return False
            behind = self.batch(behind.end)
        data = self._file.read(at, form.GROUP_HEAD_BYTES)
        length = form.group_length(data, 0) if len(data) == form.GROUP_HEAD_BYTES else 0
        if not length or at + length > self.size:
            return True
        data = self._file.read(at, length)
        cuts = [0, *range(-at % form.SECTOR_BYTES or form.SECTOR_BYTES, length, form.SECTOR_BYTES), length]
        return any(not any(data[start:end]) for start, end in pairwise(cuts))


def first(storage: Storage, directory: str, *, hold: bool = False) -> LogSegment | None:
    """Return the first segment that has a header; `None` if there is none yet. `DamagedState` if there was one before it.

    One that is not there any more was purged.
    """
    there = numbers(storage, directory)
    for number in there:
        with suppress(NotThere, Locked):
            segment = LogSegment(storage, directory, number, hold=hold)
            if segment.header is not None and segment.header.previous in there:
                segment.close()
                path = path_of(directory, segment.header.previous)
                msg = (
                    f"{path!r} is damaged at byte 0: found no header, expected {form.HEADER_BYTES} bytes of one, because "
                    f"{segment.path!r} was written behind it; restore it from a copy, or repair the log"
                )
                raise DamagedState(msg)
            if segment.header is not None:
                return segment
            segment.close()
    return None


def follower(storage: Storage, directory: str, number: int, *, hold: bool = False) -> LogSegment | None:
    """Return the segment that counts as the one behind `number`; `None` if there is none yet.

    `DamagedState` if there are later ones and none of them was written behind it.
    """
    chosen: LogSegment | None = None
    try:
        for segment, header in _behind(storage, directory, number, hold=hold):
            before, chosen = chosen, segment if header.previous == number else chosen
            for other in (before, segment):
                if other is not None and other is not chosen:
                    other.close()
            if header.previous != number:
                if chosen is None:
                    _refuse(segment.path, path_of(directory, header.previous), path_of(directory, number))
                break
    except DamagedState:
        if chosen is None:
            raise  # else whoever comes to it will say so
    except StorageError:
        if chosen is not None:
            chosen.close()
        raise
    return chosen


def _behind(storage: Storage, directory: str, number: int, *, hold: bool) -> Iterator[tuple[LogSegment, Header]]:
    """Yield the later segments that have a header.

    The next ones by name, so that a long log is not listed for each of its segments. Behind one without a header by a listing
    that is older than the look at it: of those in a listing only the last may still get one.
    """
    later = number + 1
    with suppress(NotThere):
        while (segment := LogSegment(storage, directory, later, hold=hold)).header is not None:
            yield segment, segment.header
            later += 1
        segment.close()
    for listed in numbers(storage, directory):
        if listed >= later:
            segment = LogSegment(storage, directory, listed, hold=hold)
            if segment.header is None:
                segment.close()
            else:
                yield segment, segment.header


def _refuse(path: str, expected: str, before: str) -> NoReturn:
    msg = (
        f"{path!r} was written behind {expected!r}, found {before!r} before it: a segment is missing, or was put back; "
        "restore the log from a copy"
    )
    raise DamagedState(msg)
