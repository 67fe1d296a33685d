"""`python -m tests.soak.driver JSON`: the application that is killed, like any other. Prints DONE when it ends by itself."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import penstock
from tests.soak.records import DDL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AWAKE, DONE = "AWAKE", "DONE"
_PAUSE_SECONDS = 0.2


def main(given: dict[str, Any]) -> None:
    """Run the query: once, repeatedly on the available input, or until it is killed."""
    config = {"spark.executor.memory": "512m"}
    spark = penstock.local_session(given["master"], config=config, rows_in_jvm=given["engine"] != "ingest")
    print(AWAKE, flush=True)  # noqa: T201 - whoever kills it waits for that
    run = ingest if given["engine"] == "ingest" else query
    run(spark, given)
    while given["trigger"] == "available":
        time.sleep(_PAUSE_SECONDS)
        run(spark, given)
    print(DONE, flush=True)  # noqa: T201 - the answer


def ingest(spark: SparkSession, given: dict[str, Any]) -> None:
    """Run an ingest."""
    watch = given["trigger"].endswith("seconds")
    penstock.ingest(spark, given["src"], given["dst"], source=_source(given), sink=given["sink"], watch=watch)


def query(spark: SparkSession, given: dict[str, Any]) -> None:
    """Run a plain query."""
    source = _source(given)
    reader = spark.readStream.format("penstock")
    if "schema" in source:
        reader = reader.schema(source.pop("schema"))
    frame = reader.options(**source).load(given["src"])
    if given["repartition"]:
        frame = frame.repartition(given["repartition"])
    writer = frame.writeStream.format("penstock").options(**given["sink"])
    writer = writer.option("checkpointLocation", given["dst"] + "/_penstock/checkpoint")
    trigger = {"processingTime": given["trigger"]} if given["trigger"].endswith("seconds") else {"availableNow": True}
    writer.trigger(**trigger).start(given["dst"]).awaitTermination()


def _source(given: dict[str, Any]) -> dict[str, str]:
    schema = {} if given["form"] == "text" else {"schema": DDL}
    return {**given["source"], **schema, "format": given["form"], "recursiveFileLookup": "true"}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
