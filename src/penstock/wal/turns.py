"""Turns of the threads that wait until their records are durable: one of them writes for all."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Turns:
    """The turns of the threads of one writer. Used under the writer's `lock`, except the end of `leading`.

    `leading`: a thread is writing. `crowded`: a thread has waited since the last group was begun. Everything with a
    sequence number below `durable` is durable.
    """

    def __init__(self, lock: threading.Lock, durable: int) -> None:
        self._changed = threading.Condition(lock)
        self.leading = False
        self.crowded = False
        self.durable = durable

    def makes_durable(self, wanted: int, check: Callable[[], None]) -> bool:
        """Wait for the thread that is writing; tell whether that made everything before `wanted` durable. If not, no thread is writing.

        `check` raises if nothing can be made durable any more.
        """
        while self.durable < wanted:
            check()
            if not self.leading:
                return False
            self.wait()
        return True

    def wait(self) -> None:
        """Wait for the end of a turn."""
        self.crowded = True
        self._changed.wait()

    def hand_over(self, durable: int) -> None:
        """Note what is durable at the end of a turn; the waiting threads check again."""
        self.durable = max(self.durable, durable)
        if self.crowded:
            self.wake()

    def wake(self) -> None:
        """Have all waiting threads check again."""
        self._changed.notify_all()
