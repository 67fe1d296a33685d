"""Queries of one JVM that start at the same time, and the variables of their Python processes.

Spark 4.3 has one object for each Python format in a JVM, and in it one map of the variables that Python processes get. Every call to a
source while a query plans adds its own variables to that map (`PythonStreamingSourceRunner.init`), without a lock. So this happens:

1. Two queries plan for the first time, in two threads, and both add `SPARK_LOCAL_DIRS` to the map of `penstock`.
2. The map has both entries, or one of them, and remembers another size.
3. From then on each batch of each query of the format fails with "Task not serializable": "Illegal size 5 of collection, expected 6". A
   query that is started again gets the same map, so only a new JVM helps.

The rule: the variables that Spark will add are there before a query starts, so that the map never grows while others use it; each
runner puts its own value in place before it uses the variable. `tests/spark/test_contract.py` notices when Spark adds more.

One more variable is put there: `PYTHONPATH`, if the JVM's own does not lead to this Penstock. Spark gives the files of `--py-files` to the
Python processes of tasks, but not to those in which it plans a query, and these would find no Penstock.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.session import interpreter
from penstock.session.connect import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ADDED = ("SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME")
_lock = threading.Lock()


def side_by_side(spark: SparkSession, *formats: str) -> None:
    """Let queries with these formats start at the same time, and have their Python processes find this Penstock.

    Call it before the first query; it may be repeated, from any thread.

    Not guaranteed over Spark Connect, where the map is in another process, nor for a session for which this was not called.
    """
    if is_remote(spark):
        return
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    with _lock:
        for name in formats:
            # Another Spark may be without this map, and Spark itself reports a format that it does not find where it is needed.
            with suppress(Py4JError, PySparkException):
                _add(spark, variables_of(spark, name))


def _add(spark: SparkSession, variables: Any) -> None:  # noqa: ANN401 - the map of the JVM
    """Add to the variables of a format what Spark will add, and the way to this Penstock, once."""
    if not variables.containsKey(ADDED[-1]):  # this one is put last, so all are there
        _lead_to_penstock(spark, variables)
        for key in ADDED:
            variables.putIfAbsent(key, "")


def _lead_to_penstock(spark: SparkSession, variables: Any) -> None:  # noqa: ANN401 - the map of the JVM
    """Put the place of this Penstock before the `PYTHONPATH` among the variables, if neither that nor the JVM's own leads to it."""
    jvm: Any = spark._jvm  # noqa: SLF001 - PySpark offers no other access
    named, of_jvm = variables.get("PYTHONPATH") or "", jvm.java.lang.System.getenv("PYTHONPATH") or ""
    place = interpreter.not_found_with(os.pathsep.join([named, of_jvm]))
    if place is not None:
        variables.put("PYTHONPATH", os.pathsep.join(filter(None, [place, named])))


def variables_of(spark: SparkSession, name: str) -> Any:  # noqa: ANN401 - the map of the JVM
    """Return the variables of the Python processes of a format. Raises Spark's error if there is no such format."""
    manager = spark._jsparkSession.sessionState().dataSourceManager()  # noqa: SLF001 - PySpark offers no other access
    return manager.lookupDataSource(name).dataSourceCls().envVars()
