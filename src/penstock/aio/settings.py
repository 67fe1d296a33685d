"""The settings of an operator, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.aio.commons import Wanted
from penstock.arguments import is_number, whole
from penstock.errors import OptionError

if TYPE_CHECKING:
    from penstock.aio.commons import Cache
    from penstock.aio.retry import Retry

BYTES_MAX = 64 << 20  # of finished outputs that were not taken, and of expected outputs


@dataclass(frozen=True)
class Settings:
    """The settings of an operator, checked: `OptionError` names what is wrong. `rate` is calls a second, for this operator alone."""

    capacity: int = 100
    ordered: bool = True
    timeout: float | None = None
    attempt_timeout: float | None = None
    retry: Retry | None = None
    rate: float | None = None
    batch_size: int = 1
    batch_wait: float = 0.01
    bytes_max: int = BYTES_MAX
    drain: float | None = None
    cache: Cache | None = None

    def __post_init__(self) -> None:
        """Check each value by itself, and then all of them together."""
        self._check_counts()
        self._check_seconds()
        self._check_together()

    @property
    def wanted(self) -> Wanted:
        """Return the settings that concern shared state."""
        return Wanted(self.rate, self.retry.budget if self.retry else None, self.cache)

    def _check_counts(self) -> None:
        for name, example in (("capacity", 100), ("batch_size", 10)):
            whole(getattr(self, name), name=name, least=1, example=example)

    def _check_seconds(self) -> None:
        for name in ("timeout", "attempt_timeout", "rate"):
            limit = getattr(self, name)
            if limit is not None and not (is_number(limit) and limit > 0):
                msg = f"{name}={limit!r}; expected a number above 0, or None for no limit"
                raise OptionError(msg)
        _check_wait("batch_wait", self.batch_wait, 0.01)
        if self.drain is not None:
            _check_wait("drain", self.drain, 1.0)

    def _check_together(self) -> None:
        self._check_attempts()
        self._check_drain()
        if self.batch_size > self.capacity:
            msg = f"batch_size={self.batch_size} is more than capacity={self.capacity}: such a batch would never be full; raise capacity"
            raise OptionError(msg)

    def _check_attempts(self) -> None:
        if self.timeout is not None and self.attempt_timeout is not None and self.attempt_timeout > self.timeout:
            msg = (
                f"attempt_timeout={self.attempt_timeout:g} is above timeout={self.timeout:g}: no attempt would ever take that long; "
                "leave it out, or lower it"
            )
            raise OptionError(msg)

    def _check_drain(self) -> None:
        if self.drain is None:
            return
        if self.timeout is None:
            msg = f"drain={self.drain:g} needs a timeout: without one a call that never ends is carried on for ever; add timeout=60.0"
            raise OptionError(msg)
        if self.drain >= self.timeout:
            msg = f"drain={self.drain:g} is not below timeout={self.timeout:g}: no call would be left to carry over; leave drain out"
            raise OptionError(msg)


def _check_wait(name: str, seconds: float, example: float) -> None:
    if not (is_number(seconds) and seconds >= 0):
        msg = f"{name}={seconds!r}; expected seconds, {example} for example"
        raise OptionError(msg)
