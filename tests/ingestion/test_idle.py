"""How often a waiting ingest without Spark asks for news."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from penstock.ingestion.run import SparkRun

LOOKS = 3


class Query:
    """A query that never ends."""

    def __init__(self, waited: list[float]) -> None:
        self.waited = waited

    def awaitTermination(self, seconds: float) -> bool:  # noqa: N802 - Spark's name
        """Wait, and report no end."""
        self.waited.append(seconds)
        return False

    def stop(self) -> None:
        """Do nothing."""


class Job:
    """A job whose query waits for input; counts the requests."""

    def __init__(self) -> None:
        self.asked = 0
        self.waited: list[float] = []

    def start(self, _spark: object, **_options: object) -> Query:
        """Return the query."""
        return Query(self.waited)

    def named(self, _query: Query) -> tuple[str, str]:
        """Return nothing that matters here."""
        return "query", "owner"

    def waits(self, _query: Query) -> bool:
        """Count."""
        self.asked += 1
        return True


class Ending(threading.Event):
    """The end of a run, which is signalled in the middle of the third wait for it."""

    def __init__(self, waited: list[float]) -> None:
        super().__init__()
        self.waited = waited
        self.waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        """Note how long the caller would wait."""
        assert timeout is not None
        self.waited.append(timeout)
        self.waits += 1
        if self.waits == LOOKS:
            self.set()
        return self.is_set()


def test_a_query_that_waits_is_asked_once_a_second_and_ends_at_once() -> None:
    """Each look at a query costs the JVM and us some milliseconds: an idle watch looks rarely, and still notices the end at once."""
    job: Any = Job()
    run = SparkRun(cast("Any", None), lambda: job, every=1)
    run._ending = Ending(job.waited)
    run._await(job)
    assert job.asked == LOOKS
    assert sum(job.waited) == pytest.approx(1.0 * LOOKS)
