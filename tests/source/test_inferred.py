"""Schemas that nobody has given: we infer what Spark infers, and can read with the inferred schema."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import io
import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import orc

from penstock.errors import BadFile, BadRecord, FileChanged, OptionError
from penstock.formats import ReadFormat, ddl, decoder
from penstock.formats.csv.kinds import kinds
from penstock.formats.json import exact as jsonexact
from penstock.formats.json.kinds import JsonKinds
from penstock.formats.schema import to_arrow
from penstock.formats.seen import DEPTH_MAX, NAMES_MAX, Room, Seen, Types, ValueExample
from penstock.options import SOURCE, parse
from penstock.source import configured
from penstock.source.inferred import Inferred, infer
from penstock.source.scan import Scan
from tests.source.github import write_day
from tests.source.test_partitions import Input
from tests.support.effort import effort

ANSWERS: dict[str, Any] = json.loads(Path(__file__).with_name("spark_inferred.json").read_text(encoding="utf-8"))
LOGHUB = Path(__file__).resolve().parents[3] / "shared" / "data" / "loghub"


def inferring(path: Path, name: str, sample: int | None = None, **options: str) -> Inferred:
    """Return the result of inferring from the files below a path."""
    return infer(parse(SOURCE, {"path": str(path), "format": name, **options}, what="source"), sample)


def as_ddl(form: dict[str, Any]) -> str:
    return ddl.written(form["fields"])


def test_a_bad_file_is_told_without_advice_about_batches(tmp_path: Path) -> None:
    """Before there is a schema there is no batch to be planned anew; the error said how to do that."""
    (tmp_path / "a.csv").write_bytes(b"\xff\xfea\0\n\0")
    with pytest.raises(BadFile, match="mend or remove the file or give the schema, and start again") as error:
        inferring(tmp_path, "csv", header="true")
    assert "replan" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("answer", ANSWERS["json"], ids=lambda answer: " ".join(answer["lines"])[:60])
def test_json_is_inferred_as_by_spark(answer: dict[str, Any], tmp_path: Path) -> None:
    """Types, members, their order and what is left out are the same as for `spark.read.json`."""
    (tmp_path / "a.json").write_text("\n".join(answer["lines"]) + "\n", encoding="utf-8")
    found = inferring(tmp_path, "json")
    assert found.ddl == as_ddl(answer["schema"])
    assert json.loads(found.json)["fields"] == answer["schema"]["fields"]


@pytest.mark.slow
@pytest.mark.parametrize("answer", ANSWERS["csv"], ids=lambda answer: "|".join(answer["values"])[:60])
def test_csv_is_inferred_as_by_spark(answer: dict[str, Any], tmp_path: Path) -> None:
    """Types are those of `inferSchema`; a number or time that Spark accepts but our reader does not is text."""
    text = io.StringIO()
    csv.writer(text).writerows([["k", "a"], *(["k", value] for value in answer["values"])])
    (tmp_path / "a.csv").write_text(text.getvalue(), encoding="utf-8")
    found = inferring(tmp_path, "csv", header="true")
    assert found.fields[1]["type"] == answer.get("here", answer["type"])
    read_back(tmp_path / "a.csv", "csv", found, columns=("k", "a"), header=True)


@pytest.mark.parametrize("answer", ANSWERS["partitions"], ids=lambda answer: "|".join(answer["values"])[:60])
def test_directories_are_inferred_as_by_spark(answer: dict[str, Any], tmp_path: Path) -> None:
    """The values in directory names have the types of Spark's partition discovery."""
    for value in answer["values"]:
        (tmp_path / f"k={value}").mkdir()
        (tmp_path / f"k={value}" / "a.json").write_text('{"x":1}\n', encoding="utf-8")
    found = inferring(tmp_path, "json")
    assert [field["name"] for field in found.fields] == ["x", "k"]
    assert found.fields[1]["type"] == answer.get("here", answer["type"])


@pytest.mark.parametrize("text", ["a,b\n", "a,b", "a,b\n\n", "\ufeffa,b\r\n"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_header_alone_says_its_columns(tmp_path: Path, text: str, packed: bool) -> None:
    """As in Spark, a header without records has string columns; a file without records, even the first one, affects no other type."""
    data = text.encode()
    (tmp_path / ("x.csv.gz" if packed else "x.csv")).write_bytes(gzip.compress(data) if packed else data)
    assert inferring(tmp_path, "csv", header="true").ddl == "a string, b string"
    (tmp_path / "z.csv").write_text("b,c\n1,2\n", encoding="utf-8")
    assert sorted(inferring(tmp_path, "csv", header="true").ddl.split(", ")) == ["a string", "b int", "c int"]


@pytest.mark.parametrize(("name", "text"), [("json", ""), ("json", "\n\n"), ("csv", ""), ("csv", "\n")])
def test_files_without_any_value_are_an_error(tmp_path: Path, name: str, text: str) -> None:
    """Nothing could be read with no columns: an ingest failed over this, and `penstock schema` printed an empty line."""
    (tmp_path / f"x.{name}").write_text(text, encoding="utf-8")
    with pytest.raises(OptionError, match="nothing to infer a schema from: [01] of 1 files, [0-9] bytes"):
        inferring(tmp_path, name, header="true") if name == "csv" else inferring(tmp_path, name)


def read_back(
    path: Path, name: str, found: Inferred, *, columns: tuple[str, ...] | None = None, header: bool = False
) -> pa.RecordBatch:
    """Read a file with the schema inferred from it."""
    block = path.read_bytes()
    if header:
        block = block[block.index(b"\n") + 1 :]
    return decoder(ReadFormat(name, to_arrow(found.json), columns=columns)).decode(block)


DRIFTING = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**20), 10**20),
        st.floats(allow_nan=False),
        st.sampled_from(["x", "2024-01-01"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=effort(25, 2000), deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("abc"), DRIFTING, max_size=3), min_size=1, max_size=8))
def test_what_is_inferred_reads_all_of_it(records: list[dict[str, Any]]) -> None:
    """Whatever the values: the inferred schema reads every record, and both ways of inferring, and every order, give the same schema."""
    lines = [json.dumps(record).encode() + b"\n" for record in records]
    schemas = []
    for some in (lines, lines[::-1], [lines[0]] * 3 + lines):
        seen = Seen()
        for block in (b"".join(some),) if some is lines else some:
            JsonKinds(ReadFormat("json", pa.schema([])), seen, Room()).take(block, lambda _: "")
        schemas.append(ddl.written(Types().fields(seen, ordered=True)))
    assert len(set(schemas)) == 1
    known = ddl.parsed(schemas[0])
    assert known is not None
    if known != ddl.parsed(""):  # without columns Arrow counts no rows
        assert jsonexact.exact(b"".join(lines), to_arrow(known)).num_rows == len(records)


@pytest.mark.slow
@settings(max_examples=effort(30, 3000), deadline=None)
@given(
    st.lists(
        st.one_of(
            st.integers(-(10**39), 10**39).map(str), st.floats().map(str), st.dates().map(str), st.datetimes().map(str),
            st.sampled_from(["true", "False", "x", "", "1e5", "+7", "007", " 1", "2024", "2024-13-01", "0x1F"]),
        ),
        max_size=5,
    )
)  # fmt: skip
def test_kinds_of_text_do_not_depend_on_the_order(values: list[str]) -> None:
    """The type of a text column depends only on its values, not on their order or on how they were split into blocks."""

    def kind(*blocks: list[str]) -> Any:
        seen = Seen()
        for block in blocks:
            for name, _ in kinds(pa.array(block, pa.string())):
                seen.add(name, lambda: ValueExample("", ""))
        return Types().type(seen, "a", ordered=False)

    assert kind(values) == kind(values[::-1]) == kind(*([value] for value in values))


def test_a_day_of_events_with_drifting_keys(tmp_path: Path) -> None:
    """Keys that come and go are columns, a change of type is reported with an example of each kind and its file, and all is read."""
    events = write_day(tmp_path)
    found = inferring(tmp_path, "json")
    assert found.ddl == (
        "actor struct<gravatar_id: string, id: bigint, login: string>, created_at string, id string, "
        "org struct<id: bigint, score: double>, "
        "payload struct<action: string, commits: array<struct<distinct: boolean, sha: string>>, "
        "issue: struct<labels: array<struct<color: string, name: string>>, milestone: string, number: bigint>, "
        "push_id: bigint, size: bigint>, public boolean, type string"
    )
    by_name = {conflict.column: conflict for conflict in found.conflicts}
    assert by_name["id"].type == "string"
    assert {kind: Path(example.path).name for kind, example in by_name["id"].kinds.items()} == {
        "bigint": "00.json",
        "string": "12.json",
    }
    rows = [row for path in sorted(tmp_path.iterdir()) for row in read_back(path, "json", found).to_pylist()]
    assert [row["id"] for row in rows] == [str(made["id"]) for made in events]
    assert [row["org"] and row["org"]["score"] for row in rows] == [
        (made.get("org") or {}).get("score") for made in events
    ]
    assert found.rows == len(events)


def test_an_empty_string_among_numbers_is_told(tmp_path: Path) -> None:
    """For an empty string among numbers Spark infers a number, which no reader can read: the conflict is reported."""
    (tmp_path / "a.json").write_text('{"a":1,"b":""}\n{"a":"","b":null}\n', encoding="utf-8")
    found = inferring(tmp_path, "json")
    assert found.ddl == "a bigint, b string"
    assert [(conflict.column, conflict.type, sorted(conflict.kinds)) for conflict in found.conflicts] == [
        ("a", "bigint", ["bigint", "empty string"])
    ]


def test_a_sample_is_spread_over_the_files(tmp_path: Path) -> None:
    """A small sample takes a part of every file, and says how much it covers."""
    write_day(tmp_path)
    found = inferring(tmp_path, "json", 24 << 10)
    assert {field["name"] for field in found.fields} >= {"org", "actor", "id"}
    assert found.is_sample
    assert (found.files, found.all_files) == (24, 24)
    assert found.size < found.all_size / 5


@pytest.mark.slow
def test_a_compressed_file_is_looked_at_from_its_beginning(tmp_path: Path) -> None:
    """Sampling a compressed file stops once its share of the sample is read, and not at the end of the file."""
    lines = "".join(f'{{"a":{number}}}\n' for number in range(3_000_000))
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(lines.encode(), 1))
    found = inferring(tmp_path, "json", 1 << 20)
    assert found.ddl == "a bigint"
    assert 0 < (found.rows or 0) < 2_500_000
    assert found.notes == ("of compressed files the beginning was looked at",)


def test_records_that_cannot_be_read_are_left_out_and_told(tmp_path: Path) -> None:
    """Bad lines say nothing about types; their number is reported, with the first one and its file."""
    lines = [b'{"a":%d}\n' % number for number in range(20_000)]
    lines[7] = b'{"a":\n'
    lines[15_000] = b"\xff\xfe\n"
    (tmp_path / "a.json").write_bytes(b"".join(lines))
    (tmp_path / "b.json.gz").write_bytes(b"\x1f\x8bnot gzip")
    found = inferring(tmp_path, "json")
    assert (found.ddl, found.rows) == ("a bigint", 19_998)
    assert found.notes[0].startswith("left out what cannot be read, 3 times; the first: ")
    assert repr('{"a":')[1:-1] in found.notes[0]


def test_csv_of_different_widths_says_what_to_look_at(tmp_path: Path) -> None:
    """Without `header` a note suggests it; with it the file is read to its end, except for the record that is wrong in itself."""
    (tmp_path / "a.csv").write_text("a,b,c\n1,2,3\n1,2,3,4\n", encoding="utf-8")
    (tmp_path / "b.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    [note] = inferring(tmp_path, "csv").notes
    assert "options of the format, such as header and sep of CSV" in note
    assert "badRecords=quarantine" in note
    assert inferring(tmp_path, "csv", header="true").ddl == "a int, b int, c int"


def test_columns_that_are_all_of_one_name_are_told(tmp_path: Path) -> None:
    """If no column is left, the error says why: a schema without columns is useless."""
    (tmp_path / "a.csv").write_text("a,a\n1,2\n")
    with pytest.raises(
        OptionError, match="nothing to infer .* left out 'a': a header has several columns of that name"
    ):
        inferring(tmp_path, "csv", header="true")


def test_columns_of_one_name_are_left_out_and_told(tmp_path: Path) -> None:
    """A name that a header has twice finds neither column: the schema has neither, a note says so, and the file can be read with it."""
    source = Input(tmp_path / "in")
    file = io.StringIO()
    csv.writer(file).writerows([["a", "b", "a"], [1, "x", "text"], [2, "y", "text"]])
    source.put("a.csv", file.getvalue().encode())
    found = inferring(source.root, "csv", header="true")
    assert found.ddl == "b string"
    assert any("left out 'a': a header has several columns of that name" in note for note in found.notes)
    assert source.rows(found.ddl, "csv", header="true") == [{"b": "x"}, {"b": "y"}]
    as_told = source.rows("one string, two string, three string", "csv")
    assert [row["three"] for row in as_told] == ["a", "text", "text"]  # without `header` the header line is a record


def test_what_is_no_json_at_all_is_an_error(tmp_path: Path) -> None:
    """If nothing can be read as this format, nothing is inferred: the error names the first unreadable record."""
    (tmp_path / "a.json").write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(BadRecord, match="found 'a,b', expected a record that is one JSON object"):
        inferring(tmp_path, "json")


@pytest.mark.slow
def test_keys_that_are_data_are_refused(tmp_path: Path) -> None:
    """Objects with ids as keys would make an endless schema: the error says so, and what to do."""
    record = {f"user-{number}": number for number in range(NAMES_MAX + 1)}
    (tmp_path / "a.json").write_text(json.dumps(record) + "\n", encoding="utf-8")
    with pytest.raises(OptionError, match=r"more than 20,000 names.*map<string"):
        inferring(tmp_path, "json")


@pytest.mark.parametrize("mixed", [False, True])
def test_values_that_are_too_deep_are_refused(tmp_path: Path, *, mixed: bool) -> None:
    """A hostile line with too many levels raises our error, and exhausts neither the process nor the stack."""
    deep = '{"a":' * (DEPTH_MAX + 5) + "1" + "}" * (DEPTH_MAX + 5)
    (tmp_path / "a.json").write_text(deep + ("\n" + '{"a":"x"}' if mixed else "") + "\n", encoding="utf-8")
    with pytest.raises(OptionError, match="more than 100 levels"):
        inferring(tmp_path, "json")


def test_no_files_are_an_error_that_names_what_was_not_entered(tmp_path: Path) -> None:
    """If all files are in directories that are not entered, the error says so."""
    with pytest.raises(OptionError, match="has no file to infer a schema from"):
        inferring(tmp_path, "json")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "a.json").write_text('{"a":1}\n', encoding="utf-8")
    with pytest.raises(OptionError, match=r"not entered: deeper \(recursiveFileLookup\)"):
        inferring(tmp_path, "json")
    assert inferring(tmp_path, "json", recursiveFileLookup="true").ddl == "a bigint"


TABLE = pa.table(
    {
        "id": pa.array([1], pa.int32()),
        "n": pa.array([1], pa.int64()),
        "price": pa.array([None], pa.decimal128(12, 2)),
        "at": pa.array([dt.datetime(2026, 1, 31, tzinfo=dt.timezone.utc)], pa.timestamp("us", "UTC")),
        "day": pa.array([dt.date(2026, 1, 31)]),
        "tags": pa.array([["a"]]),
        "who": pa.array([{"a b": 1.5}]),
    }
)
TABLE_DDL = (
    "id int, n bigint, price decimal(12,2), at timestamp, day date, tags array<string>, who struct<`a b`: double>"
)


@pytest.mark.parametrize(("name", "write"), [("parquet", pq.write_table), ("orc", orc.write_table)])
def test_tables_say_their_columns_in_their_footers(tmp_path: Path, name: str, write: Any) -> None:
    """Columns come from the footers of all files together; numbers widen, and conflicts of type are reported."""
    write(TABLE, tmp_path / "a")
    assert inferring(tmp_path, name).ddl == TABLE_DDL
    write(pa.table({"id": pa.array([2**40]), "more": ["x"], "day": ["none"]}), tmp_path / "b")
    found = inferring(tmp_path, name)
    assert found.ddl == TABLE_DDL.replace("id int", "id bigint").replace("day date", "day string") + ", more string"
    assert [conflict.column for conflict in found.conflicts] == ["day"]


def test_parquet_of_polars_and_old_writers(tmp_path: Path) -> None:
    """Times without a zone are `timestamp_ntz` as in Spark, INT96 times of old writers are instants; unsigned numbers are widened."""
    local = pa.table({"t": pa.array([dt.datetime(2026, 1, 31)], pa.timestamp("us")), "u": pa.array([1], pa.uint32())})
    pq.write_table(local, tmp_path / "a.parquet")
    assert inferring(tmp_path, "parquet").ddl == "t timestamp_ntz, u bigint"
    pq.write_table(local, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    assert inferring(tmp_path, "parquet").ddl == "t timestamp, u bigint"


def test_parquet_says_as_to_spark_what_is_text_and_what_an_instant(tmp_path: Path) -> None:
    """Also within lists, maps and structs INT96 values are instants, and Parquet's ENUM is text and read as text."""
    moment = dt.datetime(2026, 1, 31)
    row = {"l": [moment], "m": [("k", {"t": moment, "e": "x"})], "e": "y", "b": b"z"}
    kind = pa.struct([("t", pa.timestamp("us")), ("e", pa.string())])
    columns = {"l": pa.list_(pa.timestamp("us")), "m": pa.map_(pa.string(), kind), "e": pa.string(), "b": pa.binary()}
    file = io.BytesIO()
    table = pa.Table.from_pylist([row], pa.schema(list(columns.items())))
    pq.write_table(table, file, use_deprecated_int96_timestamps=True, store_schema=False)
    text, enum = b"\x25\x00\x4c\x1c\x00\x00\x00", b"\x25\x08\x4c\x4c\x00\x00\x00"  # of a column, in the footer
    marked = file.getvalue()
    assert marked.count(text) == 3
    source = Input(tmp_path / "in")
    source.put("a.parquet", marked.replace(text, enum))
    found = inferring(source.root, "parquet")
    assert found.ddl == "l array<timestamp>, m map<string, struct<t: timestamp, e: string>>, e string, b binary"
    assert source.rows("e string, b binary", "parquet") == [{"e": "y", "b": b"z"}]


def test_text_and_its_directories(tmp_path: Path) -> None:
    """Text has its column, then those of its directories; a directory with the name of a column takes that column's place."""
    for folder in ("dt=2026-01-31/n=1", "dt=2026-02-01/n=x"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.json").write_text('{"n":1.5,"z":true}\n', encoding="utf-8")
    assert inferring(tmp_path, "text").ddl == "value string, dt date, n string"
    assert inferring(tmp_path, "json").ddl == "n string, z boolean, dt date"
    assert inferring(tmp_path, "json", metadataColumn="_m").ddl.endswith(
        ", _m struct<path: string, modified: timestamp, size: bigint, offset: bigint>"
    )


def test_names_that_differ_in_case_are_told(tmp_path: Path) -> None:
    """Spark treats `id` and `ID` as one column; the schema has both, and a note says so."""
    (tmp_path / "a.json").write_text('{"id":1,"ID":2,"x y":3,"`":4}\n', encoding="utf-8")
    found = inferring(tmp_path, "json")
    assert found.ddl == "ID bigint, ```` bigint, id bigint, `x y` bigint"
    assert found.notes == ("'ID', 'id' differ in case only, and Spark takes them for one: leave all but one out",)


@pytest.mark.skipif(not LOGHUB.is_dir(), reason="the logs of loghub are not beside the project")
@pytest.mark.parametrize("name", sorted(ANSWERS["loghub"]))
def test_loghub_is_inferred_as_by_spark(name: str) -> None:
    """Real logs as CSV: the columns and types are Spark's."""
    found = inferring(LOGHUB / name, "csv", header="true")
    assert {field["name"]: field["type"] for field in found.fields} == ANSWERS["loghub"][name]


def test_duckdb_and_polars_write_what_is_inferred(tmp_path: Path) -> None:
    """Files of other writers: JSON and CSV from polars, Parquet from DuckDB if it is installed."""
    frame = pl.DataFrame({"a": [1, None], "b": ["x", ""], "c": [1.5, 2.0], "d": [{"e": [1]}, {"e": []}]})
    frame.write_ndjson(tmp_path / "a.json")
    assert inferring(tmp_path, "json").ddl == "a bigint, b string, c double, d struct<e: array<bigint>>"
    (tmp_path / "csv").mkdir()
    frame.drop("d").write_csv(tmp_path / "csv" / "a.csv")
    assert inferring(tmp_path / "csv", "csv", header="true").ddl == "a int, b string, c double"
    duckdb = pytest.importorskip("duckdb")
    (tmp_path / "duck").mkdir()
    duckdb.sql(
        f"copy (select 1::int a, 'x' b, {{'c': 2.5::double}} d, timestamp '2026-01-31' t) to '{tmp_path}/duck/a.parquet' (format parquet)"
    )
    assert inferring(tmp_path / "duck", "parquet").ddl == "a int, b string, d struct<c: double>, t timestamp_ntz"


def put(path: Path, text: str) -> Path:
    """Write a file, and its directory if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_globs_and_several_paths_are_looked_at_as_they_are_read(tmp_path: Path) -> None:
    """Files that no path leads to do not count, directories below the common one are columns, and `paths` alone is enough."""
    put(tmp_path / "in/day=2026-01-01/a.json", '{"n":1}\n')
    put(tmp_path / "in/day=2026-01-02/b.json", '{"n":1.5}\n')
    put(tmp_path / "in/other/c.json", '{"foreign":true}\n')
    put(tmp_path / "in/day=bad/d.json", '{"foreign":true}\n')
    assert inferring(tmp_path / "in/day=2026-*", "json").ddl == "n double, day date"
    one, two = (str(tmp_path / f"in/day=2026-01-0{day}") for day in (1, 2))
    assert inferring(Path(one), "json", paths=json.dumps([two])).ddl == "n double, day date"
    alone = parse(
        SOURCE, {"paths": json.dumps([one]), "basePath": str(tmp_path / "in"), "format": "json"}, what="source"
    )
    assert infer(alone).ddl == "n bigint, day date"
    with pytest.raises(OptionError, match="no file to infer"):
        inferring(tmp_path / "in/day=2027-*", "json")
    with pytest.raises(OptionError, match="does not exist"):
        inferring(tmp_path / "nowhere", "json")


def test_documents_of_json_are_looked_at_whole(tmp_path: Path) -> None:
    """With multiLine a document over many lines, and each element of an array, is a record; a broken one is left out and reported."""
    put(tmp_path / "a.json", '{\n "id": 1,\n "u": {"x": "y"}\n}\n')
    put(tmp_path / "b.json", '[\n {"id": 2.5},\n {"new": true}\n]\n')
    put(tmp_path / "c.json", '[{"id": "never"}\n')
    inferred = inferring(tmp_path, "json", multiLine="true")
    assert (inferred.ddl, inferred.rows) == ("id double, new boolean, u struct<x: string>", 3)
    assert "left out what cannot be read, 1 times" in inferred.notes[0]
    with pytest.raises(OptionError, match="lineSep"):
        inferring(tmp_path, "json", multiLine="true", lineSep=";")


@pytest.mark.parametrize("document", ['{\n "id": 1\n}\n', '[{"id": 1}]'])
def test_documents_without_multiline_are_told(tmp_path: Path, document: str) -> None:
    """The error has the option that is meant, as that of the reader does."""
    put(tmp_path / "a.json", document)
    with pytest.raises(BadRecord, match="a.json': found .*; set multiLine=true if a file is one document"):
        inferring(tmp_path, "json")


@pytest.mark.parametrize(
    ("options", "values", "kind"),
    [
        ({"timestampFormat": "dd/MMM/yyyy:HH:mm:ss Z"}, ["17/May/2015:08:05:32 +0000", ""], "timestamp"),
        ({"timestampFormat": "dd/MMM/yyyy:HH:mm:ss Z"}, ["2015-05-17 08:05:32"], "string"),
        ({"dateFormat": "dd.MM.yyyy"}, ["17.05.2015", "18.05.2015"], "date"),
        ({"dateFormat": "dd.MM.yyyy"}, ["17.05.2015", "no day"], "string"),
        ({"dateFormat": "dd.MM.yyyy"}, ["17.05.2015", "2015-05-17 08:05:32"], "string"),
        ({"dateFormat": "yyyyMMdd"}, ["20150517"], "int"),
        ({"timestampFormat": "yyyy-MM-dd HH.mm"}, ["2015-05-17 08.05", "2015-05-17"], "string"),
        ({}, ["2015-05-17 08:05:32", "2015-05-17"], "timestamp"),
        ({}, ["17.05.2015"], "string"),
    ],
)
def test_patterns_of_times_say_what_is_a_time_in_csv(
    tmp_path: Path, options: dict[str, str], values: list[str], kind: str
) -> None:
    """A column is a time or a date if all its values fit the pattern; the inferred schema can then read them."""
    put(tmp_path / "a.csv", "".join(f"k,{value}\n" for value in values))
    inferred = inferring(tmp_path, "csv", None, **options)
    assert inferred.fields[1]["type"] == {"int": "integer"}.get(kind, kind)
    given = parse(SOURCE, {"path": str(tmp_path), "format": "csv", **options}, what="source")
    fmt = configured.reading(given, inferred.json).format
    assert decoder(fmt).decode((tmp_path / "a.csv").read_bytes()).num_rows == len(values)


def test_patterns_make_no_time_of_strings_of_json(tmp_path: Path) -> None:
    """For Spark, JSON strings are strings whatever timestampFormat says; a note says so."""
    put(tmp_path / "a.json", '{"at":"17/May/2015:08:05:32 +0000"}\n')
    inferred = inferring(tmp_path, "json", timestampFormat="dd/MMM/yyyy:HH:mm:ss Z")
    assert inferred.ddl == "at string"
    assert "timestampFormat: strings of json are strings, as to Spark" in inferred.notes[0]


@pytest.mark.parametrize("grows", [True, False])
def test_a_file_that_grows_is_looked_at_as_it_was_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, grows: bool
) -> None:
    """With follow=true later appends do not matter while a file is sampled; without it the file has changed, which is an error."""
    log = put(tmp_path / "app.json", '{"n":1}\n')
    listed = Scan.refresh

    def refresh(scan: Scan) -> Any:
        came = listed(scan)
        with log.open("a", encoding="utf-8") as file:
            file.write('{"n":"x","later":1}\n')
        return came

    monkeypatch.setattr(Scan, "refresh", refresh)
    if grows:
        assert inferring(tmp_path, "json", follow="true").ddl == "n bigint"
    else:
        with pytest.raises(FileChanged):
            inferring(tmp_path, "json")


def test_columns_of_options_are_added(tmp_path: Path) -> None:
    """The inferred schema has the columns that options name, so that a query can start with it."""
    put(tmp_path / "a.json", '{"n":1}\nno json\n')
    options = {"rescuedDataColumn": "_r", "metadataColumn": "_m", "badRecordColumn": "_b", "badRecords": "quarantine"}
    inferred = inferring(tmp_path, "json", None, **options)
    assert [field["name"] for field in inferred.fields] == ["n", "_r", "_m", "_b"]
    given = parse(SOURCE, {"path": str(tmp_path), "format": "json", **options}, what="source")
    configured.check_plain(given)
    assert configured.expected_schema(given, configured.reading(given, inferred.json)).names == ["n", "_r", "_m", "_b"]
