r"""Cutting bytes into records, for formats whose records are lines.

A file is read in byte ranges by tasks that know nothing of each other, so one rule must give every record to exactly
one of them: **a range [start, end) owns the records that begin in it.** A record begins at 0 (a byte order mark there
is not data, but for this rule the record still begins at 0) or right after a separator; nothing begins at the end of
the file.

Everything here follows from one function, `record_at`: the first place at or after a position where a record begins. It
depends only on the bytes around the position, not on the caller. So the range [start, end) is the bytes
[record_at(start), record_at(end)), and for any cuts 0 < a < b < ... < size these pieces are adjacent: no record is
lost, doubled or cut. `separators` describes what happens if a separator lies across a position, and which one counts.

The search uses `bytes.find` and `bytes.rfind` (one `memchr` over megabytes), not a loop over records. Memory is bounded
by one block, or by one record if that is longer; records above `record_bytes_max` are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import BadRecord, FileChanged
from penstock.formats.separators import CR, LF, places, rule_of
from penstock.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt
    import pyarrow as pa

    from penstock.formats.separators import Read, SeparatorRule

BOM = b"\xef\xbb\xbf"
BLOCK_BYTES = 8 << 20
RECORD_BYTES_MAX = 1 << 30
NO_SEPARATOR = "; is lineSep (or a quote of csv) what the file has?"  # advice about a record without an end
_PEEK_BYTES = 64 << 10
_WHITE_STEPS = 16  # how many bytes of a record are checked one by one for anything but white space


def blocks(
    read: Read,
    size: int,
    start: int,
    end: int,
    *,
    sep: bytes | None,
    unit: str = "u1",
    bom: bytes = BOM,
    block_bytes: int = BLOCK_BYTES,
    record_bytes_max: int = RECORD_BYTES_MAX,
) -> Iterator[tuple[int, bytes]]:
    """Yield (file offset, bytes of whole records) of the records that begin in [start, end), in order, without gaps.

    `read(offset, length)` returns that many bytes, fewer only at the end of the file; `size` is the planned size, and
    nothing after it is read. `sep` ends a record in a file whose code units are of the type `unit`, and `bom` may stand
    at the beginning. Blocks have about `block_bytes`, more for a longer record. Only the last block of a file can lack
    its last separator.

    Raises `FileChanged` when the file ends before `size`, `BadRecord` with the offset of a record that is longer than
    `record_bytes_max`.
    """
    if start == 0 and end >= size and size <= block_bytes:
        yield from _at_once(read, size, bom)
        return
    begin = record_at(read, size, start, end, sep=sep, unit=unit, bom=bom)
    if begin is None:
        return
    stop = record_at(read, size, end, size, sep=sep, unit=unit, bom=bom)
    stop = size if stop is None else stop
    rule = rule_of(sep, unit)
    if rule.single:
        yield from _measured(read, begin, stop, rule, block_bytes, record_bytes_max)
        return
    chunks = reads(read, begin, stop, block_bytes)
    yield from assembled(chunks, begin, rule.last, block_bytes=block_bytes, record_bytes_max=record_bytes_max)


def _measured(
    read: Read, begin: int, stop: int, rule: SeparatorRule, block_bytes: int, record_bytes_max: int
) -> Iterator[tuple[int, bytes]]:
    """Yield the blocks of [begin, stop), both the start of a record; each is read by one call that ends where a record ends.

    So no byte is copied to be cut off or joined again. A small window, read before, shows where to end. That needs a
    separator for which a window shows every occurrence, wherever the window begins.
    """
    wanted = block_bytes
    while begin < stop:
        target = min(begin + wanted, stop)
        cut = target if target == stop else _last_begin(read, begin, target, rule)
        if cut > begin:
            yield begin, _all_of(read, begin, cut)
            begin, wanted = cut, block_bytes
        elif wanted > record_bytes_max:
            raise too_long(begin, record_bytes_max)
        else:
            wanted = min(2 * wanted, record_bytes_max + 1)


def _last_begin(read: Read, begin: int, target: int, rule: SeparatorRule) -> int:
    """Return where the last record begins that is known to begin in (begin, target]; `begin` if there is none."""
    window = _PEEK_BYTES
    while True:
        start = max(target - window, begin)
        start -= (start - begin) % rule.width
        inside = rule.last(_all_of(read, start, target))
        if inside or start == begin:
            return start + inside
        window *= 16


def _all_of(read: Read, start: int, end: int) -> bytes:
    data = read(start, end - start) if end > start else b""
    return data if len(data) == end - start else b"".join(reads(read, start, end, end - start))


class LineTail:
    """The end of a growing file, from the record at `begin` on, of which no whole record is known yet; see `families.Tail`.

    An LF may still follow a CR at the very end. If no separator is in the bytes up to `searched`, the next one can have only its first
    `kept` bytes there.
    """

    def __init__(self, begin: int, *, sep: bytes | None, unit: str = "u1") -> None:
        self.begin = self.searched = begin
        self._rule = rule_of(sep, unit)

    def ended(self, read: Read, size: int) -> int:
        """Return where the last record ends that surely ends within the first `size` bytes; `begin` if there is none."""
        rule = self._rule
        target = size - (size - self.begin) % rule.width
        if target <= self.searched:
            return self.begin
        start = max(self.searched - rule.kept, self.begin)
        end = _last_begin(read, start, target, rule) if rule.single else _last_after(read, start, target, rule)
        self.searched = target
        return self.begin if end == start else end


def _last_after(read: Read, start: int, target: int, rule: SeparatorRule) -> int:
    """Return what `_last_begin` does, for a rule by which earlier bytes decide; no separator begins before `start`."""
    at, end = start, start
    while at < target:
        upto = min(at + BLOCK_BYTES, target)
        cut = rule.last(_all_of(read, at, upto))
        if cut:
            at = end = at + cut
        elif upto == target:
            break
        else:
            at = upto - rule.kept
    return end


def _at_once(read: Read, size: int, bom: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield all of a small file with one read."""
    data = _all_of(read, 0, size)
    begin = len(bom) if data.startswith(bom) else 0
    if begin < size:
        yield begin, data[begin:]


def stream_blocks(
    chunks: Iterable[bytes],
    *,
    sep: bytes | None,
    unit: str = "u1",
    bom: bytes = BOM,
    block_bytes: int = BLOCK_BYTES,
    record_bytes_max: int = RECORD_BYTES_MAX,
) -> Iterator[tuple[int, bytes]]:
    """Yield blocks as `blocks` does, of a whole file that comes as a stream; offsets are in the stream's content.

    Raises `BadRecord` for a record above `record_bytes_max`, and what `chunks` raises.
    """
    offset, rest = without_bom(chunks, bom)
    last = rule_of(sep, unit).last
    yield from assembled(rest, offset, last, block_bytes=block_bytes, record_bytes_max=record_bytes_max)


def record_at(
    read: Read, size: int, position: int, limit: int, *, sep: bytes | None, unit: str = "u1", bom: bytes = BOM
) -> int | None:
    """Return the first offset in [position, limit) at which a record begins, or None.

    The record that begins at 0 is found after a byte order mark, if there is one; only for `position` 0, and whatever
    the limit.
    """
    rule = rule_of(sep, unit)
    limit = min(limit, size)
    if position == 0 and limit > 0:
        return _first(read, size, bom)
    position += -position % rule.width
    if position >= limit:
        return None
    base = rule.anchor(read, position)
    data, wanted = b"", position - base + _PEEK_BYTES
    while True:
        more = next(reads(read, base + len(data), min(base + len(data) + wanted, size), wanted))
        data += more
        final = base + len(data) == size
        inside = rule.find(data, position - base, final=final)
        if inside >= 0:
            return base + inside if base + inside < limit else None
        if final or base + len(data) - len(data) % rule.width >= limit:
            return None
        dropped = len(data) - rule.kept
        dropped -= dropped % rule.width
        if base + dropped >= position:
            data, base = data[dropped:], base + dropped
        wanted = min(2 * wanted, BLOCK_BYTES)


def record_starts(block: bytes, *, sep: bytes | None, unit: str = "u1") -> npt.NDArray[np.int64]:
    """Return the offset of each record in `block`, at whose start a record must begin."""
    if not block:
        return np.zeros(0, np.int64)
    starts = np.concatenate((np.zeros(1, np.int64), rule_of(sep, unit).ends(block)))
    return starts[starts < len(block)]


def value_ends(
    block: bytes, starts: npt.NDArray[np.int64], *, sep: bytes | None, unit: str = "u1"
) -> npt.NDArray[np.int64]:
    """Return where each record ends without its separator; `starts` are the starts of all records of `block`."""
    ends = np.append(starts[1:], len(block))[: len(starts)]
    width = np.dtype(unit).itemsize
    whole = len(block) % width == 0  # otherwise the last record ends with a part of a unit
    if sep is not None:
        ends[:-1] -= len(sep)
        ends[-1:] -= len(sep) * (whole & block.endswith(sep) & (ends[-1:] - starts[-1:] >= len(sep)))
        return ends
    codes = np.frombuffer(block, unit, len(block) // width)
    if not len(codes):
        return ends
    begins, after = starts // width, ends // width
    before = np.where(after - begins > 1, codes[after - 2], 0)
    widths = np.where(codes[after - 1] == LF, 1 + (before == CR), codes[after - 1] == CR)
    widths[-1:] *= whole
    ends -= widths * width
    return ends


def line_feeds(data: bytes | pa.Buffer) -> npt.NDArray[np.int64]:
    """Return the places of line feeds."""
    return places(data, b"\n")


def with_line_feeds(block: bytes, sep: bytes | None) -> bytes:
    """Return the block with each of its separators replaced by a line feed."""
    if sep is None:
        return block.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in block else block
    return block if sep == b"\n" else block.replace(sep, b"\n")


def not_blank(
    block: bytes, starts: npt.NDArray[np.int64], white: bytes, ends: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.int64]:
    """Return the `starts` of those records that contain a byte which is not in `white`.

    `ends` is where the records end, needed if separators are not white themselves.
    """
    codes = np.frombuffer(block, np.uint8)
    blank = np.isin(np.arange(256), np.frombuffer(white, np.uint8))
    closes = np.append(starts[1:], len(block))[: len(starts)] if ends is None else ends
    filled = np.zeros(len(starts), np.bool_)
    left, at = np.arange(len(starts)), starts
    for _ in range(_WHITE_STEPS):  # nearly all records begin with something else, or with little white space
        inside = at < closes[left]
        left, at = left[inside], at[inside]
        if not len(left):
            break
        is_white = blank[codes[at]]
        filled[left[~is_white]] = True
        left, at = left[is_white], at[is_white] + 1
    inside = at < closes[left]
    left, at = left[inside], at[inside]
    if len(left):
        bounds = np.column_stack((at, closes[left])).ravel()
        bounds = bounds[: len(bounds) - (bounds[-1] == len(block))]
        filled[left] = np.logical_or.reduceat(~blank[codes], bounds)[::2]
    return starts if filled.all() else starts[filled]


def reads(read: Read, start: int, end: int, chunk_bytes: int) -> Iterator[bytes]:
    """Yield the bytes [start, end) in pieces of at most `chunk_bytes`; `FileChanged` when the file ends earlier."""
    at = start
    while at < end:
        data = read(at, min(chunk_bytes, end - at))
        if not data:
            msg = f"there is nothing at byte {at} of {end} or more that were planned: the file has shrunk; put it back as it was"
            raise FileChanged(msg)
        yield data
        at += len(data)


def without_bom(chunks: Iterable[bytes], bom: bytes = BOM) -> tuple[int, Iterator[bytes]]:
    """Return the length of a byte order mark at the start of a stream (0: there is none), and the stream after it."""
    head, rest = begun(chunks, len(bom))
    skipped = len(bom) if head.startswith(bom) else 0
    return skipped, _chained(head[skipped:], rest)


def begun(chunks: Iterable[bytes], size: int) -> tuple[bytes, Iterator[bytes]]:
    """Return the first bytes of a stream, at least `size` if it has so many, and what follows them."""
    rest = iter(chunks)
    head = b""
    while len(head) < size and (chunk := next(rest, None)) is not None:
        head += chunk
    return head, rest


def assembled(
    chunks: Iterable[bytes],
    offset: int,
    last: Callable[[bytes], int],
    *,
    block_bytes: int,
    record_bytes_max: int,
) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, whole records) blocks of at least `block_bytes` of a stream of records that begins at `offset`.

    `data` begins with a record. `last(data)` returns where the last record that is known to begin in it begins, at most
    `len(data)`; 0 if only the first is known. Whatever follows the last separator of the stream is its last record.
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
    msg = f"found a record of more than {format_size(record_bytes_max)}, expected a separator before that{NO_SEPARATOR}"
    return BadRecord(msg, offset=offset)


def _first(read: Read, size: int, bom: bytes) -> int | None:
    """Return where the first record of a file begins, if there is one."""
    begin = len(bom) if bom and read(0, min(len(bom), size)) == bom else 0
    return begin if begin < size else None


def _chained(head: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if head:
        yield head
    yield from rest
