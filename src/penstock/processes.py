"""What a process sets up around itself: the JVM that it works for, its garbage collector, its memory, and imports without pandas."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psutil

_OWN_MAP, _KEPT_FREE = -3, -1  # mallopt's numbers for two settings: M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
_OWN_MAP_BYTES = 16 << 20  # twice a block; larger blocks get their own mapping, which is returned when they are freed
_KEPT_FREE_BYTES = 64 << 20
_VARIABLE = "PENSTOCK_JVM"  # set by the launcher of workers: the JVM is not among the parents of a forked worker


def jvm() -> psutil.Process | None:
    """Return the JVM among the ancestors of this process, if there is one."""
    import psutil

    number = os.environ.get(_VARIABLE, "")
    named = process(int(number)) if number.isdigit() else None
    above = [named] if named else psutil.Process().parents()
    return next((ancestor for ancestor in above if ancestor.name().startswith("java")), None)


def process(pid: int) -> psutil.Process | None:
    """Return the process with this id, if there is one."""
    import psutil

    try:
        return psutil.Process(pid) if pid else None
    except psutil.NoSuchProcess:
        return None


@contextmanager
def no_collection() -> Iterator[None]:
    """Switch the garbage collector off in a block that makes thousands of lasting objects; with it, it takes 10 to 33 % longer."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def keep_blocks() -> None:
    """Have the C library keep up to 64 MB of freed memory. Only glibc can. For a process that runs nothing but tasks.

    Blocks of some megabytes come and go by the dozen. Otherwise the library would return their memory to the machine
    and get it back page by page for the next blocks, which takes a sixth of the time of reading and writing text.
    """
    if (setting := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        setting(_OWN_MAP, _OWN_MAP_BYTES)
        setting(_KEPT_FREE, _KEPT_FREE_BYTES)


class _NoPandas:
    """A module finder that reports pandas as not installed; it leaves all other modules to the next finder."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        """Return `None`, so that the next finder looks. Raises `ModuleNotFoundError` for pandas."""
        if name == "pandas":
            raise ModuleNotFoundError(name, name=name)


def without_pandas() -> None:
    """Keep pyarrow from importing pandas in this process, which runs no user function. Called before the first task.

    If pandas is installed, pyarrow imports it when it makes its first array or scalar from a Python value, to check whether
    that value is a pandas object. The import takes 0.3 to 0.6 s of CPU time. pyarrow tries only once, so this function makes
    it try here and fail. A later import of pandas succeeds, and so does a conversion to pandas.
    """
    sys.meta_path.insert(0, _NoPandas)
    try:
        import pyarrow as pa

        pa.scalar(0)
    finally:
        sys.meta_path.remove(_NoPandas)
