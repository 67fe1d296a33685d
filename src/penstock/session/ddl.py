"""Schemas that users give, DDL or a StructType, as Spark's JSON; and DDL that only Spark itself can read."""

from __future__ import annotations

import sys
from typing import Any

from penstock.errors import OptionError


def schema_json(schema: Any) -> str:  # noqa: ANN401 - DDL or a StructType
    """Return Spark's JSON of a schema, given as DDL or a StructType; `OptionError` if it is neither.

    DDL is parsed here if that is possible; otherwise, or if Spark's `timestamp` means another type, Spark parses it.
    """
    if isinstance(schema, str):
        return _of_ddl(schema)
    if isinstance(schema, type) or not (hasattr(schema, "json") and hasattr(schema, "fields")):
        msg = f"schema is a {type(schema).__name__}; expected DDL such as 'id bigint, name string', or a StructType"
        raise OptionError(msg)
    return str(schema.json())


def _of_ddl(schema: str) -> str:
    from penstock.formats.ddl import parsed

    known = parsed(schema)
    return _read_by_spark(schema) if known is None or _has_another_timestamp(schema) else known


def is_known(schema: object) -> bool:
    """Tell whether a schema can be read without Spark; `OptionError` for DDL that cannot be read at all."""
    from penstock.formats.ddl import parsed

    return not isinstance(schema, str) or parsed(schema) is not None


def _has_another_timestamp(schema: str) -> bool:
    """Tell whether Spark runs here, and is configured so that `timestamp` means a time without a zone."""
    pyspark = sys.modules.get("pyspark")
    context = pyspark and pyspark.SparkContext._active_spark_context  # noqa: SLF001 - PySpark itself finds its parser in this way
    if not context or "timestamp" not in schema.lower():
        return False
    settings = context._jvm.org.apache.spark.sql.internal.SQLConf.get()  # noqa: SLF001 - the setting that the parser reads
    return bool(settings.getConfString("spark.sql.timestampType", "TIMESTAMP_LTZ") == "TIMESTAMP_NTZ")


def _read_by_spark(schema: str) -> str:
    from pyspark import SparkContext
    from pyspark.sql.types import StructType
    from pyspark.sql.utils import is_remote

    if SparkContext._active_spark_context is None and not is_remote():  # noqa: SLF001 - PySpark itself finds its parser in this way
        msg = f"schema {schema!r}: only Spark can read this DDL, and no session runs in this process; give a StructType here"
        raise OptionError(msg)
    try:
        parsed: Any = StructType.fromDDL(schema)
        return str(StructType(parsed.fields).json())  # `int` alone is a type for Spark, and has no fields
    except Exception as error:  # Spark's parser raises several kinds
        msg = f"schema {schema!r} is not a DDL schema; expected one such as 'id bigint, name string'"
        raise OptionError(msg) from error
