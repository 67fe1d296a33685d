"""A contender's process: it keeps its session, reads one command a line on stdin and answers one JSON object a line.

    python -m benchmarks.worker spark|ingest|plain|cluster|bare    many commands, one session
    python -m benchmarks.worker spark|ingest|plain '{"op": ...}'   one command, then the end: a whole process

Nothing is imported here that a contender does not need, because its start is measured, too. What Spark and its JVM
write to stdout goes to stderr, which the harness keeps in a file.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

_PROCESS_START = time.perf_counter()


def main(kind: str, once: str | None = None) -> int:
    """Serve until stdin ends, or run the one command; return the exit status."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    session = _session(kind)
    if once is not None:
        _answer(answers, _do(session, json.loads(once)))
        return 0  # the session ends with the process, as in most programs
    try:
        _answer(answers, {"ready": True})
        for line in sys.stdin:
            _answer(answers, _tried(session, json.loads(line)))
        return 0
    finally:
        if session is not None:
            session.stop()


def _session(kind: str) -> SparkSession | None:
    if kind == "bare":
        return None
    from benchmarks import jobs  # noqa: PLC0415 - see the module

    if kind == "cluster":
        return jobs.cluster_session(os.environ["BENCHMARKS_MASTER"])
    return jobs.spark_session() if kind == "spark" else jobs.penstock_session(kind)


def _tried(session: SparkSession | None, command: dict[str, Any]) -> dict[str, Any]:
    try:
        return _do(session, command)
    except Exception:  # noqa: BLE001 - whatever it is, the harness reports it and ends
        return {"error": traceback.format_exc()}


def _do(session: SparkSession | None, command: dict[str, Any]) -> dict[str, Any]:
    return _OPERATIONS[command.pop("op")](session, command)


def _run(session: Any, command: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - there is a session
    from benchmarks import jobs  # noqa: PLC0415 - see the module

    started = time.perf_counter() - _PROCESS_START
    return {"seconds": jobs.run(session, jobs.Job(**command["job"])), "session_seconds": started}


def _trickle(session: Any, command: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - there is a session
    from benchmarks import jobs  # noqa: PLC0415 - see the module

    return {"milliseconds": jobs.trickle(session, jobs.Job(**command["job"]), batches=command["batches"])}


def _count(session: Any, command: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - there is a session
    from benchmarks import jobs  # noqa: PLC0415 - see the module

    return {"seconds": jobs.counted(session, jobs.Job(**command["job"]), by=command["by"])}


def _cross(session: Any, command: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - there is a session
    from benchmarks.crossing import cross  # noqa: PLC0415 - see the module

    return {"seconds": cross(session, **command)}


def _alone(_session: object, command: dict[str, Any]) -> dict[str, Any]:
    from benchmarks.alone import parse_and_write  # noqa: PLC0415 - see the module

    ranges = [(path, start, end) for path, start, end in command["ranges"]]
    return {"seconds": parse_and_write(command["form"], ranges, command["target"], command.get("partition"))}


def _profile(_session: object, command: dict[str, Any]) -> dict[str, Any]:
    from benchmarks.profiling import profiled  # noqa: PLC0415 - see the module

    return profiled(**command)


_OPERATIONS: dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] = {
    "run": _run,
    "trickle": _trickle,
    "count": _count,
    "cross": _cross,
    "alone": _alone,
    "profile": _profile,
}


def _answer(answers: IO[str], answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
