"""Retries: when a call is made again, and after how long."""

from __future__ import annotations

import inspect
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timezone
from email.message import Message
from email.utils import parsedate_to_datetime
from typing import Any, TypeAlias

from penstock import clock
from penstock.aio.outcome import leaves_of
from penstock.arguments import check_arguments, check_done, is_number, named, whole
from penstock.errors import OptionError

_Errors: TypeAlias = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]

_Delay: TypeAlias = float | Callable[[int, BaseException | None], float]

# The numbers that a field accepts: its name, the least and the highest, and in words what is expected.
_NUMBERS = (
    ("backoff", 1, math.nextafter(math.inf, 0), "a factor of 1 or more, 2.0 for example"),
    ("max_delay", 0, math.inf, "seconds, 30 for example"),
    ("jitter", 0, 1, "a fraction from 0 to 1, 0.2 for example"),
)
_CAUSES_MAX = 10  # causes of an error that are examined
_SECONDS = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_DELAY_MAX = math.nextafter(math.inf, 0)


@named
@dataclass(frozen=True)
class Retry:
    """How often a call is made in all (`max_attempts`), and how long it waits before each attempt but the first.

    - The wait is `delay` seconds, times `backoff` for each further attempt, at most `max_delay`. `jitter` makes it up
      to that fraction shorter, at random, so that calls that failed together do not come back together.
    - `delay` may be a function of the number of the attempt and its error (None if `on_result` rejected its result).
      Its result is the wait in seconds, unchanged. `retry_after` returns such a function, which waits as long as the
      service asks for.
    - `on` says which errors are worth another attempt: types, or a function of the error; by default every error, and
      an attempt that timed out. A group of errors (`asyncio.TaskGroup` raises one) is of a type if all errors in it
      are. `on_result` says which results are: a function of the list of outputs. When no attempt is left, the last
      result stands.
    - `budget` limits how many more calls a service gets while it is down: at most that fraction of a worker process's
      calls are made again, besides ten that always are; up to a hundred retries are saved up while all goes well. When
      the budget is spent, a call that fails has failed as if that had been its last attempt.

    `OptionError` for values that make no sense.
    """

    max_attempts: int = 3
    delay: _Delay = 0.1
    backoff: float = 2.0
    max_delay: float = 30.0
    jitter: float = 0.0
    on: _Errors = Exception
    on_result: Callable[[list[Any]], bool] | None = None
    budget: float | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        whole(self.max_attempts, name="retry: max_attempts", least=1, example=3)
        for name, least, most, expected in _NUMBERS:
            value = getattr(self, name)
            _require(is_number(value) and least <= value <= most, name, value, expected)
        self._check_delay()
        self._check_on()
        self._check_on_result()
        share = self.budget
        _require(
            share is None or (is_number(share) and share >= 0),
            "budget",
            share,
            "a fraction of the calls, 0.2 for example",
        )

    def _check_delay(self) -> None:
        delay = self.delay
        if callable(delay):
            _require(
                _is_predicate(delay), "delay", delay, "seconds, or a function of (attempt, error) that returns them"
            )
            check_arguments("retry: delay", delay, "attempt", "error")
            return
        _require(is_number(delay) and 0 <= delay <= _DELAY_MAX, "delay", delay, "seconds, 0.1 for example")
        expected = f"at most max_delay={self.max_delay}: raise max_delay, or wait shorter"
        _require(delay <= self.max_delay, "delay", delay, expected)

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
        """Tell whether a call that has failed `attempts` times is made again."""
        if self.is_last(attempts):
            return False
        if isinstance(self.on, (type, tuple)):
            return isinstance(error, self.on) or all(isinstance(each, self.on) for each in leaves_of(error))
        return _answer("retry: on", self.on(error))

    def after_result(self, attempts: int, outputs: list[Any]) -> bool:
        """Tell whether a call with this result is made again."""
        if self.on_result is None or self.is_last(attempts):
            return False
        return _answer("retry: on_result", self.on_result(outputs))

    def is_last(self, attempts: int) -> bool:
        """Tell whether attempt number `attempts` is the last one."""
        return attempts >= self.max_attempts

    def pause(self, attempts: int, error: BaseException | None = None) -> float:
        """Return the seconds to wait after attempt number `attempts`, which failed with `error`, if it failed.

        Raises what `delay` raises, and `TypeError` if its result is not a number of seconds.
        """
        if callable(self.delay):
            seconds = self.delay(attempts, error)
            if not is_number(seconds) or not 0 <= seconds <= _DELAY_MAX:
                msg = f"retry: delay returned {seconds!r}; expected seconds, 0.1 for example"
                raise TypeError(msg)
            return seconds
        wait = _backed_off(self.delay, self.backoff, attempts, self.max_delay)
        return wait * (1 - self.jitter * random.random())  # noqa: S311 - spread, not secrecy


@named
def retry_after(
    delay: float = 0.1, *, backoff: float = 2.0, max_delay: float = 30.0, longest: float = 300.0
) -> Callable[[int, BaseException | None], float]:
    """Return a `delay` for `Retry` that waits as long as the service asks for in `Retry-After`, in seconds or as a date.

    The header is looked for in the error and its causes, as httpx, requests, aiohttp and botocore store it. A date in
    it is compared with the `Date` of the same answer, so the clock of this machine need not be right. The wait is at
    most `longest`, whatever the header says. Without a header the wait is `delay`, times `backoff` for each further
    attempt, at most `max_delay`.
    """
    Retry(delay=delay, backoff=backoff, max_delay=max_delay)
    _require(is_number(longest) and longest >= 0, "longest", longest, "seconds, 300 for example")
    return _RetryAfter(delay, backoff, max_delay, longest)


@dataclass(frozen=True)
class _RetryAfter:
    """See `retry_after`."""

    delay: float
    backoff: float
    max_delay: float
    longest: float

    def __call__(self, attempt: int, error: BaseException | None) -> float:
        """Return the seconds to wait."""
        asked = None if error is None else _asked_for(error)
        return (
            _backed_off(self.delay, self.backoff, attempt, self.max_delay)
            if asked is None
            else min(asked, self.longest)
        )


def _backed_off(delay: float, backoff: float, attempts: int, most: float) -> float:
    try:
        return min(delay * backoff ** (attempts - 1), most)
    except OverflowError:  # after a thousand attempts the factor is too large for a float
        return most if delay else 0.0


def _asked_for(error: BaseException) -> float | None:
    """Return the seconds that a `Retry-After` of the error, or of one of its causes, asks for; None if there is none.

    For a group of errors it is the longest of their waits.
    """
    cause: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if cause is None:
            return None
        leaves = leaves_of(cause)
        if leaves != [cause]:
            return max((seconds for seconds in map(_asked_for, leaves) if seconds is not None), default=None)
        for headers in _headers_of(cause):
            text = _first(headers, "retry-after")
            seconds = None if text is None else _seconds(text, _first(headers, "date"))
            if seconds is not None:
                return seconds
        cause = cause.__cause__ or cause.__context__
    return None


def _headers_of(error: BaseException) -> Iterator[list[tuple[Any, Any]]]:
    """Yield the headers of the response that a client's error carries, from a mapping or from the object of Python's `urllib`."""
    response = _attribute(error, "response")
    if isinstance(response, Mapping):  # botocore's
        response = response.get("ResponseMetadata")
        headers = response.get("HTTPHeaders") if isinstance(response, Mapping) else None
    else:
        headers = _attribute(response, "headers")
    given = (headers, _attribute(error, "headers"))
    yield from (list(each.items()) for each in given if isinstance(each, (Mapping, Message)))


def _attribute(value: object, name: str) -> Any:  # noqa: ANN401 - of any client
    """Return an attribute; `None` also if reading it fails, as for a response that never came, or whose connection is closed."""
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001 - the client's property may raise anything; the error that it belongs to is the one to report
        return None


def _first(headers: list[tuple[Any, Any]], wanted: str) -> str | None:
    """Return the value of the first header with the name `wanted`, which is in lower case; None if there is none."""
    return next((str(value).strip() for name, value in headers if str(name).lower() == wanted), None)


def _seconds(text: str, date: str | None) -> float | None:
    """Return the seconds from now that the value of a `Retry-After` means; None if it is invalid.

    A date comes from the service's clock, which may differ from ours. So it is compared with the `date` of the same answer, if it has one.
    """
    if _SECONDS.fullmatch(text):
        return float(text)
    at = _since_1970(text)
    if at is None:
        return None
    answered = None if date is None else _since_1970(date)
    return max(at - (clock.now_ns() / 1e9 if answered is None else answered), 0.0)


def _since_1970(date: str) -> float | None:
    """Return the seconds since 1970 that a date in HTTP's form means; None if it is invalid."""
    try:
        at = parsedate_to_datetime(date)
    except (TypeError, ValueError, OverflowError):
        return None
    return at.replace(tzinfo=at.tzinfo or timezone.utc).timestamp()


def _answer(predicate: str, answer: bool) -> bool:  # noqa: FBT001 - what a predicate returned
    check_done(predicate, answer)
    return answer


def _are_errors(kinds: tuple[object, ...]) -> bool:
    """Tell whether these are types of errors, at least one."""
    return bool(kinds) and all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds)


def _is_predicate(value: object) -> bool:
    return callable(value) and not isinstance(value, type) and not inspect.iscoroutinefunction(value)


def _require(holds: bool, name: str, value: object, expected: str) -> None:  # noqa: FBT001 - private, one condition
    if not holds:
        msg = f"retry: {name}={value!r}; expected {expected}"
        raise OptionError(msg)
