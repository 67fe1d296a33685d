"""What travels between driver and tasks in one batch of files: what is known when it begins, what was done in it.

These are values: pickled into tasks and back, compared, and never written to disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from penstock.formats.account import Account
from penstock.formats.aside import Tally
from penstock.sink.openparts import Change, Destination, change
from penstock.sink.ready import Progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.sink.openparts import FinishedFile, Kind, OpenPart, OpenParts

DRIVER = -1  # the writer number of what the driver itself does: it assembles parts that are small when they end


@dataclass(frozen=True)
class Begun:
    """What the driver knew when a batch began; travels to the tasks and back in their results.

    `recipients` are those that parts are encrypted to that are opened in this batch. Of `open` only what changed lately travels, where
    there are many: a task asks the ledger for its own.
    """

    write: str
    base: int
    epoch: int
    time_ns: int
    ratio: float
    done: dict[str, int]
    open: OpenParts
    final: bool
    recipients: tuple[str, ...] = ()

    def has(self, query: str, batch: int) -> bool:
        """Tell whether the ledger has the batch already."""
        return batch <= self.done.get(query, -1)


@dataclass(frozen=True)
class ClosedPart:
    """A part that is complete: the staged file `staged` holds all of it, in its final form, synced."""

    bucket: str
    writer: int
    kind: Kind
    opened_ns: int
    first_batch: int
    last_batch: int
    host: str
    pid: int
    staged: str
    rows: int
    bytes: int
    digest: str
    arrow_bytes: int = 0
    attempt: int = 0
    name: str = ""

    @property
    def place(self) -> Destination:
        """Where its rows go."""
        return Destination(self.bucket, self.name)


@dataclass(frozen=True)
class TaskResult:
    """What a task did: `consumed` are the places of this writer whose earlier open part its parts continue.

    `rows` are those of the output; what was set aside beside them is counted in `aside`.

    `write`, `base`, `epoch` and `time_ns` are those of the batch's beginning: the attempt, the record it began from, who
    may commit, and the one time that all of the batch goes by. `final`: every part that is open ends now. `account`
    is what is to be told of the task's rows, `progress` what it saw of time. `ends` are open parts that somebody has named, by their
    keys: they end now. `kept` says of each part of `open` how many of the segments that the ledger has are in front of those here.
    """

    write: str
    base: int
    epoch: int
    time_ns: int
    final: bool
    writer: int
    closed: tuple[ClosedPart, ...] = ()
    open: tuple[OpenPart, ...] = ()
    consumed: tuple[Destination, ...] = ()
    rows: int = 0
    account: Account = field(default_factory=Account)
    aside: Tally = field(default_factory=Tally)
    progress: Progress = field(default_factory=Progress)
    ends: frozenset[tuple[str, str, int]] = frozenset()
    kept: tuple[int, ...] = ()

    def beyond(self, before: Sequence[OpenPart]) -> TaskResult:
        """Return the same less the segments that the ledger has, which need not travel; `before` are the parts of this writer there."""
        known = {part.key: part for part in before}
        changes = [change(known.get(part.key), part) for part in self.open]
        return replace(self, open=tuple(one.part for one in changes), kept=tuple(one.kept for one in changes))

    def whole(self, head: OpenParts) -> TaskResult:
        """Return the result with these segments; `head` are the parts that were open when the batch began."""
        if not any(self.kept):
            return self
        changes = zip(map(Change, self.open, self.kept), self.open, strict=True)
        return replace(self, open=tuple(one.applied(head.by_key.get(part.key)) for one, part in changes), kept=())

    @property
    def records(self) -> int:
        """How many records the task has read that were not set aside; what a transform made of them is `rows`."""
        return self.account.rows or self.rows


@dataclass(frozen=True)
class Committed:
    """What a commit, a roll or a finish did."""

    number: int
    rows: int = 0
    files: tuple[FinishedFile, ...] = ()
    repeated: bool = False
    open: Sequence[OpenPart] = field(default=(), repr=False)
