"""Which of two readers of JSON lines is asked first: the one that needs less processor time per byte.

Both `dense` and `frame` accept records that one program has written. Which is faster depends on the records and on the
machine. On one machine `dense` read records of a number, a time, a fraction and three texts at 182 MB a processor
second and `frame` at 113; for texts in several alphabets it was 222 and 267. So both are timed on the first blocks, and
the slower one again from time to time. The result is kept for the process, by schema, because a task has only a few
blocks.

The clock changes only how fast rows are read, and never a row: each reader is right about whatever it accepts, and what
the first does not accept the second gets.
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

_MEASURED_BYTES = 256 << 10  # in smaller blocks the calls themselves take most of the time
_BLOCKS_BETWEEN = 64  # between two trials of the slower reader: data changes, even within a file


class Race:
    """What two readers have taken; `names` is the order in which they are asked while nothing is known."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._pace: dict[str, float] = {}
        self._blocks = 0

    def first(self) -> str:
        """Return the name of the reader to ask for the next block. Called once per block."""
        self._blocks += 1
        for name in self._names:
            if name not in self._pace:
                return name
        ahead, *others = sorted(self._names, key=self._pace.__getitem__)
        return others[0] if self._blocks % _BLOCKS_BETWEEN == 0 else ahead

    def ask(self, name: str, size: int, read: Callable[[], Rows | None]) -> Rows | None:
        """Return what a reader makes of a block of `size` bytes, and note how long it took; `None`: it does not accept the block."""
        began = clock.spent()
        rows = read()
        if size >= _MEASURED_BYTES:
            self._pace[name] = inf if rows is None else (clock.spent() - began) / size
        return rows


@lru_cache(maxsize=64)
def race_of(schema: pa.Schema, *names: str) -> Race:
    """Return the race that all readers of one schema share in this process. Shared between threads, which may measure the same twice."""
    del schema
    return Race(*names)
