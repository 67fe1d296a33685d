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
        self._pieces: deque[npt.NDArray[np.int64]] = deque()

    def add(self, begin: int, rows: int) -> None:
        """Add a piece of so many rows that begins at this byte."""
        self._pieces.append(np.broadcast_to(np.int64(begin), rows))

    def add_each(self, begins: range) -> None:
        """Add rows of which each begins at a byte of its own."""
        self._pieces.append(np.arange(begins.start, begins.stop, begins.step, dtype=np.int64))

    def take(self, rows: int) -> npt.NDArray[np.int64]:
        """Return the begin of each of the next rows."""
        taken = [np.empty(0, np.int64)]
        while rows:
            piece = self._pieces.popleft()
            taken.append(piece[:rows])
            if len(piece) > rows:
                self._pieces.appendleft(piece[rows:])
            rows -= len(taken[-1])
        return np.concatenate(taken)
