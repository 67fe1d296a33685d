"""The answer of a command, and how it is printed.

A command returns an `Answer`: facts, and a function that shows them to people. With `--json` the facts are printed as
one JSON object, and nothing else goes to stdout. An error is one message on stderr, with its code. With `--json` it is
also the object on stdout, so that there always is one. A traceback is printed only for `PENSTOCK_DEBUG=1`.
"""

from __future__ import annotations

import functools
import inspect
import io
import json
import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from penstock.cli.outset import attend
from penstock.cli.process import status_of
from penstock.clock import SECOND_NS
from penstock.errors import DEBUG, PenstockError, PipelinesError, StorageError, UsageError, debugging

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from rich.text import Text

    Show = Callable[[Console], None]

_PIPED_COLUMNS = 160  # a table that does not go to a terminal need not fit one
_ERROR_LINES = 3  # shown of an error that is not ours: Spark's texts go on for pages


def _show_nothing(console: Console) -> None:
    """Show nothing."""


@dataclass(frozen=True)
class Answer:
    """What a command found or did: `facts` for `--json`, `show` for people, and the exit status."""

    facts: dict[str, Any]
    show: Show = field(default=_show_nothing, repr=False)
    exit_status: int = 0


def command(function: Callable[..., Answer]) -> Callable[..., None]:
    """Return a command that prints what `function` answers and ends with its status; its parameter `as_json` chooses the form."""

    @functools.wraps(function)
    def run(**arguments: Any) -> None:  # noqa: ANN401 - the command's own
        attend()
        as_json = bool(arguments["as_json"])
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # a bucket may be named in any script
        try:
            answer = function(**arguments)
            print_answer(answer, as_json=as_json)
        except BrokenPipeError:
            # Our output has no reader any more, so nothing can be reported.
            os._exit(1)
        except KeyboardInterrupt as interrupt:
            _fail(PenstockError("interrupted"), status_of(interrupt), as_json=as_json)
        except PenstockError as error:
            _fail(error, error.exit_status, as_json=as_json)
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, a user gets a message and a status
            _fail(error, 1, as_json=as_json)
        raise typer.Exit(answer.exit_status)

    # The help would keep the source's line breaks in all paragraphs but the first.
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return run


def print_answer(answer: Answer, *, as_json: bool) -> None:
    """Print an answer to stdout."""
    if as_json:
        typer.echo(json.dumps(answer.facts))
    else:
        answer.show(console())


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints text unchanged: names and records are written by strangers.

    It does not interpret markup, and it escapes what a terminal would interpret or hide (`printable`).
    """
    from rich.console import Console

    class Plain(Console):
        def render_str(self, text: str, **style: Any) -> Text:  # noqa: ANN401 - the base's own
            return super().render_str(printable(text), **style)

    plain = Plain(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not plain.is_terminal:
        plain.width = _PIPED_COLUMNS
    return plain


def printable(text: str) -> str:
    r"""Return the text with each character that is not visible escaped, as in `\x1b`.

    These are controls, line breaks, marks that turn the direction of writing, and bytes that are not UTF-8.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def moment(time_ns: int) -> str:
    """Return a time for people and for JSON: ISO 8601 in UTC, to the millisecond."""
    when = datetime.fromtimestamp(time_ns / SECOND_NS, timezone.utc)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def print_misuse(error: Any, *, as_json: bool) -> None:  # noqa: ANN401 - click's UsageError, wherever typer has it
    """Print to stdout, with `--json`, what is wrong with the call of a command; whoever raised the error tells people."""
    if as_json:
        told = {"code": UsageError.code, "message": error.format_message()}
        typer.echo(json.dumps({"ok": False, "error": told}))


def _fail(error: BaseException, status: int, *, as_json: bool) -> NoReturn:
    if debugging():
        import traceback

        traceback.print_exc()
    message = _message(error)
    if as_json:
        code = error.code if isinstance(error, PenstockError) else None
        try:
            typer.echo(
                json.dumps({"ok": False, "error": {"code": code, "message": message.removeprefix(f"[{code}] ")}})
            )
        except StorageError as lost:  # the user should know of both
            message = "\n".join(dict.fromkeys((message, str(lost))))
    shown = "\n".join(map(printable, message.split("\n")))
    with suppress(OSError):  # stderr may be full, or have no reader; the status still tells
        typer.secho(f"error: {shown}", err=True, fg="red")
    raise typer.Exit(status)


def _message(error: BaseException) -> str:
    """Return an error as one message; for an error that is not ours only the beginning, and how to see the rest."""
    text = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) <= _ERROR_LINES or isinstance(error, PipelinesError):
        return "\n".join(lines)
    return "\n".join([*lines[:_ERROR_LINES], f"... (set {DEBUG}=1 to see all of it)"])
