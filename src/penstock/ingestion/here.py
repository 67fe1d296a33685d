"""Runs an ingest without a query of Spark: plans, writes and commits what is there, batch by batch, and ends.

Spark's start is most of the cost of a small ingest, and in a session that is up the start and end of a query are. What an ingest
needs from Spark is an order of steps, a checkpoint and processes. If the files are on this host, no function of the user is called and
nothing is watched, this module provides the first two. The processes are ours (`workers`) or, in a session, its executors (`sparktasks`).
The planner, the stage, the sink and the order of their calls are the same as in a query of Spark. The entries of the checkpoint
have Spark's form, too, so each of the two can continue from what the other has committed:

    offsets/n      put, durable: from now on batch n is this plan
    begin          the sink: head of the ledger, owner, epoch
    write          each task stages its rows
    commit         the record of the ledger: the batch counts, and what it finished becomes visible
    commits/n      put: the batch is done

A driver that dies between two steps leaves the same state as Spark's driver would, and either of them repeats the batch in
flight.

Failure: *two drivers of one checkpoint.*
  1. Two ingests start at the same time, and each plans batch 0.
  2. One writes its plan and commits, then the other: two plans with one number.
  Rule: the entry of a batch is put only if there is none, so one driver has it. The other is `Fenced`, and has written nothing.

Failure: *a plan that another driver has replaced.*
  1. A plans a batch, and stalls before it begins the batch in the sink. So the ledger names no living driver.
  2. A file of the plan changes. B plans the batch again, as after a crash.
  3. A continues, takes the entry that it finds for its own, and commits the rows of its plan as those of B's plan. Additional
     rows of B's plan are lost.
  Rule: after the fingerprint of the entry is taken, the entry is compared with the plan. From then on the sink refuses any other
  entry.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock import failpoints
from penstock.errors import AlreadyThere, DamagedState, Fenced, PenstockError
from penstock.ingestion.replan import in_flight
from penstock.ingestion.taskcalls import WorkersEnded
from penstock.query.batch import Task
from penstock.query.entries import Entries
from penstock.query.writing import Bound

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from penstock.ingestion.planning import Planning
    from penstock.ingestion.taskcalls import TaskCalls
    from penstock.query.batch import Batch
    from penstock.query.checkpoint import Checkpoint
    from penstock.query.writing import QueryWriting, Started, TaskReport


@dataclass(frozen=True)
class QueryHere:
    """One run of a query over what is there now.

    `sink_id` is the user's name for the sink, if there is one; `owner` gives the name of the driver of a query, and `calls` what calls
    tasks until an event is set.
    """

    checkpoint: Checkpoint
    planner: Planning
    writing: QueryWriting[Any, Any]
    sink_id: str | None
    owner: Callable[[str], str]
    calls: Callable[[threading.Event], TaskCalls]

    def named(self) -> tuple[str, str]:
        """Return the id of the query, made now if it had none, and the name of its driver."""
        query = Entries(self.checkpoint).begin()
        return query, self.owner(query)

    def run(self, query: str, driver: str, ending: threading.Event) -> None:
        """Ingest everything that is there; end early, after a batch or in one, when `ending` is set.

        Raises what planning, reading, writing and committing raise; `Fenced` if another driver uses the same checkpoint.
        """
        try:
            with self.calls(ending) as calls:
                self._take(calls, query, driver)
        except WorkersEnded as ended:
            # If the run was asked to end, a batch in flight stays planned, and the next run repeats it.
            if ended.killed:
                raise _killed() from None

    def _take(self, calls: TaskCalls, query: str, driver: str) -> None:
        """Ingest everything that is there. Raises `WorkersEnded`, and what `run` raises."""
        calls.here(self.planner.prepare_available_now)
        number, again = max(self.checkpoint.numbers("offsets"), default=-1), in_flight(self.checkpoint)
        start = calls.here(self._offset, number)
        if again is not None:
            before = calls.here(self._offset, again - 1)
            self._batch(calls, self._planned(query, again, start), before, start, driver)
        while (end := self._next(calls, start)) != start or number < 0:
            number += 1
            self._plan(number, end)
            if number:
                self.planner.committed(start)
            failpoints.hit("ingest.here.planned")
            self._batch(calls, self._planned(query, number, end), start, end, driver)
            start = end

    def _next(self, calls: TaskCalls, start: dict[str, Any]) -> dict[str, Any]:
        """Return the offset at the end of the next batch; starts the processes that the batch needs while it is planned."""
        calls.expect(calls.here(self.planner.foreseen, start))
        return calls.here(self.planner.latest, start)

    def _offset(self, number: int) -> dict[str, Any]:
        """Return the offset at the end of a batch; for -1, as in Spark, the offset with which the planner begins now."""
        return self.planner.initial() if number < 0 else self.planner.offset(self.checkpoint, number)

    def _plan(self, number: int, end: dict[str, Any]) -> None:
        try:
            Entries(self.checkpoint).plan(number, json.dumps(end))
        except AlreadyThere:
            raise self._overtaken() from None

    def _overtaken(self) -> Fenced:
        msg = (
            f"another driver uses the checkpoint {self.checkpoint.location!r} of this ingest; this one has changed nothing "
            "more; leave it to the other, or run the same command again when that has ended"
        )
        return Fenced(msg)

    def _planned(self, query: str, number: int, end: dict[str, Any]) -> Batch:
        """Return the batch from its entry. Raises `Fenced` if the entry is no longer the plan of this driver."""
        batch = self.checkpoint.batch(query, number)
        with suppress(DamagedState):  # the entry is gone
            if self.planner.offset(self.checkpoint, number) == json.loads(json.dumps(end)):
                return batch
        raise self._overtaken()

    def _batch(self, calls: TaskCalls, batch: Batch, start: dict[str, Any], end: dict[str, Any], driver: str) -> None:
        """Write and commit one planned batch, for the first time or again.

        Raises `WorkersEnded`, and the errors of the tasks and the commit.
        """
        bound = Bound(self.sink_id or batch.query, driver, batch)
        started, tasks = self.writing.begin(bound), calls.here(self.planner.tasks, start, end, batch)
        reports: list[TaskReport[Any]] = []
        work = [(started, Task(batch.query, batch.number, number), rows) for number, rows in enumerate(tasks.carried)]
        try:
            reports = calls.each(_written, work, processes=tasks.processes)
            self.writing.commit(reports, batch.number, bound)
        except Exception:  # after any error of a task or the commit, the sink cleans up
            with suppress(PenstockError):  # the first error says more, and what is left is swept later
                self.writing.abort(reports)
            raise
        failpoints.hit("ingest.here.committed")
        Entries(self.checkpoint).done(batch.number)


def _written(started: Started[Any, Any], task: Task, carried: Sequence[pa.RecordBatch]) -> TaskReport[Any]:
    """Write the rows of one task; called in the process of the task."""
    return started.write(task, iter(carried))


def _killed() -> PenstockError:
    msg = (
        "a process that wrote for this ingest ended before it was done (killed, or out of memory); what is committed stays, nothing else "
        "is visible, and the same call goes on from there"
    )
    return PenstockError(msg)
