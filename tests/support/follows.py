"""The mark of tests that follow the advice of an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_Test = TypeVar("_Test", bound=Callable[..., None])


def follows(code: str) -> Callable[[_Test], _Test]:
    """Mark a test that provokes the error with this code and follows its advice; `test_every_code.py` looks for these marks."""
    assert code.startswith("PST-")
    return lambda test: test
