"""Checks of the arguments that Python programs pass: names of parameters, and values.

Options are text, and `options` checks them. A Python argument may be anything. A value that our code does not expect
must not cause an error from deep inside, or be mistaken for another value. So True is not a number here, nor is NaN,
nor a value that no float can hold.
"""

from __future__ import annotations

import difflib
import inspect
import math
import operator
import os
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import Any, NoReturn, TypeVar

from penstock.errors import OptionError

_C = TypeVar("_C", bound=Callable[..., Any])


def named(called: _C) -> _C:
    """Make a function, or the constructor of a class, refuse unknown parameters: `OptionError` with the nearest name that it has."""
    if isinstance(called, type):
        called.__init__ = _checked(called.__init__, called.__name__, bound=1)  # type: ignore[misc]  # - of the class alone
        return called
    return _checked(called, called.__name__, bound=0)  # type: ignore[return-value]  # - it has the same signature


def _checked(function: Callable[..., Any], name: str, *, bound: int) -> Callable[..., Any]:
    """Return the function with a check of its arguments before the call; the first `bound` parameters are not given by users."""

    @cache
    def signature() -> inspect.Signature:
        return inspect.signature(checked)

    @wraps(function)
    def checked(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - those of the function
        try:
            signature().bind(*args, **options)
        except TypeError as error:
            _refuse(name, list(signature().parameters.values())[bound:], options, error)
        return function(*args, **options)

    return checked


def _refuse(name: str, parameters: list[inspect.Parameter], options: dict[str, Any], error: TypeError) -> NoReturn:
    """Raise `OptionError` for a call that does not fit: for an unknown parameter with the nearest name, else in Python's words."""
    collects = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    known = [parameter.name for parameter in parameters if parameter.kind not in collects]
    unknown = next((option for option in options if option not in known), None)
    if unknown is None:
        msg = f"{name}: {error}; it takes ({', '.join(known)})"
        raise OptionError(msg) from None
    near = difflib.get_close_matches(unknown.lower(), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}"
    msg = f"{name}: unknown parameter {unknown!r}; {hint}"
    raise OptionError(msg) from None


def is_number(value: object) -> bool:
    """Tell whether this is a number that a float can hold, infinity included."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
    except OverflowError:  # a whole number of more than 300 digits
        return False


def whole(value: object, *, name: str, least: int | None = None, example: int) -> int:
    """Return a whole number of `least` or more; `OptionError` for anything else, including text and True. `name` is for the message."""
    number = _index(value)
    if number is None or (least is not None and number < least):
        bound = "" if least is None else f" of at least {least}"
        msg = f"{name}={value!r}; expected a whole number{bound}, {example} for example"
        raise OptionError(msg)
    return number


def _index(value: object) -> int | None:
    """Return a value that Python can count with as an `int`; None for anything else, including True and False."""
    try:
        return None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]  # - that is what it refuses
    except TypeError:
        return None


def flag(value: object, *, name: str) -> bool:
    """Return True or False; `OptionError` for anything else, such as the text "false", which is true to Python."""
    if not isinstance(value, bool):
        msg = f"{name}={value!r}; expected True or False"
        raise OptionError(msg)
    return value


def path(value: object, *, name: str) -> str:
    """Return the text of a path; `OptionError` for anything else, such as a DataFrame, or a list where one path is expected."""
    try:
        return os.fsdecode(value)  # type: ignore[arg-type]  # - that is what it refuses
    except TypeError:
        msg = f"{name} is a {type(value).__name__}; expected a path, such as '/data/logs'"
        raise OptionError(msg) from None


def options(value: object, *, name: str) -> dict[str, Any]:
    """Return a new dictionary of the options, empty for None; `OptionError` for anything else.

    An option whose value is None counts as not given, as in Spark's own readers: its default applies.
    """
    example = f"expected a dictionary of options, such as {name}={{'format': 'json'}}"
    if value is not None and not isinstance(value, Mapping):
        msg = f"{name} is a {type(value).__name__}; {example}"
        raise OptionError(msg)
    given = {key: each for key, each in (value or {}).items() if each is not None}
    for key in given:
        if not isinstance(key, str):
            msg = f"{name} has {key!r} for the name of an option; {example}"
            raise OptionError(msg)
    return given


def signature_of(fn: Callable[..., Any]) -> inspect.Signature | None:
    """Return a function's signature; None if Python does not know one."""
    try:
        return inspect.signature(fn)
    except ValueError:  # some built-in functions have none
        return None


def check_arguments(name: str, fn: object, *given: str) -> None:
    """Raise `OptionError` if `fn` cannot be called with these arguments: the call would fail for every row."""
    refusal = f"{name} does not take ({', '.join(given)})"
    if not callable(fn):
        msg = f"{refusal}: it is a {type(fn).__name__}"
        raise OptionError(msg)
    signature = signature_of(fn)
    try:
        if signature is not None:
            signature.bind(*given)
    except TypeError as error:
        msg = f"{refusal}: {error}"
        raise OptionError(msg) from error


def check_plain(name: str, fn: object, *given: str) -> None:
    """Raise `OptionError` if `fn` cannot be called with these arguments, or would have to be awaited: no code awaits it."""
    check_arguments(name, fn, *given)
    if _is(inspect.iscoroutinefunction, fn):
        msg = f"{name} is a coroutine function, which nobody would await: expected a plain function"
        raise OptionError(msg)


def check_doing(name: str, fn: object, *given: str) -> None:
    """Check as `check_plain` does, and refuse a generator function: it is called for its effect, and a generator would do nothing."""
    check_plain(name, fn, *given)
    if _is(inspect.isgeneratorfunction, fn) or _is(inspect.isasyncgenfunction, fn):
        msg = f"{name} is a generator function, which nobody would iterate over: expected one without yield"
        raise OptionError(msg)


def _is(kind: Callable[[object], bool], fn: object) -> bool:
    """Tell whether a function, or the `__call__` of a callable object, is of this kind."""
    return kind(fn) or kind(getattr(fn, "__call__", None))  # noqa: B004 - the class's own `__call__`


def check_done(name: str, returned: object) -> None:
    """Raise `OptionError` if a plain function returned something that has not run yet: an awaitable, or an iterator."""
    waits = "awaits" if inspect.isawaitable(returned) else "iterates over"
    if waits == "awaits" or inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        if inspect.iscoroutine(returned):
            returned.close()
        msg = f"{name} returned a {type(returned).__name__}, which nobody {waits}: expected a plain function"
        raise OptionError(msg)
