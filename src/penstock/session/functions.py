"""Functions of users as text that travels in options, as Spark would send them to its workers; nothing durable holds it."""

from __future__ import annotations

import base64
from typing import Any

import xxhash

from penstock.errors import OptionError


def packed(value: Any) -> str:  # noqa: ANN401 - functions, and what holds them
    """Return a function, or a tuple of some, as text; `OptionError` for one that cannot be sent, with what holds it back."""
    return base64.b64encode(_pickled(value)).decode()


def unpacked(text: str) -> Any:  # noqa: ANN401 - as above
    """Return what was packed."""
    from pyspark import cloudpickle

    return cloudpickle.loads(base64.b64decode(text))


def digest(function: Any) -> str:  # noqa: ANN401 - as above
    """Return what tells a function from others, with all that it holds, in this process; `OptionError` as `packed`.

    Equal digests are equal functions: what is sent to workers is the same to the byte. A function that is made anew, of the same
    class and with the same values, has the same one again; where it holds something that is new each time it has not.
    """
    return xxhash.xxh3_128_hexdigest(_pickled(function))


def _pickled(value: Any) -> bytes:  # noqa: ANN401 - as above
    from pyspark import cloudpickle

    try:
        pickled: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]  # - PySpark's copy has no types
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


def _to_blame(value: Any) -> tuple[Any, str]:  # noqa: ANN401 - as above
    """Return the function that cannot be pickled, and words for that of it which cannot, if that is known."""
    for given in value if isinstance(value, tuple) else (value,):
        each = getattr(given, "user_function", given)  # an AsyncMap's
        if not _can_be_pickled(each):
            held = {f"its attribute {name!r}: ": held for name, held in getattr(each, "__dict__", {}).items()}
            names = getattr(getattr(each, "__code__", None), "co_freevars", ())
            cells = getattr(each, "__closure__", None) or ()
            held |= {f"its variable {name!r}: ": cell.cell_contents for name, cell in zip(names, cells, strict=False)}
            return each, next((words for words, inner in held.items() if not _can_be_pickled(inner)), "")
    return value, ""


def _can_be_pickled(value: Any) -> bool:  # noqa: ANN401 - as above
    from pyspark import cloudpickle

    try:
        cloudpickle.dumps(value)  # type: ignore[no-untyped-call]  # - as above
    except Exception:  # noqa: BLE001 - whatever the objects of users raise
        return False
    return True
