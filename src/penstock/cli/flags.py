"""The flags that several commands share, and the function that makes a flag."""

from __future__ import annotations

from typing import Annotated, Any

import typer

CONTEXT = {"help_option_names": ["-h", "--help"]}
Sources = Annotated[
    list[str], typer.Argument(metavar="SRC", help="Directories, files or globs to read.", show_default=False)
]
Source = Annotated[str, typer.Argument(metavar="SRC", help="Directory, file or glob that is read.", show_default=False)]
Output = Annotated[str, typer.Argument(metavar="DST", help="Output directory.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")]
Text = str | None
Pairs = list[str] | None


def flag(name: str, metavar: str, text: str) -> Any:  # noqa: ANN401 - typer's own type is private
    """Return an option for `Annotated`: its name, the name of its value in the help, and the help text, which is not markup."""
    from rich.markup import escape

    return typer.Option(name, metavar=metavar, help=escape(text))


Key = Annotated[Text, flag("--key", "REF", "Where the key of encrypted files is: env:NAME or file:PATH.")]
Page = Annotated[Text, flag("--page", "ADDR", "Show what happens in a browser, at :PORT (this machine) or HOST:PORT.")]
Token = Annotated[
    Text, flag("--page-token", "REF", "Where the token of onlookers is (env:NAME, file:PATH); this machine needs none.")
]

Watch = Annotated[bool, typer.Option("--watch/--once", help="Go on until stopped, or take what is there.")]
Pattern = Annotated[Text, flag("--pattern", "R", "Regular expression that file names must match.")]
Recursive = Annotated[bool, typer.Option("--recursive", help="Descend into directories.")]
SourceOptions = Annotated[Pairs, flag("--source-option", "K=V", "Any option of the source, repeatable.")]
OneSink = Annotated[Text, typer.Option(metavar="ID", help="This sink only.")]
QueryCheckpoint = Annotated[Text, flag("--checkpoint", "DIR", "The checkpoint of the query, if it was moved.")]
QueryOptions = Annotated[
    Pairs, flag("--source-option", "K=V", "Option of a source that was not an ingest's, repeatable.")
]
QueryEnded = Annotated[bool, typer.Option("--query-ended", help="You have seen that the query has ended.")]
