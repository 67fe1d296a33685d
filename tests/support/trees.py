"""Syntax trees of Python files, parsed without garbage collection: a million objects stay, and collecting would double the time."""

from __future__ import annotations

import ast
import gc
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def no_collection() -> Iterator[None]:
    """Switch garbage collection off within the block."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def parsed(text: str, name: str = "<unknown>") -> ast.Module:
    """Return the syntax tree of a file."""
    with no_collection():
        return ast.parse(text, name)


@cache
def walked(text: str) -> tuple[ast.Module, list[ast.AST]]:
    """Return the syntax tree of a file and all its nodes, outermost first; made once per process for all tests that look at it."""
    with no_collection():
        tree = ast.parse(text)
        return tree, list(ast.walk(tree))
