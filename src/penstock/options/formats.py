"""The registry of formats: one line each. What a format does is told by its object, in the file of its name in `formats/known`.

The lines are here, below all that reads and writes, for the option `format` of source and sink is checked against them, and
for Spark's first process of a query asks for no more than a schema.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownFormat:
    """A name that `format` may have. `value`: the type, as DDL, of its only column, `value`; `None` where users say the columns."""

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
COLUMNS = "parquet"  # what is written where columns cannot be written as they were read
READ = tuple(known.name for known in FORMATS)
WRITTEN = tuple(known.name for known in FORMATS if known.written)
VALUES = {known.name: known.value for known in FORMATS if known.value}
