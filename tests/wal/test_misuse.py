"""What programs may do to a writer or a reader without harm: drop it, fork, interrupt it, pass it an iterator."""

from __future__ import annotations

import copy
import gc
import itertools
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from penstock.errors import DamagedState, NotThere, OptionError, PositionError, StorageError, UsageError
from penstock.storage import LocalStorage
from penstock.wal import Log, Manager, Position, Reader, Writer
from penstock.windows import WindowStore
from tests.support.damage import unsynced
from tests.support.storages import STORAGES
from tests.support.wait import PATIENCE_SECONDS


def test_records_of_any_iterator_and_buffer(root: str) -> None:
    """Each record of an iterator is appended once; an iterator that raises appends nothing; a buffer may be changed after the call."""

    def failing() -> Iterator[bytes]:
        yield b"never"
        raise KeyError

    changed: Any = bytearray(b"d")
    buffers: list[Any] = [changed, memoryview(b"eEe")[::2]]
    with Writer(root) as writer:
        at = writer.append_many(each for each in (b"a", b"b"))
        writer.append_many(buffer for buffer in [bytearray(b"c"), *buffers])
        changed[:] = b"x"
        with pytest.raises(KeyError):
            writer.append_many(failing())
        for wrong in ("text", b"bytes", ["text"], [1]):
            with pytest.raises(OptionError, match="expected (several records|bytes)"):
                writer.append_many(wrong)  # type: ignore[arg-type]  # - that is what is tested
    with Reader(root, start=at) as reader:
        assert list(reader) == [b"a", b"b", b"c", b"d", b"ee"]


def test_paths_may_be_objects(root: str) -> None:
    """A directory may be given as a `pathlib.Path`, everywhere."""
    directory = Path(root)
    with Writer(directory / "log") as writer:
        at = writer.append(b"a")
    with Reader(directory / "log", start=at) as reader:
        assert list(reader) == [b"a"]
    assert Log(directory / "log").verify().records == 1
    assert Log(directory / "log").purge(at) == []
    with Manager(directory / "manager", lambda window, records: None) as manager:
        assert manager.committed(0) == []
    with WindowStore(directory / "windows") as store:
        store.save(0, b"b")
        assert store.load(0) == b"b"
        assert store.committed(0) == []


def test_what_is_dropped_lets_the_log_go(root: str) -> None:
    """A writer and readers that were not closed and have no references hold no lock, no segment and no descriptor."""
    with Writer(root, segment_size=200, storage=unsynced()) as writer:
        for number in range(5):
            writer.append(b"%d" % number * 60)
    dropped = Writer(root)
    dropped.append(b"not flushed")
    del dropped
    assert next(iter(Reader(root)))[:1] == b"0"
    assert len(list(Reader(root))) == 5
    assert [each.path for each in psutil.Process().open_files() if each.path.startswith(root)] == []
    assert Log(root, storage=unsynced()).purge(Position(9, 0)) == [1, 2, 3, 4]
    with Writer(root) as writer:
        assert writer.sequence == 5


def test_a_program_that_ends_with_a_log_open_says_nothing(root: str) -> None:
    """The log can be read afterwards, and Python prints no complaint while it shuts down."""
    program = (
        "import os, sys; from penstock.wal import Reader, Writer; writer = Writer(sys.argv[1]); writer.append(b'a'); "
        "writer.flush(); reader = Reader(sys.argv[1]); print(next(iter(reader))); os.kept = writer, reader"
    )  # objects kept there are dropped last
    done = subprocess.run([sys.executable, "-c", program, root], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("b'a'\n", "")
    assert len(list(Reader(root))) == 1


def test_an_open_log_is_not_copied(root: str) -> None:
    """Neither a writer nor a reader with an open segment can be pickled or deep-copied; a log and a position can."""
    with Writer(root) as writer:
        at = writer.append(b"a")
        writer.flush()
        with Reader(root, start=at) as reader:
            for made in (writer, reader):
                for copied in (pickle.dumps, copy.deepcopy):
                    with pytest.raises(TypeError):
                        copied(made)
    log, position = pickle.loads(pickle.dumps((Log(root), at)))  # noqa: S301 - made just here
    assert (log.info().records, position) == (1, at)


class _Slow:
    """A disk that stops after each write until the test lets it continue."""

    def __init__(self) -> None:
        self.written, self.goes_on = threading.Event(), threading.Event()
        self.synced = 0

    def write(self, fd: int, data: memoryview) -> int:
        done = os.write(fd, data)
        self.written.set()
        assert self.goes_on.wait(60)
        return done

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)
        self.synced += 1

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


@pytest.mark.parametrize("way", ["close", "exception"])
def test_a_writer_is_closed_beside_a_flush(root: str, way: str) -> None:
    """Closing waits for a flush that is between its write and its sync: that flush is acknowledged, and correctly."""
    slow = _Slow()
    writer = Writer(root, storage=LocalStorage(slow))
    slow.goes_on.set()
    writer.append(b"first")
    writer.flush()
    slow.goes_on.clear()
    slow.written.clear()
    before = slow.synced
    writer.append(b"second")
    with ThreadPoolExecutor(2) as threads:
        flushing = threads.submit(writer.flush)
        assert slow.written.wait(60)
        closing = threads.submit(writer.close if way == "close" else lambda: writer.__exit__(KeyError))
        assert wait([closing], 0.1).not_done
        slow.goes_on.set()
        flushing.result(60)
        assert slow.synced == before + 1
        closing.result(60)
    assert list(Reader(root)) == [b"first", b"second"]
    with pytest.raises(StorageError, match="was closed"):
        writer.append(b"third")


FORK = """
import os, sys
from penstock.errors import StorageError
from penstock.wal import Writer
writer = Writer(sys.argv[1])
writer.append(b"first")
writer.flush()
writer.append(b"second")
if not os.fork():
    for call in (writer.flush, lambda: writer.append(bytes(2 << 20)), writer.close):
        try:
            call()
        except StorageError as error:
            print(error)
    sys.exit()
os.wait()
try:
    Writer(sys.argv[1])
except StorageError as error:
    print("still", error)
writer.append(b"third")
writer.close()
"""


def test_a_fork_appends_nothing(root: str) -> None:
    """Failure 9: a flush in a forked child of the writer's process fails and writes nothing; the parent continues, and keeps the lock."""
    done = subprocess.run(
        [sys.executable, "-Wignore", "-c", FORK, root],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("of which this one is a fork") == 3
    assert "still" in done.stdout
    assert list(Reader(root)) == [b"first", b"second", b"third"]


def interrupted(left: int, function: Callable[[], object]) -> bool:
    """Call the function and raise from a signal handler after its call number `left`. Tell whether that happened.

    The garbage collector is off meanwhile: callbacks of others (hypothesis measures its time) would be interrupted instead of the log.
    """

    def interrupt(frame: object, event: str, called: object) -> None:
        nonlocal left
        left -= event != "c_call"
        if not left:
            raise KeyboardInterrupt

    gc.disable()
    try:
        sys.setprofile(interrupt)
        function()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
        gc.enable()
    return left <= 0


@pytest.mark.parametrize("way", ["one", "many", "a new segment"])
def test_an_interrupt_after_any_call(root: str, way: str) -> None:
    """Failure 10: a signal's exception after any call of an append: no record is there twice, and every position is right."""
    numbers, given = itertools.count(), {}
    with Writer(root, segment_size=2000, storage=unsynced()) as writer:
        ways: dict[str, Callable[[bytes], Position]] = {
            "one": writer.append,
            "many": lambda record: writer.append_many([record, b"%d" % next(numbers)]),
            "a new segment": lambda record: writer.append(record + bytes(1500)),
        }
        for turn in itertools.count(1):
            record = b"%d" % next(numbers)
            stopped = interrupted(turn, lambda record=record: given.update({record: ways[way](record)}))  # type: ignore[misc]  # - a default binds it
            for _ in range(2):
                record = b"%d" % next(numbers)
                given[record] = writer.append(record)
            if not stopped:
                break
    assert turn > 5
    found = [int(record.rstrip(b"\0")) for record in Reader(root)]
    assert found == sorted(set(found))
    for record, at in given.items():
        assert next(iter(Reader(root, start=at))).rstrip(b"\0") == record


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupted listing is not closed
def test_an_interrupt_after_any_call_of_a_flush(root: str) -> None:
    """Failure 10: acknowledged records are there; neither a flush nor a close waits for the interrupted flush."""
    kept = []  # so that none is dropped during an interrupt
    with ThreadPoolExecutor(1) as other:
        for turn in itertools.count(1):
            log, flushed = f"{root}/{turn}", 0
            kept.append(writer := Writer(log, storage=unsynced()))
            writer.append(b"a")
            if not (stopped := interrupted(turn, writer.flush)):
                flushed = 1
            with suppress(StorageError):
                writer.append(b"b")
                other.submit(writer.flush).result(60)
                flushed = 2
            other.submit(writer.close).result(60)
            assert len(list(Reader(log))) >= flushed
            if not stopped:
                break
    assert turn > 20


def test_an_exception_acknowledges_nothing(root: str) -> None:
    """Records appended but not flushed when a writer's block ends with an exception are not there."""
    with suppress(KeyError), Writer(root) as writer:
        writer.append(b"flushed")
        writer.flush()
        writer.append(b"not flushed")
        raise KeyError
    assert list(Reader(root)) == [b"flushed"]


@pytest.mark.parametrize("kind", STORAGES)
def test_what_is_no_directory_is_no_empty_log(kind: str) -> None:
    """E6: a missing directory, a file, and a directory of something else are each told from a new log, which is empty."""
    storage = STORAGES[kind]()
    storage.make_directory("/other")
    storage.put_if_absent("/other/file", b"")
    storage.make_directory("/new")
    given = Position(1, 120)
    uses: list[Callable[[str], object]] = [
        lambda root: Reader(root, storage=storage),
        lambda root: Log(root, storage=storage).info(),
        lambda root: Log(root, storage=storage).verify(),
        lambda root: Log(root, storage=storage).repair(),
    ]
    asked: list[Callable[[str], object]] = [
        lambda root: Log(root, storage=storage).purge(given),
        lambda root: Reader(root, start=given, storage=storage),
    ]
    for use in (*uses, *asked):
        if storage.has_directories:
            with pytest.raises(NotThere, match="'/none' does not exist; expected the directory of a log"):
                use("/none")
        with pytest.raises(UsageError, match="'/other/file' is a file; expected the directory of a log"):
            use("/other/file")
        use("/new")
    for use in uses:
        with pytest.raises(UsageError, match="'/other' has 'file' and no segment of a log"):
            use("/other")
    assert list(Reader("/new", storage=storage)) == []


def test_a_log_that_is_removed_under_its_reader_is_no_end(root: str) -> None:
    """A reader that waits at the start of a new log raises when the directory has gone; it would otherwise wait for ever."""
    os.mkdir(root)
    with Reader(root) as reader:
        assert not reader.advance()
        os.rmdir(root)
        with pytest.raises(NotThere, match="does not exist"):
            reader.advance()


@pytest.mark.parametrize("put_back", [False, True])
def test_a_log_that_is_taken_away_under_its_writer_acknowledges_nothing(root: str, *, put_back: bool) -> None:
    """A log is moved away, and a copy put in its place, while a writer has it open: no flush says that its records are in the log."""
    writer = Writer(root)
    for record in (b"a", b"b"):
        writer.append(record)
        writer.flush()
    if put_back:
        shutil.copytree(root, f"{root}-copy")
    os.rename(root, f"{root}-away")
    if put_back:
        os.rename(f"{root}-copy", root)
    writer.append(b"c")
    for said in ("is another file than" if put_back else "No such file", "an earlier write or sync of it failed"):
        with pytest.raises(StorageError, match=said):
            writer.flush()
    writer.close()
    assert not put_back or list(Reader(root)) == [b"a", b"b"]


@pytest.mark.parametrize("record", ["text", None, 3, ["a"], 1.5])
def test_a_record_that_is_no_bytes_is_refused_in_words(root: str, record: Any) -> None:
    """Text must be encoded by the caller; the error says so, and the writer, the manager and the store continue with the next record."""
    with Writer(root, storage=unsynced()) as writer:
        for use in (writer.append, lambda each: writer.append_many([b"a", each])):
            with pytest.raises(OptionError, match="expected bytes"):
                use(record)
        writer.append(b"b")
    assert list(Reader(root)) == [b"b"]
    with Manager(f"{root}/manager", lambda window, records: None) as manager:
        with pytest.raises(OptionError, match="expected bytes"):
            manager.append(record)
        manager.append(bytearray(b"c"))  # a buffer, which a log accepts
        manager.end_window(0)
    with WindowStore(f"{root}/windows") as store:
        with pytest.raises(OptionError, match="expected bytes"):
            store.save(0, record)
        store.save(0, memoryview(b"d"))  # type: ignore[arg-type]  # - a buffer, as a window's state takes it
        assert store.load(0) == b"d"


@pytest.mark.parametrize("wrong", [2.5, "2", None, True, float("nan"), float("inf"), b"2"])
def test_a_window_that_is_no_whole_number_is_refused_in_words(root: str, wrong: Any) -> None:
    """A window and an owner are whole numbers: anything else is refused everywhere, and never searched for in vain."""
    with Manager(f"{root}/manager", lambda window, records: None) as manager:
        calls: list[Callable[[Any], object]] = [manager.restore, manager.end_window, manager.committed]
        for use in calls:
            with pytest.raises(OptionError, match="window="):
                use(wrong)
        manager.end_window(np.int64(3))  # as numpy counts
        assert type(manager.flushed) is int
    with WindowStore(f"{root}/windows") as store:
        store.save(2, b"a")
        window_uses: list[Callable[[Any], object]] = [
            lambda each: store.save(each, b"b"),
            store.load,
            store.load_all,
            store.position,
            store.committed,
        ]
        owner_uses: list[Callable[[Any], object]] = [
            lambda each: store.save(3, b"b", each),
            lambda each: store.load(2, each),
            lambda each: store.largest_completed([each]),
        ]
        for use in window_uses:
            with pytest.raises(OptionError, match="window="):
                use(wrong)
        for use in owner_uses:
            with pytest.raises(OptionError, match="owner="):
                use(wrong)
        with pytest.raises(OptionError, match="owners="):
            store.largest_completed(5)  # type: ignore[arg-type]  # - that is what is tested
        assert store.load(2) == b"a"


@pytest.mark.parametrize("size", [None, True, 1.5, float("nan"), "1.5m", "", -1, 0, 119, [64]])
def test_a_segment_size_that_is_none(root: str, size: Any) -> None:
    """A segment size that is not a whole number of bytes, or leaves no room, is refused everywhere, before anything is created."""
    for make in (
        lambda: Writer(root, segment_size=size),
        lambda: Manager(root, lambda window, records: None, segment_size=size),
        lambda: WindowStore(root, segment_size=size),
    ):
        with pytest.raises(OptionError, match="segment_size="):
            make()
    assert not Path(root).exists()


@pytest.mark.parametrize("directory", [None, 3, b"/tmp/log", ["log"], ""])
def test_a_directory_that_is_no_path(directory: Any) -> None:
    """Every call that takes a path refuses anything that is not one."""
    for make in (Writer, Reader, Log, WindowStore, lambda each: Manager(each, lambda window, records: None)):
        with pytest.raises(OptionError, match="path"):
            make(directory)


async def _later(window: int, records: list[bytes]) -> None:
    """A coroutine function, whose result nobody would await."""


def _yielding(window: int, records: list[bytes]) -> Iterator[bytes]:
    """A generator function: its call does nothing."""
    yield from records


@pytest.mark.parametrize("recover", [None, 3, _later, _yielding, lambda: None, lambda a, b, c: None])
def test_a_recover_that_would_restore_nothing(root: str, recover: Any) -> None:
    """A function that cannot take a window and its records, or whose call would do nothing, is refused before a log exists."""
    with pytest.raises(OptionError, match="recover"):
        Manager(root, recover)
    assert not Path(root).exists()


def test_a_recover_that_returns_what_it_would_do(root: str) -> None:
    """A function that returns a generator has recovered nothing: it is an error, and the replay does not count as done."""
    with Manager(root, lambda window, records: None) as manager:
        manager.append(b"a")
        manager.end_window(0)
    lazy = Manager(root, lambda window, records: (record.decode() for record in records))
    with lazy as manager, pytest.raises(OptionError, match="recover returned a generator, which nobody iterates over"):
        manager.restore()


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        (Writer, {"segmentsize": "1m"}, "Writer: unknown parameter 'segmentsize'; did you mean 'segment_size'?"),
        (Reader, {"starts": 1}, "Reader: unknown parameter 'starts'; did you mean 'start'?"),
        (Reader, {"at": 1}, "Reader: unknown parameter 'at'; expected one of directory, start, mode, storage"),
        (Log, {"mode": "strict"}, "Log: unknown parameter 'mode'; expected one of directory, storage"),
        (Manager, {}, "Manager: missing a required argument: 'recover'; it takes (directory, recover, "),
        (Manager, {"recovr": print}, "Manager: unknown parameter 'recovr'; did you mean 'recover'?"),
        (WindowStore, {"segmentSize": 1}, "WindowStore: unknown parameter 'segmentSize'; did you mean 'segment_size'?"),
    ],
)
def test_a_parameter_that_is_misspelt(root: str, kind: Any, given: dict[str, Any], says: str) -> None:
    """For a misspelt parameter each constructor suggests the right name, or lists its parameters."""
    with pytest.raises(OptionError) as caught:
        kind(root, **given)
    assert says in caught.value.message
    assert not Path(root).exists()


def test_waits_that_cannot_be(root: str) -> None:
    """A delay that no clock can wait for is refused before anything is created."""
    wrong: list[Any] = [-1, float("nan"), float("inf"), 1e300, 10**400, "1", None, True]
    for delay in wrong:
        with pytest.raises(OptionError, match="not a time to wait"):
            Writer(root, delay=delay)
    with pytest.raises(OptionError, match="whole='false'; expected True or False"):
        Writer(root, whole="false")  # type: ignore[arg-type]  # - that is what is tested
    assert not Path(root).exists()


def test_a_closed_reader_keeps_its_place(root: str) -> None:
    """A closed reader still tells its position, in whatever segment; it can no longer be read."""
    with Writer(root, segment_size=200, storage=unsynced()) as writer:
        at = [writer.append(b"%d" % number * 60) for number in range(4)]
    for ended in (False, True):
        with Reader(root, start=at[2]) as reader:
            assert not ended or len(list(reader)) == 2
            place = reader.position, reader.sequence, reader.log
        assert (reader.position, reader.sequence, reader.log) == place
        for use in (reader.advance, lambda: list(reader), lambda: list(reader.batches()), lambda: reader.seek(at[0])):
            with pytest.raises(UsageError, match="was closed"):
                use()


def test_a_seek_that_fails_goes_nowhere(root: str) -> None:
    """F-W19: after a refused position the reader continues with the record that it would have read next."""
    with Writer(root, segment_size=200, storage=unsynced()) as writer:
        at = [writer.append(b"%d" % number * 60) for number in range(6)]
    with Reader(root) as reader:
        for number in range(4):
            assert reader.advance()
            for wrong in (Position(1, 121), Position(9, 120), Position(0, 0), Position(3, 5000)):
                with pytest.raises(PositionError):
                    reader.seek(wrong)
                assert (reader.get()[:1], reader.sequence) == (b"%d" % number, number + 1)
        reader.seek(at[1])
        assert len(next(iter(reader))) == 60


def test_a_long_log_is_listed_once(root: str) -> None:
    """Moving from segment to segment does not list the directory: reading and checking 60 segments list it as often as three do."""

    class Counting(LocalStorage):
        listed = 0

        def names(self, path: str) -> dict[str, int]:
            Counting.listed += 1
            return super().names(path)

    calls = []
    for segments in (3, 57):
        with Writer(root, segment_size=200, storage=unsynced()) as writer:
            for number in range(segments):
                writer.append(b"%d" % number * 40)
        Counting.listed = 0
        assert Log(root, storage=Counting()).repair() == []
        assert Log(root, storage=Counting()).verify().records >= segments
        calls.append(Counting.listed)
    assert len(Log(root).info().segments) == 60
    assert calls[0] == calls[1]


def test_a_manager_of_another_log(root: str, tmp_path: Path) -> None:
    """A log of lines, or of a window store, is refused with a clear message, however often it is tried, and released."""
    with Writer(root) as writer:
        writer.append(b"a line")
    with WindowStore(str(tmp_path / "windows")) as store:
        store.save(0, b"an artifact")
    for directory in (root, str(tmp_path / "windows")):
        errors = []
        for _ in range(2):
            with pytest.raises(DamagedState, match="is not a manager") as error:
                Manager(directory, lambda window, records: None)
            errors.append(error)  # the error's traceback refers to the manager
        Writer(directory).close()


def test_a_manager_is_set_up_again(root: str) -> None:
    """W2: as after a restart, the completed windows are handed back and an incomplete one is dropped; from an open or closed manager."""
    found: list[Any] = []
    manager = Manager(root, lambda *window: found.append(window))
    manager.setup()
    assert manager.restore() == -1
    for window in range(2):
        manager.append(b"of a window that does not end")
        if window:
            manager.close()
        manager.setup()
        assert manager.restore() == window - 1
        manager.append(b"%d" % window)
        manager.end_window(window)
    manager.close()
    manager.setup()
    assert manager.restore(0) == 1
    manager.close()
    assert found == [(0, [b"0"]), (1, [b"1"])]


def test_a_window_that_a_manager_has_no_room_for(root: str) -> None:
    """A window number of 2^63 or more is refused, and the open window continues."""
    found: list[Any] = []
    with Manager(root, lambda *window: found.append(window)) as manager:
        manager.append(b"a")
        with pytest.raises(UsageError, match="below 2"):
            manager.end_window(1 << 63)
        manager.append(b"b")
        manager.end_window((1 << 63) - 1)
    with Manager(root, lambda *window: found.append(window)) as manager:
        assert manager.restore() == (1 << 63) - 1
    assert found == [((1 << 63) - 1, [b"a", b"b"])]
