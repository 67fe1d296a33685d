"""The commands and their flags, as users see them. The modules beside this one do the work, and are loaded on use."""

from __future__ import annotations

from itertools import pairwise, takewhile
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from penstock.cli.answer import Answer, command, print_misuse
from penstock.cli.flags import (
    CONTEXT,
    Json,
    Key,
    OneSink,
    Output,
    Page,
    Pairs,
    Pattern,
    QueryCheckpoint,
    QueryEnded,
    QueryOptions,
    Recursive,
    Source,
    SourceOptions,
    Sources,
    Text,
    Token,
    Watch,
    flag,
)
from penstock.cli.walcommands import wal
from penstock.options.formats import DEFAULT, READ, WRITTEN

_MISUSE: Any = typer.BadParameter.__base__  # click's UsageError, which versions of typer have in different places


class _Commands(TyperGroup):
    """The commands: with `--json` a wrong call, such as an unknown command or flag, is answered with an object, too."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:  # noqa: ANN401 - typer's own types are private
        self._as_json = "--json" in args
        try:
            return super().make_context(info_name, args, *more, **extra)
        except _MISUSE as error:
            print_misuse(error, as_json=self._as_json)
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - typer's own types are private
        name, found, rest = super().resolve_command(ctx, args)
        _check_once(ctx, found, rest)
        return name, found, rest

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - typer's own type is private
        try:
            return super().invoke(ctx)
        except _MISUSE as error:
            print_misuse(error, as_json=self._as_json)
            raise


def _check_once(ctx: Any, found: Any, args: list[str]) -> None:  # noqa: ANN401 - typer's own types are private
    """Raise a usage error for a flag with one value that is given twice: the parser would take the last one without a word."""
    flags = {name: each for each in found.params if each.param_type_name == "option" for name in each.opts}
    words, before = iter(takewhile(lambda word: word != "--", args)), set[str]()
    for word in words:
        name, has_value, _ = word.partition("=")
        if name not in flags or flags[name].is_flag:
            continue
        if name in before and not flags[name].multiple:
            msg = f"{name} is given twice; leave one of them out."
            raise _MISUSE(msg, ctx)
        before.add(name)
        if not has_value:
            next(words, None)


app = typer.Typer(
    name="penstock",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
)


class _Accepts(TyperCommand):
    """A command whose `--accept` may stand alone and then means `--accept '*'`: typer has no flag with an optional value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own type is private
        given: list[str] = []
        for word, following in pairwise([*args, "--"]):
            given += [word, "*"] if word == "--accept" and following.startswith("-") else [word]
        return super().parse_args(ctx, given)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - what typer calls
    if wanted:
        from penstock.cli.version import lines

        typer.echo("\n".join(lines()))
        raise typer.Exit


@app.callback(
    epilog="Ends with 0: ok, 1: failed, 2: usage, 3: damaged state, 129, 130 or 143: stopped by SIGHUP, Ctrl-C or SIGTERM."
)
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show what is installed, and end.")
    ] = False,
) -> None:
    """Exactly-once file streams for Spark: files in, finished files out, each record exactly once."""


@app.command()
@command
def ingest(  # noqa: PLR0913 - these are the flags of the command
    *,
    src: Sources,
    dst: Output,
    format_: Annotated[Text, flag("--format", "F", f"Format of SRC: {', '.join(READ)}; {DEFAULT} by default.")] = None,
    to: Annotated[Text, flag("--to", "F", f"Format of DST: {', '.join(WRITTEN)}; that of SRC by default.")] = None,
    schema: Annotated[
        Text, flag("--schema", "DDL", "Columns of SRC, such as 'id bigint, name string'; or infer.")
    ] = None,
    bucket_by: Annotated[Text, flag("--bucket-by", "T", "Directories, such as 'dt={ts:%Y-%m-%d}/{city}'.")] = None,
    roll_size: Annotated[Text, flag("--roll-size", "S", "Close a file before it passes this size (128m).")] = None,
    roll_rows: Annotated[Text, flag("--roll-rows", "N", "Close a file at this many rows.")] = None,
    roll_interval: Annotated[Text, flag("--roll-interval", "D", "Close a file at this age (15m).")] = None,
    roll_inactivity: Annotated[
        Text, flag("--roll-inactivity", "D", "Close a file that was idle for this time (1m).")
    ] = None,
    checkpoint: Annotated[
        Text, flag("--checkpoint", "DIR", "Records what was read (DST/_penstock/checkpoint).")
    ] = None,
    watch: Watch = False,
    interval: Annotated[Text, flag("--interval", "D", "With --watch: how often to look for files (1s).")] = None,
    max_files: Annotated[Text, flag("--max-files", "N", "At most this many files in a batch.")] = None,
    max_bytes: Annotated[Text, flag("--max-bytes", "S", "At most this many bytes in a batch; cuts files (1g).")] = None,
    pattern: Pattern = None,
    recursive: Recursive = False,
    compression: Annotated[Text, flag("--compression", "C", "none, gzip, zstd; for tables also snappy.")] = None,
    transform: Annotated[Text, flag("--transform", "MODULE:FUNCTION", "Takes and returns a RecordBatch.")] = None,
    sql: Annotated[Text, flag("--sql", "SELECT", "Instead: 'select id, name from input where id > 0'.")] = None,
    master: Annotated[Text, flag("--master", "M", "Where Spark runs (local[*]).")] = None,
    source_option: SourceOptions = None,
    sink_option: Annotated[Pairs, flag("--sink-option", "K=V", "Any option of the sink, repeatable.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be read and written; write nothing, start no Spark.")
    ] = False,
    page: Page = None,
    page_token: Token = None,
    as_json: Json = False,
) -> Answer:
    """Take every record below SRC into finished files below DST, exactly once; run again, it takes what is new.

    Ctrl-C, SIGTERM and SIGHUP (unless nohup ignores it) stop it cleanly: what is committed is published, and the same command goes
    on from there. It ends with 0 when it has taken everything, or a watch was stopped; with 130, 143 or 129 when it was stopped before.
    """
    from penstock.cli.early import begun
    from penstock.cli.process import jsonable_stdout

    flags = {
        "format": format_, "schema": schema, "maxFilesPerTrigger": max_files, "maxBytesPerTrigger": max_bytes,
        "pattern": pattern, "recursiveFileLookup": "true" if recursive else None,
    }  # fmt: skip
    to_flags = {
        "format": to, "compression": compression, "bucketBy": bucket_by, "rollSize": roll_size, "rollRows": roll_rows,
        "rollInterval": roll_interval, "rollInactivity": roll_inactivity,
    }  # fmt: skip
    has_functions = transform is not None or any(
        pair.partition("=")[0].lower() == "onpublish" for pair in sink_option or []
    )
    has_page = page is not None or page_token is not None
    kind = {"watch": watch, "dry": dry_run, "has_functions": has_functions, "has_page": has_page}
    look = begun(src, dst, (flags, source_option or []), checkpoint, master, **kind)
    with jsonable_stdout(as_json) as write, look as has_work:
        from penstock.cli.dry import preview  # all these need Arrow, which takes as long as a JVM to begin
        from penstock.cli.ingest import Request, run, transformed, watched

        every = watched(interval, watch=watch)
        ends = (flags, source_option or []), (to_flags, sink_option or [])
        if dry_run:
            return preview(Request.of(src, dst, *ends, transformed(transform, sql), checkpoint, dry=True), watch=every)
        request = Request.of(src, dst, *ends, transformed(transform, sql), checkpoint)
        onlooker = None
        if has_page:
            from penstock.cli.page.ingest import IngestPage
            from penstock.cli.page.request import requested

            onlooker = IngestPage(requested(page, page_token), request)
        output: dict[str, Any] = {"as_json": as_json, "write": write}
        return run(request, master=master, watch=every, has_work=has_work, onlooker=onlooker, **output)


@app.command()
@command
def schema(
    *,
    src: Sources,
    format_: Annotated[
        Text, flag("--format", "F", f"Format of SRC: {', '.join(READ)}; by the names of its files.")
    ] = None,
    sample: Annotated[
        Text, flag("--sample", "S", "Look at about this many bytes, spread over the files (64m).")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Look at everything.")] = False,
    pattern: Pattern = None,
    recursive: Recursive = False,
    source_option: SourceOptions = None,
    as_json: Json = False,  # noqa: ARG001 - `command` reads it
) -> Answer:
    """Print the columns of SRC as DDL, for --schema, with the types that Spark infers. Needs no Spark.

    Stderr has what else there is to say: columns with values of several kinds, and from how much they were inferred.
    """
    from penstock.cli import schema as commands

    flags = {"format": format_, "pattern": pattern, "recursiveFileLookup": "true" if recursive else None}
    return commands.schema(src, flags, source_option or [], sample=sample, everything=everything)


@app.command()
@command
def status(*, dst: Output, as_json: Json = False) -> Answer:  # noqa: ARG001 - `command` reads it
    """Show open parts, the last batch and the writers of each sink in DST."""
    from penstock.cli import state

    return state.status(dst)


@app.command()
@command
def files(
    *,
    dst: Output,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print a line for each finished file as it is published, until stopped.")
    ] = False,
    start: Annotated[
        Text, flag("--from", "W", "With --follow: earliest (default), latest, a record: 12, SINK:12, or an `after`.")
    ] = None,
    sink: Annotated[Text, typer.Option(metavar="ID", help="With --follow: this sink only.")] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object; with --follow one for each event, and one at the end."),
    ] = False,
) -> Answer:
    """List the finished files of DST: bucket, batches, rows, bytes.

    With --follow: what is published, in the order of the ledger, each once; from the beginning, then as it comes.
    """
    from penstock.cli import published, state

    if follow:
        return published.follow(dst, start, sink, as_json=as_json)
    published.check_not_given({"--from": start, "--sink": sink})
    return state.files(dst)


@app.command()
@command
def catalog(
    *,
    dst: Output,
    iceberg: Annotated[Text, flag("--iceberg", "NS.TABLE", "A table of Iceberg, such as logs.events.")] = None,
    catalog_: Annotated[
        Text,
        flag(
            "--catalog", "NAME|URI", "One of pyiceberg's configuration, or sqlite:////FILE. [DST/_iceberg/catalog.db]"
        ),
    ] = None,
    delta: Annotated[bool, typer.Option("--delta", help="A table of Delta, whose log is in DST.")] = False,
    sink: OneSink = None,
    skip: Annotated[
        Pairs, flag("--skip", "GLOB", "Skip files below DST that cannot be in the table; repeatable.")
    ] = None,
    watch: Watch = False,
    interval: Annotated[Text, flag("--interval", "D", "With --watch: how often to look for files (10s).")] = None,
    as_json: Json = False,  # noqa: ARG001 - `command` reads it
) -> Answer:
    """Bring the finished Parquet files of DST into a table of Iceberg or Delta, each exactly once; run again, it brings in what is new.

    Nothing is copied: the table names the files where they are. It keeps how far it has got by itself, so this may be killed at any time.
    """
    from penstock.cli import catalog as commands

    options = {"iceberg": iceberg, "delta": delta, "catalog": catalog_, "sink": sink, "skip": skip or []}
    return commands.catalog(dst, options, watch=watch, interval=interval)


@app.command()
@command
def verify(
    *,
    dst: Output,
    source: Annotated[Text, typer.Option(metavar="SRC", help="Also compare with SRC, record by record.")] = None,
    transform: Annotated[
        Text, flag("--transform", "MODULE:FUNCTION", "The transform of the ingest, with --source.")
    ] = None,
    key: Key = None,
    mended: Annotated[Text, flag("--mended", "DIR", "Directory of the mended files that retry has taken in.")] = None,
    as_json: Json = False,
) -> Answer:
    """Check that every file the ledgers name is in DST, whole and once, and nothing else is.

    With --source: that every record read from SRC is in DST exactly once.
    """
    from penstock.cli import check

    return check.verify(dst, source, transform=transform, key=key, mended=mended, as_json=as_json)


@app.command()
@command
def finish(
    *,
    dst: Output,
    sink: OneSink = None,
    part: Annotated[
        Text, flag("--part", "NAME", "Only this part, or this bucket, as status shows it; . means no bucket.")
    ] = None,
    as_text: Annotated[
        bool, typer.Option("--as-text", help="Write columns that a file cannot hold (PST-304) as JSON text.")
    ] = False,
    as_json: Json = False,  # noqa: ARG001 - `command` reads it
) -> Answer:
    """Publish what is committed and still open, for a query that will not come back. If it still runs, it is fenced and ends."""
    from penstock.cli import state

    return state.finish(dst, sink, part, as_text=as_text)


@app.command()
@command
def retry(
    *,
    dst: Output,
    mended: Annotated[
        Text, flag("--mended", "FILE|DIR", "Lines of the quarantine with mended bytes; mended files.")
    ] = None,
    sink: OneSink = None,
    transform: Annotated[Text, flag("--transform", "MODULE:FUNCTION", "That of the ingest.")] = None,
    key: Key = None,
    as_json: Json = False,  # noqa: ARG001 - `command` reads it
) -> Answer:
    """Take in records and files that were set aside and can be read now, each once. A query that still runs is fenced and ends."""
    from penstock.cli import retry as commands

    return commands.retry(dst, mended=mended, sink=sink, transform=transform, key=key)


@app.command()
@command
def clean(
    *,
    dst: Output,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them; without this they are only listed.")] = False,
    as_json: Json = False,  # noqa: ARG001 - `command` reads it
) -> Answer:
    """Remove staged files and temporaries in DST that no ledger names, left by crashes."""
    from penstock.cli import state

    return state.clean(dst, yes=yes)


@app.command()
@command
def replan(
    *,
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="Checkpoint of the query.", show_default=False)
    ],
    dst: Annotated[Text, typer.Argument(metavar="[DST]", help="Its output, if penstock writes it.")] = None,
    nothing_written: Annotated[
        bool,
        typer.Option(
            "--nothing-written", help="You have seen that the query has ended, and has written nothing of the batch."
        ),
    ] = False,
    give_up_rest: Annotated[
        bool, typer.Option("--give-up-rest", help="Do not read the rest of a file that was cut over several batches.")
    ] = False,
    as_json: Json = False,  # noqa: ARG001 - `command` reads it
) -> Answer:
    """Have the failed batch planned again by the next start of its query: its files were mended, or are gone.

    Refused if the batch is committed, or may be. An ingest needs no such command: it is run again.
    """
    from penstock.cli import replan as commands

    return commands.replan(checkpoint, dst, nothing_written=nothing_written, give_up_rest=give_up_rest)


@app.command()
@command
def adopt(
    *,
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="What Spark's own file sink wrote.", show_default=False)
    ],
    unlisted: Annotated[
        Text, flag("--unlisted", "W", "Files that Spark's log does not list: aside (out of sight), or keep.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only look: name everything that is not listed, or is missing.")
    ] = False,
    as_json: Json = False,  # noqa: ARG001 - `command` reads it
) -> Answer:
    """Take over an output of Spark's own streaming file sink, so that a query of penstock's can go on in it.

    Stop Spark's query first. Files that its log lists stay, and are known to status, files and verify. The log is moved aside,
    so that Spark's readers see all files. May be repeated.
    """
    from penstock.cli import adopt as commands

    return commands.adopt(directory, unlisted, dry_run=dry_run)


@app.command(cls=_Accepts)
@command
def late(
    *,
    src: Source,
    dst: Output,
    accept: Annotated[
        Pairs,
        flag("--accept", "[GLOB]", "Have late files read by the next start; without GLOB all of them; repeatable."),
    ] = None,
    dismiss: Annotated[Pairs, flag("--dismiss", "GLOB", "Take late files off the list, unread; repeatable.")] = None,
    checkpoint: QueryCheckpoint = None,
    source_option: QueryOptions = None,
    query_ended: QueryEnded = False,
    as_json: Json = False,  # noqa: ARG001 - `command` reads it
) -> Answer:
    """List the files of SRC that the query which writes DST has not read: too late, held back, in the future.

    With --accept the next start of the query reads late ones, each once; no file is touched. Refused while the query runs.
    """
    from penstock.cli import late as commands

    return commands.late(src, dst, accept, dismiss, checkpoint, source_option or [], query_ended=query_ended)


@app.command()
@command
def reset(
    *,
    src: Source,
    dst: Output,
    yes: Annotated[
        bool, typer.Option("--yes", help="Set it back; without this, what would be read again is only shown.")
    ] = False,
    checkpoint: QueryCheckpoint = None,
    source_option: QueryOptions = None,
    query_ended: QueryEnded = False,
    as_json: Json = False,  # noqa: ARG001 - `command` reads it
) -> Answer:
    """Have the query that writes DST read SRC from the beginning again, as if it had read nothing.

    What DST has stays, so what is read again is there twice. Refused while the query runs.
    """
    from penstock.cli import reset as commands

    return commands.reset(src, dst, checkpoint, source_option or [], yes=yes, query_ended=query_ended)


@app.command()
@command
def doctor(
    *,
    url: Annotated[
        Text, typer.Argument(metavar="[URL]", help="A place for output, to be tried.", show_default=False)
    ] = None,
    as_json: Json = False,  # noqa: ARG001 - `command` reads it
) -> Answer:
    """Check this machine: what works and what does not, with what to do. Starts no Spark.

    With URL: try whether an output can be written, listed and published there; what is created is removed.
    """
    from penstock.cli.doctor import doctor as look

    return look(url)


@app.command()
@command
def run(
    *,
    file: Annotated[str, typer.Argument(metavar="FILE", help="TOML, or a directory of *.toml.", show_default=False)],
    metrics: Annotated[
        Text, flag("--metrics", "ADDR", "Answer Prometheus, /health and /ready at :PORT (this machine) or HOST:PORT.")
    ] = None,
    otel: Annotated[
        bool, typer.Option("--otel", help="Send metrics, and a trace for each batch, by OpenTelemetry (OTEL_*).")
    ] = False,
    page: Page = None,
    page_token: Token = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Log lines of JSON on stdout; the last one is the result.")
    ] = False,
) -> Answer:
    """Run the pipelines of FILE in one Spark, each with its own schedule and its own failures. docs/run.md has the keys.

    SIGHUP reloads FILE, and unchanged pipelines run on; SIGTERM and Ctrl-C let the batches under way end, then it ends.
    """
    from penstock.cli.page.request import requested
    from penstock.cli.process import jsonable_stdout
    from penstock.cli.run import commands

    wanted = None if page is None and page_token is None else requested(page, page_token)
    with jsonable_stdout(as_json) as write:
        return commands.run(file, metrics=metrics, otel=otel, page=wanted, as_json=as_json, write=write)


@app.command("page")
@command
def live_page(
    *,
    dst: Output,
    at: Annotated[str, flag("--at", "ADDR", "Answer browsers at :PORT (this machine) or HOST:PORT.")] = ":8080",
    page_token: Token = None,
    as_json: Json = False,  # noqa: ARG001 - `command` reads it
) -> Answer:
    """Show what DST has and what happens to it, in a browser, until stopped. Read only; needs no Spark.

    It shows what is open and finished, what was set aside or came late, and the last result of verify. The page of a query's own command,
    penstock run --page, shows its errors and speed, too.
    """
    from penstock.cli.page.commands import page

    return page(dst, at, page_token)


@app.command()
@command
def check(
    *,
    file: Annotated[
        Text, typer.Argument(metavar="FILE", help="TOML, or a directory of *.toml.", show_default=False)
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of such files, for editors.")] = False,
    as_json: Json = False,  # noqa: ARG001 - `command` reads it
) -> Answer:
    """Check the pipelines of FILE: every mistake, with line and key. Writes nothing and starts no Spark.

    Ends with 2 if the file has mistakes, with 1 if only something that it names is wrong, such as a missing input.
    """
    from penstock.cli.run import commands

    if schema:
        return commands.json_schema()
    if file is None:
        message = "FILE is missing: expected a file of pipelines, or --schema"
        raise typer.BadParameter(message)
    return commands.check(file)


@app.command()
@command
def init(
    *,
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="A directory with some of the files to be read.", show_default=False)
    ],
    file: Annotated[str, flag("--file", "FILE", "The new file, which must not exist; - prints it.")] = "pipelines.toml",
    to: Annotated[Text, flag("--to-dir", "DST", "Output directory of the pipeline (DIR-out).")] = None,
    format_: Annotated[Text, flag("--format", "F", f"Of DIR: {', '.join(READ)}; by the names of its files.")] = None,
    as_json: Json = False,  # noqa: ARG001 - `command` reads it
) -> Answer:
    """Write a first file of pipelines from a look at DIR: format, columns, size. Needs no Spark."""
    from penstock.cli.run import commands

    return commands.init(directory, dst=to, file=file, format_name=format_)


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
    """Ingest this machine's Python sources, killed twice on the way, watched by a reader; then verify every record."""
    from penstock.cli.demo import play

    return play(directory, keep=keep, as_json=as_json)


app.add_typer(wal, name="wal")
