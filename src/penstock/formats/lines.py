r"""Where records begin in bytes, for formats whose records are lines.

A file is read in byte ranges by tasks that know nothing of each other, so one rule must give every record to exactly
one of them: **a range [start, end) owns the records that begin in it.** A record begins at 0 (behind a UTF-8 byte order
mark, which is not data, but still at 0 for this rule) or right behind a separator; nothing begins at the end of the
file.

Everything here follows from one function, `record_at`: the first place at or behind a position where a record begins.
It depends on the bytes around the position only, not on who asks, so the range [start, end) is the bytes
[record_at(start), record_at(end)), and for any cuts 0 < a < b < ... < size these pieces lie edge to edge: no record is
lost, doubled or cut. That holds because

- separators are looked for in bytes, never in characters: a cut inside a UTF-8 sequence is a cut inside a record like
  any other;
- with `sep=None` (Spark's default) `\n`, `\r\n` and a lone `\r` each end a record. One byte to the left and one to the
  right of a position decide it: behind `\r` a record begins, unless `\n` follows, which then belongs to the same
  separator;
- with a separator of several bytes, those that begin before the position and end at or behind it are found by looking
  `len(sep) - 1` bytes to the left. If the separator can overlap itself (`\n\n` in `\n\n\n`), which occurrences count
  depends on what is further left; then we go left to an occurrence that none overlaps, which counts surely, and from
  there to the right.

Searching is `bytes.find` and `bytes.rfind` (one `memchr` over megabytes), not a loop over records. Memory is one block,
or one record if that is longer: records above `record_bytes_max` are refused, not attempted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import BadRecord, FileChanged
from penstock.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt

    Read = Callable[[int, int], bytes]

BOM = b"\xef\xbb\xbf"
BLOCK_BYTES = 8 << 20
RECORD_BYTES_MAX = 1 << 30
_PEEK_BYTES = 64 << 10
_LF, _CR = 10, 13


def blocks(
    read: Read,
    size: int,
    start: int,
    end: int,
    *,
    sep: bytes | None,
    block_bytes: int = BLOCK_BYTES,
    record_bytes_max: int = RECORD_BYTES_MAX,
) -> Iterator[tuple[int, bytes]]:
    """Yield (file offset, bytes of whole records) of the records that begin in [start, end), in order, edge to edge.

    `read(offset, length)` returns that many bytes, fewer only at the end of the file; `size` is the planned size,
    nothing behind it is read. Blocks are of about `block_bytes`, larger for a longer record. Only the last block of a
    file can lack its last separator.

    Raises `FileChanged` when the file ends before `size`, `BadRecord` with the offset of a record above
    `record_bytes_max`.
    """
    if start == 0 and end >= size and size <= block_bytes:
        yield from _at_once(read, size)
        return
    begin = record_at(read, size, start, end, sep=sep)
    if begin is None:
        return
    stop = record_at(read, size, end, size, sep=sep)
    stop = size if stop is None else stop
    last = _rule(sep).last
    if sep is None or len(sep) == 1:
        yield from _measured(read, begin, stop, last, block_bytes, record_bytes_max)
        return
    chunks = reads(read, begin, stop, block_bytes)
    yield from assembled(chunks, begin, last, block_bytes=block_bytes, record_bytes_max=record_bytes_max)


def _measured(
    read: Read, begin: int, stop: int, last: Callable[[bytes], int], block_bytes: int, record_bytes_max: int
) -> Iterator[tuple[int, bytes]]:
    """Yield the blocks of [begin, stop), both at a record, each read by one call that ends where a record ends.

    So no byte is copied to be cut off or joined again. Where to end is seen in a small window, read before. That takes
    a separator of which a window shows each one, wherever it begins.
    """
    wanted = block_bytes
    while begin < stop:
        target = min(begin + wanted, stop)
        cut = target if target == stop else _last_begin(read, begin, target, last)
        if cut > begin:
            yield begin, _all_of(read, begin, cut)
            begin, wanted = cut, block_bytes
        elif wanted > record_bytes_max:
            raise too_long(begin, record_bytes_max)
        else:
            wanted = min(2 * wanted, record_bytes_max + 1)


def _last_begin(read: Read, begin: int, target: int, last: Callable[[bytes], int]) -> int:
    """Return where the last record begins that is seen to begin in (begin, target]; `begin` if there is none."""
    window = _PEEK_BYTES
    while True:
        start = max(target - window, begin)
        found = last(_all_of(read, start, target))
        if found or start == begin:
            return start + found
        window *= 16


def _all_of(read: Read, start: int, end: int) -> bytes:
    return b"".join(reads(read, start, end, end - start))


def _at_once(read: Read, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield all of a small file at the cost of one read."""
    data = _all_of(read, 0, size)
    begin = len(BOM) if data.startswith(BOM) else 0
    if begin < size:
        yield begin, data[begin:]


def stream_blocks(
    chunks: Iterable[bytes],
    *,
    sep: bytes | None,
    block_bytes: int = BLOCK_BYTES,
    record_bytes_max: int = RECORD_BYTES_MAX,
) -> Iterator[tuple[int, bytes]]:
    """Yield blocks as `blocks` does, of a whole file that comes as a stream; offsets are in what the stream holds.

    Raises `BadRecord` for a record above `record_bytes_max`, and what `chunks` raises.
    """
    offset, rest = without_bom(chunks)
    last = _rule(sep).last
    yield from assembled(rest, offset, last, block_bytes=block_bytes, record_bytes_max=record_bytes_max)


def record_at(read: Read, size: int, position: int, limit: int, *, sep: bytes | None) -> int | None:
    """Return the first offset in [position, limit) at which a record begins, or None.

    Behind a byte order mark the record that begins at 0 is found at 3, for `position` 0 only and whatever the limit.
    """
    limit = min(limit, size)
    if position >= limit:
        return None
    if position == 0:
        return _first(read, size)
    rule = _rule(sep)
    base = rule.anchor(read, position)
    data, wanted = b"", position - base + _PEEK_BYTES
    while True:
        more = next(reads(read, base + len(data), min(base + len(data) + wanted, size), wanted))
        data += more
        found = rule.find(data, position - base, final=base + len(data) == size)
        if found >= 0:
            return base + found if base + found < limit else None
        if base + len(data) >= limit:
            return None
        dropped = len(data) - rule.kept
        if base + dropped >= position:
            data, base = data[dropped:], base + dropped
        wanted = min(2 * wanted, BLOCK_BYTES)


def record_starts(block: bytes, *, sep: bytes | None) -> npt.NDArray[np.int64]:
    """Return the offset in `block`, which begins a record, of each record in it."""
    if not block:
        return np.zeros(0, np.int64)
    starts = np.concatenate((np.zeros(1, np.int64), _rule(sep).ends(block)))
    return starts[starts < len(block)]


def not_blank(block: bytes, starts: npt.NDArray[np.int64], white: bytes) -> npt.NDArray[np.int64]:
    """Return those `starts` of records whose record has a byte that is not in `white`."""
    if not len(starts):
        return starts
    filled = ~np.isin(np.frombuffer(block, np.uint8), np.frombuffer(white, np.uint8))
    return starts[np.logical_or.reduceat(filled, starts)]


def reads(read: Read, start: int, end: int, chunk_bytes: int) -> Iterator[bytes]:
    """Yield the bytes [start, end) in pieces of at most `chunk_bytes`; `FileChanged` when the file ends earlier."""
    at = start
    while at < end:
        data = read(at, min(chunk_bytes, end - at))
        if not data:
            msg = (
                f"there is nothing at byte {at} of {end} or more planned: the file shrank since; put it back as it was"
            )
            raise FileChanged(msg)
        yield data
        at += len(data)


def without_bom(chunks: Iterable[bytes]) -> tuple[int, Iterator[bytes]]:
    """Return how many bytes a byte order mark takes at the start of a stream (0 or 3), and the stream behind it."""
    rest = iter(chunks)
    head = b""
    while len(head) < len(BOM):
        chunk = next(rest, None)
        if chunk is None:
            break
        head += chunk
    skipped = len(BOM) if head.startswith(BOM) else 0
    return skipped, _chained(head[skipped:], rest)


def assembled(
    chunks: Iterable[bytes],
    offset: int,
    last: Callable[[bytes], int],
    *,
    block_bytes: int,
    record_bytes_max: int,
) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, whole records) blocks of at least `block_bytes` of a stream of records that begins at `offset`.

    `last(data)`, with data that begins at a record, returns where the last record that is known to begin in it begins,
    at most `len(data)`; 0 if no other than the first is known. What is behind the last separator of the stream is its
    last record.
    """
    held: list[bytes] = []
    held_bytes, wanted_bytes = 0, block_bytes
    for chunk in chunks:
        held.append(chunk)
        held_bytes += len(chunk)
        if held_bytes < wanted_bytes:
            continue
        data = b"".join(held)
        cut = last(data)
        if cut:
            yield offset, data[:cut]
        elif held_bytes > record_bytes_max:
            raise too_long(offset, record_bytes_max)
        offset += cut
        held, held_bytes = [data[cut:]], held_bytes - cut
        wanted_bytes = block_bytes if cut else min(2 * held_bytes, record_bytes_max + 1)
    data = b"".join(held)
    if held_bytes > record_bytes_max and not last(data):
        raise too_long(offset, record_bytes_max)
    if data:
        yield offset, data


def too_long(offset: int, record_bytes_max: int) -> BadRecord:
    """Return the error for a record at `offset` that is longer than allowed."""
    msg = (
        f"found a record of more than {format_size(record_bytes_max)}, expected a separator before that; "
        "is lineSep (or a quote of csv) what the file has?"
    )
    return BadRecord(msg, offset=offset)


class _Newlines:
    r"""The rule of `sep=None`: `\n`, `\r\n` and a lone `\r`."""

    kept = 1  # bytes at the end of what was searched in vain that the next search needs

    @staticmethod
    def anchor(_read: Read, position: int) -> int:
        """Return where to begin a search for the first record at or behind `position`."""
        return position - 1

    @staticmethod
    def find(data: bytes, position: int, *, final: bool) -> int:
        """Return where in `data`, which begins at an anchor, the first record from `position` on begins, or -1."""
        begin = max(position - 1, 0)
        feed = data.find(b"\n", begin)
        lone = data.find(b"\r", begin, feed if feed >= 0 else len(data))
        if lone < 0 or lone + 1 == feed:
            return feed + 1 if feed >= 0 else -1
        return -1 if lone + 1 == len(data) and not final else lone + 1

    @staticmethod
    def last(data: bytes) -> int:
        """Return where the last record begins that surely begins in `data` behind its first one, or 0."""
        lone = data.rfind(b"\r", 0, len(data) - 1)
        feed = data.rfind(b"\n", max(lone, 0))
        return max(lone, feed) + 1

    @staticmethod
    def ends(block: bytes) -> npt.NDArray[np.int64]:
        """Return the offset behind each separator of `block`."""
        codes = np.frombuffer(block, np.uint8)
        hit = codes == _LF
        if b"\r" in block:
            lone = codes == _CR
            lone[:-1] &= codes[1:] != _LF
            hit |= lone
        return np.flatnonzero(hit).astype(np.int64) + 1


class _Separator:
    """The rule of a fixed separator: its occurrences from left to right, none overlapping one that counts."""

    def __init__(self, sep: bytes) -> None:
        self.sep = sep
        self.kept = len(sep) - 1
        self._overlaps = any(sep.startswith(sep[length:]) for length in range(1, len(sep)))

    def anchor(self, read: Read, position: int) -> int:
        """Return a place, far enough in front of `position`, in which no separator lies across."""
        back = len(self.sep)
        while self._overlaps and back < position:
            back = min(64 * back, position)
            window = read(position - back, back)
            found = self._uncrossed(window, back - len(self.sep))
            if found >= self.kept:
                return position - back + found
        return max(position - back, 0)

    def find(self, data: bytes, position: int, *, final: bool) -> int:  # noqa: ARG002 - nothing behind decides
        """Return where in `data`, which begins at an anchor, the first record from `position` on begins, or -1."""
        size = len(self.sep)
        found = data.find(self.sep)
        while 0 <= found < position - size:
            found = data.find(self.sep, found + size)
        return found + size if found >= 0 else -1

    def last(self, data: bytes) -> int:
        """Return where the last record begins that surely begins in `data` behind its first one, or 0."""
        found = data.rfind(self.sep)
        if found < 0:
            return 0
        if self._overlaps:
            found = self._last_from(data, self._uncrossed(data, found))
        return found + len(self.sep)

    def ends(self, block: bytes) -> npt.NDArray[np.int64]:
        """Return the offset behind each separator of `block`."""
        lengths = np.fromiter(map(len, block.split(self.sep)), np.int64)
        return np.cumsum(lengths[:-1] + len(self.sep))

    def _uncrossed(self, data: bytes, at: int) -> int:
        """Return the last place up to `at` that no separator lies across; below `kept`, bytes to the left decide."""
        while at > 0:
            crossing = data.find(self.sep, max(at - self.kept, 0), at + self.kept)
            if crossing < 0:
                break
            at = crossing
        return at

    def _last_from(self, data: bytes, at: int) -> int:
        found = at
        while at >= 0:
            found, at = at, data.find(self.sep, at + len(self.sep))
        return found


def _rule(sep: bytes | None) -> _Newlines | _Separator:
    return _Newlines() if sep is None else _Separator(sep)


def _first(read: Read, size: int) -> int | None:
    """Return where the first record of a file begins, if there is one."""
    begin = len(BOM) if read(0, min(len(BOM), size)) == BOM else 0
    return begin if begin < size else None


def _chained(head: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if head:
        yield head
    yield from rest
