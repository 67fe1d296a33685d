"""The schemas that a source has by itself, as DDL. Light: it is all that Spark's first process of a query needs of us."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import OptionError

if TYPE_CHECKING:
    from penstock.options import Options

METADATA = "struct<path: string, modified: timestamp, size: bigint, offset: bigint>"
FILES = "path string, modified timestamp, size bigint"
SPLITS = "splits string"
VALUE = {"text": "string", "binary": "binary"}


def default_schema(options: Options) -> str:
    """Return the schema, as DDL, of a source whose user gave none; `OptionError` if the format needs one."""
    if options["emit"] != "records":
        return {"files": FILES, "splits": SPLITS}[options["emit"]]
    kind = VALUE.get(options["format"])
    if kind is None:
        msg = f"format={options['format']} needs a schema; add .schema('id bigint, name string') with your columns"
        raise OptionError(msg)
    metadata = options["metadataColumn"]
    return f"value {kind}" + (f", `{metadata.replace('`', '``')}` {METADATA}" if metadata else "")


def schema_json(schema: Any) -> str:  # noqa: ANN401 - DDL or a StructType
    """Return Spark's JSON of a schema, given as DDL or a StructType."""
    if isinstance(schema, str):
        from pyspark import SparkContext
        from pyspark.sql.types import StructType

        if SparkContext._active_spark_context is None:  # noqa: SLF001 - as PySpark itself finds its parser, which is the JVM's
            msg = f"schema {schema!r}: DDL is read by a Spark session, and none runs in this process; give a StructType here"
            raise OptionError(msg)
        try:
            parsed: Any = StructType.fromDDL(schema)
            schema = StructType(parsed.fields)  # `int` alone is a type to Spark, and has none
        except Exception as error:  # Spark's parser raises several kinds
            msg = f"schema {schema!r} is not a DDL schema; expected one such as 'id bigint, name string'"
            raise OptionError(msg) from error
    if isinstance(schema, type) or not (hasattr(schema, "json") and hasattr(schema, "fields")):
        msg = f"schema is a {type(schema).__name__}; expected DDL such as 'id bigint, name string', or a StructType"
        raise OptionError(msg)
    return str(schema.json())
