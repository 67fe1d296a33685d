"""The log as runs between two offsets: a planned run is read the same each time, and holds nothing that could still vanish."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DamagedState, OptionError, PositionError
from penstock.storage import LocalStorage, Storage
from penstock.testing import CrashDisk, CrashHdfs, ObjectStore
from penstock.wal import Log, Position, Reader, Writer, runs

ROOT = "/log"
STORAGES: dict[str, Callable[[], Storage]] = {
    "disk": lambda: CrashDisk().storage(),
    "hdfs": lambda: CrashHdfs().storage(),
    "objects": lambda: ObjectStore().storage(),
}
Row = tuple[Position, bytes]


@pytest.fixture(params=STORAGES)
def storage(request: pytest.FixtureRequest) -> Storage:
    return STORAGES[request.param]()


def planned(storage: Storage, start: dict[str, Any] | None = None, root: str = ROOT, **more: Any) -> dict[str, Any]:
    """Return the end of the next run, as it is read from a checkpoint."""
    begun = start or runs.begin(root, "earliest", storage)
    with closing(runs.LogPlanner(root, storage)) as planner:
        end = planner.plan(begun, **{"size": None, "split": 1 << 30, **more})
    again: dict[str, Any] = json.loads(json.dumps(end))
    return again


def rows(storage: Storage, start: dict[str, Any], end: dict[str, Any], root: str = ROOT) -> list[Row]:
    """Return the rows of a run, part by part."""
    batches = [batch for run in runs.runs(start, end) for batch in runs.read(root, run, storage)]
    assert all(batch.schema == runs.SCHEMA for batch in batches)
    columns = [[value for batch in batches for value in batch.column(at).to_pylist()] for at in range(3)]
    return [(Position(segment, offset), record) for segment, offset, record in zip(*columns, strict=True)]


@pytest.mark.parametrize(("size", "split"), [(None, 1 << 30), (1, 1), (900, 300), (5000, 1500), (None, 700)])
def test_every_record_is_in_one_part_of_one_run(storage: Storage, size: int | None, split: int) -> None:
    """Runs and their parts, however they are cut, are adjacent: all records, in order, at the positions that the writer gave."""
    expected = []
    with Writer(ROOT, segment_size=2048, storage=storage) as writer:
        for number in range(60):
            record = os.urandom(number * 31 % 290)
            expected.append((writer.append(record), record))
            if number % 7 in {0, 1, 4}:
                writer.flush()
    start, found, count = runs.begin(ROOT, "earliest", storage), [], 0
    while (end := planned(storage, start, size=size, split=split)) != start:
        found += rows(storage, start, end)
        start, count = end, count + 1
    assert found == expected
    assert (count == 1) == (size is None)
    assert (len(runs.runs(runs.begin(ROOT, "earliest", storage), planned(storage, split=split))) > 1) == (
        split < 1 << 30
    )


def test_a_limit_that_is_just_reached(storage: Storage) -> None:
    """A run takes groups up to and including its limit of bytes; a group longer than the limit is taken alone."""
    with Writer(ROOT, storage=storage) as writer:
        for _ in range(4):
            writer.append(bytes(8))  # a group of 56 bytes
            writer.flush()
    begun = runs.begin(ROOT, "earliest", storage)
    taken = [len(rows(storage, begun, planned(storage, begun, size=size))) for size in (1, 56, 111, 112, 113, 224, 225)]
    assert taken == [1, 1, 1, 2, 2, 4, 4]


def test_runs_follow_a_live_writer(storage: Storage) -> None:
    """A run ends at the end of the log; records appended later, over rolls and other writers, are in the next run."""
    storage.make_directory(ROOT)
    begun = runs.begin(ROOT, "earliest", storage)
    start = planned(storage, begun)
    assert planned(storage, start) == start
    expected = []
    planner = runs.LogPlanner(ROOT, storage)
    for _ in range(3):
        with Writer(ROOT, segment_size=400, whole=not storage.reads_open, storage=storage) as writer:
            for number in range(5):
                record = b"%d" % number * 90
                expected.append((writer.append(record), record))
                writer.flush()
                end = planner.plan(start, size=None, split=1 << 30)
                assert end == planned(storage, start)
                assert rows(storage, start, end) == expected[-1:]
                assert planner.plan(end, size=None, split=1 << 30) == planned(storage, end) == end
                start = end
    planner.close()
    assert rows(storage, begun, start) == expected  # failure 6: from before the log existed
    assert rows(storage, begun, planned(storage, until=Position(2, 120))) == [r for r in expected if r[0].segment < 2]


def test_where_a_run_starts(storage: Storage) -> None:
    """Earliest, latest, and a position, also within a group; other starts are refused by name."""
    with Writer(ROOT, whole=not storage.reads_open, storage=storage) as writer:
        at = writer.append_many([b"a", b"b", b"c"])
        writer.flush()
        late = runs.begin(ROOT, "latest", storage)
        writer.append(b"d")
    middle = runs.begin(ROOT, str(Position(at.segment, at.offset + 8)), storage)
    for start, records in ((None, b"abcd"), (late, b"d"), (middle, b"bcd")):
        begun = start or runs.begin(ROOT, "earliest", storage)
        found = rows(storage, begun, planned(storage, begun))
        assert b"".join(record for _, record in found) == records
        for position, record in found:
            with Reader(ROOT, position, storage=storage) as reader:
                assert next(iter(reader)) == record
    with pytest.raises(PositionError, match="inside a record"):
        planned(storage, runs.begin(ROOT, f"1:{at.offset + 1}", storage))
    with pytest.raises(OptionError):
        runs.begin(ROOT, "late", storage)


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_the_first_run_is_repeated_from_where_it_began(storage: Storage, starting: str) -> None:
    """Failure 7: Spark keeps no offset before the first batch, and asks again: by then the log starts and ends elsewhere."""
    with Writer(ROOT, segment_size=300, whole=not storage.reads_open, storage=storage) as writer:
        writer.append(b"before")
        writer.flush()
        begun = runs.begin(ROOT, starting, storage)
        for number in range(3):
            writer.append(b"%d" % number * 200)
            writer.flush()
        end = planned(storage, begun)
        expected = rows(storage, begun, end)
        assert len(expected) == (3 if starting == "latest" else 4)
        writer.append(b"after" * 50)
        writer.flush()
        again = runs.begin(ROOT, starting, storage)
        assert rows(storage, again, end) == expected
        behind = planned(storage, end)
        assert [record for _, record in rows(storage, end, behind)] == [b"after" * 50]
        Log(ROOT, storage=storage).purge(Position.parse(end["position"]))
        with pytest.raises(PositionError):
            rows(storage, runs.begin(ROOT, starting, storage), end)
        assert [record for _, record in rows(storage, end, behind)] == [b"after" * 50]


def test_a_query_that_finds_nothing_keeps_where_it_begins(storage: Storage) -> None:
    """Failure 8: a run from `latest` finds nothing and ends; records that come before the next run belong to the next run."""
    storage.make_directory(ROOT)
    begun = runs.begin(ROOT, "latest", storage)
    nothing = planned(storage, begun)
    assert nothing != begun
    assert rows(storage, begun, nothing) == []
    with Writer(ROOT, whole=not storage.reads_open, storage=storage) as writer:
        writer.append(b"between")
        writer.flush()
        assert rows(storage, runs.begin(ROOT, "latest", storage), nothing) == []
        end = planned(storage, nothing)
        assert [record for _, record in rows(storage, nothing, end)] == [b"between"]
        assert planned(storage, end) == end


def test_the_last_segment_of_a_run_was_purged(storage: Storage) -> None:
    """Failure 3: segments that were read completely may be purged: the next run starts with the next segment. Failure 4: others may not."""
    for number in range(3):
        with Writer(ROOT, storage=storage) as writer:
            writer.append(b"%d" % number)
        if not number:
            first = planned(storage)
    both = planned(storage, first)
    with Writer(ROOT, storage=storage) as writer:
        Log(ROOT, storage=storage).purge(Position(2, 120))
        assert [record for _, record in rows(storage, first, both)] == [b"1", b"2"]
        Log(ROOT, storage=storage).purge(Position(3, 120))
        writer.append(b"3")
    for start, end in ((first, both), (runs.begin(ROOT, "1:120", storage), both)):
        with pytest.raises(PositionError, match="was purged"):
            rows(storage, start, end)
    assert [record for _, record in rows(storage, both, planned(storage, both))] == [b"3"]


def test_a_run_from_before_the_log_needs_its_first_record(storage: Storage) -> None:
    """Failure 6: a run that began before the log existed is not read without records that were purged since."""
    storage.make_directory(ROOT)
    begun = runs.begin(ROOT, "earliest", storage)
    for number in range(2):
        with Writer(ROOT, storage=storage) as writer:
            writer.append(b"%d" % number)
    end = planned(storage, begun)
    Log(ROOT, storage=storage).purge(Position(2, 120))
    with pytest.raises(PositionError, match="begins with record 1, expected 0"):
        rows(storage, begun, end)


@pytest.mark.parametrize("appended", [0, 5, 10, 30])
@pytest.mark.parametrize("segment_size", [4096, 64 << 20])
def test_a_log_that_was_put_back_and_appended_to(tmp_path: Path, appended: int, segment_size: int) -> None:
    """Records that were appended to a copy of the log, before the place where the query was, were never read, without a word."""
    disk, log, copy = LocalStorage(), str(tmp_path / "log"), tmp_path / "copy"

    def append(records: list[bytes]) -> None:
        with Writer(log, segment_size=segment_size, storage=disk) as writer:
            writer.append_many(records)

    append([b"a%03d" % number for number in range(10)])
    shutil.copytree(log, copy)
    append([b"b%03d" % number for number in range(10)])
    end = planned(disk, root=log)
    assert planned(disk, end, root=log) == end
    shutil.rmtree(log)
    shutil.copytree(copy, log)
    if appended:
        append([b"c%03d" % number for number in range(appended)])
    with pytest.raises(PositionError, match=r"is not a position of|put back from an older copy.*startingFrom"):
        planned(disk, end, root=log)
    begun = runs.begin(log, "2:0" if appended else "latest", disk)
    assert [record for _, record in rows(disk, begun, planned(disk, begun, root=log), root=log)] == [
        b"c%03d" % number for number in range(appended)
    ]


def test_a_run_of_an_earlier_version_goes_on(storage: Storage) -> None:
    """Its offset has no checksum: nothing is compared, and the next one has it."""
    with Writer(ROOT, storage=storage) as writer:
        writer.append(b"a")
    end = planned(storage)
    assert len(end.pop("check")) == 16
    with Writer(ROOT, storage=storage) as writer:
        writer.append(b"b")
    after = planned(storage, end)
    assert [record for _, record in rows(storage, end, after)] == [b"b"]
    assert "check" in after


def test_another_log_under_the_same_name(tmp_path: Path) -> None:
    """Failure 5: a log that was removed and begun anew is refused, also after it grew; so is an older copy that was put back."""
    root, storage = str(tmp_path / "log"), LocalStorage()
    for kept in ("old", "new"):
        with Writer(root) as writer:
            writer.append_many([b"a", b"b"])
        if kept == "old":
            shutil.copytree(root, tmp_path / "old")
            begun, end = runs.begin(root, "earliest", storage), planned(storage, root=root)
    longer = planned(storage, end, root=root)
    shutil.rmtree(root)
    shutil.copytree(tmp_path / "old", root)
    with pytest.raises(DamagedState, match="none that ends at 2:184"):
        rows(storage, end, longer, root)
    shutil.rmtree(root)
    with Writer(root) as writer:
        writer.append_many([b"a", b"b"])
    for start, until in ((begun, end), (runs.begin(root, "1:120", storage), end)):
        with pytest.raises(PositionError, match="was begun again"):
            rows(storage, start, until, root)
    with Writer(root) as writer:
        writer.append(b"c")
    with pytest.raises(PositionError, match="was begun again"):
        planned(storage, end, root=root)


def test_a_plan_that_the_log_does_not_keep(storage: Storage) -> None:
    """Failure 2, 4: a run whose end is not the end of a group, or is after the end of the log, is an error."""
    with Writer(ROOT, storage=storage) as writer:
        for record in (b"a", b"b"):
            writer.append(record)
            writer.flush()
    begun, end = runs.begin(ROOT, "earliest", storage), planned(storage)
    inside, beyond = ({**end, "position": position} for position in ("1:150", "9:120"))
    for wrong in (inside, beyond):
        with pytest.raises(DamagedState, match="where the plan does"):
            rows(storage, begun, wrong)
    with pytest.raises(DamagedState, match="expected one of version 1"):
        runs.runs(begun, {**end, "v": 2})
