"""What an ingest that waits for input asks, without Spark."""

from __future__ import annotations

import threading
import time
from typing import Any

from penstock.ingestion.run import IngestRun


class Query:
    """A query that never ends."""

    def awaitTermination(self, seconds: float) -> bool:  # noqa: N802 - Spark's name
        """Wait, in vain."""
        time.sleep(seconds)
        return False

    def stop(self) -> None:
        """Do nothing."""


class Job:
    """A job whose query waits for input; counts who asks."""

    def __init__(self) -> None:
        self.asked = 0

    def start(self, _spark: object, **_options: object) -> Query:
        """Return the query."""
        return Query()

    def named(self, _query: Query) -> tuple[str, str]:
        """Return nothing of interest."""
        return "query", "owner"

    def waits(self, _query: Query) -> bool:
        """Count."""
        self.asked += 1
        return True


def test_a_query_that_waits_is_asked_once_a_second_and_ends_at_once() -> None:
    """Each look at a query costs the JVM and us some milliseconds: a watch that idles takes few, and hears of its end all the same."""
    job: Any = Job()
    run = IngestRun(lambda: job, every=1)
    thread = threading.Thread(target=run._await, args=(job, None))
    thread.start()
    time.sleep(1.5)
    run._ending.set()
    begun = time.monotonic()
    thread.join()
    assert time.monotonic() - begun < 0.5
    assert 1 <= job.asked <= 2
