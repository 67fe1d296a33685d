"""A streaming table of what lands in a directory, counts of it, and files that any reader may have."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table(name="events")
def events() -> DataFrame:
    """Return each record of the input, once."""
    source = spark.readStream.format("penstock").option("format", "json").option("settle", "0s")
    return source.schema("id bigint, day string").load(spark.conf.get("events.input"))


@dp.materialized_view(name="days")
def days() -> DataFrame:
    """Return how many records there are of each day."""
    return spark.read.table("events").groupBy("day").count()


dp.create_sink(
    "files", "penstock", {"path": spark.conf.get("events.output"), "format": "parquet", "bucketBy": "day={day}"}
)


@dp.append_flow(target="files", name="to_files")
def to_files() -> DataFrame:
    """Return what goes into finished files."""
    return spark.readStream.table("events")
