"""Limits how much may be set aside before the run ends with an error.

The count begins with the sink and includes the batch that is about to be decided. If it passes a limit, the commit of that batch
fails, and nothing of the batch is visible. The same call continues from there once the limit is raised or the input is mended.
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
    """At most `lines` records and files, and at most `fraction` of all records; `None`: no limit."""

    lines: int | None = None
    fraction: float | None = None

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return self.lines is not None or self.fraction is not None

    def check(self, head: State, results: Sequence[TaskResult]) -> None:
        """Raise `TooMuchSetAside` if the last record's count and the tasks' reports together pass a limit."""
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
