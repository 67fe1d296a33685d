"""What errors of the database sink advise is done: the query goes on, every row once. On SQLite."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.clock import use
from penstock.db import database
from penstock.errors import DatabaseAway, DatabaseError, RowRefused, TableMismatch
from penstock.testing import FakeClock
from tests.support.advice import follows
from tests.support.database import Driver, Place, batch, ten


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wait for locks for a moment, and not at all between tries."""
    monkeypatch.setattr(database, "_LOCK_MILLIS", 100)
    with use(FakeClock()):
        yield


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Return a table in a new database."""
    made = Place(f"sqlite://{tmp_path}/x.db")
    yield made
    made.close()


def has_batches(place: Place, *numbers: int) -> bool:
    """Tell whether the table has the rows of these batches, each once."""
    return sorted(row[0] for row in place.rows()) == [10 * number + i for number in numbers for i in range(10)]


@follows("PST-700")
def test_database_that_refuses(tmp_path: Path) -> None:
    """`DatabaseError`: its words say why, that is mended, and the same call goes on."""
    path = tmp_path / "y.db"
    path.write_bytes(b"this is no database, whatever its name says" * 30)
    place = Place(f"sqlite://{path}")
    with pytest.raises(DatabaseError, match="not a database") as caught:
        Driver(place).run(0, ten(0))
    assert type(caught.value) is DatabaseError
    place.close()
    path.rename(tmp_path / "moved")
    place = Place(f"sqlite://{path}")
    Driver(place).run(0, ten(0))
    assert has_batches(place, 0)
    place.close()


@follows("PST-701")
def test_database_that_is_locked(place: Place, tmp_path: Path) -> None:
    """`DatabaseAway`: who holds its locks lets them go, and the batch that failed is applied once."""
    driver = Driver(place)
    driver.run(0, ten(0))
    code = "import sqlite3, sys\nheld = sqlite3.connect(sys.argv[1])\nheld.execute('BEGIN IMMEDIATE')\nprint(flush=True)\ninput()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "x.db")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    with pytest.raises(DatabaseAway, match="tried"):
        driver.run(1, ten(1))
    holder.communicate("")
    Driver(place, "d2").run(1, ten(1))
    assert has_batches(place, 0, 1)


@follows("PST-702")
def test_table_that_does_not_fit(place: Place) -> None:
    """`TableMismatch`: the table is changed as the message says, and the batch goes in."""
    place.query("CREATE TABLE {t} (k bigint, v text)")
    with pytest.raises(TableMismatch, match="'n'"):
        Driver(place).run(0, ten(0))
    place.query("ALTER TABLE {t} ADD COLUMN n bigint")
    Driver(place).run(0, ten(0))
    assert has_batches(place, 0)


@pytest.mark.parametrize("remedy", ["mended", "quarantine"])
@follows("PST-703")
def test_row_that_is_refused(place: Place, remedy: str) -> None:
    """`RowRefused`: with the row mended, or `badRows=quarantine`, the batch is applied once, and no row is lost."""
    place.query("CREATE TABLE {t} (k bigint, v text, n bigint CHECK (n > 0))")
    rows = batch((0, "a", 1), (1, "b", -1), (2, "c", 1))
    with pytest.raises(RowRefused, match="badRows=quarantine"):
        Driver(place).run(0, rows)
    assert place.rows() == []
    if remedy == "mended":
        Driver(place).run(0, batch((0, "a", 1), (1, "b", 1), (2, "c", 1)))
        assert [row[0] for row in place.rows()] == [0, 1, 2]
    else:
        Driver(place, options={"badRows": "quarantine"}).run(0, rows)
        assert [row[0] for row in place.rows()] == [0, 2]
        assert len(place.rejected()) == 1
