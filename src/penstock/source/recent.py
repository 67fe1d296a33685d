"""Which files behind the cursor have been read: exact, and of constant size.

The cursor alone cannot tell a file that was read from one that appeared behind it later (a rename keeps the
modification time, so does `cp -p`). So the files read within `lateness` of the cursor are remembered. While the process
lives they are a plain set of keys. The *offset* must carry them over a restart without growing with their number:

- up to `_LISTED` keys are written out;
- more are written as an invertible Bloom look-up table (Goodrich and Mitzenmacher, 2011): each key is XORed, with a
  checksum and a count, into three cells. After a restart the keys of the files that are there *now* are taken out of
  the cells; what remains is the difference, which peels off key by key as long as it is small (about 45 of 90 cells):
  keys with count +1 were read and are gone, keys with count -1 are new.

Rejected: a Bloom filter (a false positive would lose a file), the list of all names (grows; 29 MB in Spark's own
source after 100,000 files), counts and sums a time slice (cannot say which file is new).

Caveat: when more files than that vanished or came while no process ran, the difference does not peel. Then the answer
is `None` and the caller must fall back on the storage's arrival times, and report what those cannot decide.
"""

from __future__ import annotations

import base64
import bisect
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.source.cursor import FileVersion

    Keys = np.ndarray[Any, Any]

NEVER_NS = -(1 << 63)  # before every time stamp
_LISTED = 60  # keys written out: 60 * 16 characters stay below 1 KB
_ROWS = 3
_CELLS = 30  # a row; 90 cells of 20 bytes are 2.4 KB in base64
_KEY = np.dtype([("low", "<u8"), ("high", "<u4")])  # 96 bits
_CELL = np.dtype([("count", "<i4"), ("low", "<u8"), ("high", "<u4"), ("check", "<u4")])


def key_of(file: FileVersion) -> bytes:
    """Return the key of one version of a file: 96 bits, so that 10^5 files collide once in 10^18 directories.

    A version is path, time and size: a file that is taken away and put back is the same, one that was written anew within
    a tick of a coarse clock is not.
    """
    return xxhash.xxh3_128_digest(file.order[1] + b"\0%d\0%d" % (file.modified_ns, file.size))[: _KEY.itemsize]


class Recent:
    """The keys of the files that were read, with the order they leave in. Adding and expiring costs O(what changes)."""

    def __init__(self) -> None:
        self._keys: list[tuple[tuple[int, bytes], bytes]] = []
        self._cells = np.zeros(_ROWS * _CELLS, _CELL)
        self._from_ns = NEVER_NS

    def __len__(self) -> int:
        """Return how many keys there are."""
        return len(self._keys)

    def __contains__(self, file: FileVersion) -> bool:
        """Tell whether this version of the file was read and is remembered."""
        item = (file.order, key_of(file))
        place = bisect.bisect_left(self._keys, item)
        return place < len(self._keys) and self._keys[place] == item

    def add(self, files: Collection[FileVersion]) -> None:
        """Remember that these files were read."""
        added = [(file.order, key_of(file)) for file in files]
        for item in added:
            bisect.insort(self._keys, item)
        _toggle(self._cells, _pack([key for _, key in added]), 1)

    def expire(self, horizon_ns: int) -> None:
        """Forget the files whose modification time is older than `horizon_ns`."""
        self._from_ns = max(self._from_ns, horizon_ns)
        count = bisect.bisect_left(self._keys, ((horizon_ns, b""), b""))
        _toggle(self._cells, _pack([key for _, key in self._keys[:count]]), -1)
        del self._keys[:count]

    def to_json(self) -> dict[str, Any]:
        """Return the set for the offset: at most 3 KB, whatever its size.

        `from` is the time from which on it is complete: `lateness` may be another one when the offset is read.
        """
        form: dict[str, Any] = {"from": self._from_ns}
        if len(self._keys) <= _LISTED:
            return form | {"keys": base64.b64encode(b"".join(sorted(key for _, key in self._keys))).decode()}
        return form | {"cells": base64.b64encode(self._cells.tobytes()).decode(), "count": len(self._keys)}


def difference(form: dict[str, Any], present: Collection[bytes]) -> tuple[set[bytes], set[bytes]] | None:
    """Return (keys in `present` that the set lacks, keys of the set not in `present`); `None` if that is undecidable.

    The answer is exact: a wrong one needs a collision of 96-bit keys or of all checksums on the way.
    """
    if "cells" not in form:
        raw = base64.b64decode(form["keys"])
        known = {raw[i : i + _KEY.itemsize] for i in range(0, len(raw), _KEY.itemsize)}
        return set(present) - known, known - set(present)
    cells = np.frombuffer(base64.b64decode(form["cells"]), _CELL).copy()
    _toggle(cells, _pack(list(present)), -1)
    return _peel(cells)


def _pack(keys: list[bytes]) -> Keys:
    return np.frombuffer(b"".join(keys), _KEY)


def _check(keys: Keys) -> Keys:
    """Return a checksum that is not linear in XOR, so that the sum of two keys does not pass for one."""
    mixed = (keys["low"] ^ (keys["high"].astype("<u8") << np.uint64(17))) * np.uint64(0x9E3779B97F4A7C15)
    check: Keys = (mixed >> np.uint64(32)).astype("<u4")
    return check


def _toggle(cells: np.ndarray[Any, Any], keys: Keys, sign: int) -> None:
    """Add the keys to the table (`sign` 1) or take them out (-1)."""
    if not len(keys):
        return
    check = _check(keys)
    for row in range(_ROWS):
        field = (keys["low"] >> np.uint64(20 * row)) & np.uint64(0xFFFFF)
        places = (field % np.uint64(_CELLS)).astype(np.intp) + row * _CELLS
        np.add.at(cells["count"], places, sign)
        np.bitwise_xor.at(cells["low"], places, keys["low"])
        np.bitwise_xor.at(cells["high"], places, keys["high"])
        np.bitwise_xor.at(cells["check"], places, check)


def _pure(cells: np.ndarray[Any, Any]) -> Keys:
    """Return the indexes of cells that hold exactly one key."""
    one = np.abs(cells["count"]) == 1
    return np.flatnonzero(one & (_check(cells) == cells["check"]))


def _peel(cells: np.ndarray[Any, Any]) -> tuple[set[bytes], set[bytes]] | None:
    new: set[bytes] = set()
    gone: set[bytes] = set()
    while len(pure := _pure(cells)):
        cell = cells[pure[0]]
        key, count = np.array([(cell["low"], cell["high"])], _KEY), int(cell["count"])
        (gone if count == 1 else new).add(key.tobytes())
        _toggle(cells, key, -count)
    if any(cells[name].any() for name in ("count", "low", "high", "check")):
        return None
    return new, gone
