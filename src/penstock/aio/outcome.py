"""What becomes of a row: outputs or a failure, what is carried to the next batch, and counts.

These are the values that leave the operator. Inside the operator a row is an `Element`.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass, field
from typing import Any

TIMEOUT, ERROR, RESULT = "timeout", "error", "result"  # kinds of failure
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())  # Python 3.10 has none
_DESCRIBED = 3  # at most so many errors of a group


@dataclass(frozen=True)
class Failure:
    """Why a row has no outputs. `kind` is timeout, error (the function raised) or result (its result does not fit)."""

    kind: str
    message: str
    attempts: int
    elapsed_ms: int
    cause: BaseException | None = field(default=None, compare=False, repr=False)

    def told(self) -> dict[str, Any]:
        """Return what the user sees, as the column `_error` has it."""
        return {name: getattr(self, name) for name in ("kind", "message", "attempts", "elapsed_ms")}


@dataclass(slots=True)  # a frozen one would cost a microsecond per row
class RowOutcome:
    """The outcome of row number `index` after `attempts` attempts: its outputs, or the failure. Nobody changes it."""

    index: int
    row: Any
    outputs: list[tuple[Any, ...]]
    failure: Failure | None = None
    attempts: int = 0


@dataclass(frozen=True)
class Carried:
    """A row that was left when an operator ended early.

    `attempts` have ended, `age` is the seconds since it was first admitted, and a row with an `outcome` only has to be
    emitted.
    """

    row: Any
    attempts: int = 0
    age: float = 0.0
    outcome: RowOutcome | None = None


@dataclass
class Counts:
    """The counts so far.

    `rows` does not count rows that came as `Carried`; `carried` are rows that left as such. `late`: completions after
    an outcome; `shared`: rows that took another row's result; `cached`: rows that took the result of an earlier call;
    `failed`: rows without a result; `rejected`: those of them whose result does not fit; `over_budget`: rows that were
    not called again because the budget of retries was spent.
    """

    rows: int = 0
    calls: int = 0
    retries: int = 0
    timeouts: int = 0
    late: int = 0
    shared: int = 0
    failed: int = 0
    rejected: int = 0
    carried: int = 0
    cached: int = 0
    over_budget: int = 0


class Misfit(Exception):
    """A result that does not fit the schema; the same call again would not help."""


class FallbackError(Exception):
    """The error that `timed_out` raised, in words; `__cause__` is the error."""


def described(error: BaseException) -> str:
    """Return an error's class and message; for a group, whose message only counts its errors, also those of its first errors."""
    text = f"{type(error).__name__}: {message_of(error)}"
    errors = leaves_of(error)
    return text if errors == [error] else "; ".join([text, *map(described, errors[:_DESCRIBED])])


def leaves_of(error: BaseException) -> list[BaseException]:
    """Return the errors in a group (`asyncio.TaskGroup` raises one) and in the groups inside it; for another error, the error itself."""
    if not isinstance(error, _GROUP):
        return [error]
    inner: tuple[BaseException, ...] = error.exceptions
    return [leaf for each in inner for leaf in leaves_of(each)]


def message_of(error: BaseException) -> str:
    """Return an error's message, whatever it is: it goes into a column."""
    try:
        return str(error).encode(errors="backslashreplace").decode()
    except BaseException as own:  # noqa: BLE001 - the user's class; an exit would end the task, and with it all rows
        return f"(its message cannot be had: {type(own).__name__})"
