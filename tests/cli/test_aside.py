"""What cannot be read is set aside: beside the rows, by the same record, and told by every command."""

from __future__ import annotations

import base64
import gzip
import json
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import TooMuchSetAside
from penstock.sink.tolerance import Tolerance
from penstock.source import configured, read

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Pipeline, Said

SCHEMA = (
    '{"fields":[{"metadata":{},"name":"id","nullable":true,"type":"long"},'
    '{"metadata":{},"name":"name","nullable":true,"type":"string"}],"type":"struct"}'
)
JSON = {"schema": SCHEMA, "source": {"format": "json", "badRecords": "quarantine"}, "sink_options": {"format": "json"}}
CSV = {"schema": SCHEMA, "source": {"format": "csv", "badRecords": "quarantine"}, "sink_options": {"format": "csv"}}


def aside(dst: Path) -> list[dict[str, Any]]:
    """Return the lines about what was set aside, as a stranger reads them."""
    files = sorted(dst.glob("_penstock/*/quarantine/*.json"))
    return [json.loads(line) for file in files for line in file.read_bytes().splitlines()]


def held(line: dict[str, Any]) -> bytes:
    """Return the bytes of the record that a line is about."""
    return base64.b64decode(line["base64"]) if "base64" in line else str(line["bytes"]).encode()


def rows(dst: Path) -> list[str]:
    """Return the lines of the output."""
    return sorted(line for file in dst.glob("*.*") for line in file.read_text().splitlines())


def raw(pipeline: Pipeline, name: str, data: bytes) -> Path:
    """Put a file of these bytes, which has settled."""
    path = pipeline.put(name)
    path.write_bytes(data)
    before = path.stat().st_mtime - 60
    os.utime(path, (before, before))
    return path


def test_a_bad_line_of_json_stops_nothing(pipeline: Callable[..., Pipeline]) -> None:
    """Each bad line is set aside with where it is, what it is and why; all others are rows."""
    made = pipeline(**JSON)
    lines = [b'{"id": 1, "name": "a"}', b"no json", b'{"id": "x"}', b'{"id": 2}\r', b'{"id": 3', b'\xff\xfe{"id": 4}']
    path = raw(made, "a.json", b"\n".join(lines) + b"\n")
    made.run()
    assert rows(made.dst) == ['{"id":1,"name":"a"}', '{"id":2}']
    bad = aside(made.dst)
    assert [held(line) for line in bad] == [lines[1], lines[2], lines[4], lines[5]]
    data = path.read_bytes()
    assert [data[line["offset"] :][: line["size"]] for line in bad] == [held(line) for line in bad]
    assert {(line["path"], line["code"], line["batch"]) for line in bad} == {(str(path), "PST-201", 0)}
    assert bad[0]["reason"] == "expected one JSON object on a line"
    assert bad[1]["reason"] == "expected bigint in column 'id', not '\"x\"'"


def test_a_bad_record_of_csv_stops_nothing(pipeline: Callable[..., Pipeline]) -> None:
    """A record of too many or too few fields, of a value that does not fit, with a stray quote, or that is no text."""
    made = pipeline(**CSV)
    records = [b"1,a", b"2", b"x,b", b'3,"c\nd"', b'4,"e"f', b"5,g,h", b"6,\xff", b"7,i", b'8,"open']
    path = raw(made, "a.csv", b"\n".join(records))
    made.run()
    assert rows(made.dst) == ["1,a", '3,"c', "7,i", 'd"']
    bad = aside(made.dst)
    assert sorted(held(line) for line in bad) == sorted([records[n] for n in (1, 2, 4, 5, 6, 8)])
    data = path.read_bytes()
    assert all(data[line["offset"] :].startswith(held(line)) for line in bad)
    assert {line["code"] for line in bad} == {"PST-201"}


def test_a_line_that_is_no_text_stops_nothing(pipeline: Callable[..., Pipeline]) -> None:
    """Where lines pass as they are, one that is not UTF-8 is set aside with its bytes, and the others pass."""
    made = pipeline(source={"encodingErrors": "quarantine"})
    path = raw(made, "a.txt", b"one\n\xff\xfe two\r\nthree\n\n\xc3")
    made.run()
    assert rows(made.dst) == ["", "one", "three"]
    bad = aside(made.dst)
    assert [(line["offset"], held(line)) for line in bad] == [(4, b"\xff\xfe two"), (19, b"\xc3")]
    assert path.read_bytes()[19:] == b"\xc3"


def test_text_of_another_encoding_is_set_aside_by_record(pipeline: Callable[..., Pipeline]) -> None:
    """What a file's encoding has no character for is set aside as the bytes of its line, where it is in the file."""
    made = pipeline(source={"encoding": "UTF-16LE", "encodingErrors": "quarantine"})
    lines = ["ä\n".encode("utf-16-le"), b"\x00\xd8x\x00\n\x00", "b\n".encode("utf-16-le")]
    raw(made, "a.txt", b"".join(lines))
    made.run()
    assert rows(made.dst) == ["b", "ä"]
    assert [(line["offset"], held(line)) for line in aside(made.dst)] == [(4, b"\x00\xd8x\x00")]


@pytest.mark.parametrize("form", [JSON, CSV], ids=["json", "csv"])
def test_in_is_out_and_aside(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said], form: dict[str, Any]
) -> None:
    """`verify --source` proves that each record is a row or set aside, once; without one line, or with one twice, it does not."""
    made = pipeline(**form)
    random.seed(17)
    for name in "abc":
        good = [f'{{"id": {n}, "name": "{name}"}}' if form is JSON else f"{n},{name}" for n in range(500)]
        bad = [line if random.random() > 0.01 else line[: random.randrange(1, 6)] + "\x00\x01" for line in good]  # noqa: S311 - a seed
        raw(made, f"{name}.in", "".join(f"{line}\n" for line in bad).encode())
    made.run()
    lines = aside(made.dst)
    assert len(lines) > 3
    assert len(rows(made.dst)) == 1500 - len(lines)
    said = penstock("verify", made.dst, "--source", made.src, "--json")
    assert said.status == 0, said.out
    assert said.facts["source"]["set_aside"] == len(lines)
    assert said.facts["source"]["output_records"] == 1500
    status = penstock("status", made.dst, "--json").facts["sinks"][0]
    assert status["aside"] == {
        "records": len(lines), "files": 0, "changed": 0, "path": f"{made.dst}/_penstock/q/quarantine"
    }  # fmt: skip
    assert f"{len(lines)} bad records" in penstock("status", made.dst).out
    assert "or set aside, each exactly once" in penstock("verify", made.dst, "--source", made.src).out
    (file,) = made.dst.glob("_penstock/*/quarantine/*.json")
    assert not [facts for facts in penstock("files", made.dst, "--json").facts["files"] if "_penstock" in facts["path"]]
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[1:]))
    assert penstock("verify", made.dst, "--source", made.src).status == 1


def test_every_bad_record_of_a_million(pipeline: Callable[..., Pipeline]) -> None:
    """A file of bad lines alone takes time and memory like one of good lines, not like so many errors."""
    made = pipeline(**JSON)
    count = 100_000
    raw(made, "a.json", b'{"id": 12345, "name": "abc\n' * count)
    made.run()
    assert made.sink().ledger.head().aside.records == count
    assert rows(made.dst) == []


def packed(lines: int) -> bytes:
    """Return gzip of so many lines that do not compress well."""
    random.seed(lines)
    text = "".join(f"{random.getrandbits(256):064x}\n" for _ in range(lines))
    return gzip.compress(text.encode())


@pytest.mark.parametrize("held_bytes", [32 << 20, 1000], ids=["held", "given"])
def test_a_file_that_is_bad_at_its_end_gives_one_line_and_no_row(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, held_bytes: int
) -> None:
    """Damage at the end of a .gz takes back what was read before it, also where that was staged; the others' rows are all there."""
    monkeypatch.setattr(read, "_HELD_BYTES", held_bytes)
    made = pipeline(source={"badFiles": "quarantine"})
    whole = packed(60_000)
    for name, data in {
        "a.gz": packed(100),
        "b.gz": whole[:-9],
        "c.gz": packed(50_000)[:-3],
        "d.gz": packed(200),
    }.items():
        raw(made, name, data)
    made.put("e.txt", "plain")
    made.run()
    assert len(rows(made.dst)) == 301
    bad = aside(made.dst)
    assert [(line["path"], line["code"], line["offset"]) for line in bad] == [
        (f"{made.src}/b.gz", "PST-202", 0), (f"{made.src}/c.gz", "PST-202", 0)
    ]  # fmt: skip
    assert bad[0]["size"] == len(whole) - 9
    assert penstock("verify", made.dst, "--source", made.src).status == 0
    raw(made, "b.gz", whole)  # mended: another version, which the next batch takes
    made.run()
    assert len(rows(made.dst)) == 60_301
    said = penstock("verify", made.dst, "--source", made.src)
    assert said.status == 0, said.out


def test_a_damaged_table_gives_one_line(pipeline: Callable[..., Pipeline], penstock: Callable[..., Said]) -> None:
    """A Parquet file that is damaged, or is none, gives one line; a file of its name that cannot be read at all does, too."""
    made = pipeline(
        schema=SCHEMA, source={"format": "parquet", "badFiles": "quarantine"}, sink_options={"format": "json"}
    )
    sink = pa.BufferOutputStream()
    table = pa.table({"id": pa.array(range(1000)), "name": [f"name {n}" for n in range(1000)]})
    pq.write_table(table, sink, row_group_size=100)
    data = sink.getvalue().to_pybytes()
    damaged = bytearray(data)
    damaged[len(data) // 2 : len(data) // 2 + 400] = b"\xff" * 400
    for name, content in {"a.parquet": data, "b.parquet": bytes(damaged), "c.parquet": data[:-100]}.items():
        raw(made, name, content)
    made.run()
    assert len(rows(made.dst)) == 1000
    assert [line["path"][-9:] for line in aside(made.dst)] == ["b.parquet", "c.parquet"]
    assert penstock("verify", made.dst, "--source", made.src).status == 0


def test_an_archive_and_a_header_that_lacks_a_column(pipeline: Callable[..., Pipeline]) -> None:
    """What is a bad file by its name, or by its header in each of its ranges, gives one line however it was cut."""
    made = pipeline(
        schema=SCHEMA,
        source={
            "format": "csv",
            "header": "true",
            "badFiles": "quarantine",
            "splitSize": "64",
            "maxBytesPerTrigger": "100",
        },
        sink_options={"format": "csv"},
    )
    raw(made, "a.zip", b"PK")
    raw(made, "b.csv", b"nr,name\n" + b"1,abcdefgh\n" * 50)
    made.put("c.csv", "id,name", "7,x")
    for _ in range(12):
        made.run()
    assert rows(made.dst) == ["7,x"]
    assert [line["path"].rpartition("/")[2] for line in aside(made.dst)] == ["a.zip", "b.csv"]


def test_a_file_that_vanished_or_changed_is_set_aside(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planned file that is gone, or another one by now, stops nothing: a line says what was planned; what is there comes next."""
    made = pipeline(source={"changedFiles": "quarantine"})
    for name in "abc":
        made.put(f"{name}.txt", name)
    carried = configured.carried

    def meanwhile(splits: Any, zone: str) -> Any:
        monkeypatch.undo()
        (made.src / "a.txt").unlink()
        raw(made, "b.txt", b"more than that\n")
        return carried(splits, zone)

    monkeypatch.setattr(configured, "carried", meanwhile)
    made.run()
    assert rows(made.dst) == ["c"]
    assert [(line["path"][-5:], line["code"], line["size"]) for line in aside(made.dst)] == [
        ("a.txt", "PST-203", 2), ("b.txt", "PST-203", 2)
    ]  # fmt: skip
    made.run()
    assert rows(made.dst) == ["c", "more than that"]
    said = penstock("verify", made.dst, "--source", made.src)
    assert said.status == 0, said.out
    assert "2 ranges of files had changed" in said.out


def test_hostile_names_and_records(pipeline: Callable[..., Pipeline], penstock: Callable[..., Said]) -> None:
    """A path that is no UTF-8, and one with escape sequences, are told exactly and harmlessly."""
    made = pipeline(**JSON)
    for name in (b"\xff\n.json", b"\x1b[31m.json"):
        path = os.fsencode(made.src) + b"/" + name
        with open(path, "wb") as file:
            file.write(b'{"id": "\x1b[2J"}\n\x00\x00\n{"id": 1}\n')
        os.utime(path, (1_000_000_000, 1_000_000_000))
    made.run()
    lines = aside(made.dst)
    assert len(lines) == 4
    told = {base64.b64decode(line["path_base64"]) if "path_base64" in line else line["path"].encode() for line in lines}
    assert told == {os.fsencode(made.src) + b"/" + name for name in (b"\xff\n.json", b"\x1b[31m.json")}
    assert penstock("verify", made.dst, "--source", made.src).status == 0


@pytest.mark.parametrize(("option", "value"), [("maxBadRecords", "1"), ("maxBadFraction", "0.4")])
def test_too_much_ends_the_run(pipeline: Callable[..., Pipeline], option: str, value: str) -> None:
    """When more is set aside than is allowed the batch is not committed; with another limit the same batch is."""
    made = pipeline(**JSON)
    raw(made, "a.json", b'{"id": 1}\nbad\nbad\n')
    sink = made.sink()
    tolerance = Tolerance(lines=1) if option == "maxBadRecords" else Tolerance(fraction=float(value))
    made.run()
    head = sink.ledger.head()
    with pytest.raises(TooMuchSetAside, match=f"2 of 3 records and files.*{option}={value}.*start again"):
        tolerance.check(head, [])
    Tolerance(lines=2, fraction=0.7).check(head, [])
