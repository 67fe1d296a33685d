"""Positions: one that was given, by any call, can be read from; and if it cannot, the error says why."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.errors import DamagedState, OptionError, PositionError, StorageError
from penstock.storage import Storage
from penstock.testing import CrashDisk, CrashHdfs, ObjectStore
from penstock.wal import Log, Position, Reader, Writer, form
from tests.support.damage import flipped, unsynced
from tests.support.effort import effort

ROOT = "/log"
SEGMENT_BYTES = 500
STORAGES: dict[str, Callable[[], Any]] = {"disk": CrashDisk, "hdfs": CrashHdfs, "objects": ObjectStore}

sizes = st.one_of(st.integers(0, 40), st.integers(100, 600))
steps = st.one_of(
    st.tuples(st.just("append"), sizes),
    st.tuples(st.just("many"), st.lists(sizes, max_size=4)),
    *(st.tuples(st.just(what), st.none()) for what in ("position", "flush", "close", "die", "purge", "read")),
)


@dataclass
class Story:
    """A log and its writers, one after another.

    `records` are those that will be read; `given` has positions with the number of the next record, `appended` those of the records.
    """

    storage: Storage
    whole: bool
    records: list[bytes] = field(default_factory=list)
    given: list[tuple[Position, int]] = field(default_factory=list)
    appended: list[tuple[Position, int]] = field(default_factory=list)
    lost: list[Position] = field(default_factory=list)
    durable: int = 0
    writer: Writer = field(init=False)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        self.writer = Writer(ROOT, segment_size=SEGMENT_BYTES, whole=self.whole, storage=self.storage)
        assert self.writer.sequence == len(self.records) == self.durable

    def do(self, what: str, how: Any) -> None:
        getattr(self, what)(*[how] * (how is not None))

    def append(self, size: int) -> None:
        at = len(self.records)
        self.records.append(b"%d." % at + bytes(size))
        self.appended.append((self.writer.append(self.records[-1]), at))

    def many(self, sizes: list[int]) -> None:
        at = len(self.records)
        self.records += [b"%d." % (at + n) + bytes(size) for n, size in enumerate(sizes)]
        (self.appended if sizes else self.given).append((self.writer.append_many(self.records[at:]), at))

    def position(self) -> None:
        self.given.append((self.writer.position, len(self.records)))

    def flush(self) -> None:
        self.writer.flush()
        self.durable = len(self.records)

    def close(self) -> None:
        self.writer.close()
        self.durable = len(self.records)
        self.given.append((self.writer.position, self.durable))
        self.open()

    def die(self) -> None:
        self.writer.__exit__(KeyError)  # a killed process leaves nothing of the records that it has not flushed
        self.records = self.records[: self.durable]
        self.lost += [at for at, number in self.appended if number >= self.durable]
        self.lost += [at for at, number in self.given if number > self.durable]
        self.appended = [(at, number) for at, number in self.appended if number < self.durable]
        self.given = [(at, number) for at, number in self.given if number <= self.durable]
        self.given.append((self.writer.position, self.durable))
        self.open()

    def purge(self) -> None:
        if self.given + self.appended:
            at, _ = sorted(self.given + self.appended)[len(self.given) // 2]
            Log(ROOT, storage=self.storage).purge(at)

    def read(self) -> None:
        with Reader(ROOT, storage=self.storage) as reader:
            self.given.append((reader.position, Log(ROOT, storage=self.storage).info().first))
            for batch in reader.batches():
                self.given += [(batch.position(index), batch.sequence + index) for index in range(batch.count)]
            self.given.append((reader.position, reader.sequence))

    def check(self, storage: Storage) -> None:
        """Read from each position; positions that were purged, or died with their writer, must give an error."""
        first = Log(ROOT, storage=storage).info().first
        for at, number in self.given + self.appended:
            if number < first:
                with pytest.raises(PositionError):
                    Reader(ROOT, start=at, storage=storage)
                continue
            with Reader(ROOT, start=at, storage=storage) as reader:
                assert reader.sequence == number, at
                assert list(reader) == self.records[number:], at
                assert reader.sequence == len(self.records)
        for at in self.lost:
            with suppress(PositionError):
                Reader(ROOT, start=at, storage=storage).close()


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", STORAGES)
@example(script=[("append", 1), ("position", None), ("append", 400), ("position", None)])
@example(script=[("position", None), ("many", []), ("die", None), ("position", None), ("append", 3), ("close", None)])
@example(script=[("append", 1), ("flush", None), ("append", 400), ("position", None), ("die", None), ("append", 9)])
@settings(max_examples=effort(25, 3000), deadline=None)
@given(script=st.lists(steps, max_size=14))
def test_a_position_that_was_given_is_one_that_can_be_read_from(
    kind: str, whole: bool, script: list[tuple[str, Any]]
) -> None:
    """Given before or after a flush, by a writer, a reader or a batch; over rolls, crashes, restarts, purges and power cuts."""
    disk = STORAGES[kind]()
    story = Story(disk.storage(), whole)
    for what, how in script:
        story.do(what, how)
    story.close()
    story.check(disk.storage())
    if kind == "disk":
        story.check(CrashDisk(next(disk.images())).storage())
    for at, _ in sorted(story.given + story.appended):
        Log(ROOT, storage=disk.storage()).purge(at)
        story.check(disk.storage())


def test_a_position_ahead_of_the_flush_is_refused_until_then(root: str) -> None:
    """Unflushed records cannot be read, and the error says so; after the flush they can."""
    with Writer(root, storage=unsynced()) as writer:
        writer.append(b"a")
        writer.flush()
        writer.append(b"b")
        second, end = writer.append(b"c"), writer.position
        for at in (second, end):
            with pytest.raises(PositionError, match="not flushed yet, or lost with its writer"):
                Reader(root, start=at)
        writer.flush()
        assert list(Reader(root, start=second)) == [b"c"]
        assert list(Reader(root, start=end)) == []


def test_the_next_record_is_where_its_position_was(root: str) -> None:
    """Within one segment, the writer's position is that of the next record, whatever is open; so a reader may wait there."""
    with Writer(root, storage=unsynced()) as writer, Reader(root, start=writer.position) as waiting:
        for number in range(5):
            at = writer.position
            assert writer.append(b"%d" % number) == at
        assert list(waiting) == []
        writer.flush()
        assert list(waiting) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_writer_that_failed_gives_no_position(root: str) -> None:
    """Records after a failed flush are nowhere, so no position is given for them."""
    disk = CrashDisk()
    writer = Writer(ROOT, storage=disk.storage())
    writer.append(b"a")
    writer.flush()
    end = writer.position
    writer.append(b"b")
    writer._failed = OSError("a disk that is full")
    with pytest.raises(StorageError, match="cannot be appended to"):
        _ = writer.position
    writer.close()
    with Reader(ROOT, start=end, storage=disk.storage()) as reader:
        assert list(reader) == []


def test_a_writer_at_the_end_of_a_segment_says_so(root: str) -> None:
    """Before it begins a segment, a writer gives the end of the log: readable with the next segment missing, headerless, or there."""
    with Writer(root, segment_size=200, storage=unsynced()) as writer:
        writer.append(bytes(60))
    with Writer(root, segment_size=200, storage=unsynced()) as writer:
        at = writer.position
    assert at == writer.position == Log(root).info().end
    assert list(Reader(root, start=at)) == []
    (Path(root) / "000000000002.wal").touch()  # its maker died: failure 7
    assert list(Reader(root, start=at)) == []
    with Writer(root, segment_size=200, storage=unsynced()) as writer:
        assert writer.position == at
        assert writer.append(b"next") == (3, form.FIRST_ENTRY)
    assert list(Reader(root, start=at)) == [b"next"]


def test_the_begin_of_a_log_without_records_can_be_read_from(root: str) -> None:
    """For an empty directory, or one where writers died before their first record, reader and writer give the same position."""
    with Writer(root, storage=unsynced()) as writer:
        begin = writer.position
    for number in (1, 2):
        assert (begin, Reader(root).position) == ((1, form.FIRST_ENTRY), (1, form.FIRST_ENTRY))
        assert list(Reader(root, start=begin)) == []
        (Path(root) / f"{number:012}.wal").touch()
    with Writer(root, segment_size=200, storage=unsynced()) as writer:
        assert writer.position == begin
        for number in range(3):
            writer.append(b"%d" % number * 60)
    assert len(list(Reader(root, start=begin))) == 3
    Log(root).purge(Position(4, form.FIRST_ENTRY))
    with pytest.raises(PositionError, match="it was purged"):
        Reader(root, start=begin)
    for wrong in (Position(9, form.FIRST_ENTRY), Position(2, 128), Position(0, 0)):
        with pytest.raises(PositionError):
            Reader(root, start=wrong)


def test_the_end_of_what_was_salvaged_can_be_read_from(root: str) -> None:
    """A salvage that skipped damage gives its position; another salvage continues there, with the records appended since."""
    with Writer(root, storage=unsynced()) as writer:
        for number in range(4):
            writer.append(b"%d" % number * 100)
            writer.flush()
    path = Path(root) / "000000000001.wal"
    path.write_bytes(flipped(path.read_bytes(), 300))
    given = []
    with Reader(root, mode="salvage") as reader:
        given.append((reader.position, reader.sequence))
        while reader.advance():
            given.append((reader.position, reader.sequence))
    assert len(given) == 4
    for at, sequence in given:
        with Reader(root, start=at, mode="salvage") as reader:
            assert reader.sequence == sequence
            assert len(list(reader)) == len([number for _, number in given if number > sequence]), at


@pytest.mark.parametrize("offset", [-1, -5, -(1 << 70), 1, 119, 1 << 40, (1 << 63) - 1, 1 << 63, 1 << 70])
@pytest.mark.parametrize("segment", [-1, 0, 1, 2, 10**30])
def test_a_position_of_no_file_is_refused(root: str, segment: int, offset: int) -> None:
    """A negative position, or one larger than any file, is refused as not of this log, whatever the system would say."""
    with Writer(root, storage=unsynced()) as writer:
        writer.append(b"a")
    with pytest.raises(PositionError, match=f"{segment}:{offset} is not a position of"):
        Reader(root, start=Position(segment, offset))


ODD: Any = [("1", 120), (1.0, 120), (1, None), (True, 120)]


@pytest.mark.parametrize("wrong", ["1:120", (1, 120), 1, b"1:120", [1, 120], *(Position(*each) for each in ODD)])
def test_what_is_no_position_is_refused_in_words(root: str, wrong: Any) -> None:
    """A text, a tuple, a number: refused with a hint how to make a position from a text, and nothing is purged."""
    with Writer(root, storage=unsynced()) as writer:
        writer.append(b"a")
    for use in (lambda: Reader(root, start=wrong), lambda: Log(root).purge(wrong), lambda: Reader(root).seek(wrong)):
        with pytest.raises(OptionError, match=r"Position\.parse"):
            use()
    for text in (3, None, "1", "1:2:3", ":", "-1:2"):
        with pytest.raises(OptionError, match="not a position"):
            Position.parse(text)
    assert list(Reader(root, start=Position.parse("1:120"))) == [b"a"]


def test_the_begin_of_a_segment_is_offset_zero(root: str) -> None:
    """M3, M9: nobody needs to know where a first record is: `Position(2, 0)` can be read from and purged to, if the segment exists."""
    with Writer(root, segment_size=1000, storage=unsynced()) as writer:
        at = [writer.append(b"%03d" % number * 40) for number in range(20)]
        writer.flush()
    for segment in sorted({position.segment for position in at}):
        behind = sum(position.segment >= segment for position in at)
        for mode in ("tail", "strict", "salvage"):
            with Reader(root, start=Position(segment, 0), mode=mode) as reader:
                assert reader.position in at
                assert len(list(reader)) == behind
    assert Log(root).purge(before=Position(3, 0)) == [1, 2]
    for nowhere in (Position(1, 0), Position(9, 0)):
        with pytest.raises(PositionError):
            Reader(root, start=nowhere)


@pytest.mark.parametrize("left", [0, 40, form.HEADER_BYTES, 150])
@pytest.mark.parametrize("zeros", [False, True])
def test_who_kept_a_position_is_told_of_an_end_that_is_gone(root: str, left: int, *, zeros: bool) -> None:
    """A last segment that was cut, or zeroed after its header, looks like a crash: a kept position in it proves that there was more."""
    with Writer(root, storage=unsynced()) as writer:
        writer.append(b"first")
    with Writer(root, storage=unsynced()) as writer:
        acknowledged = [writer.append(b"x" * 40) for _ in range(3)][-1]
        writer.flush()
    last = Path(root) / "000000000002.wal"
    data = last.read_bytes()
    last.write_bytes(data[:left] + bytes(len(data) - left if zeros else 0))
    if zeros and left != form.HEADER_BYTES:
        with pytest.raises(DamagedState, match="is damaged at byte"):
            list(Reader(root))
    else:
        assert list(Reader(root)) == [b"first"]
        with pytest.raises(PositionError, match="beyond the end of the log"):
            Reader(root, start=acknowledged)
