"""The SQL of an ingest compared with Spark's: the stored answers are those of the installed Spark, and an ingest gives them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import penstock
from penstock.ingestion.sql.query import Sql
from penstock.verify import verify
from tests.ingestion import sqlcases

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.stage import Stage

NAMES = "select X, St.v, `odd name`, i as `a b`, input.K from input"


def test_kept_answers_are_those_of_this_spark(spark: SparkSession) -> None:
    """For a quarter of the file's cases Spark still gives the stored name, type and value; all of them are asked when the file is made."""
    kept = sqlcases.answers()
    cases = [case for case, answer in kept.items() if sqlcases.ERROR not in answer["values"]][::4]
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", sqlcases.ZONE)
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    assert sqlcases.asked(session, cases) == {case: kept[case] for case in cases}
    assert session.sql(NAMES).columns == Sql(NAMES)(sqlcases.rows()).schema.names


def test_ingest_by_sql(spark: SparkSession, stage: Stage) -> None:
    """An ingest by a select writes what Spark's own SQL answers for the same files; the next run goes on, and verify repeats it."""
    ddl = "id bigint, price double, name string"
    columns = "id, upper(name) as name, case when price > 1 then id div 3 else -1 end as third"
    sql = f"select {columns} from input where name like 'n%' and id % 2 = 0"
    for name in ("a.json", "b.json"):
        ids = range(20) if name == "a.json" else range(20, 40)
        stage.put(name, *(json.dumps({"id": i, "price": i / 10, "name": "n" * (i % 3) or None}) for i in ids))
        penstock.ingest(
            spark,
            str(stage.src),
            str(stage.dst),
            source={"format": "json", "schema": ddl},
            sink={"format": "json"},
            sql=sql,
        )
    spark.read.schema(ddl).json(str(stage.src)).createOrReplaceTempView("input")
    expected = sorted(tuple(row) for row in spark.sql(sql).collect())
    spark.catalog.dropTempView("input")
    ours = sorted(tuple(json.loads(line).values()) for line in stage.lines())
    assert ours == expected
    proof = verify(str(stage.dst), str(stage.src)).source
    assert proof is not None
    assert proof.proved
