"""Rows that wait for another row: one of the same key, which has its turn first, or one with the same values, whose result they share."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from penstock.aio.commons import Kept
    from penstock.aio.element import Element
    from penstock.aio.state import OperatorState


class Queues:
    """The queues of one operator. `key_of` and `share_of` map a row to a hashable value."""

    def __init__(
        self,
        state: OperatorState,
        key_of: Callable[[Any], Hashable] | None,
        share_of: Callable[[Any], Hashable] | None,
        kept: Kept | None,
    ) -> None:
        self._state = state
        self._key_of = key_of
        self._share_of = share_of
        self._kept = kept
        self.used = key_of is not None or share_of is not None
        self._keys: dict[Hashable, deque[Element]] = {}
        self._shares: dict[Hashable, deque[Element]] = {}

    def kept_for(self, element: Element, now: float) -> list[tuple[Any, ...]] | None:
        """Return the outputs of an earlier call for these values; None if none are kept."""
        if self._kept is None or self._share_of is None:
            return None
        return self._kept.get((self._share_of(element.row),), now)

    def waits(self, element: Element) -> bool:
        """Tell whether the row waits for another one of its key or with its values; if not, others now wait for it."""
        if self._share_of is not None:
            share = (self._share_of(element.row),)
            followers = self._shares.get(share)
            if followers is not None:
                followers.append(element)
                return True
            element.share = share
            self._shares[share] = deque()
        return self._waits_for_key(element)

    def _waits_for_key(self, element: Element) -> bool:
        if self._key_of is None:
            return False
        key = (self._key_of(element.row),)
        queue = self._keys.get(key)
        if queue is not None:
            place = len(queue)
            while place and queue[place - 1].index > element.index:
                place -= 1  # until now the row shared another one's call, and later rows came
            queue.insert(place, element)
            return True
        element.key = key
        self._keys[key] = deque()
        return False

    def followers(self, element: Element) -> Iterable[Element]:
        """Return the rows that wait for the result of this one; from now on none waits."""
        return self._shares.pop(element.share, ())

    def promote(self, element: Element) -> None:
        """Have the first of the rows that wait for this one's result called itself; the others wait for it."""
        followers = self._shares.pop(element.share, None)
        while followers:
            follower = followers.popleft()
            if follower.decided:
                continue
            follower.share = element.share
            self._shares[follower.share] = followers
            if not self._waits_for_key(follower):
                self._state.ready.append([follower])
                self._state.fill()
            return

    def ended(self, element: Element) -> None:
        """Note that no call of the row is on the wire any more; the next row of its key may go."""
        element.slot = None
        element.holds -= 1
        if not element.holds:
            self._state.let_go()
        if element.key is None:
            return
        queue = self._keys[element.key]
        while queue:
            following = queue.popleft()
            if not following.decided:
                following.key = element.key
                self._state.ready.append([following])
                self._state.fill()
                return
        del self._keys[element.key]
