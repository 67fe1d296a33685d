"""The pace of calls: so many a second."""

from __future__ import annotations

import asyncio


class Pace:
    """Turns that are spread evenly, and not saved up. Shared by all callers on one loop.

    A caller that is cancelled while it waits has used no turn: otherwise rows that time out there would take the turns
    of all that follow.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._next = 0.0
        self._line = asyncio.Lock()

    async def turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for the next turn."""
        async with self._line:
            now = loop.time()
            at = max(now, self._next)
            if at > now:
                await asyncio.sleep(at - now)
            self._next = at + 1 / self._rate
