"""What cannot be read is set aside: beside the rows, by the same record, and told by every command."""

from __future__ import annotations

import base64
import json
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

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
