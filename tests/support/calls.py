"""Asynchronous calls that a stage can name as `tests.support.calls:calls`. Importing them needs no Spark session."""

from __future__ import annotations

import asyncio
from typing import Any

from pyspark.sql.types import StringType, StructField, StructType

import penstock


async def shout(row: Any) -> tuple[str]:
    await asyncio.sleep(0)
    return (row.value.upper(),)


calls = penstock.AsyncMap(shout, schema=StructType([StructField("loud", StringType())]), keep_input=False)
