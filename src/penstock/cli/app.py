"""The commands and their flags, as users see them. What they do is in the modules beside this one, loaded on use."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.answer import Answer, command

app = typer.Typer(
    name="penstock",
    help="Exactly-once file streams for Spark: files in, finished files out, each record exactly once.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Source = Annotated[str, typer.Argument(metavar="SRC", help="Directory or file to read.", show_default=False)]
Output = Annotated[str, typer.Argument(metavar="DST", help="Output directory.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")]
Text = str | None


@app.command()
@command
def ingest(  # noqa: PLR0913 - these are the flags of the command
    *,
    src: Source,
    dst: Output,
    format_: Annotated[Text, typer.Option("--format", help="Of SRC: text, json, csv, parquet, binary. [text]")] = None,
    to: Annotated[Text, typer.Option(help="Of DST: text, json, csv, parquet. [the format of SRC]")] = None,
    schema: Annotated[Text, typer.Option(help="Columns of json, csv, parquet: 'id bigint, name string'.")] = None,
    bucket_by: Annotated[Text, typer.Option(help="Directories: 'dt={ts:%Y-%m-%d}/country={country}'.")] = None,
    roll_size: Annotated[Text, typer.Option(help="Close a file before it passes this size. [128m]")] = None,
    roll_rows: Annotated[Text, typer.Option(help="Close a file at this many rows.")] = None,
    roll_interval: Annotated[Text, typer.Option(help="Close a file this long after it was opened. [15m]")] = None,
    roll_inactivity: Annotated[Text, typer.Option(help="Close a file this long after its last row. [1m]")] = None,
    checkpoint: Annotated[Text, typer.Option(metavar="DIR", help="[DST/_penstock/checkpoint]")] = None,
    watch: Annotated[bool, typer.Option("--watch/--once", help="Go on until stopped, or take what is there.")] = False,
    max_files: Annotated[Text, typer.Option(help="Files a batch.")] = None,
    max_bytes: Annotated[Text, typer.Option(help="Bytes a batch; cuts big files. [1g]")] = None,
    pattern: Annotated[Text, typer.Option(help="Regular expression on file names.")] = None,
    recursive: Annotated[bool, typer.Option("--recursive", help="Descend into directories.")] = False,
    compression: Annotated[Text, typer.Option(help="none, gzip, zstd; parquet also snappy, its default.")] = None,
    transform: Annotated[Text, typer.Option(metavar="MODULE:FUNCTION", help="From RecordBatch to RecordBatch.")] = None,
    master: Annotated[Text, typer.Option(help="Where Spark runs. [local[*]]")] = None,
    source_option: Annotated[list[str] | None, typer.Option(metavar="K=V", help="Any option of the source.")] = None,
    sink_option: Annotated[list[str] | None, typer.Option(metavar="K=V", help="Any option of the sink.")] = None,
    as_json: Json = False,
) -> Answer:
    """Take every record below SRC into finished files below DST, exactly once; again: what is new since.

    Ctrl-C stops it cleanly: what is committed is published, and the same command goes on from there.
    """
    from penstock.cli.ingest import Request, run

    flags = {
        "format": format_, "schema": schema, "maxFilesPerTrigger": max_files, "maxBytesPerTrigger": max_bytes,
        "pattern": pattern, "recursiveFileLookup": "true" if recursive else None,
    }  # fmt: skip
    to_flags = {
        "format": to, "bucketBy": bucket_by, "rollSize": roll_size, "rollRows": roll_rows, "rollInterval": roll_interval,
        "rollInactivity": roll_inactivity, "compression": compression,
    }  # fmt: skip
    request = Request.of(src, dst, (flags, source_option or []), (to_flags, sink_option or []), transform, checkpoint)
    return run(request, master=master, watch=watch, as_json=as_json)


@app.command()
@command
def status(*, dst: Output, as_json: Json = False) -> Answer:
    """Show open parts, the last batch and the writers of each sink in DST."""
    from penstock.cli import state

    return state.status(dst)


@app.command()
@command
def files(*, dst: Output, as_json: Json = False) -> Answer:
    """List the finished files of DST: bucket, batches, rows, bytes."""
    from penstock.cli import state

    return state.files(dst)


@app.command()
@command
def verify(
    *,
    dst: Output,
    source: Annotated[Text, typer.Option(metavar="SRC", help="Compare also record by record with SRC.")] = None,
    as_json: Json = False,
) -> Answer:
    """Check that every file the ledgers name is in DST, whole and once, and nothing else is.

    With --source: that every record read from SRC is in DST exactly once.
    """
    from penstock.cli import check

    return check.verify(dst, source, as_json=as_json)


@app.command()
@command
def finish(
    *,
    dst: Output,
    sink: Annotated[Text, typer.Option(metavar="ID", help="This sink only.")] = None,
    as_json: Json = False,
) -> Answer:
    """Publish what is committed and still open, for a query that will not come back. One that runs ends, fenced."""
    from penstock.cli import state

    return state.finish(dst, sink)


@app.command()
@command
def clean(
    *,
    dst: Output,
    yes: Annotated[bool, typer.Option("--yes", help="Remove; without it they are only listed.")] = False,
    as_json: Json = False,
) -> Answer:
    """Remove staged files and temporaries in DST that no ledger names, left by crashes."""
    from penstock.cli import state

    return state.clean(dst, yes=yes)


@app.command()
@command
def warmup(*, as_json: Json = False) -> Answer:
    """Prepare fast starts on this machine: a class-data archive in your cache. Never required."""
    from penstock.cli import warm

    return warm.warmup(as_json=as_json)


@app.command()
@command
def demo(
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the files.")] = False,
    directory: Annotated[Text, typer.Option("--dir", metavar="DIR", help="Work here. [a temporary one]")] = None,
    as_json: Json = False,
) -> Answer:
    """Ingest this machine's Python sources, killed twice on the way and watched by a reader, then verify every record."""
    from penstock.cli import demo as shown

    return shown.demo(directory, keep=keep, as_json=as_json)
