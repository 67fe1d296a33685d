"""The command `penstock`.

*What lives here.* `app` and `walcommands` have the commands and their flags (`flags`). Each command answers with facts (`answer`),
which are printed as one JSON object with `--json`, and as a table or a sentence without. `ingest`, `state`, `check`, `run`, `page` and
`demo` do the work, and import what they need when they run: `penstock --help` imports no Spark, no Arrow and no polars.

*What may be touched.* What the flags name, through the rooms that own it; standard output, standard error and the signals
of this process (`process`), which no other room may touch while it is a library.

*What it may know.* Every other room but `testing`; none of them knows it.
"""

from __future__ import annotations

_STDERR = 2


def main() -> None:
    """Run the command with the arguments of this process, and end it: 0 ok, 1 failed, 2 usage, 3 damaged state."""
    import signal

    _have_streams()
    # Who has it ignored (`nohup`, a shell's `&`) wants it so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    from penstock.cli.app import app

    app()


def attend() -> None:
    """Have Ctrl-C raise `KeyboardInterrupt` from now on, where it has ended the process so far: a command begins, which answers it."""
    import signal

    if signal.getsignal(signal.SIGINT) is _interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _have_streams() -> None:
    """Have standard streams that are closed (`<&- >&- 2>&-`) lead nowhere: what is opened next would have their numbers."""
    import os

    while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:  # the lowest that is free
        os.set_inheritable(number, True)  # noqa: FBT003 - its signature
    os.close(number)


def _interrupted(number: int, frame: object) -> None:  # noqa: ARG001 - what signal calls
    """End at once, in front of a command: nothing is under way that would have to be cleaned up, and a stack of them says nothing."""
    import os
    from contextlib import suppress

    with suppress(OSError):
        os.write(_STDERR, b"error: [PST-000] interrupted\n")
    os._exit(128 + number)
