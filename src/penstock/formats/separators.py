r"""Separators: what ends a record, and how it is found. `lines` follows this rule at every position.

- Separators are searched for in bytes, never in characters: a cut inside a UTF-8 sequence is a cut inside a record like
  any other.
- With `sep=None` (Spark's default) `\n`, `\r\n` and a lone `\r` each end a record. One byte before and one byte after a
  position decide: a record begins after `\r`, unless `\n` follows, which then belongs to the same separator.
- With a separator of several bytes, those that begin before the position and end at or after it are found by reading
  `len(sep) - 1` bytes before it. If the separator can overlap itself (`\n\n` in `\n\n\n`), it depends on earlier bytes
  which occurrences count. Then the search goes back to an occurrence that no other overlaps, which surely counts, and
  forward from there.

Text whose code units have two or four bytes (`unit`, their NumPy type) follows the same rules, unit by unit: each unit
is first reduced to a byte, so no second implementation is needed. `charsets` says which encodings can be searched like
this.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    import pyarrow as pa

    Read = Callable[[int, int], bytes]

LF, CR = 10, 13
_SEEN_BYTES = 64 << 10  # of a block; they show how frequent the byte is
_BYTE_OF_BIT = np.uint64(0x01020304050607)  # multiplied by 2 ** (8 * n) it has n in its highest byte


def places(data: bytes | pa.Buffer, byte: bytes) -> npt.NDArray[np.int64]:
    """Return the places of a byte. If no eight bytes contain it twice, that takes two thirds of the time."""
    hits = np.frombuffer(data, np.uint8) == byte[0]
    # If it is more frequent than this, some eight bytes contain it twice.
    if 24 * np.count_nonzero(hits[:_SEEN_BYTES]) > min(len(hits), _SEEN_BYTES):
        return np.flatnonzero(hits)
    even = len(hits) - len(hits) % 8
    words = hits[:even].view("<u8")  # each of the eight bytes is 1 for a hit, otherwise 0
    hit_words = np.flatnonzero(words != 0)
    marked = words[hit_words]
    if (marked & (marked - np.uint64(1))).any():
        return np.flatnonzero(hits)
    inside = (marked * _BYTE_OF_BIT >> np.uint64(56)).astype(np.int64)
    return np.concatenate((hit_words * 8 + inside, np.flatnonzero(hits[even:]) + even))


class SeparatorRule(Protocol):
    """The rule for where records end. Positions and data begin at whole code units; searched data begins at an anchor or a record."""

    width: int
    """Bytes of a code unit."""
    kept: int
    """How many bytes from the end of an unsuccessful search the next search needs."""
    single: bool
    """Whether any piece of a file shows each separator inside it, wherever the piece begins."""

    def anchor(self, read: Read, position: int, /) -> int:
        """Return where to begin a search for the first record at or after `position`."""

    def find(self, data: bytes, position: int, *, final: bool) -> int:
        """Return where in `data`, which begins at an anchor, the first record from `position` on begins, or -1."""

    def last(self, data: bytes) -> int:
        """Return where the last record begins that surely begins in `data` after its first one, or 0."""

    def ends(self, block: bytes) -> npt.NDArray[np.int64]:
        """Return the offset after each separator of `block`."""


class _Newlines:
    r"""The rule of `sep=None`: `\n`, `\r\n` and a lone `\r`."""

    width = kept = 1
    single = True

    @staticmethod
    def anchor(_read: Read, position: int) -> int:
        """Return where to begin a search for the first record at or after `position`."""
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
        """Return where the last record begins that surely begins in `data` after its first one, or 0."""
        lone = data.rfind(b"\r", 0, len(data) - 1)
        feed = data.rfind(b"\n", max(lone, 0))
        return max(lone, feed) + 1

    @staticmethod
    def ends(block: bytes) -> npt.NDArray[np.int64]:
        """Return the offset after each separator of `block`."""
        codes = np.frombuffer(block, np.uint8)
        hit = codes == LF
        if b"\r" in block:
            lone = codes == CR
            lone[:-1] &= codes[1:] != LF
            hit |= lone
        return np.flatnonzero(hit).astype(np.int64) + 1


class _Separator:
    """The rule of a fixed separator: its occurrences from left to right, except those that overlap one that counts."""

    width = 1

    def __init__(self, sep: bytes) -> None:
        self.sep = sep
        self.kept = len(sep) - 1
        self.single = len(sep) == 1
        self._overlaps = any(sep.startswith(sep[length:]) for length in range(1, len(sep)))

    def anchor(self, read: Read, position: int) -> int:
        """Return a place, far enough before `position`, that is not inside a separator."""
        back = len(self.sep)
        while self._overlaps and back < position:
            back = min(64 * back, position)
            window = read(position - back, back)
            sure = self._uncrossed(window, back - len(self.sep))
            if sure >= self.kept:
                return position - back + sure
        return max(position - back, 0)

    def find(self, data: bytes, position: int, *, final: bool) -> int:  # noqa: ARG002 - later bytes do not matter
        """Return where in `data`, which begins at an anchor, the first record from `position` on begins, or -1."""
        size = len(self.sep)
        place = data.find(self.sep)
        while 0 <= place < position - size:
            place = data.find(self.sep, place + size)
        return place + size if place >= 0 else -1

    def last(self, data: bytes) -> int:
        """Return where the last record begins that surely begins in `data` after its first one, or 0."""
        place = data.rfind(self.sep)
        if place < 0:
            return 0
        if self._overlaps:
            place = self._last_from(data, self._uncrossed(data, place))
        return place + len(self.sep)

    def ends(self, block: bytes) -> npt.NDArray[np.int64]:
        """Return the offset after each separator of `block`."""
        if self.single:
            return places(block, self.sep) + 1
        lengths = np.fromiter(map(len, block.split(self.sep)), np.int64)
        return np.cumsum(lengths[:-1] + len(self.sep))

    def _uncrossed(self, data: bytes, at: int) -> int:
        """Return the last place up to `at` that is not inside a separator; below `kept`, earlier bytes would decide."""
        while at > 0:
            crossing = data.find(self.sep, max(at - self.kept, 0), at + self.kept)
            if crossing < 0:
                break
            at = crossing
        return at

    def _last_from(self, data: bytes, at: int) -> int:
        place = at
        while at >= 0:
            place, at = at, data.find(self.sep, at + len(self.sep))
        return place


class _Units:
    """The rule of wider code units: another rule applied to one byte for each unit, which is 0 for a unit that no separator has."""

    def __init__(self, sep: bytes | None, unit: str) -> None:
        self._type = np.dtype(unit)
        self.width = self._type.itemsize
        units = [LF, CR] if sep is None else np.frombuffer(sep, self._type).tolist()
        marks = {LF: LF, CR: CR} if sep is None else {value: mark for mark, value in enumerate(dict.fromkeys(units), 1)}
        self._marks = marks
        self._rule = _Newlines() if sep is None else _Separator(bytes(marks[value] for value in units))
        self.kept = self._rule.kept * self.width
        self.single = self._rule.single

    def anchor(self, read: Read, position: int) -> int:
        """See `SeparatorRule`."""

        def narrow(offset: int, length: int) -> bytes:
            return self._narrow(read(offset * self.width, length * self.width))

        return self._rule.anchor(narrow, position // self.width) * self.width

    def find(self, data: bytes, position: int, *, final: bool) -> int:
        """See `SeparatorRule`."""
        place = self._rule.find(self._narrow(data), position // self.width, final=final)
        return place * self.width if place >= 0 else -1

    def last(self, data: bytes) -> int:
        """See `SeparatorRule`."""
        return self._rule.last(self._narrow(data)) * self.width

    def ends(self, block: bytes) -> npt.NDArray[np.int64]:
        """See `SeparatorRule`."""
        return self._rule.ends(self._narrow(block)) * self.width

    def _narrow(self, data: bytes) -> bytes:
        codes = np.frombuffer(data, self._type, len(data) // self.width)
        narrow = np.zeros(len(codes), np.uint8)
        for value, mark in self._marks.items():
            narrow[codes == value] = mark
        return narrow.tobytes()


@lru_cache(maxsize=8)
def rule_of(sep: bytes | None, unit: str = "u1") -> SeparatorRule:
    """Return the rule of a separator, `None` for any kind of line break, in a file whose code units have the type `unit`."""
    if unit != "u1":
        return _Units(sep, unit)
    return _Newlines() if sep is None else _Separator(sep)
