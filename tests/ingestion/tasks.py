"""What the processes of an ingest without Spark are called with; apart, as each of them imports what its tasks name."""

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
    """Sleep; what processes are called with."""
    time.sleep(seconds)
    return seconds


def dies(_: float) -> None:
    """Die as a process does that takes too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def dies_in_its_answer(_: float) -> None:
    """Have the answer of this process end before its end."""

    def half(connection: Connection, answer: Any) -> None:
        os.write(connection.fileno(), struct.pack("!i", len(answer) + 1) + bytes(answer))
        dies(0.0)

    Connection._send_bytes = half  # type: ignore[attr-defined]  # what sends in this process, which is about to end


def breaks(_: float) -> None:
    """Raise what cannot be sent."""
    raise _Unsendable(1, 2)


class _Unsendable(Exception):
    """An error as libraries have it: what it was made of is not what it keeps."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def refuses(_: float) -> None:
    """Raise an error of ours."""
    msg = "no"
    raise OptionError(msg)


def either(call: Callable[..., Any], seconds: float) -> object:
    """Call a function: tasks of one `each` that are not alike."""
    return call(seconds)


def is_imported(module: str) -> bool:
    """Tell whether this process has imported the module."""
    return module in sys.modules


def looks_for_pandas(values: list[int]) -> tuple[bool, list[int]]:
    """Make an array, and a frame of pandas of it. Return whether the array had pandas imported, and the values of the frame."""
    array = pa.array(values)
    imported = "pandas" in sys.modules
    frame = pa.record_batch({"value": array}).to_pandas()
    return imported, frame["value"].tolist()
