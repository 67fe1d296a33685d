"""Which of two readers of JSON lines is asked first: the one that takes less of a processor for a byte.

Records that one program has written are taken by both `dense` and `frame`. Which is faster depends on the records and on the machine:
on one machine `dense` read those of a number, a time, a fraction and three texts at 182 MB a processor second and `frame` at 113, and of
texts in several alphabets it was 222 and 267. So both are timed on the first blocks, and each again from time to time.
What was found out is kept for the process, by the schema: a task has but a few blocks.

What a clock says here changes how fast rows are read, and never a row: each reader is right about whatever it takes, and what the first
leaves alone the second is asked for.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, TypeVar

from penstock import clock

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

Rows = TypeVar("Rows")

_MEASURED_BYTES = 256 << 10  # of smaller blocks most of the time is that of the calls
_BLOCKS_BETWEEN = 64  # from one look at the slower reader to the next: data changes, within a file too


class Race:
    """What two readers have taken; `names` in the order in which they are asked as long as nothing is known."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._pace: dict[str, float] = {}
        self._blocks = 0

    def first(self) -> str:
        """Return the name of the reader that is to be asked for the next block. Called once a block."""
        self._blocks += 1
        for name in self._names:
            if name not in self._pace:
                return name
        ahead, *behind = sorted(self._names, key=self._pace.__getitem__)
        return behind[0] if self._blocks % _BLOCKS_BETWEEN == 0 else ahead

    def ask(self, name: str, size: int, read: Callable[[], Rows | None]) -> Rows | None:
        """Return what a reader says to a block of so many bytes, and note how long it took; `None`: it does not take it."""
        began = clock.spent()
        rows = read()
        if size >= _MEASURED_BYTES:
            self._pace[name] = inf if rows is None else (clock.spent() - began) / size
        return rows


@lru_cache(maxsize=64)
def race_of(schema: pa.Schema, *names: str) -> Race:
    """Return the race of all readers of this process of one schema. Shared between threads, which may find out the same twice."""
    del schema
    return Race(*names)
