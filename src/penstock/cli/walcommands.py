"""The commands `penstock wal ...` and their flags. `wal` does the work, and is loaded on use."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.answer import Answer, command
from penstock.cli.flags import CONTEXT, Json, Text, flag

wal = typer.Typer(
    help="Write-ahead logs: append lines, read them, check and mend a log.",
    no_args_is_help=True,
    context_settings=CONTEXT,
)
Directory = Annotated[str, typer.Argument(metavar="DIR", help="Directory of the log.", show_default=False)]


@wal.command()
@command
def append(
    *,
    directory: Directory,
    segment_size: Annotated[str, flag("--segment-size", "S", "Begin a segment before this size is passed.")] = "64m",
    as_json: Json = False,  # noqa: ARG001 - `command` reads it
) -> Answer:
    """Append the lines of standard input, each as a record; print the position after them once they are durable."""
    from penstock.cli import wal as commands

    return commands.append(directory, segment_size)


@wal.command()
@command
def read(
    *,
    directory: Directory,
    start: Annotated[Text, flag("--from", "SEG:OFF", "Begin at this position.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what is appended, until stopped.")] = False,
    mode: Annotated[
        str, flag("--mode", "M", "tail; strict: a torn end is an error; salvage: pass over damage.")
    ] = "tail",
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON object a record, with its position, then one.")
    ] = False,
) -> Answer:
    """Print the records, one on each line."""
    from penstock.cli import wal as commands

    return commands.read(directory, start, mode, follow=follow, as_json=as_json)


@wal.command()
@command
def info(*, directory: Directory, as_json: Json = False) -> Answer:  # noqa: ARG001 - `command` reads it
    """Show how many records there are, from which position to which."""
    from penstock.cli import wal as commands

    return commands.info(directory)


@wal.command()
@command
def verify(*, directory: Directory, as_json: Json = False) -> Answer:  # noqa: ARG001 - `command` reads it
    """Read everything, and check that it is what was appended."""
    from penstock.cli import wal as commands

    return commands.verify(directory)


@wal.command()
@command
def repair(*, directory: Directory, as_json: Json = False) -> Answer:  # noqa: ARG001 - `command` reads it
    """Cut a damaged log after its last valid record; what is cut is kept beside it."""
    from penstock.cli import wal as commands

    return commands.repair(directory)
