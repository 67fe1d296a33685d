"""Parts over time, step by step: what is visible after each batch, and after each clock check between batches."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import clock
from penstock.query import driver
from penstock.sink import keeper
from penstock.sink.sink import Batch
from penstock.storage import HostFact
from penstock.testing import FakeClock
from tests.support.output import QUERY, Output
from tests.support.wait import PATIENCE_SECONDS, wait_for

START = 1_767_225_600
VALUE_AND_BUCKET = pa.schema([("value", pa.string()), ("b", pa.string())])

# (second, rows of a batch, or None for a clock check without a batch, contents of the visible files by name)
TIMELINES: dict[str, tuple[dict[str, str], list[tuple[int, list[str] | None, list[str]]]]] = {
    "age, not idleness (S13)": (
        {"rollInterval": "10s", "rollInactivity": "1h"},
        [(11, ["1"], []), (12, ["2"], []), (20, None, []), (21, ["3"], ["1 2"]), (31, None, ["1 2", "3"])],
    ),
    "idleness, then age (S14)": (
        {"rollInterval": "20s", "rollInactivity": "10s"},
        [
            (11, ["1"], []),
            (12, ["2"], []),
            (21, None, []),
            (22, None, ["1 2"]),
            (31, ["3"], ["1 2"]),
            (41, ["4"], ["1 2", "3"]),
            (50, ["5"], ["1 2", "3"]),
            (59, ["6"], ["1 2", "3"]),
            (60, None, ["1 2", "3"]),
            (61, None, ["1 2", "3", "4 5 6"]),
        ],
    ),
    "age before idleness (B8)": (
        {"rollInterval": "100ms", "rollInactivity": "1s"},
        [(0, ["1"], []), (1, ["2"], ["1"]), (3, None, ["1", "2"]), (3000, None, ["1", "2"])],
    ),
    "size, idleness and age (S30)": (
        {"rollSize": "10", "rollInterval": "11s", "rollInactivity": "4s"},
        [
            (1, ["test1"], []),
            (2, ["test2"], ["test1"]),
            (5, None, ["test1"]),
            (6, None, ["test1", "test2"]),
            (7, ["3", "4"], ["test1", "test2"]),
            (10, ["5"], ["test1", "test2"]),
            (13, ["6"], ["test1", "test2"]),
            (16, ["7"], ["test1", "test2", "3 4 5 6 7"]),
        ],
    ),
    "size alone, in the order of the rows (S34)": (
        {"rollSize": "10"},
        [
            (1, ["row1", "row2", "row3"], ["row1 row2"]),
            (2, ["row4"], ["row1 row2", "row3 row4"]),
            (3, ["row5", "row6"], ["row1 row2", "row3 row4", "row5 row6"]),
            (4, ["row7"], ["row1 row2", "row3 row4", "row5 row6"]),
            (101, None, ["row1 row2", "row3 row4", "row5 row6", "row7"]),
        ],
    ),
    "every batch, whatever its size (S31, S32)": (
        {"rollBatches": "1", "rollSize": "4"},
        [(1, ["1", "2", "3"], ["1 2", "3"]), (2, ["4"], ["1 2", "3", "4"]), (3, [], ["1 2", "3", "4"])],
    ),
    "rows, the rest at the end of idleness (M18, K12)": (
        {"rollRows": "3", "rollInactivity": "5s"},
        [(0, [str(i) for i in range(7)], ["0 1 2", "3 4 5"]), (4, None, ["0 1 2", "3 4 5"]), (5, None, ["0 1 2", "3 4 5", "6"])],
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", TIMELINES)
@pytest.mark.parametrize("restarted", [False, True])
def test_timeline(output: Output, time: FakeClock, name: str, restarted: bool) -> None:
    """Each limit closes a part at its time and no other limit does, also if every batch has a new driver."""
    options, steps = TIMELINES[name]
    batch, owner = 0, "d"
    for at, rows, expected in steps:
        time.seconds = START + at
        sink = output.sink(fileName="p-{seq:03}", **options)
        if rows is None:
            sink.roll(owner)
        else:
            owner = f"d{batch}" if restarted else owner
            output.batch(sink, batch, {0: rows}, owner=owner)
            batch += 1
        assert [" ".join(text.splitlines()) for text in output.visible().values()] == expected, f"at {at}"


def test_buckets_age_apart(output: Output, time: FakeClock) -> None:
    """S28: a bucket that begins five seconds after another rolls five seconds after it, again and again."""
    output.schema = VALUE_AND_BUCKET
    sink = output.sink(format="csv", bucketBy="{b}", dropBucketColumns="true", rollInterval="10s", fileName="p{seq}")
    for turn in range(3):
        for wait, batch, files in ((0, 0, 0), (5, 1, 0), (5, None, 1), (4, None, 1), (1, None, 2)):
            time.seconds += wait
            if batch is None:
                sink.roll("d1")
            else:
                output.batch(sink, turn * 2 + batch, {0: [f"x|test{batch}"]})
            assert len(output.visible()) == turn * 2 + files


def test_batch_time_names_the_bucket(output: Output, time: FakeClock) -> None:
    """B11: 20 rows, and the clock advances by 5 seconds after every five: four directories with five rows each, in order."""
    sink = output.sink(bucketBy="{time:%S}", fileName="p{seq}", rollBatches="1")
    for batch in range(4):
        time.seconds = START + batch * 5
        output.batch(sink, batch, {0: [str(batch * 5 + i) for i in range(5)]})
    assert list(output.visible().items()) == [
        (f"{batch * 5:02}/p{batch}.txt", "".join(f"{batch * 5 + i}\n" for i in range(5))) for batch in range(4)
    ]


def test_part_without_rows_does_not_roll(output: Output) -> None:
    """M12, M13, I6: buckets roll every three batches in which they exist; a bucket that comes back never reuses a name."""
    output.schema = VALUE_AND_BUCKET
    sink = output.sink(format="csv", bucketBy="{b}", rollBatches="3", fileName="p{seq}")
    counts = []
    for batch, buckets in enumerate([*["odd"] * 3, *["both"] * 9, *["even"] * 6, *["none"] * 6, "odd", *["none"] * 3]):
        rows = [f"{batch}|{b}" for b in (("even", "odd") if buckets == "both" else (buckets,)) if b != "none"]
        output.batch(sink, batch, {0: rows})
        if batch in {2, 11, 17, 23, 27}:
            names = [path.partition("/")[0] for path in output.visible()]
            counts.append((names.count("even"), names.count("odd")))
    assert counts == [(0, 1), (3, 4), (5, 4), (5, 4), (5, 5)]
    assert output.lines() == sorted(
        [f"{i},odd" for i in [*range(12), 24]] + [f"{i},even" for i in range(3, 18)],
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("replayed", [["2|even", "3|odd"], ["4|even", "5|odd"], ["4|even"], []])
@pytest.mark.parametrize("foreign", [False, True])
def test_replay_with_other_rows(output: Output, replayed: list[str], foreign: bool) -> None:
    """M9, M10: two rolling buckets, a batch that dies and is repeated with other rows, and files that somebody else put there."""
    output.schema = VALUE_AND_BUCKET
    options: dict[str, Any] = {"format": "csv", "bucketBy": "{b}", "dropBucketColumns": "true", "rollRows": "3"}
    for bucket in ("even", "odd") if foreign else ():
        (output.root / bucket).mkdir(parents=True)
        (output.root / bucket / "p0.csv").write_text("foreign\n")
    sink = output.sink(fileName="p{seq}", **options)
    output.batch(sink, 0, {0: ["0|even", "1|odd"]})
    output.write(sink, sink.begin("d1", Batch(QUERY, 1)), 1, {0: ["2|even", "3|odd"]})
    sink = output.sink(fileName="p{seq}", **options)
    batches = [replayed, ["6|even", "7|odd"], ["8|even", "9|odd"], ["10|even", "11|odd"]]
    for number, rows in enumerate(batches, 1):
        output.batch(sink, number, {0: rows}, owner="d2", final=number == 4)
    for bucket in ("even", "odd"):
        texts = [text for path, text in output.visible().items() if path.startswith(bucket)]
        assert texts.count("foreign\n") == foreign
        rows = ["0|even", "1|odd", *[row for batch in batches for row in batch]]
        mine = [row.partition("|")[0] for row in rows if row.endswith(bucket)]
        found = sorted((text.split() for text in texts if text != "foreign\n"), key=lambda lines: int(lines[0]))
        assert found == [mine[i : i + 3] for i in range(0, len(mine), 3)]


_GROWS = {"growing": "true", "fileName": "g"}
_ROLLS = {"rollRows": "3", "fileName": "p{seq}"}


@pytest.mark.parametrize(
    ("options", "buckets", "batches", "expected"),
    [
        (_GROWS, 1, [("", "01"), ("", "23")], {"0/g": "0123"}),
        (_GROWS, 1, [("", "01"), ("2", "45"), ("", "67")], {"0/g": "014567"}),
        (_GROWS, 2, [("", "0123"), ("", "4567")], {"0/g": "0246", "1/g": "1357"}),
        (_GROWS, 2, [("", "0123"), ("45", "6789")], {"0/g": "0268", "1/g": "1379"}),
        (_ROLLS, 1, [("", "012"), ("", "3456")], {"0/p0": "012", "0/p1": "345"}),
        (_ROLLS, 1, [("", "012"), ("34", "345"), ("", "678")], {"0/p0": "012", "0/p1": "345", "0/p2": "678"}),
        (_ROLLS, 2, [("", "0123"), ("45", "45"), ("", "67")], {"0/p0": "024", "1/p1": "135"}),
    ],
    ids=["M1", "M2", "M3", "M4", "M5", "M7", "M16"],
)
def test_crash_between_batches(
    output: Output, options: dict[str, str], buckets: int, batches: list[tuple[str, str]], expected: dict[str, str]
) -> None:
    """A try that dies leaves nothing behind, whatever the next one writes: in growing files, and in parts that are open or full.

    A batch here is a pair: the rows that the first try staged before it died, and the rows of the second try.
    """
    output.schema = VALUE_AND_BUCKET
    options = {"format": "csv", "bucketBy": "{b}", "dropBucketColumns": "true", **options}

    def rows(digits: str) -> dict[int, list[str]]:
        return {0: [f"{digit}|{int(digit) % buckets}" for digit in digits]}

    for number, (lost, kept) in enumerate(batches):
        sink = output.sink(**options)
        if lost:
            output.write(sink, sink.begin(f"lost-{number}", Batch(QUERY, number)), number, rows(lost))
        output.batch(sink, number, rows(kept), owner=f"driver-{number}")
    assert {path.removesuffix(".csv"): "".join(text.split()) for path, text in output.visible().items()} == expected


def test_order_of_the_tasks_does_not_matter(output: Output) -> None:
    """B5: whichever task reports first, the same rows are in files with the same names."""
    seen = []
    for sink_id in ("forward", "backward"):
        sink = output.sink(sink_id=sink_id, rollSize="4", mergeBelow="3", fileName="{sink}-{writer}-{seq}")
        for number in range(3):
            batch = Batch(QUERY, number, final=number == 2)
            begun = sink.begin("d1", batch)
            results = output.write(sink, begun, number, {w: [f"{number}{w}"] for w in range(5)})
            sink.commit(batch, results if sink_id == "forward" else results[::-1])
        seen.append(
            {path.split("-", 1)[1]: text for path, text in output.visible().items() if path.startswith(sink_id)}
        )
    assert seen[0] == seen[1]
    assert len(output.lines()) == 30


def test_merging_stays_within_a_bucket(output: Output) -> None:
    """C1: parts of one bucket are merged up to the limit; parts of two buckets never, however small they are."""
    output.schema = VALUE_AND_BUCKET
    sink = output.sink(
        format="csv", bucketBy="{b}", dropBucketColumns="true", rollSize="10", mergeBelow="10", fileName="p{seq}"
    )
    output.batch(sink, 0, {0: ["row1|0", "row2|1"], 1: ["row3|0"], 2: ["row4|0"]}, final=True)
    texts = sorted((path[0], text.split()) for path, text in output.visible().items())
    assert texts == [("0", ["row1", "row3"]), ("0", ["row4"]), ("1", ["row2"])]


@pytest.mark.slow
@pytest.mark.parametrize("below", ["1", "1m"])
@pytest.mark.parametrize(
    "options",
    [
        {"rollSize": "4"},
        {"rollRows": "1"},
        {"fileName": "other-{seq}"},
        {"bucketBy": "all"},
        {"rollInterval": "0"},
        {"rollInactivity": "0s"},
        {"rollBatches": "1"},
        {"timeZone": "Asia/Tokyo", "fileName": "{time}-{seq}"},
    ],
    ids=str,
)
def test_restarted_with_other_options(output: Output, options: dict[str, str], below: str) -> None:
    """C6: limits, names and buckets may change while parts are open: each row is in one file, which closes by the new options."""
    output.batch(output.sink(mergeBelow=below), 0, {0: [f"a{i}" for i in range(5)], 1: ["b"]})
    sink = output.sink(mergeBelow=below, **options)
    output.batch(sink, 1, {0: ["c", "d"], 2: ["e"]}, owner="d2")
    output.batch(sink, 2, {0: ["f"]}, owner="d2", final=True)
    assert output.lines() == ["a0", "a1", "a2", "a3", "a4", "b", "c", "d", "e", "f"]
    assert sink.ledger.head().open == ()


class Falling(FakeClock):
    """A clock that can fall back by a year; the clock that measures durations continues."""

    fallen_seconds = 0.0
    falls_asleep = False

    def now_ns(self) -> int:
        """Return the time that the machine's clock shows."""
        return super().now_ns() - round(self.fallen_seconds * clock.SECOND_NS)

    def sleep(self, seconds: float) -> None:
        """Advance."""
        super().sleep(seconds)
        if self.falls_asleep:
            self.fall()
        assert self.seconds < 1_001_000, "the keeper waits for the year to pass"

    def fall(self) -> None:
        """Fall back."""
        self.fallen_seconds = 365 * 86_400


@pytest.mark.parametrize("when", ["before the batch ends", "before the keeper starts", "while the keeper sleeps"])
def test_a_keeper_goes_on_when_the_clock_falls_back(
    output: Output, host: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """No more rows come, and the machine's clock is set back by a year: open parts become visible when the limit has passed."""
    monkeypatch.setattr(keeper, "_start", lambda _: 0)
    sink = output.sink(rollInactivity="60s")
    me = driver.owner(QUERY, None)
    with clock.use(falling := Falling()):
        fact = keeper.fact_of(sink, me)
        keeper.batch_begins(fact, me)
        done = output.batch(sink, 0, {0: ["1"]}, owner=me)
        if when == "before the batch ends":
            falling.fall()
        keeper.batch_ends(fact, sink, me, done.open)
        if when == "before the keeper starts":
            falling.fall()
        falling.falls_asleep = when == "while the keeper sleeps"
        keeper.run(fact.name)
    assert falling.seconds - 1_000_000 < 130
    assert output.lines() == ["1"]


KEEPS = """
import sys
from penstock.sink import keeper
keeper.run(sys.argv[1])
print("pyarrow" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ends", [True, False])
def test_a_keeper_that_has_nothing_to_do_imports_nothing(
    output: Output, host: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """While no part's time is up, and if this process publishes them at the end of the query, the keeper's process stays small.

    If the parts' time comes instead, the same process closes them, for which it imports the sink.
    """
    begun = []

    def start(fact: HostFact) -> int:
        command = [sys.executable, "-c", KEEPS, fact.name]
        begun.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(host)})
        )
        return begun[0].pid

    monkeypatch.setattr(keeper, "_start", start)
    sink = output.sink(rollInactivity="1h" if ends else "1s")
    me = driver.owner(QUERY, None)
    fact = keeper.fact_of(sink, me)
    with clock.use(clock.SystemClock()):
        keeper.batch_begins(fact, me)
        done = output.batch(sink, 0, {0: ["1"]}, owner=me)
        keeper.batch_ends(fact, sink, me, done.open)
        if ends:
            noted = os.stat(fact.path).st_mtime_ns
            wait_for(lambda: os.stat(fact.path).st_mtime_ns != noted, "a look of the keeper")
            keeper.query_ended(QUERY, lambda: True)
            assert output.lines() == ["1"]
        said, _ = begun[0].communicate(timeout=PATIENCE_SECONDS)
    assert said == f"{not ends}\n"
    assert output.lines() == ["1"]
    assert HostFact.all() == []


def test_a_keeper_publishes_what_the_end_of_the_query_could_not(
    output: Output, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that hears of the end finds a damaged record and publishes nothing; the record is there again, and the keeper does it."""
    monkeypatch.setattr(keeper, "_start", lambda _: 0)
    sink = output.sink(rollInactivity="1h")
    me = driver.owner(QUERY, None)
    fact = keeper.fact_of(sink, me)
    keeper.batch_begins(fact, me)
    done = output.batch(sink, 0, {0: ["1"]}, owner=me)
    keeper.batch_ends(fact, sink, me, done.open)
    record = max((output.root / "_penstock/s/ledger").iterdir())
    sound = record.read_bytes()
    record.chmod(0o600)
    record.write_bytes(sound[:-9])
    keeper.query_ended(QUERY, lambda: True)
    assert output.lines() == []
    record.write_bytes(sound)
    keeper.run(fact.name)
    assert output.lines() == ["1"]
    assert HostFact.all() == []


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a temporary directory of the host that no other process has facts in."""
    (private := tmp_path / "host").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(private))
    return private
