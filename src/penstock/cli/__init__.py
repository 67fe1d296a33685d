"""The command `penstock`.

`app` has the commands and their flags; each answers with facts (`answer`), which are printed as one JSON object with
`--json` and as a table or a sentence without. `ingest`, `state`, `check` and `demo` do the work and load what they need
when they run: `penstock --help` imports no Spark, no Arrow and no polars.
"""

from __future__ import annotations


def main() -> None:
    """Run the command with the arguments of this process, and end it: 0 ok, 1 failed, 2 usage, 3 damaged state."""
    from penstock.cli.app import app

    app()
