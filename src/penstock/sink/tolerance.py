"""How much may be set aside before it is not bad luck any more, and the run ends.

It is counted since the sink began, with the batch that is about to be decided: what is passed then fails the commit of that batch,
of which nothing is visible. The same call goes on from there, with the limit raised or the input mended.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from penstock.errors import TooMuchSetAside
from penstock.formats.aside import Tally

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.sink.batch import TaskResult
    from penstock.sink.ledger import State


@dataclass(frozen=True)
class Tolerance:
    """At most so many records and files, and at most this part of all records; `None`: any."""

    lines: int | None = None
    fraction: float | None = None

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return self.lines is not None or self.fraction is not None

    def check(self, head: State, results: Sequence[TaskResult]) -> None:
        """Raise `TooMuchSetAside` if the last record and what tasks report together pass a limit."""
        new = reduce(Tally.plus, (result.aside for result in results), Tally())
        count = head.aside.total + new.total
        read = (head.account.rows or head.total_rows) + sum(result.records for result in results) + count
        counted = f"{count:,} of {read:,} records and files are set aside since the sink began, {new.total:,} of them in this batch"
        if self.lines is not None and count > self.lines:
            self._raise(counted, f"maxBadRecords={self.lines}")
        if self.fraction is not None and count > self.fraction * read:
            self._raise(counted, f"maxBadFraction={self.fraction:g}")

    @staticmethod
    def _raise(counted: str, limit: str) -> None:
        msg = (
            f"{counted}, and {limit}; nothing of this batch is visible: look whether format, schema and encoding are what the files "
            "have, or raise the limit, and start again"
        )
        raise TooMuchSetAside(msg)
