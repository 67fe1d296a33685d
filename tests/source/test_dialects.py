"""Dialects as the source reads them: time patterns, documents, Spark's `mode`, headers. Inputs from other writers; without Spark."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BadFile, BadRecord, OptionError
from penstock.options import SOURCE, parse
from tests.source.test_partitions import Input

duckdb = pytest.importorskip("duckdb", reason="writes the inputs")
polars = pytest.importorskip("polars", reason="writes the inputs")

MOMENTS = [dt.datetime(2026, 1, 31, 12, 34, 56), dt.datetime(2024, 2, 29), dt.datetime(1999, 12, 31, 23, 59, 59)]


@pytest.fixture
def source(tmp_path: Path) -> Input:
    return Input(tmp_path / "in")


def utc(moment: dt.datetime) -> dt.datetime:
    return moment.replace(tzinfo=dt.timezone.utc)


@pytest.mark.parametrize("fmt", ["csv", "json"])
def test_times_as_duckdb_writes_them(source: Input, tmp_path: Path, fmt: str) -> None:
    """DuckDB's `timestampformat` and our pattern mean the same: every time and date is read back, null too."""
    (tmp_path / "in").mkdir()
    rows = ", ".join(f"({i}, timestamp '{m}', date '{m.date()}')" for i, m in enumerate(MOMENTS))
    target = tmp_path / "in" / f"a.{fmt}"
    how = "timestampformat '%d/%b/%Y %H:%M:%S', dateformat '%d.%m.%Y'" + (", header false" if fmt == "csv" else "")
    query = f'select * from (values {rows}, (3, null, null)) v(id, "at", day)'
    duckdb.sql(f"copy ({query}) to '{target}' (format {fmt}, {how})")
    source.put(target.name, target.read_bytes())
    options = {"timestampFormat": "dd/MMM/yyyy HH:mm:ss", "dateFormat": "dd.MM.yyyy"}
    expected = [{"id": i, "at": utc(m), "day": m.date()} for i, m in enumerate(MOMENTS)]
    assert source.rows("id long, at timestamp, day date", fmt, **options) == [
        *expected,
        {"id": 3, "at": None, "day": None},
    ]


def test_times_as_polars_writes_them(source: Input) -> None:
    """polars' `datetime_format` with a zone, and a column without a zone that has its own pattern."""
    frame = polars.DataFrame({"at": MOMENTS, "local": MOMENTS})
    text = frame.write_csv(datetime_format="%Y%m%dT%H%M%S", include_header=True)
    source.put("a.csv", text.encode())
    pattern = "yyyyMMdd'T'HHmmss"
    options = {"timestampFormat": pattern, "timestampNTZFormat": pattern, "timeZone": "+01:00", "header": "true"}
    found = source.rows("local timestamp_ntz, at timestamp", "csv", **options)
    assert [row["local"] for row in found] == MOMENTS
    assert [row["at"] for row in found] == [utc(m) - dt.timedelta(hours=1) for m in MOMENTS]


def test_a_time_that_does_not_match_is_a_bad_record(source: Input) -> None:
    """As in Spark, a pattern excludes ISO 8601: the record is an error with its offset, never null."""
    source.put("a.csv", b"1,31.01.2026\n2,2026-01-31\n")
    with pytest.raises(BadRecord, match="byte 13: found '2,2026-01-31', expected date in column 'day'"):
        source.rows("id long, day date", "csv", dateFormat="dd.MM.yyyy")


@pytest.mark.parametrize(
    ("fmt", "option", "says"),
    [
        ("csv", "timestampFormat", "timestampFormat='YYYY': YYYY is not read here"),
        ("json", "dateFormat", "dateFormat='YYYY': YYYY is not read here"),
        ("json", "timestampNTZFormat", "timestampNTZFormat='YYYY': YYYY is not read here"),
        ("parquet", "dateFormat", "dateFormat is for format=json or csv"),
        ("text", "multiLine", "multiLine='YYYY' is not a flag"),
        ("csv", "lineSep", r"found format=csv, whose records end by themselves: .*; leave it out"),
    ],
)
def test_a_bad_dialect_is_refused_before_anything_is_read(source: Input, fmt: str, option: str, says: str) -> None:
    """An unsupported pattern, or an option of another format, fails the query when it is defined."""
    source.put("a", b"x")
    with pytest.raises(OptionError, match=says):
        source.rows("value string", fmt, **{option: "YYYY"})


def people(count: int) -> list[dict[str, Any]]:
    return [{"id": i, "name": f'a{i}[,]"\n', "tags": ["x", "],["]} for i in range(count)]


SCHEMA = "id long, name string"


@pytest.mark.parametrize("indent", [None, 1])
def test_an_array_of_python(source: Input, indent: int | None) -> None:
    """`json.dump` of a list: each element is a record, with its offset in the file."""
    data = json.dumps(people(3), indent=indent).encode()
    source.put("a.json", data)
    found = source.rows(f"{SCHEMA}, _meta metadata", multiLine="true", metadataColumn="_meta")
    assert [(row["id"], row["name"]) for row in found] == [(i, f'a{i}[,]"\n') for i in range(3)]
    for row in found:
        element = data[row["_meta"]["offset"] :].lstrip(b"[, \n")
        assert json.JSONDecoder().raw_decode(element.decode())[0] == people(3)[row["id"]]


def test_arrays_of_duckdb_and_polars(source: Input, tmp_path: Path) -> None:
    """`COPY ... (ARRAY true)` and `write_json`: each file is one array; a compressed one works, too."""
    (tmp_path / "in").mkdir()
    target = tmp_path / "in" / "duck.json"
    duckdb.sql(f"copy (select range as id, 'n' || range as name from range(3)) to '{target}' (format json, array true)")
    source.put("a.json", target.read_bytes(), 1)
    target.unlink()
    source.put("b.json", polars.DataFrame({"id": [3, 4], "name": ["n3", "n4"]}).write_json().encode(), 2)
    source.put("c.json.gz", gzip.compress(b'{\n "id": 5,\n "name": "n5"\n}\n'), 3)
    source.put("d.json", b" \n", 4)
    source.put("e.json", '{"id":6,"name":"n6"}'.encode("utf-16"), 5)
    found = source.rows(SCHEMA, multiLine="true", pathGlobFilter="[a-d]*")
    assert found == [{"id": i, "name": f"n{i}"} for i in range(6)]
    assert source.rows(SCHEMA, multiLine="true", pathGlobFilter="e*", encoding="UTF-16") == [{"id": 6, "name": "n6"}]


def test_a_document_is_one_split_whatever_its_size(source: Input) -> None:
    """A document is not cut at a byte limit: half a document is none."""
    source.put("a.json", json.dumps(people(200), indent=2).encode())
    assert len(source.rows(SCHEMA, multiLine="true", maxBytesPerTrigger="64", splitSize="64")) == 200


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(
    ("document", "bad"),
    [
        ('[{"id":1},{"id":[}', ["expected a bracket that closes the array in a file that is one JSON document, or one array"]),
        ('[{"id":1}]]', ["expected the end of the file after the array in a file that is one JSON document, or one array"]),
        ('{"id":\n"1\n"}', ["expected no line break in a string in a file that is one JSON document, or one array"]),
        ('[{"id":3,"name":"é"},\n{"id":4,"name":"\udce9"}]', ["expected UTF-8"]),
        ('{"id":4,"name":"\udce9"}', ["expected UTF-8"]),
    ],
)  # fmt: skip
def test_a_document_that_is_no_record_is_set_aside(source: Input, document: str, bad: list[str], ending: str) -> None:
    """With badRecords=quarantine it does not end the query: it is one bad record. Of an array only the bad elements are set aside."""
    data = document.encode(errors="surrogateescape")
    source.put(f"a.json{ending}", gzip.compress(data) if ending else data, 1)
    source.put("b.json", b'{"id":2}', 2)
    found = source.rows(f"{SCHEMA}, _bad bad", multiLine="true", badRecords="quarantine", badRecordColumn="_bad")
    good = [{"id": 3, "name": "é"}] if "é" in document else []
    assert [{"id": row["id"], "name": row["name"]} for row in found if row["_bad"] is None] == [
        *good,
        {"id": 2, "name": None},
    ]
    aside = [row["_bad"] for row in found if row["_bad"] is not None]
    assert [row["reason"] for row in aside] == bad
    assert aside[0]["record"].strip() == (data if not good else b'{"id":4,"name":"\xe9"}')
    with pytest.raises(BadRecord, match="expected"):
        source.rows(SCHEMA, multiLine="true")


def test_lines_where_a_document_is_expected_are_told(source: Input) -> None:
    """Of two documents in a file Spark reads the first and silently drops the second; here it is an error that names the file."""
    source.put("a.json", b'{"id":1}\n{"id":2}\n')
    with pytest.raises(
        BadRecord, match="a.json.*; multiLine=true takes a file for one object.*: leave it out if each line is one"
    ):
        source.rows(SCHEMA, multiLine="true")
    assert len(source.rows(SCHEMA)) == 2
    source.put("a.json", b'[{"id":1},\n{"id":"x"}]')
    with pytest.raises(BadRecord, match="expected bigint in column 'id'") as wrong:
        source.rows(SCHEMA, multiLine="true")
    assert "multiLine" not in wrong.value.message
    source.put("a.json", b'[{"id":1},\n7]')
    with pytest.raises(
        BadRecord, match="found ' 7', expected a record that is one JSON object"
    ):  # on no line of its own
        source.rows(SCHEMA, multiLine="true")
    with pytest.raises(OptionError, match="leave one of them out"):
        source.rows(SCHEMA, multiLine="true", lineSep=";")


@pytest.mark.parametrize(
    ("data", "says", "options"),
    [
        (json.dumps(people(3)).encode(), "multiLine=true", {"multiLine": "true"}),
        (json.dumps(people(3), indent=1).encode(), "multiLine=true", {"multiLine": "true"}),
        (b'{\n "id": 0\n}\n', "multiLine=true", {"multiLine": "true"}),
        (
            b"".join(json.dumps(row).encode() + b"\n" for row in people(3)).decode().encode("utf-16-le"),
            "UTF-16LE",
            {"encoding": "UTF-16LE"},
        ),
    ],
    ids=["array", "long array", "object", "UTF-16"],
)
def test_the_option_that_is_probably_meant_is_named(
    source: Input, data: bytes, says: str, options: dict[str, str]
) -> None:
    """A document that is read line by line, or text in another encoding, fails with the name of the option that can read it."""
    source.put("a.json", data)
    with pytest.raises(BadRecord, match=f"; set .*{says}"):
        source.rows(SCHEMA)
    rows = source.rows(SCHEMA, **options)
    assert [row["id"] for row in rows] == list(range(len(rows)))
    assert rows


@pytest.mark.parametrize("blank", ["\v", "\f", "\xa0"])
def test_white_space_that_is_none_in_json_is_shown(source: Input, blank: str) -> None:
    """For a record that only looks right the error shows the offending white space."""
    source.put("a.json", f'{{"id":1}}{blank}\n'.encode())
    with pytest.raises(
        BadRecord,
        match=re.escape(
            f"""found '{{"id":1}}{blank.encode("unicode_escape").decode()}', expected a record that is one JSON"""
        ),
    ):
        source.rows(SCHEMA)


@pytest.mark.parametrize("multi_line", ["true", "false"])
def test_line_breaks_in_csv_values_whatever_is_said(source: Input, multi_line: str) -> None:
    """A quoted line break from Python's writer is data; `multiLine` is accepted, and changes nothing."""
    text = io.StringIO()
    csv.writer(text).writerows([[1, "a\nb"], [2, "c"]])
    source.put("a.csv", text.getvalue().encode())
    assert [row["name"] for row in source.rows(SCHEMA, "csv", multiLine=multi_line)] == ["a\nb", "c"]


def test_columns_by_the_names_of_a_header(source: Input) -> None:
    """Python's `DictWriter` in another order, with an extra column: matched by name; a file without a column is an error with its path."""
    text = io.StringIO()
    writer = csv.DictWriter(text, ["name", "more", "id"])
    writer.writeheader()
    writer.writerow({"id": 1, "name": "x", "more": "?"})
    source.put("a.csv", text.getvalue().encode())
    assert source.rows(SCHEMA, "csv", header="true") == [{"id": 1, "name": "x"}]
    source.put("b.csv", b"id,nmae\n1,x\n", 2000)
    with pytest.raises(BadFile, match=r"b\.csv.*no column 'name' \(did you mean 'nmae'\?\)"):
        source.rows(SCHEMA, "csv", header="true")


def test_sparks_modes_are_mapped_or_refused() -> None:
    """FAILFAST fails, DROPMALFORMED sets records aside; a mode that silently loses values is refused with what to use instead."""
    assert parse(SOURCE, {"path": "/x", "format": "json", "mode": "FailFast"}, what="source")["badRecords"] == "fail"
    with pytest.raises(OptionError, match="mode=PERMISSIVE makes null of what does not fit .* expected DROPMALFORMED"):
        parse(SOURCE, {"path": "/x", "format": "json", "mode": "PERMISSIVE"}, what="source")
    with pytest.raises(OptionError, match="did you mean 'failfast'"):
        parse(SOURCE, {"path": "/x", "mode": "failfats"}, what="source")
    dropped = parse(SOURCE, {"path": "/x", "format": "json", "mode": "DROPMALFORMED"}, what="source")
    assert dropped["badRecords"] == "quarantine"
    with pytest.raises(OptionError, match="mode=DROPMALFORMED is badRecords=quarantine, found badRecords=fail, too"):
        parse(SOURCE, {"path": "/x", "format": "json", "mode": "DROPMALFORMED", "badRecords": "fail"}, what="source")


def test_what_is_no_text_in_a_file_that_is_decoded_as_a_whole(source: Input) -> None:
    """`encodingErrors=quarantine` cannot tell records apart there: the error says which option sets the file aside, and it does."""
    source.put("a", b"good\nbad\xff\n")
    given = {"encoding": "ISO-2022-JP", "encodingErrors": "quarantine", "badRecordColumn": "_bad"}
    with pytest.raises(BadRecord, match=r"byte 8: .* is set aside by badFiles=quarantine") as error:
        source.rows("value string, _bad bad", "text", **given)
    assert error.value.path == str(source.root / "a")
    rows = source.rows("value string, _bad bad", "text", **given, badFiles="quarantine")
    assert [(row["value"], row["_bad"]["path"], row["_bad"]["record"]) for row in rows] == [
        (None, str(source.root / "a"), None)
    ]
