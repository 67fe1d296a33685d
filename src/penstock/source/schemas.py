"""The schemas that a source has without its user giving one, as DDL. It imports little: Spark's first process needs nothing else of us."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import OptionError
from penstock.options.formats import VALUES

if TYPE_CHECKING:
    from penstock.options import Options

METADATA = "struct<path: string, modified: timestamp, size: bigint, offset: bigint>"
BAD = "struct<path: string, offset: bigint, record: binary, reason: string>"
FILES = "path string, modified timestamp, size bigint, identity string"
SPLITS = "splits string"
LOOKED_AT = "split string"  # the column of `splitruns`
# The schema of lists of names, as Spark's JSON.
LINES = '{"type": "struct", "fields": [{"name": "value", "type": "string", "nullable": true, "metadata": {}}]}'
INFER = "infer"


def check_emitted(options: Options) -> None:
    """Raise `OptionError` for a kind of rows that no source of files emits."""
    if options["emit"] == "published":
        msg = "emit=published is for spark.readStream, whose rows a query takes on; an ingest reads the contents of files, emit=records"
        raise OptionError(msg)


def default_schema(options: Options) -> str:
    """Return the schema, as DDL, of a source whose user gave none; `OptionError` if the format needs one."""
    check_emitted(options)
    if options["emit"] != "records":
        return {"files": FILES, "splits": SPLITS}[options["emit"]]
    kind = VALUES.get(options["format"])
    if kind is None:
        msg = f"format={options['format']} needs a schema; add .schema('id bigint, name string') with your columns, or schema=infer"
        raise OptionError(msg)
    structs = {"metadataColumn": METADATA, "badRecordColumn": BAD}
    added = [f", `{options[name].replace('`', '``')}` {struct}" for name, struct in structs.items() if options[name]]
    return f"value {kind}" + "".join(added)
