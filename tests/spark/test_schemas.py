"""Schemas that are inferred, and that change between runs, on a real Spark."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import duckdb
import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli.app import app
from penstock.errors import BadRecord, SchemaChanged
from tests.source.github import write_day
from tests.support.follows import follows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.ingestion.ingested import Ingested
    from tests.support.stage import Stage


def put(stage: Stage, name: str, *records: object) -> None:
    stage.put(name, *map(json.dumps, records))


@follows("PST-105")
def test_an_inferred_schema_stays_and_grows_by_intent(spark: SparkSession, stage: Stage) -> None:
    """`infer` reads by the first start's note; extra columns are reported and the run goes on; a missing column is an error with advice."""

    def ingest(schema: str) -> Ingested:
        source = {"format": "json", "schema": schema}
        return penstock.ingest(spark, stage.src, stage.dst, source=source, sink={"format": "parquet"})

    put(stage, "a.json", {"a": 1, "u": {"x": "y"}})
    assert ingest("infer").notes == ("the schema was inferred: a bigint, u struct<x: string>",)
    put(stage, "b.json", {"a": 2, "u": {"x": "z", "n": 1}, "b": "new"})
    second = ingest("infer")
    assert second.unknown_fields == {"b": 1, "u.n": 1}
    put(stage, "c.json", {"a": "three"})
    with pytest.raises(BadRecord):
        ingest("infer")
    put(stage, "c.json", {"a": 3, "u": {"n": 3}, "b": "c"})
    os.utime(stage.src / "c.json")
    wider = ingest("a bigint, u struct<x: string, n: bigint>, b string")
    assert wider.notes == (
        "the schema has changed: column 'b' (string) is new",
        "the schema has changed: column 'u.n' (bigint) is new",
        "null in every row: 'u.x'",
    )
    with pytest.raises(SchemaChanged, match="column 'u' .* is not there any more.*schema=infer"):
        ingest("a bigint, b string")
    put(stage, "d.json", {"a": 4, "b": "d"})
    assert ingest("infer").rows == 4
    command = ["verify", str(stage.dst), "--source", str(stage.src), "--json"]
    verified = json.loads(CliRunner().invoke(app, command).stdout)["source"]
    assert verified["proved"] is True, verified
    assert (
        "rows from before have other columns 'b', 'u', which were added or widened since: they were not compared"
        in verified["notes"]
    )
    query = f"select a, u.n, b from read_parquet('{stage.dst}/*.parquet', union_by_name=true) order by a"
    rows = duckdb.connect().execute(query).fetchall()
    assert rows == [(1, None, None), (2, None, None), (3, 3, "c"), (4, None, "d")]


def test_a_query_reads_by_what_it_has_inferred(spark: SparkSession, stage: Stage) -> None:
    """`schema=infer` as an option of a stream: the schema is noted in stateLocation, and the next start reads by it."""

    def rows() -> int:
        reader = spark.readStream.format("penstock").option("format", "json").option("schema", "infer")
        frame = reader.option("stateLocation", str(stage.root / "plans")).load(str(stage.src))
        assert frame.schema.simpleString() == "struct<a:bigint,b:struct<x y:double>>"
        writer = frame.writeStream.format("penstock").option("format", "json").trigger(availableNow=True)
        writer.option("checkpointLocation", str(stage.checkpoint)).start(str(stage.dst)).awaitTermination()
        return sum(stage.lines().values())

    put(stage, "a.json", {"a": 1, "b": {"x y": 1.5}})
    assert rows() == 1
    put(stage, "b.json", {"a": 2, "c": "x"})
    assert rows() == 2


@pytest.mark.usefixtures("spark")  # the command uses the existing session
def test_the_command_infers(stage: Stage) -> None:
    """`--schema infer` on the command line: the summary shows the inferred schema; the columns of CSV come from its header."""
    stage.put("a.csv", "id,day,price", "1,2026-01-31,2.5", "2,2026-02-01,")
    options = ("--format", "csv", "--schema", "infer", "--source-option", "header=true", "--to", "parquet")
    said = CliRunner().invoke(app, ["ingest", str(stage.src), str(stage.dst), *options])
    assert said.exit_code == 0, said.output
    assert "the schema was inferred: id int, day date, price double" in said.output
    answer = json.loads(
        CliRunner().invoke(app, ["verify", str(stage.dst), "--source", str(stage.src), "--json"]).stdout
    )
    assert answer["source"]["proved"] is True


def test_a_day_of_drifting_events_goes_through(spark: SparkSession, stage: Stage) -> None:
    """No record stops the run, every lost value has a line about it, and `verify` proves that all input is in the output."""
    events = write_day(stage.src, an_hour=20)
    source = {
        "format": "json",
        "schema": "id bigint, type string, created_at timestamp",
        "rescuedDataColumn": "_rescued",
    }
    done = penstock.ingest(spark, stage.src, stage.dst, source=source, sink={"format": "parquet"})
    assert (done.rows, done.rescued) == (len(events), len(events))
    assert done.notes[-1] == f"rescued of {len(events)} records: what no column has, or takes"
    rows = (
        duckdb.connect()
        .execute(f"select _rescued from read_parquet('{stage.dst}/*.parquet') where id is null")
        .fetchall()
    )
    late = [made["id"] for made in events if isinstance(made["id"], str)]
    assert sorted(json.loads(row[0])["id"] for row in rows) == sorted(late)
    command = ["verify", str(stage.dst), "--source", str(stage.src), "--json"]
    assert json.loads(CliRunner().invoke(app, command).stdout)["source"]["proved"] is True
