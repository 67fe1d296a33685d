"""The registry of formats, one line for each. The object of a format, in the file of its name in `formats/known`, says what it does.

The lines are here, below all code that reads and writes, for two reasons: the option `format` of source and sink is checked against
them, and Spark's first process of a query needs no more than a schema.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownFormat:
    """A name that `format` may have. `value`: the DDL type of its only column, `value`; `None` if users give the columns."""

    name: str
    value: str | None = None
    written: bool = True


FORMATS = (
    KnownFormat("text", value="string"),
    KnownFormat("json"),
    KnownFormat("csv"),
    KnownFormat("parquet"),
    KnownFormat("orc"),
    KnownFormat("avro"),
    KnownFormat("binary", value="binary", written=False),
)
DEFAULT = FORMATS[0].name
COLUMNS = "parquet"  # written if columns cannot be written in the format in which they were read
READ = tuple(known.name for known in FORMATS)
WRITTEN = tuple(known.name for known in FORMATS if known.written)
VALUES = {known.name: known.value for known in FORMATS if known.value}
