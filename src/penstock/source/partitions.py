"""Columns whose values are in the names of directories: `dt=2026-01-01/country=de/a.json`, as Hive and Spark write them.

A directory `k=v` below the source's path is a column of its files if the schema has a column `k` (by its name, or else by its name in
another case): the value is that of the directory, whatever is in the file, and the file need not have the column. A directory that does
not name a column of the schema is an ordinary directory. Names are escaped as in Hive: `%XX` stands for an ASCII character, and
`__HIVE_DEFAULT_PARTITION__` for null. Other engines (pyarrow, DuckDB, polars) also escape the UTF-8 bytes of all non-ASCII characters
in this way. Hive and Spark never do, so escapes that form valid UTF-8 are decoded as UTF-8. A value has the type of the schema, and is
parsed as CSV's fields are; a value that does not have that type is an error, not null.

A task reads the files of one directory after those of another, so that files of one directory are parsed together in whatever order
they came.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import BadFile, OptionError
from penstock.formats.malformed import MalformedError
from penstock.formats.patterns import TimeForms
from penstock.formats.scalars import is_scalar, parse
from penstock.formats.schema import spark_name
from penstock.options.formats import VALUES
from penstock.source import advice
from penstock.source.read import NUMBER
from penstock.source.scan import is_partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.formats.account import Account
    from penstock.source.cursor import Split
    from penstock.source.read import Reading

NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPES = re.compile("(?:%[0-9A-Fa-f]{2})+")
Values = tuple[tuple[str, str | None], ...]


def batches(reading: Reading, splits: Iterable[Split], account: Account) -> Iterator[pa.RecordBatch]:
    """Yield the records of the splits, directory by directory, with the columns that these name.

    Raises what `Reading.batches` does, and `BadFile` for a value that does not have its column's type or is missing, unless bad files
    are set aside: then all files of that directory are.
    """
    groups: dict[str, list[Split]] = {}
    for split in splits:
        groups.setdefault(split.file.path.rpartition("/")[0], []).append(split)
    for folder, group in groups.items():
        values = _values(folder, reading.format.schema, reading.kept)
        inner = _without(reading, values)
        place = f"{reading.root}/{folder}" if folder else reading.root
        try:
            columns = _columns(reading, values, place)
            _check_complete(inner, place)
        except BadFile as error:
            reading.refuse(group, error)
            continue
        for batch in inner.batches(group, account):
            yield _with_columns(batch, columns, reading)


def _columns(reading: Reading, values: Values, place: str) -> dict[str, pa.Scalar]:
    """Return what a directory names, as values of their columns; `BadFile` if one does not have its type."""
    schema, zone = reading.format.schema, reading.format.zone
    try:
        return {name: _scalar(text, schema.field(name), zone) for name, text in values}
    except MalformedError as error:
        otherwise = "set partitionColumns=none and recursiveFileLookup=true to have it taken for a name like others"
        # With partitionColumns=none the column would be missing.
        if not all(schema.field(name).nullable for name, _ in values):
            otherwise = "leave NOT NULL out of the schema, and " + otherwise
        msg = f"{place!r} names no {error}; rename the directory, or {otherwise}, {advice.AGAIN}"
        raise BadFile(msg) from error


def _values(folder: str, schema: pa.Schema, kept: frozenset[str]) -> Values:
    """Return the schema's columns that a path names, with their values as text; the innermost directory counts; none that is `kept`."""
    names = {name.lower(): name for name in reversed(schema.names)} | {name: name for name in schema.names}
    values: dict[str, str | None] = {}
    for key, text in named(folder):
        name = names.get(key, names.get(key.lower()))
        if name is not None and schema.names.count(name) == 1 and name.lower() not in kept:
            values[name] = text
    return tuple(values.items())


def named(folder: str) -> Iterator[tuple[str, str | None]]:
    """Yield each key and the text of its value, `None` for null, that the directories of a path name, the outermost first."""
    for key, text in written(folder):
        yield key, None if text == NULL else unescaped(text)


def written(folder: str) -> Iterator[tuple[str, str]]:
    """Yield each key, and its value as it stands in the name, as `named` does."""
    for part in filter(is_partition, folder.split("/")):
        key, _, text = part.partition("=")
        yield unescaped(key), text


def unescaped(text: str) -> str:
    """Return a key or a value of a name without its escapes."""
    return _ESCAPES.sub(lambda match: _decoded(bytes.fromhex(match[0].replace("%", ""))), text)


def _decoded(data: bytes) -> str:
    """Return what adjacent escapes stand for: text in UTF-8, otherwise, as in Spark, one character for each."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _scalar(text: str | None, field: pa.Field, zone: str) -> pa.Scalar:
    if text is None:
        if not field.nullable:
            msg = f"value of column {field.name!r}, which is not nullable (NOT NULL in the schema)"
            raise MalformedError(msg)
        return pa.scalar(None, field.type)
    if not is_scalar(field.type) or pa.types.is_binary(field.type):
        msg = (
            f"column {field.name!r} is {spark_name(field.type)}, which the name of a directory cannot hold; set "
            "partitionColumns=none and recursiveFileLookup=true, and the files have it"
        )
        raise OptionError(msg)
    try:
        array = pa.array([text], pa.string())
    except UnicodeEncodeError as error:
        msg = f"value of column {field.name!r} in UTF-8"
        raise MalformedError(msg) from error
    return parse(array, field.type, field.name, TimeForms(zone))[0] if not pa.types.is_string(field.type) else array[0]


def _without(reading: Reading, values: Values) -> Reading:
    """Return how files of a directory are read: without the columns that the directory names."""
    named = {name for name, _ in values}
    schema = pa.schema([field for field in reading.format.schema if field.name not in named])
    columns = tuple(name for name in reading.columns if name not in named)
    return replace(reading, format=replace(reading.format, schema=schema), columns=columns)


def _check_complete(inner: Reading, place: str) -> None:
    """Raise an error unless the columns that no directory names can be in the files."""
    names = inner.format.schema.names
    if not names:
        msg = (
            f"the directories of {place!r} name all columns of the schema; expected one that is in the files, or "
            "partitionColumns=none"
        )
        raise OptionError(msg)
    if inner.format.name in VALUES and len(names) > 1:
        missing = [name for name in names if name != "value"] if "value" in names else names
        msg = (
            f"files in {place!r} have one column, value, and the schema also has {', '.join(missing)}, which no directory of "
            f"theirs names (as in {missing[-1]}=...); leave it out of the schema, or move the files, {advice.AGAIN}"
        )
        raise BadFile(msg)


def _with_columns(batch: pa.RecordBatch, columns: dict[str, pa.Scalar], reading: Reading) -> pa.RecordBatch:
    if not columns:
        return batch
    order = reading.columns if reading.metadata else tuple(reading.format.schema.names)
    fields = [reading.format.schema.field(name) if name in columns else batch.schema.field(name) for name in order]
    arrays = [pa.repeat(columns[name], batch.num_rows) if name in columns else batch.column(name) for name in order]
    whole = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    return whole.append_column(NUMBER, batch.column(NUMBER)) if NUMBER in batch.schema.names else whole
