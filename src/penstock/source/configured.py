"""From source options to a `Reading`, a `Planner` and Arrow batches, for the bindings of `datasource`."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.errors import NotThere, OptionError
from penstock.formats import ReadFormat, format_named
from penstock.formats.account import NAMES_MAX, Account
from penstock.formats.charsets import encodable
from penstock.formats.families import RecordFormat
from penstock.formats.format import Dialect
from penstock.formats.registry import check_options
from penstock.formats.schema import to_arrow
from penstock.formats.zones import UTC, unsaid, zone_name
from penstock.options import SOURCE
from penstock.options.formats import VALUES
from penstock.source import partitions, schemas
from penstock.source.plan import Planner
from penstock.source.read import FILES_SCHEMA, METADATA_TYPE, Reading, files_batch
from penstock.storage import locate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.options import Options
    from penstock.source.cursor import Split

_log = logging.getLogger("penstock.source")
_logged: set[str] = set()  # names that no column has, of which it was told
SPLITS_SCHEMA = pa.schema([("splits", pa.string())])


def reading(options: Options, schema: str) -> Reading:
    """Return how the source's splits are read; `schema` is Spark's JSON. Raises `OptionError`; touches nothing."""
    _check_format_options(options)
    storage, root = locate(options["path"])
    whole = to_arrow(schema)
    metadata = options["metadataColumn"]
    data = whole
    if options["emit"] == "records" and metadata:
        data = _without_metadata(whole, metadata)
    fmt = _read_format(options, data)
    if options["emit"] == "records":
        fmt = _with_rules(options, fmt)
    _check_separator(options)
    if options["emit"] == "records":
        _check_schema(fmt, partitions=_has_partitions(options))
    return Reading(storage, root, fmt, metadata, tuple(whole.names), options["followSymlinks"])


def unread(options: Options) -> Reading:
    """Return how the source's files are looked at before anybody knows their columns. Raises `OptionError`; touches nothing."""
    _check_format_options(options)
    _check_separator(options)
    storage, root = locate(options["path"])
    return Reading(storage, root, _read_format(options, pa.schema([])), follow=options["followSymlinks"])


def _read_format(options: Options, data: pa.Schema) -> ReadFormat:
    return ReadFormat(
        options["format"],
        data,
        encoding=options["encoding"],
        line_sep=options["lineSep"].encode() if options["lineSep"] else None,
        csv=Dialect.of(options),
        block_size=options["blockSize"],
        errors=options["encodingErrors"],
        zone=_zone(options) or UTC,
    )


def planner(options: Options, how: Reading) -> Planner:
    """Return the planner; `OptionError` if there is nothing at the path."""
    try:
        how.storage.stat(how.root)
    except NotThere as error:
        msg = f"path={options['path']!r}: {how.root!r} does not exist; expected a directory or a file to read"
        raise OptionError(msg) from error
    boundary = how.boundary if how.form.anchored else None
    divisible = how.divisible if options["emit"] != "files" else _whole  # a row names a whole file
    state = locate(options["stateLocation"], name="stateLocation") if options["stateLocation"] else None
    admit = None if options["emit"] == "files" else how.admit
    return Planner(
        how.storage,
        how.root,
        options,
        divisible=divisible,
        boundary=boundary,
        reach=how.reach,
        state=state,
        admit=admit,
        zone=_zone(options),
    )


def _zone(options: Options) -> str | None:
    """Return the zone of times that say none, as the user or the session has said it. Raises `OptionError`."""
    name = options["timeZone"] or options["sessionTimeZone"]
    return zone_name(name, "timeZone" if options["timeZone"] else "spark.sql.session.timeZone") if name else None


def _has_partitions(options: Options) -> bool:
    return bool(options["partitionColumns"] == "auto")


def _whole(path: str) -> bool:  # noqa: ARG001 - what a planner calls
    return False


def rows(
    options: Options, how: Reading, splits: tuple[Split, ...], account: Account | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield what one task emits, by `emit`; what is to be told of records is entered into `account`."""
    if options["emit"] == "files":
        yield files_batch(how, splits)
    elif options["emit"] == "splits":
        yield carried(splits, how.format.zone)
    else:
        batches = partitions.batches if _has_partitions(options) else Reading.batches
        yield from batches(how, splits, Account() if account is None else account)


def told(options: Options, how: Reading, splits: tuple[Split, ...]) -> Iterator[pa.RecordBatch]:
    """Yield what one task emits; log, once a process, the names that the data has and no column has.

    Spark has no place for what a source in Python has to tell.
    """
    account = Account()
    yield from rows(options, how, splits, account)
    names = account.unknown.keys() - _logged
    if names and len(_logged) < NAMES_MAX:
        _logged.update(names)
        _log.warning(
            "%r: %s",
            how.root,
            "; ".join(Account(unknown={name: account.unknown[name] for name in sorted(names)}).told()),
        )


def in_zone(options: Options, how: Reading, zone: str | None, session_zone: Callable[[], str]) -> Reading:
    """Return how the splits of a plan are read, in the zone that the plan has; called in a task.

    `None`: nobody had said a zone. What is said by now counts, so that who was told to say it can go on; else it is UTC where
    the session is in UTC, too. Where that is in another one, a time that says no zone is not read: Spark would read it in
    that, which this session's next run need not have.
    """
    if zone is not None:
        return how.in_zone(zone)
    if _zone(options) is not None:
        return how
    session = session_zone()
    return how if session == UTC else how.in_zone(unsaid(session))


def carried(splits: Iterable[Split], zone: str) -> pa.RecordBatch:
    """Return the splits of one task, and their zone, as the row that carries them to the stage of an ingest."""
    text = json.dumps({"splits": [split.to_json() for split in splits], "zone": zone}).encode()
    ends = np.array([0, len(text)], np.int32)
    # Not `pa.array([...])`, which imports pandas where it is installed: a fifth of a second in a process that needs none.
    column = pa.StringArray.from_buffers(1, pa.py_buffer(ends), pa.py_buffer(text))
    return pa.RecordBatch.from_arrays([column], schema=SPLITS_SCHEMA)


def expected_schema(options: Options, how: Reading) -> pa.Schema:
    """Return the Arrow schema of what the source emits."""
    if options["emit"] == "files":
        return FILES_SCHEMA
    fields: Iterable[Any] = (
        pa.field(name, METADATA_TYPE) if name == how.metadata else how.format.schema.field(name) for name in how.columns
    )
    return pa.schema(fields)


def _without_metadata(schema: pa.Schema, name: str) -> pa.Schema:
    if schema.names.count(name) > 1:
        msg = f"metadataColumn={name!r}: the schema has several columns of that name; expected another name, such as _meta"
        raise OptionError(msg)
    if name not in schema.names or not pa.types.is_struct(schema.field(name).type):
        msg = f"metadataColumn={name!r}: the schema has no such struct; add it: `{name}` {schemas.METADATA}"
        raise OptionError(msg)
    if schema.field(name).type != METADATA_TYPE:
        msg = f"metadataColumn={name!r} is {schema.field(name).type} in the schema; expected {schemas.METADATA}"
        raise OptionError(msg)
    return schema.remove(schema.get_field_index(name))


def _with_rules(options: Options, fmt: ReadFormat) -> ReadFormat:
    """Return the format with what becomes of names without a column and columns without a name. Raises `OptionError`."""
    rescued, unknown = options["rescuedDataColumn"], options["unknownFields"]
    if rescued is None:
        if unknown == "rescue":
            msg = (
                "unknownFields=rescue needs rescuedDataColumn, the name of the column that gets them, such as _rescued"
            )
            raise OptionError(msg)
    else:
        columns = [field for field in fmt.schema if field.name == rescued]
        if len(columns) != 1 or columns[0].type != pa.string() or not columns[0].nullable:
            msg = f"rescuedDataColumn={rescued!r}: the schema has no such string column; add it: `{rescued}` string"
            raise OptionError(msg)
        if "unknownFields" not in options.given:
            unknown = "rescue"
    missing = options["missingFields"] if "missingFields" in options.given else None
    return replace(fmt, unknown=unknown, missing=missing, rescued=rescued)


def _check_format_options(options: Options) -> None:
    check_options(options, SOURCE, lambda form: form.read_options)
    format_named(options["format"]).prepare()
    if options["metadataColumn"] and options["emit"] == "files":
        msg = "metadataColumn is for emit=records, found emit=files, whose rows are path, modification time and size anyway"
        raise OptionError(msg)


def _check_separator(options: Options) -> None:
    sep, encoding = options["lineSep"], options["encoding"]
    if sep and not (encodable(encoding, sep) and encodable("UTF-8", sep)):
        msg = f"lineSep={sep!r} does not exist in encoding={encoding}; expected characters that it has, such as ;"
        raise OptionError(msg)
    if sep and "\ufffd" in sep and options["encodingErrors"] == "replace":
        msg = f"lineSep={sep!r} is what encodingErrors=replace puts in place of other bytes; expected another separator"
        raise OptionError(msg)


def _check_schema(fmt: ReadFormat, *, partitions: bool) -> None:
    if not fmt.data_schema.names:
        msg = "the schema has no column to read; expected one such as 'id bigint, name string'"
        raise OptionError(msg)
    if fmt.name not in VALUES:
        return
    # Others may be named by directories, of which nothing is known yet; whether they are is seen with each file.
    fields = [field for field in fmt.schema if field.name == "value" or not partitions] or list(fmt.schema)
    kinds = [field.type for field in fields]
    if kinds not in ([pa.string()], [pa.binary()]):
        msg = (
            f"format={fmt.name} has one column, value {VALUES[fmt.name]}; found {', '.join(fmt.schema.names) or 'none'}"
        )
        raise OptionError(msg)
    form = format_named(fmt.name)
    if isinstance(form, RecordFormat) and kinds == [pa.binary()] and not form.in_bytes(fmt):
        sep = "" if fmt.line_sep is None else f" with lineSep={fmt.line_sep.decode()!r}"
        msg = (
            f"a binary value is the bytes of a line as the file has them, and where a line ends cannot be told from the bytes of "
            f"encoding={fmt.encoding}{sep}; expected a column of type string, which is decoded"
        )
        raise OptionError(msg)
