"""Rows that wait for their transaction: which count, which are swept, which are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.db import staging
from penstock.db.staging import Staged, StagingFiles
from penstock.errors import DamagedState, NotThere
from tests.support.database import SCHEMA, ten


@pytest.fixture
def place(tmp_path: Path) -> StagingFiles:
    return StagingFiles(str(tmp_path), "q")


def test_only_the_winners_staging_counts(place: StagingFiles) -> None:
    """D11: two attempts of a task have staged rows; those of the attempt that reported are read, in the order of the partitions."""
    winner = place.write(3, 0, SCHEMA, [ten(0), ten(1)])
    place.write(3, 0, SCHEMA, [ten(0, of="loser"), ten(1)])
    second = place.write(3, 1, SCHEMA, [ten(2)])
    rows = pa.Table.from_batches(place.read([winner, second]))
    assert rows.column("k").to_pylist() == list(range(30))
    assert set(rows.column("v").to_pylist()) == {f"a{i}" for i in range(10)}
    assert winner.rows == 20


def test_what_is_applied_is_swept(place: StagingFiles) -> None:
    """Every attempt of a batch and of the earlier batches is removed; later batches, and files that are not ours, stay."""
    for number in (1, 2, 2, 3):
        place.write(number, 0, SCHEMA, [ten(0)])
    foreign = Path(place.directory) / "000000000001-0-mine.arrow"
    foreign.write_bytes(b"")
    place.sweep(2)
    left = sorted(os.listdir(place.directory))
    assert [name[:12] for name in left] == ["000000000001", "000000000003"]
    assert foreign.exists()


def test_what_a_failed_batch_staged_is_removed(place: StagingFiles) -> None:
    """Files that the messages name are removed, and nothing else."""
    gone, stays = place.write(1, 0, SCHEMA, [ten(0)]), place.write(1, 1, SCHEMA, [ten(1)])
    place.remove([gone])
    assert os.listdir(place.directory) == list(stays.files)


def test_rows_are_cut_into_files(place: StagingFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task with many rows writes several files, so that no process holds them all; they are read as one."""
    monkeypatch.setattr(staging, "_FILE_BYTES", ten(0).nbytes * 2)
    staged = place.write(0, 0, SCHEMA, (ten(number) for number in range(5)))
    assert len(staged.files) == 3
    assert pa.Table.from_batches(place.read([staged])).column("k").to_pylist() == list(range(50))


def test_nothing_is_no_file(place: StagingFiles) -> None:
    """A task without rows writes nothing, not even a directory."""
    assert place.write(0, 0, SCHEMA, [ten(0).slice(0, 0)]) == Staged((), 0)
    place.sweep(0)
    assert not Path(place.directory).exists()


def test_staged_rows_are_nobody_elses_business(place: StagingFiles) -> None:
    """Only their owner can use staged files and their directory."""
    staged = place.write(0, 0, SCHEMA, [ten(0)])
    assert os.stat(place.directory).st_mode & 0o777 == 0o700
    assert os.stat(f"{place.directory}/{staged.files[0]}").st_mode & 0o777 == 0o600


def test_file_that_the_driver_does_not_see(place: StagingFiles) -> None:
    """A directory that differs from host to host is an error that says what to do."""
    staged = place.write(0, 0, SCHEMA, [ten(0)])
    place.remove([staged])
    with pytest.raises(NotThere, match="with the option stagingLocation"):
        list(place.read([staged]))


def test_file_that_was_cut_or_altered(place: StagingFiles) -> None:
    """Rows that differ from the staged ones are never loaded."""
    staged = place.write(0, 0, SCHEMA, [ten(0)])
    path = Path(place.directory) / staged.files[0]
    data = path.read_bytes()
    for bad in (data[:-1], data[:100], b"", data[:50] + bytes([data[50] ^ 1]) + data[51:]):
        path.write_bytes(bad)
        with pytest.raises(DamagedState):
            list(place.read([staged]))
