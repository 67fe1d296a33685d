"""verify: the faults it must find in the files, and in the records compared with their source."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from penstock import failpoints
from penstock.sink.layout import Layout
from penstock.source import sides
from penstock.verify import against as against_
from penstock.verify import proof, sums, verify
from penstock.verify.files import check_files
from tests.support.extras import WITH_AVRO

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.verify.against import SourceCheck
    from tests.cli.conftest import Pipeline, Said
    from tests.support.output import Output

JSON_SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": "id", "type": "long", "nullable": True, "metadata": {}},
            {"name": "city", "type": "string", "nullable": True, "metadata": {}},
            {"name": "at", "type": "timestamp", "nullable": True, "metadata": {}},
        ],
    }
)


def problems(said: Said) -> list[tuple[str, str]]:
    return [(problem["kind"], problem["path"]) for problem in said.facts["output"]["problems"]]


def against(dst: Path, src: Path) -> SourceCheck:
    found = verify(str(dst), str(src)).source
    assert found is not None
    return found


# -- files -------------------------------------------------------------------------------------------------------


@pytest.fixture
def written(output: Output) -> Output:
    """Return an output with the files f0 to f3, and an open part."""
    sink = output.sink(rollRows="3", fileName="f{seq}", bucketBy="b={value}", rollBatches="2")
    output.batch(sink, 0, {0: ["a", "a", "a", "c"], 1: ["b", "b", "b"]})
    output.batch(sink, 1, {0: ["c"]})
    output.batch(sink, 2, {0: ["d"]})
    return output


def test_an_output_in_order(penstock: Callable[..., Said], written: Output) -> None:
    """A directory as the sink left it passes, with status 0; open rows, owed files and hidden files are not faults."""
    (written.root / "_SUCCESS").write_text("")
    (written.root / "b=a" / ".part.crc").write_text("x")
    said = penstock("verify", written.root, "--json")
    assert said.status == 0
    assert said.facts["ok"] is True
    assert said.facts["output"]["sinks"] == [
        {"sink": "s", "files": 3, "rows": 8, "bytes": 16, "open_rows": 1, "owed_files": 0, "unnamed_files": 0}
        | {"aside_files": 0, "aside_lines": 0, "encrypted_files": 0, "locked_files": 0}
    ]
    assert said.facts["output"]["hidden_files"] == 2
    assert "verified: every file is there" in penstock("verify", written.root).out


def test_a_removed_file(penstock: Callable[..., Said], written: Output) -> None:
    """A file that somebody removed is reported missing by name, and the status is 1."""
    (written.root / "b=a" / "f0.txt").unlink()
    said = penstock("verify", written.root, "--json")
    assert (said.status, problems(said)) == (1, [("missing", "b=a/f0.txt")])
    human = penstock("verify", written.root)
    assert "missing: b=a/f0.txt: 3 rows of batches 0 to 0" in human.out
    assert "not verified" in human.out


def test_a_directory_in_the_place_of_a_file(penstock: Callable[..., Said], written: Output) -> None:
    """The file is reported missing, and the files after it are still checked."""
    path = written.root / "b=a" / "f0.txt"
    path.unlink()
    path.mkdir()
    (written.root / "mine.txt").write_text("x")
    said = penstock("verify", written.root, "--json")
    assert (said.status, problems(said)) == (1, [("missing", "b=a/f0.txt"), ("foreign", "mine.txt")])


def test_a_truncated_file(penstock: Callable[..., Said], written: Output) -> None:
    """A file that lost its end is reported as cut, also if it was cut between two records."""
    path = written.root / "b=a" / "f0.txt"
    path.write_bytes(path.read_bytes()[:4])
    assert problems(penstock("verify", written.root, "--json")) == [("cut", "b=a/f0.txt")]


def test_a_flipped_byte(penstock: Callable[..., Said], written: Output) -> None:
    """One changed byte, with length and time unchanged, is found by the digest."""
    path = written.root / "b=a" / "f0.txt"
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_bytes(b"a\nb\na\n")
    os.utime(path, ns=times)
    assert problems(penstock("verify", written.root, "--json")) == [("altered", "b=a/f0.txt")]


def test_a_doubled_file(penstock: Callable[..., Said], written: Output) -> None:
    """A copy of a finished file under a name that no ledger has would be read twice: it is reported as doubled."""
    shutil.copy(written.root / "b=a" / "f0.txt", written.root / "b=a" / "f9.txt")
    said = penstock("verify", written.root, "--json")
    assert (said.status, problems(said)) == (1, [("doubled", "b=a/f9.txt")])
    assert "copy of 'b=a/f0.txt'" in said.facts["output"]["problems"][0]["detail"]


def test_a_foreign_file(penstock: Callable[..., Said], written: Output) -> None:
    """A visible file that no ledger names is foreign and fails the check, also in a directory of its own."""
    (written.root / "new").mkdir()
    (written.root / "new" / "data.txt").write_text("not ours\n")
    said = penstock("verify", written.root, "--json")
    assert (said.status, problems(said)) == (1, [("foreign", "new/data.txt")])


def test_two_sinks_in_one_directory(penstock: Callable[..., Said], written: Output) -> None:
    """Files of another sink in the same directory are not foreign, because that sink's ledger names them."""
    written.batch(written.sink(sink_id="t"), 0, {0: ["x"]}, query="q2", final=True)
    said = penstock("verify", written.root, "--json")
    assert said.status == 0
    assert [sink["sink"] for sink in said.facts["output"]["sinks"]] == ["s", "t"]


def test_a_file_named_by_two_ledgers(penstock: Callable[..., Said], output: Output) -> None:
    """A path that two sinks claim is doubled, whichever sink wrote it."""
    for sink_id, root in (("s", output.root), ("t", output.root)):
        output.batch(output.sink(sink_id=sink_id, fileName="f{seq}"), 0, {0: ["a"]}, query=sink_id, final=True)
        if sink_id == "s":
            (root / "f0.txt").rename(root / "_kept")
    (output.root / "_kept").unlink()
    said = penstock("verify", output.root, "--json")
    assert problems(said) == [("doubled", "f0.txt")]


def test_files_that_are_owed(penstock: Callable[..., Said], output: Output) -> None:
    """A crash between commit and publishing leaves owed files: a note, not a fault, unless the staged file is gone too."""
    sink = output.sink(rollBatches="1", fileName="f{seq}")
    failpoints.arm("sink.publish.one=error")
    with pytest.raises(OSError, match="failpoint"):
        output.batch(sink, 0, {0: ["a"]})
    failpoints.arm("")
    said = penstock("verify", output.root, "--json")
    assert (said.status, said.facts["output"]["sinks"][0]["owed_files"]) == (0, 1)
    assert "decided, not visible yet" in penstock("verify", output.root).out
    for name in output.staged():
        (output.root / "_penstock/s/staging" / name).unlink()
    assert problems(penstock("verify", output.root, "--json")) == [("missing", "f0.txt")]


def test_an_unpublished_file_that_was_staged_is_checked(penstock: Callable[..., Said], output: Output) -> None:
    """An owed file is compared where it is staged, so damage is found before the file becomes visible."""
    failpoints.arm("sink.publish.one=error")
    with pytest.raises(OSError, match="failpoint"):
        output.batch(output.sink(rollBatches="1", fileName="f{seq}"), 0, {0: ["a"]})
    staged = output.root / "_penstock/s/staging" / output.staged()[0]
    staged.write_text("b\n")
    assert problems(penstock("verify", output.root, "--json")) == [("altered", "f0.txt")]


@pytest.mark.parametrize(("there", "status"), [("c", 0), ("c\n", 0), ("x", 1), ("x\n", 1), ("x\nmine\n", 1)])
def test_bytes_of_somebody_else_where_a_growing_file_goes_on(
    penstock: Callable[..., Said], output: Output, there: str, status: int
) -> None:
    """Foreign bytes may have the length of what is committed but not appended yet; bytes that a killed driver appended are fine."""
    sink = output.sink(growing="true", fileName="events.log")
    output.batch(sink, 0, {0: ["a"]})
    failpoints.arm("sink.publish.grow=error")
    with pytest.raises(OSError, match="failpoint"):
        output.batch(sink, 1, {0: ["c"]})
    failpoints.arm("")
    (output.root / "events.log").write_text(f"a\n{there}")
    said = penstock("verify", output.root)
    assert said.status == status
    assert ("altered: events.log: " in said.out) is bool(status)
    assert penstock("finish", output.root).status == status


def test_a_growing_file_is_checked_by_length(penstock: Callable[..., Said], output: Output) -> None:
    """A growing file must have the committed length: a longer one was appended to by another program, a shorter one cut."""
    output.batch(output.sink(growing="true", fileName="events.log"), 0, {0: ["one", "two"]})
    path = output.root / "events.log"
    assert penstock("verify", output.root).status == 0
    path.write_text("one\ntwo\nthree\n")
    assert problems(penstock("verify", output.root, "--json")) == [("altered", "events.log")]
    path.write_text("one\n")
    assert problems(penstock("verify", output.root, "--json")) == [("cut", "events.log")]
    path.unlink()
    assert problems(penstock("verify", output.root, "--json")) == [("missing", "events.log")]


def test_a_record_that_is_gone_is_damage(penstock: Callable[..., Said], output: Output) -> None:
    """A ledger that lacks one of its records cannot vouch for the output: status 3, and the error names the directory."""
    sink = output.sink(rollBatches="1", fileName="f{seq}")
    for batch in range(3):
        output.batch(sink, batch, {0: ["a"]})
    folder = output.root / "_penstock/s/ledger"
    (folder / f"{sink.ledger.head().n - 1:012d}").unlink()
    said = penstock("verify", output.root)
    assert said.status == 3
    assert f"{folder}" in said.err
    assert "a record is missing" in said.err


# -- records -----------------------------------------------------------------------------------------------------


def test_every_record_once(penstock: Callable[..., Said], pipeline: Callable[..., Pipeline]) -> None:
    """Two batches, the second starting within a file that the byte limit cut: everything that was read is proved to be there."""
    line = pipeline(source={"maxBytesPerTrigger": "30"}, sink_options={"rollSize": "20"})
    line.put("a.txt", "one", "two", "two", "", "three")
    line.put("b.txt", *(f"line {n}" for n in range(20)))
    line.run(finish=False)
    line.run(finish=False)
    facts = penstock("verify", line.dst, "--source", line.src, "--json").facts
    assert facts["ok"] is True
    assert facts["source"]["source_records"] == facts["source"]["output_records"] > 5
    assert (facts["source"]["waiting_files"], facts["source"]["notes"]) == (1, [])
    for _ in range(10):
        line.run()
    found = against(line.dst, line.src)
    assert (found.proved, found.source_records, found.waiting_files, found.notes) == (True, 25, 0, ())
    assert "exactly once" in penstock("verify", line.dst, "--source", line.src).out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "content", "count"),
    [
        ({"encoding": "latin-1", "lineSep": "§"}, "ä§b\nc§é".encode("latin-1"), 3),
        ({"encoding": "UTF-16LE", "lineSep": "\n"}, "ä\n\u0a31\u0100\nc".encode("utf-16-le"), 3),
        ({"encoding": "UTF-16"}, "ä\r\nb\rc\n".encode("utf-16"), 3),
        ({"encoding": "Shift_JIS", "lineSep": "|"}, "ポ|ソ|a".encode("shift_jis"), 3),
        ({"encodingErrors": "replace"}, b"caf\xe9\n\xf0\x9f\x98\n", 2),
    ],
)
@pytest.mark.parametrize("form", ["text", "json", "parquet", "orc", *WITH_AVRO])
def test_every_record_of_another_encoding_once(
    pipeline: Callable[..., Pipeline], options: dict[str, str], content: bytes, count: int, form: str
) -> None:
    """The source is read again as it was read: with its encoding, its separator and its treatment of invalid bytes."""
    line = pipeline(source=options | {"maxBytesPerTrigger": "4"}, sink_options={"format": form})
    line.put("a").write_bytes(content)
    os.utime(line.src / "a", (1_000_000, 1_000_000))
    for _ in range(12):
        line.run()
    proof = verify(str(line.dst), str(line.src))
    found = proof.source
    assert found is not None
    assert [sink.rows for sink in proof.output.sinks] == [count]  # whatever line breaks are in them
    lines = count + content.count(b"b\nc") * (form == "text")  # in text a value with a line break makes two lines
    assert (found.proved, found.reason, found.source_records) == (True, "", lines)
    told = f"text was compared and counted line by line: {lines} lines of {count} rows"
    assert (told in " ".join(found.notes)) == (lines > count)


def test_files_that_are_not_ingested_yet(penstock: Callable[..., Said], pipeline: Callable[..., Pipeline]) -> None:
    """Files newer than the checkpoint are reported as waiting, and not counted as missing."""
    line = pipeline()
    line.put("a.txt", "one")
    line.run()
    new = line.put("b.txt", "two")
    os.utime(new)
    said = penstock("verify", line.dst, "--source", line.src)
    assert said.status == 0
    assert "1 file not ingested yet (4 B)" in said.out


@pytest.mark.slow
def test_runs_in_different_time_zones(pipeline: Callable[..., Pipeline]) -> None:
    """Times without a zone were read in the zone of their run, even within one file: they are compared so, not in the last run's zone."""
    form = {"schema": JSON_SCHEMA, "sink_options": {"format": "json"}}
    line = pipeline(source={"format": "json", "maxBytesPerTrigger": "100"}, **form)
    rows = [f'{{"id": {number}, "at": "2026-07-01T12:00:{number:02d}"}}' for number in range(10)]
    for place, zone in enumerate(("Europe/Berlin", "Asia/Kolkata", "UTC")):
        line.put(f"{place}.json", *rows)
        later = pipeline(source=line.source | {"sessionTimeZone": zone}, **form)
        later.batch, later.offset, line = line.batch, line.offset, later
        line.run()
    for _ in range(20):
        line.run()
    found = against(line.dst, line.src)
    assert (found.proved, found.source_records, found.waiting_files) == (True, 30, 0)


def test_rows_that_were_published_as_text(penstock: Callable[..., Said], pipeline: Callable[..., Pipeline]) -> None:
    """Rows of an earlier version that no file can hold are compared while they are staged, and as the JSON that `finish` writes."""
    empty = {"name": "meta", "type": {"type": "struct", "fields": []}, "nullable": True, "metadata": {}}
    fields = [*json.loads(JSON_SCHEMA)["fields"], empty]
    schema = json.dumps({"type": "struct", "fields": fields})
    line = pipeline(source={"format": "json"}, schema=schema, sink_options={"format": "parquet"})
    line.put("a.json", '{"id": 1, "meta": {}}', '{"id": 2}')
    with patch.object(Layout, "check"):
        line.run(finish=False)
    staged = against(line.dst, line.src)
    assert (staged.proved, staged.output_records) == (True, 2)
    assert penstock("finish", line.dst, "--as-text").status == 0
    finished = against(line.dst, line.src)
    assert (finished.proved, finished.reason, finished.output_records) == (True, "", 2)


def test_a_file_that_came_too_late_is_missing(pipeline: Callable[..., Pipeline]) -> None:
    """A file further before the cursor than lateness allows is never read; verify does not hide that."""
    line = pipeline(source={"lateness": "1s"})
    line.put("a.txt", "one")
    line.run()
    old = line.put("b.txt", "late")
    os.utime(old, (1_000_000, 1_000_000))
    found = against(line.dst, line.src)
    assert [(e.kind, e.record, e.source_files) for e in found.examples] == [("missing", "late", (str(old),))]
    assert "came too late" in found.notes[0]


def test_a_late_file_inside_lateness_waits(pipeline: Callable[..., Pipeline]) -> None:
    """A file before the cursor that the next batch will read is told from one that was read."""
    line = pipeline()
    first = line.put("a.txt", "one")
    line.run()
    late = line.put("b.txt", "two")
    before = first.stat().st_mtime_ns - 10**9
    os.utime(late, ns=(before, before))
    found = against(line.dst, line.src)
    assert (found.proved, found.files, found.waiting_files) == (True, 1, 1)


CORRUPTIONS: dict[str, tuple[Callable[[list[str]], list[str]], list[tuple[str, str, int, int]]]] = {
    "missing": (lambda lines: [x for x in lines if x != "line 7"], [("missing", "line 7", 1, 0)]),
    "missing once": (lambda lines: lines[1:], [("missing", "same", 2, 1)]),
    "doubled": (lambda lines: [*lines, "line 3"], [("doubled", "line 3", 1, 2)]),
    "foreign": (lambda lines: [*lines, "what?"], [("foreign", "what?", 0, 1)]),
    "one for another": (
        lambda lines: ["line 4" if x == "line 5" else x for x in lines],
        [("missing", "line 5", 1, 0), ("doubled", "line 4", 1, 2)],
    ),
    "half a line": (
        lambda lines: ["line" if x == "line 6" else x for x in lines],
        [("missing", "line 6", 1, 0), ("foreign", "line", 0, 1)],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CORRUPTIONS)
def test_a_record_that_is_wrong(penstock: Callable[..., Said], pipeline: Callable[..., Pipeline], case: str) -> None:
    """A missing, doubled or foreign record fails the check, even if every file is whole, and is shown with its file."""
    corrupt, expected = CORRUPTIONS[case]
    line = pipeline(corrupt=corrupt)
    source = line.put("a.txt", "same", "same", *(f"line {n}" for n in range(50)))
    line.run()
    said = penstock("verify", line.dst, "--source", line.src, "--json")
    assert said.status == 1
    found = said.facts["source"]["examples"]
    assert [(e["kind"], e["record"], e["in_source"], e["in_output"]) for e in found] == expected
    for example in found:
        assert example["source_files"] == ([str(source)] if example["in_source"] else [])
        assert len(example["output_files"]) == bool(example["in_output"])
    human = penstock("verify", line.dst, "--source", line.src).out
    assert (
        f"{expected[0][0]} ({expected[0][2]} in the source, {expected[0][3]} in the output): {expected[0][1]}" in human
    )


def test_few_examples_of_many(pipeline: Callable[..., Pipeline]) -> None:
    """However much is wrong, at most five examples are shown, with some of each kind."""
    line = pipeline(corrupt=lambda lines: [*lines[100:], *lines[100:200], *(f"new {n}" for n in range(100))])
    line.put("a.txt", *(f"line {n}" for n in range(1000)))
    line.run()
    found = against(line.dst, line.src)
    assert {e.kind for e in found.examples} == {"missing", "doubled", "foreign"}
    assert len(found.examples) == 5


def test_a_second_ingest_doubles(pipeline: Callable[..., Pipeline]) -> None:
    """Two ingests with their own checkpoints into one directory: each is correct, but a reader sees all records twice."""
    for query in ("q", "again"):
        line = pipeline(query=query)
        line.put("a.txt", "one", "two")
        line.run()
    found = against(line.dst, line.src)
    assert (found.proved, found.source_records, found.output_records) == (False, 2, 4)
    assert {(e.kind, e.in_source, e.in_output) for e in found.examples} == {("doubled", 1, 2)}


@pytest.mark.parametrize(
    "others",
    [{"lineSep": ";"}, {"mode": "DROPMALFORMED"}, {"badRecords": "quarantine"}],
    ids=lambda given: next(iter(given)),
)
def test_sinks_that_read_records_otherwise(
    penstock: Callable[..., Said], pipeline: Callable[..., Pipeline], others: dict[str, str]
) -> None:
    """Two sinks that would read different records from one source are not compared together: the error names the difference."""
    for query, source in (("first", {}), ("second", others)):
        line = pipeline(
            query=query, source={"format": "json"} | source, schema=JSON_SCHEMA, sink_options={"format": "json"}
        )
        if query == "first":
            line.put("a.json", '{"id": 1}')
        line.run()
    said = penstock("verify", line.dst, "--source", line.src)
    assert said.status == 1
    assert "in different ways" in said.out + said.err


def test_two_ingests_of_different_files(pipeline: Callable[..., Pipeline]) -> None:
    """Two ingests that divide a source by patterns and write to one directory are proved together."""
    for query in ("a", "b"):
        line = pipeline(query=query, source={"pattern": f"{query}.*"})
        line.put(f"{query}.txt", "one", query)
        line.run()
    assert against(line.dst, line.src).proved


def test_what_is_open_or_owed_counts(pipeline: Callable[..., Pipeline]) -> None:
    """Committed records that are not visible yet, in open parts or in owed files, do not count as missing."""
    line = pipeline(sink_options={"rollSize": "12"})
    line.put("a.txt", *(f"line {n}" for n in range(9)))
    failpoints.arm("sink.publish.one=error@2")
    with pytest.raises(OSError, match="failpoint"):
        line.run(finish=False)
    failpoints.arm("")
    assert line.sink().ledger.head().open
    assert against(line.dst, line.src).proved


@pytest.mark.parametrize("finish", [False, True], ids=["stages", "publishes"])
def test_a_query_that_goes_on_while_its_output_is_compared(
    pipeline: Callable[..., Pipeline], monkeypatch: pytest.MonkeyPatch, *, finish: bool
) -> None:
    """After the files were looked at, the query commits a batch: which was told as missing. Or it publishes: what was staged is gone."""
    line = pipeline()
    line.put("a.txt", "one")
    line.run(finish=False)

    def looked(*given: Any) -> Any:
        found = check_files(*given)
        line.put("b.txt", "two")
        line.run(finish=finish)
        return found

    monkeypatch.setattr(proof, "check_files", looked)
    found = against(line.dst, line.src)
    assert found.proved, found
    assert found.source_records == (2 if finish else 1)


def test_a_query_that_publishes_faster_than_its_output_is_compared(
    penstock: Callable[..., Said], pipeline: Callable[..., Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said, with what to do; it was a staged file that does not exist, which looks like a loss."""
    line = pipeline()
    line.put("0.txt", "zero")
    line.run(finish=False)
    compared = against_.check_source

    def later(*given: Any) -> Any:
        line.put(f"{line.batch}.txt", "more")
        line.run()
        line.put(f"{line.batch}.txt", "more")
        line.run(finish=False)
        return compared(*given)

    with monkeypatch.context() as patched:
        patched.setattr(against_, "check_source", later)
        said = penstock("verify", line.dst, "--source", line.src)
    assert said.status == 1
    assert "publishes faster than its records can be compared; run the same command again" in said.err
    assert penstock("verify", line.dst, "--source", line.src).status == 0


FORMATS: dict[str, dict[str, str]] = {
    "json": {"format": "json"},
    "json gzip": {"format": "json", "compression": "gzip", "fileName": "x{seq}.log"},
    "csv": {"format": "csv"},
    "csv zstd": {"format": "csv", "compression": "zstd"},
    "csv header": {"format": "csv", "header": "true", "rollRows": "50"},
    "csv header gzip": {"format": "csv", "header": "true", "compression": "gzip"},
    "csv for spark": {"format": "csv", "escape": "\\", "header": "true", "bucketBy": "{at:%Y-%m}"},
    "csv null": {"format": "csv", "nullValue": "_x", "emptyValue": "a,b", "quote": "'"},
    "csv empty is null": {"format": "csv", "emptyValue": ""},
    "csv growing": {"format": "csv", "header": "true", "growing": "true", "fileName": "all.csv"},
    "parquet": {"format": "parquet"},
    "orc": {"format": "orc"},
    **{form: {"format": form} for form in WITH_AVRO},
    "buckets": {"format": "parquet", "bucketBy": "{at:%Y-%m}/city={city}"},
    "dropped": {"format": "csv", "bucketBy": "at={at:%Y}/city={city}", "dropBucketColumns": "true"},
    "batch time": {"format": "json", "bucketBy": "d={time:%Y}", "dropBucketColumns": "true"},
}


@pytest.mark.slow
@pytest.mark.parametrize("finish", [True, False])
@pytest.mark.parametrize("case", FORMATS)
def test_parsed_formats(pipeline: Callable[..., Pipeline], case: str, *, finish: bool) -> None:
    """Rows are compared in the output's format: every format, with and without compression, in buckets, open or finished."""
    line = pipeline(source={"format": "json"}, schema=JSON_SCHEMA, sink_options=FORMATS[case])
    chance = random.Random(case)  # noqa: S311 - test data
    cities = ["Köln", "", None, "a,b", 'q"q', "new\nline", "_x", "%2F/.."]
    rows = [
        {"id": n, "city": chance.choice(cities), "at": f"2026-0{n % 9 + 1}-01T00:00:00.123456Z"} for n in range(200)
    ]
    line.put("a.json", *map(json.dumps, rows))
    line.run(finish=finish)
    found = against(line.dst, line.src)
    assert (found.proved, found.reason, found.source_records) == (True, "", 200)
    assert bool(found.notes) == (case == "batch time")


@pytest.mark.parametrize("target", [{"format": "csv", "header": "true"}, {"format": "json"}, {"format": "parquet"}])
def test_a_source_of_another_dialect(pipeline: Callable[..., Pipeline], target: dict[str, str]) -> None:
    """For the comparison, escapes, comments, nulls and headers of the source are read as the ingest read them."""
    source = {"format": "csv", "escape": "\\", "header": "true", "comment": "#", "nullValue": "-", "delimiter": ";"}
    line = pipeline(source=source, schema=JSON_SCHEMA, sink_options=target)
    line.put("a.csv", '# made; "by', "city;at;id", r'"say \"a\";\\";2026-01-01;1', "#;;", "-;-;2", '"-";-;3')
    line.put("b.csv", "id;city;at", '4;"";')
    line.run()
    found = against(line.dst, line.src)
    assert (found.proved, found.source_records, found.output_records) == (True, 4, 4)


@pytest.mark.parametrize("published", [True, False])
def test_a_growing_output(pipeline: Callable[..., Pipeline], *, published: bool) -> None:
    """The records of a growing file count, and so do those that are committed and not appended to it yet."""
    line = pipeline(sink_options={"growing": "true", "fileName": "events.log", "bucketBy": "{value}"})
    line.put("a.txt", "one", "two", "two")
    line.run()
    new = line.put("b.txt", "two", "three")
    os.utime(new, ns=(new.stat().st_mtime_ns + 10**9,) * 2)
    if published:
        line.run()
    else:
        failpoints.arm("sink.publish.grow=error")
        with pytest.raises(OSError, match="failpoint"):
            line.run()
    found = against(line.dst, line.src)
    assert (found.proved, found.output_records, found.waiting_files) == (True, 5, 0)


@pytest.mark.parametrize(
    "options",
    [
        {"growing": "true", "fileName": "{value}.log"},
        {"fileName": "{value}-{seq}", "rollInactivity": "0s"},
        {"fileName": "{value}-{seq}", "bucketBy": "b={value}"},
    ],
)
def test_an_output_named_by_columns(pipeline: Callable[..., Pipeline], options: dict[str, str]) -> None:
    """Each record is in the file that it names, finished, growing or open: text is read as rows for the check, and all is proved."""
    line = pipeline(sink_options=options)
    line.put("a.txt", "one", "two", "two")
    line.run()
    new = line.put("b.txt", "two", "thr/ee")
    os.utime(new, ns=(new.stat().st_mtime_ns + 10**9,) * 2)
    line.run()
    found = against(line.dst, line.src)
    assert (found.proved, found.output_records) == (True, 5)
    paths = [path for path in line.dst.rglob("*.*") if "_penstock" not in path.parts]
    assert {re.split(r"[.-]", path.name)[0] for path in paths} == {"one", "two", "thr%2Fee"}
    assert {row for path in paths for row in path.read_text().split()} == {"one", "two", "thr/ee"}


@pytest.mark.parametrize("later", ["all-{seq}", "{value}+{seq}"])
def test_files_that_were_named_otherwise_before(pipeline: Callable[..., Pipeline], later: str) -> None:
    """A query that continued with another `fileName` has lost nothing: this is proved, with a note on what was not compared."""
    line = pipeline(sink_options={"fileName": "{value}-{seq}"})
    line.put("a.txt", "one", "two", "two")
    line.run()
    line.sink_options = {"fileName": later}
    new = line.put("b.txt", "two", "three")
    os.utime(new, ns=(new.stat().st_mtime_ns + 10**9,) * 2)
    line.run()
    found = against(line.dst, line.src)
    assert (found.proved, found.output_records) == (True, 5)
    assert any("another fileName" in note for note in found.notes)


@pytest.mark.parametrize(
    ("first", "later"),
    [("", "v={value}"), ("v={value}", ""), ("v={value}", "_{value}/x.tmp"), ("{value}", "all/{value}"), ("a/b", "c")],
)
def test_directories_that_were_named_otherwise_before(
    pipeline: Callable[..., Pipeline], first: str, later: str
) -> None:
    """A query that continued with another `bucketBy` has lost nothing: verify used to report all earlier rows as missing."""
    line = pipeline(sink_options={"bucketBy": first} if first else {})
    line.put("a.txt", "one", "two", "two")
    line.run()
    assert not against(line.dst, line.src).notes
    line.sink_options = {"bucketBy": later} if later else {}
    new = line.put("b.txt", "two", "three")
    os.utime(new, ns=(new.stat().st_mtime_ns + 10**9,) * 2)
    line.run()
    found = against(line.dst, line.src)
    assert (found.proved, found.output_records) == (True, 5)
    assert found.notes == ("directories were named by another bucketBy, too: where rows lie was not compared",)


@pytest.mark.parametrize("bucket", ["_{value}/x.tmp", ".a{value}", "{value}_COPYING_", "k={value}.tmp/[a]{value}"])
def test_directories_that_are_escaped_are_those_of_their_template(
    pipeline: Callable[..., Pipeline], bucket: str
) -> None:
    """Each row is expected in the directory that the template gives, whether or not the template escapes values."""
    line = pipeline(sink_options={"bucketBy": bucket})
    line.put("a.txt", "one", ".", "a/b", "x._COPYING_", "")
    line.run()
    found = against(line.dst, line.src)
    assert (found.proved, found.output_records, found.notes) == (True, 5, ())


@pytest.mark.parametrize(("first", "later"), [("text", "json"), ("json", "parquet"), ("csv", "avro")])
def test_files_of_another_format_before(
    penstock: Callable[..., Said], pipeline: Callable[..., Pipeline], first: str, later: str
) -> None:
    """For a query that continued with another `format`, the report names the file that cannot be compared and why, not only an error."""
    line = pipeline(sink_options={"format": first})
    line.put("a.txt", "one")
    line.run()
    line.sink_options = {"format": later}
    new = line.put("b.txt", "two")
    os.utime(new, ns=(new.stat().st_mtime_ns + 10**9,) * 2)
    line.run()
    (earlier,) = (path.name for path in line.dst.iterdir() if path.name.endswith(f"-0.{first.replace('text', 'txt')}"))
    said = penstock("verify", line.dst, "--source", line.src)
    assert said.status == 1
    assert f"{earlier!r} of the output is not as format={later}" in said.out
    assert "an earlier run had another format: such runs need a DST each" in said.out


def run_as_well(line: Pipeline, *lines: str) -> None:
    """Run with one more file, newer than the others."""
    new = line.put("b.txt", *lines)
    os.utime(new, ns=(new.stat().st_mtime_ns + 10**9,) * 2)
    line.run()


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ({"bucketBy": "d={id}"}, {"bucketBy": "d={city}"}),
        ({"bucketBy": "d={at:%H}"}, {"bucketBy": "d={at:%H}", "timeZone": "Asia/Kolkata"}),
        ({"fileName": "{id}-{seq}"}, {"fileName": "{city}-{seq}"}),
    ],
)
def test_places_that_look_alike_were_named_otherwise_before(
    pipeline: Callable[..., Pipeline], first: dict[str, str], later: dict[str, str]
) -> None:
    """Names of the same shape prove nothing: the notes show that an earlier run used another column, or another zone.

    Verify used to report all earlier rows as missing where they should be and as foreign where they are.
    """
    line = pipeline(source={"format": "json"}, sink_options={"format": "json", **first}, schema=JSON_SCHEMA)
    line.put("a.txt", '{"id": 1, "city": "2", "at": "2026-01-01T00:00:00Z"}')
    line.run()
    assert not against(line.dst, line.src).notes
    line.sink_options = {"format": "json", **later}
    run_as_well(line, '{"id": 3, "city": "4", "at": "2026-01-01T00:00:00Z"}')
    line.run()
    line.run()  # drivers that change nothing must not make the notes forget
    found = against(line.dst, line.src)
    assert (found.proved, found.output_records) == (True, 2)
    assert any("were named by another" in note for note in found.notes)


def test_input_that_was_read_otherwise_before(pipeline: Callable[..., Pipeline]) -> None:
    """If the last run's options cannot read an input that an earlier run could, it is not reported as damaged, with advice to mend it."""
    line = pipeline(source={"format": "csv"}, sink_options={"format": "json"}, schema=JSON_SCHEMA)
    line.put("a.txt", "1,a,")
    line.run()
    later = replace(line, source={"format": "csv", "sep": ";"})
    later.batch, later.offset = line.batch, line.offset
    run_as_well(later, "2;b;")
    found = against(line.dst, line.src)
    assert not found.proved
    assert "a.txt', byte 0: found '1,a,', expected 3 fields" in found.reason
    assert "an earlier run had another source.sep: such runs need a DST each" in found.reason
    assert "mend" not in found.reason


def test_a_row_in_the_wrong_bucket(pipeline: Callable[..., Pipeline]) -> None:
    """A row belongs to its bucket: the same rows with two buckets exchanged are not the same output."""
    rows = {bucket: pa.RecordBatch.from_pydict({"id": [ids]}) for bucket, ids in (("a", 1), ("b", 2))}
    right = sums.Sums.of("a", rows["a"]) + sums.Sums.of("b", rows["b"])
    wrong = sums.Sums.of("b", rows["a"]) + sums.Sums.of("a", rows["b"])
    assert right != wrong
    assert right.records == wrong.records
    line = pipeline(sink_options={"bucketBy": "{value}"})
    line.put("a.txt", "a", "b", "b")
    line.run()
    assert against(line.dst, line.src).proved


def test_a_plain_query(penstock: Callable[..., Said], pipeline: Callable[..., Pipeline]) -> None:
    """A query without a noted stage is compared as lines of text, with a note; a recursive source is recognised."""
    line = pipeline(source={"recursiveFileLookup": "true"})
    line.put("below/a.txt", "one", "two")
    line.noted = None
    line.run()
    found = penstock("verify", line.dst, "--source", line.src, "--json").facts
    assert found["ok"] is True
    assert "this was no ingest" in found["source"]["notes"][0]
    assert found["source"]["source_records"] == 2


CANNOT: dict[str, tuple[dict[str, str], str | None, str]] = {
    "plain json": ({"format": "json"}, None, "how its rows follow from the source is not noted"),
    "function": ({}, "pickle:gASVAA==", "was a Python function, which is not noted"),
    "module": ({}, "nowhere:f", "--transform nowhere:f"),
}


@pytest.mark.parametrize("case", CANNOT)
def test_what_cannot_be_told(penstock: Callable[..., Said], pipeline: Callable[..., Pipeline], case: str) -> None:
    """If it is unknown how the output was made from the source, nothing is proved, the reason is given, and the status is 1."""
    options, transform, reason = CANNOT[case]
    line = pipeline(sink_options=options)
    line.put("a.txt", "one")
    line.noted = json.dumps({**json.loads(line.stage.text), "transform": transform}) if transform else None
    line.run()
    said = penstock("verify", line.dst, "--source", line.src, "--json")
    assert said.status == 1
    assert said.facts["source"]["proved"] is False
    assert reason in said.facts["source"]["reason"]
    assert reason in penstock("verify", line.dst, "--source", line.src).out


def test_a_transform_that_calls_a_service(penstock: Callable[..., Said], pipeline: Callable[..., Pipeline]) -> None:
    """verify never calls a service again just to compare: the files are verified, the records are not, and the answer says why."""
    pytest.importorskip("pyspark")
    line = pipeline()
    line.put("a.txt", "one")
    line.noted = json.dumps({**json.loads(line.stage.text), "transform": "tests.support.calls:calls"})
    line.run()
    said = penstock("verify", line.dst, "--source", line.src, "--transform", "tests.support.calls:calls", "--json")
    assert said.status == 1
    assert said.facts["source"]["proved"] is False
    reason = said.facts["source"]["reason"]
    assert "'tests.support.calls:calls' makes asynchronous calls" in reason
    assert "verify DST alone" in reason
    assert penstock("verify", line.dst).status == 0


def test_a_source_that_starts_from_latest(pipeline: Callable[..., Pipeline]) -> None:
    """Files older than a query that starts from the latest are not noted, so nothing is proved."""
    line = pipeline(source={"startingFrom": "latest"})
    line.put("a.txt", "one")
    line.run()
    line.sink().begin("driver")
    assert "startingFrom=latest" in against(line.dst, line.src).reason


def test_nothing_is_compared_with_files_that_are_broken(pipeline: Callable[..., Pipeline]) -> None:
    """If a file is missing, the records are not compared too: the report of the file is enough."""
    line = pipeline()
    line.put("a.txt", "one")
    line.run()
    next(line.dst.glob("*.txt")).unlink()
    assert "are missing, so records were not compared" in against(line.dst, line.src).reason


def test_a_source_that_is_not_there(penstock: Callable[..., Said], written: Output) -> None:
    """A source that does not exist is a usage error."""
    said = penstock("verify", written.root, "--source", written.root / "nowhere")
    assert said.status == 2
    assert "does not exist" in said.err


def test_a_directory_that_was_moved(pipeline: Callable[..., Pipeline]) -> None:
    """Source and output may have been moved together with the checkpoint: times and relative names tell what was read."""
    line = pipeline()
    line.checkpoint = line.dst / "_penstock" / "checkpoint"
    line.put("a.txt", "one")
    line.run()
    line.put("b.txt", "two")
    os.utime(line.src / "b.txt")
    line.src.rename(line.root / "moved-in")
    line.dst.rename(line.root / "moved-out")
    found = against(line.root / "moved-out", line.root / "moved-in")
    assert (found.proved, found.source_records, found.waiting_files, found.notes) == (True, 1, 1, ())


def test_without_its_checkpoint(pipeline: Callable[..., Pipeline]) -> None:
    """Without a checkpoint all files count as read, and the answer says so, above all where one of them is not in the output."""
    line = pipeline()
    line.put("a.txt", "one")
    line.run()
    shutil.rmtree(line.checkpoint)
    found = against(line.dst, line.src)
    assert found.proved
    assert "every file of the source is taken to be ingested" in found.notes[0]
    line.put("b.txt", "two")
    found = against(line.dst, line.src)
    assert not found.proved
    assert "which of them were read is unknown, because the checkpoint is not where it was" in found.reason


# -- sums --------------------------------------------------------------------------------------------------------


def test_sums_do_not_depend_on_order_or_cuts() -> None:
    """The same lines in another order and in other pieces have the same sums; a line more, less or changed gives other sums."""
    chance = random.Random(1)  # noqa: S311 - test data
    lines = [f"line {chance.randrange(500)}\n".encode() for _ in range(1000)]
    whole = sums.Sums.of("", sums.lines(b"".join(lines)))
    chance.shuffle(lines)
    pieces = [sums.Sums.of("", sums.lines(b"".join(lines[at : at + 7]))) for at in range(0, 1000, 7)]
    assert sum(pieces, sums.Sums()) == whole
    for other in (lines[1:], [*lines, lines[0]], [*lines[1:], b"other\n"]):
        assert sums.Sums.of("", sums.lines(b"".join(other))) != whole


def test_a_line_that_lacks_its_end_is_another_record() -> None:
    """A last line without a line feed, as in a truncated file, differs from the whole line that it was the beginning of."""
    assert sums.lines(b"a\nb").num_rows == 2
    assert sums.Sums.of("", sums.lines(b"a\nb")) != sums.Sums.of("", sums.lines(b"a\nb\n"))
    assert sums.Sums.of("", sums.lines(b"")) == sums.Sums()


def test_rotated_files_that_the_pattern_leaves_out_are_compared(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said]
) -> None:
    """Records read from `app.log.1` are compared although `*.log` does not match it, both while it is followed and after that."""
    made = pipeline(source={"follow": "true", "pathGlobFilter": "*.log", "closeAfter": "10s"})
    log = made.put("app.log", "1")
    made.run()
    for number in range(2):
        with log.open("a") as file:
            file.write("rest\n")
        log.rename(made.src / f"app.log.{number}")
        made.put("app.log", "new", str(number))
        made.run()
        said = penstock("verify", made.dst, "--source", made.src)
        assert (said.status, f"{number + 2} files read" in said.out) == (0, True), said.out
    assert "7 rows" in said.out
    (made.src / "app.log.0").write_text("1\nlost\n")
    assert penstock("verify", made.dst, "--source", made.src).status == 1


def test_followed_files_that_stand_still_are_compared(
    pipeline: Callable[..., Pipeline], penstock: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of closed files may be next to the checkpoint: losses in these files are found, and a missing list is reported."""
    monkeypatch.setattr(sides, "INLINE_BYTES", 0)
    made = pipeline(source={"follow": "true", "closeAfter": "10s"})
    made = pipeline(source=made.source | {"stateLocation": f"{made.checkpoint}/penstock"})
    made.put("a.log", "1", "2")
    made.put("b.log", "3")
    made.run()
    said = penstock("verify", made.dst, "--source", made.src)
    assert (said.status, "2 files read, 3 records" in said.out) == (0, True), said.out
    made.put("a.log", "1", "x", "2")
    assert penstock("verify", made.dst, "--source", made.src).status == 1
    made.put("a.log", "1", "2")
    for side in (made.checkpoint / "penstock").rglob("plan-*"):
        side.unlink()
    said = penstock("verify", made.dst, "--source", made.src)
    assert (said.status, "were not compared" in said.out) == (1, True), said.out


def test_what_a_record_says_of_a_growing_file_is_not_compared(pipeline: Callable[..., Pipeline]) -> None:
    """The size in `metadataColumn` is that at the moment of reading; records are compared without it, and another one is found."""
    form = '{"type":"struct","fields":[%s]}'
    fields = ["path", "string", "modified", "timestamp", "size", "long", "offset", "long"]
    inner = ",".join(
        f'{{"name":"{name}","type":"{kind}","nullable":true,"metadata":{{}}}}'
        for name, kind in zip(fields[::2], fields[1::2], strict=True)
    )
    columns = '{"name":"id","type":"long","nullable":true,"metadata":{}}'
    columns += f',{{"name":"_meta","type":{form % inner},"nullable":true,"metadata":{{}}}}'
    source = {"format": "json", "follow": "true", "metadataColumn": "_meta"}
    made = pipeline(source=source, sink_options={"format": "json"}, schema=form % columns)
    log = made.put("a.json", '{"id": 1}')
    made.run()
    with log.open("a") as file:
        file.write('{"id": 2}\n')
    made.run()
    found = against(made.dst, made.src)
    assert (found.proved, found.source_records, found.output_records) == (True, 2, 2), found
    assert any("'_meta'" in note for note in found.notes)
    for finished in made.dst.glob("part-*"):
        finished.write_text(finished.read_text().replace('"id":1', '"id":3'))
    assert not against(made.dst, made.src).proved
