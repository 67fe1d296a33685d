"""Turns source options into a `Reading`, a `Planner` and Arrow batches, for the bindings in `spark.datasource`."""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.errors import OptionError
from penstock.formats import ReadFormat, format_named
from penstock.formats.account import NAMES_MAX, Account
from penstock.formats.aside import Aside, Policy, path_of, record_bytes
from penstock.formats.charsets import encodable
from penstock.formats.families import RecordFormat
from penstock.formats.format import TIME_OPTIONS, Dialect
from penstock.formats.patterns import compiled
from penstock.formats.registry import check_options
from penstock.formats.schema import spark_name, to_arrow
from penstock.formats.zones import UTC, unsaid, zone_name
from penstock.options import SOURCE
from penstock.options.formats import VALUES
from penstock.source import partitions, schemas
from penstock.source.clean import Cleaner, archive_of
from penstock.source.clean import check_options as check_clean_options
from penstock.source.followed import FollowPlanner
from penstock.source.followed import check_options as check_follow_options
from penstock.source.plan import Planner
from penstock.source.read import FILES_SCHEMA, METADATA_TYPE, Reading, files_batch
from penstock.source.where import changed_between, where
from penstock.storage import entry_at, locate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.options import Options
    from penstock.source.cursor import Split

_log = logging.getLogger("penstock.source")
_logged: set[str] = set()  # names without a column that were already logged
_QUARANTINE = "quarantine"
# Besides the options of formats, what says how contents are read.
_OF_CONTENTS = ("badRecords", "badFiles", "changedFiles", "metadataColumn", "decryptionKey")
BAD_TYPE = pa.struct([("path", pa.string()), ("offset", pa.int64()), ("record", pa.binary()), ("reason", pa.string())])
SPLITS_SCHEMA = pa.schema([("splits", pa.string())])


def reading(options: Options, schema: str) -> Reading:
    """Return how the source's splits are read; `schema` is Spark's JSON. Raises `OptionError`; touches nothing."""
    _check_format_options(options)
    place = where(options)
    changed_between(options)
    whole = to_arrow(schema)
    metadata = options["metadataColumn"]
    data = whole
    bad = options["badRecordColumn"]
    bad_at = None
    if options["emit"] == "records" and bad:
        bad_at = whole.get_field_index(bad)
        whole = data = _without_struct(whole, bad, "badRecordColumn", (BAD_TYPE, schemas.BAD))
    if options["emit"] == "records" and metadata:
        data = _without_struct(whole, metadata, "metadataColumn", (METADATA_TYPE, schemas.METADATA))
    fmt = _read_format(options, data)
    _check_separator(options)
    if options["emit"] == "records":
        fmt = _with_rules(options, fmt)
        _check_schema(fmt, partitions=_has_partitions(options))
    check_clean_options(options, place.storage, place.root)
    check_follow_options(options, fmt, place.storage, place.root)
    columns = tuple(whole.names)
    archive = archive_of(place.storage, options)
    return Reading(
        place.storage,
        place.root,
        fmt,
        metadata,
        columns,
        options["followSymlinks"],
        archive,
        policy=_policy(options),
        key=options["decryptionKey"],
        bad_at=bad_at,
    )


def unread(options: Options) -> Reading:
    """Return how the source's files are read before their columns are known. Raises `OptionError`; touches nothing."""
    _check_format_options(options)
    _check_separator(options)
    changed_between(options)
    place = where(options)
    return Reading(
        place.storage,
        place.root,
        _read_format(options, pa.schema([])),
        follow=options["followSymlinks"],
        key=options["decryptionKey"],
    )


def _read_format(options: Options, data: pa.Schema) -> ReadFormat:
    return ReadFormat(
        options["format"],
        data,
        encoding=options["encoding"],
        line_sep=options["lineSep"].encode() if options["lineSep"] else None,
        csv=Dialect.of(options),
        block_size=options["blockSize"],
        errors="replace" if options["encodingErrors"] == "replace" else "fail",
        zone=_zone(options) or UTC,
        timestamp=options["timestampFormat"],
        timestamp_ntz=options["timestampNTZFormat"],
        date=options["dateFormat"],
        multi_line=options["multiLine"],
    )


def _policy(options: Options) -> Policy:
    """Return what is set aside. Text that is not valid in its encoding is a bad record, unless its own option says otherwise."""
    records, files, changes = (options[name] == _QUARANTINE for name in ("badRecords", "badFiles", "changedFiles"))
    text = options["encodingErrors"] == _QUARANTINE or (records and "encodingErrors" not in options.given)
    return Policy(records, text, files, changes)


def check_plain(options: Options) -> None:
    """Raise `OptionError` for options that set something aside without a place for it, and for options that only an ingest has.

    Called for queries other than an ingest.
    """
    if options["files"] is not None:
        msg = (
            "files is for an ingest; in a query of your own penstock.read_files reads what the rows of a DataFrame name"
        )
        raise OptionError(msg)
    if options["emit"] != "records":
        return
    asked, column = _policy(options).any, options["badRecordColumn"]
    if asked and column is None:
        msg = (
            "what a query of your own sets aside goes into a column: set badRecordColumn=_bad, and add it to the schema: "
            f"`_bad` {schemas.BAD}; an ingest needs no column"
        )
        raise OptionError(msg)
    if options["quarantineLocation"] is not None:
        msg = "quarantineLocation is for an ingest: a query of your own has what is set aside in its badRecordColumn"
        raise OptionError(msg)
    for name in ("maxBadRecords", "maxBadFraction"):
        if options[name] is not None:
            msg = f"{name} is for an ingest, which counts what is set aside; leave it out, and count in the query"
            raise OptionError(msg)


def planner(options: Options, how: Reading, *, dry: bool = False) -> Planner | FollowPlanner:
    """Return the planner; with `dry`, it writes nothing. `OptionError` if nothing is at the path, unless the source waits for it."""
    if options["strictMode"] or dry:
        check_there(options)
    boundary = how.boundary if how.form.anchored else None
    divisible = how.divisible if options["emit"] != "files" else _whole  # with emit=files, a row names a whole file
    state = locate(options["stateLocation"], name="stateLocation") if options["stateLocation"] else None
    if options["follow"] and dry:
        msg = "a dry run does not look at files that grow: leave follow=true out to see what is there now"
        raise OptionError(msg)
    if options["follow"]:
        return FollowPlanner(how, options, state=state, zone=_zone(options))
    admit = None if options["emit"] == "files" or how.policy.files else how.files.admit
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
        dry=dry,
    ).cleaned_by(None if dry else _cleaner(options, how))


def check_there(options: Options) -> None:
    """Raise `OptionError` if there is nothing at a path."""
    place = where(options)
    entry = entry_at(place.storage, place.root)
    if entry is None or (place.is_several and not entry.is_directory):
        given = options["path"] or options.given["paths"]
        msg = f"path={given!r}: {place.root!r} does not exist; expected a directory{'' if place.is_several else ' or a file'} to read"
        raise OptionError(msg)
    place.check("path")


def _cleaner(options: Options, how: Reading) -> Cleaner | None:
    """Return the cleaner that removes files that were read; `OptionError` if it could not do so."""
    cleaner = Cleaner.of(how.storage, how.root, options)
    if cleaner is not None:
        cleaner.check()
    return cleaner


def _check_time_patterns(options: Options) -> None:
    """Raise `OptionError` for a pattern of times or dates that is not supported."""
    for name in TIME_OPTIONS:
        if options[name] is not None:
            compiled(options[name], name)


def _zone(options: Options) -> str | None:
    """Return the time zone for times without one, as set by the user or the session. Raises `OptionError`."""
    name = options["timeZone"] or options["sessionTimeZone"]
    return zone_name(name, "timeZone" if options["timeZone"] else "spark.sql.session.timeZone") if name else None


def _has_partitions(options: Options) -> bool:
    return bool(options["partitionColumns"] == "auto")


def _whole(path: str) -> bool:  # noqa: ARG001 - the signature that a planner calls
    return False


def rows(
    options: Options, how: Reading, splits: tuple[Split, ...], account: Account | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield what one task emits, by `emit`; notices about records are entered into `account`."""
    if options["emit"] == "files":
        yield files_batch(how, splits)
    elif options["emit"] == "splits":
        yield carried(splits, how.format.zone)
    else:
        batches = partitions.batches if _has_partitions(options) else Reading.batches
        bad = options["badRecordColumn"]
        if not bad:
            yield from batches(how, splits, Account() if account is None else account)
            return
        aside = Aside()
        read = batches(replace(how, aside=aside), splits, Account() if account is None else account)
        yield from _with_bad(read, aside, expected_schema(options, how), bad)


def _with_bad(read: Iterator[pa.RecordBatch], aside: Aside, schema: pa.Schema, name: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows, and for everything that is set aside a row that has only the column `name`."""
    for batch in read:
        yield from _bad_rows(aside, schema, name)
        if batch.num_rows:
            yield _in_columns({field.name: batch.column(field.name) for field in batch.schema}, schema, batch.num_rows)
    yield from _bad_rows(aside, schema, name)


def _bad_rows(aside: Aside, schema: pa.Schema, name: str) -> Iterator[pa.RecordBatch]:
    for lines in aside.handed_on():
        yield _in_columns({name: bad_column(lines)}, schema, lines.num_rows)


def bad_column(lines: pa.RecordBatch) -> pa.StructArray:
    """Return the values of `badRecordColumn` for lines about one file. U+FFFD replaces what is not valid UTF-8 in its path."""
    path = path_of(lines.slice(0, 1).select(["path", "path_base64"]).to_pylist()[0]).decode("utf-8", "replace")
    paths = pa.repeat(pa.scalar(path, pa.string()), lines.num_rows)
    members = [paths, lines.column("offset"), record_bytes(lines), lines.column("reason")]
    return pa.StructArray.from_arrays(members, fields=list(BAD_TYPE))


def _in_columns(columns: dict[str, pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Return the columns as rows of the schema; missing columns are null."""
    nullable = pa.schema([field.with_nullable(nullable=True) for field in schema])
    return pa.RecordBatch.from_arrays([columns.get(f.name, pa.nulls(rows, f.type)) for f in schema], schema=nullable)


def told(options: Options, how: Reading, splits: tuple[Split, ...]) -> Iterator[pa.RecordBatch]:
    """Yield what one task emits; log, once for each process, names in the data for which there is no column.

    Spark offers a source in Python no other way to report them.
    """
    account = Account()
    yield from rows(options, how, splits, account)
    tell(account, how.root)


def tell(account: Account, where_read: str) -> None:
    """Log, once for each process, names in the data for which there is no column."""
    names = account.unknown.keys() - _logged
    if names and len(_logged) < NAMES_MAX:
        _logged.update(names)
        _log.warning(
            "%r: %s",
            where_read,
            "; ".join(Account(unknown={name: account.unknown[name] for name in sorted(names)}).told()),
        )


def in_zone(options: Options, how: Reading, zone: str | None, session_zone: Callable[[], str]) -> Reading:
    """Return how the splits of a plan are read, in the zone that the plan has; called in a task.

    `None`: no zone was set when the plan was made. Then a zone that is set by now counts, so that a user who was told to set one can
    continue. Otherwise it is UTC if the session is in UTC, too. If the session is in another zone, a time without a zone is not read:
    Spark would read it in the session's zone, which may differ in the next run.
    """
    if zone is not None:
        return how.in_zone(zone)
    if _zone(options) is not None:
        return how
    session = session_zone()
    return how if session == UTC else how.in_zone(unsaid(session))


def carried(splits: Iterable[Split], zone: str | None) -> pa.RecordBatch:
    """Return the splits of one task, and their zone (UTC if none is set), as the row that carries them to the stage of an ingest."""
    return carried_row(json.dumps({"splits": [split.to_json() for split in splits], "zone": zone or UTC}))


def carried_row(carried_text: str) -> pa.RecordBatch:
    """Return the row that carries text to the stage of an ingest."""
    text = carried_text.encode()
    ends = np.array([0, len(text)], np.int32)
    # Not `pa.array([...])`, which imports pandas if it is installed: a fifth of a second in a process that needs no pandas.
    column = pa.StringArray.from_buffers(1, pa.py_buffer(ends), pa.py_buffer(text))
    return pa.RecordBatch.from_arrays([column], schema=SPLITS_SCHEMA)


def expected_schema(options: Options, how: Reading) -> pa.Schema:
    """Return the Arrow schema of what the source emits."""
    if options["emit"] == "files":
        return FILES_SCHEMA
    fields = [
        pa.field(name, METADATA_TYPE) if name == how.metadata else how.format.schema.field(name) for name in how.columns
    ]
    if how.bad_at is not None:
        fields.insert(how.bad_at, pa.field(options["badRecordColumn"], BAD_TYPE))
    return pa.schema(fields)


def _without_struct(schema: pa.Schema, name: str, option: str, expected: tuple[pa.DataType, str]) -> pa.Schema:
    """Return the schema without the struct that an option names; `expected` is its type, as Arrow type and in Spark's words."""
    kind, words = expected
    if schema.names.count(name) > 1:
        msg = f"{option}={name!r}: the schema has several columns of that name; expected another name, such as _meta"
        raise OptionError(msg)
    if name not in schema.names or not pa.types.is_struct(schema.field(name).type):
        msg = f"{option}={name!r}: the schema has no such struct; add it: `{name}` {words}"
        raise OptionError(msg)
    if schema.field(name).type != kind:
        msg = f"{option}={name!r} is {schema.field(name).type} in the schema; expected {words}"
        raise OptionError(msg)
    return schema.remove(schema.get_field_index(name))


def _with_rules(options: Options, fmt: ReadFormat) -> ReadFormat:
    """Return the format with the rules for names without a column and for columns without a name. Raises `OptionError`."""
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
    schemas.check_emitted(options)
    check_options(options, SOURCE, lambda form: form.read_options)
    format_named(options["format"]).prepare()
    _check_time_patterns(options)
    if options["emit"] == "files":
        _check_names_only(options)


def _check_names_only(options: Options) -> None:
    """Raise `OptionError` for an option that says how contents are read, where rows only name files."""
    for option in SOURCE:
        is_given = option.name in options.given and options[option.name] != option.default_value
        if is_given and (option.special or option.name in _OF_CONTENTS):
            msg = (
                f"{option.name} is about the contents of files, found emit=files, which reads none: its rows are path, modification time "
                f"and size; leave {option.name} out, or set emit=records"
            )
            raise OptionError(msg)


def _check_separator(options: Options) -> None:
    if options["multiLine"] and options["lineSep"]:
        msg = f"lineSep={options['lineSep']!r} is between lines, and multiLine=true has a document a file; leave one of them out"
        raise OptionError(msg)
    sep, encoding = options["lineSep"], options["encoding"]
    if sep and not (encodable(encoding, sep) and encodable("UTF-8", sep)):
        msg = f"lineSep={sep!r} does not exist in encoding={encoding}; expected characters that it has, such as ;"
        raise OptionError(msg)
    if sep and "\ufffd" in sep and options["encodingErrors"] == "replace":
        msg = f"lineSep={sep!r} is what encodingErrors=replace puts in place of other bytes; expected another separator"
        raise OptionError(msg)


def _check_schema(fmt: ReadFormat, *, partitions: bool) -> None:
    _check_distinct(fmt.schema.names)
    if not fmt.data_schema.names:
        msg = "the schema has no column to read; expected one such as 'id bigint, name string'"
        raise OptionError(msg)
    if fmt.name in VALUES:
        _check_value(fmt, partitions=partitions)


def _check_value(fmt: ReadFormat, *, partitions: bool) -> None:
    """Raise `OptionError` unless the schema of a one-column format has `value`, and otherwise only columns that directories may name."""
    # Directories may name other columns. They are not known yet; this is checked with each file.
    fields = [field for field in fmt.schema if field.name == "value" or not partitions] or list(fmt.schema)
    kinds = [field.type for field in fields]
    allowed = [[pa.binary()], [pa.string()]] if VALUES[fmt.name] == "string" else [[pa.binary()]]
    if kinds not in allowed:
        columns = ", ".join(f"{field.name} {spark_name(field.type)}" for field in fmt.schema)
        msg = f"format={fmt.name} has one column, value {VALUES[fmt.name]}; found {columns}"
        raise OptionError(msg)
    if kinds == [pa.binary()]:
        _check_binary_lines(fmt)


def _check_distinct(names: list[str]) -> None:
    twice = next((name for name, number in Counter(names).items() if number > 1), None)
    if twice is not None:
        msg = f"the schema has the column {twice!r} twice; expected a different name for each, such as 'id bigint, name string'"
        raise OptionError(msg)


def _check_binary_lines(fmt: ReadFormat) -> None:
    """Raise `OptionError` if lines cannot be returned as the bytes of the file."""
    form = format_named(fmt.name)
    if isinstance(form, RecordFormat) and not form.in_bytes(fmt):
        sep = "" if fmt.line_sep is None else f" with lineSep={fmt.line_sep.decode()!r}"
        msg = (
            f"a binary value is the bytes of a line as the file has them, and with encoding={fmt.encoding}{sep} the bytes do not show "
            "where a line ends; expected a column of type string, which is decoded"
        )
        raise OptionError(msg)
