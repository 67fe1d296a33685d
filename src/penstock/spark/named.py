"""`penstock.read_files`: the records of the files that the rows of a DataFrame name, streaming or batch.

Two maps of Arrow batches, with an exchange between them (`ingestion.exchange`): the first makes splits of names, the second reads them.
"""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql.types import IntegralType, StructType

from penstock.arguments import flag, named
from penstock.errors import OptionError
from penstock.formats.schema import to_spark
from penstock.ingestion.exchange import check_kept, naming_columns, split_frame
from penstock.options.formats import DEFAULT
from penstock.session import ddl
from penstock.session.connect import tasks_at_a_time
from penstock.session.leaving import mapped
from penstock.session.worker import settle_reader
from penstock.session.zone import time_zone
from penstock.source.named import OPTIONS, NamedFiles
from penstock.source.schemas import INFER, default_schema
from penstock.storage import locate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from penstock.source.named import NamingColumns


@named
def read_files(  # noqa: PLR0913 - what users are promised
    df: DataFrame,
    *,
    path: str = "path",
    format: str = DEFAULT,  # noqa: A002 - the option has this name
    schema: Any = None,  # noqa: ANN401 - DDL or a StructType
    keep_input: bool = True,
    start: str | None = None,
    end: str | None = None,
    size: str | None = "size",
    modified: str | None = "modified",
    identity: str | None = "identity",
    **options: Any,  # noqa: ANN401 - options of the source, checked by its table
) -> DataFrame:
    """Return the records of the files that the rows of `df` name in the column `path`; streaming and batch alike.

    `format` and `schema` (DDL or StructType; text and binary need none) describe the files. `options` are the options of the source
    that say how a file is read: dialects, encodings, `splitSize`, `badRecords`, `badFiles`, `changedFiles`, `badRecordColumn`,
    `metadataColumn` and the like.

    - `keep_input=True`: the columns of the row come first, with each record of its file.
    - `start`, `end`: columns; only the records that begin in the bytes from `start` (inclusive) to `end` (exclusive) are read. Null:
      the beginning of the file, and its end. Adjacent ranges yield each record once.
    - `size`, `modified`, `identity`: columns, if they exist, with what the row says of the file, as in the rows of `emit=files`. The
      file must be that version, otherwise it is a changed file (`changedFiles`). `None`: the rows do not say it.

    A path is an absolute one or a URL, and names exactly that file, hidden or not. With the option `basePath` it may be relative to
    that, must lie below it, and directories `k=v` below it are columns. Files of several storages may be mixed. A path that does not
    exist, is a directory, leads out of `basePath` or cannot be read fails the query, or is set aside (`badFiles`).

    Large files are cut into ranges of `splitSize`, for as many tasks as the session has (`tasks`); small ones are read together.
    Records of one range keep their order; nothing else does.

    A stream may be replayed. If rows say size and modification time, a replay reads the same bytes or fails with `FileChanged`.
    Otherwise, or if files are set aside, the option `stateLocation` is needed: a directory of this query alone, for notes of what was
    found.

    Everything that can be checked early is checked here: `OptionError`. Tasks raise `BadFile`, `BadRecord`, `FileChanged` and
    `StorageError`.
    """
    given: object = df
    if not isinstance(given, DataFrame):
        msg = f"read_files: df is a {type(df).__name__}; expected Spark's DataFrame of rows that name files"
        raise OptionError(msg)
    keep = flag(keep_input, name="keep_input")
    asked = {"path": path, "start": start, "end": end, "size": size, "modified": modified, "identity": identity}
    columns = naming_columns(df, asked, "read_files")
    if keep:
        check_kept(df)
    files = _named_files(df, columns, format, schema, options)
    place = _notes_place(df, files)
    tasks = files.options["tasks"] or tasks_at_a_time(df.sparkSession)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_reader()
        return files.records(batches)

    splits = split_frame(df, files, place, keep=keep, tasks=tasks)
    outputs = StructType.fromJson(json.loads(to_spark(files.schema)))
    fields = StructType([*(df.schema.fields if keep else ()), *outputs.fields])
    _distinct(fields.names)
    return mapped(splits, read, fields)


_own = inspect.signature(read_files)
_known = dict.fromkeys(
    name for option in OPTIONS for name in (option.name, *option.aliases) if name not in _own.parameters
)
read_files.__signature__ = _own.replace(  # type: ignore[attr-defined]  # for help(), editors and checks of spelling
    parameters=[
        *(given for given in _own.parameters.values() if given.kind is not inspect.Parameter.VAR_KEYWORD),
        *(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in _known),
    ]
)


def _named_files(df: DataFrame, columns: NamingColumns, form: str, schema: Any, given: Mapping[str, Any]) -> NamedFiles:  # noqa: ANN401 - the user gave it
    """Return how the files are read. Raises `OptionError`."""
    if schema == INFER:
        msg = "read_files: schema='infer' would have to look at files that no row has named yet; `penstock schema` prints that of a sample"
        raise OptionError(msg)
    whole = {"sessionTimeZone": time_zone(df.sparkSession), "format": form} | dict(given)
    if schema is None:
        schema = default_schema(NamedFiles.checked(whole)[0])
    modified = None if columns.modified is None else df.schema.fields[columns.modified].dataType
    return NamedFiles.of(whole, ddl.schema_json(schema), columns, nanoseconds=isinstance(modified, IntegralType))


def _notes_place(df: DataFrame, files: NamedFiles) -> str | None:
    """Return where notes are kept; `OptionError` for a stream that needs notes and has no place for them."""
    location = files.options["stateLocation"]
    if location is not None:
        return locate(location, name="stateLocation")[1]
    if df.isStreaming and files.needs_notes:
        why = (
            "files that are set aside may be there when a batch is replayed"
            if files.says_version
            else "rows do not say which version of a file they mean (size and modified)"
        )
        msg = f"read_files: {why}: set the option stateLocation, a directory of this query alone for notes of what was found"
        raise OptionError(msg)
    return None


def _distinct(names: list[str]) -> None:
    """Raise `OptionError` for columns that Spark could not tell apart."""
    lower = [name.lower() for name in names]
    for name in names:
        if lower.count(name.lower()) > 1:
            msg = f"read_files: the output would have two columns {name!r}; rename one, or take keep_input=False"
            raise OptionError(msg)
