"""A table of the records that land in a directory, counts of them, and finished files that every reader can use."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


def landed() -> DataFrame:
    """Return each record of the input, once for each flow that reads it."""
    source = spark.readStream.format("penstock").option("format", "json").option("settle", "0s")
    return source.schema("id bigint, day string").load(spark.conf.get("spark.example.input"))


@dp.table(name="events")
def events() -> DataFrame:
    """Return the rows of one of Spark's tables."""
    return landed()


@dp.materialized_view(name="days")
def days() -> DataFrame:
    """Return the number of records of each day, computed anew by each run."""
    return spark.read.table("events").groupBy("day").count()


dp.create_sink(
    "files", "penstock", {"path": spark.conf.get("spark.example.output"), "format": "parquet", "bucketBy": "day={day}"}
)


@dp.append_flow(target="files", name="to_files")
def to_files() -> DataFrame:
    """Return the rows of the finished files."""
    return landed()
