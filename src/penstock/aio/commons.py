"""State that the calls of one function share in a worker process, over tasks and batches: pace, kept results, retries left."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.aio.pace import Pace
from penstock.arguments import is_number, named, whole
from penstock.errors import OptionError
from penstock.units import parse_duration

if TYPE_CHECKING:
    from collections.abc import Hashable

_TOKENS_AT_FIRST = 10.0
_TOKENS_MAX = 100.0


@named
@dataclass(frozen=True)
class Cache:
    """Results that are kept in each worker process for `ttl`, at most `size` of them; the least recently used one goes first.

    `ttl` is seconds, or a duration such as "5m". A row gets the outputs of a call with the same values in the columns
    of `share`, if the call ended well no longer ago than that. Not kept are failures, results that `timed_out` or
    `on_error` made, and a result that `Retry(on_result=...)` gave up on. `OptionError` for values that make no sense.
    """

    ttl: float | str
    size: int = 10_000

    def __post_init__(self) -> None:
        """Check the values."""
        whole(self.size, name="cache: size", least=1, example=10_000)
        if not self.seconds > 0:
            msg = f"cache: ttl={self.ttl!r}; expected more than nothing, '5m' for example; without a cache leave it out"
            raise OptionError(msg)

    @property
    def seconds(self) -> float:
        """Return how long a result is kept, in seconds."""
        if isinstance(self.ttl, str):
            return parse_duration(self.ttl, name="cache: ttl")
        if not is_number(self.ttl):
            msg = f"cache: ttl={self.ttl!r}; expected seconds, or a duration such as '5m'"
            raise OptionError(msg)
        return float(self.ttl)


class Kept:
    """The results that a `Cache` keeps. Times are those of the loop."""

    def __init__(self, cache: Cache) -> None:
        self._seconds = cache.seconds
        self._size = cache.size
        self._results: OrderedDict[Hashable, tuple[float, list[tuple[Any, ...]]]] = OrderedDict()

    def get(self, key: Hashable, now: float) -> list[tuple[Any, ...]] | None:
        """Return the outputs that are kept for `key`; None if there are none, or they are too old."""
        result = self._results.get(key)
        if result is None:
            return None
        until, outputs = result
        if until <= now:
            del self._results[key]
            return None
        self._results.move_to_end(key)
        return outputs

    def put(self, key: Hashable, outputs: list[tuple[Any, ...]], now: float) -> None:
        """Keep the outputs of a call that ended now."""
        self._results[key] = now + self._seconds, outputs
        self._results.move_to_end(key)
        if len(self._results) > self._size:
            self._results.popitem(last=False)


class Budget:
    """How many calls may be made again: tokens. Each first attempt earns `share` of a token, and each further attempt costs one.

    There are ten at first, so that with little traffic calls are retried as without a budget; at most a hundred are
    saved up.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._tokens = _TOKENS_AT_FIRST

    def earn(self, calls: int) -> None:
        """Count this many first attempts."""
        self._tokens = min(self._tokens + self._share * calls, _TOKENS_MAX)

    @property
    def has_one(self) -> bool:
        """Tell whether there is a token for a further attempt."""
        return self._tokens >= 1

    def spend(self) -> None:
        """Spend the token for a further attempt."""
        self._tokens -= 1


class Wanted(NamedTuple):
    """Which parts of `Commons` the settings ask for; one of the things that distinguish the runtimes of a process."""

    rate: float | None = None
    budget: float | None = None
    cache: Cache | None = None


class Commons:
    """What operators on one loop share; each part is None if it was not asked for."""

    def __init__(self, wanted: Wanted) -> None:
        self.pace = Pace(wanted.rate) if wanted.rate else None
        self.budget = None if wanted.budget is None else Budget(wanted.budget)
        self.kept = Kept(wanted.cache) if wanted.cache else None
