"""Where the rows of a table's file begin: each row group, stripe or block has a place, which does not depend on how the file is cut.

The column `metadataColumn` shows it. A row of the same file has the same place in a replay, in a run with another `splitSize`, and
when `penstock verify --source` reads the file again.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt


class Begins:
    """A queue: `TableFormat.rows` adds each piece before it yields the first of its rows, and the reader takes as many rows as came."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[int, int]] = deque()

    def add(self, begin: int, rows: int) -> None:
        """Add a piece of so many rows that begins at this byte."""
        self._pieces.append((begin, rows))

    def take(self, rows: int) -> npt.NDArray[np.int64]:
        """Return the begin of each of the next rows."""
        begins, counts = [], []
        while rows:
            begin, left = self._pieces.popleft()
            taken = min(left, rows)
            begins.append(begin)
            counts.append(taken)
            rows -= taken
            if left > taken:
                self._pieces.appendleft((begin, left - taken))
        return np.repeat(np.array(begins, np.int64), counts)
