"""Several ingests of the same input into one output, under checkpoints of their own: one at a time has it, and no row is there twice."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeAlias

import pytest

from penstock import failpoints
from penstock.cli import state as tools
from penstock.errors import CheckpointMismatch, Fenced
from penstock.ingestion.call import IngestCall
from penstock.ingestion.ingest import carried_out, here
from penstock.query import driver as drivers
from penstock.sink.existing import sink_ids
from penstock.sink.ledger import Ledger
from penstock.storage import LocalStorage
from penstock.verify import verify
from tests.ingestion.test_here import lines, texts
from tests.ingestion.test_here_topics import brokers, expected
from tests.support.effort import effort
from tests.support.follows import follows

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.ingestion.ingested import Ingested
    from tests.support.forked import Commands, Running
    from tests.testing.topics_program import Brokers

__all__ = ["brokers"]
Source: TypeAlias = "dict[str, str] | None"
PLANNED = "ingest.here.planned"


@pytest.fixture(autouse=True)
def each_run_in_its_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the drivers of earlier runs for dead, although they are this process."""
    monkeypatch.setattr(drivers, "lives", lambda _: False)


class Killed(BaseException):
    """Ends a run where it stands, as SIGKILL does."""


def ingest(src: object, dst: Path, checkpoint: str, source: Source = None, sink: Source = None) -> Ingested:
    """Ingest without Spark, under this checkpoint beside the output."""
    given = {"format": "text"} | (sink or {})
    run = here(IngestCall(str(src), str(dst), source=source or {}, sink=given, checkpoint=str(dst.parent / checkpoint)))
    assert run is not None
    return carried_out(run, None)


@contextmanager
def once_at(point: str, act: Callable[[], object]) -> Iterator[None]:
    """Do something the first time that a run passes a failpoint."""
    hit, left = failpoints.hit, [act]

    def changed(name: str) -> None:
        if name == point and left:
            left.pop()()
        hit(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "hit", changed)
        yield


def takers(dst: Path) -> list[str]:
    """Return who, by the last record of each ledger, has taken over what its query reads."""
    storage, state = LocalStorage(), f"{dst}/_penstock"
    return [Ledger(storage, f"{state}/{name}/ledger", name).head().taken_by for name in sink_ids(storage, state)]


def killed() -> None:
    """Kill the run that calls this."""
    raise Killed


@follows("PST-302")
@pytest.mark.parametrize("sink", [{}, {"sinkId": "s"}], ids=["a ledger each", "one sink id"])
def test_two_first_runs_at_one_moment(tmp_path: Path, sink: dict[str, str]) -> None:
    """B begins and ends while A, which has found no rows of anybody, is about to begin its first batch."""
    src, dst = tmp_path / "in", tmp_path / "out"
    wanted = texts(src, 2, rows=10)
    with (
        once_at(PLANNED, lambda: ingest(src, dst, "b", sink=sink)),
        pytest.raises(CheckpointMismatch, match="there twice"),
    ):
        ingest(src, dst, "a", sink=sink)
    assert lines(dst) == wanted
    assert verify(str(dst), source=str(src)).ok


@follows("PST-301")
@pytest.mark.parametrize("sink", [{}, {"sinkId": "s"}], ids=["a ledger each", "one sink id"])
def test_a_first_run_that_has_begun(tmp_path: Path, sink: dict[str, str]) -> None:
    """A has begun its batch when B starts: B ends it, and A says who has taken over; nothing of it counts."""
    src, dst = tmp_path / "in", tmp_path / "out"
    wanted = texts(src, 2, rows=10)
    puts = iter(range(9))
    hit = failpoints.hit

    def second(name: str) -> None:
        if name == "sink.ledger.before-put" and next(puts) == 1:  # the commit
            ingest(src, dst, "b", sink=sink)
        hit(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "hit", second)
        with pytest.raises(Fenced) as found:
            ingest(src, dst, "a", sink=sink)
    if not sink:
        assert f"{tmp_path}/b', has begun since" in str(found.value)
    assert lines(dst) == wanted
    with pytest.raises(CheckpointMismatch, match="there twice"):
        ingest(src, dst, "a", sink=sink)
    assert lines(dst) == wanted


@follows("PST-302")
@pytest.mark.parametrize("sink", [{}, {"sinkId": "s"}], ids=["a ledger each", "one sink id"])
@pytest.mark.parametrize("point", [PLANNED, "sink.ledger.after-put"])
def test_a_first_run_that_was_killed_and_its_successor(tmp_path: Path, point: str, sink: dict[str, str]) -> None:
    """A is killed in its first batch, and B ingests everything. A, whose checkpoint is no longer new, must not do it again."""
    src, dst = tmp_path / "in", tmp_path / "out"
    wanted = texts(src, 2, rows=10)
    with once_at(point, killed), suppress(Killed):
        ingest(src, dst, "a", sink=sink)
    ingest(src, dst, "b", sink=sink)
    with pytest.raises(CheckpointMismatch, match="there twice"):
        ingest(src, dst, "a", sink=sink)
    assert lines(dst) == wanted


def test_a_first_run_that_was_killed_holds_nobody_up(tmp_path: Path) -> None:
    """A dies after its claim, B after it has ended A, and A goes on."""
    src, dst = tmp_path / "in", tmp_path / "out"
    wanted = texts(src, 2, rows=10)
    for checkpoint in ("a", "b"):
        with once_at("sink.ledger.after-put", killed), suppress(Killed):
            ingest(src, dst, checkpoint)
    ingest(src, dst, "a")
    assert lines(dst) == wanted


def _taken_over(tmp_path: Path) -> tuple[Path, Path, list[str]]:
    """Have A read what is cleaned then, plan a batch, and die; B takes what is there. Return input, output and what should be there."""
    src, dst = tmp_path / "in", tmp_path / "out"
    wanted = texts(src, 1, rows=10)
    with once_at("ingest.here.committed", killed), suppress(Killed):
        ingest(src, dst, "a")
    (src / "0.txt").unlink()
    wanted = sorted(wanted + [line for line in texts(src, 2, rows=10) if line[0] == "1"])
    (src / "0.txt").unlink()
    with once_at(PLANNED, lambda: ingest(src, dst, "b")), pytest.raises(CheckpointMismatch, match="taken over from"):
        ingest(src, dst, "a")
    return src, dst, wanted


@follows("PST-302")
def test_a_new_checkpoint_beside_a_run_that_goes_on(tmp_path: Path) -> None:
    """B may begin, because what A has read is cleaned, and takes over A's plan. A is refused from then on; its rows are published."""
    src, dst, wanted = _taken_over(tmp_path)
    assert lines(dst) == wanted
    for _ in range(2):
        with pytest.raises(CheckpointMismatch, match="taken over from"):
            ingest(src, dst, "a")
    (src / "2.txt").write_text("2\n")
    os.utime(src / "2.txt", (time.time() - 10,) * 2)
    with pytest.raises(CheckpointMismatch, match="taken over from"):
        ingest(src, dst, "a")
    ingest(src, dst, "b")
    assert lines(dst) == sorted([*wanted, "2"])


def test_what_was_taken_over_by_a_run_without_rows_is_taken_back(tmp_path: Path) -> None:
    """B takes over and dies before it commits: A goes on, and then belongs to itself again."""
    src, dst = tmp_path / "in", tmp_path / "out"
    wanted = texts(src, 1, rows=10)
    ingest(src, dst, "a")
    (src / "0.txt").unlink()
    (src / "1.txt").write_text("1\n")
    os.utime(src / "1.txt", (time.time() - 10,) * 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.sink.sink.Sink.write", lambda *_, **__: killed())
        with suppress(Killed):
            ingest(src, dst, "b")
    assert sum(map(bool, takers(dst))) == 1
    assert ingest(src, dst, "a").rows == len(wanted) + 1
    assert not any(takers(dst))
    assert lines(dst) == sorted([*wanted, "1"])
    with pytest.raises(CheckpointMismatch):
        ingest(src, dst, "b")


def test_ingests_of_different_files_leave_each_other_alone(tmp_path: Path) -> None:
    """Two names of files are two inputs: both go on side by side."""
    src, dst = tmp_path / "in", tmp_path / "out"
    wanted = texts(src, 2, rows=10)
    one, other = ({"pathGlobFilter": f"{number}.txt"} for number in range(2))
    with once_at(PLANNED, lambda: ingest(src, dst, "b", other)):
        ingest(src, dst, "a", one)
    assert lines(dst) == wanted


def test_two_first_runs_over_topics_at_one_moment(tmp_path: Path, brokers: Brokers) -> None:
    """The same for topics that both read from their beginning."""
    address, dst = "kafka://nowhere:9092/orders", tmp_path / "out"
    source = {"format": "text", "maxOffsetsPerTrigger": "4"}
    with (
        once_at(PLANNED, lambda: ingest(address, dst, "b", source)),
        pytest.raises(CheckpointMismatch, match="there twice"),
    ):
        ingest(address, dst, "a", source)
    assert lines(dst) == expected(brokers)


def test_topics_from_their_end_have_one_ingest_at_a_time(tmp_path: Path, brokers: Brokers) -> None:
    """A new checkpoint begins at the end, and takes over: the one before would read the same records."""
    address, dst = "kafka://nowhere:9092/orders", tmp_path / "out"
    source = {"format": "text", "startingOffsets": "latest"}
    ingest(address, dst, "a", source)
    ingest(address, dst, "b", source)
    brokers.planned = 1
    with pytest.raises((CheckpointMismatch, Fenced)), once_at(PLANNED, lambda: ingest(address, dst, "b", source)):
        ingest(address, dst, "a", source)
    assert lines(dst) == expected(brokers, 3)


@pytest.mark.slow
@pytest.mark.parametrize("own", ["checkpoints", "checkpoints and one sink id", "nothing"])
def test_commands_that_start_at_once(tmp_path: Path, commands: Commands, own: str) -> None:
    """Two commands start at nearly the same moment, one of them may be killed; both are started again: in is out."""
    src, chance = tmp_path / "in", random.Random(own)  # noqa: S311 - no secret
    wanted = texts(src, 3, rows=10)
    for number in range(effort(4, 200)):
        dst = tmp_path / f"out{number}"

        def begin(who: str, dst: Path = dst) -> Running:
            given = ["ingest", str(src), str(dst), "--source-option", "maxFilesPerTrigger=1"]
            given += [] if own == "nothing" else ["--checkpoint", f"{dst}-{who}"]
            return commands.begin(*given, *(["--sink-option", "sinkId=s"] if "one sink" in own else []))

        both = [begin("a"), begin("b")]
        if chance.random() < 0.5:
            time.sleep(chance.uniform(0, 0.7))
            with suppress(ProcessLookupError):
                chance.choice(both).signal(signal.SIGKILL)
        for one in both:
            one.ended(check=False)
        seen = lines(dst)
        assert len(set(seen)) == len(seen)
        for who in "abab":
            begin(who).ended(check=False)
        tools.finish(str(dst), None)
        assert lines(dst) == wanted
