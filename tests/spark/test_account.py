"""What a run reports about columns without values and about field names that match no column, on a real Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.console import Console
from typer.testing import CliRunner

import penstock
from penstock.cli import ingest as command
from penstock.cli.app import app

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.ingestion.ingested import Ingested
    from tests.support.stage import Stage

NOTES = ["null in every row: 'contry'", "in the data, and in no column: 'country' 250 times (is that column 'contry'?)"]


def put(stage: Stage, name: str, count: int, **more: object) -> None:
    """Write a country's orders."""
    stage.put(name, *(json.dumps({"id": number, "country": "de", **more}) for number in range(count)))


def test_a_misspelt_column_is_told_by_run_status_and_verify(spark: SparkSession, stage: Stage) -> None:
    """`contry` for `country`: `verify` certifies the null column, a run reports what it has read, `status` reports the whole output."""
    seen: list[Ingested] = []

    def ingest(schema: str) -> Ingested:
        source = {"format": "json", "schema": schema}
        return penstock.ingest(
            spark, stage.src, stage.dst, source=source, sink={"format": "json"}, progress=seen.append
        )

    def asked(*arguments: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
        return answer

    for name in ("a.json", "b.json"):
        put(stage, name, 75)
    first = ingest("id bigint, contry string")
    assert (first.null_columns, first.unknown_fields) == (("contry",), {"country": 150})
    assert seen[-1] == first
    put(stage, "c.json", 100)
    second = ingest("id bigint, contry string")
    assert second.unknown_fields == {"country": 100}
    assert ingest("id bigint, contry string").notes == ()  # there was nothing to read
    [sink] = asked("status", str(stage.dst))["sinks"]
    assert (sink["null_columns"], sink["unknown_fields"], sink["notes"]) == (["contry"], {"country": 250}, NOTES)
    shown = CliRunner().invoke(app, ["status", str(stage.dst)]).stdout
    verified = asked("verify", str(stage.dst), "--source", str(stage.src))
    assert all(note in shown for note in NOTES)
    assert verified["source"]["proved"] is True
    assert verified["source"]["notes"] == NOTES
    put(stage, "d.json", 5, contry="de")
    assert ingest("id bigint, contry string").null_columns == ()
    [sink] = asked("status", str(stage.dst))["sinks"]
    assert sink["null_columns"] == []


def test_a_plain_query_tells_of_columns_without_a_value(spark: SparkSession, stage: Stage) -> None:
    """A query from any source into the sink reports which of its columns were null in every row."""
    put(stage, "a.json", 3)
    frame = spark.readStream.schema("id bigint, contry string").json(str(stage.src))
    writer = frame.writeStream.format("penstock").option("format", "parquet").trigger(availableNow=True)
    writer.option("checkpointLocation", str(stage.checkpoint)).start(str(stage.dst)).awaitTermination()
    told = json.loads(CliRunner().invoke(app, ["status", str(stage.dst), "--json"]).stdout)["sinks"][0]
    assert (told["null_columns"], told["unknown_fields"]) == (["contry"], {})


def test_the_summary_has_the_notes() -> None:
    """The summary on a terminal at the end of a run prints the notes."""
    counts = ("input_files", "input_bytes", "rows", "output_files", "output_bytes")
    facts: dict[str, Any] = dict.fromkeys((*counts, "seconds", "start_seconds", "bytes_per_second"), 1)
    facts |= {"new": dict.fromkeys(counts, 1), "notes": NOTES, "path": "/out", "interrupted": False}
    facts |= dict.fromkeys(("aside_records", "aside_files", "aside_changed"), 0)
    console = Console(record=True, width=200)
    command._show(facts, console)
    text = console.export_text()
    assert all(f"note     {note}\n" in text for note in NOTES)
