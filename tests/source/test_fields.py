"""Names that no column has, columns without a name, values that do not fit: ignored, refused, or rescued with the path."""

from __future__ import annotations

import datetime as dt
import json
import os
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import orc

from penstock.errors import BadFile, BadRecord, OptionError
from penstock.formats import ReadFormat, ddl, decoder
from penstock.formats.account import Account
from penstock.formats.schema import to_arrow
from penstock.options import SOURCE, parse
from penstock.source import configured
from penstock.source.cursor import Split
from penstock.source.scan import Scan
from tests.source.github import write_day
from tests.support.effort import effort

if TYPE_CHECKING:
    from pathlib import Path

RESCUED = {"rescuedDataColumn": "_rescued"}


def read(
    path: Path, name: str, schema: str, given: dict[str, str] | None = None, account: Account | None = None
) -> list[dict[str, Any]]:
    """Return the rows of all files below a path, in the order of the file names."""
    options = parse(SOURCE, {"path": str(path), **(given or {}), "format": name}, what="source")
    known = ddl.parsed(schema)
    assert known is not None
    how = configured.reading(options, known)
    came = Scan.of(how.storage, how.root, options).refresh().came
    files = sorted((arrival.file for arrival in came), key=lambda file: file.path)
    splits = tuple(Split(file, 0, file.size) for file in files)
    batches = configured.rows(options, how, splits, account)
    return [row for batch in batches for row in batch.to_pylist()]


def test_what_no_column_has_or_takes_is_rescued_with_the_path(tmp_path: Path) -> None:
    """Unknown keys at any depth and values of another type are rescued as JSON in their place, with the path; the rest is read."""
    lines = [
        '{"a":1,"u":{"zip":5,"x":"y"},"l":[{"n":1}]}',
        '{"a":"x","b":2,"u":{"zip":"D-1","new":[1]},"l":[{"n":"q","m":1}],"c\\"":null}',
        '{"u":7,"l":5,"m":{"k":1,"j":"no"}}',
        '{"a":null}',
    ]
    for place, line in enumerate(lines):
        (tmp_path / f"{place}.json").write_text(line + "\n", encoding="utf-8")
    schema = (
        "a bigint, u struct<zip: bigint, x: string>, l array<struct<n: bigint>>, m map<string, bigint>, _rescued string"
    )
    account = Account()
    rows = read(tmp_path, "json", schema, RESCUED, account)
    rescued = [json.loads(row.pop("_rescued") or "null") for row in rows]
    assert rows == [
        {"a": 1, "u": {"zip": 5, "x": "y"}, "l": [{"n": 1}], "m": None},
        {"a": None, "u": {"zip": None, "x": None}, "l": [{"n": None}], "m": None},
        {"a": None, "u": None, "l": None, "m": [("k", 1), ("j", None)]},
        {"a": None, "u": None, "l": None, "m": None},
    ]
    assert rescued == [
        None,
        {
            "b": 2, 'c"': None, "a": "x", "u": {"new": [1], "zip": "D-1"}, "l": [{"n": "q", "m": 1}],
            "_file_path": f"{tmp_path}/1.json",
        },
        {"u": 7, "l": 5, "m": {"k": 1, "j": "no"}, "_file_path": f"{tmp_path}/2.json"},
        None,
    ]  # fmt: skip
    assert account.rescued == 2
    assert account.unknown == {"b": 1, 'c"': 1, "u.new": 1, "l.m": 1}
    assert account.told()[-1] == "rescued of 2 records: what no column has, or takes"


def test_half_characters_are_rescued_as_they_stood(tmp_path: Path) -> None:
    r"""Rescued JSON keeps the escapes of the record: half a character does not become a question mark."""
    (tmp_path / "a.json").write_text(r'{"a":"x","\udc00":["\ud83d"],"b":1}' + "\n", encoding="utf-8")
    (row,) = read(tmp_path, "json", "a string, _rescued string", RESCUED)
    assert row["a"] == "x"
    assert row["_rescued"].startswith(r'{"\udc00":["\ud83d"],"b":1,"_file_path":')


@pytest.mark.slow
@settings(max_examples=effort(30, 4000), deadline=None)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["a", "s", "d", "u", "z", 'y"z']),
            st.one_of(
                st.none(), st.booleans(), st.integers(-(2**65), 2**65), st.floats(allow_nan=False, allow_infinity=False),
                st.text(max_size=3), st.dictionaries(st.sampled_from("xw"), st.one_of(st.integers(0, 9), st.text(max_size=2)), max_size=2),
                st.lists(st.integers(0, 3), max_size=2),
            ),
            max_size=4,
        ),
        min_size=1, max_size=12,
    )
)  # fmt: skip
def test_nothing_of_a_record_is_lost(records: list[dict[str, Any]]) -> None:
    """Whatever the values: each is unchanged in its column or in the rescued column, and never in both."""
    known = ddl.parsed("a bigint, s string, d double, u struct<x: bigint>, r string")
    assert known is not None
    block = "".join(json.dumps(record) + "\n" for record in records).encode()
    fmt = ReadFormat("json", to_arrow(known), unknown="rescue", rescued="r")
    rows = decoder(fmt, Account()).decode(block).to_pylist()
    for record, row in zip(records, rows, strict=True):
        rescued = json.loads("{" + (row["r"] or "") + "}")
        assert {key: record[key] for key in ("z", 'y"z') if key in record} == {
            key: rescued[key] for key in ("z", 'y"z') if key in rescued
        }
        a = record.get("a")
        fits = isinstance(a, int) and not isinstance(a, bool) and -(2**63) <= a < 2**63
        assert (row["a"], rescued.get("a")) == ((a, None) if fits else (None, a))
        d = record.get("d")
        number = isinstance(d, (int, float)) and not isinstance(d, bool)
        assert (row["d"], rescued.get("d")) == ((float(str(d)), None) if number else (None, d))
        assert "s" not in rescued  # a string column takes the text of any value
        u = record.get("u")
        if isinstance(u, dict):
            x = u.get("x")
            assert row["u"] == {"x": x if isinstance(x, int) else None}
            assert rescued.get("u", {}) == {
                key: value for key, value in u.items() if key != "x" or not isinstance(x, int)
            }
        else:
            assert (row["u"], rescued.get("u")) == (None, u)


def test_a_day_of_drifting_events_is_rescued_and_read_as_without(tmp_path: Path) -> None:
    """With the schema of the morning, later keys are in the rescued column, no record fails, and the others are read as without it."""
    events = write_day(tmp_path, an_hour=40)
    schema = (
        "id bigint, type string, actor struct<id: bigint, login: string, gravatar_id: string>, created_at timestamp"
    )
    rows = read(tmp_path, "json", f"{schema}, _rescued string", RESCUED)
    assert [row["id"] for row in rows] == [made["id"] if isinstance(made["id"], int) else None for made in events]
    for made, row in zip(events, rows, strict=True):
        rescued = json.loads(row["_rescued"])
        path = rescued.pop("_file_path")
        assert path.endswith(f"/{made['created_at'][11:13]}.json")
        expected = {key: made[key] for key in ("payload", "public", "org") if key in made}
        assert rescued == expected | ({} if isinstance(made["id"], int) else {"id": made["id"]})


def test_records_with_names_that_no_column_has_are_refused(tmp_path: Path) -> None:
    """`unknownFields=fail` names the key, the file and the byte; at any depth, and after many records without unknown keys."""
    lines = ['{"a":1,"u":{"x":1}}'] * 20_000
    lines[15_000] = '{"a":1,"u":{"x":1,"y":2}}'
    (tmp_path / "a.json").write_text("\n".join(lines) + "\n", encoding="utf-8")
    schema = "a bigint, u struct<x: bigint>"
    with pytest.raises(BadRecord, match=r"a.json', byte 300000: .*no key 'u.y', which no column has") as refused:
        read(tmp_path, "json", schema, {"unknownFields": "fail"})
    assert refused.value.offset == 15_000 * 20
    assert len(read(tmp_path, "json", "a bigint, u struct<x: bigint, y: bigint>", {"unknownFields": "fail"})) == 20_000


def test_records_without_a_name_for_a_column_are_refused(tmp_path: Path) -> None:
    """`missingFields=fail` refuses a record that has no key for a column, and accepts one whose value is null."""
    (tmp_path / "a.json").write_text('{"a":1,"u":null}\n{"a":null,"u":{"x":null}}\n{"u":{},"a":2}\n', encoding="utf-8")
    schema = "a bigint, u struct<x: bigint>"
    with pytest.raises(BadRecord, match=r"byte 43: .*a value for column 'u.x'"):
        read(tmp_path, "json", schema, {"missingFields": "fail"})
    (tmp_path / "a.json").write_text('{"a":1,"u":null}\n{"a":null,"u":{"x":null}}\n', encoding="utf-8")
    assert len(read(tmp_path, "json", schema, {"missingFields": "fail"})) == 2
    assert len(read(tmp_path, "json", f"{schema}, b string", {"missingFields": "null"})) == 2


def test_csv_by_its_header(tmp_path: Path) -> None:
    """Columns missing from the header are null or refused, extra ones refused or rescued; values that do not fit are rescued as text."""
    (tmp_path / "a.csv").write_text('id,extra,price\n1,"a ""b""",2.5\nx,,no\n', encoding="utf-8")
    schema, header = "id int, price double", {"header": "true"}
    account = Account()
    rows = read(tmp_path, "csv", f"{schema}, _rescued string", {**header, **RESCUED}, account)
    path = f"{tmp_path}/a.csv"
    assert [(row["id"], row["price"], json.loads(row["_rescued"])) for row in rows] == [
        (1, 2.5, {"extra": 'a "b"', "_file_path": path}),
        (None, None, {"id": "x", "price": "no", "_file_path": path}),
    ]
    assert (account.rescued, account.unknown) == (2, {"extra": 2})
    with pytest.raises(BadFile, match="the header has 'extra', which no column has"):
        read(tmp_path, "csv", schema, {**header, "unknownFields": "fail"})
    with pytest.raises(BadFile, match="no column 'name'"):
        read(tmp_path, "csv", "extra string, name string", header)
    rows = read(tmp_path, "csv", "extra string, name string", {**header, "missingFields": "null"})
    assert rows == [{"extra": 'a "b"', "name": None}, {"extra": None, "name": None}]


@pytest.mark.parametrize(("name", "write"), [("parquet", pq.write_table), ("orc", orc.write_table)])
def test_tables_rescue_whole_columns(tmp_path: Path, name: str, write: Any) -> None:
    """A table's column that the schema lacks, or has with an impossible type, is rescued row by row; the rest is read."""
    write(pa.table({"id": [1, 2], "day": ["mon", None], "more": [[1], None]}), tmp_path / "a")
    account = Account()
    rows = read(tmp_path, name, "id bigint, day date, gone string, _rescued string", RESCUED, account)
    path = f"{tmp_path}/a"
    assert [(row["id"], row["day"], row["gone"]) for row in rows] == [(1, None, None), (2, None, None)]
    assert [json.loads(row["_rescued"] or "null") for row in rows] == [
        {"day": "mon", "more": [1], "_file_path": path},
        None,
    ]
    assert (account.rescued, account.unknown) == (1, {"more": 2})
    with pytest.raises(BadFile, match=r"columns that the schema does not have: 'day' \(unknownFields=fail\)"):
        read(tmp_path, name, "id bigint", {"unknownFields": "fail"})
    with pytest.raises(BadFile, match=r"no column of the name: 'gone' \(missingFields=fail\)"):
        read(tmp_path, name, "id bigint, gone string", {"missingFields": "fail"})


@pytest.mark.parametrize(
    ("array", "shown"),
    [
        (pa.array(["x", None]).dictionary_encode(), "x"),
        (
            pa.StructArray.from_arrays(
                [pa.array(["x", None]).dictionary_encode()], ["e"], mask=pa.array([False, True])
            ),
            {"e": "x"},
        ),
        (pa.array([2**64 - 1, None], pa.uint64()), 2**64 - 1),
        (pa.array([255, None], pa.uint8()), 255),
        (pa.array([1.5, None], pa.float16()), 1.5),
        (pa.array([b"abc", None], pa.binary(3)), "YWJj"),
        (pa.array([dt.datetime(2026, 1, 31), None], pa.timestamp("ns")), "2026-01-31T00:00:00.000"),
        (pa.array([["x"], None], pa.list_view(pa.string())), ["x"]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
@pytest.mark.parametrize("schema", ["id bigint, _rescued string", "id bigint, a date, _rescued string"])
def test_columns_of_types_that_spark_has_not_are_rescued(
    tmp_path: Path, array: pa.Array, shown: Any, schema: str
) -> None:
    """Categories, unsigned and short numbers, bytes of fixed length: such a column, unknown or of the wrong type, ends no query."""
    pq.write_table(pa.table({"id": [1, 2], "a": array}), tmp_path / "a")
    rows = read(tmp_path, "parquet", schema, {**RESCUED, "unknownFields": "rescue"})
    assert [json.loads(row["_rescued"] or "null") for row in rows] == [
        {"a": shown, "_file_path": f"{tmp_path}/a"},
        None,
    ]


def test_files_of_polars_and_odd_names(tmp_path: Path) -> None:
    """Small files of another writer are read together, and each rescued record has its own path, whatever the name."""
    frame = pl.DataFrame({"a": [1, 2], "extra": ["x", None]})
    names = ["one.json", 'quo"te.json', os.fsdecode(b"\xff.json")]
    for name in names:
        frame.write_ndjson(str(tmp_path / "x.json"))
        (tmp_path / "x.json").rename(tmp_path / name)
    rows = read(tmp_path, "json", "a bigint, _rescued string", RESCUED)
    paths = [json.loads(row["_rescued"])["_file_path"].rpartition("/")[2] for row in rows]
    assert sorted(paths) == sorted(["one.json", 'quo"te.json', "\ufffd.json"] * 2)


@pytest.mark.parametrize(
    ("given", "schema", "expected"),
    [
        ({"unknownFields": "rescue"}, "a int", "unknownFields=rescue needs rescuedDataColumn"),
        (RESCUED, "a int", "the schema has no such string column; add it: `_rescued` string"),
        (RESCUED, "a int, _rescued int", "the schema has no such string column"),
        (RESCUED, "_rescued string", "the schema has no column to read"),
        ({"unknownFields": "drop"}, "a int", "unknownFields='drop'"),
        ({"missingFields": "skip"}, "a int", "missingFields='skip'"),
        ({"format": "text", **RESCUED}, "value string", "rescuedDataColumn is for format="),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    tmp_path: Path, given: dict[str, str], schema: str, expected: str
) -> None:
    """Bad values, and a column that does not exist, are refused before anything is read."""
    with pytest.raises(OptionError) as refused:
        read(tmp_path, given.get("format", "json"), schema, given)
    assert expected in refused.value.message


CELLS = ["1", "x", "", "2026-01-02", "02.01.2026", '"a"', "99999999999999999999", "NaN"]
VALUES = ["1", '"x"', "null", "{}", '{"n":1}', '{"n":"y","m":2}', "[1]", '["z"]', '"02.01.2026"', "1e400", "{"]
RULES = st.fixed_dictionaries(
    {},
    optional={
        "unknown": st.sampled_from(["ignore", "fail", "rescue"]),
        "missing": st.sampled_from(["null", "fail"]),
        "rescued": st.just("_r"),
        "date": st.just("dd.MM.yyyy"),
    },
)
SIFTED = "a bigint, d date, u struct<n: bigint>, l array<bigint>, k string NOT NULL"


def check_sifted(fmt: ReadFormat, records: list[str]) -> None:
    """Check that a block yields as bad the records that fail one by one, and as rows those of the other records."""
    bad, rows = [], []
    for record in records:
        try:
            rows += decoder(fmt).decode(f"{record}\n".encode()).to_pylist()
        except BadRecord:  # noqa: PERF203 - each record is tried by itself
            bad.append(record)
    block = "".join(f"{record}\n" for record in records)
    for sift in [decoder(fmt).sift] * 2:
        sifted = sift(block.encode())
        spans = zip(sifted.starts.tolist(), sifted.ends.tolist(), strict=True)
        assert [block[start:end].rstrip() for start, end in spans] == bad
        assert sifted.rows.to_pylist() == rows
        assert sifted.rows.schema == fmt.schema


def rules_for(given: dict[str, str], schema: str) -> dict[str, Any]:
    """Return the fields of a format; rules that need a column for rescued data apply only with that column."""
    rules: dict[str, Any] = dict(given)
    if "rescued" not in rules and rules.get("unknown") == "rescue":
        rules.pop("unknown")
    columns = ddl.parsed(schema + ", _r string" * ("rescued" in rules))
    assert columns is not None
    return rules | {"schema": to_arrow(columns)}


BLOCKS = st.lists(
    st.dictionaries(st.sampled_from("aduklz"), st.sampled_from(VALUES), max_size=6), min_size=1, max_size=12
)


@pytest.mark.slow
@settings(max_examples=effort(25, 3000), deadline=None)
@given(RULES, BLOCKS)
def test_any_block_of_json_is_sifted_as_its_records_are_refused(
    given: dict[str, str], records: list[dict[str, str]]
) -> None:
    """Whatever the rules: a record is set aside if and only if it would fail alone, and no other row changes because of it."""
    check_json(given, records)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@settings(max_examples=5000, deadline=None)
@given(RULES, BLOCKS)
def test_many_blocks_of_json_are_sifted(given: dict[str, str], records: list[dict[str, str]]) -> None:
    """The same, for several minutes."""
    check_json(given, records)


def check_json(given: dict[str, str], records: list[dict[str, str]]) -> None:
    """Check that a block of these records has the same result as the records one by one."""
    lines = ["{" + ",".join(f'"{key}":{value}' for key, value in record.items()) + "}" for record in records]
    check_sifted(ReadFormat("json", **rules_for(given, SIFTED)), lines)


@pytest.mark.slow
@settings(max_examples=effort(25, 3000), deadline=None)
@given(
    RULES, st.booleans(), st.lists(st.lists(st.sampled_from(CELLS), min_size=2, max_size=4), min_size=1, max_size=12)
)
def test_any_block_of_csv_is_sifted_as_its_records_are_refused(
    given: dict[str, str], named: bool, records: list[list[str]]
) -> None:
    """The same for CSV, by position and by a header with an extra name, which may also lack a column where the rules permit it."""
    rules = rules_for(given, "a bigint, d date, k string NOT NULL")
    if named and rules.get("unknown") != "fail":
        rules["columns"] = ("a", "k", "z") if rules.get("missing") == "null" else ("z", "d", "k", "a")
    check_sifted(ReadFormat("csv", **rules), [",".join(record) for record in records])
