"""The functions that processes of an ingest without Spark call; in a separate module, because each process imports its tasks' module."""

from __future__ import annotations

import os
import signal
import struct
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

from penstock.errors import OptionError


def sleeps(seconds: float) -> float:
    """Sleep, as the task of a process."""
    time.sleep(seconds)
    return seconds


def dies(_: float) -> None:
    """Die as a process does that uses too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def dies_in_its_answer(_: float) -> None:
    """Close this process's answer before the process ends."""

    def half(connection: Connection, answer: Any) -> None:
        os.write(connection.fileno(), struct.pack("!i", len(answer) + 1) + bytes(answer))
        dies(0.0)

    Connection._send_bytes = half  # type: ignore[attr-defined]  # what sends in this process, which is about to end


def breaks(_: float) -> None:
    """Raise an error that cannot be pickled."""
    raise _Unsendable(1, 2)


class _Unsendable(Exception):
    """An error as some libraries have it: it does not keep the arguments that it was made from."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def refuses(_: float) -> None:
    """Raise one of our errors."""
    msg = "no"
    raise OptionError(msg)


def either(call: Callable[..., Any], seconds: float) -> object:
    """Call a function, so that tasks of one `each` can differ."""
    return call(seconds)


def is_imported(module: str) -> bool:
    """Tell whether this process has imported the module."""
    return module in sys.modules


def looks_for_pandas(values: list[int]) -> tuple[bool, list[int]]:
    """Make an array, and a pandas frame of it. Return whether making the array imported pandas, and the values of the frame."""
    array = pa.array(values)
    imported = "pandas" in sys.modules
    frame = pa.record_batch({"value": array}).to_pandas()
    return imported, frame["value"].tolist()
