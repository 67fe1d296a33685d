"""Types that staged rows can have but files cannot: refused at the start, with a way out for rows staged by older versions."""

from __future__ import annotations

import json
from datetime import time as clocktime
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import OptionError, Unwritable
from penstock.formats.schema import to_arrow
from penstock.formats.stored import SPARK_KEY, Stored
from penstock.query.batch import Batch
from penstock.sink.batch import Committed
from penstock.sink.layout import Layout
from penstock.sink.sink import Sink
from penstock.sink.tableparts import ArrowPart
from penstock.verify import verify
from tests.support.advice import penstock
from tests.support.follows import follows
from tests.support.output import Output

EMPTY = {"type": "struct", "fields": []}
UNWRITABLE = {
    "struct<>": EMPTY,
    "array<struct<>>": {"type": "array", "elementType": EMPTY, "containsNull": True},
    "map<string, struct<>>": {"type": "map", "keyType": "string", "valueType": EMPTY, "valueContainsNull": True},
    "decimal(5,-2)": "decimal(5,-2)",
    "struct<i: interval, s: struct<>>": {
        "type": "struct",
        "fields": [
            {"name": "i", "type": "interval day to second", "nullable": True, "metadata": {}},
            {"name": "s", "type": EMPTY, "nullable": True, "metadata": {}},
        ],
    },
}
VALUES = {
    "struct<>": [{}, None],
    "array<struct<>>": [[{}, None], None],
    "map<string, struct<>>": [[("k", {})], None],
    "struct<i: interval, s: struct<>>": [{"i": timedelta(hours=-1), "s": {}}, None],
    "decimal(5,-2)": [pa.scalar("12300").cast(pa.decimal128(5, -2)).as_py(), None],
}
TEXTS = {
    "struct<>": "{}",
    "array<struct<>>": "[{},null]",
    "map<string, struct<>>": '{"k":{}}',
    "struct<i: interval, s: struct<>>": """{"i":"INTERVAL '-0 01:00:00' DAY TO SECOND","s":{}}""",
    "decimal(5,-2)": "1.23E+4",
}


def schema_of(kind: object) -> pa.Schema:
    """Return a schema with a column `meta` of this type after another column."""
    fields = [
        {"name": name, "type": each, "nullable": True, "metadata": {}}
        for name, each in (("id", "long"), ("meta", kind))
    ]
    return to_arrow(json.dumps({"type": "struct", "fields": fields}))


@pytest.mark.parametrize("kind", UNWRITABLE)
def test_what_no_file_can_hold_is_told_at_the_start(output: Output, kind: str) -> None:
    """A type that Parquet cannot represent is refused before any row is taken, and the error names the column."""
    output.schema = schema_of(UNWRITABLE[kind])
    with pytest.raises(OptionError, match=r"column 'meta' is .*, which parquet cannot hold \("):
        output.sink(format="parquet")
    if not kind.startswith("decimal"):
        with pytest.raises(OptionError, match="column 'meta' is .*, which csv cannot hold"):
            output.sink(format="csv")
    assert not output.root.exists()


@pytest.mark.parametrize("form", ["parquet", "orc", "avro", "csv"])
def test_rows_without_columns_are_refused(output: Output, form: str) -> None:
    """Six rows became no row in a Parquet file, silently, and ORC ended the process."""
    output.schema = pa.schema([])
    with pytest.raises(OptionError, match=f"{form} needs at least one column, found none"):
        output.sink(format=form)


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_a_name_that_is_there_twice(output: Output, form: str) -> None:
    """Two columns, or members of a struct at any depth, with one name are refused: readers would see only one of them."""
    member = pa.struct([("a", pa.int64()), ("a", pa.string())])
    inside = pa.map_(pa.string(), pa.list_(member))
    for schema, name in ((pa.schema(list(member)), "a"), (pa.schema([("s", inside)]), "s.a")):
        output.schema = schema
        with pytest.raises(OptionError, match=f"column '{name}' is there twice"):
            output.sink(format=form)


@pytest.mark.parametrize("rolling", [{}, {"rollRows": "1"}, {"rollBatches": "1"}])
@pytest.mark.parametrize("kind", ["void", {"type": "array", "elementType": "void", "containsNull": True}], ids=str)
def test_a_type_without_values_is_written(output: Output, kind: object, rolling: dict[str, str]) -> None:
    """Parquet can hold void and array<void>: they are accepted on every way to a file."""
    output.schema = schema = schema_of(kind)
    sink = output.sink(format="parquet", **rolling)
    rows = pa.RecordBatch.from_pylist([{"id": 1, "meta": None if kind == "void" else [None]}], schema=schema)
    for number in range(2):
        taken(sink, number, rows)
    sink.finish()
    assert pq.read_table(output.root, partitioning=None).to_pylist() == rows.to_pylist() * 2


def taken(sink: Sink, number: int, rows: pa.RecordBatch, owner: str = "d") -> Committed:
    """Run a batch of these rows."""
    batch = Batch("q", number)
    begun = sink.begin(owner, batch)
    return sink.commit(batch, [sink.write(begun, "q", number, 0, rows.schema, iter([rows]))])


def wedged(output: Output, kind: str) -> pa.RecordBatch:
    """Take rows as 0.1.0 did, which did not check their schema; return them."""
    schema = schema_of(UNWRITABLE[kind])
    rows = pa.RecordBatch.from_arrays(
        [pa.array([1, 2], pa.int64()), pa.array(VALUES[kind], schema.field("meta").type)], schema=schema
    )
    with patch.object(Layout, "check"):
        taken(output.sink(format="parquet"), 0, rows)
    return rows


@follows("PST-304")
@pytest.mark.parametrize("kind", UNWRITABLE)
def test_rows_of_an_earlier_version_that_no_file_can_hold(output: Output, kind: str) -> None:
    """`verify` and `finish` report `Unwritable` and name the flag; with the flag every row is published, and the query continues."""
    wedged(output, kind)
    [problem] = verify(str(output.root)).output.problems
    assert (problem.kind, "column meta" in problem.detail) == ("unwritable", True)
    status, said = penstock("finish", output.root)
    assert status == 1
    assert "PST-304" in said
    assert "--as-text" in said
    output.schema = corrected = schema_of("string")
    sink = output.sink(format="parquet", rollInactivity="1s")
    output.time.sleep(10)
    rows = pa.RecordBatch.from_pylist([{"id": 3, "meta": "{}"}], schema=corrected)
    with pytest.raises(Unwritable, match=r"penstock finish .* --as-text"):
        taken(sink, 1, rows)
    assert penstock("finish", output.root, "--as-text")[0] == 0
    taken(sink, 1, rows, "again")
    sink.finish()
    expected = [{"id": 1, "meta": TEXTS[kind]}, {"id": 2, "meta": None}, {"id": 3, "meta": "{}"}]
    found = pq.read_table(output.root, partitioning=None).to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == expected
    assert verify(str(output.root)).ok
    assert not list(Path(output.root, "_penstock/s/staging").glob("*.part"))


def test_a_part_that_can_be_written_stays_as_it_is(output: Output) -> None:
    """The flag changes nothing about columns that files can hold."""
    output.schema = schema = schema_of("long")
    taken(output.sink(format="parquet"), 0, pa.RecordBatch.from_pylist([{"id": 1, "meta": 7}], schema=schema))
    assert penstock("finish", output.root, "--as-text")[0] == 0
    assert pq.read_table(output.root, partitioning=None).to_pylist() == [{"id": 1, "meta": 7}]


@pytest.mark.parametrize("stage_bytes", [1, 1 << 20], ids=["staged as Parquet", "staged as Arrow"])
def test_parts_of_an_earlier_version_go_on(output: Output, monkeypatch: pytest.MonkeyPatch, stage_bytes: int) -> None:
    """Rows staged without Spark's key and with times in nanoseconds, and rows of today, go into one file, with the key."""
    nested = [
        {"name": "t", "type": "time(3)", "nullable": False, "metadata": {}},
        {"name": "i", "type": "interval hour", "nullable": True, "metadata": {}},
    ]
    schema = schema_of({"type": "array", "elementType": {"type": "struct", "fields": nested}, "containsNull": True})
    monkeypatch.setattr(ArrowPart, "stage_bytes", stage_bytes)
    values: list[Any] = [[{"t": clocktime(1, 2, 3, 4000), "i": timedelta(hours=3)}, None], None]
    rows = pa.RecordBatch.from_arrays([pa.array([1, 2]), pa.array(values, schema.field("meta").type)], schema=schema)
    earlier = pa.schema([("id", pa.int64()), ("meta", without_metadata(schema.field("meta").type))])
    output.schema = schema
    with monkeypatch.context() as patched:
        patched.setattr(Stored, "of", lambda given: Stored(given, given, None))
        before = pa.RecordBatch.from_arrays(
            [rows.column(0), pa.array([values[0][:1], None], earlier.field("meta").type)], schema=earlier
        )
        taken(output.sink(format="parquet"), 0, before)
    taken(output.sink(format="parquet"), 1, rows, "of today")
    output.sink(format="parquet").finish()
    [path] = output.root.glob("*.parquet")
    table = pq.read_table(path, partitioning=None)
    assert table.to_pylist() == before.to_pylist() + rows.to_pylist()
    assert SPARK_KEY in pq.ParquetFile(path).metadata.metadata


def without_metadata(kind: pa.ListType) -> pa.ListType:
    """Return a list of structs as earlier versions had it: without metadata on the members."""
    members = [member.remove_metadata() for member in kind.value_type]
    return pa.list_(kind.value_field.with_type(pa.struct(members)))
