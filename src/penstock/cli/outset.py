"""A command's process before anything large is imported: its standard streams, and Ctrl-C until the command begins."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress

_STDERR = 2


def begin() -> None:
    """Connect closed standard streams to nothing, and have Ctrl-C end the process at once, with a word and status 130, until `attend`.

    A program that runs a command in a thread handles signals itself: they reach the main thread only.
    """
    _have_streams()
    if threading.current_thread() is not threading.main_thread():
        return
    # A process that ignores it (`nohup`, a shell's `&`) is meant to.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)


def attend() -> None:
    """Have Ctrl-C raise `KeyboardInterrupt` from now on, instead of ending the process: the command begins, and handles it."""
    if signal.getsignal(signal.SIGINT) is _interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _have_streams() -> None:
    """Open closed standard streams (`<&- >&- 2>&-`) to nowhere: otherwise the next opened files would get their numbers."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:  # always the lowest free number
        os.set_inheritable(number, True)  # noqa: FBT003 - its signature
    os.close(number)


def _interrupted(number: int, frame: object) -> None:  # noqa: ARG001 - what signal calls
    """End at once, before a command has begun: there is nothing to clean up, and a stack trace would tell nothing."""
    with suppress(OSError):
        os.write(_STDERR, b"error: [PST-000] interrupted\n")
    os._exit(128 + number)
