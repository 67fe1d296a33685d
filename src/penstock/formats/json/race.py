"""Which of two readers of JSON lines is asked first: the one that needs less processor time per byte.

Both `dense` and `frame` accept records that one program has written. Which is faster depends on the records and on the
machine. On one machine `dense` read records of a number, a time, a fraction and three texts at 182 MB a processor
second and `frame` at 113; for texts in several alphabets it was 222 and 267. So both read a piece of the first block,
and a piece of a later one from time to time. Each reads it three times, and the shortest time counts: what a process does for
the first time takes longer than the difference (records of 20 bytes were read by the slower of the two in five
processes of six, when each was timed on a block of its own). The result is kept for the process, by schema, because a
task has only a few blocks.

The clock changes only how fast rows are read, and never a row: each reader is right about whatever it accepts, and what
the first does not accept the second gets.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, TypeVar

from penstock import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

Rows = TypeVar("Rows")

MEASURED_BYTES = 256 << 10  # in smaller pieces the calls themselves take most of the time
_ROUNDS = 3
_BLOCKS_BETWEEN = 64  # between two trials: data changes, even within a file


class Race:
    """What two readers have taken; `names` is the order in which they are asked while nothing is known."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._pace: dict[str, float] = {}
        self._blocks = 0

    def first(self, runs: Callable[[], Mapping[str, Callable[[], object | None]]] | None) -> str:
        """Return the name of the reader to ask for the next block. Called once per block.

        `runs` has a piece of the block read by each reader, which returns `None` if it does not accept it; it is `None`
        itself if the block is too small to tell anything.
        """
        if runs is not None:
            if self._blocks % _BLOCKS_BETWEEN == 0:
                self._try(runs())
            self._blocks += 1
        return min(self._names, key=lambda name: self._pace.get(name, 0.0))

    def _try(self, runs: Mapping[str, Callable[[], object | None]]) -> None:
        self._pace = dict.fromkeys(self._names, inf)
        for _ in range(_ROUNDS):
            for name, run in runs.items():
                began = clock.spent()
                if run() is not None:
                    self._pace[name] = min(self._pace[name], clock.spent() - began)

    def ask(self, name: str, read: Callable[[], Rows | None]) -> Rows | None:
        """Return what a reader makes of a block, and note if it does not accept it: `None`."""
        rows = read()
        if rows is None:
            self._pace[name] = inf
        return rows


@lru_cache(maxsize=64)
def race_of(schema: pa.Schema, *names: str) -> Race:
    """Return the race that all readers of one schema share in this process. Shared between threads, which may measure the same twice."""
    del schema
    return Race(*names)
