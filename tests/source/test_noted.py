"""The schema of a stream is noted: restarts use the same one, more columns are accepted, a missing column or another type is not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from penstock.errors import DamagedState, OptionError, SchemaChanged
from penstock.formats import ddl
from penstock.formats.changes import SchemaChanges
from penstock.ingestion.schema import ReadSchema
from penstock.options import SOURCE, parse
from penstock.source.inferred import noted_schema
from penstock.source.noted import SchemaNotes
from penstock.storage import LocalStorage

if TYPE_CHECKING:
    from pathlib import Path


def as_json(text: str) -> str:
    known = ddl.parsed(text)
    assert known is not None
    return known


def notes_in(directory: Path) -> SchemaNotes:
    return SchemaNotes(LocalStorage(), f"{directory}/state")


GOES_ON = [
    ("a int", "a int, b string", ["column 'b' (string) is new"]),
    ("a int", "a bigint", ["column 'a' was int, and is bigint now"]),
    ("a float, b int, c smallint", "a double, b double, c bigint", 3),
    ("a decimal(10,2)", "a decimal(12,4)", 1),
    ("a int", "a decimal(10,0)", 1),
    (
        "a struct<b: int>",
        "a struct<b: bigint, c: string>",
        ["column 'a.c' (string) is new", "column 'a.b' was int, and is bigint now"],
    ),
    ("a array<struct<b: int>>, m map<string, int>", "a array<struct<b: int, c: date>>, m map<string, bigint>", 2),
    ("a int, b string", "b string, a int", []),
    ("a int NOT NULL", "a int", []),
]
REFUSED = [
    ("a int, b string", "a int", "column 'b' (string) is not there any more"),
    ("a bigint", "a int", "column 'a' was bigint, and is int now"),
    ("a bigint", "a double", "column 'a' was bigint, and is double now"),
    ("a bigint", "a string", "column 'a' was bigint, and is string now"),
    ("a int", "a decimal(9,0)", "column 'a' was int, and is decimal(9,0) now"),
    ("a decimal(10,2)", "a decimal(12,1)", "column 'a' was decimal(10,2), and is decimal(12,1) now"),
    ("a struct<b: int, c: int>", "a struct<b: int>", "column 'a.c' (int) is not there any more"),
    ("a array<int>", "a int", "column 'a' was array<int>, and is int now"),
    ("a int", "a int NOT NULL", "column 'a' is NOT NULL, and was not"),
]


@pytest.mark.parametrize(("before", "now", "told"), GOES_ON)
def test_more_columns_and_wider_numbers_go_on(tmp_path: Path, before: str, now: str, told: list[str] | int) -> None:
    """An accepted change is reported, and noted as the next version; nothing is noted twice."""
    notes = notes_in(tmp_path)
    notes.go_on(as_json(before), -1, 1)
    note = notes.go_on(as_json(now), 0, 2)
    assert len(note.changes) == told if isinstance(told, int) else sorted(note.changes) == sorted(told)
    assert notes.go_on(as_json(now), 1, 3) == note == notes_in(tmp_path).counting(1)
    assert [known.version for known in notes.all()] == [1, 2]


@pytest.mark.parametrize(("before", "now", "told"), REFUSED)
def test_a_column_less_or_another_type_is_refused(tmp_path: Path, before: str, now: str, told: str) -> None:
    """The error names the column and says what to do; nothing is noted."""
    notes = notes_in(tmp_path)
    notes.go_on(as_json(before), -1, 1)
    with pytest.raises(SchemaChanged) as refused:
        notes.go_on(as_json(now), 0, 2)
    assert told in refused.value.message
    assert "schema=infer" in refused.value.message
    assert [note.schema for note in notes.all()] == [as_json(before)]


def test_what_was_inferred_first_counts(tmp_path: Path) -> None:
    """Two drivers infer from different files: both read by the schema that was noted first."""
    first = notes_in(tmp_path).first(as_json("a int"), -1, 1)
    second = notes_in(tmp_path).first(as_json("a string, b int"), -1, 2)
    assert first == second == notes_in(tmp_path).counting()
    assert first.inferred


def test_an_inferred_schema_stays_after_a_restart(tmp_path: Path) -> None:
    """A stream infers and dies before its first batch; files with other types come: a restart uses the schema inferred first."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"a":1}\n', encoding="utf-8")
    source = {"path": str(tmp_path / "in"), "format": "json"}
    notes = notes_in(tmp_path)

    def started(schema: str, committed: int) -> ReadSchema:
        return ReadSchema.of(schema, source, notes, committed).noted(notes, committed)

    first = started("infer", -1)
    assert first.told[0] == "the schema was inferred: a bigint"
    (tmp_path / "in" / "b.json").write_text('{"a":"x","b":1}\n', encoding="utf-8")
    for committed in (-1, 0, 1):
        again = started("infer", committed)
        assert (again.json, again.told) == (first.json, ())
    wider = started("a bigint, b bigint", 1)
    assert wider.told == ("the schema has changed: column 'b' (bigint) is new",)
    assert started("infer", 1).json == first.json  # no batch was committed under the wider schema
    assert started("a bigint, b bigint", 1).told == wider.told
    assert started("infer", 2).json == wider.json
    with pytest.raises(SchemaChanged, match="column 'b'"):
        started("a bigint", 2)


def test_a_slip_that_no_batch_was_committed_by_binds_nobody(tmp_path: Path) -> None:
    """A misspelt column is noted, and the batch fails over it: the corrected schema is accepted, as if the other never existed."""
    notes, source = notes_in(tmp_path), {"path": str(tmp_path), "format": "csv"}

    def started(schema: str, committed: int) -> ReadSchema:
        return ReadSchema.of(schema, source, notes, committed).noted(notes, committed)

    started("id int, nmae string", -1)
    assert started("id int, name string", -1).told == ()
    started("id int, name string, agge int", 3)
    assert started("id int, name string, age int", 3).told == ("the schema has changed: column 'age' (int) is new",)
    with pytest.raises(SchemaChanged, match="'age'"):
        started("id int, name string", 4)
    assert [json.loads(note.schema)["fields"][-1]["name"] for note in notes.bound(4)] == ["name", "age"]


def test_a_query_infers_once(tmp_path: Path) -> None:
    """A query's source notes what it infers in stateLocation; without that option it does not infer."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"a":1,"`":{"x y":[1.5]}}\n', encoding="utf-8")
    given = {"path": str(tmp_path / "in"), "format": "json", "schema": "infer"}
    with pytest.raises(OptionError, match="give stateLocation"):
        noted_schema(parse(SOURCE, given, what="source"))
    options = parse(SOURCE, {**given, "stateLocation": str(tmp_path / "state")}, what="source")
    assert noted_schema(options) == "```` struct<`x y`: array<double>>, a bigint"
    (tmp_path / "in" / "b.json").write_text('{"b":1}\n', encoding="utf-8")
    assert noted_schema(options) == "```` struct<`x y`: array<double>>, a bigint"


def test_two_sources_with_one_note_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The second source would be read with the columns of the first, and its own would be missing: the log says so; a restart is silent."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.json").write_text(f'{{"{name}": 1}}\n')
    options = {
        name: parse(
            SOURCE,
            {"path": str(tmp_path / name), "format": "json", "schema": "infer", "stateLocation": str(tmp_path / "s")},
            what="source",
        )
        for name in ("a", "b")
    }
    assert noted_schema(options["a"]) == noted_schema(options["a"]) == "a bigint"
    assert "give each a stateLocation of its own" not in caplog.text
    assert noted_schema(options["b"]) == "a bigint"
    assert "give each a stateLocation of its own" in caplog.text
    given = {**options["b"].given, "stateLocation": str(tmp_path / "own")}
    assert noted_schema(parse(SOURCE, given, what="source")) == "b bigint"


def test_a_note_that_was_altered_or_moved_is_damage(tmp_path: Path) -> None:
    """A flipped byte, and a note under another number: `DamagedState` that names the file, never another schema."""
    notes = notes_in(tmp_path)
    notes.go_on(as_json("a int"), -1, 1)
    path = tmp_path / "state" / "schema-000000000001.json"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"integer", b"string!"))
    with pytest.raises(DamagedState, match="schema-000000000001"):
        notes.counting()
    path.write_bytes(data)
    path.rename(path.with_name("schema-000000000002.json"))
    with pytest.raises(DamagedState, match="moved here"):
        notes.counting()


def test_changes_name_what_has_gained_something() -> None:
    """New top-level columns, and those with new members, are named for anybody who compares rows from before and after."""
    changes = SchemaChanges.between(
        json.loads(as_json("a int"))["fields"], json.loads(as_json("a int, b struct<c: int>"))["fields"]
    )
    assert changes.columns == ["b"]
