"""Records and files that cannot be read are set aside next to the rows, by the same ledger record, and every command reports them."""

from __future__ import annotations

import base64
import gzip
import json
import os
import random
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import failpoints
from penstock.errors import PenstockError, StorageError, TooMuchSetAside
from penstock.formats.aside import about_records
from penstock.ingestion.sql.query import Sql
from penstock.sink.tolerance import Tolerance
from penstock.source import configured, guarded, read
from penstock.verify.retry import retry

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
    """Return the lines about what was set aside, as an outside reader sees them."""
    files = sorted(dst.glob("_penstock/*/quarantine/*.json"))
    return [json.loads(line) for file in files for line in file.read_bytes().splitlines()]


def held(line: dict[str, Any]) -> bytes:
    """Return the bytes of the record that a line describes."""
    return base64.b64decode(line["base64"]) if "base64" in line else str(line["bytes"]).encode()


def rows(dst: Path) -> list[str]:
    """Return the lines of the output."""
    return sorted(line for file in dst.glob("*.*") for line in file.read_text().splitlines())


def raw(pipeline: Pipeline, name: str, data: bytes) -> Path:
    """Write an input file of these bytes that has settled."""
    path = pipeline.put(name)
    path.write_bytes(data)
    before = path.stat().st_mtime - 60
    os.utime(path, (before, before))
    return path


def test_a_bad_line_of_json_stops_nothing(pipeline: Callable[..., Pipeline]) -> None:
    """Each bad line is set aside with its place, its bytes and the reason; all other lines become rows."""
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
    assert bad[0]["reason"] == "expected a record that is one JSON object"
    assert bad[1]["reason"] == "expected bigint in column 'id', not '\"x\"'"


def test_a_bad_record_of_csv_stops_nothing(pipeline: Callable[..., Pipeline]) -> None:
    """Records with too many or too few fields, an unfit value, a stray quote, or invalid text are set aside."""
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
    """If lines are passed on unparsed, one that is not UTF-8 is set aside with its bytes, and the others pass."""
    made = pipeline(source={"encodingErrors": "quarantine"})
    path = raw(made, "a.txt", b"one\n\xff\xfe two\r\nthree\n\n\xc3")
    made.run()
    assert rows(made.dst) == ["", "one", "three"]
    bad = aside(made.dst)
    assert [(line["offset"], held(line)) for line in bad] == [(4, b"\xff\xfe two"), (19, b"\xc3")]
    assert path.read_bytes()[19:] == b"\xc3"


def test_text_of_another_encoding_is_set_aside_by_record(pipeline: Callable[..., Pipeline]) -> None:
    """A line with bytes that the file's encoding cannot decode is set aside, with its offset in the file."""
    made = pipeline(source={"encoding": "UTF-16LE", "encodingErrors": "quarantine"})
    lines = ["ä\n".encode("utf-16-le"), b"\x00\xd8x\x00\n\x00", "b\n".encode("utf-16-le")]
    raw(made, "a.txt", b"".join(lines))
    made.run()
    assert rows(made.dst) == ["b", "ä"]
    assert [(line["offset"], held(line)) for line in aside(made.dst)] == [(4, b"\x00\xd8x\x00")]


@pytest.mark.slow
@pytest.mark.parametrize("form", [JSON, CSV], ids=["json", "csv"])
def test_in_is_out_and_aside(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said], form: dict[str, Any]
) -> None:
    """`verify --source` proves that each record is a row or set aside, exactly once; with a line missing or doubled it does not."""
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
    place = f"{made.dst}/_penstock/q/quarantine"
    assert status["aside"] == {"records": len(lines), "files": 0, "changed": 0, "retried": 0, "path": place}
    assert f"{len(lines)} bad records" in penstock("status", made.dst).out
    assert "or set aside, each exactly once" in penstock("verify", made.dst, "--source", made.src).out
    (file,) = made.dst.glob("_penstock/*/quarantine/*.json")
    assert not [facts for facts in penstock("files", made.dst, "--json").facts["files"] if "_penstock" in facts["path"]]
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[1:]))
    assert penstock("verify", made.dst, "--source", made.src).status == 1


@pytest.mark.slow
def test_a_hundred_thousand_bad_records(pipeline: Callable[..., Pipeline]) -> None:
    """A file of only bad lines takes the time and memory of good lines, not of a hundred thousand exceptions."""
    made = pipeline(**JSON)
    count = 100_000
    raw(made, "a.json", b'{"id": 12345, "name": "abc\n' * count)
    made.run()
    assert made.sink().ledger.head().aside.records == count
    assert rows(made.dst) == []


def packed(lines: int) -> bytes:
    """Return gzip data of this many lines, which hardly compress."""
    random.seed(lines)
    text = "".join(f"{random.getrandbits(256):064x}\n" for _ in range(lines))
    return gzip.compress(text.encode())


@pytest.mark.slow
@pytest.mark.parametrize("held_bytes", [32 << 20, 1000], ids=["held", "given"])
def test_a_file_that_is_bad_at_its_end_gives_one_line_and_no_row(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, held_bytes: int
) -> None:
    """Damage at the end of a .gz takes back the rows read before it, also staged ones; the rows of other files are all there."""
    monkeypatch.setattr(guarded, "_HELD_BYTES", held_bytes)
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
    raw(made, "b.gz", whole)  # the mended file is another version, which the next batch reads
    made.run()
    assert len(rows(made.dst)) == 60_301
    said = penstock("verify", made.dst, "--source", made.src)
    assert said.status == 0, said.out


def test_a_damaged_table_gives_one_line(pipeline: Callable[..., Pipeline], penstock: Callable[..., Said]) -> None:
    """A Parquet file that is damaged, or is not Parquet, gives one line; so does a file with a .parquet name that cannot be read at all."""
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


@pytest.mark.parametrize("held_bytes", [32 << 20, 1000], ids=["held", "given"])
def test_only_what_is_taken_is_counted(
    pipeline: Callable[..., Pipeline], monkeypatch: pytest.MonkeyPatch, held_bytes: int
) -> None:
    """Columns that the schema lacks are counted once for each row that is taken: a bad file, and a file that is read twice, add nothing."""
    monkeypatch.setattr(guarded, "_HELD_BYTES", held_bytes)
    made = pipeline(
        schema=SCHEMA, source={"format": "parquet", "badFiles": "quarantine"}, sink_options={"format": "json"}
    )
    sink = pa.BufferOutputStream()
    names = [f"name {n}" for n in range(1000)]
    pq.write_table(pa.table({"id": range(1000), "name": names, "more": range(1000)}), sink, row_group_size=100)
    data = sink.getvalue().to_pybytes()
    damaged = bytearray(data)
    damaged[len(data) // 2 : len(data) // 2 + 400] = b"\xff" * 400
    for name, content in {"a.parquet": data, "b.parquet": bytes(damaged), "c.parquet": data}.items():
        raw(made, name, content)
    made.run()
    assert len(rows(made.dst)) == 2000
    assert [line["path"][-9:] for line in aside(made.dst)] == ["b.parquet"]
    assert made.sink().ledger.head().account.unknown == {"more": 2000}


def test_an_archive_and_a_header_that_lacks_a_column(pipeline: Callable[..., Pipeline]) -> None:
    """A file that is bad by its name, or by its header in each of its ranges, gives one line however it was cut."""
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
    """A planned file that is gone or has changed stops nothing: a line says what was planned; the file as it is now is read next."""
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
    """A path that is not UTF-8, and one with escape sequences, are reported exactly and harmlessly."""
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
    """If more is set aside than allowed, the batch is not committed; with a higher limit the same batch is."""
    made = pipeline(**JSON)
    raw(made, "a.json", b'{"id": 1}\nbad\nbad\n')
    sink = made.sink()
    tolerance = Tolerance(lines=1) if option == "maxBadRecords" else Tolerance(fraction=float(value))
    made.run()
    head = sink.ledger.head()
    with pytest.raises(TooMuchSetAside, match=f"2 of 3 records and files.*{option}={value}.*start again"):
        tolerance.check(head, [])
    Tolerance(lines=2, fraction=0.7).check(head, [])


def mend(dst: Path, change: Callable[[str], str]) -> Path:
    """Write a copy of the quarantine's lines with mended bytes."""
    copy = dst.parent / "mended.jsonl"
    copy.write_text("".join(json.dumps(line | {"bytes": change(line["bytes"])}) + "\n" for line in aside(dst)))
    return copy


def test_what_was_mended_passes_the_sql_of_its_ingest(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said]
) -> None:
    """A record that was set aside and mended passes the SELECT that the sink noted; the user names no transform for that."""
    made = pipeline(**JSON, transform=Sql("select id * 10 as id from input where id <> 1"))
    raw(made, "a.json", b'{"id": 1}\n{"id": 2\n{"id": 4}\n')
    made.run()
    copy = mend(made.dst, lambda text: text.replace('{"id": 2', '{"id": 2}'))
    assert penstock("retry", made.dst, "--mended", copy, "--transform", "a:b").status == 2
    assert penstock("retry", made.dst, "--mended", copy, "--json").facts["rows"] == 1
    assert rows(made.dst) == ['{"id":20}', '{"id":40}']
    assert penstock("verify", made.dst, "--source", made.src).status == 0


def test_what_has_no_ingest_is_not_retried(pipeline: Callable[..., Pipeline], penstock: Callable[..., Said]) -> None:
    """An output of a user's own query, a sink that is not an ingest, and two ingests: each gets its own error message."""
    plain = pipeline(query="plain")
    plain.noted = None
    plain.put("a.txt", "one")
    plain.run()
    said = penstock("retry", plain.dst)
    assert (
        said.status,
        "no ingest has written it; what a query of your own takes along in badRecordColumn" in said.err,
    ) == (2, True)
    for name in ("first", "second"):
        made = pipeline(query=name)
        made.run()
    said = penstock("retry", made.dst)
    assert "expected one ingest whose records are retried, found first, second; name it: --sink ID" in said.err
    assert penstock("retry", made.dst, "--sink", "second").status == 0
    assert "sink 'plain' is no ingest; leave --sink out" in penstock("retry", made.dst, "--sink", "plain").err


@pytest.mark.slow
def test_what_was_mended_is_taken_in_once(pipeline: Callable[..., Pipeline], penstock: Callable[..., Said]) -> None:
    """`retry` takes in the records of a mended copy, each once however often it runs; the others wait; every record is accounted for."""
    made = pipeline(**JSON)
    raw(made, "a.json", b'{"id": 1}\n{"id": 2\n{"id": "x"}\n{"id": 4}\n')
    made.run()
    assert penstock("retry", made.dst, "--json").facts | {"reasons": []} == {
        "ok": True, "records": 0, "rows": 0, "left": 2, "unknown": 0, "reasons": [],
        "files": 0, "files_left": 0, "files_replaced": 0,
    }  # fmt: skip
    copy = mend(made.dst, lambda text: text.replace('{"id": 2', '{"id": 2}'))
    said = penstock("retry", made.dst, "--mended", copy)
    assert "took in 1 record, 1 row\n1 record still cannot be read: expected bigint" in said.out, said
    assert rows(made.dst) == ['{"id":1}', '{"id":2}', '{"id":4}']
    assert penstock("verify", made.dst, "--source", made.src).status == 0
    again = penstock("retry", made.dst, "--mended", copy, "--json").facts
    assert (again["records"], again["left"], again["unknown"]) == (0, 1, 1)
    assert rows(made.dst) == ['{"id":1}', '{"id":2}', '{"id":4}']
    assert "2 bad records (1 of them taken in since)" in penstock("status", made.dst).out
    made.put("b.json", '{"id": 5}')
    made.owner = "another"
    made.run()
    assert len(rows(made.dst)) == 4
    said = penstock("verify", made.dst, "--source", made.src)
    assert said.status == 0, said.out


def test_what_is_read_again_is_set_aside_and_taken_in_again(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said]
) -> None:
    """After `reset` a record is set aside anew: its old receipt made it count as taken in. A record set aside twice before is one."""
    made = pipeline(**JSON, owner=f"{socket.gethostname()}:999999999:1:q")
    raw(made, "a.json", b'{"id": 1}\n{"id": 2\n{"id": 3\n')
    made.run()
    first = mend(made.dst, lambda text: text.replace('{"id": 2', '{"id": 2}'))
    assert penstock("retry", made.dst, "--mended", first, "--json").facts["records"] == 1
    assert penstock("reset", made.src, made.dst, "--yes").status == 0
    for _ in range(2):
        made.run()
    both = mend(made.dst, lambda text: f"{text}}}")
    told = [penstock("retry", made.dst, "--mended", both, "--json").facts["records"] for _ in range(2)]
    assert told == [2, 0]
    assert rows(made.dst) == ['{"id":1}', '{"id":1}', '{"id":2}', '{"id":2}', '{"id":3}']


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda path: path.write_text(path.read_text().replace('2\\"', "2 }")), "altered"),
        (lambda path: path.write_text("junk\n"), "cut"),
        (lambda path: path.unlink(), "missing"),
    ],
)
def test_what_was_set_aside_is_taken_in_from_whole_files_alone(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said], change: Callable[[Path], object], kind: str
) -> None:
    """If a quarantine file was edited or damaged, `retry` names it, says what to do, and takes nothing in; it took what it could read."""
    made = pipeline(**JSON)
    raw(made, "a.json", b'{"id": 1}\n{"id": 2"\n')
    made.run()
    (path,) = made.dst.glob("_penstock/*/quarantine/aside-*.json")
    before = path.read_text()
    change(path)
    said = penstock("retry", made.dst)
    assert said.status == 3, said
    assert path.name in said.err
    assert f"is {kind}" in said.err
    assert "--mended" in said.err
    assert rows(made.dst) == ['{"id":1}']
    path.write_text(before)
    assert penstock("retry", made.dst).status == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no json\n", "expected a line as it is"),
        ('{"path": "/a"}\n', "modified_ns"),
        ("[]\n", "expected a line as it is"),
    ],
)
def test_a_copy_that_is_none(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said], text: str, expected: str
) -> None:
    """A mended copy with lines that are not from the quarantine is refused with the number of the line, and nothing is written."""
    made = pipeline(**JSON)
    raw(made, "a.json", b"bad\n")
    made.run()
    (made.root / "copy").write_text(text)
    said = penstock("retry", made.dst, "--mended", made.root / "copi")
    assert (said.status, "does not exist" in said.err) == (2, True)
    said = penstock("retry", made.dst, "--mended", made.root / "copy")
    assert said.status == 2
    assert "line 1" in said.err
    assert expected in said.err


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["error", "nospace"])
def test_a_retry_that_fails_between_any_two_steps(pipeline: Callable[..., Pipeline], fault: str) -> None:
    """Stopped before its put, after it or while it publishes, a retry is completed by the next one: each record is a row once."""
    points = ("sink.write.staged", "sink.ledger.before-put", "sink.ledger.after-put", "sink.publish.one", "sink.forget")
    made = pipeline(**JSON)
    raw(made, "a.json", b"".join(b'{"id": %d\n' % place for place in range(len(points))))
    made.run()
    for place, point in enumerate(points):
        copy = mend(made.dst, lambda text, place=place: text.replace(f'{{"id": {place}', f'{{"id": {place}}}'))  # type: ignore[misc]  # bound now
        failpoints.arm(f"{point}={fault}")
        with pytest.raises((OSError, StorageError)):
            retry(str(made.dst), mended=str(copy))
        failpoints.arm("")
        retry(str(made.dst), mended=str(copy))
        assert made.sink().ledger.head().aside.retried == place + 1
    made.sink().finish()
    assert rows(made.dst) == [f'{{"id":{place}}}' for place in range(len(points))]


@pytest.mark.parametrize("point", ["sink.write.before-pack-sync", "sink.ledger.before-put"])
def test_a_full_disk_while_setting_aside(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said], point: str
) -> None:
    """If the disk fills while lines are staged, or the quarantine cannot be written, the batch fails; the next attempt has each once."""
    made = pipeline(**JSON)
    raw(made, "a.json", b'{"id": 1}\nbad\n')
    failpoints.arm(f"{point}=nospace")
    with pytest.raises((OSError, StorageError)):
        made.run()
    failpoints.arm("")
    (made.dst / "_penstock" / "q" / "quarantine").write_text("in the way")
    with pytest.raises(PenstockError, match="quarantine"):
        made.run()
    (made.dst / "_penstock" / "q" / "quarantine").unlink()
    made.sink().finish()
    made.run()
    assert (rows(made.dst), [held(line) for line in aside(made.dst)]) == (['{"id":1}'], [b"bad"])
    assert penstock("verify", made.dst, "--source", made.src).status == 0


@pytest.mark.parametrize("form", ["text", "csv"])
def test_the_rest_of_a_file_that_was_cut_and_vanished_is_set_aside(
    pipeline: Callable[..., Pipeline], form: str
) -> None:
    """If the rest of a file that an earlier batch began to read is gone, it costs a line, and stops neither the plan nor a task."""
    limits = {"changedFiles": "quarantine", "maxBytesPerTrigger": "20", "splitSize": "8"}
    made = pipeline(source={"format": form} | limits, sink_options={"format": form})
    path = made.put("a.csv", *(f"row {place}" for place in range(10)))
    size = path.stat().st_size
    made.run()
    read_rows = len(rows(made.dst))
    path.unlink()
    made.put("b.csv", "later")
    for _ in range(4):
        made.run()
    assert rows(made.dst) == ["later", *(f"row {place}" for place in range(read_rows))]
    lines = aside(made.dst)
    cut = 20 if form == "text" else 6 * read_rows  # text is cut at any byte, and the line there was read whole
    assert sum(line["size"] for line in lines) == size - cut
    assert {line["code"] for line in lines} == {"PST-203"}


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16LE", "Shift_JIS"])
def test_what_was_mended_of_files_with_headers_is_taken_in(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said], encoding: str
) -> None:
    """CSV records of files with different headers are read with the header in their line, although the files are gone."""
    source = {"format": "csv", "badRecords": "quarantine", "header": "true", "encoding": encoding}
    made = pipeline(**CSV | {"source": source})
    raw(made, "a.csv", "id,name\n1,a\nx2,b\n".encode(encoding))
    raw(made, "b.csv", "name,more,id\nc,m,3\nd,m,x4\ne,m\n".encode(encoding))
    made.run()
    assert rows(made.dst) == ["1,a", "3,c"]
    assert [line["columns"] for line in aside(made.dst)] == [["id", "name"], *[["name", "more", "id"]] * 2]
    copy = mend(made.dst, lambda text: text.replace("x", ""))
    facts = penstock("retry", made.dst, "--mended", copy, "--json").facts
    assert (facts["records"], facts["left"]) == (2, 1), facts
    assert rows(made.dst) == ["1,a", "2,b", "3,c", "4,d"]
    said = penstock("verify", made.dst, "--source", made.src)
    assert said.status == 0, said.out
    for file in made.src.iterdir():
        file.unlink()
    copy = mend(made.dst, lambda text: text.replace("e,m", "e,m,5"))
    assert penstock("retry", made.dst, "--mended", copy, "--json").facts["records"] == 1
    assert rows(made.dst) == ["1,a", "2,b", "3,c", "4,d", "5,e"]


def test_a_line_that_says_nothing_of_its_header_stays_pending(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that an earlier version wrote about a file with a header have no columns: they stay pending, and retry says what to do."""
    made = pipeline(**CSV | {"source": {"format": "csv", "badRecords": "quarantine", "header": "true"}})
    raw(made, "a.csv", b"id,name\nx2,b\n")
    monkeypatch.setattr(
        read, "about_records", lambda *given, **options: about_records(*given, **options | {"columns": None})
    )
    made.run()
    said = penstock("retry", made.dst, "--json").facts
    assert (said["records"], said["left"]) == (0, 1)
    assert "put it into a file of its own in SRC" in said["reasons"][0]
