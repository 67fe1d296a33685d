"""SQL as the transform of an ingest: its answers are Spark's, and SQL that may differ is refused before anything starts."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import penstock as public
from penstock.cli.run import plan as plans
from penstock.errors import OptionError, PenstockError, PipelinesError, SqlError
from penstock.formats.schema import spark_name
from penstock.ingestion.sql.query import Sql
from penstock.sink.existing import noted
from penstock.verify import verify
from tests.ingestion import sqlcases
from tests.support.follows import follows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Pipeline, Said


ANSWERS = sqlcases.answers()
# Spark answers these and we refuse them, before the start, so that no answer can differ.
REFUSED = {
    "c < 1e2",  # rounded
    "cast(1.5 as int)",
    "cast(-1.5 as int)",
    "cast('2024-05-06 07:08:09' as timestamp_ntz)",  # Spark drops a zone that the text has
    "cast('2024-02-03T04:05:06Z' as timestamp_ntz)",
    "nullif(null, i)",
    "if(null, 1, 2)",
    "coalesce(i, 10 / 0)",  # fails for a row that evaluates it
}


def asked(case: str, rows: pa.RecordBatch) -> pa.Array:
    """Return our answer to one expression."""
    return Sql(f"select {case} as x from input", sqlcases.ZONE)(rows).column(0)


def answered(case: str) -> list[object]:
    """Return our answers in the form of Spark's in the file: for all rows at once, and row by row where one fails."""
    rows = sqlcases.rows()
    try:
        return list(map(sqlcases.plain, asked(case, rows).to_pylist()))
    except PenstockError:
        return [_answer(case, rows.slice(number, 1)) for number in range(sqlcases.ROWS)]


def _answer(case: str, row: pa.RecordBatch) -> object:
    try:
        return sqlcases.plain(asked(case, row)[0].as_py())
    except PenstockError:
        return sqlcases.ERROR


def test_answers_are_sparks() -> None:
    """Each accepted expression has Spark's answer, of Spark's type, in every row, and fails in exactly the rows where Spark fails."""
    others = {}
    for case, of_spark in ANSWERS.items():
        try:
            kind = asked(case, sqlcases.rows().slice(0, 0)).type
        except SqlError as error:
            if case not in REFUSED and set(of_spark["values"]) != {sqlcases.ERROR}:
                others[case] = str(error)
            continue
        ours = answered(case)
        if ours != of_spark["values"] or spark_name(kind).replace(" ", "") != of_spark["type"]:
            others[case] = f"{spark_name(kind)} {ours}, Spark: {of_spark['type']} {of_spark['values']}"
    assert not others, "\n".join(f"{case}: {difference}" for case, difference in others.items())


TABLE = pa.schema(
    [
        ("id", pa.int64()),
        ("Name", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("tags", pa.list_(pa.string())),
    ]
)
REFUSALS = {
    "select count(*) as n from input": r"8: count\(\) needs more than one row.*Spark's own SQL",
    "select sum(id) as n from input": r"sum\(\) needs more than one row",
    "select row_number() over (order by id) as n from input": "window needs more than one row",
    "select id from input group by id": "group by needs more than one row",
    "select distinct id from input": "distinct needs more than one row",
    "select id from input order by id": "order by has no meaning.*leave it out",
    "select id from input limit 5": "limit would depend on which row comes first",
    "select id from input join other using (id)": "a join needs another table",
    "select id from other": "write from input",
    "select id from input union select id from input": "sets of rows need another table",
    "with q as (select 1) select * from q": "select ... from input",
    "select id from input where id in (select id from input)": "a select inside of another",
    "select now() as t from input": r"now\(\) has another value in a replay.*bucketBy",
    "select current_date() as t from input": "another value in a replay",
    "select rand() as r from input": "another value in a replay",
    "select uuid() as r from input": "another value in a replay",
    "select input_file_name() as f from input": "metadataColumn",
    "select explode(tags) as tag from input": "several rows of one; use a transform",
    "select tags[0] as tag from input": "elements of arrays and maps",
    "select round(id, 2) as r from input": "cast",
    "select hash(id) as h from input": "use a transform",
    "select uper(name) as n from input": r"did you mean upper\(\)\?",
    "select frobnicate(id) as n from input": "not among the functions whose answers are known to be Spark's",
    "select nmae from input": "input has no column 'nmae'; it has id, Name, at, day, tags",
    "select id + 1 from input": "a value that is computed needs a name: as x",
    "select id, ID from input": "two columns are called 'ID'",
    "select name || id as x from input": r"found bigint, expected string; write a cast, such as cast\(x as string\)",
    "select id from input where name = 5": "write a cast",
    "select id from input where day > '2026-01-01'": "date'2026-01-31'",
    "select id from input where at > '2026-01-01'": "timestamp'2026-01-31 10:00:00'",
    "select id from input where id": "where takes a condition",
    "select id from input where name like id": "written down",
    "select name rlike '(?i)x' as r from input": r"lower\(x\) rlike",
    r"select name rlike '\\bx' as r from input": "is not taken",
    "select name rlike '(?<=a)b' as r from input": "only .* is taken",
    "select name rlike '(' as r from input": "no regular expression",
    "select cast(at as frob) as x from input": "no type that values are cast to",
    "select id from input where": "found the end, expected a value",
    "select /*+ broadcast(input) */ id from input": "hints",
    "select id from input; drop table input": "expected the end",
    "delete from input": "found 'delete'",
    "": "found the end",
    "select * except (nix) from input": "no column 'nix'",
    "select null as n from input": r"cast\(null as string\)",
    "select id from input lateral view explode(tags) t as tag": "lateral view makes several rows",
    "select id from input where at > date'2026-13-01'": "is no date",
    f"select {'(' * 50_000}id from input": "nested too deeply",
    "select id § 2 as x from input": "begins nothing",
}


@pytest.mark.parametrize("text", REFUSALS, ids=lambda text: text[:60])
def test_what_is_refused_says_what_to_write(text: str) -> None:
    """SQL that needs several rows, is not deterministic, is unknown or misspelt is refused without any rows, with advice."""
    with pytest.raises(SqlError, match=f"sql, character .*{REFUSALS[text]}"):
        Sql(text)(pa.RecordBatch.from_pylist([], schema=TABLE))


def test_columns_pass_as_they_are_and_have_the_names_that_were_written() -> None:
    """A column that is only named keeps its type, whatever it is; its name is spelt as in the select, as in Spark."""
    rows = pa.RecordBatch.from_pylist([{"id": 1, "Name": "a", "tags": ["x"]}, {"id": 2, "Name": None}], schema=TABLE)
    picked = Sql("select NAME, i.tags as t, * except (name, Tags) from input i where i.ID >= 1 and `name` is not null")(
        rows
    )
    assert picked.schema.names == ["NAME", "t", "id", "at", "day"]
    assert picked.schema.field("t").type == pa.list_(pa.string())
    assert picked.to_pylist() == [{"NAME": "a", "t": ["x"], "id": 1, "at": None, "day": None}]


def test_columns_in_other_encodings() -> None:
    """Large, view and dictionary strings are strings to a select, as they are to Spark."""
    for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        rows = pa.RecordBatch.from_arrays([pa.array(["a", "b", None], pa.string()).cast(kind)], names=["s"])
        assert Sql("select upper(s) as u from input where s <> 'b'")(rows).to_pydict() == {"u": ["A"]}


@follows("PST-106")
def test_what_a_refusal_advises_is_taken(tmp_path: Path) -> None:
    """A misspelt column, and a comparison for which Spark would cast, are refused before Spark starts; the advised forms are accepted."""
    source = {"format": "json", "schema": "id bigint, name string"}
    put(tmp_path / "in" / "a.json", '{"id": 1, "name": "x"}', '{"id": 2, "name": "y"}')
    tries = [
        "select nmae from input",
        "select name from input where name = 1",
        "select name from input where name = cast(1 as string)",
    ]
    for text in tries[:2]:
        with pytest.raises(SqlError):
            public.dry_run(tmp_path / "in", tmp_path / "out", source=source, sink={"format": "json"}, sql=text)
    done = public.dry_run(tmp_path / "in", tmp_path / "out", source=source, sink={"format": "json"}, sql=tries[2])
    assert (done.problem, done.sample.rows, done.sample.columns) == (None, 0, {"name": "string"})


def test_sql_or_a_transform(tmp_path: Path) -> None:
    """Both at once are refused, and so is SQL that is not text."""
    (tmp_path / "in").mkdir()
    with pytest.raises(OptionError, match="expected only one of them"):
        public.dry_run(tmp_path / "in", tmp_path / "out", transform="os:path", sql="select * from input")
    with pytest.raises(OptionError, match="sql is a int"):
        Sql(5)  # type: ignore[arg-type]  # - what is tested


def test_a_row_that_fails_names_its_place() -> None:
    """A row on which Spark fails also fails here; the error gives the cause, its place in the text, and what to write instead."""
    rows = pa.RecordBatch.from_pydict({"y": ["1", "x"]})
    with pytest.raises(PenstockError, match=r"cast to int, character 8: 'x' is no int; .*try_cast"):
        Sql("select cast(y as int) as n from input")(rows)
    assert Sql("select try_cast(y as int) as n from input")(rows).to_pydict() == {"n": [1, None]}
    assert Sql("select cast(y as int) as n from input where y <> 'x'")(rows).to_pydict() == {"n": [1]}


def put(path: Path, *lines: str) -> None:
    """Write a file that has settled."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    os.utime(path, (1.7e9, 1.7e9))


FLAGS = ("--format", "json", "--schema", "id bigint, name string", "--to", "json")


def test_the_command_tries_it_before_spark(penstock: Callable[..., Said], tmp_path: Path) -> None:
    """--sql with --dry-run shows columns and rows; wrong SQL ends with 2 and its place, before the command looks for Java."""
    put(tmp_path / "in" / "a.json", *(json.dumps({"id": n, "name": "x"}) for n in range(10)))
    ends = tmp_path / "in", tmp_path / "out"
    sql = "select id * 2 as twice, cast(id as string) as t from input where id >= 7"
    facts = penstock("ingest", *ends, *FLAGS, "--sql", sql, "--dry-run", "--json").facts
    assert (facts["sample"]["columns"], facts["sample"]["rows"]) == ({"twice": "bigint", "t": "string"}, 3)
    said = penstock("ingest", *ends, *FLAGS, "--sql", "select idd from input")
    assert said.status == 2
    assert "PST-106" in said.err
    assert "input has no column 'idd'" in said.err
    assert not (tmp_path / "out").exists()
    assert penstock("ingest", *ends, *FLAGS, "--sql", sql, "--transform", "a:b").status == 2


def test_a_file_of_pipelines_names_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in a select names the key `sql` and its line, also if there is a transform; a correct select becomes the pipeline's."""
    put(tmp_path / "in" / "a.json", '{"id": 1, "name": "x"}')
    monkeypatch.chdir(tmp_path)

    def planned(*keys: str) -> str:
        table = [
            "[pipelines.p]",
            *keys,
            "source = { path = 'in', format = 'json', schema = 'id bigint, name string' }",
            "sink = { path = 'out' }",
        ]
        (tmp_path / "p.toml").write_text("\n".join(table), encoding="utf-8")
        request = plans.plan("p.toml").pipelines["p"].request
        return str(request.transform)

    assert planned("sql = 'select id from input'") == "sql='select id from input'"
    with pytest.raises(PipelinesError, match="sql: .*input has no column 'idd'"):
        planned("sql = 'select idd from input'")
    with pytest.raises(PipelinesError, match="sql.*expected only one of them"):
        planned("sql = 'select id from input'", "transform = 'os:getcwd'")


def test_verify_repeats_what_was_noted(pipeline: Callable[..., Pipeline]) -> None:
    """SQL is not code: `verify --source` runs the noted SQL, accepts correct output and finds a wrong row; a noted transform is refused."""
    made = pipeline(
        transform=Sql("select upper(value) as value from input where value <> 'b'"), sink_options={"format": "text"}
    )
    made.put("a.txt", "a", "b", "c")
    made.run()
    stage = noted(made.sink().storage, made.sink().state).stage
    assert stage is not None
    assert (stage.sql, stage.opaque, stage.transform) == (
        "select upper(value) as value from input where value <> 'b'",
        False,
        None,
    )
    proof = verify(str(made.dst), str(made.src)).source
    assert proof is not None
    assert (proof.proved, proof.source_records, proof.output_records) == (True, 2, 2)
    with pytest.raises(OptionError, match="noted SQL.*leave --transform out"):
        verify(str(made.dst), str(made.src), transform="os:path")


def test_verify_finds_rows_that_the_sql_does_not_give(pipeline: Callable[..., Pipeline]) -> None:
    """Rows that the noted select does not give are found."""
    made = pipeline(
        transform=Sql("select upper(value) as value from input"),
        sink_options={"format": "text"},
        corrupt=lambda lines: lines,
    )
    made.put("a.txt", "a")
    made.run()
    proof = verify(str(made.dst), str(made.src)).source
    assert proof is not None
    assert not proof.proved


def test_a_note_whose_sql_is_none(pipeline: Callable[..., Pipeline]) -> None:
    """If somebody has altered the noted SQL, the same list applies: SQL that is not on it is reported, and nothing is compared."""
    made = pipeline(transform=Sql("select value from input"), sink_options={"format": "text"})
    made.put("a.txt", "a")
    made.noted = str(made.noted).replace("select value", "select reflect(value) as value")
    made.run()
    proof = verify(str(made.dst), str(made.src)).source
    assert proof is not None
    assert not proof.proved
    assert "cannot be repeated: sql, character 8: reflect() is not taken" in proof.reason


def test_types_of_a_result_are_known_from_an_empty_batch() -> None:
    """The schema that the sink gets at the start is that of all rows, whatever they hold."""
    rows = sqlcases.rows()
    for case, of_spark in ANSWERS.items():
        if case in REFUSED or sqlcases.ERROR in of_spark["values"]:
            continue
        assert asked(case, rows.slice(0, 0)).type == asked(case, rows).type, case
