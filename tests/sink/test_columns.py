"""Files named by columns (`fileName={column}`): each row is in the file that it names, as a reader of the directory sees it."""

from __future__ import annotations

import csv
import os
import re
import unicodedata
from dataclasses import replace
from itertools import pairwise
from urllib.parse import unquote

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import failpoints
from penstock.errors import DamagedState, OptionError, PublishConflict, TemplateError
from penstock.sink import lengths
from penstock.sink.byteparts import BytePart
from penstock.sink.ledger import OpenParts
from penstock.sink.publish import _GROWN_AT_ONCE
from penstock.sink.sink import Batch, Sink
from tests.support.effort import effort
from tests.support.output import QUERY, Output

NAMED = pa.schema([("value", pa.string()), ("name", pa.string())])
BOTH = pa.schema([("value", pa.string()), ("name", pa.string()), ("k", pa.string())])
GROWS = {"growing": "true", "fileName": "{name}.log", "dropBucketColumns": "true"}


@pytest.fixture
def named(output: Output) -> Output:
    """Return an output of rows `value|name`."""
    output.schema = NAMED
    return output


def test_name_changes_every_thirty_rows(named: Output) -> None:
    """I4: 100 rows whose name changes every 30 make four files with name, number and time; the ledger has each once, with its size."""
    sink = named.sink(fileName="{name}%FILENUM_%TIME.txt", dropBucketColumns="true")
    named.batch(sink, 0, {0: [f"{'x' * 21}{row}|n{row // 30}-" for row in range(100)]}, final=True)
    assert len(named.visible()) == 4
    for number, (path, text) in enumerate(named.visible().items()):
        assert re.fullmatch(rf"n{number}-{number}_\d{{8}}_\d{{6}}\.txt", path)
        assert len(text.splitlines()) == (10 if number == 3 else 30)
    told = [(file.path, file.bytes) for file in sink.ledger.history()]
    assert told == [(path, len(text)) for path, text in named.visible().items()]
    assert [size for _, size in told] == [710, 720, 720, 240]


def test_name_that_comes_back_keeps_its_file(named: Output) -> None:
    """I6: names A, B, A make one file A and one file B, also across batches; IBM Streams would close A and overwrite it."""
    sink = named.sink(fileName="{name}-{seq}", dropBucketColumns="true")
    named.batch(sink, 0, {0: ["1|A", "2|B", "3|A"]})
    named.batch(sink, 1, {0: ["4|B", "5|A"]})
    named.batch(sink, 2, {0: ["6|A"]}, final=True)
    assert [(path, text.split()) for path, text in named.visible().items()] == [
        ("A-1.txt", ["1", "3", "5", "6"]),
        ("B-0.txt", ["2", "4"]),
    ]
    named.batch(sink, 3, {0: ["7|A"]}, owner="d2", final=True)
    assert named.visible()["A-2.txt"] == "7\n", "a file that was finished is never written again"


def test_names_that_a_file_system_may_take_for_one_get_other_numbers(named: Output) -> None:
    """Names in other case, and accents composed otherwise: a file system that folds names refused the second, and each repetition."""
    sink = named.sink(fileName="{name}-{seq}", dropBucketColumns="true")
    named.batch(sink, 0, {0: ["1|A"], 1: ["2|a"], 2: ["3|\u00e9"], 3: ["4|e\u0301"]}, final=True)
    folded = {unicodedata.normalize("NFC", path.casefold()) for path in named.visible()}
    assert len(folded) == len(named.visible()) == 4


def test_growing_files_by_name_are_written_on(named: Output) -> None:
    """I6: with `growing` each name is one file; rows are appended whenever its name comes back, also after a restart."""
    sink = named.sink(**GROWS)
    named.batch(sink, 0, {0: ["1|A", "2|B", "3|A"], 1: ["4|A"]})
    named.batch(sink, 1, {0: ["5|C"]})
    named.batch(named.sink(**GROWS), 2, {1: ["6|A"], 0: ["7|B"]}, owner="d2", final=True)
    assert named.visible() == {"A.log": "1\n3\n4\n6\n", "B.log": "2\n7\n", "C.log": "5\n"}
    assert named.staged() == []


def test_names_are_told_apart_in_each_bucket(output: Output) -> None:
    """Bucket and name together decide where a row goes, each by its template; the columns of both can be dropped."""
    output.schema = BOTH
    sink = output.sink(bucketBy="k={k}", fileName="{name}-{seq}", dropBucketColumns="true", rollRows="2")
    output.batch(sink, 0, {0: ["1|A|x", "2|A|y", "3|B|x", "4|A|x", "5|A|x"]}, final=True)
    assert output.visible() == {
        "k=x/A-0.txt": "1\n4\n",
        "k=x/A-1.txt": "5\n",
        "k=x/B-2.txt": "3\n",
        "k=y/A-3.txt": "2\n",
    }


HOSTILE = [
    "a/b", "../up", "..", ".", ".hidden", "_hidden", "_penstock", "a:b", "100%", "%2F", "a=b", "{seq}", "}{", "{{name}}",
    "__HIVE_DEFAULT_PARTITION__", "tab\tx", "nul\0x", "\u00e4\u6f22\U0001f600", "a*?b", "'\"", "back\\slash", "x.tmp",
    "line\nfeed", " ", "A", "a",
]  # fmt: skip


@pytest.mark.parametrize("growing", [False, True])
def test_values_are_escaped_as_those_of_buckets_are(named: Output, growing: bool) -> None:
    """F34: no value leaves the directory, hides its file, collides with another value, or is lost: the name decodes to the value."""
    options = {"fileName": "{name}.log", "growing": "true"} if growing else {"fileName": "{name}~{seq}.log"}
    sink = named.sink(format="csv", **options)
    rows = pa.RecordBatch.from_arrays(
        [pa.array([str(n) for n in range(len(HOSTILE) + 2)]), pa.array([*HOSTILE, None, ""], pa.string())], schema=NAMED
    )
    begun = sink.begin("d1", batch := Batch(QUERY, 0, "", final=True))
    sink.commit(batch, [sink.write(begun, QUERY, 0, 0, NAMED, iter([rows]))])
    assert sorted(os.listdir(named.root.parent)) == [named.root.name]
    found = {}
    for path in named.visible():
        assert "/" not in path
        value = unquote(path.removesuffix(".log").partition("~")[0], errors="strict")
        with (named.root / path).open(newline="") as file:
            found[path] = value, [int(row[0]) for row in csv.reader(file)]
    assert len(found) == len(HOSTILE) + 1, "null and the empty string are one"
    for value, numbers in found.values():
        if len(numbers) == 2:
            assert (value, numbers) == ("__HIVE_DEFAULT_PARTITION__", [len(HOSTILE), len(HOSTILE) + 1])
        else:
            assert [HOSTILE[number] for number in numbers] == [value]


@pytest.mark.slow
@given(values=st.lists(st.text(max_size=40), min_size=1, max_size=8))
@settings(max_examples=effort(30, 600), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_a_name_of_its_own(named: Output, values: list[str]) -> None:
    """Rows with different texts go to different visible files, and rows with equal texts to one, whatever the texts are."""
    sink = named.sink(format="csv", growing="true", fileName="{name}")
    places = sink.layout.places(NAMED)
    batch = pa.RecordBatch.from_arrays([pa.array(values), pa.array(values)], schema=NAMED)
    kind = sink.layout.kind(NAMED)
    paths = {}
    for place, rows in places.split(batch, 0):
        path = sink.rules.path(place, kind)
        assert path not in paths
        paths[path] = set(rows.column("name").to_pylist())
        assert "/" not in path
        assert path[0] not in "._"
    assert len(paths) == len(set(values))


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (
            "{nam}-{seq}",
            "there is no column 'nam'; the data has value, name; fields that are no columns are {sink}, {writer}",
        ),
        ("{name}", r"add {seq}"),
        ("{name:%Y}-{seq}", "needs a timestamp or a date, 'name' is string; read the column as one, by its type"),
        ("{name!r}-{seq}", "without '!'"),
        ("{}-{seq}", "a field without a name"),
        ("{name}/{seq}", "without '/'"),
        ("{name}-{seq}.tmp", "readers pass over"),
    ],
)
def test_templates_that_name_no_file_are_refused_at_the_start(named: Output, template: str, says: str) -> None:
    """A missing column, a name without a counter and similar mistakes are errors before a row is read."""
    with pytest.raises(TemplateError) as caught:
        named.sink(fileName=template)
    assert says in str(caught.value)
    assert not named.root.exists()


def test_growing_name_without_a_column_of_its_own(named: Output) -> None:
    """A field that changes from part to part cannot name a growing file, with or without columns; a limit cannot close one."""
    with pytest.raises(TemplateError, match="needs a fixed name"):
        named.sink(growing="true", fileName="{name}-{seq}")
    with pytest.raises(OptionError, match="rollRows says when to close"):
        named.sink(growing="true", fileName="{name}", rollRows="3")
    with pytest.raises(OptionError, match="growing=true never finishes a file, and onPublish"):
        named.sink(growing="true", fileName="{name}", onPublish="json:dumps")


def test_column_that_is_called_as_a_field(output: Output) -> None:
    """`{host}` is always the machine; a column of that name needs backticks, and so does a column with a dot."""
    output.schema = pa.schema([("value", pa.string()), ("host", pa.string()), ("a.b", pa.string())])
    sink = output.sink(fileName="{`host`}-{`a.b`}-{seq}", dropBucketColumns="true")
    output.batch(sink, 0, {0: ["1|web|x", "2|db|y"]}, final=True)
    assert output.visible() == {"db-y-1.txt": "2\n", "web-x-0.txt": "1\n"}


def test_times_of_columns_are_in_the_zone(output: Output) -> None:
    """A column of times takes a format and is written in `timeZone`; the rows of one day are in one file."""
    output.schema = pa.schema([("value", pa.string()), ("ts", pa.timestamp("us", tz="UTC"))])
    sink = output.sink(
        fileName="{ts:%Y-%m-%d}_{seq}", timeZone="Asia/Tokyo", dropBucketColumns="true", rollInactivity="1h"
    )
    output.batch(
        sink, 0, {0: ["1|2026-01-31 14:59:59Z", "2|2026-01-31 15:00:00Z", "3|2026-02-01 03:00:00Z"]}, final=True
    )
    assert output.visible() == {"2026-01-31_0.txt": "1\n", "2026-02-01_1.txt": "2\n3\n"}


def test_value_that_is_too_long_is_refused_before_anything_is_committed(named: Output) -> None:
    """A name too long for any file system fails the batch with the name, also a name that only a longer number would make too long."""
    sink = named.sink(fileName="{name}-{seq}", dropBucketColumns="true")
    for length in (300, 245):
        with pytest.raises(TemplateError, match=r"makes names of \d+ bytes \('xxx.*name files by something shorter"):
            named.batch(sink, 0, {0: ["1|" + "x" * length]})
    assert sink.ledger.head().last_batch(QUERY) == -1
    named.batch(sink, 0, {0: ["1|" + "x" * 230]}, final=True)
    assert len(named.visible()) == 1


@pytest.mark.parametrize("later", ["other-{seq}", "{value}_{seq}", "{name}+{seq}.dat"])
def test_open_parts_keep_the_name_they_were_opened_for(named: Output, later: str) -> None:
    """A query that continues with another `fileName` closes the open parts under the names that their rows asked for."""
    named.batch(named.sink(fileName="{name}-{seq}", format="csv"), 0, {0: ["1|A", "2|B"]})
    named.batch(named.sink(fileName=later, format="csv"), 1, {0: ["3|A"]}, owner="d2", final=True)
    names = sorted(named.visible())
    assert len(names) == 3
    assert {name.partition(".")[0][:2] for name in names} >= {"A-", "B-"}
    assert named.lines() == ["1,A", "2,B", "3,A"]


def test_parts_from_before_the_columns_are_named_as_by_default(named: Output) -> None:
    """Parts opened under a name without columns have no values to fill in: they get the default name."""
    named.batch(named.sink(fileName="all-{seq}", format="csv"), 0, {0: ["1|A"]})
    named.batch(named.sink(fileName="{name}-{seq}", format="csv"), 1, {0: ["2|A"]}, owner="d2", final=True)
    assert sorted(named.visible()) == ["A-1.csv", "part-s-0-0.csv"]


def test_finish_names_files_without_the_query(named: Output) -> None:
    """`penstock finish` knows the names of open parts from the ledger, although it has neither rows nor a schema."""
    sink = named.sink(fileName="{name}_{seq}", dropBucketColumns="true")
    named.batch(sink, 0, {0: ["1|A", "2|B"], 1: ["3|A"]})
    Sink.existing(sink.storage, sink.root, "s").finish()
    assert named.visible() == {"A_0.txt": "1\n3\n", "B_1.txt": "2\n"}


@pytest.mark.parametrize("name", ["../x-{seq}", "{seq.__class__}", "{other}-{seq}", ".hidden{seq}", "{seq"])
def test_name_in_a_record_that_is_none_is_damage(named: Output, name: str) -> None:
    """Others may have written a record: a name in it that leaves the directory, or accesses anything else, is damage."""
    sink = named.sink(fileName="{name}-{seq}", dropBucketColumns="true")
    named.batch(sink, 0, {0: ["1|A"]})
    head = sink.ledger.head()
    sink.ledger.put(replace(head, n=head.n + 1, parent=head.write, open=OpenParts([replace(head.open[0], name=name)])))
    with pytest.raises(DamagedState, match="not a ledger record"):
        sink.ledger.head()


def test_two_names_that_make_one_path_share_the_growing_file(output: Output) -> None:
    """Two columns next to each other can make one name from different values: that is one file with the rows of both."""
    output.schema = BOTH
    sink = output.sink(growing="true", fileName="{name}{k}", dropBucketColumns="true")
    output.batch(sink, 0, {0: ["1|a|bc", "2|ab|c"]})
    output.batch(sink, 1, {0: ["3|a|bc"], 1: ["4|ab|c"]})
    assert output.visible() == {"abc.txt": "1\n2\n3\n4\n"}


# -- the lengths of many growing files --------------------------------------------------------------------------------


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a record hold few lengths, so that a handful of files need tables."""
    monkeypatch.setattr(lengths, "IN_RECORD", 3)
    lengths._kept.clear()


def _lengths(named: Output) -> dict[str, int]:
    sink = Sink.existing(named.storage, str(named.root), "s")
    return dict(sink.lengths.all_of(sink.ledger.head()))


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_lengths_that_no_record_should_hold_are_in_tables(named: Output) -> None:
    """Forty growing files, a few per batch: a record holds few lengths, there are few tables, and each file has the right content."""
    sink = named.sink(**GROWS)
    expected: dict[str, list[str]] = {}
    for batch in range(30):
        rows = [f"{batch}-{n}|f{(batch * 7 + n * n) % 40}" for n in range(batch % 7 + 1)]
        for row in rows:
            value, _, name = row.partition("|")
            expected.setdefault(f"{name}.log", []).append(value)
        named.batch(sink, batch, {0: rows})
        head = sink.ledger.head()
        assert len(head.lengths) <= 3
        sizes = [table.files for table in head.tables]
        assert all(older >= 2 * newer for older, newer in pairwise(sizes))
        assert sorted(named.staged()) == sorted(table.file for table in head.tables), "what no record names is swept"
        if batch == 17:
            lengths._kept.clear()  # as in another process that continues
    assert {path: text.split() for path, text in named.visible().items()} == expected
    assert _lengths(named) == {path: len(text) for path, text in named.visible().items()}


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("damage", ["missing", "altered", "exchanged"])
def test_table_that_is_not_what_was_put_is_damage(named: Output, damage: str) -> None:
    """A table that is missing, altered, or replaced by an older one is reported by name; no file grows by a guess."""
    sink = named.sink(**GROWS)
    named.batch(sink, 0, {0: [f"0|f{n}" for n in range(5)]})
    older = {name: (named.root / "_penstock/s/staging" / name).read_bytes() for name in named.staged()}
    named.batch(sink, 1, {0: [f"1|f{n}" for n in range(5)]})
    [table] = [named.root / "_penstock/s/staging" / name for name in named.staged()]
    before = named.visible()
    if damage == "missing":
        table.unlink()
    else:
        table.write_bytes(
            next(iter(older.values())) if damage == "exchanged" else table.read_bytes().replace(b":4", b":2")
        )
    lengths._kept.clear()
    with pytest.raises(DamagedState, match=table.name):
        named.batch(named.sink(**GROWS), 2, {0: ["2|f0"]}, owner="d2")
    assert named.visible() == before


@pytest.mark.usefixtures("few")
def test_stranger_in_a_growing_file_of_a_table(named: Output) -> None:
    """F16, F23: a file is guarded in the same way whether its length is in a table or in the record."""
    sink = named.sink(**GROWS)
    named.batch(sink, 0, {0: [f"0|f{n}" for n in range(5)]})
    with (named.root / "f3.log").open("a") as file:
        file.write("stranger\n")
    named.batch(sink, 1, {0: ["1|f2"]})
    with pytest.raises(PublishConflict, match=r"f3\.log' has 11 bytes, the ledger says 4"):
        named.batch(sink, 2, {0: ["2|f3"]})


@pytest.mark.usefixtures("few")
def test_many_growing_files_die_in_the_middle(named: Output) -> None:
    """Some files of a record have grown when the driver dies: the next driver brings the others to their lengths, exactly once."""
    sink = named.sink(**GROWS)
    named.batch(sink, 0, {0: [f"0|f{n}" for n in range(9)]})
    failpoints.arm("sink.publish.grow=error@5")
    with pytest.raises(OSError, match="failpoint"):
        named.batch(sink, 1, {0: [f"1|f{n}" for n in range(9)]})
    failpoints.arm("")
    named.batch(named.sink(**GROWS), 2, {0: ["2|f4"]}, owner="d2")
    assert named.visible() == {f"f{n}.log": "0\n1\n" + ("2\n" if n == 4 else "") for n in range(9)}


@pytest.mark.slow
def test_open_files_are_bounded(named: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """F29, M3: a task with hundreds of names, some large, and the driver that grows as many files, keep few of them open at once."""
    monkeypatch.setattr(BytePart, "stage_bytes", 64)
    most, fds, names = 0, "/proc/self/fd", effort(300, 1500)
    before = len(os.listdir(fds))
    close = failpoints.hit

    def watched(name: str) -> None:
        nonlocal most
        most = max(most, len(os.listdir(fds)) - before)
        close(name)

    monkeypatch.setattr(failpoints, "hit", watched)
    sink = named.sink(**GROWS)
    for batch in range(2):
        rows = [f"{batch}-{n}-{'x' * 40}|f{n % names}" for n in range(3 * names)]
        named.batch(sink, batch, {0: rows[: len(rows) * 4 // 9], 1: rows[len(rows) * 4 // 9 :]})
    assert len(named.visible()) == names
    assert all(len(text.splitlines()) == 6 for text in named.visible().values())
    assert 0 < most <= 2 * _GROWN_AT_ONCE + 80 < names
