"""Functions of users as text that travels in options, as Spark would send them to its workers; nothing durable holds it."""

from __future__ import annotations

import base64
from typing import Any


def packed(value: Any) -> str:  # noqa: ANN401 - functions, and what holds them
    """Return a function, or a tuple of some, as text."""
    from pyspark import cloudpickle

    pickled: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]  # - PySpark's copy has no types
    return base64.b64encode(pickled).decode()


def unpacked(text: str) -> Any:  # noqa: ANN401 - as above
    """Return what was packed."""
    from pyspark import cloudpickle

    return cloudpickle.loads(base64.b64decode(text))
