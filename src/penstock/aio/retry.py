"""When a call is made again, and after how long."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock.arguments import check_arguments, check_done, is_number, named, whole
from penstock.errors import OptionError

_Errors: TypeAlias = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]

# Which numbers a field takes: its name, the least and the highest of them, and what is expected, in words.
_NUMBERS = (
    ("delay", 0, math.nextafter(math.inf, 0), "seconds, 0.1 for example"),
    ("backoff", 1, math.nextafter(math.inf, 0), "a factor of 1 or more, 2.0 for example"),
    ("max_delay", 0, math.inf, "seconds, 30 for example"),
    ("jitter", 0, 1, "a fraction from 0 to 1, 0.2 for example"),
)


@named
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
        whole(self.max_attempts, name="retry: max_attempts", least=1, example=3)
        for name, least, most, expected in _NUMBERS:
            value = getattr(self, name)
            _require(is_number(value) and least <= value <= most, name, value, expected)
        _require(
            self.delay <= self.max_delay,
            "delay",
            self.delay,
            f"at most max_delay={self.max_delay}: raise max_delay, or wait shorter",
        )
        self._check_on()
        self._check_on_result()

    def _check_on(self) -> None:
        if _are_errors(self.on if isinstance(self.on, tuple) else (self.on,)):
            return
        _require(_is_predicate(self.on), "on", self.on, "types of errors, or a function of the error")
        check_arguments("retry: on", self.on, "error")

    def _check_on_result(self) -> None:
        if self.on_result is None:
            return
        _require(_is_predicate(self.on_result), "on_result", self.on_result, "a function of the list of outputs")
        check_arguments("retry: on_result", self.on_result, "outputs")

    def after_error(self, attempts: int, error: BaseException) -> bool:
        """Tell whether a call that failed `attempts` times is made again."""
        if attempts >= self.max_attempts:
            return False
        if isinstance(self.on, (type, tuple)):
            return isinstance(error, self.on)
        return _answer("retry: on", self.on(error))

    def after_result(self, attempts: int, outputs: list[Any]) -> bool:
        """Tell whether a call with this result is made again."""
        if self.on_result is None or attempts >= self.max_attempts:
            return False
        return _answer("retry: on_result", self.on_result(outputs))

    def pause(self, attempts: int) -> float:
        """Return the seconds to wait after attempt number `attempts`."""
        try:
            wait = min(self.delay * self.backoff ** (attempts - 1), self.max_delay)
        except OverflowError:  # after a thousand attempts the factor is more than a number can be
            wait = self.max_delay if self.delay else 0.0
        return wait * (1 - self.jitter * random.random())  # noqa: S311 - spread, not secrecy


def _answer(predicate: str, answer: bool) -> bool:  # noqa: FBT001 - what a predicate returned
    check_done(predicate, answer)
    return answer


def _are_errors(kinds: tuple[object, ...]) -> bool:
    """Tell whether these are types of errors, one at least."""
    return bool(kinds) and all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds)


def _is_predicate(value: object) -> bool:
    return callable(value) and not isinstance(value, type) and not inspect.iscoroutinefunction(value)


def _require(holds: bool, name: str, value: object, expected: str) -> None:  # noqa: FBT001 - private, one condition
    if not holds:
        msg = f"retry: {name}={value!r}; expected {expected}"
        raise OptionError(msg)
