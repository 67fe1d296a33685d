"""Rules for names and values together with setting aside: which records are rescued, which are bad, and which command sees them again."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv as pa_csv

from penstock.errors import BadFile
from penstock.formats import ddl
from penstock.source.noted import SchemaNotes
from penstock.storage import LocalStorage
from penstock.verify.retry import retry
from tests.cli.conftest import Pipeline
from tests.cli.test_aside import aside, held, raw, rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Said

QUARANTINE = {"badRecords": "quarantine"}


def piped(
    pipeline: Callable[..., Pipeline], columns: str, form: str = "json", query: str = "q", **source: str
) -> Pipeline:
    """Return an ingest with these columns that sets bad records aside."""
    schema = ddl.parsed(columns)
    assert schema is not None
    options = {"format": form} | QUARANTINE | source
    return pipeline(schema=schema, source=options, sink_options={"format": "json"}, query=query)


def json_rows(dst: Path) -> list[dict[str, Any]]:
    """Return the rows of the output."""
    return [json.loads(line) for line in rows(dst)]


def proved(penstock: Callable[..., Said], made: Pipeline) -> bool:
    """Tell whether verify proves that the output holds what the source has."""
    return bool(penstock("verify", made.dst, "--source", made.src, "--json").facts["source"]["proved"])


def test_a_name_that_no_column_has_makes_a_bad_record(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said]
) -> None:
    """With unknownFields=fail and missingFields=fail such records are set aside, at any depth, each with its own reason."""
    rules = {"unknownFields": "fail", "missingFields": "fail"}
    made = piped(pipeline, "id bigint, u struct<zip: bigint>", **rules)
    good = [json.dumps({"id": n, "u": {"zip": n}}) for n in range(500)]
    bad = {
        '{"id":1,"u":{"zip":2},"nme":"x"}': "expected no key 'nme', which no column has (unknownFields=fail)",
        '{"id":1,"u":{"zip":2,"x":1}}': "expected no key 'u.x', which no column has (unknownFields=fail)",
        '{"u":{"zip":2}}': "expected a value for column 'id' (missingFields=fail)",
        '{"id":1,"u":{}}': "expected a value for column 'u.zip' (missingFields=fail)",
        '{"id":"x","u":{"zip":2}}': "expected bigint in column 'id', not '\"x\"'",
        '{"id":1,"u":': "expected a record that is one JSON object",
    }
    lines = list(good)
    for place, line in enumerate(bad):
        lines.insert(40 + 90 * place, line)
    made.put("a.json", *lines)
    made.run()
    assert {held(line).decode(): line["reason"] for line in aside(made.dst)} == bad
    assert len(rows(made.dst)) == len(good)
    assert proved(penstock, made)


def test_what_fits_no_column_is_rescued_and_what_is_no_record_is_set_aside(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said]
) -> None:
    """With rescuedDataColumn a value of another type goes to that column; a broken line, and null where it must not be, is a bad record."""
    made = piped(
        pipeline, "id bigint NOT NULL, at date, _rescued string", rescuedDataColumn="_rescued", dateFormat="dd.MM.yyyy"
    )
    bad = ["no json", '{"id":"x"}', '{"at":"01.02.2026"}']
    path = made.put(
        "a.json", '{"id":1,"at":"31.12.2025"}', bad[0], '{"id":2,"at":"2025-12-31","b":1}', *bad[1:], '{"id":3}'
    )
    made.run()
    assert sorted(held(line).decode() for line in aside(made.dst)) == sorted(bad)
    found = sorted(json_rows(made.dst), key=lambda row: row["id"])
    rescued = json.loads(found[1].pop("_rescued"))
    assert found == [{"id": 1, "at": "2025-12-31"}, {"id": 2}, {"id": 3}]
    assert rescued == {"at": "2025-12-31", "b": 1, "_file_path": str(path)}
    assert proved(penstock, made)


def test_a_pattern_of_letters_is_rescued_value_by_value(pipeline: Callable[..., Pipeline]) -> None:
    """If a pattern defines how times look, a value that does not fit is rescued alone, without the other values of its record."""
    made = piped(pipeline, "at date, _rescued string", "csv", rescuedDataColumn="_rescued", dateFormat="MMM dd yyyy")
    made.put("a.csv", "Jan 02 2026", "2026-01-02", "Feb 03 2026")
    made.run()
    found = json_rows(made.dst)
    assert sorted(row["at"] for row in found if "at" in row) == ["2026-01-02", "2026-02-03"]
    assert [json.loads(row["_rescued"])["at"] for row in found if "_rescued" in row] == ["2026-01-02"]
    assert aside(made.dst) == []


def test_csv_with_rules_sets_records_aside(pipeline: Callable[..., Pipeline], penstock: Callable[..., Said]) -> None:
    """In CSV, unfit values and values under headers without a column are rescued together; a record with too few fields is bad, alone."""
    made = piped(
        pipeline,
        "id bigint NOT NULL, n int, gone string, _rescued string",
        "csv",
        rescuedDataColumn="_rescued",
        missingFields="null",
        header="true",
    )
    raw(made, "a.csv", b"id,n,more\n1,2,a\n2,x,b\n3\nx,4,c\n\xff,5,d\n6,7,\n")
    raw(made, "b.csv", b"n,id\ny,8\n")
    made.run()
    assert sorted(held(line) for line in aside(made.dst)) == [b"3", b"x,4,c", b"\xff,5,d"]
    found = {row["id"]: row for row in json_rows(made.dst)}
    assert sorted(found) == [1, 2, 6, 8]
    rescued = {key: json.loads(row.pop("_rescued")) for key, row in found.items() if "_rescued" in row}
    assert {key: {k: v for k, v in one.items() if k != "_file_path"} for key, one in rescued.items()} == {
        1: {"more": "a"},
        2: {"n": "x", "more": "b"},
        8: {"n": "y"},
    }
    assert rescued[8]["_file_path"] == str(made.src / "b.csv")
    assert found[1] == {"id": 1, "n": 2}
    assert proved(penstock, made)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_file_whose_columns_are_refused_is_a_bad_file(pipeline: Callable[..., Pipeline], form: str) -> None:
    """A header or table with names without a column is no bad record: badRecords ignores it, badFiles=quarantine sets it aside."""
    options = {"unknownFields": "fail", **({"header": "true"} if form == "csv" else {})}

    made = piped(pipeline, "id bigint", form, **options)
    for name, columns in {"a": {"id": [1]}, "b": {"id": [2], "new": ["x"]}}.items():
        data = io.BytesIO()
        table = pa.table(columns)
        pq.write_table(table, data) if form == "parquet" else pa_csv.write_csv(table, data)
        raw(made, f"{name}.{form}", data.getvalue())
    with pytest.raises(BadFile, match="unknownFields=fail"):
        made.run()
    again = piped(pipeline, "id bigint", form, query="r", badFiles="quarantine", **options)
    again.run()
    assert json_rows(again.dst) == [{"id": 1}]
    assert [line["path"] for line in aside(again.dst)] == [str(made.src / f"b.{form}")]


def test_a_retry_reads_by_the_schema_that_has_grown(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said]
) -> None:
    """A record that was bad because a type was too narrow is taken in with the next run's wider type; each is proved by its own schema."""
    made = piped(pipeline, "id int, n int, _rescued string", unknownFields="fail", rescuedDataColumn="_rescued")
    path = made.put("a.json", '{"id":1}', '{"id":2,"b":"x"}', '{"id":3,"n":"x","b":"c"}', '{"id":4,"n":"y"}')
    notes = SchemaNotes(LocalStorage(), f"{made.checkpoint}/penstock")  # as an ingest has them
    notes.go_on(made.schema, -1, 0)
    made.run()
    assert len(aside(made.dst)) == 2
    assert retry(str(made.dst)).records == 0
    made.schema = ddl.parsed("id bigint, n int, b string, _rescued string") or ""
    wider = Pipeline(made.root, source=made.source, sink_options=made.sink_options, schema=made.schema)
    wider.batch, wider.offset = made.batch, made.offset
    notes.go_on(wider.schema, 0, 0)
    wider.put("b.json", '{"id":9000000000,"b":"y"}')
    wider.run()
    assert proved(penstock, wider)
    assert retry(str(made.dst)).records == 2
    assert proved(penstock, wider)
    found = {row["id"]: row for row in json_rows(made.dst)}
    assert sorted(found) == [1, 2, 3, 4, 9000000000]
    assert found[2] == {"id": 2, "b": "x"}
    assert json.loads(found[3].pop("_rescued")) == {"n": "x", "_file_path": str(path)}
    assert found[3] == {"id": 3, "b": "c"}
