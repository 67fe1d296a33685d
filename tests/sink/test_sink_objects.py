"""The requests of a sink and a source to an object store: they cost money, so the tests count them."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import clock
from penstock.clock import SECOND_NS
from penstock.errors import FileChanged
from penstock.formats import ReadFormat
from penstock.options import SINK, SOURCE, parse
from penstock.sink.sink import Batch, Sink
from penstock.source import ahead
from penstock.source.ahead import OPEN_FILES, OpenedAhead, WindowsAhead
from penstock.source.cursor import FileVersion, Split
from penstock.source.read import Reading
from penstock.source.scan import Scan
from penstock.storage import ObjectStorage, names_at
from penstock.storage._in_turn import InTurn
from penstock.testing import FakeClock, ObjectStore
from tests.support.wait import PATIENCE_SECONDS

REQUESTS = {"put", "upload", "copy", "head", "begin", "get", "objects", "listed_after", "has_below", "remove"}


class Counted:
    """A store that counts each request."""

    def __init__(self) -> None:
        self.store = ObjectStore()
        self.requests: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.store, name)
        return self._counted(name, call) if name in REQUESTS else call

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        self.requests[name] += 1
        return call

    def taken(self) -> Counter[str]:
        """Return the requests since the last call."""
        taken, self.requests = self.requests, Counter()
        return taken


@pytest.fixture
def counted() -> Counted:
    return Counted()


def as_paid(asked: Counter[str]) -> dict[str, int]:
    """Return the requests that S3 bills, by kind: a copy is three requests (begin, copy, finish)."""
    return {
        "writes": asked["put"] + 3 * asked["copy"],
        "listings": asked["objects"] + asked["listed_after"] + asked["has_below"],
        "reads": asked["head"] + asked["begin"] + asked["get"],
        "deletions": asked["remove"],
    }


def test_requests_of_a_batch(counted: Counted) -> None:
    """A batch with one task that ends one part makes the requests in `docs/storage-s3.md`, however many batches came before."""
    storage = ObjectStorage(system=counted)
    sink = Sink(storage, "/out", parse(SINK, {"path": "/out", "rollBatches": "1"}, what="sink"), "sink")
    paid = []
    for number in range(6):
        batch = Batch("query", number, "")
        counted.taken()
        begun = sink.begin("driver", batch)
        result = sink.write(begun, "query", number, 0, pa.schema([("value", pa.string())]), [b"one\ntwo\n"])
        sink.commit(batch, [result])
        paid.append(as_paid(counted.taken()))
    assert len(names_at(storage, "/out")) == 7
    assert paid[3:] == [{"writes": 7, "listings": 5, "reads": 7, "deletions": 3}] * 3


def test_requests_of_a_part_more(counted: Counted) -> None:
    """Each further part that a task ends adds the same number of requests, whatever the number of parts."""
    schema, paid = pa.schema([("k", pa.string())]), []
    options = {"path": "/out", "rollBatches": "1", "bucketBy": "k={k}", "format": "parquet"}
    sink = Sink(ObjectStorage(system=counted), "/out", parse(SINK, options, what="sink"), "sink")
    for number, parts in enumerate((1, 1, 1, 2, 3, 7)):
        batch = Batch("query", number, "")
        counted.taken()
        begun = sink.begin("driver", batch)
        rows = pa.record_batch({"k": [f"{part}" for part in range(parts)]})
        sink.commit(batch, [sink.write(begun, "query", number, 0, schema, [rows])])
        paid.append(as_paid(counted.taken()))
    more = {"writes": 4, "listings": 1, "reads": 4, "deletions": 1}
    for parts, kinds in zip((2, 3, 7), paid[3:], strict=True):
        assert kinds == {kind: count + (parts - 1) * more[kind] for kind, count in paid[2].items()}


def test_requests_of_an_idle_source(counted: Counted) -> None:
    """A look at an unchanged directory is three requests (its existence, what is below it, its names), however many files it has."""
    storage = ObjectStorage(system=counted)
    for number in range(2_000):
        counted.store.put(f"in/{number:05}", b"x", "")
    with clock.use(FakeClock()):
        scan = Scan.of(storage, "/in", parse(SOURCE, {"path": "/in"}, what="source"))
        assert len(scan.refresh().came) == 2_000
        counted.taken()
        for _ in range(3):
            clock.sleep(10)
            assert scan.refresh().came == []
        assert counted.taken() == {"head": 3, "has_below": 3, "objects": 3}


def test_an_object_that_is_read_on_is_read_ahead(counted: Counted) -> None:
    """Reading 20 MiB in steps of one takes four requests, not twenty; single reads here and there return the right bytes, too."""
    data = b"".join(bytes([number]) * (1 << 20) for number in range(20))
    counted.store.put("in/a", data, "")
    with ObjectStorage(system=counted).open("/in/a") as file:
        read = b"".join(file.read(at, 1 << 20) for at in range(0, len(data), 1 << 20))
        assert read == data
        assert counted.taken() == {"begin": 1, "get": 3}
        for at in (5 << 20, 17, 19 << 20, 3 << 20):
            assert file.read(at, 100) == data[at : at + 100]
        assert file.read(len(data) - 3, 10) == data[-3:]
        assert file.read(len(data), 10) == b""


def test_an_idle_query_asks_less_than_ten_times_a_minute(counted: Counted) -> None:
    """Spark asks for news every 10 ms: while nothing comes the scan looks less and less often, and at once again after something came."""
    storage = ObjectStorage(system=counted)
    counted.store.put("in/a", b"1", "")
    with clock.use(FakeClock()):
        scan = Scan.of(storage, "/in", parse(SOURCE, {"path": "/in"}, what="source"))
        scan.refresh()
        for seconds in (10, 60, 600):
            clock.sleep(seconds)
            scan.refresh()
        counted.taken()
        for _ in range(600):
            clock.sleep(0.1)
            assert scan.refresh().came == []
        assert sum(counted.taken().values()) < 10
        counted.store.put("in/b", b"1", "")
        clock.sleep(20)
        assert len(scan.refresh().came) == 1
        counted.store.put("in/c", b"1", "")
        clock.sleep(0.01)
        assert len(scan.refresh().came) == 1


def test_a_new_object_is_found_at_once(counted: Counted) -> None:
    """Nobody knows when a prefix was changed: it is listed each time, and new or replaced objects below it are found."""
    storage = ObjectStorage(system=counted)
    counted.store.put("in/d/a", b"1", "")
    options = parse(SOURCE, {"path": "/in", "recursiveFileLookup": "true"}, what="source")
    with clock.use(FakeClock()):
        scan = Scan.of(storage, "/in", options)
        assert [arrival.file.path for arrival in scan.refresh().came] == ["d/a"]
        clock.sleep(10)
        counted.store.put("in/d/b", b"1", "")
        assert [arrival.file.path for arrival in scan.refresh().came] == ["d/b"]
        clock.sleep(10)
        counted.store.remove("in/d/a")
        counted.store.put("in/d/a", b"2", "")
        changes = scan.refresh()
        assert [arrival.file.path for arrival in changes.came] == ["d/a"]
        assert [file.path for file in changes.gone] == ["d/a"]


def rising(storage: ObjectStorage, **options: str) -> Scan:
    """Return a scan of names that increase with time."""
    return Scan.of(storage, "/in", parse(SOURCE, {"path": "/in", "namesRise": "true", **options}, what="source"))


def test_names_that_rise_cost_one_request(counted: Counted) -> None:
    """With 3,000 objects in 30 directories a look is one listing after the greatest name, and finds new objects, also deeper ones."""
    storage = ObjectStorage(system=counted)
    with clock.use(FakeClock()):
        for number in range(3_000):
            counted.store.put(f"in/day={number // 100:02}/{number:05}", b"x", "")
        clock.sleep(600)
        scan = rising(storage)
        assert len(scan.refresh().came) == 3_000
        clock.sleep(20)
        counted.taken()
        counted.store.put("in/day=29/03000", b"x", "")
        counted.store.put("in/day=30/03001", b"x", "")
        counted.store.put("in/day=30/_hidden/03002", b"x", "")
        counted.store.put("in/day=30/deep/03003", b"x", "")
        assert [arrival.file.path for arrival in scan.refresh().came] == ["day=29/03000", "day=30/03001"]
        assert counted.taken() == {"listed_after": 1}
        assert scan.passed_over == {"day=30/deep"}
        for _ in range(10):
            clock.sleep(20)
            assert scan.refresh().came == []
        assert counted.taken() == {"listed_after": 10}


def test_empty_objects_cost_no_request_where_names_rise(counted: Counted) -> None:
    """The listing shows whether an empty object is a file or a directory, wherever its children are in it: no other request is needed."""
    storage = ObjectStorage(system=counted)
    with clock.use(FakeClock()):
        counted.store.put("in/0", b"x", "")
        clock.sleep(600)
        scan = rising(storage, recursiveFileLookup="true")
        scan.refresh()
        clock.sleep(20)
        counted.taken()
        files = {f"{number}": b"" for number in range(1, 9)} | {
            "d!": b"",
            "d-1": b"",
            "d-1.x": b"y",
            "d/e/f": b"",
            "d/e-": b"",
            "z": b"",
        }
        for name, data in (files | {"d": b"", "d/e": b"", "m": b"", "m/n": b"", "m/n/o": b"1"}).items():
            counted.store.put(f"in/{name}", data, "")
        assert {arrival.file.path for arrival in scan.refresh().came} == {*files, "m/n/o"}
        assert counted.taken() == {"listed_after": 1}


def test_names_that_do_not_quite_rise_are_found(counted: Counted) -> None:
    """A name smaller than one of the last minute is found at once; any other by the next full listing, or by a new scan."""
    storage = ObjectStorage(system=counted)
    with clock.use(FakeClock()):
        counted.store.put("in/b5", b"x", "")
        clock.sleep(600)
        scan = rising(storage)
        scan.refresh()
        clock.sleep(20)
        counted.store.put("in/b7", b"x", "")
        assert [arrival.file.path for arrival in scan.refresh().came] == ["b7"]
        clock.sleep(20)
        counted.store.put("in/b6", b"x", "")
        assert [arrival.file.path for arrival in scan.refresh().came] == ["b6"]
        clock.sleep(100)
        scan.refresh()
        clock.sleep(20)
        counted.store.put("in/a", b"x", "")
        assert scan.refresh().came == []
        assert sorted(arrival.file.path for arrival in rising(storage).refresh().came) == ["a", "b5", "b6", "b7"]
        clock.sleep(3_600)
        assert [arrival.file.path for arrival in scan.refresh().came] == ["a"]


@pytest.mark.parametrize("seed", range(6))
def test_rising_names_are_all_found(counted: Counted, seed: int) -> None:
    """Whatever the directories and filters, a scan that lists from a name on finds the same files as a scan that lists everything."""
    draw = random.Random(seed)  # noqa: S311 - which names are drawn is no secret
    storage = ObjectStorage(system=counted)
    filters = {"recursiveFileLookup": draw.choice(["true", "false"]), "pathGlobFilter": draw.choice(["*", "*[02468]"])}
    with clock.use(FakeClock()):
        number, scan, found = 0, rising(storage, **filters), set[str]()
        counted.store.put("in/00000", b"x", "")
        for _ in range(40):
            for _ in range(draw.randrange(4)):
                number += 1
                middle = draw.choice(["", f"k={number}/", f"d/{number}/", "_h/", f"{number}.tmp/"])
                counted.store.put(f"in/p{number // 7:05}/{number:05}{middle and '/'}{middle}{number:05}", b"x", "")
            clock.sleep(draw.choice([1, 30, 120]))
            found |= {arrival.file.path for arrival in scan.refresh().came}
        clock.sleep(30)
        found |= {arrival.file.path for arrival in scan.refresh().came}
        assert found == {arrival.file.path for arrival in rising(storage, **filters).refresh().came}
        assert {file.path for file in scan.files()} == found


def test_an_input_that_was_emptied_is_an_empty_directory(counted: Counted) -> None:
    """A prefix disappears with its last object; a source that reads it continues, and finds what comes later."""
    storage = ObjectStorage(system=counted)
    counted.store.put("in/a", b"1", "")
    with clock.use(FakeClock()):
        scan = Scan.of(storage, "/in", parse(SOURCE, {"path": "/in"}, what="source"))
        assert len(scan.refresh().came) == 1
        counted.store.remove("in/a")
        clock.sleep(10)
        assert [file.path for file in scan.refresh().gone] == ["a"]
        counted.store.put("in/b", b"1", "")
        clock.sleep(10)
        changes = scan.refresh()
        assert [arrival.file.path for arrival in changes.came] == ["b"]
        assert changes.came[0].file.modified_ns % SECOND_NS == 0


class Threads(ObjectStorage):
    """A simulated store that is called from threads, as real ones are."""

    def workers(self, count: int) -> Executor:
        return ThreadPoolExecutor(count)


def reading(counted: Counted, data: bytes, form: str = "text") -> tuple[Reading, Split]:
    """Return a reading of one object, and the split that covers it."""
    counted.store.put("in/a", data, "")
    storage = Threads(system=counted)
    entry = storage.stat("/in/a")
    counted.taken()
    file = FileVersion("a", entry.size, entry.modified_ns, entry.identity)
    schema = pa.schema([("value", pa.string())])
    return Reading(storage, "/in", ReadFormat(form, schema), None, ("value",)), Split(file, 0, file.size)


def test_the_next_block_is_on_its_way_while_one_is_worked_on(counted: Counted) -> None:
    """In a split of 30 MiB the second block is requested before the first is returned; nothing is read twice, or beyond the split."""
    read, split = reading(counted, b"%063d\n" % 7 * (640 << 10))
    split = Split(split.file, 0, 30 << 20)
    batches = read.batches([split])
    rows = next(batches).num_rows
    until = time.monotonic() + PATIENCE_SECONDS
    while (
        counted.requests["get"] < 2 + 2 and time.monotonic() < until
    ):  # one read to find the end of each block, and one for the block
        time.sleep(0.001)
    assert counted.requests["get"] >= 2 + 2
    rows += sum(batch.num_rows for batch in batches)
    assert rows == (30 << 20) // 64
    assert counted.taken()["get"] <= 9


def test_an_object_that_is_replaced_in_mid_read_is_told(counted: Counted) -> None:
    """Another object under the same key, with equal length and second, is FileChanged: each read names the planned tag."""
    read, split = reading(counted, b"%063d\n" % 7 * (768 << 10))
    batches = read.batches([split])
    next(batches)
    counted.store.remove("in/a")
    counted.store.put("in/a", b"%063d\n" % 8 * (768 << 10), "")
    with pytest.raises(FileChanged, match="/in/a' was replaced or removed while it was read"):
        list(batches)


def test_a_table_that_is_replaced_in_mid_read_is_told(counted: Counted) -> None:
    """The same for Parquet, whose library reads by itself."""
    written = pa.BufferOutputStream()
    rows = [random.Random(0).randbytes(64).hex() for _ in range(20_000)]  # noqa: S311 - bytes that do not shrink
    pq.write_table(pa.table({"value": rows}), written, row_group_size=5_000, compression="none", use_dictionary=False)
    read, split = reading(counted, written.getvalue().to_pybytes(), "parquet")
    batches = read.batches([split])
    next(batches)
    counted.store.remove("in/a")
    with pytest.raises(FileChanged, match="/in/a' was replaced or removed while it was read"):
        list(batches)


def test_an_object_that_was_replaced_before_it_is_read_is_told(counted: Counted) -> None:
    """An object is replaced after planning by one of equal length within the same second: the tag shows it."""
    read, split = reading(counted, b"one\n")
    counted.store.remove("in/a")
    counted.store.put("in/a", b"two\n", "")
    with pytest.raises(FileChanged, match="changed after it was planned"):
        list(read.batches([split]))


def objects(counted: Counted, names: list[str]) -> tuple[Reading, list[Split]]:
    """Return a reading of objects that contain their names, and a split for each."""
    for name in names:
        counted.store.put(f"in/{name}", f"{name}\n".encode(), "")
    storage = Threads(system=counted)
    entries = [storage.stat(f"/in/{name}") for name in names]
    counted.taken()
    files = [FileVersion(entry.name, entry.size, entry.modified_ns, entry.identity) for entry in entries]
    schema = pa.schema([("value", pa.string())])
    reads = Reading(storage, "/in", ReadFormat("text", schema), None, ("value",))
    return reads, [Split(file, 0, file.size) for file in files]


def test_small_objects_are_opened_ahead(counted: Counted) -> None:
    """Of 100 objects sixteen are requested before the first is needed; each is requested once, and they come in order."""
    names = [f"{number:03}" for number in range(100)]
    reads, splits = objects(counted, names)
    coming = OpenedAhead(reads.storage.open, [f"/in/{name}" for name in names], ThreadPoolExecutor(OPEN_FILES))
    coming.open("/in/000")
    until = time.monotonic() + PATIENCE_SECONDS
    while counted.requests["begin"] < OPEN_FILES + 1 and time.monotonic() < until:
        time.sleep(0.001)
    assert counted.taken() == {"begin": OPEN_FILES + 1}
    batches = reads.batches(splits)
    values = [value for batch in batches for value in batch.column(0).to_pylist()]
    assert values == names
    assert counted.taken() == {"begin": 100}


def test_an_object_that_is_gone_fails_where_it_is_read(counted: Counted) -> None:
    """An object opened ahead that is gone is an error at its own turn, after the rows of those before; nothing waits for the others."""
    reads, splits = objects(counted, [f"{number:03}" for number in range(40)])
    counted.store.remove("in/030")
    with pytest.raises(FileChanged, match="/in/030' was planned and is gone"):
        list(reads.batches(splits))
    assert list(reads.batches(splits[:30]))
    batches = reads.batches(splits[:20] + splits[:20])  # each is read twice
    assert sum(batch.num_rows for batch in batches) == 40


def windows_of(
    data: bytes, at: int | None = None, end: int | None = None
) -> tuple[WindowsAhead, list[tuple[int, int]]]:
    """Return the reader of windows of these bytes, and the list of its requests."""
    asked: list[tuple[int, int]] = []

    class File:
        def read(self, offset: int, length: int) -> bytes:
            asked.append((offset, length))
            return data[offset : offset + length]

    return WindowsAhead(File(), len(data) if end is None else end, InTurn(), at), asked


@pytest.mark.parametrize("seed", range(8))
def test_windows_hold_what_the_file_does(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Reads at random places, forward and back, short and long, across the windows read ahead: each returns the bytes of the file."""
    monkeypatch.setattr(ahead, "WINDOW_BYTES", 64)
    draw = random.Random(seed)  # noqa: S311 - which places are drawn is no secret
    data = draw.randbytes(3_000)
    file, _ = windows_of(data, draw.choice([None, 0, 700]), draw.choice([None, 2_000]))
    place = 0
    for _ in range(400):
        place = draw.choice([place, place, place, place + 64, max(place - 100, 0), draw.randrange(3_000)]) % 3_000
        length = draw.choice([1, 30, 64, 65, 200, 900])
        assert file.read(place, length) == data[place : place + length]
        place += length


def test_windows_are_asked_for_once_and_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequential reader has two windows requested ahead, a reader of tables as many as proved useful; none is beyond the split."""
    monkeypatch.setattr(ahead, "WINDOW_BYTES", 100)
    data = bytes(2_000)
    file, asked = windows_of(data, at=0, end=950)
    file.read(0, 10)
    assert asked == [(0, 100), (100, 100), (200, 100)]
    for at in range(10, 960, 47):
        file.read(at, 47)
    assert sorted(asked) == [*((at, 100) for at in range(0, 900, 100)), (900, 50), (950, 47)]
    file, asked = windows_of(data)
    for at, length in ((1_990, 10), (0, 30), (300, 20), (600, 20)):  # a footer, and columns at several places
        file.read(at, length)
    assert asked == [(1_990, 10), (0, 30), (300, 20), (600, 20)]
    asked.clear()
    for at in range(620, 1_220, 20):
        file.read(at, 20)
    assert asked == [(620 + 100 * number, 100) for number in range(8)]
