"""The source's bookkeeping on a disk that loses power at every call: each record is in one batch, and each replay is the same."""

from __future__ import annotations

import errno
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import pytest

from penstock import clock
from penstock.errors import PenstockError
from penstock.source import recent, sides
from penstock.source.cleaned import Marks
from penstock.storage import LocalStorage
from penstock.testing import FakeClock, Fault, FaultySystem, Report, explore
from tests.support.effort import effort
from tests.testing.crashes import crashed
from tests.testing.source_program import DeletingProgram, SourceProgram

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

FILES = {name: b"".join(b"%s-%d\n" % (name.encode(), n) for n in range(3)) for name in ("a", "b", "c", "d")}
LANDING = {"e": b"e-0\ne-1", "f": b"f-0\n"}
STATES_MAX = 5000
FAULTS = [Fault(errno.EIO), Fault(errno.ENOSPC), Fault(errno.EIO, applied=True)]  # in a gate, each somewhere
ARCHIVING = {"maxFilesPerTrigger": "2", "cleanSource": "archive", "sourceArchiveDir": "/old"}
OPTIONS = {
    "two files a batch": {"maxFilesPerTrigger": "2"},
    "cut inside files": {"maxBytesPerTrigger": "7", "splitSize": "4"},
    "a file a batch": {"batchBoundary": "file"},
}


@pytest.fixture(autouse=True)
def long_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every plan too long for the offset, so that all plans go to side records."""
    monkeypatch.setattr(sides, "INLINE_BYTES", 2)


def query(options: dict[str, str], wander: tuple[str, ...] = ()) -> SourceProgram:
    """Return a query to crash."""
    return SourceProgram(FILES, LANDING, options, wander)


def omitting(options: dict[str, str], omit: str = "", wander: tuple[str, ...] = ()) -> Report:
    """Explore a query two crashes deep, without one sync, until a check fails."""
    program = query(options, wander)
    return explore(program, profile=program.disk, states_max=STATES_MAX, omit=lambda place: place == omit)


@pytest.mark.parametrize("name", OPTIONS)
def test_crash_anywhere_and_again_in_the_recovery(name: str) -> None:
    """Whatever a crash destroys, and wherever it happens, the batches hold each record once and a replay holds the same records."""
    make = partial(query, OPTIONS[name])
    assert crashed(make, make().disk).states > 500


def test_files_that_go_and_come_back_while_it_crashes() -> None:
    """Files are moved away and back between the batches: whatever a crash destroys, each record is read once."""
    make = partial(query, {"maxFilesPerTrigger": "3", "lateness": "1h"}, wander=("a", "c"))
    assert crashed(make, make().disk).states > 500


@pytest.mark.parametrize("retention", ["0s", "1ms"])
def test_files_are_archived_while_it_crashes(monkeypatch: pytest.MonkeyPatch, retention: str) -> None:
    """Whatever a crash destroys while files are archived: each record is read once, a replay is the same, no file is lost or left over."""
    monkeypatch.setattr(sides, "INLINE_BYTES", 1 << 20)
    options = ARCHIVING | {"retention": retention}
    make = partial(SourceProgram, {"a": b"a-0\n", "b": b"b-0\n"}, {"e": b"e-0\n"}, options)
    assert crashed(make, make().disk).states > 100


def test_files_are_deleted_while_it_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark does not sync its commit log: a file is removed only when no crash can take its batch's entry, and so ask for a replay."""
    monkeypatch.setattr(sides, "INLINE_BYTES", 1 << 20)
    options = {"maxFilesPerTrigger": "1", "cleanSource": "delete"}
    make = partial(DeletingProgram, {"a": b"a-0\n"}, {"e": b"e-0\n"}, options)
    assert not explore(make(), profile=make().disk, depth=1).complaints
    everything = partial(explore, make(), profile=make().disk, depth=1)
    assert everything(omit=lambda place: place.startswith("sync in ")).complaints


@pytest.mark.parametrize("mode", ["archive", "delete"])
def test_files_go_only_after_a_durable_mark(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """A power cut that leaves a file cleaned and no mark of it is found: if the mark is not synced, or if the file goes first."""
    monkeypatch.setattr(sides, "INLINE_BYTES", 1 << 20)
    options = ARCHIVING if mode == "archive" else {"maxFilesPerTrigger": "1", "cleanSource": "delete"}
    make = partial(SourceProgram if mode == "archive" else DeletingProgram, {"a": b"a-0\n"}, {"e": b"e-0\n"}, options)
    crashed_at_any_call = partial(explore, make(), profile=make().disk, depth=0)
    assert not crashed_at_any_call().complaints
    put = LocalStorage.put_if_absent

    def hasty(self: LocalStorage, path: str, data: bytes) -> None:
        if "/cleaned-" in path:
            self.create(path).close()
        else:
            put(self, path, data)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "put_if_absent", hasty)
        assert crashed_at_any_call().complaints
    monkeypatch.setattr(Marks, "mark", lambda *_: None)
    assert crashed_at_any_call().complaints


def failing(make: Callable[[], SourceProgram], fault: Fault, *, starts: int) -> set[str]:
    """Let each call of a query fail once, and start the query again `starts` times; return the names of the calls."""
    failed: set[str] = set()
    for at in count(1):
        program = make()
        disk = program.disk()
        faulty = FaultySystem(disk, fault, at)
        with clock.use(FakeClock()):
            try:
                program.run(faulty, lambda: None)
            except PenstockError as error:
                assert str(error).startswith("[PST-"), error  # noqa: PT017 - a success is right, too
            assert not disk.descriptors, (faulty.failed, at)
            for _ in range(starts):
                program.run(disk, lambda: None)
        assert program.check(disk, final=True) == [], (faulty.failed, at)
        if faulty.failed is None:
            return failed
        failed.add(faulty.failed)
    raise AssertionError


@pytest.mark.parametrize("fault", effort([Fault(errno.EIO), Fault(errno.EIO, applied=True)], FAULTS), ids=str)
def test_every_call_fails_once_while_files_are_archived(fault: Fault) -> None:
    """Whichever call fails, the query goes on or raises a typed error, and in the end every file is read once and archived.

    The second start cleans the files that were noted for another try.
    """
    make = partial(SourceProgram, {"a": b"a-0\n", "b": b"b-0\n"}, {"e": b"e-0\n"}, ARCHIVING)
    assert {"rename", "link", "unlink", "fsync"} <= failing(make, fault, starts=2)


def test_forgotten_files_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the offset does not keep the files that are away, the exploration finds records that are read twice."""
    to_json = recent.Recent.to_json
    monkeypatch.setattr(recent.Recent, "to_json", lambda self: {k: v for k, v in to_json(self).items() if k != "gone"})
    assert omitting({"maxFilesPerTrigger": "3", "lateness": "1h"}, wander=("a", "c")).complaints


def test_every_sync_is_needed() -> None:
    """Without any one sync of the side records, a restart cannot read its plan."""
    places: set[str] = set()
    program = SourceProgram(FILES, {}, {})  # nothing else syncs

    def note(place: str) -> bool:
        places.add(place)
        return False

    explore(program, profile=program.disk, depth=0, omit=note)
    assert len(places) > 2
    assert {place for place in places if not omitting({"maxFilesPerTrigger": "2"}, place).complaints} == set()


@pytest.mark.parametrize("fault", effort([Fault(errno.ENOSPC), Fault(errno.EIO, applied=True)], FAULTS), ids=str)
def test_every_call_fails_once(fault: Fault) -> None:
    """Whichever call fails, planning and reading raise a typed error or are done, and the next start goes on from there."""
    failed = failing(partial(query, {"maxFilesPerTrigger": "2"}), fault, starts=1)
    assert {"open", "pread", "fstat", "scandir", "stat", "link", "fsync", "unlink", "close"} <= failed


def test_plans_that_no_replay_asks_for_go() -> None:
    """At the end of a query at most the last two long plans are left next to the checkpoint."""
    program = SourceProgram(FILES, LANDING, {"batchBoundary": "file"})
    disk = program.disk()
    program.run(disk, lambda: None)
    assert len(program.memory.offsets) == len(FILES | LANDING)
    assert len(disk.storage().names("/checkpoint/penstock")) <= 2
