"""What the parts of one operator share."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from penstock.aio.outcome import ERROR, Counts, Failure, RowOutcome, described

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from penstock.aio.element import Element


class OperatorState:
    """What is waiting, how many places are taken, and whether the operator goes on. All of it on the loop's thread.

    `notify` is called when a thread that waits for outcomes should look. `fill`, which lets slots go on, is set by whoever has slots.
    """

    __slots__ = ("backlog", "closed", "counts", "failure", "fill", "held", "notify", "parked", "ready")

    def __init__(self, notify: Callable[[], None]) -> None:
        self.notify = notify
        self.fill: Callable[[], None] = lambda: None
        self.counts = Counts()
        self.failure: RowOutcome | None = None  # the first that ends the operator
        self.closed = False
        self.backlog: deque[Any] = deque()  # rows that are not admitted yet
        self.ready: deque[list[Element]] = deque()  # rows that are, and that any slot may take
        self.parked: deque[asyncio.Future[None]] = deque()  # slots without rows
        self.held = 0  # places

    def fail(self, outcome: RowOutcome) -> None:
        """End the operator with a failure; the first one counts."""
        self.failure = self.failure or outcome
        self.notify()

    def break_off(self, error: BaseException) -> None:
        """End the operator with what is no row's failure: a value of `key` or `share` that cannot be had, or a mistake of ours."""
        self.fail(RowOutcome(-1, None, [], Failure(ERROR, described(error), 0, 0, error)))

    def let_go(self) -> None:
        """Give a row's place free."""
        self.held -= 1
        if self.parked and (self.backlog or self.ready):
            self.fill()
