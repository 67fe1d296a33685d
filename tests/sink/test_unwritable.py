"""Types that rows can wait in, and files cannot hold: refused at the start, and a way out for what was staged before."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import OptionError, Unwritable
from penstock.formats.schema import to_arrow
from penstock.sink.batch import Batch, Committed
from penstock.sink.sink import Sink
from penstock.verify import verify
from tests.support.advice import penstock
from tests.support.output import Output

EMPTY = {"type": "struct", "fields": []}
UNWRITABLE = {
    "struct<>": EMPTY,
    "array<struct<>>": {"type": "array", "elementType": EMPTY, "containsNull": True},
    "map<string, struct<>>": {"type": "map", "keyType": "string", "valueType": EMPTY, "valueContainsNull": True},
    "decimal(5,-2)": "decimal(5,-2)",
}
VALUES = {
    "struct<>": [{}, None],
    "array<struct<>>": [[{}, None], None],
    "map<string, struct<>>": [[("k", {})], None],
    "decimal(5,-2)": [pa.scalar("12300").cast(pa.decimal128(5, -2)).as_py(), None],
}
TEXTS = {
    "struct<>": "{}",
    "array<struct<>>": "[{},null]",
    "map<string, struct<>>": '{"k":{}}',
    "decimal(5,-2)": "12300",
}


def schema_of(kind: object) -> pa.Schema:
    """Return a schema with a column `meta` of this type behind another one."""
    fields = [
        {"name": name, "type": each, "nullable": True, "metadata": {}}
        for name, each in (("id", "long"), ("meta", kind))
    ]
    return to_arrow(json.dumps({"type": "struct", "fields": fields}))


@pytest.mark.parametrize("kind", UNWRITABLE)
def test_what_no_file_can_hold_is_told_at_the_start(output: Output, kind: str) -> None:
    """A type that Parquet has no form for is refused before a row is taken, and the column is named."""
    output.schema = schema_of(UNWRITABLE[kind])
    with pytest.raises(OptionError, match=r"column 'meta' is .*, which parquet cannot hold \("):
        output.sink(format="parquet")
    if not kind.startswith("decimal"):
        with pytest.raises(OptionError, match="column 'meta' is .*, which csv cannot hold"):
            output.sink(format="csv")
    assert not output.root.exists()


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_a_name_that_is_there_twice(output: Output, form: str) -> None:
    """Two columns, or members of a struct at any depth, of one name are refused: readers would see one of them."""
    member = pa.struct([("a", pa.int64()), ("a", pa.string())])
    inside = pa.map_(pa.string(), pa.list_(member))
    for schema, name in ((pa.schema(list(member)), "a"), (pa.schema([("s", inside)]), "s.a")):
        output.schema = schema
        with pytest.raises(OptionError, match=f"column '{name}' is there twice"):
            output.sink(format=form)


@pytest.mark.parametrize("rolling", [{}, {"rollRows": "1"}, {"rollBatches": "1"}])
@pytest.mark.parametrize("kind", ["void", {"type": "array", "elementType": "void", "containsNull": True}], ids=str)
def test_a_type_without_values_is_written(output: Output, kind: object, rolling: dict[str, str]) -> None:
    """Void and array<void>, which Parquet holds, are taken in every way a part goes."""
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
    """Take rows as 0.1.0 did, which has not tried their schema; return them."""
    schema = schema_of(UNWRITABLE[kind])
    rows = pa.RecordBatch.from_arrays(
        [pa.array([1, 2], pa.int64()), pa.array(VALUES[kind], schema.field("meta").type)], schema=schema
    )
    with patch.object(Sink, "check"):
        taken(output.sink(format="parquet"), 0, rows)
    return rows


@pytest.mark.parametrize("kind", UNWRITABLE)
def test_rows_of_an_earlier_version_that_no_file_can_hold(output: Output, kind: str) -> None:
    """`Unwritable`: `verify` and `finish` say it, and name the flag; with it every row is published, and the query goes on."""
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
    """The way out changes nothing about columns that files can hold."""
    output.schema = schema = schema_of("long")
    taken(output.sink(format="parquet"), 0, pa.RecordBatch.from_pylist([{"id": 1, "meta": 7}], schema=schema))
    assert penstock("finish", output.root, "--as-text")[0] == 0
    assert pq.read_table(output.root, partitioning=None).to_pylist() == [{"id": 1, "meta": 7}]
