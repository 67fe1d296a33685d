"""When a call is made again, and after how long."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock.errors import OptionError

_Errors: TypeAlias = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]


@dataclass(frozen=True)
class Retry:
    """How often a call is made in all (`max_attempts`), and how long it waits before each time but the first.

    The wait is `delay` seconds, times `backoff` for each further one, at most `max_delay`; `jitter` makes it up to that
    fraction shorter, at random, so that calls that failed together do not come back together. `on` says which errors are
    worth another attempt (types, or a function of the error; default: every one, and an attempt that timed out),
    `on_result` which results are (a function of the list of outputs). When no attempt is left the last result stands.
    `OptionError` for values that make no sense.
    """

    max_attempts: int = 3
    delay: float = 0.1
    backoff: float = 2.0
    max_delay: float = 30.0
    jitter: float = 0.0
    on: _Errors = Exception
    on_result: Callable[[list[Any]], bool] | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        found = self.max_attempts
        _require(type(found) is int and found >= 1, "max_attempts", found, "1 or more, 3 for example")
        for name, least, most, expected in (
            ("delay", 0, math.nextafter(math.inf, 0), "seconds, 0.1 for example"),
            ("backoff", 1, math.nextafter(math.inf, 0), "a factor of 1 or more, 2.0 for example"),
            ("max_delay", 0, math.inf, "seconds, 30 for example"),
            ("jitter", 0, 1, "a fraction from 0 to 1, 0.2 for example"),
        ):
            found = getattr(self, name)
            number = isinstance(found, (int, float)) and not isinstance(found, bool)
            _require(number and least <= found <= most, name, found, expected)
        kinds = self.on if isinstance(self.on, tuple) else (self.on,)
        typed = bool(kinds) and all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds)
        _require(typed or _is_predicate(self.on), "on", self.on, "types of errors, or a function of the error")
        _require(
            self.on_result is None or _is_predicate(self.on_result),
            "on_result",
            self.on_result,
            "a function of the list of outputs",
        )

    def after_error(self, attempts: int, error: BaseException) -> bool:
        """Tell whether a call that failed `attempts` times is made again."""
        if attempts >= self.max_attempts:
            return False
        if isinstance(self.on, (type, tuple)):
            return isinstance(error, self.on)
        return self.on(error)

    def after_result(self, attempts: int, outputs: list[Any]) -> bool:
        """Tell whether a call with this result is made again."""
        return self.on_result is not None and attempts < self.max_attempts and self.on_result(outputs)

    def pause(self, attempts: int) -> float:
        """Return the seconds to wait after attempt number `attempts`."""
        try:
            wait = min(self.delay * self.backoff ** (attempts - 1), self.max_delay)
        except OverflowError:  # after a thousand attempts the factor is more than a number can be
            wait = self.max_delay if self.delay else 0.0
        return wait * (1 - self.jitter * random.random())  # noqa: S311 - spread, not secrecy


def _is_predicate(found: object) -> bool:
    return callable(found) and not isinstance(found, type) and not inspect.iscoroutinefunction(found)


def _require(holds: bool, name: str, found: object, expected: str) -> None:  # noqa: FBT001 - private, one condition
    if not holds:
        msg = f"retry: {name}={found!r}; expected {expected}"
        raise OptionError(msg)
