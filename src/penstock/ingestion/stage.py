"""The stage between source and sink of an ingest: it carries splits, not records.

The source emits the splits of its plan as rows (`emit=splits`), one row for each task. The sink's task opens them, reads,
transforms and writes, as Arrow or bytes in one Python process. Plan and ledger are the same as in every other query; no record
crosses into the JVM.

A transform is a function of the user, and the user who runs a query is trusted. So the stage of a running query travels in its
options, as a `LiveStage`, and the function that it names is loaded. Users who may only write to the output are not trusted. So a
stage in the sink's notes is a `NotedStage`, and repeating it needs a transform that the caller names (`Stage.repeated`). No code
here turns one into the other.
"""

from __future__ import annotations

import inspect
import json
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, cast

from penstock.errors import OptionError, PenstockError
from penstock.formats import decoder, format_named
from penstock.formats.account import Account, Watch
from penstock.formats.conforming import conform
from penstock.formats.families import RecordFormat
from penstock.formats.schema import to_arrow, to_spark
from penstock.formats.strings import checked
from penstock.formats.zones import UTC, zone_name
from penstock.ingestion.sql.query import Sql
from penstock.ingestion.topics import TopicRows
from penstock.options import SINK, SOURCE, Option, Options, parse
from penstock.options.topics import is_topics
from penstock.processes import no_collection
from penstock.session import functions
from penstock.sink.existing import SQL, STAGE
from penstock.sink.names import has_columns
from penstock.source import configured
from penstock.source.cursor import Split
from penstock.source.named import NameColumns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Protocol, TypeAlias

    import pyarrow as pa

    from penstock.formats.aside import Aside
    from penstock.sink.existing import NotedStage
    from penstock.source.read import Reading

    class Calls(Protocol):
        """What an ingest needs from a `penstock.AsyncMap`."""

        @property
        def drain(self) -> float | None:
            """Return after how many seconds a batch leaves unfinished calls to the next batch."""

        def schema(self, carried: pa.Schema) -> pa.Schema:
            """Return the schema of the output for the schema of an input; `OptionError` if they do not fit together."""

        def shared_by(self, tasks: int) -> Calls:
            """Return the same map for one of `tasks` tasks that share the rate."""

        def operator_id(self, carried: pa.Schema) -> str:
            """Return the name of the operator in the ids of its calls."""

        def stream(self, batches: Iterator[pa.RecordBatch], *, operator: str) -> Iterator[pa.RecordBatch]:
            """Yield the output of a task's rows."""

    class Carrier(Protocol):
        """Reads what is carried if that is not splits of a plan: files that rows name, or ranges of topics."""

        @property
        def schema(self) -> pa.Schema:
            """The columns of the rows."""

        @property
        def passes_lines(self) -> bool:
            """Whether a line of text is a whole record, so that `text` can be called."""

        def rows(
            self, batches: list[pa.RecordBatch], account: Account, aside: Aside | None
        ) -> Iterator[pa.RecordBatch]:
            """Yield the records of what was carried."""

        def text(self, batches: list[pa.RecordBatch], aside: Aside | None) -> Iterator[bytes]:
            """Yield the lines of what was carried."""

    Transform: TypeAlias = Callable[[Any], Any] | Calls
    Applied: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch] | Calls
    Carried: TypeAlias = list[Split] | list[pa.RecordBatch]  # splits of a plan, or what a `Carrier` reads

_PICKLED = "pickle:"


@dataclass(frozen=True)
class LiveStage:
    """The stage of a running query, as text: what a live caller gave to `Stage.describe`, including functions.

    It is made only there, and from the options that Spark gives to the processes of its query (`LIVE_SINK`): text that was read
    from a file can never become one.
    """

    text: str

    @staticmethod
    def option(value: str, name: str) -> LiveStage:  # noqa: ARG004 - a parser
        """Return the stage from an option of a running query."""
        return LiveStage(value)


# The options of a running query's sink: those of users, and the stage of an ingest.
LIVE_SINK = (*SINK, Option(STAGE, None, LiveStage.option, "the stage of an ingest, set by penstock.ingest"))


@dataclass(frozen=True)
class Stage:
    """How the splits of an ingest become the rows of its sink.

    `columns` are set if rows are read with an earlier schema: the columns that they get. `carrier` reads what is not a plan of
    files.
    """

    options: Options
    reading: Reading
    transform: Applied | None
    schema: pa.Schema
    columns: pa.Schema | None = None
    carrier: Carrier | None = None

    @staticmethod
    def describe(
        source: Mapping[str, str],
        schema: str,
        transform: Transform | str | None,
        tasks: int = 1,
        names: NameColumns | None = None,
    ) -> LiveStage:
        """Return the stage as the text that travels in the sink's options.

        `schema` is Spark's JSON for what the source reads, `tasks` the number of tasks that share a rate. `names` are the columns
        of rows that name files, if rows do. The transform is called here with an empty batch, to learn its schema: `OptionError`
        if that fails.
        """
        options, reading, carrier = _reading(source, schema)
        if options["badRecordColumn"]:
            msg = "badRecordColumn is for a query of your own; an ingest sets aside in files below its output; leave it out"
            raise OptionError(msg)
        empty = _empty(configured.expected_schema(options, reading) if carrier is None else carrier.schema)
        packed = _packed(transform)
        try:
            function = _function(packed, options)
        except OptionError:
            raise
        except (Exception, SystemExit) as error:  # pickling a user's function may raise anything
            raise _not_loaded(transform, error) from error
        try:
            out = to_spark(_output_schema(function, empty))
        except OptionError:
            raise
        except (Exception, SystemExit) as error:  # a user's function may raise anything
            msg = f"transform {transform!r} fails on an empty batch, which shows its columns: {_told(error)}; make it accept one"
            raise OptionError(msg) from error
        form: dict[str, Any] = {"source": source, "schema": schema, "transform": packed, "tasks": tasks, "out": out}
        if names is not None:
            form["names"] = names.to_json()
        return LiveStage(json.dumps(form))

    @staticmethod
    @lru_cache(maxsize=8)
    def of(live: LiveStage) -> Stage:
        """Return the stage that `describe` made, and load the function that it names or holds."""
        form = json.loads(live.text)
        options, reading, carrier = _reading(form["source"], form["schema"])
        function = _function(form["transform"], options)
        if function is not None and not callable(function):
            function = function.shared_by(form.get("tasks", 1))
        if "names" in form:
            carrier = NameColumns.from_json(form["names"]).files(options, reading)
        return Stage(options, reading, function, to_arrow(form["out"]), carrier=carrier)

    @staticmethod
    def repeated(noted: NotedStage, source: str, transform: Applied | None) -> Stage:
        """Return the stage that an ingest noted, for the source `source`, with a transform that the caller has loaded by `named`.

        SQL need not be named: it is not code, and comes from the note.
        """
        options, reading, carrier = _reading({**noted.source, "path": source}, noted.schema)
        if noted.sql is not None:
            transform = _query(noted.sql, options)
            columns = configured.expected_schema(options, reading) if carrier is None else carrier.schema
            transform(_empty(columns))  # raises now if the SQL is invalid
        return Stage(options, reading, transform, to_arrow(noted.out), carrier=carrier)

    @property
    def plain_text(self) -> bool:
        """Tell whether lines pass unchanged. They do not if another separator ends a record, which may then have several lines."""
        fmt = self.reading.format
        if fmt.line_sep not in {None, b"\n"} or (self.carrier is not None and not self.carrier.passes_lines):
            return False
        one_column = len(fmt.schema) == 1  # further columns are those that directories name
        passes = self.reading.form.as_lines and self.transform is None and self.reading.metadata is None and one_column
        return passes and self.reading.gives_utf8

    @property
    def read_schema(self) -> pa.Schema:
        """The columns of what is read, before the transform."""
        return configured.expected_schema(self.options, self.reading) if self.carrier is None else self.carrier.schema

    @property
    def is_ours(self) -> bool:
        """Tell whether no function of a user is called."""
        return self.transform is None or isinstance(self.transform, Sql)

    def carried(self, rows: Iterator[pa.RecordBatch]) -> tuple[Stage, Carried]:
        """Return the splits that were carried here, and this stage with the time zone of their plan."""
        self._load_libraries()
        if self.carrier is not None:
            return self, list(rows)
        with no_collection():
            plan = [json.loads(entry) for batch in rows for entry in batch.column("splits").to_pylist()]
            splits = [Split.from_json(split) for entry in plan for split in entry["splits"]]
        reading = self.reading.in_zone(plan[0]["zone"]) if plan else self.reading
        return replace(self, reading=reading), splits

    def by_schema(self, schema: str) -> Stage:
        """Return the stage for data that was read with this schema, Spark's JSON; columns that have changed since are null."""
        reading = configured.reading(self.options, schema)
        if reading.columns == self.reading.columns and reading.format.schema == self.reading.format.schema:
            return self
        return replace(self, reading=reading, columns=configured.expected_schema(self.options, self.reading))

    def setting_aside(self, aside: Aside) -> Stage:
        """Return the stage with a place for what is set aside."""
        return replace(self, reading=replace(self.reading, aside=aside))

    def _load_libraries(self) -> None:
        """Import what the task will need, while the sender of its splits still starts."""
        # A task has one core. Spark tells libraries so by OMP_NUM_THREADS; polars has its own variable.
        os.environ.setdefault("POLARS_MAX_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
        if isinstance(self.reading.form, RecordFormat):
            with suppress(OptionError):  # for text whose schema has columns that directories name
                decoder(self.reading.format)

    def read(
        self, splits: Carried, account: Account | None = None, *, text: bool, errors: str
    ) -> Iterator[pa.RecordBatch | bytes]:
        """Yield the rows of splits; lines as bytes if `text`.

        A transform may return strings that are not UTF-8; `errors` says what becomes of them.
        """
        if text:
            yield from self._text(splits)
            return
        plain = self._plain(splits, Account() if account is None else account)
        if self.columns is not None:
            plain = (_with_columns(batch, self.columns) for batch in plain)
        if account is not None:
            plain = Watch(self.read_schema, account, self.reading.format.rescued).through(plain)
        if self.transform is None:
            yield from plain
        elif callable(self.transform):
            yield from (checked(conform(_applied(self.transform, batch), self.schema), errors) for batch in plain)
        else:
            operator = self.transform.operator_id(self.read_schema)
            answers = self.transform.stream(plain, operator=operator)
            yield from (checked(conform(batch, self.schema), errors) for batch in answers)

    def _text(self, carried: Carried) -> Iterator[bytes]:
        """Yield lines as bytes."""
        if self.carrier is None:
            return self.reading.text(cast("list[Split]", carried))
        return self.carrier.text(cast("list[pa.RecordBatch]", carried), self.reading.aside)

    def _plain(self, carried: Carried, account: Account) -> Iterator[pa.RecordBatch]:
        """Yield the rows as they are read, before any transform."""
        if self.carrier is None:
            return configured.rows(self.options, self.reading, tuple(cast("list[Split]", carried)), account)
        return self.carrier.rows(cast("list[pa.RecordBatch]", carried), account, self.reading.aside)


class CarriedRows:
    """The rows of the splits that are carried to a task, read again at each iteration; lines as bytes if `text`.

    `errors` is as in `Stage.read`. Facts about the records that reports need are counted in `account`, and what is set aside goes
    to `aside`.
    """

    def __init__(
        self,
        stage: Stage,
        carried: Iterator[pa.RecordBatch],
        account: Account,
        aside: Aside,
        *,
        text: bool,
        errors: str,
    ) -> None:
        self._stage = stage
        self._carried = carried
        self._account = account
        self._aside = aside
        self._text = text
        self._errors = errors

    @cached_property
    def _splits(self) -> tuple[Stage, Carried]:
        return self._stage.carried(self._carried)

    def __iter__(self) -> Iterator[pa.RecordBatch | bytes]:
        """Yield the rows."""
        stage, splits = self._splits
        yield from stage.setting_aside(self._aside).read(splits, self._account, text=self._text, errors=self._errors)


def passes_text(sink: Options) -> bool:
    """Tell whether an ingest into this sink neither parses rows nor places them by columns, so that lines need not become Arrow."""
    placed = sink["bucketBy"] or has_columns(sink["fileName"])
    return format_named(sink["format"]).as_lines and not placed and Stage.of(sink[STAGE]).plain_text


def _with_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with these columns; a column that the rows lack is null."""
    import pyarrow as pa

    read = {field.name: column for field, column in zip(batch.schema, batch.columns, strict=True)}
    same = {field.name for field in schema if field.name in read and read[field.name].type == field.type}
    columns = [read[field.name] if field.name in same else pa.nulls(batch.num_rows, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _applied(function: Callable[[pa.RecordBatch], pa.RecordBatch], batch: pa.RecordBatch) -> pa.RecordBatch:
    try:
        return function(batch)
    except PenstockError:
        raise
    except (Exception, SystemExit) as error:  # a user's function may raise anything
        msg = (
            f"the transform failed on a batch of {batch.num_rows} rows: {_told(error)}; mend it, and run the same command "
            "again, nothing of this batch is visible"
        )
        raise PenstockError(msg) from error


def _told(error: BaseException) -> str:
    """Return an error's type and words on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _reading(source: Mapping[str, str], schema: str) -> tuple[Options, Reading, Carrier | None]:
    """Return how the input is read, and for topics the reader of their ranges."""
    if is_topics(source["path"]):
        topics = TopicRows.of(source, schema)
        return topics.options, topics.reading, topics
    options = parse(SOURCE, source, what="source")
    return options, configured.reading(options, schema), None


def _output_schema(function: Applied | None, empty: pa.RecordBatch) -> pa.Schema:
    if function is None:
        return empty.schema
    if callable(function):
        return function(empty).schema
    if function.drain is not None:
        msg = "drain: an ingest waits for the calls of a batch; leave drain out, or use async_map between readStream and writeStream"
        raise OptionError(msg)
    return function.schema(empty.schema)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _packed(transform: Transform | str | None) -> str | dict[str, str] | None:
    """Return a transform in JSON: `module:function`, SQL, or the function pickled as Spark would send it to its workers."""
    if transform is None or isinstance(transform, str):
        return transform
    if isinstance(transform, Sql):
        return {SQL: transform.text}
    return _PICKLED + functions.packed(transform)


def named(transform: str) -> Applied:
    """Return the function, or `AsyncMap`, that the user of this process has named: `module:function`. `OptionError`."""
    try:
        return _applicable(functions.loaded(transform))
    except (Exception, SystemExit) as error:  # importing a user's module may raise anything
        raise _not_loaded(transform, error) from error


def _not_loaded(transform: object, error: BaseException) -> OptionError:
    return OptionError(
        f"transform {transform!r} cannot be loaded: {_told(error)}; expected a function or 'module:function'"
    )


def _function(packed: str | dict[str, str] | None, options: Options) -> Applied | None:
    """Return the transform of a live stage, ready to be called, for a source with these options."""
    if packed is None:
        return None
    if isinstance(packed, dict):
        return _query(packed[SQL], options)
    if packed.startswith(_PICKLED):
        return _applicable(functions.unpacked(packed.removeprefix(_PICKLED)))
    return named(packed)


def _query(text: str, options: Options) -> Sql:
    """Return SQL for a source: times have days and hours in the time zone of Spark's session."""
    zone = options["sessionTimeZone"]
    return Sql(text, UTC if zone is None else zone_name(zone, "spark.sql.session.timeZone"))


def _applicable(function: Any) -> Applied:  # noqa: ANN401 - what a user gives as a transform
    """Return a transform as a function of record batches, or an `AsyncMap`. A function that is annotated with DataFrame gets polars."""
    if hasattr(function, "stream"):
        return cast("Calls", function)  # not checked by its type, because the import would cost every ingest time
    return _on_polars(function) if _wants_polars(function) else _checked(function)


def _wants_polars(function: Callable[..., Any]) -> bool:
    parameters = list(inspect.signature(function).parameters.values())
    return bool(parameters) and "DataFrame" in str(parameters[0].annotation)


def _checked(function: Callable[..., Any]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    import pyarrow as pa

    def call(batch: pa.RecordBatch) -> pa.RecordBatch:
        result = function(batch)
        if not isinstance(result, pa.RecordBatch):
            msg = f"the transform returned {type(result).__name__}; expected a pyarrow.RecordBatch (or annotate it with polars.DataFrame)"
            raise OptionError(msg)
        return result

    return call


def _on_polars(function: Callable[..., Any]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    import polars as pl
    import pyarrow as pa

    def call(batch: pa.RecordBatch) -> pa.RecordBatch:
        frame = pl.from_arrow(batch)
        result = function(frame)
        if not isinstance(result, pl.DataFrame):
            msg = f"the transform returned {type(result).__name__}; expected a polars.DataFrame, as its annotation says"
            raise OptionError(msg)
        table = result.to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks()
        batches = table.to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)

    return call
