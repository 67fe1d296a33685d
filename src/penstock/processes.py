"""The JVM that a process works for, the garbage and the library that it need not look for, and the memory that it need not give back."""

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
_OWN_MAP_BYTES = 16 << 20  # twice a block; what is larger is mapped by itself, and given back as it is freed
_KEPT_FREE_BYTES = 64 << 20
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


def keep_blocks() -> None:
    """Have the C library keep what is freed, up to 64 MB of it, in a process that does nothing but tasks; only one library can.

    Blocks of some megabytes come and go by the dozen. It would give their memory back to the machine, and get it anew for the next ones,
    page by page: a sixth of what it takes to read text and write it.
    """
    if (setting := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        setting(_OWN_MAP, _OWN_MAP_BYTES)
        setting(_KEPT_FREE, _KEPT_FREE_BYTES)


class _NoPandas:
    """Finds no pandas, wherever it is installed; other modules are found as ever."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        """Return `None`: the next finder is to look. Raises `ModuleNotFoundError` for pandas."""
        if name == "pandas":
            raise ModuleNotFoundError(name, name=name)


def without_pandas() -> None:
    """Have pyarrow not import pandas in this process, which runs no function of a user's. Called before its first task.

    pyarrow imports pandas, where it is installed, for the first array or scalar that is made of a Python value, to tell whether the value
    is one of pandas. That takes 0.3 to 0.6 s of a processor. It looks once, so it is made to look here and find none. An import of pandas
    after this call succeeds, and so does a conversion to it.
    """
    sys.meta_path.insert(0, _NoPandas)
    try:
        import pyarrow as pa

        pa.scalar(0)
    finally:
        sys.meta_path.remove(_NoPandas)
