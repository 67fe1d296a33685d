"""The JVM that a process works for, and the garbage that it need not look for."""

from __future__ import annotations

import gc
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psutil

_VARIABLE = "PENSTOCK_JVM"  # set by the launcher of workers: a worker that was forked has other processes above it


def jvm() -> psutil.Process | None:
    """Return the JVM that started this process or one above it, if there is one."""
    import psutil

    number = os.environ.get(_VARIABLE, "")
    named = process(int(number)) if number.isdigit() else None
    above = [named] if named else psutil.Process().parents()
    return next((ancestor for ancestor in above if ancestor.name().startswith("java")), None)


def process(pid: int) -> psutil.Process | None:
    """Return the process of this number, if there is one."""
    import psutil

    try:
        return psutil.Process(pid) if pid else None
    except psutil.NoSuchProcess:
        return None


@contextmanager
def no_collection() -> Iterator[None]:
    """Look for no garbage within the block, which makes thousands of objects that stay: it would take a tenth to a third longer."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
