"""The command `penstock`.

*What lives here.* `app` and `walcommands` have the commands and their flags (`flags`). Each command answers with facts (`answer`),
which are printed as one JSON object with `--json`, and as a table or a sentence without. `ingest`, `state`, `check`, `run`, `page` and
`demo` do the work, and import what they need when they run: `penstock --help` imports no Spark, no Arrow and no polars.

*What may be touched.* What the flags name, through the rooms that own it; standard output, standard error and the signals
of this process (`process`), which no other room may touch while it is a library.

*What it may know.* Every other room but `testing`; none of them knows it.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from penstock.errors import PenstockError

_STDOUT, _STDERR = 1, 2


def main() -> None:
    """Run the command with the arguments of this process, and end it: 0 ok, 1 failed, 2 usage, 3 damaged state."""
    from penstock.cli.outset import begin

    begin()
    from penstock.cli.app import app

    try:
        try:
            app()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except (OSError, PenstockError) as error:
        with suppress(OSError):
            print(f"error: {error}", file=sys.stderr, flush=True)  # noqa: T201 - how the command reports a failure
        _swallow(_STDOUT)
        raise SystemExit(_status_behind(error)) from None
    finally:
        try:
            if sys.stderr is not None:
                sys.stderr.flush()
        except OSError:  # no reader is left: the exit status still reports the outcome
            _swallow(_STDERR)


def _status_behind(error: BaseException) -> int:
    """Return the status of the failure that could not be reported, as for one that could; 1 if there was none but that."""
    behind = error.__context__
    while isinstance(behind, OSError):
        behind = behind.__context__
    return getattr(behind, "code", 0) or getattr(behind, "exit_code", 0) or 1


def _swallow(descriptor: int) -> None:
    """Send any output that is still buffered nowhere: Python would try to write it again at exit, and end with status 120."""
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), descriptor)
