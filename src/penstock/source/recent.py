"""Which files before the cursor are done: exact, and of bounded size.

The cursor alone cannot tell a file that was read from one that appeared before it later (a rename keeps the modification time, so does
`cp -p`). So the versions before the cursor that are *done* are remembered: those that were read, and those that were reported as too
late. While the process lives they are plain sets of keys. The *offset* must carry them over a restart without growing with their
number. A file is *older than `lateness`* if it is older than the cursor by more than `lateness`. The failures, and the rule that
prevents each:

1. *A file comes late.* It is renamed to a place before the cursor while no query runs. Rule: the keys of the files within `lateness` of
   the cursor that are there and done are in the offset: up to `_LISTED` of them written out, more as an invertible Bloom look-up table
   (Goodrich and Mitzenmacher, 2011): each key is XORed, with a checksum and a count, into three cells. After a restart the keys of the
   files that are there *now* are taken out of the cells. What remains is the difference, which peels off key by key as long as it is
   small (about 45 of 90 cells): keys with count +1 are done and gone, keys with count -1 are new.
2. *A file goes and comes back.* a, b, c are read; b is taken away; a batch is planned, from an offset that knows only the files that
   are there; b is put back with its time: it looks like a file that comes late, and is read twice. Rule: a file that is done and not
   there stays in the offset for as long as `lateness` asks, as a key with its time.
3. *It goes while no query runs.* After the restart its key peels off as gone. Rule: such a key is added to those of 2. For that the
   table also has the time of each key.
4. *Hundreds go.* A consumer removes files after they were read, so there are as many keys of 2 as files come within `lateness`. Rule:
   the newest `_AWAY` are written; the offset says from which time on it has them all (`gone_from`). A file that appears before the
   cursor with an older time is neither read nor counted as read: it is reported.
5. *More files come or go than a table can tell.* Rule: the answer is `None`, never a guess. The caller falls back on the storage's
   arrival times, and reports files for which those cannot decide. From then on every file that appears before that cursor is reported,
   because the keys of 2 are not known.
6. *A file that was read long ago is touched by `chmod`, `chown`, `ln`.* Its arrival time is new, so it looks like a file older than
   `lateness` that was moved in while no query ran. Rule: files that are there, done, and older than `lateness` have a table of their
   own. It is kept apart from the table of 1, so that thousands of old files may be deleted without making that table undecidable.

Rejected: a Bloom filter (a false positive would lose a file), the list of all names (grows; 29 MB in Spark's own source after 100,000
files), counts and sums for each slice of time (cannot say which file is new), arrival times alone (not every file system has them; a
directory that is moved in brings files with old ones; `chmod` changes them).

A directory that goes away and comes back in the life of one process is recognised however old its files are, up to `_OLDER_AWAY` of
them: these are remembered in memory only.
"""

from __future__ import annotations

import base64
import bisect
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.clock import SECOND_NS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from penstock.source.cursor import FileVersion

    Array = np.ndarray[Any, Any]

NEVER_NS = -(1 << 63)  # before every time stamp
_EVER_NS = (1 << 63) - 1  # after every time stamp
_LISTED = 60  # keys written out: 60 * 16 characters stay below 1 KB
_AWAY = 500  # of 16 bytes each, so 11 KB in base64 at most
_OLDER_AWAY = 100_000
_ROWS = 3
_CELLS = 30  # in each row; 90 cells of 20 bytes are 2.4 KB in base64
_KEY = np.dtype([("low", "<u8"), ("high", "<u4")])  # 96 bits
_CELL = np.dtype([("count", "<i4"), ("low", "<u8"), ("high", "<u4"), ("check", "<u4")])
_TIME = np.dtype("<u4")


class _Table:
    """An invertible Bloom look-up table of keys, with their times in seconds."""

    def __init__(self) -> None:
        self.cells = np.zeros(_ROWS * _CELLS, _CELL)
        self.times = np.zeros(_ROWS * _CELLS, _TIME)

    def toggle(self, keys: Collection[bytes], times: Collection[int] | None, sign: int) -> None:
        """Add keys (`sign` 1) or take them out (-1); `times` in nanoseconds, one for each key, or `None`."""
        if not keys:
            return
        packed = np.frombuffer(b"".join(keys), _KEY)
        columns = {name: packed[name].copy() for name in ("low", "high")} | {"check": _check(packed)}
        if times is not None:
            columns["time"] = _seconds(times)
        for row in range(_ROWS):
            field = (columns["low"] >> np.uint64(20 * row)) & np.uint64(0xFFFFF)
            places = (field % np.uint64(_CELLS)).astype(np.uint8) + np.uint8(row * _CELLS)
            # Keys are sorted by their cells and XORed run by run: XORing one key after the other takes five times as long.
            order = np.argsort(places, kind="stable")
            begins = np.flatnonzero(np.diff(places[order], prepend=np.uint8(255)))
            cells = places[order[begins]]
            self.cells["count"][cells] += sign * np.diff(begins, append=len(order)).astype(np.int32)
            for name, column in columns.items():
                table = self.times if name == "time" else self.cells[name]
                table[cells] ^= np.bitwise_xor.reduceat(column[order], begins)

    def peel(self, until_ns: int) -> tuple[set[bytes], dict[bytes, int]] | None:
        """Empty the table; return (keys with count -1, keys with count 1 and their times), `None` if it is too full."""
        new: set[bytes] = set()
        gone: dict[bytes, int] = {}
        while len(pure := self._pure()):
            cell, seconds = self.cells[pure[0]], int(self.times[pure[0]])
            key, count = np.array([(cell["low"], cell["high"])], _KEY).tobytes(), int(cell["count"])
            if count == 1:
                gone[key] = _time_ns(seconds, until_ns)
            else:
                new.add(key)
            self.toggle([key], [seconds * SECOND_NS], -count)
        if any(self.cells[name].any() for name in ("count", "low", "high", "check")):
            return None
        return new, gone

    def _pure(self) -> Array:
        """Return the indexes of cells that hold exactly one key."""
        single = np.abs(self.cells["count"]) == 1
        return np.flatnonzero(single & (_check(self.cells) == self.cells["check"]))


class Recent:
    """The versions before the cursor that are done, there or away. Adding and expiring costs O(what changes).

    Complete from `from_ns` on; the files that are *away* only from `away_from_ns` on, if that is later.
    """

    def __init__(
        self, from_ns: int = NEVER_NS, away: Mapping[bytes, int] | None = None, away_from_ns: int = NEVER_NS
    ) -> None:
        self._from_ns = from_ns
        self._away_from_ns = away_from_ns
        self._times = dict(away or {})  # times of all keys within `lateness`
        self._order = sorted((time_ns, key) for key, time_ns in self._times.items())
        # If false, `_order` lacks some keys, and is made when it is needed: for very many keys that takes memory and time.
        self._in_order = True
        self._oldest_ns = self._order[0][0] if self._order else _EVER_NS  # a lower bound of all times
        self._away = list(self._order)  # the part of `_order` that is not there
        self._gone = set(self._times)
        self._older: set[bytes] = set()  # older than `lateness`, and there
        self._older_away: dict[bytes, None] = {}
        self._table = _Table()
        self._older_table = _Table()

    def __len__(self) -> int:
        """Return how many keys within `lateness` there are."""
        return len(self._times)

    def __contains__(self, file: FileVersion) -> bool:
        """Tell whether this version of the file is remembered as done."""
        key = file.key
        return key in self._times or key in self._older or key in self._older_away

    def is_new(self, file: FileVersion) -> bool:
        """Tell whether a file that is not remembered is certainly new; otherwise it may have been done before, and be back."""
        return file.modified_ns >= max(self._from_ns, self._away_from_ns)

    def add(self, files: Iterable[FileVersion]) -> None:
        """Remember that these files are done and there, including files that are remembered already."""
        items = [(file.modified_ns, file.key) for file in files]
        known, gone, from_ns = self._times, self._gone, self._from_ns
        self._add_near([item for item in items if item[0] >= from_ns and (item[1] not in known or item[1] in gone)])
        self._add_older([key for time_ns, key in items if time_ns < from_ns and key not in self._older])

    def know(self, near: Mapping[bytes, int], older: Collection[bytes]) -> None:
        """Remember files, by their keys, as done and there, if nothing is remembered of them yet; `near` with their times."""
        self._times.update(near)
        self._in_order = not near and self._in_order
        self._oldest_ns = min(self._oldest_ns, min(near.values(), default=_EVER_NS))
        self._table.toggle(near.keys(), near.values(), 1)
        self._add_older(older)

    def _add_near(self, items: list[tuple[int, bytes]]) -> None:
        for _, key in items if self._gone else ():
            if key in self._gone:  # it is back; if it comes from an offset, its time is known to the second only
                self._gone.discard(key)
                self._sort()
                before = (self._times.pop(key), key)
                del self._away[bisect.bisect_left(self._away, before)]
                del self._order[bisect.bisect_left(self._order, before)]
        if not items:
            return
        if len(items) > len(self._times):
            self._in_order = False
        elif self._in_order:
            items.sort()
            is_last = self._order[-1] <= items[0]
            self._order += items
            if not is_last:
                self._order.sort()
        times = {key: time_ns for time_ns, key in items}
        self._oldest_ns = min(self._oldest_ns, *times.values())
        self._times.update(times)
        self._table.toggle(times.keys(), times.values(), 1)

    def _sort(self) -> None:
        if not self._in_order:
            self._order = sorted((time_ns, key) for key, time_ns in self._times.items())
            self._in_order = True

    def _add_older(self, keys: Collection[bytes]) -> None:
        self._older.update(keys)
        for key in keys if self._older_away else ():
            self._older_away.pop(key, None)
        self._older_table.toggle(keys, None, 1)

    def leave(self, files: Iterable[FileVersion]) -> None:
        """Remember that these files are not there any more; files that are not done are ignored."""
        near: list[tuple[int, bytes]] = []
        older: list[bytes] = []
        for file in files:
            item = file.modified_ns, file.key
            if item[1] in self._times and item[1] not in self._gone:
                near.append(item)
            elif item[1] in self._older:
                older.append(item[1])
        for item in near:
            self._gone.add(item[1])
            bisect.insort(self._away, item)
        self._older.difference_update(older)
        self._keep_away(older)
        _toggle(self._table, near, -1)
        self._older_table.toggle(older, None, -1)

    def expire(self, horizon_ns: int) -> None:
        """Count files whose modification time is older than `horizon_ns` as older than `lateness`."""
        self._from_ns = max(self._from_ns, horizon_ns)
        if self._from_ns <= self._oldest_ns:
            return
        self._sort()
        count = bisect.bisect_left(self._order, (self._from_ns, b""))
        still_there = [item for item in self._order[:count] if item[1] not in self._gone]
        for _, key in self._order[:count]:
            del self._times[key]
        away = bisect.bisect_left(self._away, (self._from_ns, b""))
        self._gone.difference_update(key for _, key in self._away[:away])
        self._keep_away(key for _, key in self._away[:away])
        del self._order[:count], self._away[:away]
        self._oldest_ns = self._order[0][0] if self._order else _EVER_NS
        _toggle(self._table, still_there, -1)
        self._add_older([key for _, key in still_there])

    def _keep_away(self, keys: Iterable[bytes]) -> None:
        """Remember, in this process only, the latest of the files that are away and older than `lateness`."""
        self._older_away.update(dict.fromkeys(keys))
        for key in list(islice(self._older_away, max(len(self._older_away) - _OLDER_AWAY, 0))):
            del self._older_away[key]

    def to_json(self) -> dict[str, Any]:
        """Return what the offset keeps: at most 6 KB, and 22 bytes for each of up to `_AWAY` files that are away.

        `from` is the time from which on it is complete: `lateness` may have another value when the offset is read.
        """
        form: dict[str, Any] = {"from": self._from_ns}
        form |= self._there_json()
        form["older"] = self._older_json()
        kept = self._away[-_AWAY:]
        dropped_ns = self._away[-_AWAY - 1][0] + 1 if len(self._away) > _AWAY else NEVER_NS
        if kept:
            seconds = _seconds([time_ns for time_ns, _ in kept])
            form["gone"] = _text(b"".join(key + time.tobytes() for (_, key), time in zip(kept, seconds, strict=True)))
        if (away_from_ns := max(self._away_from_ns, dropped_ns)) > self._from_ns:
            form["gone_from"] = away_from_ns
        return form

    def _there_json(self) -> dict[str, Any]:
        """Return the files that are there within `lateness`: their keys, or the table of them."""
        count = len(self._times) - len(self._gone)
        if count > _LISTED:
            return {
                "cells": _text(self._table.cells.tobytes()),
                "times": _text(self._table.times.tobytes()),
                "count": count,
            }
        keys = sorted(self._times.keys() - self._gone)
        return {"keys": _text(b"".join(keys)), "times": _text(_seconds([self._times[key] for key in keys]).tobytes())}

    def _older_json(self) -> dict[str, Any]:
        """Return the files that are there and older than `lateness`: their keys, or the table of them."""
        if len(self._older) > _LISTED:
            return {"cells": _text(self._older_table.cells.tobytes()), "count": len(self._older)}
        return {"keys": _text(b"".join(sorted(self._older)))}


@dataclass(frozen=True)
class Recalled:
    """What an offset says of the files that are there: `near` and `older` are the keys of those that are not done.

    `None` if that cannot be told. `away` has the keys, with their times, of files that are done and not there; complete from
    `away_from_ns` on.
    """

    near: set[bytes] | None
    older: set[bytes] | None
    away: dict[bytes, int]
    away_from_ns: int

    @property
    def new(self) -> set[bytes]:
        """Return the keys of all files that are known not to be done."""
        return (self.near or set()) | (self.older or set())


def recall(form: dict[str, Any], near: Mapping[bytes, int], older: Collection[bytes], until_ns: int) -> Recalled:
    """Return what the offset's `recent` says of the present files before its cursor, by their keys.

    `near` are those whose time is at least `form["from"]`, with their times, `older` the others; `until_ns` is the cursor's time. The
    answer is exact: a wrong answer needs a collision of 96-bit keys or of all checksums on the way.
    """
    width = _KEY.itemsize + _TIME.itemsize
    items = _cut(form.get("gone", ""), width)
    away = {item[: _KEY.itemsize]: _time_ns(int(np.frombuffer(item[-4:], _TIME)[0]), until_ns) for item in items}
    back = near.keys() & away.keys()
    away = {key: time_ns for key, time_ns in away.items() if key not in back}
    known = _difference(form, {key: time_ns for key, time_ns in near.items() if key not in back}, until_ns)
    difference = _difference(form["older"], dict.fromkeys(older, 0), until_ns) if "older" in form else None
    new_older = None if difference is None else difference[0]
    if known is None:
        return Recalled(None, new_older, away, until_ns + 1)
    return Recalled(known[0], new_older, away | known[1], form.get("gone_from", NEVER_NS))


def _difference(
    form: dict[str, Any], present: Mapping[bytes, int], until_ns: int
) -> tuple[set[bytes], dict[bytes, int]] | None:
    """Return (keys in `present` that the set lacks, keys of the set not in `present`); `None` if that is undecidable.

    Offsets of older versions have no times; such a key may be as young as `until_ns`.
    """
    times = np.frombuffer(base64.b64decode(form.get("times", "")), _TIME)
    if "cells" not in form:
        keys = _cut(form["keys"], _KEY.itemsize)
        known = dict.fromkeys(keys, until_ns)
        known.update((key, _time_ns(int(seconds), until_ns)) for key, seconds in zip(keys, times, strict=False))
        return present.keys() - known.keys(), {key: known[key] for key in known.keys() - present.keys()}
    table = _Table()
    table.cells = np.frombuffer(base64.b64decode(form["cells"]), _CELL).copy()
    if len(times):
        table.times = times.copy()
    table.toggle(present.keys(), present.values() if len(times) else None, -1)
    answer = table.peel(until_ns)
    if answer is None or not answer[0] <= present.keys():
        return None
    return answer if len(times) else (answer[0], dict.fromkeys(answer[1], until_ns))


def _toggle(table: _Table, items: list[tuple[int, bytes]], sign: int) -> None:
    table.toggle([key for _, key in items], [time_ns for time_ns, _ in items], sign)


def _check(keys: Array) -> Array:
    """Return a checksum that is not linear in XOR, so that the sum of two keys is not mistaken for one key."""
    mixed = (keys["low"] ^ (keys["high"].astype("<u8") << np.uint64(17))) * np.uint64(0x9E3779B97F4A7C15)
    check: Array = (mixed >> np.uint64(32)).astype("<u4")
    return check


def _seconds(times_ns: Collection[int]) -> Array:
    """Return times in whole seconds, modulo 2^32."""
    seconds: Array = (np.fromiter(times_ns, np.int64, len(times_ns)) // SECOND_NS & 0xFFFFFFFF).astype(_TIME)
    return seconds


def _time_ns(seconds: int, until_ns: int) -> int:
    """Return the latest time up to `until_ns` for which `_seconds` gives this number."""
    until = until_ns // SECOND_NS
    return min(until_ns, (until - (until - seconds) % (1 << 32)) * SECOND_NS + SECOND_NS - 1)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _cut(text: str, width: int) -> list[bytes]:
    data = base64.b64decode(text)
    return [data[at : at + width] for at in range(0, len(data), width)]
