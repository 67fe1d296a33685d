"""An ingest of topics is killed at each step of its batches, without Spark and without brokers: their answers are simulated."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.kafka import read
from penstock.testing import explore
from tests.support.effort import effort
from tests.testing.topics_program import TopicsProgram

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from penstock.kafka.offset import Range
    from penstock.options import Options


def program(monkeypatch: pytest.MonkeyPatch, offsets: int) -> TopicsProgram:
    """Return an ingest of a topic with simulated brokers."""
    ingest = TopicsProgram(offsets)
    monkeypatch.setattr(read, "read", ingest.brokers.read)
    return ingest


@pytest.mark.slow
def test_killed_at_each_step_of_an_ingest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed anywhere and again in the recovery, while leaders change, each committed record is visible once in the end."""
    for depth, images_max, states_max in effort(((1, 2, None), (2, 2, 60)), ((1, 64, None), (2, 2, None))):
        ingest = program(monkeypatch, effort(5, 16))
        report = explore(ingest, depth=depth, images_max=images_max, states_max=states_max)
        assert not report.complaints, report.first
        assert report.states > 40


def test_a_task_that_reads_on_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a task reads one offset more than planned, or one less, the program above reports it."""
    ingest = program(monkeypatch, 5)
    exact = ingest.brokers.read
    for more, complaint in ((1, "twice|2 times|doubled|more than once"), (-1, "lost|missing|never")):

        def inexact(options: Options, wanted: Range, more: int = more) -> Iterator[pa.RecordBatch]:
            return exact(options, replace(wanted, end=wanted.end + more))

        monkeypatch.setattr(read, "read", inexact)
        ingest.memory = ()
        report = explore(ingest, depth=0)
        assert re.search(complaint, str(report.first)), report
