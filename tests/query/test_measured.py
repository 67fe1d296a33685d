"""What the processes of a query count for monitors, and how the counts reach the process that measures the query."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.errors import StorageError
from penstock.query import measured
from penstock.sink import keeper
from penstock.storage import HostFact
from penstock.tally import Counted
from tests.query.kits import FileKit, TableKit
from tests.query.suite import Driver

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return Driver(TableKit(tmp_path, monkeypatch), "a")


def test_where_nobody_measures_nothing_is_written(driver: Driver) -> None:
    """Batches of a query that nobody measures leave no note on this host."""
    driver.run(0, 1)
    assert not [fact for fact in HostFact.all() if fact.name.startswith("measured")]


def test_batches_are_counted(driver: Driver) -> None:
    """From its start the measuring process learns what the database did, once per batch that counts; after its end nothing is left."""
    query = driver.spark.query
    driver.run(0)
    measured.measure(query)
    measured.measure(query)
    driver.run(1)
    driver.run(1)  # repeated by Spark, but the database has it already
    counts = measured.counts(query)
    assert (counts["database_rows"], counts["database_skipped"]) == (3, 1)
    assert Counted().amounts() == {}
    assert counts["database_seconds"] > 0
    measured.forget(query)
    assert measured.counts(query) == {}
    assert not [fact for fact in HostFact.all() if fact.name.startswith("measured")]


def test_waits_for_the_disk_are_told_by_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tasks whose rows count, wherever they ran, and the commit each report how often and how long they waited for the disk."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    driver = Driver(FileKit(tmp_path, monkeypatch), "a")
    measured.measure(driver.spark.query)
    started = driver.begin(0)
    reports = [
        replace(driver.write(started, 0, "a", partition=each), counted={"syncs": 2, "sync_seconds": 0.5})
        for each in range(2)
    ]
    driver.commit(reports, 0)
    counts = measured.counts(driver.spark.query)
    assert (counts["syncs write"], counts["sync_seconds write"]) == (4, 1)
    assert counts["syncs commit"] >= 1
    assert counts["sync_seconds commit"] > 0


def test_a_note_that_is_held_keeps_no_commit_waiting(driver: Driver) -> None:
    """A process that holds the note and stops costs a monitor some numbers, and a batch nothing."""
    query = driver.spark.query
    measured.measure(query)
    [fact] = [fact for fact in HostFact.all() if fact.name.startswith("measured")]
    with fact.locked():
        driver.run(0)
        assert measured.counts(query) == {}
    driver.run(1)
    assert measured.counts(query)["database_rows"] == 3


def test_a_host_without_a_place_for_notes(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a usable temporary directory batches are committed, and nothing is reported."""
    monkeypatch.setattr("penstock.storage._host.temporary_directory", _none)
    measured.measure(driver.spark.query)
    driver.run(0)
    assert measured.counts(driver.spark.query) == {}
    measured.forget(driver.spark.query)


def _none() -> str:
    msg = "no directory for temporary files can be written"
    raise StorageError(msg)


def test_a_note_of_the_dead_goes(driver: Driver) -> None:
    """The next start of a query removes the note of a killed monitor; that of a living one stays."""
    measured.measure("dead")
    measured.measure("alive")
    [fact] = [fact for fact in HostFact.all() if fact.path == measured._fact("dead").path]
    with fact.locked() as state:
        state["jvm"][1] -= 1
    keeper.sweep()
    assert [fact.path for fact in HostFact.all()] == [measured._fact("alive").path]
