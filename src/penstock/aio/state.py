"""The state that the parts of one operator share."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from penstock.aio.outcome import ERROR, Counts, Failure, RowOutcome, described

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from penstock.aio.element import Element


class OperatorState:
    """Which rows wait, how many places are taken, and whether the operator goes on. Used on the loop's thread only.

    `notify` is called when a thread that waits for outcomes should look. `fill`, which wakes slots, is set by the owner
    of the slots.
    """

    __slots__ = ("backlog", "closed", "counts", "failure", "fill", "held", "notify", "parked", "ready")

    def __init__(self, notify: Callable[[], None]) -> None:
        self.notify = notify
        self.fill: Callable[[], None] = lambda: None
        self.counts = Counts()
        self.failure: RowOutcome | None = None  # the first failure, which ends the operator
        self.closed = False
        self.backlog: deque[Any] = deque()  # rows that are not admitted yet
        self.ready: deque[list[Element]] = deque()  # admitted rows, which any slot may take
        self.parked: deque[asyncio.Future[None]] = deque()  # slots without rows
        self.held = 0  # places

    def fail(self, outcome: RowOutcome) -> None:
        """End the operator with a failure; the first one counts."""
        self.failure = self.failure or outcome
        self.notify()

    def break_off(self, error: BaseException) -> None:
        """End the operator with an error that belongs to no row: a `key` or `share` that could not be computed, or a bug of ours."""
        self.fail(RowOutcome(-1, None, [], Failure(ERROR, described(error), 0, 0, error)))

    def let_go(self) -> None:
        """Release a row's place."""
        self.held -= 1
        if self.parked and (self.backlog or self.ready):
            self.fill()
