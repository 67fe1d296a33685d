"""Whose turn it is to write: of the threads that wait for their records to be durable one writes for all."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Turns:
    """The turns of the threads of one writer. All of it under the writer's `lock`, but for the end of `leading`.

    `leading` says that somebody is writing, `crowded` that somebody has waited since the last group was begun. What has a lower
    sequence number than `durable` is durable.
    """

    def __init__(self, lock: threading.Lock, durable: int) -> None:
        self._changed = threading.Condition(lock)
        self.leading = False
        self.crowded = False
        self.durable = durable

    def makes_durable(self, wanted: int, check: Callable[[], None]) -> bool:
        """Wait for whoever is writing; tell whether that made everything before `wanted` durable. If not, nobody is writing.

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
        """Say what is durable at the end of a turn; whoever waits looks again."""
        self.durable = max(self.durable, durable)
        if self.crowded:
            self.wake()

    def wake(self) -> None:
        """Have all that wait look again."""
        self._changed.notify_all()
