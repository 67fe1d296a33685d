"""What every sink must stand, as tests that any sink can be put through: crashes, stale drivers, replays, copies put back.

A module of tests makes a subclass of `SinkContract` with the fixture `new`, which returns fresh kits: a `Kit` is a sink of
one kind in a place of its own, and what can be done to it. Spark is played by `Spark`, which has the checkpoint, and by
`Driver`, whose `begin`, `write` and `commit` are what Spark's processes call; a restart is a new `Driver`.

Steps are failpoints (`penstock.failpoints.hit`): a sink names the moments between its durable steps by them, and the suite
finds them by running into each. What a crash leaves of writes that were not synced is not for here: `penstock.testing.explore`.
"""

from __future__ import annotations

import json
import os
import pickle
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import clock, failpoints
from penstock.errors import CheckpointMismatch, Fenced, PenstockError, StorageError
from penstock.query import checkpoint as reader
from penstock.query import driver as drivers
from penstock.query.batch import Task
from penstock.query.writing import BatchSink, Bound, QueryWriting, Started, TaskReport
from penstock.testing import CrashDisk, FakeClock, Image, SimulatedCrash
from tests.support.counting import CountingStorage

TEXT = pa.schema([("value", pa.string())])
_STEPS_AT_LEAST = 4
_STORAGE = "storage."


class Spark:
    """A query as its checkpoint knows it."""

    def __init__(self, query: str = "q") -> None:
        self.query = query
        self.location = f"/checkpoint-{query}"
        self._disk = CrashDisk()
        self.storage = CountingStorage(self._disk.storage(), "")
        self.storage.make_directory(f"{self.location}/offsets")
        self._put("metadata", json.dumps({"id": query}))
        self.last = -1

    def plan(self, number: int, offset: object = None) -> None:
        """Write a batch down, as Spark does before it runs; again with other offsets, if they are given."""
        if number > self.last or offset is not None:
            self._put(f"offsets/{number}", f"v1\n{{}}\n{json.dumps({'offset': offset or number})}")
        self.last = max(self.last, number)

    def put_back(self, number: int) -> None:
        """Have the checkpoint as it was when `number` was its last batch."""
        for later in range(number + 1, self.last + 1):
            self.storage.delete(f"{self.location}/offsets/{later}")
        self.last = number

    def copy(self) -> tuple[Image, int]:
        """Return all that it has."""
        return self._disk.image(), self.last

    def go_back(self, copied: tuple[Image, int]) -> None:
        """Have all as it was."""
        image, self.last = copied
        self._disk = CrashDisk(image)
        self.storage = CountingStorage(self._disk.storage(), "")

    def _put(self, name: str, text: str) -> None:
        """Write a file by no step of ours."""
        path = f"{self.location}/{name}"
        with suppress(FileNotFoundError):
            self._disk.unlink(path)
        file = self._disk.open(path, os.O_CREAT | os.O_WRONLY)
        self._disk.write(file, text.encode())
        self._disk.close(file)


class Kit(ABC):
    """A sink of one kind in a place of its own. `locked` is what a driver meets where another one holds a lock."""

    locked: tuple[type[PenstockError], ...] = ()

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.patch = patch
        self.process = ""
        self.spark = Spark()
        patch.setattr(drivers, "this", lambda query: f"host:{self.process}:0:{query}")

    @abstractmethod
    def opens(self) -> Callable[[str], BatchSink[Any, Any]]:
        """Return what opens the sink by the name of its state."""

    @abstractmethod
    def rows(self) -> list[str]:
        """Return the rows that a reader sees, sorted."""

    @abstractmethod
    def copy(self) -> Any:
        """Return a copy of all that the sink has."""

    @abstractmethod
    def put_back(self, copied: Any) -> None:
        """Put a copy back."""

    @abstractmethod
    def staged(self) -> list[str]:
        """Return what is kept for a batch that is under way, of the sink `s` and the query `q`."""

    @abstractmethod
    def lose_a_reply(self) -> None:
        """Have the next step that decides be done, and be told as failed."""

    def close(self) -> None:  # noqa: B027 - not every kit has something open
        """Release what is open."""

    @contextmanager
    def running(self, process: str) -> Iterator[None]:
        """Be another process for a while."""
        before, self.process = self.process, process
        try:
            yield
        finally:
            self.process = before


class Driver:
    """A driver of a query: what its processes call, one batch after the other."""

    def __init__(self, kit: Kit, name: str, spark: Spark | None = None, *, readable: bool = True) -> None:
        self.kit, self.name, self.spark = kit, name, spark or kit.spark
        location = self.spark.location if readable else None
        self.writing: QueryWriting[Any, Any] = QueryWriting(kit.opens(), checkpoint=location, sink_id="s")

    def bound(self) -> Bound:
        """Read the checkpoint."""
        with self.kit.running(self.name):
            return self.writing.bound()

    def begin(self, number: int, bound: Bound | None = None) -> Started[Any, Any]:
        """Begin a batch, which Spark has planned."""
        self.spark.plan(number)
        with self.kit.running(self.name):
            return self.writing.begin(bound)

    def write(self, started: Started[Any, Any], number: int, *rows: str, partition: int = 0) -> TaskReport[Any]:
        """Write the rows of a task; what it reports has travelled."""
        batch = pa.record_batch({"value": list(rows)}, schema=TEXT)
        with self.kit.running(f"{self.name} {partition}"):
            return started.write(Task(self.spark.query, number, partition), iter([batch]))

    def commit(self, reports: Sequence[TaskReport[Any]], number: int) -> None:
        """Commit a batch."""
        with self.kit.running(self.name):
            self.writing.commit(reports, number)

    def abort(self, reports: Sequence[TaskReport[Any]]) -> None:
        """Abort a batch."""
        with self.kit.running(self.name):
            self.writing.abort(reports)

    def tasks(self, started: Started[Any, Any], number: int) -> list[TaskReport[Any]]:
        """Run the two tasks that each batch of these tests has."""
        return [self.write(started, number, *rows, partition=each) for each, rows in enumerate(rows_of(number))]

    def run(self, *numbers: int) -> None:
        """Run batches from begin to commit."""
        for number in numbers:
            self.commit(self.tasks(self.begin(number), number), number)


def rows_of(number: int) -> list[list[str]]:
    """Return the rows of a batch, by its tasks."""
    return [[f"{number} a", f"{number} b"], [f"{number} c"]]


def all_rows(*numbers: int) -> list[str]:
    """Return the rows of batches, sorted."""
    return sorted(row for number in numbers for rows in rows_of(number) for row in rows)


class Steps:
    """Counts the steps that are run into; at step `at` it calls `act`, once."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int, act: Callable[[], None], *, own: bool = False) -> None:
        """Count all steps; with `own` those alone that are not of the storage below."""
        self.reached: list[str] = []
        self._at, self._act, self._own = at, act, own
        patch.setattr(failpoints, "hit", self._hit)

    def _hit(self, name: str) -> None:
        if self._own and name.startswith(_STORAGE):
            return
        self.reached.append(name)
        if len(self.reached) == self._at:
            self._act()

    @property
    def was_there(self) -> bool:
        """Tell whether the step was reached."""
        return len(self.reached) >= self._at


def crash() -> None:
    """End the process."""
    raise SimulatedCrash


def crashed(kit: Kit, driver: Driver, step: int, *numbers: int, own: bool = False) -> str:
    """Run batches and die at a step; return which one it was, "" if there are fewer."""
    with kit.patch.context() as patch:
        steps = Steps(patch, step, crash, own=own)
        with suppress(SimulatedCrash):
            driver.run(*numbers)
    kit.close()
    return steps.reached[-1] if steps.was_there else ""


class SinkContract:
    """Inherit, with the fixture `new`."""

    @pytest.fixture(autouse=True)
    def _still(self) -> Iterator[None]:
        with clock.use(FakeClock()):
            yield

    @pytest.fixture
    def kit(self, new: Callable[[], Kit]) -> Kit:
        """Return one kit."""
        return new()

    def test_batches_in_order(self, kit: Kit) -> None:
        """Batch after batch all rows are visible, each once; another driver goes on behind them."""
        Driver(kit, "a").run(0, 1)
        assert kit.rows() == all_rows(0, 1)
        Driver(kit, "b").run(2, 3)
        assert kit.rows() == all_rows(0, 1, 2, 3)

    def test_nothing_is_visible_before_the_commit(self, kit: Kit) -> None:
        """What tasks have written is nobody's yet."""
        driver = Driver(kit, "a")
        driver.run(0)
        driver.tasks(driver.begin(1), 1)
        assert kit.rows() == all_rows(0)

    def test_what_travels_can_be_pickled(self, kit: Kit) -> None:
        """A batch that began travels to the tasks, and what they report to the commit, as bytes."""
        driver = Driver(kit, "a")
        for number in range(2):
            started = driver.begin(number)
            reports = driver.tasks(started, number)
            assert pickle.loads(pickle.dumps(reports)) == reports  # noqa: S301 - our own bytes
            assert pickle.loads(pickle.dumps(started.begun)) == started.begun  # noqa: S301 - our own bytes
            driver.commit(reports, number)

    @pytest.mark.parametrize("name", ["a", "b"])
    def test_repeated_batch_changes_nothing(self, kit: Kit, name: str) -> None:
        """Spark has not noted that a batch is done, and repeats it: the same driver's, or another's."""
        Driver(kit, "a").run(0, 1)
        driver = Driver(kit, name)
        driver.run(1)
        assert kit.rows() == all_rows(0, 1)
        driver.run(2)
        assert kit.rows() == all_rows(0, 1, 2)

    def test_commit_that_is_called_twice(self, kit: Kit) -> None:
        """The very call is repeated, with the very results."""
        driver = Driver(kit, "a")
        reports = driver.tasks(driver.begin(0), 0)
        for _ in range(2):
            driver.commit(reports, 0)
        assert kit.rows() == all_rows(0)

    def test_lost_reply(self, kit: Kit) -> None:
        """The step that decides is done, and told as failed: whether the commit finds out or is repeated, rows are there once."""
        driver = Driver(kit, "a")
        driver.run(0)
        reports = driver.tasks(driver.begin(1), 1)
        kit.lose_a_reply()
        try:
            driver.commit(reports, 1)
        except PenstockError:
            driver.abort(reports)
            driver = Driver(kit, "b")
            driver.run(1)
        assert kit.rows() == all_rows(0, 1)
        driver.run(2)
        assert kit.rows() == all_rows(0, 1, 2)

    @pytest.mark.slow
    def test_crash_at_every_step_and_again_in_the_recovery(self, new: Callable[[], Kit]) -> None:
        """A driver dies at each step of a batch, and who repeats it at each step of that: no row is lost or doubled.

        Twice at the sink's own steps; those of the storage below come first only, and only one recovery behind each is tried.
        Each recovery begins with what the same first crash has left.
        """
        total = 0
        for first in count(1):
            kit = new()
            Driver(kit, "a").run(0)
            where = crashed(kit, Driver(kit, "a"), first, 1)
            self._check(kit, 0, 1)
            sink, spark = kit.copy(), kit.spark.copy()
            for second in count(1):
                again = crashed(kit, Driver(kit, "b"), second, 1, 2, own=True)
                self._check(kit, 0, 1, 2)
                Driver(kit, "c").run(kit.spark.last, kit.spark.last + 1)
                assert kit.rows() == all_rows(*range(kit.spark.last + 1)), f"crashed at {first}, then at {second}"
                total += 1
                if not (again and where and not where.startswith(_STORAGE)):
                    break
                kit.put_back(sink)
                kit.spark.go_back(spark)
            if not where:
                break
        assert first > _STEPS_AT_LEAST
        assert total > _STEPS_AT_LEAST**2

    @staticmethod
    def _check(kit: Kit, certain: int, *possible: int) -> None:
        """See that the first batch is whole, and that no row is there twice or is of no batch."""
        seen, known = Counter(kit.rows()), Counter(all_rows(certain, *possible))
        assert seen <= known
        assert Counter(all_rows(certain)) <= seen

    @pytest.mark.slow
    def test_driver_that_stops_at_every_step_is_fenced(self, new: Callable[[], Kit]) -> None:
        """At each step of its batch a driver stands still while another takes over: it goes on, and ends as `Fenced`.

        Or it has decided before. Where it holds a lock, the other one is told, and tries again when it has ended.
        """
        for step in count(1):
            kit = new()
            stale, other = Driver(kit, "a"), Driver(kit, "b")
            stale.run(0)
            taken: list[bool] = []

            def take_over(kit: Kit = kit, other: Driver = other, taken: list[bool] = taken) -> None:
                with suppress(*kit.locked):
                    other.run(1, 2, 3)
                    taken.append(True)

            with kit.patch.context() as patch:
                steps = Steps(patch, step, take_over)
                try:
                    started = stale.begin(1)
                    reports = self._tried(stale, started, taken)
                    stale.commit(reports, 1)
                except Fenced:
                    assert taken
            self._check(kit, 0, 1, 2, 3)
            Driver(kit, "c").run(*range(kit.spark.last, 5))
            assert kit.rows() == all_rows(0, 1, 2, 3, 4), f"stopped at step {step}, {steps.reached[-1:]}"
            if not steps.was_there:
                break
        assert step > _STEPS_AT_LEAST

    @staticmethod
    def _tried(stale: Driver, started: Started[Any, Any], taken: list[bool]) -> list[TaskReport[Any]]:
        """Run the tasks of a stale driver; run them again, as Spark does, where one finds that its files were swept."""
        try:
            return stale.tasks(started, 1)
        except StorageError:
            assert taken
            return stale.tasks(started, 1)

    def test_stale_driver_is_fenced(self, kit: Kit) -> None:
        """A driver whose tasks are done comes to its commit when another has begun the batch, or has gone on."""
        stale, other = Driver(kit, "a"), Driver(kit, "b")
        stale.run(0)
        reports = stale.tasks(stale.begin(1), 1)
        begun = other.begin(1)
        with pytest.raises(Fenced, match="let it start again to take the sink over"):
            stale.commit(reports, 1)
        other.commit(other.tasks(begun, 1), 1)
        other.run(2)
        with pytest.raises(Fenced):
            stale.commit(reports, 1)
        assert kit.rows() == all_rows(0, 1, 2)
        stale.run(2, 3)
        assert kit.rows() == all_rows(0, 1, 2, 3)

    def test_driver_that_is_overtaken_before_it_begins_is_fenced(self, kit: Kit) -> None:
        """It has read the checkpoint, stands still, and finds the sink further on: that is no checkpoint that was put back."""
        stale = Driver(kit, "a")
        stale.run(0)
        kit.spark.plan(1)
        bound = stale.bound()
        Driver(kit, "b").run(1, 2, 3)
        with pytest.raises(Fenced, match="batch 1 of query q is not the last one"):
            stale.begin(1, bound)
        Driver(kit, "b").run(4)
        assert kit.rows() == all_rows(0, 1, 2, 3, 4)

    def test_deleted_checkpoint_passes_over_nothing(self, kit: Kit) -> None:
        """A query that begins anew, whose numbers have been here, is refused, or its rows come behind the others."""
        Driver(kit, "a").run(0, 1)
        anew = Spark("another")
        kit.patch.setattr(reader, "locate", lambda location, **_: (self._home(kit, anew, location), location))
        kit.spark.plan(2)
        try:
            Driver(kit, "b", anew).run(0)
        except CheckpointMismatch as error:
            assert "its checkpoint was deleted" in error.message  # noqa: PT017 - it may also be written
            assert kit.rows() == all_rows(0, 1)
        else:
            assert kit.rows() == sorted(all_rows(0, 1) + all_rows(0))

    @staticmethod
    def _home(kit: Kit, other: Spark, location: str) -> CountingStorage:
        return other.storage if location == other.location else kit.spark.storage

    def test_restored_sink_is_refused(self, kit: Kit) -> None:
        """What the sink has was put back from an older copy: Spark's next batch does not go on over the gap."""
        driver = Driver(kit, "a")
        driver.run(0)
        older = kit.copy()
        driver.run(1, 2)
        kit.put_back(older)
        for name in ("a", "b"):
            with pytest.raises(CheckpointMismatch, match="put back from an older copy"):
                Driver(kit, name).begin(3)
        assert kit.rows() == all_rows(0)

    def test_emptied_sink_is_refused(self, kit: Kit) -> None:
        """A checkpoint that has come to batch 3 finds a sink that has nothing."""
        with pytest.raises(CheckpointMismatch, match="has none of it: .* begin anew, with a new checkpoint"):
            Driver(kit, "a").begin(3)
        assert kit.rows() == []

    def test_restored_checkpoint_is_refused(self, kit: Kit) -> None:
        """The checkpoint was put back: its numbers have been here, and are passed over by nobody."""
        Driver(kit, "a").run(0, 1, 2, 3)
        kit.spark.put_back(1)
        for name in ("a", "b"):
            with pytest.raises(CheckpointMismatch, match="ends with batch 3: the checkpoint was restored"):
                Driver(kit, name).begin(1)
        assert kit.rows() == all_rows(0, 1, 2, 3)

    def test_restored_checkpoint_that_read_on_is_refused(self, kit: Kit) -> None:
        """The number of the last batch has other offsets now: when it begins, and where only its commit knows."""
        driver = Driver(kit, "a")
        driver.run(0, 1)
        kit.spark.plan(1, offset="others")
        for name in ("a", "b"):
            with pytest.raises(CheckpointMismatch, match="other offsets"):
                Driver(kit, name).begin(1)
        blind = Driver(kit, "b")
        started = blind.begin(1, replace(blind.bound(), batch=None))
        with pytest.raises(CheckpointMismatch, match="other offsets"):
            blind.commit(blind.tasks(started, 1), 1)
        assert kit.rows() == all_rows(0, 1)

    def test_checkpoint_that_cannot_be_read(self, kit: Kit) -> None:
        """Where only tasks know query and batch, batches go in order all the same, and a repeated one changes nothing."""
        for name, number in (("a", 0), ("a", 1), ("b", 1), ("b", 2)):
            Driver(kit, name, readable=False).run(number)
        assert kit.rows() == all_rows(0, 1, 2)
        with pytest.raises(CheckpointMismatch):
            Driver(kit, "b", readable=False).run(4)
        assert kit.rows() == all_rows(0, 1, 2)

    def test_of_twin_tasks_one_counts(self, kit: Kit) -> None:
        """Two attempts of a task have written, side by side, and a third one died: the rows of the winner are there, once."""
        driver = Driver(kit, "a")
        started = driver.begin(0)
        first, second = (driver.write(started, 0, "x", "y") for _ in range(2))
        with kit.patch.context() as patch, suppress(SimulatedCrash):
            Steps(patch, 1, crash)
            driver.write(started, 0, "x", "y")
        driver.commit([second], 0)
        assert kit.rows() == ["x", "y"]
        driver.run(1)
        assert kit.rows() == sorted(["x", "y", *all_rows(1)])
        assert first.result != second.result or not kit.staged()

    def test_batches_without_rows(self, kit: Kit) -> None:
        """A batch whose tasks have no rows, and one without a task, count like any other: the next one follows them."""
        driver = Driver(kit, "a")
        driver.commit([driver.write(driver.begin(0), 0)], 0)
        driver.begin(1)
        driver.commit([], 1)
        assert kit.rows() == []
        driver.run(1, 2)
        assert kit.rows() == all_rows(2)

    def test_aborted_batch_leaves_nothing(self, kit: Kit) -> None:
        """A batch that failed is aborted: what its tasks wrote goes, and the batch runs again."""
        driver = Driver(kit, "a")
        driver.run(0)
        before = kit.staged()
        driver.abort(driver.tasks(driver.begin(1), 1))
        assert kit.staged() == before
        driver.abort([])
        driver.run(1)
        assert kit.rows() == all_rows(0, 1)

    def test_abort_behind_the_decision_takes_nothing_away(self, kit: Kit) -> None:
        """A commit fails when all is decided, and Spark aborts the batch with the very results that count."""
        driver = Driver(kit, "a")
        driver.run(0)
        reports = driver.tasks(driver.begin(1), 1)
        driver.commit(reports, 1)
        driver.abort(reports)
        assert kit.rows() == all_rows(0, 1)
        driver.run(1, 2)
        assert kit.rows() == all_rows(0, 1, 2)

    def test_checkpoint_is_read_once_a_batch(self, kit: Kit) -> None:
        """A beginning reads each file of the checkpoint once, lists once, and makes the batch durable; a commit reads none."""
        driver, asked = Driver(kit, "a"), kit.spark.storage.asked
        places = ["checkpoint-q", "checkpoint-q/offsets"]
        for number in range(3):
            kit.spark.plan(number)
            asked.clear()
            started = driver.begin(number)
            assert [asked["read", place] for place in places] == [1, 1]
            assert asked["names", places[1]] == 1
            assert asked["persist", places[1].rpartition("/")[0]] >= 1
            reports = driver.tasks(started, number)
            asked.clear()
            driver.commit(reports, number)
            assert not [place for verb, place in asked if place in places]
