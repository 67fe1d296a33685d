"""A table of what lands in a directory, counts of it, and finished files that every reader may have."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


def landed() -> DataFrame:
    """Return each record of the input, once for each flow that asks."""
    source = spark.readStream.format("penstock").option("format", "json").option("settle", "0s")
    return source.schema("id bigint, day string").load(spark.conf.get("spark.example.input"))


@dp.table(name="events")
def events() -> DataFrame:
    """Return what goes into a table of Spark's."""
    return landed()


@dp.materialized_view(name="days")
def days() -> DataFrame:
    """Return how many records there are of each day, computed anew by each run."""
    return spark.read.table("events").groupBy("day").count()


dp.create_sink(
    "files", "penstock", {"path": spark.conf.get("spark.example.output"), "format": "parquet", "bucketBy": "day={day}"}
)


@dp.append_flow(target="files", name="to_files")
def to_files() -> DataFrame:
    """Return what goes into finished files."""
    return landed()
