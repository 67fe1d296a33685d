"""The source on an HDFS with another clock than this machine: plans use the NameNode's clock, however far it is off, and if it jumps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock import clock
from penstock.options import SOURCE, parse
from penstock.source.plan import Planner
from penstock.testing import CrashHdfs, FakeClock
from tests.support.storage_contract import put

if TYPE_CHECKING:
    from collections.abc import Iterator

HOUR = 3600


class Skewed(CrashHdfs):
    """An HDFS whose NameNode's clock is `ahead` seconds ahead of this machine's clock."""

    ahead = 0

    def _now(self) -> int:
        return super()._now() + 1000 * self.ahead


@pytest.fixture
def time() -> Iterator[FakeClock]:
    fake = FakeClock(1_700_000_000)
    with clock.use(fake):
        yield fake


@pytest.fixture
def skewed(time: FakeClock) -> Skewed:
    made = Skewed()
    for directory in ("/in", "/tmp"):  # noqa: S108 - of HDFS, where the storage asks for the time
        made.storage().make_directory(directory)
    return made


def planner(skewed: Skewed) -> Planner:
    """Return a planner of `/in`."""
    options = parse(SOURCE, {"path": "/in"}, what="source")
    return Planner(skewed.storage(), "/in", options, divisible=lambda _: True)


def names(of: Planner, offset: dict[str, Any]) -> list[str]:
    """Return the files of the batch that ends at the offset."""
    return [split.file.path for split in of.splits(offset)]


@pytest.mark.parametrize("ahead", [-HOUR, HOUR])
def test_another_clock(skewed: Skewed, time: FakeClock, ahead: int) -> None:
    """With a NameNode an hour ahead or behind, a file settles exactly one second after it was closed."""
    skewed.ahead = ahead
    planning = planner(skewed)
    put(skewed.storage(), "/in/a", b"line\n")
    start = planning.initial()
    time.sleep(0.9)
    assert planning.latest(start) == start
    time.sleep(0.2)
    assert names(planning, planning.latest(start)) == ["a"]


def test_this_machines_clock_is_set(skewed: Skewed, time: FakeClock) -> None:
    """The failure: the server's clock was known relative to this machine's, which was then set: a file still settles no earlier."""
    planning = planner(skewed)
    start = planning.initial()
    skewed.storage().now_ns()
    for ahead in (30, -3600, 50):
        time.jump(ahead)
        skewed.ahead -= ahead
        put(skewed.storage(), f"/in/{ahead}", b"line\n")
        time.sleep(0.9)
        assert planning.latest(start) == start
        time.sleep(0.2)
        start = planning.latest(start)
        assert names(planning, start) == [str(ahead)]


@pytest.mark.parametrize("restart", [False, True])
def test_a_clock_that_steps_back(
    skewed: Skewed, time: FakeClock, caplog: pytest.LogCaptureFixture, restart: bool
) -> None:
    """HZ-9: another NameNode, whose clock is behind, gives new files older times: within `lateness` they are read, once."""
    skewed.ahead = 5
    planning = planner(skewed)
    put(skewed.storage(), "/in/a", b"line\n")
    time.sleep(2)
    first = planning.latest(planning.initial())
    skewed.ahead = -HOUR // 10
    put(skewed.storage(), "/in/b", b"line\n")
    time.sleep(61)
    planning = planner(skewed) if restart else planning
    second = planning.latest(first)
    assert names(planning, second) == ["b"]
    assert planning.latest(second) == second
    skewed.ahead = -HOUR
    put(skewed.storage(), "/in/c", b"line\n")
    time.sleep(61)
    told = planning.latest(second)
    assert names(planning, told) == []
    assert planning.latest(told) == told
    assert "not read: 'c'" in caplog.text
