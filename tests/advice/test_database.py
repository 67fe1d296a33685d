"""The advice of the database sink's errors is followed: the query goes on, every row once. On SQLite."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.clock import use
from penstock.db.database import Database
from penstock.errors import CheckpointMismatch, DatabaseAway, DatabaseError, OptionError, RowRefused, TableMismatch
from penstock.testing import FakeClock
from tests.support.database import Driver, Place, batch, ten
from tests.support.follows import follows


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wait only a moment for locks, and not at all between tries."""
    monkeypatch.setattr(Database, "_lock_millis", 100)
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
    """`DatabaseError`: the database's words give the cause; once it is fixed, the same call goes on."""
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


@pytest.mark.slow
@follows("PST-701")
def test_database_that_is_locked(place: Place, tmp_path: Path) -> None:
    """`DatabaseAway`: once the lock's holder releases it, the batch that failed is applied once."""
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


@pytest.mark.parametrize("remedy", ["put back", "another sinkId", "deleted row"])
@follows("PST-302")
def test_another_checkpoint(place: Place, remedy: str) -> None:
    """`CheckpointMismatch`: the query that wrote goes on, or the other query's rows are added after it: each row once."""
    for number in range(2):
        Driver(place).run(number, ten(number))
    with pytest.raises(CheckpointMismatch, match="Put the checkpoint back.*use another sinkId, or delete the row 's'"):
        Driver(place, "d2", "another").begin(0)
    if remedy == "put back":
        Driver(place, "d2").run(2, ten(2))
    elif remedy == "another sinkId":
        Driver(place, "d2", "another", sink_id="s2").run(0, ten(2))
    else:
        place.query("DELETE FROM {b} WHERE sink_id = 's'")
        Driver(place, "d2", "another").run(0, ten(2))
    assert has_batches(place, 0, 1, 2)


@pytest.mark.parametrize("older", ["database", "checkpoint"])
@pytest.mark.parametrize("remedy", ["restored", "begun anew"])
@follows("PST-302")
def test_database_and_checkpoint_of_different_times(place: Place, older: str, remedy: str) -> None:
    """`CheckpointMismatch`: database and checkpoint of the same time go on; begun anew with an empty table, they have every row once."""
    for number in range(3):
        Driver(place).run(number, ten(number))
    with pytest.raises(CheckpointMismatch, match="restore both from the same time; or begin anew, .* an empty table"):
        Driver(place, "d2").begin(1 if older == "checkpoint" else 4)
    if remedy == "restored":
        Driver(place, "d2").run(3, ten(3))
    else:
        place.query("DELETE FROM {t}")
        for number in range(4):
            Driver(place, "d2", "another", sink_id="s2").run(number, ten(number))
    assert has_batches(place, 0, 1, 2, 3)


@follows("PST-702")
def test_table_that_is_not_to_be_created(place: Place) -> None:
    """`TableMismatch`: once the table is created, or the option is left out, the batch goes in."""
    with pytest.raises(TableMismatch, match="createTable=false: create it, or leave that option out"):
        Driver(place, options={"createTable": "false"}).begin(0)
    place.query("CREATE TABLE {t} (k bigint, v text, n bigint)")
    Driver(place, options={"createTable": "false"}).run(0, ten(0))
    place.query("DROP TABLE {t}")
    with pytest.raises(TableMismatch, match="or create it if it is to have only what comes next"):
        Driver(place, "d2").begin(1)
    place.query("CREATE TABLE {t} (k bigint, v text, n bigint)")
    Driver(place, "d3").run(1, ten(1))
    assert has_batches(place, 1)


@follows("PST-702")
def test_column_that_needs_a_value(place: Place) -> None:
    """`TableMismatch`: each of the three ways in its message lets the batch in."""
    place.query("CREATE TABLE {t} (k bigint, v text, n bigint, x bigint NOT NULL)")
    with pytest.raises(TableMismatch, match="give it a default, let it be null, or add the column to the query"):
        Driver(place).run(0, ten(0))
    place.query("ALTER TABLE {t} DROP COLUMN x")
    place.query("ALTER TABLE {t} ADD COLUMN x bigint NOT NULL DEFAULT 7")
    Driver(place).run(0, ten(0))
    place.query("ALTER TABLE {t} DROP COLUMN x")
    place.query("ALTER TABLE {t} ADD COLUMN x bigint")
    Driver(place).run(1, ten(1))
    assert has_batches(place, 0, 1)


@follows("PST-101")
def test_sum_without_keys(place: Place) -> None:
    """`OptionError` of `mode=merge`: with the key that the message asks for, the batch is added up."""
    with pytest.raises(OptionError, match=r"mode=merge needs keyColumns that the rows have \(k, v, n\)"):
        Driver(place, options={"mode": "merge"}).begin(0)
    Driver(place, options={"mode": "merge", "keyColumns": "k,v"}).run(0, batch((1, "a", 1), (1, "a", 2)))
    assert place.rows() == [(1, "a", 3)]


@follows("PST-702")
def test_table_that_does_not_fit(place: Place) -> None:
    """`TableMismatch`: once the table is changed as the message says, the batch goes in."""
    place.query("CREATE TABLE {t} (k bigint, v text)")
    with pytest.raises(TableMismatch, match="'n'"):
        Driver(place).run(0, ten(0))
    place.query("ALTER TABLE {t} ADD COLUMN n bigint")
    Driver(place).run(0, ten(0))
    assert has_batches(place, 0)


@pytest.mark.parametrize("remedy", ["mended", "quarantine"])
@follows("PST-703")
def test_row_that_is_refused(place: Place, remedy: str) -> None:
    """`RowRefused`: once the row is fixed, or with `badRows=quarantine`, the batch is applied once, and no row is lost."""
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
