"""The format of the log, byte by byte. All integers are little-endian and unsigned; everything begins at a multiple of 8.

A log is a directory of segments, `<number, 12 digits>.wal`. A segment is a header, then groups, to the end of the file.

*Header*, 88 bytes::

     0  8  the letters PENSTWAL
     8  4  version, 1
    12  4  length of the header, 88
    16 16  log id: random, the same in all segments of a log
    32  8  number of this segment, as in its name
    40  8  epoch: one higher for each writer
    48  8  sequence number of the first record
    56  8  number of the segment before it, 0 if there is none
    64  8  length of that segment: where it ended
    72  8  the checksum at that end
    80  8  checksum of bytes 0 to 80, with bytes 72 to 80 as the seed

*Group*, the records of one append or of one group commit; its length is a multiple of 8 bytes::

     0  4  length of the group, all of it included
     4  1  type: 1, records
     5  1  flags: 1, a reader that does not know the type may skip the group
     6  2  zero
     8  8  sequence number of its first record
    16  8  durable: up to which byte this segment had been synced when the group was written
    24  4  number of records, n
    28  4  length of all records, in bytes
    32 8n  the entry of each record: its index in the group (4), its length (4)
     .     the records, one after the other, and zeros to a multiple of 8
    -8  8  checksum of all before it

A checksum is XXH3, 64 bits. The seed of a group's checksum is the 8 bytes before the group (the checksum of the
previous group, or the header's), exclusive-or the XXH3 of log id and segment number (bytes 16 to 40 of the header). So
a group is valid only after the group that it was written after, in this segment of this log, and *any* place can be
checked alone.

A *position* is (segment, offset of the record's entry), `3:1024` as text. The entry holds its index, so the group of a
position begins at offset - 32 - 8 * index: a seek reads one group, whatever the log's size. The position of the end is
where the next entry will be: 32 bytes after the last group.

The header of the next segment, and nothing else, decides where a segment ends: bytes after that length do not count. So
a writer never has to cut anything to go on, and whatever a dead or stalled writer left is out of the way at once (see
`writer`). If several segments name the same previous segment, the last one counts. A segment without a complete header
holds nothing.

*Torn or damaged.* In the last segment, an invalid group is the torn end of a write that was never acknowledged, with
two exceptions, which are damage: a group after it says that this place was `durable`; or the group is complete, and
none of its sectors is zeros, as a sector that was never written would be. In every other segment an invalid group is
damage.
"""

from __future__ import annotations

import re
import struct
from array import array
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from penstock.errors import DamagedState, OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

MAGIC = b"PENSTWAL"
VERSION = 1
HEADER_BYTES = 88
RECORDS, MAY_SKIP = 1, 1
GROUP_HEAD_BYTES, ENTRY_BYTES, CHECK_BYTES = 32, 8, 8
GROUP_BYTES_MIN = GROUP_HEAD_BYTES + CHECK_BYTES
RECORD_BYTES_MAX = 64 << 20
SECTOR_BYTES = 512
FIRST_ENTRY = HEADER_BYTES + GROUP_HEAD_BYTES
_HEADER = struct.Struct("<8sII16sQQQQQQ")
_GROUP = struct.Struct("<IBBHQQII")
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_NO_CHECK = bytes(CHECK_BYTES)
_PADDING = [bytes(-length % 8) for length in range(8)]
_POSITION = re.compile(r"([0-9]{1,12}):([0-9]{1,15})")


class Position(NamedTuple):
    """Where a record is: a value, in the order of the log."""

    segment: int
    offset: int

    def __str__(self) -> str:
        return f"{self.segment}:{self.offset}"

    @classmethod
    def parse(cls, text: object) -> Position:
        """Return the position whose `str` is `text`; `OptionError` for any other text."""
        match = _POSITION.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            msg = f"{text!r} is not a position: expected SEGMENT:OFFSET, such as 3:1024"
            raise OptionError(msg)
        return cls(int(match[1]), int(match[2]))


def checked_position(value: object) -> Position:
    """Return a position that a caller passed; `OptionError` for anything else, such as a position's text."""
    if not isinstance(value, Position) or {type(number) for number in value} != {int}:
        msg = f"{value!r} is not a wal.Position: give one that the log gave; wal.Position.parse makes one from its text, such as '3:1024'"
        raise OptionError(msg)
    return value


class Header(NamedTuple):
    """The content of a segment's header; `check` is its checksum, `salt` is mixed into the checksums of all its groups."""

    log: bytes
    number: int
    epoch: int
    sequence: int
    previous: int
    end: int
    last: int
    check: int
    salt: int


def encode_header(log: bytes, number: int, epoch: int, sequence: int, previous: tuple[int, int, int]) -> bytes:
    """Return the header of a segment after `previous`: its number, its length and its last checksum."""
    body = _HEADER.pack(MAGIC, VERSION, HEADER_BYTES, log, number, epoch, sequence, *previous)
    return body + _U64.pack(xxhash.xxh3_64_intdigest(body, seed=previous[2]))


def decode_header(data: bytes, path: str) -> Header | None:
    """Return the header, `None` if it is invalid. `DamagedState` if it has another version."""
    if len(data) < HEADER_BYTES or not data.startswith(MAGIC):
        return None
    _, version, _, log, number, epoch, sequence, *previous = _HEADER.unpack_from(data)
    if version != VERSION:
        msg = f"{path!r} has format version {version}, expected {VERSION}: use the Penstock that wrote it, or newer"
        raise DamagedState(msg)
    check = xxhash.xxh3_64_intdigest(data[: _HEADER.size], seed=previous[2])
    if _U64.unpack_from(data, _HEADER.size)[0] != check:
        return None
    before, end, last = previous
    return Header(log, number, epoch, sequence, before, end, last, check, xxhash.xxh3_64_intdigest(data[16:40]))


def is_newer(data: bytes) -> bool:
    """Tell whether this is the header of a later version; not if only the version is wrong, as after a flipped bit."""
    if len(data) < HEADER_BYTES or not data.startswith(MAGIC):
        return False
    version = _U32.unpack_from(data, len(MAGIC))[0]
    ours = MAGIC + _U32.pack(VERSION) + data[len(MAGIC) + _U32.size :]
    return version > VERSION and decode_header(ours, "") is None


def checksum(data: bytes | bytearray | memoryview, seed: int) -> int:
    """Return the checksum of a group with this seed."""
    return xxhash.xxh3_64_intdigest(data, seed=seed)


def group_bytes(records: int, size: int) -> int:
    """Return the length of a group of `records` records with `size` bytes in all."""
    return GROUP_BYTES_MIN + ENTRY_BYTES * records + size + -size % 8


def encode_group(
    records: Sequence[bytes], sizes: Sequence[int], sequence: int, durable: int, seed: int
) -> tuple[bytearray, int]:
    """Return a group and its checksum; `sizes` are the records' lengths. No Python statement runs per record."""
    size, count = sum(sizes), len(sizes)
    head = _GROUP.pack(group_bytes(count, size), RECORDS, 0, 0, sequence, durable, count, size)
    entries = array("I", _indexes(1 << count.bit_length())[: ENTRY_BYTES * count])
    entries[1::2] = array("I", struct.pack(f"<{count}I", *sizes))
    group = bytearray().join((head, entries, *records, _PADDING[size % 8], _NO_CHECK))
    check = checksum(memoryview(group)[:-CHECK_BYTES], seed)
    _U64.pack_into(group, len(group) - CHECK_BYTES, check)
    return group, check


@cache
def _indexes(count: int) -> bytes:
    """Return `count` entries of empty records."""
    return struct.pack(f"<{count}Q", *range(count))


@dataclass(slots=True)
class LogBatch:
    """A group that was read: `count` records from `sequence` on, in the segment from byte `at` to `end`."""

    segment: int
    at: int
    end: int
    kind: int
    flags: int
    sequence: int
    durable: int
    count: int
    check: int
    buffer: bytes
    start: int
    first: int = 0

    def rest(self, index: int) -> LogBatch:
        """Return the batch without its first `index` records."""
        if not index:
            return self
        return replace(self, sequence=self.sequence + index, count=self.count - index, first=self.first + index)

    @property
    def _all(self) -> int:
        """Return the number of records of the group, including those before `first`."""
        return self.first + self.count

    def records(self) -> list[bytes]:
        """Return the records."""
        buffer, entries = self.buffer, self.start + GROUP_HEAD_BYTES
        lengths = struct.unpack_from(f"<{2 * self._all}I", buffer, entries)[1::2]
        bounds = accumulate(lengths, initial=entries + ENTRY_BYTES * self._all)
        return [buffer[start:end] for start, end in islice(pairwise(bounds), self.first, None)]

    def array(self) -> pa.LargeBinaryArray:
        """Return the records as an Arrow array, without a copy."""
        import numpy as np
        import pyarrow as pa

        entries = self.start + GROUP_HEAD_BYTES
        bounds = np.full(self._all + 1, entries + ENTRY_BYTES * self._all, dtype=np.int64)
        bounds[1:] += np.cumsum(np.frombuffer(self.buffer, "<u4", 2 * self._all, entries)[1::2], dtype=np.int64)
        offsets = pa.py_buffer(bounds[self.first :])
        return pa.Array.from_buffers(pa.large_binary(), self.count, [None, offsets, pa.py_buffer(self.buffer)])

    def position(self, index: int) -> Position:
        """Return the position of a record of the batch."""
        return Position(self.segment, self.at + GROUP_HEAD_BYTES + ENTRY_BYTES * (self.first + index))


def group_length(buffer: bytes, start: int) -> int:
    """Return the length that the group at `start` claims, 0 if no group can have that length."""
    (length,) = struct.unpack_from("<I", buffer, start)
    return length if length >= GROUP_BYTES_MIN and not length % 8 else 0


def decode_group(header: Header, at: int, buffer: bytes, start: int, length: int) -> LogBatch | None:
    """Return the group of this length at `start` of the buffer (`at` in the segment), `None` if it is invalid.

    The buffer must include the 8 bytes before it.
    """
    end = start + length
    (before,) = _U64.unpack_from(buffer, start - CHECK_BYTES)
    (check,) = _U64.unpack_from(buffer, end - CHECK_BYTES)
    body = memoryview(buffer)[start : end - CHECK_BYTES]
    if xxhash.xxh3_64_intdigest(body, seed=before ^ header.salt) != check:
        return None
    _, kind, flags, _, sequence, durable, count, _ = _GROUP.unpack_from(buffer, start)
    return LogBatch(header.number, at, at + length, kind, flags, sequence, durable, count, check, buffer, start)
