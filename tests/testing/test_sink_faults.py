"""Every system call of the sink fails once, with every error: a typed error or full success, no leak, and the sink goes on."""

from __future__ import annotations

import errno
from collections import Counter, defaultdict
from itertools import count, product
from typing import TYPE_CHECKING, Any

import pytest

from penstock import clock, unique
from penstock.errors import PenstockError
from penstock.testing import Crashable, CrashDisk, CrashHdfs, FakeClock, Fault, FaultySystem, ObjectStore, Program
from tests.support.effort import effort
from tests.testing.sink_program import SinkProgram
from tests.testing.test_sink_crashes import MAIN, SCRIPTS

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.ETIMEDOUT)
FAULTS = [*(Fault(error) for error in ERRORS), Fault(errno.EIO, applied=True), Fault(None)]
IN_GATE = [  # each fault somewhere; in each script a fault that is reported, and one that is not reported or comes too late
    *product(["main"], [Fault(errno.EIO), Fault(errno.EIO, applied=True), Fault(None)]),
    *product(["buckets"], [Fault(errno.ENOSPC), Fault(None)]),
    *product(["a growing file"], [Fault(errno.EDQUOT), Fault(errno.EIO, applied=True), Fault(None)]),
    *product(["members"], [Fault(errno.EACCES), Fault(errno.ETIMEDOUT)]),
]


# Only the state after a failure decides what follows, as in `explore`: most errors of most calls leave the same state,
# and the program is started again only once for each disk and memory.
KNOWN: defaultdict[Hashable, set[Hashable]] = defaultdict(set)


def run(program: Program, system: Crashable, attempt: int) -> PenstockError | None:
    """Run the program to its end, or to a typed error; any other error fails the test. Its file names contain the attempt."""
    tokens = count()
    with clock.use(FakeClock()), unique.use(lambda: f"{attempt}{next(tokens):031d}"):
        try:
            program.run(system, lambda: None)
        except PenstockError as error:
            return error
    return None


class Listed(FaultySystem):
    """A system in which no call fails, and which records the names of the calls."""

    def __init__(self, system: Crashable) -> None:
        super().__init__(system, Fault(None), 0)
        self.names: list[str] = []

    def counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, which records its name when it is called."""

        def call(*arguments: Any, **named: Any) -> Any:
            self.names.append(name)
            return counted(*arguments, **named)

        counted = super().counted(name, function)
        return call


def calls_met(program: SinkProgram, fault: Fault, profile: Callable[[Any], Crashable]) -> Iterable[int]:
    """Return the calls that the fault affects: a short count affects only writes, and every other call runs as if there were no fault."""
    if fault.error is not None:
        return count(1)
    listed = Listed(profile(None))
    assert run(program, listed, 1) is None
    return [number for number, name in enumerate(listed.names, 1) if name == "write"]


def tried(
    program: SinkProgram,
    fault: Fault,
    at: int,
    profile: Callable[[Any], Crashable],
    known: set[Hashable],
) -> tuple[str | None, bool]:
    """Run a program with the fault, then without; return the failed call and whether the failure was reported.

    A `known` state has been explored before and is not followed again.
    """
    program.memory, disk = -1, profile(None)
    faulty = FaultySystem(disk, fault, at)
    error = run(program, faulty, 1)
    where = f"{fault} at call {at}, {faulty.failed}: {error}"
    assert not getattr(disk, "descriptors", []), where
    left = disk.state(), program.memory, error is None
    if left in known:
        return faulty.failed, error is not None
    assert program.check(disk, final=error is None) == [], where
    if error is not None:
        again = run(program, disk, 2)
        assert again is None, f"{where}; then {again}"
    worst = profile(next(disk.images()))  # the worst that a power cut leaves: no failed call may count as durable
    assert program.check(worst, final=True) == [], where
    known.add(left)
    return faulty.failed, error is not None


def each(name: str, fault: Fault, profile: Callable[[Any], Crashable] = CrashDisk) -> Counter[str]:
    """Let each call of a script fail once; return for each call's name how often its failure was reported."""
    program = SinkProgram(*(MAIN if name == "main" else SCRIPTS[name]))
    failed: Counter[str] = Counter()
    for at in calls_met(program, fault, profile):
        call, reported = tried(program, fault, at, profile, KNOWN[name, profile])
        if call is None:
            break
        failed[call] += reported
    return failed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fault"),
    effort(IN_GATE, list(product(["main", "buckets", "a growing file", "members"], FAULTS))),
    ids=str,
)
def test_every_call_fails_once(name: str, fault: Fault) -> None:
    """Whichever call fails, the batch fails whole or is done; the same program then ends as if nothing had failed."""
    failed = each(name, fault)
    if fault.error is None:
        assert failed == {"write": 0}, "a short count is no error"
    else:
        assert {"open", "write", "fsync", "link", "unlink", "stat", "scandir"} <= failed.keys()
        assert failed.total() > 50


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault(errno.ETIMEDOUT), Fault(errno.ETIMEDOUT, applied=True)], ids=str)
@pytest.mark.parametrize("name", ["main", "buckets", "members", "old and idle"])
def test_every_request_to_an_object_store_fails_once(name: str, fault: Fault) -> None:
    """Whichever request fails, or loses its reply: nothing is lost or doubled, and the same program ends as if nothing had failed."""
    assert each(name, fault, ObjectStore).keys() >= {"put", "copy", "head", "begin", "objects", "remove"}


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault(errno.EIO), Fault(errno.EIO, applied=True)], ids=str)
@pytest.mark.parametrize("name", ["main", "buckets", "a growing file"])
def test_every_call_of_hdfs_fails_once(name: str, fault: Fault) -> None:
    """Whichever call fails, or loses its reply: nothing is lost or doubled, and the same program ends as if nothing had failed."""
    calls = {
        "create",
        "writer.write",
        "writer.hsync",
        "writer.close",
        "rename",
        "delete",
        "mkdir",
        "list",
        "stat",
        "open",
    }
    assert calls <= each(name, fault, CrashHdfs).keys()
