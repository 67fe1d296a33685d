"""The process of a command before anything large is imported: its standard streams, and Ctrl-C until the command begins."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress

_STDERR = 2


def begin() -> None:
    """Have closed standard streams lead nowhere, and Ctrl-C end the process at once, with a word and 130, until `attend`.

    A program that runs a command in a thread of its own answers signals itself: they come to the main thread alone.
    """
    _have_streams()
    if threading.current_thread() is not threading.main_thread():
        return
    # Who has it ignored (`nohup`, a shell's `&`) wants it so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)


def attend() -> None:
    """Have Ctrl-C raise `KeyboardInterrupt` from now on, where it has ended the process so far: a command begins, which answers it."""
    if signal.getsignal(signal.SIGINT) is _interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _have_streams() -> None:
    """Have standard streams that are closed (`<&- >&- 2>&-`) lead nowhere: what is opened next would have their numbers."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:  # the lowest that is free
        os.set_inheritable(number, True)  # noqa: FBT003 - its signature
    os.close(number)


def _interrupted(number: int, frame: object) -> None:  # noqa: ARG001 - what signal calls
    """End at once, in front of a command: nothing is under way that would have to be cleaned up, and a stack of them says nothing."""
    with suppress(OSError):
        os.write(_STDERR, b"error: [PST-000] interrupted\n")
    os._exit(128 + number)
