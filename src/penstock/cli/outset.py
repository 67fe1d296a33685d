"""A command's process before anything large is imported: its standard streams, and Ctrl-C until the command begins."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import ReadableBuffer

_STDOUT, _STDERR = 1, 2


def begin() -> None:
    """Have the process's standard streams fit to be written to, and Ctrl-C end it at once, with a word and status 130, until `attend`.

    Closed streams are connected to nothing. What cannot be printed is a `StorageError` (`NoSpace` on a full disk), once; what cannot be
    reported on stderr is left out, because a log must not end what it reports on. A reader that has gone is a `BrokenPipeError` on both.

    A program that runs a command in a thread handles signals itself: they reach the main thread only.
    """
    _have_streams()
    sys.stdout = _written_by(sys.stdout, _Stream(_STDOUT, refuse))
    sys.stderr = _written_by(sys.stderr, _Stream(_STDERR, lambda _: None))
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


class _Stream(io.RawIOBase):
    """A standard stream that calls `lost` with the first error of the operating system, and writes nothing any more."""

    def __init__(self, number: int, lost: Callable[[OSError], None]) -> None:
        self._number = number
        self._lost = lost
        self._is_lost = False

    def fileno(self) -> int:
        """Return the number of the stream."""
        return self._number

    def isatty(self) -> bool:
        """Tell whether it is a terminal."""
        return os.isatty(self._number)

    def writable(self) -> bool:
        """Tell that it can be written to."""
        return True

    def write(self, data: ReadableBuffer) -> int:
        """Write some of the data, and return how much."""
        size = len(memoryview(data))
        if self._is_lost:
            return size
        try:
            return os.write(self._number, data)
        except BrokenPipeError:
            raise
        except OSError as error:
            # What is buffered would be tried again: by the next line, and when Python ends, which then has status 120.
            self._is_lost = True
            self._lost(error)
            return size


def _written_by(stream: TextIO, raw: _Stream) -> TextIO:
    """Return a stream like the given one that `raw` writes; the given one if it leads elsewhere, such as into a test."""
    if not isinstance(stream, io.TextIOWrapper) or stream.fileno() != raw.fileno():
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def refuse(error: OSError) -> NoReturn:
    """Raise the `StorageError` for an error of our stdout."""
    from penstock.storage import refuse as refused

    refused(error, "print to", "standard output")


def _interrupted(number: int, frame: object) -> None:  # noqa: ARG001 - what signal calls
    """End at once, before a command has begun: there is nothing to clean up, and a stack trace would tell nothing."""
    with suppress(OSError):
        os.write(_STDERR, b"error: [PST-000] interrupted\n")
    os._exit(128 + number)
