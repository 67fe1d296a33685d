"""What the calls of one function have in common in a worker process, over tasks and batches: pace, results kept, retries left."""

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
    """Results that are kept in each worker process for `ttl`, at most `size` of them; the one unused for longest goes first.

    `ttl` is seconds, or a duration such as "5m". A row takes the outputs of a call that ended well no longer ago than
    that, with the same values in the columns of `share`. Failures, and what `timed_out` or `on_error` made, are not kept, nor is a
    result that `Retry(on_result=...)` gave up on. `OptionError` for values that make no sense.
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
        """Return for how long a result is kept."""
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
        """Return the outputs that are kept for `key`, None if there are none, or they are too old."""
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
    """How many calls may be made again: tokens, of which each first attempt earns `share` and each further one costs one.

    Ten are there at first, so that little traffic is retried as it would be without a budget; at most a hundred are saved up.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._tokens = _TOKENS_AT_FIRST

    def earn(self, calls: int) -> None:
        """Count so many first attempts."""
        self._tokens = min(self._tokens + self._share * calls, _TOKENS_MAX)

    @property
    def has_one(self) -> bool:
        """Tell whether a further attempt can be paid for."""
        return self._tokens >= 1

    def spend(self) -> None:
        """Take what a further attempt costs."""
        self._tokens -= 1


class Wanted(NamedTuple):
    """What of it the settings ask for; part of what tells the runtimes of a process apart."""

    rate: float | None = None
    budget: float | None = None
    cache: Cache | None = None


class Commons:
    """What operators on one loop share; each is None where it was not asked for."""

    def __init__(self, wanted: Wanted) -> None:
        self.pace = Pace(wanted.rate) if wanted.rate else None
        self.budget = None if wanted.budget is None else Budget(wanted.budget)
        self.kept = Kept(wanted.cache) if wanted.cache else None
