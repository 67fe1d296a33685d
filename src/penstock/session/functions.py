"""Functions of users as text that travels in options, pickled as Spark would send them to its workers; never stored durably."""

from __future__ import annotations

import base64
import importlib
from typing import TYPE_CHECKING, Any

import xxhash

from penstock.arguments import check_doing
from penstock.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def packed(value: Any) -> str:  # noqa: ANN401 - functions, and what holds them
    """Return a function, or a tuple of functions, as text; `OptionError` for one that cannot be sent, naming the part that prevents it."""
    return base64.b64encode(_pickled(value)).decode()


def unpacked(text: str) -> Any:  # noqa: ANN401 - what users gave
    """Return what was packed; `OptionError` if it needs a module that this process, perhaps a worker, cannot import."""
    from pyspark import cloudpickle

    try:
        return cloudpickle.loads(base64.b64decode(text))
    except ModuleNotFoundError as error:
        msg = (
            f"a function that was given needs {error.name!r}, which Spark's workers cannot import: they look in what is installed, in "
            "the current directory and in PYTHONPATH, and not beside a script; install it, or name its directory in PYTHONPATH before "
            "Spark is started"
        )
        raise OptionError(msg) from error


def named(text: str, option: str) -> Callable[..., Any]:
    """Return the function that an option names as `module:function`. `OptionError` if there is none."""
    try:
        function = loaded(text)
    except (Exception, SystemExit) as error:  # importing a user's module may raise anything
        msg = (
            f"{option}={text!r} cannot be loaded: {type(error).__name__}: {error}; expected module:function, of a module that the driver's "
            "Python can import"
        )
        raise OptionError(msg) from error
    if not callable(function):
        msg = f"{option}={text!r} is {type(function).__name__}, expected a function"
        raise OptionError(msg)
    called: Callable[..., Any] = function
    return called


def loaded(text: str) -> Any:  # noqa: ANN401 - what users gave
    """Return what `module:name` names. Raises what the import raises, and `ImportError` for what Spark's processes could not import."""
    module, _, name = text.partition(":")
    if module == "__main__":
        msg = "what a notebook or a script defines itself cannot be imported by the processes of Spark; put it in a module of its own"
        raise ImportError(msg)
    return getattr(importlib.import_module(module), name)


def told(text: str) -> Callable[[list[dict[str, Any]]], object]:
    """Return the function that `onPublish` names; `OptionError` if there is none, or if calling it would do nothing."""
    function = named(text, "onPublish")
    check_doing(f"onPublish={text!r}", function, "events")
    return function


def digest(function: Any) -> str:  # noqa: ANN401 - what users gave
    """Return a digest of a function and everything that it holds, for comparison in this process; `OptionError` as `packed`.

    Equal digests mean equal functions: what is sent to workers is the same to the byte. A function object that is made anew, of the
    same class and with the same values, has the same digest, unless it holds something that differs each time.
    """
    return xxhash.xxh3_128_hexdigest(_pickled(function))


def _pickled(value: Any) -> bytes:  # noqa: ANN401 - what users gave
    from pyspark import cloudpickle

    try:
        pickled: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]  # - PySpark's copy has no types
    except OptionError:  # from an object that names what prevents it
        raise
    except Exception as error:  # whatever the objects of users raise
        function, holder = _to_blame(value)
        name = getattr(function, "__qualname__", None) or type(function).__qualname__
        msg = f"{name} cannot be sent to Spark's workers: {holder}{error}; "
        if hasattr(function, "invoke"):
            msg += "make it in `open`, which each worker calls before the first call, and not in __init__"
        else:
            msg += "make it where it is used, in the worker"
        raise OptionError(msg) from error
    return pickled


def _to_blame(value: Any) -> tuple[Any, str]:  # noqa: ANN401 - what users gave
    """Return the function that cannot be pickled and, if known, words for the part of it that prevents this."""
    for given in value if isinstance(value, tuple) else (value,):
        function = getattr(given, "user_function", given)  # of an AsyncMap
        if not _can_be_pickled(function):
            return function, next((words for words, held in _held_by(function) if not _can_be_pickled(held)), "")
    return value, ""


def _held_by(function: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - what users gave
    """Yield what a function holds, its attributes and the variables of its closure, each after words that name it."""
    for name, held in getattr(function, "__dict__", {}).items():
        yield f"its attribute {name!r}: ", held
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = getattr(function, "__closure__", None) or ()
    for name, cell in zip(names, cells, strict=False):
        yield f"its variable {name!r}: ", cell.cell_contents


def _can_be_pickled(value: Any) -> bool:  # noqa: ANN401 - what users gave
    from pyspark import cloudpickle

    try:
        cloudpickle.dumps(value)  # type: ignore[no-untyped-call]  # - PySpark's copy has no types
    except Exception:  # noqa: BLE001 - whatever the objects of users raise
        return False
    return True
