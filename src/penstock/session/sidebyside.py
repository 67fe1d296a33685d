"""Queries of one JVM that start at the same time, and the variables of their Python processes.

Spark 4.3 has one object for each format of Python's and JVM, and in it one map of the variables that Python processes get. Whatever calls
a source while a query plans adds its own to that map (`PythonStreamingSourceRunner.init`), and locks nothing. So this happens:

1. Two queries plan for the first time, in two threads, and both add `SPARK_LOCAL_DIRS` to the map of `penstock`.
2. Both entries are there, or one of them, and the size that the map remembers is another one.
3. From then on each batch of each query of the format fails with "Task not serializable": "Illegal size 5 of collection, expected 6". A
   query that is started again gets the same map, so only a new JVM helps.

The rule: what Spark will add is there before a query starts, so that no map ever grows while others use it; each runner puts its own
value in its place before it uses one. `tests/spark/test_contract.py` notices when Spark adds more.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.session.connect import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ADDED = ("SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME")
_lock = threading.Lock()


def side_by_side(spark: SparkSession, *formats: str) -> None:
    """Let queries with these formats start at the same time. To be called in front of the first one; safe to repeat, from any thread.

    Not guaranteed over Spark Connect, where the map is in another process, nor for a session that nobody has told of this.
    """
    if is_remote(spark):
        return
    from py4j.protocol import Py4JError

    with (
        _lock,
        suppress(Py4JError),
    ):  # a Spark that has it otherwise, or a format that it does not find, as it says itself
        for name in formats:
            variables = variables_of(spark, name)
            if not variables.containsKey(ADDED[-1]):  # the last one that is put: all are there
                for key in ADDED:
                    variables.putIfAbsent(key, "")


def variables_of(spark: SparkSession, name: str) -> Any:  # noqa: ANN401 - the map of the JVM
    """Return the variables of the Python processes of a format. Raises `Py4JError` where there is no such format."""
    manager = spark._jsparkSession.sessionState().dataSourceManager()  # noqa: SLF001 - PySpark has no other way to it
    return manager.lookupDataSource(name).dataSourceCls().envVars()
