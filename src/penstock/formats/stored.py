"""How a Parquet file stores a schema: its types, and what its footer tells Spark.

If the footer has the key that Spark's own writer puts there, Spark reads more from a file than its columns: intervals,
which are stored as numbers, comments and other metadata, the length of a `char`, collations. Two things are stored
differently than in Arrow:

- *Times of day* with at most six digits (all but `time(7)` to `time(9)`) are stored in microseconds, as Spark stores
  them; other engines do not know other units. In Arrow they are in nanoseconds, because Spark passes them like that.
- *Members of a nullable struct* are stored as nullable, even if the schema says that they are not. A null struct has no
  members, but Arrow's writer takes their places for nulls, and refuses them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyarrow import types

from penstock.errors import OptionError
from penstock.formats.conforming import recast, relabelled
from penstock.formats.schema import spark_type, to_arrow, to_spark

SPARK_KEY = b"org.apache.spark.sql.parquet.row.metadata"
_TIME = re.compile(r"time\(([0-6])\)")


@dataclass(frozen=True)
class Stored:
    """How rows of `schema` are stored: with the schema `file`, and `spark` in the footer, `None` if Spark has no such types."""

    schema: pa.Schema
    file: pa.Schema
    spark: str | None

    @staticmethod
    def of(schema: pa.Schema) -> Stored:
        """Return how rows of this schema are stored."""
        return _stored_as(schema.serialize().to_pybytes())

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the schema in their stored form. `OptionError` for a time with more digits than its type has."""
        if self.file.equals(self.schema):
            return batch
        loose = pa.schema([_loose(field, stored) for field, stored in zip(self.schema, self.file, strict=True)])
        columns = relabelled(batch, loose).columns
        try:
            stored = [recast(column, field.type) for column, field in zip(columns, self.file, strict=True)]
            return pa.RecordBatch.from_arrays(stored, schema=self.file)
        except pa.ArrowInvalid as error:
            msg = f"a time has more digits than its type: {error}; expected at most six, or a column of type time(9)"
            raise OptionError(msg) from error


@lru_cache(maxsize=16)
def _stored_as(serialized: bytes) -> Stored:
    """Return how rows of a schema are stored. Each part of a task asks; schemas that differ only in Spark's metadata are equal to Arrow."""
    schema = pa.ipc.read_schema(pa.py_buffer(serialized))
    try:
        spark = to_spark(schema)
    except OptionError:
        return Stored(schema, schema, None)
    kinds = [_stored(field.type, spark_type(field), held=field.nullable) for field in schema]
    fields = [field.with_type(kind) for field, kind in zip(schema, kinds, strict=True)]
    return Stored(schema, pa.schema(fields), spark)


def schema_of(metadata: dict[bytes, bytes] | None, file: pa.Schema) -> pa.Schema | None:
    """Return the schema that the footer of a file has for Spark, as an Arrow schema; `None` if it has none that can be read.

    `file` is the schema of the file without that. A column whose type is not read here, such as variant, has its type in the file.
    """
    noted = (metadata or {}).get(SPARK_KEY)
    if noted is None:
        return None
    try:
        fields = json.loads(noted)["fields"]
        if [field["name"] for field in fields] != file.names:
            return None
        return pa.schema([_told(field, stored) for field, stored in zip(fields, file, strict=True)])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None  # it is damaged, and Spark too takes the columns of the file then


def _told(field: dict[str, Any], stored: pa.Field) -> pa.Field:
    try:
        return to_arrow(json.dumps({"fields": [field]})).field(0)
    except OptionError:
        return stored


def _stored(kind: pa.DataType, spark: Any, *, held: bool) -> pa.DataType:  # noqa: ANN401 - Spark's JSON of the type
    """Return the type as which a value is stored; `held`: it, or a struct that it is a member of, may be null."""
    if types.is_struct(kind):
        members = zip(kind, spark["fields"], strict=True)
        return pa.struct([_member(member, told["type"], held=held) for member, told in members])
    if types.is_list(kind):
        element = kind.value_field
        return pa.list_(element.with_type(_stored(element.type, spark["elementType"], held=element.nullable)))
    if types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(
            key.with_type(_stored(key.type, spark["keyType"], held=False)),
            item.with_type(_stored(item.type, spark["valueType"], held=item.nullable)),
        )
    short = types.is_time64(kind) and kind.unit == "ns" and _TIME.fullmatch(str(spark))
    return pa.time64("us") if short else kind


def _member(field: pa.Field, spark: Any, *, held: bool) -> pa.Field:  # noqa: ANN401 - Spark's JSON of the type
    kind = _stored(field.type, spark, held=held or field.nullable)
    return field.with_type(kind).with_nullable(held or field.nullable)


def _loose(field: pa.Field, stored: pa.Field) -> pa.Field:
    """Return the field with its own types, and with the nullability of the stored field."""
    return field.with_type(_loose_type(field.type, stored.type)).with_nullable(stored.nullable)


def _loose_type(kind: pa.DataType, stored: pa.DataType) -> pa.DataType:
    if types.is_struct(kind):
        return pa.struct([_loose(*pair) for pair in zip(kind, stored, strict=True)])
    if types.is_list(kind):
        return pa.list_(_loose(kind.value_field, stored.value_field))
    if types.is_map(kind):
        return pa.map_(_loose(kind.key_field, stored.key_field), _loose(kind.item_field, stored.item_field))
    return kind
