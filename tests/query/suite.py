"""What every sink must withstand, as tests for any sink: crashes, stale drivers, replays, restored copies.

A test module makes a subclass of `SinkContract` with the fixture `new`, which returns fresh kits: a `Kit` is a sink of one kind
in its own place, with everything that can be done to it. `Spark` plays Spark with its checkpoint, and `Driver` the driver,
whose `begin`, `write` and `commit` are the calls of Spark's processes; a restart is a new `Driver`.

Steps are failpoints (`penstock.failpoints.hit`): with them a sink names the moments between its durable steps, and the suite
finds them by running into each. What a crash leaves of unsynced writes is tested elsewhere: `penstock.testing.explore`.
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
    """A query as its checkpoint describes it."""

    def __init__(self, query: str = "q") -> None:
        self.query = query
        self.location = f"/checkpoint-{query}"
        self._disk = CrashDisk()
        self.storage = CountingStorage(self._disk.storage(), "")
        self.storage.make_directory(f"{self.location}/offsets")
        self._put("metadata", json.dumps({"id": query}))
        self.last = -1

    def plan(self, number: int, offset: object = None) -> None:
        """Write a batch to the checkpoint, as Spark does before it runs; if other offsets are given, write it again with those."""
        if number > self.last or offset is not None:
            self._put(f"offsets/{number}", f"v1\n{{}}\n{json.dumps({'offset': offset or number})}")
        self.last = max(self.last, number)

    def put_back(self, number: int) -> None:
        """Restore the checkpoint to the time when `number` was its last batch."""
        for later in range(number + 1, self.last + 1):
            self.storage.delete(f"{self.location}/offsets/{later}")
        self.last = number

    def copy(self) -> tuple[Image, int]:
        """Return a copy of everything."""
        return self._disk.image(), self.last

    def go_back(self, copied: tuple[Image, int]) -> None:
        """Restore everything from a copy."""
        image, self.last = copied
        self._disk = CrashDisk(image)
        self.storage = CountingStorage(self._disk.storage(), "")

    def _put(self, name: str, text: str) -> None:
        """Write a file without counting it as a step."""
        path = f"{self.location}/{name}"
        with suppress(FileNotFoundError):
            self._disk.unlink(path)
        file = self._disk.open(path, os.O_CREAT | os.O_WRONLY)
        self._disk.write(file, text.encode())
        self._disk.close(file)


class Kit(ABC):
    """A sink of one kind in its own place. `locked` are the errors that a driver gets while another driver holds a lock."""

    locked: tuple[type[PenstockError], ...] = ()

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.patch = patch
        self.process = ""
        self.spark = Spark()
        patch.setattr(drivers, "this", lambda query: f"host:{self.process}:0:{query}")

    @abstractmethod
    def opens(self) -> Callable[[str], BatchSink[Any, Any]]:
        """Return a function that opens the sink by the name of its state."""

    @abstractmethod
    def rows(self) -> list[str]:
        """Return the rows that a reader sees, sorted."""

    @abstractmethod
    def copy(self) -> Any:
        """Return a copy of everything that the sink has."""

    @abstractmethod
    def put_back(self, copied: Any) -> None:
        """Restore a copy."""

    @abstractmethod
    def staged(self) -> list[str]:
        """Return what sink `s` and query `q` keep for an unfinished batch."""

    @abstractmethod
    def lose_a_reply(self) -> None:
        """Let the next deciding step succeed but be reported as failed."""

    def close(self) -> None:  # noqa: B027 - not every kit has something open
        """Release what is open."""

    @contextmanager
    def running(self, process: str) -> Iterator[None]:
        """Act as another process within the block."""
        before, self.process = self.process, process
        try:
            yield
        finally:
            self.process = before


class Driver:
    """A driver of a query: the calls of its processes, one batch after another."""

    def __init__(self, kit: Kit, name: str, spark: Spark | None = None, *, readable: bool = True) -> None:
        self.kit, self.name, self.spark = kit, name, spark or kit.spark
        location = self.spark.location if readable else None
        self.writing: QueryWriting[Any, Any] = QueryWriting(kit.opens(), checkpoint=location, sink_id="s")

    def bound(self) -> Bound:
        """Read the checkpoint."""
        with self.kit.running(self.name):
            return self.writing.bound()

    def begin(self, number: int, bound: Bound | None = None) -> Started[Any, Any]:
        """Begin a batch, and have Spark plan it first."""
        self.spark.plan(number)
        with self.kit.running(self.name):
            return self.writing.begin(bound)

    def write(self, started: Started[Any, Any], number: int, *rows: str, partition: int = 0) -> TaskReport[Any]:
        """Write the rows of a task; its report is pickled on its way back."""
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
        """Run the two tasks of a batch."""
        return [self.write(started, number, *rows, partition=each) for each, rows in enumerate(rows_of(number))]

    def run(self, *numbers: int) -> None:
        """Run batches from begin to commit."""
        for number in numbers:
            self.commit(self.tasks(self.begin(number), number), number)


def rows_of(number: int) -> list[list[str]]:
    """Return the rows of a batch, per task."""
    return [[f"{number} a", f"{number} b"], [f"{number} c"]]


def all_rows(*numbers: int) -> list[str]:
    """Return the rows of these batches, sorted."""
    return sorted(row for number in numbers for rows in rows_of(number) for row in rows)


class Steps:
    """Counts the steps that are reached; at step `at` it calls `act`, once."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int, act: Callable[[], None], *, own: bool = False) -> None:
        """Count all steps; with `own` only those that are not steps of the storage."""
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
    """Run batches and crash at a step; return its name, or "" if there are fewer steps."""
    with kit.patch.context() as patch:
        steps = Steps(patch, step, crash, own=own)
        with suppress(SimulatedCrash):
            driver.run(*numbers)
    kit.close()
    return steps.reached[-1] if steps.was_there else ""


class SinkContract:
    """Inherit from this, with the fixture `new`."""

    @pytest.fixture(autouse=True)
    def _still(self) -> Iterator[None]:
        with clock.use(FakeClock()):
            yield

    @pytest.fixture
    def kit(self, new: Callable[[], Kit]) -> Kit:
        """Return one kit."""
        return new()

    def test_batches_in_order(self, kit: Kit) -> None:
        """After each batch all rows are visible, each once; another driver continues after them."""
        Driver(kit, "a").run(0, 1)
        assert kit.rows() == all_rows(0, 1)
        Driver(kit, "b").run(2, 3)
        assert kit.rows() == all_rows(0, 1, 2, 3)

    def test_nothing_is_visible_before_the_commit(self, kit: Kit) -> None:
        """Rows that tasks have written are not visible yet."""
        driver = Driver(kit, "a")
        driver.run(0)
        driver.tasks(driver.begin(1), 1)
        assert kit.rows() == all_rows(0)

    def test_what_travels_can_be_pickled(self, kit: Kit) -> None:
        """What a batch sends to the tasks, and the reports that they send to the commit, can be pickled."""
        driver = Driver(kit, "a")
        for number in range(2):
            started = driver.begin(number)
            reports = driver.tasks(started, number)
            assert pickle.loads(pickle.dumps(reports)) == reports  # noqa: S301 - our own bytes
            assert pickle.loads(pickle.dumps(started.begun)) == started.begun  # noqa: S301 - our own bytes
            driver.commit(reports, number)

    @pytest.mark.parametrize("name", ["a", "b"])
    def test_repeated_batch_changes_nothing(self, kit: Kit, name: str) -> None:
        """Spark has not noted that a batch is done, and repeats it, with the same driver or another one: nothing changes."""
        Driver(kit, "a").run(0, 1)
        driver = Driver(kit, name)
        driver.run(1)
        assert kit.rows() == all_rows(0, 1)
        driver.run(2)
        assert kit.rows() == all_rows(0, 1, 2)

    def test_commit_that_is_called_twice(self, kit: Kit) -> None:
        """The same call is repeated with the same results."""
        driver = Driver(kit, "a")
        reports = driver.tasks(driver.begin(0), 0)
        for _ in range(2):
            driver.commit(reports, 0)
        assert kit.rows() == all_rows(0)

    def test_lost_reply(self, kit: Kit) -> None:
        """The deciding step succeeds but is reported as failed: whether the commit notices or is repeated, rows are there once."""
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
        """A driver dies at each step of a batch, and the next one at each step of the repetition: no row is lost or doubled.

        Both crashes are tried at the sink's own steps; at steps of the storage only the first crash, with one recovery after
        each. Each recovery starts from what the same first crash has left.
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
        """Check that the first batch is complete, and that no row occurs twice or belongs to no batch."""
        seen, known = Counter(kit.rows()), Counter(all_rows(certain, *possible))
        assert seen <= known
        assert Counter(all_rows(certain)) <= seen

    @pytest.mark.slow
    def test_driver_that_stops_at_every_step_is_fenced(self, new: Callable[[], Kit]) -> None:
        """At each step of its batch a driver stops while another takes over: it continues, and ends as `Fenced`.

        Otherwise it had decided before. If it holds a lock, the other driver gets an error, and tries again after this one has
        ended.
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
        """Run the tasks of a stale driver; if one finds its files swept, run them again, as Spark does."""
        try:
            return stale.tasks(started, 1)
        except StorageError:
            assert taken
            return stale.tasks(started, 1)

    def test_stale_driver_is_fenced(self, kit: Kit) -> None:
        """The tasks of a driver are done, but another driver has begun the batch, or has moved on, before it commits: it is fenced."""
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
        """A driver reads the checkpoint, stops, and finds the sink further on: it is fenced, and no restored checkpoint is blamed."""
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
        """A query that starts over with used batch numbers is refused, or its rows come after the others."""
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
        """The sink's data was restored from an older copy: Spark's next batch does not continue across the gap."""
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
        """A checkpoint at batch 3 finds an empty sink: it is refused."""
        with pytest.raises(CheckpointMismatch, match="has none of it: .* begin anew, with a new checkpoint"):
            Driver(kit, "a").begin(3)
        assert kit.rows() == []

    def test_restored_checkpoint_is_refused(self, kit: Kit) -> None:
        """The checkpoint was restored: its batch numbers were used before, and no driver silently skips them."""
        Driver(kit, "a").run(0, 1, 2, 3)
        kit.spark.put_back(1)
        for name in ("a", "b"):
            with pytest.raises(CheckpointMismatch, match="ends with batch 3: the checkpoint was restored"):
                Driver(kit, name).begin(1)
        assert kit.rows() == all_rows(0, 1, 2, 3)

    def test_restored_checkpoint_that_read_on_is_refused(self, kit: Kit) -> None:
        """The last batch number now has other offsets: it is refused when it begins, or by the commit if only that knows."""
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

    def test_another_run_of_the_same_length_is_refused(self, kit: Kit) -> None:
        """Both were restored and read on, and then the sink alone was put back as it was: it has another batch 1 than the checkpoint."""
        Driver(kit, "a").run(0, 1)
        kit.spark.plan(1, offset="others")
        for name in ("a", "c", "d", "d"):  # also one that has begun its own batch 1
            with pytest.raises(CheckpointMismatch, match="other offsets"):
                Driver(kit, name).begin(2)
        assert kit.rows() == all_rows(0, 1)

    def test_checkpoint_that_cannot_be_read(self, kit: Kit) -> None:
        """If only tasks know query and batch, batches still go in order, and a repeated batch changes nothing."""
        for name, number in (("a", 0), ("a", 1), ("b", 1), ("b", 2)):
            Driver(kit, name, readable=False).run(number)
        assert kit.rows() == all_rows(0, 1, 2)
        with pytest.raises(CheckpointMismatch):
            Driver(kit, "b", readable=False).run(4)
        assert kit.rows() == all_rows(0, 1, 2)

    def test_of_twin_tasks_one_counts(self, kit: Kit) -> None:
        """Two attempts of a task have written, side by side, and a third one died: the winner's rows are there once."""
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
        """A batch whose tasks have no rows, and a batch without tasks, count like any other: the next batch follows them."""
        driver = Driver(kit, "a")
        driver.commit([driver.write(driver.begin(0), 0)], 0)
        driver.begin(1)
        driver.commit([], 1)
        assert kit.rows() == []
        driver.run(1, 2)
        assert kit.rows() == all_rows(2)

    def test_aborted_batch_leaves_nothing(self, kit: Kit) -> None:
        """A failed batch is aborted: what its tasks wrote is removed, and the batch runs again."""
        driver = Driver(kit, "a")
        driver.run(0)
        before = kit.staged()
        driver.abort(driver.tasks(driver.begin(1), 1))
        assert kit.staged() == before
        driver.abort([])
        driver.run(1)
        assert kit.rows() == all_rows(0, 1)

    def test_abort_after_the_decision_takes_nothing_away(self, kit: Kit) -> None:
        """A commit fails after the decision, and Spark aborts the batch with the results that count: nothing is removed."""
        driver = Driver(kit, "a")
        driver.run(0)
        reports = driver.tasks(driver.begin(1), 1)
        driver.commit(reports, 1)
        driver.abort(reports)
        assert kit.rows() == all_rows(0, 1)
        driver.run(1, 2)
        assert kit.rows() == all_rows(0, 1, 2)

    def test_checkpoint_is_read_once_a_batch(self, kit: Kit) -> None:
        """`begin` reads the query, this batch and the last one, lists once, and makes the batch durable; `commit` reads nothing."""
        driver, asked = Driver(kit, "a"), kit.spark.storage.asked
        places = ["checkpoint-q", "checkpoint-q/offsets"]
        for number in range(3):
            kit.spark.plan(number)
            asked.clear()
            started = driver.begin(number)
            assert [asked["read", place] for place in places] == [1, 2 if number else 1]
            assert asked["names", places[1]] == 1
            assert asked["persist", places[1].rpartition("/")[0]] >= 1
            reports = driver.tasks(started, number)
            asked.clear()
            driver.commit(reports, number)
            assert not [place for verb, place in asked if place in places]
