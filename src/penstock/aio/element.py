"""A row inside the operator, and the slot that brings it to its outcome."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.aio.outcome import RowOutcome

if TYPE_CHECKING:
    from collections.abc import Hashable

    from penstock.aio.function import Call


class Element(RowOutcome):
    """A row inside the operator and, once it is `settled`, its outcome.

    It holds its place until it is emitted and none of its calls is on the wire.
    """

    __slots__ = ("began", "call", "decided", "error", "holds", "key", "settled", "share", "slot")

    __eq__ = object.__eq__  # equal only to itself
    __hash__ = object.__hash__

    def __init__(self, index: int, row: Any, began: float) -> None:  # noqa: ANN401 - the user's row
        self.index = index
        self.row = row
        self.failure = None
        self.attempts = 0
        self.began = began
        self.error: BaseException | None = None  # why it is called again; also None if its result is the reason
        self.decided = False  # settled, or `timed_out` is making its outcome
        self.settled = False  # `outputs` are there
        self.holds = 2  # reasons: not ended, not emitted
        self.key: Hashable = None  # while others of this key wait for this row; not while it waits itself
        self.share: Hashable = None  # while other rows take the result of this one; not while it takes theirs
        self.slot: Slot | None = None  # while it runs
        self.call: Call | None = None  # of its last attempt, until it is settled, if the function takes one


class Slot:
    """One coroutine of the operator, and the rows that it brings to their outcome at the moment: one row, or a batch."""

    __slots__ = ("calling", "cancelled", "expired", "flight", "grace", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.flight: list[Element] = []
        self.calling = False  # an attempt is under way; otherwise it waits for the next one
        self.cancelled = False  # and not revived since: a function may swallow a cancellation
        self.expired = False  # the time of the running attempt is over
        self.grace: asyncio.TimerHandle | None = None  # the time that an expired attempt still has to end

    def cancel(self) -> None:
        """Cancel what the slot waits for."""
        if self.task is not None:
            self.cancelled = True
            self.task.cancel()

    def end_grace(self) -> None:
        """Note that an expired attempt, if there is one, no longer needs time to end."""
        if self.grace is not None:
            self.grace.cancel()
            self.grace = None

    def revive(self) -> None:
        """Continue after a cancellation as if there had been none: the next call may use `asyncio.timeout`."""
        self.cancelled = False
        while self.task is not None and getattr(self.task, "cancelling", int)():  # Python 3.10 does not count
            self.task.uncancel()  # type: ignore[attr-defined]  # - Python 3.10 does not have it either

    async def shed(self) -> None:
        """Absorb a cancellation that is not ours: the function cancelled its own task, and returned before that had an effect."""
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        self.revive()
