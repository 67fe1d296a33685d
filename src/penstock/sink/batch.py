"""The values that travel between driver and tasks in one batch of files: what the driver knew at the beginning, and what was done.

They are pickled into tasks and back, compared, and never written to disk.
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

DRIVER = -1  # the driver's own writer number: it assembles parts that are small when they end


@dataclass(frozen=True)
class Begun:
    """What the driver knew when a batch began; travels to the tasks and back in their results.

    Parts that are opened in this batch are encrypted to `recipients`. If many parts are open, only those of `open` that changed
    lately travel, and a task asks the ledger for its own parts. `taken_by` is that of the record (see `ledger.State`).
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
    taken_by: str = ""

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
        """The place where the part's rows go."""
        return Destination(self.bucket, self.name)


@dataclass(frozen=True)
class TaskResult:
    """What a task did.

    `closed` and `open` are its parts. If one of them continues an earlier open part of this writer, the place of that part is in
    `consumed`.

    `rows` counts the rows of the output; `aside` counts the rows that were set aside.

    `write`, `base`, `epoch` and `time_ns` come from the beginning of the batch: the attempt, the record that the batch began
    from, who may commit, and the one time that the whole batch uses. `final`: every open part ends now. `account` is what reports
    say about the task's rows, and `progress` is the times that it has seen. `ends` are the keys of open parts that a user has
    named: they end now. `kept` says for each part of `open` how many of its segments the ledger already has; they come before the
    segments given here.
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
        """Return the result without the segments that the ledger has, which need not travel.

        `before` are the writer's parts in the ledger.
        """
        known = {part.key: part for part in before}
        changes = [change(known.get(part.key), part) for part in self.open]
        return replace(self, open=tuple(one.part for one in changes), kept=tuple(one.kept for one in changes))

    def whole(self, head: OpenParts) -> TaskResult:
        """Return the result with the segments that `beyond` has left out; `head` are the parts that were open when the batch began."""
        if not any(self.kept):
            return self
        changes = zip(map(Change, self.open, self.kept), self.open, strict=True)
        return replace(self, open=tuple(one.applied(head.by_key.get(part.key)) for one, part in changes), kept=())

    def written_until(self, now_ns: int) -> TaskResult:
        """Return the result with what this batch wrote to open parts as written now: its rows may have come until the batch ended."""
        now_ns = max(now_ns, self.time_ns)
        written = (replace(part, written_ns=now_ns) if part.written_ns == self.time_ns else part for part in self.open)
        return replace(self, open=tuple(written))

    @property
    def records(self) -> int:
        """How many records the task has read and not set aside; `rows` counts what a transform made of them."""
        return self.account.rows or self.rows


@dataclass(frozen=True)
class Committed:
    """What a commit, a roll or a finish did."""

    number: int
    rows: int = 0
    files: tuple[FinishedFile, ...] = ()
    repeated: bool = False
    open: Sequence[OpenPart] = field(default=(), repr=False)
