"""Unique names: of staged files, of temporaries, of attempts to commit.

They are random, so processes need not agree on them. Tests put their own source in with `use`, to get the same names in
every run.
"""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def _random() -> str:
    return uuid.uuid4().hex


_source: Callable[[], str] = _random


def token() -> str:
    """Return a new name: 32 characters that a file name may contain."""
    return _source()


@contextmanager
def use(source: Callable[[], str]) -> Iterator[None]:
    """Replace the source of this process for the length of the block (tests only)."""
    global _source  # noqa: PLW0603 - one source a process is the point of this module
    before, _source = _source, source
    try:
        yield
    finally:
        _source = before
