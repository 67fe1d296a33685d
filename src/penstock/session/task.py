"""What Spark tells a task about its query. It is undocumented, so it is read only here.

A task sees the query id, the batch id and, as its job group, the id of the query's run as local properties.
`tests/spark/test_contract.py` checks this against the installed Spark.
"""

from __future__ import annotations

from penstock.errors import OptionError
from penstock.query.batch import Task

_BATCH_ID = "streaming.sql.batchId"
_QUERY_ID = "sql.streaming.queryId"
_RUN_ID = "spark.jobGroup.id"


def task_batch() -> Task:
    """Return the task and batch in which this code runs; `OptionError` if that is not a task of a streaming query."""
    from pyspark import TaskContext

    query, batch, partition = task_place()
    if query is None or batch is None:
        msg = "not in a task of a streaming query: the penstock sink is used with writeStream"
        raise OptionError(msg)
    context = TaskContext.get()
    return Task(query, batch, partition, context.attemptNumber() if context else 0)


def task_place() -> tuple[str | None, int | None, int]:
    """Return (query id, batch id, partition) of the task in which this code runs; without ids if it belongs to no streaming query."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return None, None, 0
    query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    return query, None if batch is None else int(batch), context.partitionId()


def task_run() -> str:
    """Return the run of the streaming query to which the current task belongs; "" if there is none."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None or context.getLocalProperty(_QUERY_ID) is None:
        return ""
    return context.getLocalProperty(_RUN_ID) or ""
