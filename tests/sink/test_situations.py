"""Situations from other sinks' test suites, restated: what a reader sees, and what is kept for the next driver. Without Spark."""

from __future__ import annotations

import json
import os
import pickle
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as pads
import pytest

from penstock import failpoints
from penstock.errors import OptionError, PublishConflict, StorageError
from penstock.formats.codecs import decompressed
from penstock.sink.byteparts import BytePart
from penstock.sink.events import EventLog, EventPosition
from penstock.sink.ledger import FinishedFile
from penstock.sink.sink import Batch, Sink
from penstock.sink.tableparts import ArrowPart
from penstock.sink.taken import TakenNames
from penstock.storage import LocalStorage, Storage
from penstock.testing import FakeClock, ObjectStore, visible
from tests.support.extras import WITH_AVRO
from tests.support.output import QUERY, Output
from tests.support.scene import rows

VALUE_AND_BUCKET = pa.schema([("value", pa.string()), ("b", pa.string())])
HEADERS = {"csv": {"header": "true"}}
BY_BUCKET = {"format": "csv", "bucketBy": "{b}", "dropBucketColumns": "true"}


def named(sink: Sink) -> list[str]:
    """Return the staged files that the last record names."""
    return sorted({segment.file for part in sink.ledger.head().open for segment in part.segments})


def seen(output: Output, sink: Sink) -> list[str]:
    """Return the values of all visible files, of any format, in any storage: those of a file in their order."""
    found = rows(visible(sink.storage, str(output.root))).elements()
    return [json.loads(row)["value"] if row.startswith("{") else row for row in found]


def dies(output: Output, sink: Sink, number: int, lines: list[str], at: str, owner: str = "d1") -> None:
    """Run a batch that fails at a failpoint after its tasks have begun."""
    batch = Batch(QUERY, number)
    begun = sink.begin(owner, batch)
    failpoints.arm(f"{at}=error")
    with pytest.raises(OSError, match="failpoint"):
        sink.commit(batch, output.write(sink, begun, number, {0: lines}))
    failpoints.arm("")


@pytest.mark.parametrize("restarted", [False, True])
def test_what_an_open_part_needs_is_kept_and_nothing_else(output: Output, restarted: bool) -> None:
    """S1, S2, S4, S11: after each batch exactly the staged files that the last record names are there, and none after the end."""
    for number, lines in enumerate([["a"], [], ["b"], ["c", "d"], []]):
        sink = output.sink(rollRows="3", fileName="p{seq}")
        output.batch(sink, number, {0: lines}, owner=f"d{number}" if restarted else "d1")
        assert output.staged() == named(sink)
    assert len(named(sink)) == 1
    output.batch(sink, 5, {0: []}, final=True)
    assert (output.staged(), output.visible()) == ([], {"p0.txt": "a\nb\nc\n", "p1.txt": "d\n"})


@pytest.mark.parametrize("storage", [LocalStorage, lambda: ObjectStore().storage()], ids=["disk", "objects"])
@pytest.mark.parametrize("name", ["text", "parquet"])
def test_open_parts_go_on_where_nothing_can_be_appended(
    output: Output, storage: Callable[[], Storage], name: str
) -> None:
    """S5, S6, S16, S49: a part goes on after a restart in the same way whether its storage can append or not, and two are merged."""
    output.storage = storage()
    options = {"format": name, "fileName": "p{seq}", "rollRows": "3", "mergeBelow": "1m"}
    output.batch(output.sink(**options), 0, {0: ["a"], 1: ["b"]})
    sink = output.sink(**options)
    output.batch(sink, 1, {0: ["c"]}, owner="d2", final=True)
    assert [file.rows for file in sink.ledger.history()] == [3]
    assert sorted(seen(output, sink)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("options", "lines", "files"),
    [
        ({"rollRows": "1"}, ["1", "2", "3"], ["1", "2", "3"]),
        ({"rollSize": "7"}, ["abcde"], []),
        ({"rollSize": "6"}, ["abcde"], ["abcde"]),
        ({"rollSize": "12"}, ["abcde", "abcde", "x"], ["abcde abcde"]),
        ({"rollSize": "11"}, ["abcde", "abcde", "x"], ["abcde"]),
        ({"rollSize": "1"}, ["", "", "a", ""], ["", "", "a", ""]),
    ],
    ids=str,
)
def test_limits_at_their_exact_bound(
    output: Output, options: dict[str, str], lines: list[str], files: list[str]
) -> None:
    """S10: a file that is exactly full is closed at once; one that has room for one more byte stays open."""
    output.batch(output.sink(fileName="p{seq}", **options), 0, {0: lines})
    assert [" ".join(text.splitlines()) for text in output.visible().values()] == files


def test_a_part_of_two_rows_in_two_tasks_that_become_one(output: Output) -> None:
    """S18: room for 2 rows; one task wrote 1, the other 3; restarted as one task, it goes on with its part, and no number comes twice."""
    options = {"rollSize": "12", "fileName": "p-{writer}-{seq}"}
    output.batch(output.sink(**options), 0, {0: ["test1"], 1: ["test1"] * 3})
    assert output.visible() == {"p-1-0.txt": "test1\ntest1\n"}
    sink = output.sink(**options)
    output.batch(sink, 1, {0: ["test2"]}, owner="d2")
    assert output.visible() == {"p-1-0.txt": "test1\ntest1\n", "p-0-0.txt": "test1\ntest2\n"}
    output.batch(sink, 2, {0: []}, owner="d2", final=True)
    assert output.lines() == ["test1"] * 4 + ["test2"]
    assert len(output.visible()) == 3


def test_a_bucket_without_a_part_is_forgotten(output: Output, time: FakeClock) -> None:
    """S19, S20, S27: a part is closed by its age; nothing of its bucket is kept but the next number."""
    output.schema = VALUE_AND_BUCKET
    sink = output.sink(**BY_BUCKET, rollInterval="2s", fileName="p{seq}")
    time.seconds += 3
    output.batch(sink, 0, {0: ["1|test1"]})
    time.seconds += 4
    sink.roll("d1")
    output.batch(sink, 1, {0: ["2|test2"]})
    head = sink.ledger.head()
    assert ([part.bucket for part in head.open], head.sequence(0)) == (["test2"], 1)
    assert output.visible() == {"test1/p0.csv": "1\n"}


@pytest.mark.parametrize("at", ["sink.ledger.after-put", "sink.publish.one", "sink.publish.before-note"])
def test_several_drivers_die_after_their_decision(output: Output, at: str) -> None:
    """S15, S17, S35: each of four drivers dies before it has published: the next one does it, and a start leaves nothing pending."""
    options = {"rollBatches": "1", "fileName": "p{seq}"}
    for number in range(4):
        dies(output, output.sink(**options), number, [f"test{number}"], at, owner=f"d{number}")
        assert set(output.visible()) >= {f"p{n}.txt" for n in range(number)}
    sink = output.sink(**options)
    sink.begin("last", Batch(QUERY, 4))
    assert output.visible() == {f"p{n}.txt": f"test{n}\n" for n in range(4)}
    assert (named(sink), output.staged()) == ([], [])


def test_what_a_driver_leaves_open_is_not_visible(output: Output) -> None:
    """S36: three buckets are closed with their batch; one more row comes, and the query dies: the row is not visible before `finish`."""
    output.schema = VALUE_AND_BUCKET
    output.batch(output.sink(**BY_BUCKET, rollBatches="1"), 0, {0: [f"{b}|test{b}" for b in "123"]})
    sink = output.sink(**BY_BUCKET)
    output.batch(sink, 1, {0: ["4|test1"]})
    assert output.lines() == ["1", "2", "3"]
    Sink.existing(sink.storage, sink.root, "s").finish()
    assert output.lines() == ["1", "2", "3", "4"]


@pytest.mark.parametrize(("below", "files"), [("1m", [2, 2, 1]), ("1", [1] * 5)])
def test_two_writers_of_shared_buckets_become_one(output: Output, below: str, files: list[int]) -> None:
    """S25, S26, S37: one writer has buckets 1, 2, 3, another 1 and 2; the next run has one writer, and closes all."""
    output.schema = VALUE_AND_BUCKET
    options = BY_BUCKET | {"mergeBelow": below}
    sink = output.sink(**options)
    output.batch(sink, 0, {0: [f"a|{b}" for b in "123"], 1: [f"b|{b}" for b in "12"]})
    assert Counter(part.bucket for part in sink.ledger.head().open) == {"1": 2, "2": 2, "3": 1}
    sink = output.sink(**options)
    output.batch(sink, 1, {0: []}, owner="d2", final=True)
    assert sorted((file.rows for file in sink.ledger.history()), reverse=True) == files
    assert output.lines() == ["a"] * 3 + ["b"] * 2


def test_events_of_buckets_that_roll_apart(output: Output, time: FakeClock) -> None:
    """S23, S24, B21: each closed file is told once with its exact path, closed by age, by size and by the end; names never meet."""
    output.schema = VALUE_AND_BUCKET
    options = BY_BUCKET | {"rollInterval": "2s", "rollSize": "4", "fileName": "part-{writer}-{seq}"}
    sink = output.sink(**options)
    time.seconds += 2
    output.batch(sink, 0, {0: ["1|test1"]})
    time.seconds += 1
    output.batch(sink, 1, {0: ["1|test2"]})
    time.seconds += 1
    sink.roll("d1")
    output.batch(sink, 2, {0: ["2|test1", "2|test2"]})
    output.batch(output.sink(**options), 3, {0: ["3|test1"]}, owner="d2", final=True)
    told = [event.path for event in EventLog(sink.ledger, "s", "it").after(EventPosition()) if event.is_shown]
    assert told == ["test1/part-0-0.csv", "test2/part-0-1.csv", "test1/part-0-2.csv"]
    assert list(output.visible().items()) == [
        ("test1/part-0-0.csv", "1\n"),
        ("test1/part-0-2.csv", "2\n3\n"),
        ("test2/part-0-1.csv", "1\n2\n"),
    ]


def test_rows_are_counted(output: Output) -> None:
    """S29: 0 rows, then 1, then 3: what a commit tells and what the record has add up."""
    sink = output.sink()
    counts = [output.batch(sink, n, {0: lines}).rows for n, lines in enumerate([[], ["a"], ["b", "c"]])]
    assert (counts, sink.ledger.head().total_rows) == ([0, 1, 2], 3)


@pytest.mark.parametrize("options", [{}, {"format": "csv", "header": "true"}, {"compression": "gzip"}], ids=str)
@pytest.mark.parametrize("growing", [False, True])
def test_no_rows_make_no_file(output: Output, options: dict[str, str], growing: bool) -> None:
    """S39, S42: opened and closed without rows, even where a file would begin with a header: nothing is visible or staged."""
    sink = output.sink(**options, **({"growing": "true", "fileName": "all"} if growing else {}))
    output.batch(sink, 0, {0: [], 1: []})
    output.batch(sink, 1, {}, final=True)
    assert (output.visible(), output.staged()) == ({}, [])


@pytest.mark.parametrize("name", ["text", "json", "csv", "parquet", "orc", *WITH_AVRO])
@pytest.mark.parametrize(
    ("stopped", "expected"), [(0, ["D3"]), (1, ["D1", "D3"]), (2, ["D1", "D3"]), (3, ["D1", "D2", "D3"])]
)
def test_stopped_between_any_two_rows(output: Output, name: str, stopped: int, expected: list[str]) -> None:
    """S43, S44: stopped with nothing written, after D1, again at once, and after D2, then D3: one file of what was committed and D3."""
    options = {"format": name, "fileName": "p{seq}"} | HEADERS.get(name, {})
    for number, lines in enumerate([["D1"], [], ["D2"]][:stopped]):
        output.batch(output.sink(**options), number, {0: lines}, owner=f"d{number}")
    sink = output.sink(**options)
    output.write(sink, sink.begin("dead", Batch(QUERY, stopped)), stopped, {0: ["lost"]})
    sink = output.sink(**options)
    output.batch(sink, stopped, {0: ["D3"]}, owner="last", final=True)
    assert seen(output, sink) == expected
    assert len(list(sink.ledger.history())) == 1


def test_a_file_that_is_closed_takes_no_more(output: Output) -> None:
    """S46: what was staged is immutable: a write after the file was completed is refused."""
    output.root.mkdir()
    with output.storage.create(f"{output.root}/x") as file:
        file.write(b"a")
        file.sync()
    with pytest.raises(StorageError):
        file.write(b"b")
    assert (output.root / "x").read_bytes() == b"a"


@pytest.mark.parametrize(("before", "after"), [("1m", "1"), ("1", "1m")])
def test_merging_is_switched_while_parts_are_open(output: Output, before: str, after: str) -> None:
    """C9: with merging switched off a task closes its own part, and with it on all are one file; no row is lost or hidden."""
    output.batch(output.sink(mergeBelow=before), 0, {w: [f"r{w}"] for w in range(3)})
    sink = output.sink(mergeBelow=after)
    output.batch(sink, 1, {0: ["s"]}, owner="d2", final=True)
    assert [file.rows for file in sink.ledger.history()] == ([4] if after == "1m" else [2, 2])
    assert output.lines() == ["r0", "r1", "r2", "s"]


def test_one_file_for_each_batch(output: Output) -> None:
    """M19: one file a batch, named after it; batch 1 dies and is repeated with other rows: its file has only those."""
    options = {"rollBatches": "1", "fileName": "{batch}-{seq}"}
    output.batch(output.sink(**options), 0, {0: ["0", "0"]})
    dies(output, output.sink(**options), 1, ["1", "2", "3"], "sink.ledger.before-put")
    output.batch(output.sink(**options), 1, {0: ["1", "1", "1"]}, owner="d2")
    assert output.visible() == {"0-0.txt": "0\n0\n", "1-1.txt": "1\n1\n1\n"}


@pytest.mark.parametrize(
    "options",
    [
        {"format": "avro", "compression": "none"},
        {"format": "avro", "compression": "snappy"},
        {"format": "orc"},
        {"format": "parquet", "compression": "none"},
        {"format": "json", "compression": "zstd"},
        {"format": "csv", "compression": "gzip", "header": "true"},
    ][0 if WITH_AVRO else 2 :],
    ids=str,
)
def test_rows_come_back_in_their_order(output: Output, options: dict[str, str]) -> None:
    """B10: twenty rows over four batches are in one file, in their order, with and without compression."""
    sink = output.sink(fileName="p{seq}", **options)
    for number in range(4):
        output.batch(sink, number, {0: [f"message #{number * 5 + i}" for i in range(5)]}, final=number == 3)
    (path,) = (path for path in output.root.iterdir() if path.name.startswith("p0"))
    assert seen(output, sink) == [f"message #{i}" for i in range(20)]
    assert path.stat().st_size == sink.ledger.head().finished[0].bytes


def test_a_bucket_of_ones_own(output: Output) -> None:
    """B12: the bucket of a row is its number modulo 4: four files of five rows."""
    output.schema = VALUE_AND_BUCKET
    output.batch(output.sink(**BY_BUCKET), 0, {0: [f"{i}|{i % 4}" for i in range(20)]}, final=True)
    assert sorted(len(text.splitlines()) for text in output.visible().values()) == [5] * 4


def test_a_copy_of_a_sink_writes_the_same(output: Output, tmp_path: Path) -> None:
    """B30: tasks get a copy: with every option of its original it writes the same bytes."""
    options = {"format": "csv", "header": "true", "escape": "\\", "emptyValue": "-"}
    texts = []
    for copied in (False, True):
        output.root = tmp_path / f"{copied}"
        sink: Any = output.sink(fileName="p", growing="true", **options)
        sink = pickle.loads(pickle.dumps(sink)) if copied else sink  # noqa: S301 - our own
        output.batch(sink, 0, {0: ['a"b', ""]}, final=True)
        texts.append((output.root / "p.csv").read_bytes())
    assert texts == [b'value\n"a\\"b"\n-\n'] * 2


def test_strangers_find_only_finished_files(output: Output) -> None:
    """F38: tools that go by patterns or by all files below a directory find no staged file and no record among open parts."""
    sink = output.sink(format="parquet", rollRows="2", bucketBy="b={value}", fileName="p{seq}")
    output.batch(sink, 0, {0: ["x", "x", "x", "y"]})
    assert output.staged() != []
    found = {str(path.relative_to(output.root)) for path in output.root.rglob("*.parquet")}
    assert found == {"b=x/p0.parquet"}
    everything = duckdb.connect().execute(f"select value from read_parquet('{output.root}/**/*.parquet')").fetchall()
    assert (everything, pads.dataset(output.root, format="parquet").count_rows()) == ([("x",), ("x",)], 2)


@pytest.mark.parametrize("of_their_own", [False, True])
@pytest.mark.parametrize("name", ["text", "parquet"])
def test_a_full_disk_is_not_kept_full_by_what_failed(
    output: Output, monkeypatch: pytest.MonkeyPatch, name: str, of_their_own: bool
) -> None:
    """F32: a task finds no space, or its source fails: what it has staged is removed at once, so that a restart has room for its claim."""
    if of_their_own:
        monkeypatch.setattr(BytePart, "stage_bytes", 1)
        monkeypatch.setattr(ArrowPart, "stage_bytes", 1)
    sink = output.sink(format=name, rollRows="2", fileName="p{seq}")
    output.batch(sink, 0, {0: ["a"]})
    kept = output.staged()
    for at in ("storage.write=nospace@2", "storage.sync=nospace", "sink.write.staged=error", "storage.create=error@2"):
        begun = sink.begin("d1", Batch(QUERY, 1))
        failpoints.arm(at)
        with suppress(OSError, StorageError):  # not each is met by each form
            sink.abort(output.write(sink, begun, 1, {0: ["b", "c", "d"]}))
        failpoints.arm("")
        assert output.staged() == kept, at
    output.batch(sink, 1, {0: ["b"]}, final=True)
    assert sorted(seen(output, sink)) == ["a", "b"]


@pytest.mark.parametrize("kind", ["file", "directory", "pipe", "link", "link that leads nowhere"])
def test_a_name_is_taken_whatever_has_it(output: Output, kind: str) -> None:
    """B15: whatever somebody else has put under the next name stays, and the next number is used, before anything is decided."""
    output.root.mkdir()
    taken = output.root / "p0.txt"
    makes: dict[str, Callable[[], object]] = {
        "file": lambda: taken.write_text("theirs"),
        "directory": taken.mkdir,
        "pipe": lambda: os.mkfifo(taken),
        "link": lambda: taken.symlink_to(output.root),
        "link that leads nowhere": lambda: taken.symlink_to("/nowhere"),
    }
    makes[kind]()
    before = os.lstat(taken)
    sink = output.sink(rollBatches="1", fileName="p{seq}")
    output.batch(sink, 0, {0: ["a"]})
    assert [file.path for file in sink.ledger.history()] == ["p1.txt"]
    assert (output.root / "p1.txt").read_text() == "a\n"
    assert (os.lstat(taken).st_ino, os.lstat(taken).st_mode) == (before.st_ino, before.st_mode)


@pytest.mark.parametrize("columns", [["value"], ["b", "value"], ["value", "b", "c"]], ids=len)
@pytest.mark.parametrize(("compression", "ending"), [("none", ""), ("gzip", ".gz"), ("zstd", ".zst")])
def test_a_growing_file_keeps_the_columns_of_its_header(
    output: Output, columns: list[str], compression: str, ending: str
) -> None:
    """Rows of other columns than the header of a growing file names were appended below it; nothing is decided, and both ways out work."""
    grows = {"growing": "true", "format": "csv", "header": "true", "compression": compression}
    output.schema = VALUE_AND_BUCKET
    output.batch(output.sink(**grows, fileName="e"), 0, {0: ["1|x"]})
    output.schema = pa.schema([(name, pa.string()) for name in columns])
    others = {0: ["|".join("2" for _ in columns)]}
    with pytest.raises(OptionError, match=r"e\.csv.*' in .* begins with the header 'value,b'.*set another fileName"):
        output.batch(output.sink(**grows, fileName="e"), 1, others, owner="d2")
    output.batch(output.sink(**grows, fileName="f"), 1, others, owner="d3")
    output.schema = VALUE_AND_BUCKET
    output.batch(output.sink(**grows, fileName="e"), 2, {0: ["3|y"]}, owner="d4")
    read = {path: whole(output.root / path, compression) for path in (f"e.csv{ending}", f"f.csv{ending}")}
    assert read[f"e.csv{ending}"] == "value,b\n1,x\n3,y\n"
    assert read[f"f.csv{ending}"].splitlines()[0] == ",".join(columns)


def test_a_growing_file_that_was_rotated_away_is_told_and_goes_on_once_it_is_back(output: Output) -> None:
    """A tool for logs renames the file: the message spoke of a file of 0 bytes that somebody had cut."""
    sink = output.sink(growing="true", fileName="e.log")
    output.batch(sink, 0, {0: ["a"]})
    (output.root / "e.log").rename(output.root / "e.log.1")
    with pytest.raises(
        PublishConflict, match=r"e\.log' is not there, and the ledger says that it has 2 bytes.*put it back"
    ):
        output.batch(sink, 1, {0: ["b"]})
    (output.root / "e.log.1").rename(output.root / "e.log")
    output.batch(sink, 1, {0: ["b"]})
    assert output.visible() == {"e.log": "a\nb\n"}


@pytest.mark.parametrize("root", ["/", "{tmp}", "{tmp}/linked", "{tmp}/linked/../out"])
def test_a_name_is_free_however_the_output_is_written(root: str, tmp_path: Path) -> None:
    """In the root of the file system, below a link, and by a path with dots, a name that nobody has is not taken for a link."""
    (tmp_path / "out").mkdir()
    (tmp_path / "linked").symlink_to("out")
    names = TakenNames(LocalStorage(), root.format(tmp=tmp_path))
    file = FinishedFile("no-file-has-this-name.txt", "", 1, 7, "", 0, 0, "000000000001-0-0-x.part")
    assert not names.meets([file])
    assert not names.taken


def whole(path: Path, compression: str) -> str:
    """Return the text of a file, plain or compressed."""
    chunks = [path.read_bytes()]
    pieces = chunks if compression == "none" else decompressed(chunks, compression, limit_bytes=1 << 20, ratio_max=1000)
    return b"".join(pieces).decode()
