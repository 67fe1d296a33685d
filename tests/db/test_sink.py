"""A batch in a database is there once, whatever is repeated, refused or restored. Real PostgreSQL and SQLite."""

from __future__ import annotations

import datetime as dt
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, nullcontext
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from penstock import failpoints
from penstock.clock import use
from penstock.db import database
from penstock.errors import (
    CheckpointMismatch,
    DatabaseAway,
    DatabaseError,
    Fenced,
    OptionError,
    RowRefused,
    TableMismatch,
)
from penstock.query.batch import Batch
from penstock.testing import FakeClock
from tests.support.database import At, Driver, Place, batch, ten
from tests.support.follows import follows
from tests.support.postgres import Postgres
from tests.support.wait import wait_for

pytestmark = pytest.mark.xdist_group("db")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wait only a moment for locks, and not at all between tries."""
    monkeypatch.setattr(database.Database, "_lock_millis", 100)
    with use(FakeClock()):
        yield


def test_batches_again_with_other_rows_are_skipped(place: Place) -> None:
    """D1: batches 0, 1, 2, then 2 again with other rows, then 3: forty rows, and none of the other rows."""
    driver = Driver(place)
    done = [driver.run(number, ten(number)) for number in range(3)]
    assert [each.rows for each in done] == [10, 10, 10]
    again = driver.run(2, ten(2, of="b"))
    assert again.skipped
    assert again.rows == 0
    driver.run(3, ten(3))
    assert sorted(row[0] for row in place.rows()) == list(range(40))
    assert {row[1][0] for row in place.rows()} == {"a"}


@follows("PST-302")
def test_deleted_checkpoint_is_refused(place: Place) -> None:
    """D6: another query with the same sinkId, whose ids begin anew, is refused with advice; no row changes."""
    Driver(place).run(0, ten(0))
    other = Driver(place, "d2", "another")
    with pytest.raises(CheckpointMismatch, match="written by query q up to batch 0.*use another sinkId"):
        other.begin(0)
    assert len(place.rows()) == 10
    Driver(place, "d2", "another", sink_id="s2").run(0, ten(1))
    assert len(place.rows()) == 20


def test_query_that_applied_nothing_may_be_replaced(place: Place) -> None:
    """A first batch that failed does not claim the sinkId: the next query may have it."""
    Driver(place).begin(0)
    Driver(place, "d2", "another").run(0, ten(0))
    assert (place.last(), len(place.rows())) == (0, 10)


def test_batch_that_only_its_commit_knows(place: Place) -> None:
    """If the checkpoint cannot be read, a driver begins without the batch's id; the commit has the id, and checks everything."""
    driver = Driver(place)
    for number in range(2):
        assert driver.sink.begin(driver.db, f"d{number}", None) == number - 1
        driver.sink.commit(driver.db, f"d{number}", Batch("q", number), lambda number=number: [ten(number)])  # type: ignore[misc]  # - a lambda of no arguments
    driver.sink.begin(driver.db, "d2", None)
    for other in (Batch("another", 0), Batch("q", 3)):
        with pytest.raises(CheckpointMismatch):
            driver.sink.commit(driver.db, "d2", other, lambda: [ten(5)])
    assert len(place.rows()) == 20


def test_restored_checkpoint_is_refused(place: Place) -> None:
    """An older id, or the last id with another fingerprint, would mean other rows: begin and commit refuse it."""
    driver = Driver(place)
    for number in range(3):
        driver.run(number, ten(number), mark=f"m{number}")
    with pytest.raises(CheckpointMismatch, match="ends with batch 2: the checkpoint was restored"):
        driver.begin(1, "m1")
    with pytest.raises(CheckpointMismatch, match="other offsets"):
        driver.commit(2, lambda: [ten(7)], "other")
    assert (place.last(), len(place.rows())) == (2, 30)
    assert driver.run(2, ten(2), mark="m2").skipped
    assert driver.run(2, ten(2)).skipped  # without a readable offset log there is no fingerprint
    driver.run(3, ten(3))
    assert driver.run(3, ten(3), mark="m3").skipped


def test_restored_database_is_refused(place: Place) -> None:
    """F-D12: the id went back, or the row is gone: Spark's next batch must not continue over the gap."""
    driver = Driver(place)
    driver.run(0, ten(0))
    with pytest.raises(
        CheckpointMismatch, match=r"batch 2 of query q, but sink 's' in \w+ ends with batch 0: the database"
    ):
        driver.run(2, ten(2))
    place.query("DELETE FROM {b}")
    with pytest.raises(CheckpointMismatch, match="has none of it"):
        driver.run(1, ten(1))
    assert len(place.rows()) == 10


def test_stale_driver_is_fenced(place: Place) -> None:
    """D4: a driver that began, and commits after another driver has gone on, changes nothing."""
    stale, other = Driver(place), Driver(place, "d2")
    stale.run(0, ten(0))
    stale.begin(1)
    other.begin(1)
    with pytest.raises(Fenced, match="belongs to driver 'd2'"):
        stale.commit(1, lambda: [ten(1, of="b")])
    other.run(1, ten(1))
    other.run(2, ten(2))
    with pytest.raises(Fenced, match="belongs to driver 'd2'"):
        stale.commit(1, lambda: [ten(1, of="b")])
    with pytest.raises(CheckpointMismatch, match="ends with batch 2"):
        stale.begin(1)
    assert {row[1][0] for row in place.rows()} == {"a"}
    other.run(3, ten(3))


def test_interrupt_while_rows_are_loaded(place: Place) -> None:
    """Ctrl-C in the middle of the rows ends the batch as an interrupt, not as a database error; nothing is applied."""
    driver = Driver(place)
    driver.run(0, ten(0))
    driver.begin(1)

    def rows() -> Iterator[pa.RecordBatch]:
        yield ten(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        driver.commit(1, rows)
    assert (place.last(), len(place.rows())) == (0, 10)
    driver.run(1, ten(1))
    assert len(place.rows()) == 20


def test_batch_without_rows_is_noted(place: Place) -> None:
    """D7: the id of an empty batch is in the database, and the next batch follows."""
    driver = Driver(place)
    driver.run(0)
    assert place.last() == 0
    driver.run(1, batch(), ten(1))
    assert (place.last(), len(place.rows())) == (1, 10)


def test_row_of_the_sink_vanishes(place: Place) -> None:
    """D8: the row is deleted between begin and commit, and an earlier batch had been applied: nothing is applied."""
    driver = Driver(place)
    driver.run(0, ten(0))
    driver.begin(1)
    place.query("DELETE FROM {b}")
    with pytest.raises(CheckpointMismatch):
        driver.commit(1, lambda: [ten(1)])
    assert len(place.rows()) == 10


def test_row_vanishes_before_the_first_batch(place: Place) -> None:
    """D8: the UPDATE of the id finds no row: the rows of the batch are rolled back."""
    driver = Driver(place)
    driver.begin(0)
    place.query("DELETE FROM {b}")
    with pytest.raises(CheckpointMismatch, match="has gone"):
        driver.commit(0, lambda: [ten(0)])
    assert place.rows() == []


@pytest.mark.parametrize("change", ["driver = 'x'", "batch_id = 7", "sink_id = 'x'"])
def test_row_changes_within_the_transaction(at: At, tmp_path: Path, change: str) -> None:
    """D8, F-D4: the UPDATE of the id compares it with the value that was read; here a trigger of the table changes it in between."""
    place = at(f"sqlite://{tmp_path}/x.db")
    driver = Driver(place)
    driver.begin(0)
    place.query(f"CREATE TRIGGER x AFTER INSERT ON {{t}} BEGIN UPDATE {{b}} SET {change}; END")
    with pytest.raises(CheckpointMismatch, match="has gone"):
        driver.commit(0, lambda: [ten(0)])
    assert (place.rows(), place.last()) == ([], -1)


def test_upsert_takes_the_last_row_of_a_key(place: Place) -> None:
    """Of several rows with one key, in a batch and over batches, the last row is there."""
    driver = Driver(place, options={"mode": "upsert", "keyColumns": "k"})
    driver.run(0, batch((1, "a", 1), (2, "a", 1), (1, "b", None)), batch((2, "c", 5)))
    assert place.rows() == [(1, "b", None), (2, "c", 5)]
    driver.run(1, batch((2, "d", 6), (3, "e", 7)))
    assert place.rows() == [(1, "b", None), (2, "d", 6), (3, "e", 7)]


def test_sinks_of_one_connection(place: Place) -> None:
    """D12: two sinks of a process share its connection: what one leaves in the session does not affect the other."""
    first = Driver(place, options={"mode": "upsert", "keyColumns": "k"})
    other = pa.schema([("k", pa.string()), ("x", pa.float64())])
    options = {"mode": "merge", "keyColumns": "k", "table": f"{place.table}_x"}
    second = Driver(place, "d2", "r", options, other, "s2")
    second.db = first.db
    for number in range(2):
        first.run(number, ten(number))
        second.run(number, batch(("a", 0.5), schema=other))
    assert len(place.rows()) == 20
    assert place.query(f'SELECT * FROM "{place.table}_x"') == [("a", 1.0)]


def test_upsert_of_keys_alone(place: Place) -> None:
    """Rows that consist of their key only form a set."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    driver = Driver(place, options={"mode": "upsert", "keyColumns": "k,v"}, schema=schema)
    driver.run(0, batch((1, "a"), (1, "a"), (1, "b"), schema=schema))
    driver.run(1, batch((1, "a"), (2, "b"), schema=schema))
    assert place.rows() == [(1, "a"), (1, "b"), (2, "b")]


@pytest.mark.parametrize("bad", ["fail", "quarantine"])
def test_merge_adds_up(place: Place, bad: str) -> None:
    """Numbers of equal keys are added, within a piece, across pieces and across batches; null adds nothing."""
    schema = pa.schema([("day", pa.string()), ("k", pa.int64()), ("n", pa.int64()), ("x", pa.float64())])
    driver = Driver(place, options={"mode": "merge", "keyColumns": "day, k", "badRows": bad}, schema=schema)
    pieces = [(("m", 1, 1, 0.5), ("m", 1, 1, None)), (("m", 2, None, None), ("m", 1, 3, None))]
    driver.run(0, *(batch(*piece, schema=schema) for piece in pieces))
    assert place.rows() == [("m", 1, 5, 0.5), ("m", 2, None, None)]
    driver.run(1, batch(("m", 1, -1, 1.0), ("m", 2, 4, None), ("t", 1, None, 2.5), schema=schema))
    assert place.rows() == [("m", 1, 4, 1.5), ("m", 2, 4, None), ("t", 1, None, 2.5)]


@pytest.mark.parametrize("before", [[], [(1, -(2**63))], [(1, 2**63 - 1)]])
def test_sum_that_does_not_fit_is_refused(place: Place, before: list[tuple[int, int]]) -> None:
    """A sum beyond 64 bits fails, in a batch and across batches; it does not become an approximate float."""
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64())])
    driver = Driver(place, options={"mode": "merge", "keyColumns": "k"}, schema=schema)
    driver.run(0, batch(*before, schema=schema))
    step = -1 if before and before[0][1] < 0 else 1
    rows = [(1, step)] if before else [(1, 2**63 - 1), (1, 1)]
    with pytest.raises(RowRefused):
        driver.run(1, batch(*rows, schema=schema))
    assert (place.rows(), place.last()) == (before, 0)


def test_sum_that_is_no_number_is_refused(at: At, tmp_path: Path) -> None:
    """SQLite would store null for the sum of two infinities, which would then add nothing: infinities neither enter a sum nor result."""
    place = at(f"sqlite://{tmp_path}/x.db")
    schema = pa.schema([("k", pa.int64()), ("x", pa.float64())])
    driver = Driver(place, options={"mode": "merge", "keyColumns": "k", "badRows": "quarantine"}, schema=schema)
    done = driver.run(0, batch((1, -1e308), (1, float("inf")), (2, float("-inf")), schema=schema))
    assert (done.rows, done.rejected, place.rows()) == (1, 2, [(1, -1e308)])
    done = driver.run(1, batch((1, -1e308), (2, 1e308), (2, 1e308), schema=schema))
    assert (done.rows, done.rejected, place.rows()) == (1, 2, [(1, -1e308), (2, 1e308)])


def test_row_without_a_key(place: Place) -> None:
    """A null in a key fails the batch, and the error shows the row; with a quarantine it is set aside, and the rest is stored."""
    options = {"mode": "upsert", "keyColumns": "k"}
    rows = batch((1, "a", 1), (None, "b\n\u2028", 2), (3, "c", 3))
    with pytest.raises(RowRefused, match=r"key column 'k' is null: row \{.*b"):
        Driver(place, options=options).run(0, rows)
    assert place.rows() == []
    done = Driver(place, "d2", options=options | {"badRows": "quarantine"}).run(0, rows)
    assert (done.rows, done.rejected) == (2, 1)
    assert place.rows() == [(1, "a", 1), (3, "c", 3)]
    assert place.rejected() == [("key column 'k' is null", '{"v":"b\\n\u2028","n":2}')]


def test_rows_that_break_a_constraint(place: Place) -> None:
    """D9: two bad rows of twenty fail the batch; with a quarantine each is set aside with its reason, and 18 are stored."""
    place.query("CREATE TABLE {t} (k bigint UNIQUE, v text NOT NULL, n bigint CHECK (n < 5))")
    rows = [batch((7, "first", 0)), ten(0), batch((20, None, 1), *((30 + i, "x", 1) for i in range(7)), (40, "y", 5))]
    with pytest.raises(RowRefused, match=r"(?i)constraint"):
        Driver(place).run(0, *rows)
    assert place.rows() == []
    done = Driver(place, "d2", options={"badRows": "quarantine"}).run(0, *rows)
    assert (done.rows, done.rejected) == (17, 3)
    assert sorted(row[0] for row in place.rows()) == sorted([7, *range(7), 8, 9, *range(30, 37)])
    aside = place.rejected()
    assert [row for _, row in aside] == ['{"k":20,"n":1}', '{"k":40,"v":"y","n":5}', '{"k":7,"v":"a7","n":1}']
    assert all("constraint" in reason for reason, _ in aside)
    assert Driver(place, "d3", options={"badRows": "quarantine"}).run(0, *rows).skipped
    assert len(place.rejected()) == 3


@pytest.mark.parametrize("mode", ["append", "upsert", "merge"])
def test_row_that_is_refused_is_shown(place: Place, mode: str) -> None:
    """Without a quarantine the error shows the first refused row, which the database itself does not show; nothing is stored."""
    place.query("CREATE TABLE {t} (k bigint PRIMARY KEY, n bigint CHECK (n < 5))")
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64())])
    driver = Driver(place, schema=schema, options={"mode": mode} | ({"keyColumns": "k"} if mode != "append" else {}))
    driver.run(0, batch((1, 2), schema=schema))
    rows = [batch(*((i, 1) for i in range(10, 30)), schema=schema), batch((40, 1), (41, 7), (42, 8), schema=schema)]
    with pytest.raises(
        RowRefused, match=r"""(?i)constraint.*: row {"k":41,"n":7}; mend it, or use badRows=quarantine.*nothing of"""
    ):
        driver.run(1, *rows)
    assert (place.rows(), place.last()) == ([(1, 2)], 0)


def test_row_that_is_refused_is_not_shown_whole(at: At, postgres: Postgres) -> None:
    """A row of megabytes is shown by its begin and its end; a sum that is too large, by the row that caused it."""
    place = at(postgres.url)
    with pytest.raises(RowRefused, match=r"""row {"k":7,"v":"xxx.*xxx \[...\] xxx.*","n":1}; mend it""") as refused:
        Driver(place).run(0, batch((7, "x" * 3_000_000 + "\0", 1)))
    assert len(refused.value.message) < 5000
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64())])
    place = at(postgres.url)
    with pytest.raises(RowRefused, match=r"""row {"k":1,"n":2}; mend it"""):
        Driver(place, schema=schema, options={"mode": "merge", "keyColumns": "k"}).run(
            0, batch((1, (1 << 63) - 2), (1, 1), (1, 2), (1, 3), schema=schema)
        )


def test_rows_that_a_statement_refuses(place: Place) -> None:
    """A quarantine also works for upserts: failing pieces are halved, and the rest keeps its order."""
    place.query("CREATE TABLE {t} (k bigint PRIMARY KEY, v text, n bigint CHECK (n < 5))")
    driver = Driver(place, options={"mode": "upsert", "keyColumns": "k", "badRows": "quarantine"})
    done = driver.run(0, batch((1, "a", 1), (1, "b", 2), (2, "c", 1), (2, "e", 3), (1, "d", 9)))
    assert (done.rows, done.rejected) == (4, 1)
    assert place.rows() == [(1, "b", 2), (2, "e", 3)]


def test_values_that_would_be_others(place: Place) -> None:
    """SQLite cannot store NaN, nor PostgreSQL a NUL in a text: neither is stored as another value."""
    schema = pa.schema([("x", pa.float64()), ("v", pa.string())])
    driver = Driver(place, options={"badRows": "quarantine"}, schema=schema)
    driver.run(0, batch((1.5, "a"), (float("nan"), "b"), (None, "c\0d"), schema=schema))
    if place.is_sqlite:
        assert place.rows() == [(1.5, "a"), (None, "c\0d")]
        assert place.rejected()[0][1] == '{"x":"NaN","v":"b"}'
    else:
        assert [row[1] for row in place.rows()] == ["a", "b"]
        assert place.rejected()[0][1] == '{"v":"c\\u0000d"}'


@pytest.mark.parametrize("name", ['a"; DROP TABLE x; --', "select", "Ünï cödé", "a'b", "%s{}$1"])
def test_names_are_quoted(place: Place, name: str) -> None:
    """Tables and columns may have any name; a name never runs as SQL."""
    schema = pa.schema([(name, pa.int64()), ("n", pa.int64())])
    table = '"' + (place.table + name).replace('"', '""') + '"'
    for number, options in enumerate(({}, {"mode": "merge", "keyColumns": name})):
        driver = Driver(place, options=options | {"table": table}, schema=schema, sink_id=str(number))
        if options:
            place.query(f"CREATE UNIQUE INDEX {place.table} ON {table.replace('{}', '{{}}')} ({_quoted(name)})")
        driver.run(0, batch((5 + number, 1), schema=schema))
    assert place.query(f"SELECT * FROM {table.replace('{}', '{{}}')} ORDER BY 1") == [(5, 1), (6, 1)]


@pytest.mark.parametrize(("name", "written"), [("a,b", '"a,b"'), (' "x" ', '" ""x"" "'), ("n,", '"n,", "k"')])
def test_keys_with_commas_are_quoted(place: Place, name: str, written: str) -> None:
    """A key may have any name: in double quotes a comma, an outer blank or a quote belongs to it, as in a table's name."""
    schema = pa.schema([(name, pa.int64()), ("k", pa.int64()), ("v", pa.int64())])
    if '"k"' not in written:
        schema = schema.remove(1)
    driver = Driver(place, options={"mode": "upsert", "keyColumns": written}, schema=schema)
    driver.run(0, batch(*((1,) * (len(schema) - 1) + (n,) for n in range(3)), schema=schema))
    assert place.rows() == [(1,) * (len(schema) - 1) + (2,)]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""').replace("{}", "{{}}") + '"'


def test_values_are_never_pasted(place: Place) -> None:
    """Text that looks like SQL in a value, a query id or a fingerprint is stored unchanged."""
    evil = "x'); DROP TABLE y; --"
    Driver(place, evil, evil, sink_id="evil").run(0, batch((1, evil, 2)), mark=evil)
    assert place.rows() == [(1, evil, 2)]
    assert place.query("SELECT query_id, fingerprint, driver FROM {b}") == [(evil, evil, evil)]


def test_name_that_would_be_cut_off_is_refused(place: Place) -> None:
    """PostgreSQL silently cuts names to 63 bytes, so two could become one: refused, also for the quarantine's table, if there is one.

    SQLite does not cut names, and accepts them.
    """
    place.sink(table="t" * 63)  # a quarantine's table would have too long a name, but none is requested
    for options in ({"table": "t" * 64}, {"table": "t" * 60, "badRows": "quarantine"}, {"batchTable": "ü" * 32}):
        with nullcontext() if place.is_sqlite else pytest.raises(OptionError, match="at most 63 bytes"):
            place.sink(**options)
    with nullcontext() if place.is_sqlite else pytest.raises(OptionError, match="at most 63 bytes"):
        place.sink(pa.schema([("c" * 64, pa.int64())]))


@pytest.mark.parametrize("bad", ["fail", "quarantine"])
def test_tables_that_do_not_fit_are_refused_at_the_start(place: Place, bad: str) -> None:
    """A missing table, column or unique key raises `TableMismatch` before any row is staged."""
    given = {"badRows": bad}
    with pytest.raises(TableMismatch, match="createTable=false"):
        Driver(place, options=given | {"createTable": "false"}).begin(0)
    place.query("CREATE TABLE {t} (k bigint, n bigint)")
    with pytest.raises(TableMismatch, match="no column 'v': found k, n"):
        Driver(place, "d2", options=given).begin(0)
    place.query("ALTER TABLE {t} ADD v text")
    with pytest.raises(TableMismatch, match=r"mode=upsert.*ON CONFLICT.*PRIMARY KEY or UNIQUE"):
        Driver(place, "d3", options=given | {"mode": "upsert", "keyColumns": "k"}).begin(0)
    Driver(place, "d4", options=given).run(0, ten(0))


def test_key_that_is_checked_late(at: At, postgres: Postgres) -> None:
    """PostgreSQL accepts no `DEFERRABLE` key for an upsert, and says so only at the first row: our error comes at the start."""
    place = at(postgres.url)
    late = ("(v, k) INCLUDE (n)", "(k)", "(k, v, n)")
    place.query(
        f"CREATE TABLE {{t}} (k bigint, v text, n bigint, {', '.join(f'UNIQUE {key} DEFERRABLE' for key in late)})"
    )
    options = {"mode": "upsert", "keyColumns": "k,v"}
    with pytest.raises(TableMismatch, match="DEFERRABLE constraint"):
        Driver(place, options=options).begin(0)
    place.query("ALTER TABLE {t} DROP CONSTRAINT {t}_v_k_n_key, ADD UNIQUE (k, v)".replace("{t}_v", f"{place.table}_v"))
    Driver(place, options=options).run(0, ten(0))
    assert len(place.rows()) == 10


def test_text_into_types_that_spark_has_not(at: At, postgres: Postgres) -> None:
    """PostgreSQL parses a string for jsonb, uuid, an enum, bit(n)...; one that it cannot parse is a bad row, and none is cut."""
    place = at(postgres.url)
    names = ("id", "doc", "kind", "bits", "net")
    schema = pa.schema([(name, pa.string()) for name in names])
    place.query(f"CREATE TYPE {place.table}_kind AS ENUM ('a', 'b')")
    place.query(f"CREATE DOMAIN {place.table}_doc AS jsonb CHECK (value ? 'a')")
    kinds = ("uuid PRIMARY KEY", f"{place.table}_doc", f"{place.table}_kind", "bit(3)", "inet")
    place.query(f"CREATE TABLE {{t}} ({', '.join(map(' '.join, zip(names, kinds, strict=True)))})")
    one, two = "6f9619ff-8b86-d011-b42d-00cf4fc964ff", "6f9619ff-8b86-d011-b42d-00cf4fc964fe"
    right = (one, '{"a": 1}', "a", "101", "10.0.0.1/8")
    wrong = [(two, *right[1:i], bad, *right[i + 1 :]) for i, bad in enumerate(("", '{"b": 1}', "c", "1011", "x")) if i]
    rows = batch(right, (two, *(None,) * 4), ("x", *right[1:]), *wrong, schema=schema)
    with pytest.raises(RowRefused, match="invalid input syntax for type uuid"):
        Driver(place, schema=schema).run(0, rows)
    options = {"mode": "upsert", "keyColumns": "id", "badRows": "quarantine"}
    done = Driver(place, schema=schema, options=options).run(0, rows)
    assert (done.rows, done.rejected) == (2, 5)
    keys = pa.schema([schema.field("id")])
    Driver(place, schema=keys, options={"mode": "merge", "keyColumns": "id"}, sink_id="s2").run(
        0, batch((one,), schema=keys)
    )
    columns = ", ".join(f"{name}::text" for name in names)
    assert place.query(f"SELECT {columns} FROM {{t}} ORDER BY id DESC") == [right, (two, *(None,) * 4)]


def test_texts_in_arrays_of_types_that_spark_has_not(at: At, postgres: Postgres) -> None:
    """PostgreSQL parses the strings of an array for uuid, jsonb, an enum, a time; it also parses a string that is a whole array."""
    place = at(postgres.url)
    place.query(f"CREATE TYPE {place.table}_kind AS ENUM ('a', 'b')")
    names = ("ids", "docs", "kinds", "times", "bits", "one")
    kinds = ("uuid[]", "jsonb[]", f"{place.table}_kind[]", "time[]", "bit(3)[]", "uuid[]")
    schema = pa.schema([*((name, pa.list_(pa.string())) for name in names[:-1]), (names[-1], pa.string())])
    place.query(f"CREATE TABLE {{t}} ({', '.join(map(' '.join, zip(names, kinds, strict=True)))})")
    uuid = "6f9619ff-8b86-d011-b42d-00cf4fc964ff"
    right = ([uuid, None], ['{"a": 1}'], ["b", "a"], ["12:30"], ["101"], f"{{{uuid}}}")
    wrong = [(*right[:i], [bad], *right[i + 1 :]) for i, bad in enumerate(("x", "{", "c", "25:00", "1011"))]
    done = Driver(place, schema=schema, options={"badRows": "quarantine"}).run(
        0, batch(right, (None, [], *(None,) * 4), *wrong, schema=schema)
    )
    assert (done.rows, done.rejected) == (2, 5)
    shown = (f"{{{uuid},NULL}}", '{"{\\"a\\": 1}"}', "{b,a}", "{12:30:00}", "{101}", f"{{{uuid}}}")
    columns = ", ".join(f"{name}::text" for name in names)
    assert place.query(f"SELECT {columns} FROM {{t}}") == [shown, (None, "{}", *(None,) * 4)]


def test_rules_are_heeded(at: At, postgres: Postgres) -> None:
    """`COPY` ignores a table's rules, so it is not used where the table has any."""
    place = at(postgres.url)
    for sql in (
        "CREATE TABLE {t} (k bigint, v text, n bigint)",
        "CREATE TABLE {t}_high (LIKE {t})",
        "CREATE RULE high AS ON INSERT TO {t} WHERE NEW.k > 5 DO INSTEAD INSERT INTO {t}_high VALUES (NEW.*)",
    ):
        place.query(sql.replace("{t}", place.table))
    Driver(place).run(0, ten(0))
    assert [row[0] for row in place.rows()] == [*range(6)]
    assert place.query(f"SELECT k FROM {place.table}_high ORDER BY k") == [(k,) for k in range(6, 10)]


def test_column_of_another_type(at: At, postgres: Postgres) -> None:
    """PostgreSQL converts whatever it converts in any INSERT; a type that it does not convert is refused at the start."""
    place = at(postgres.url)
    place.query("CREATE TABLE {t} (k integer, v varchar(3), n numeric(20,2))")
    driver = Driver(place)
    driver.run(0, batch((1, "abc", 2)))
    assert place.query("SELECT k, v, n::text FROM {t}") == [(1, "abc", "2.00")]
    with pytest.raises(RowRefused, match="too long"):
        driver.run(1, batch((1, "abcd", 2)))
    with pytest.raises(RowRefused, match="out of range"):
        driver.run(1, batch((2**40, "a", 2)))
    for kind in ("date", "bytea"):
        place.query(f"ALTER TABLE {{t}} ALTER v TYPE {kind} USING NULL")
        with pytest.raises(TableMismatch, match=f'"v" is of type {kind} but expression is of type text'):
            Driver(place, "d2").begin(1)
    place.query("ALTER TABLE {t} ALTER v TYPE text USING NULL, ALTER n TYPE bit(64) USING NULL")
    with pytest.raises(TableMismatch, match='"n" is of type bit but expression is of type bigint'):
        Driver(place, "d2").begin(1)


def test_narrower_columns_are_told(at: At, postgres: Postgres, caplog: pytest.LogCaptureFixture) -> None:
    """PostgreSQL rounds as the page says, checked by psql, and the start names the columns; without a loss there is no message."""
    place = at(postgres.url)
    decimal, day = pa.decimal128(10, 4), dt.datetime(2026, 1, 31, 23, 59, 59, 600_000, tzinfo=dt.timezone.utc)
    kinds = {
        "a": ("numeric(5,2)", decimal, Decimal("1.235")),
        "b": ("integer", decimal, Decimal("2.5")),
        "c": ("integer", pa.float64(), 2.5),
        "d": ("real", pa.float64(), 0.1),
        "e": ("timestamp(0)", pa.timestamp("us"), day.replace(tzinfo=None)),
        "f": ("date", pa.timestamp("us", tz="UTC"), day),
        "g": ("varchar(3)", pa.string(), "abc  "),
        "h": ("numeric(5,2)", pa.float64(), 1.235),
        "i": ("double precision", pa.int64(), 2**53 + 1),
        "j": ('"char"', pa.string(), "abc"),
        "k": ("time(0)", pa.string(), "23:59:58.6"),
        "l": ("interval(0)", pa.string(), "1.6 seconds"),
        "m": ("interval day", pa.string(), "1 day 2 hours"),
        "n": ("money", decimal, Decimal("1.2355")),
        "o": ("time", pa.timestamp("us", tz="UTC"), day),
        "aa": ("oid", pa.int32(), -1),
        "ab": (f"{place.table}_short", decimal, Decimal("1.235")),
        "ac": (f"{place.table}_short[]", pa.list_(decimal), [Decimal("1.235")]),
    }
    exact = {
        "p": ("numeric(12,5)", decimal, Decimal("1.2355")),
        "q": ("bigint", pa.int32(), 7),
        "r": ("varchar", pa.string(), "abc  "),
        "s": ("text", pa.float64(), 0.1),
        "t": ("timestamptz", pa.timestamp("us"), day.replace(tzinfo=None)),
        "u": ("time", pa.string(), "23:59:58.6"),
        "w": ("interval", pa.string(), "1.6 seconds"),
        "x": ("money", pa.decimal128(10, 2), Decimal("1.23")),
        "y": (f"{place.table}_wide", pa.list_(decimal), [Decimal("1.2355")]),
        "z": ("oid", pa.int64(), 7),
    }
    place.query(f"CREATE DOMAIN {place.table}_shorter AS numeric(5,2)")
    place.query(f"CREATE DOMAIN {place.table}_short AS {place.table}_shorter")
    place.query(f"CREATE DOMAIN {place.table}_wide AS numeric(10,4)[]")
    for columns in (kinds, exact):
        caplog.clear()
        schema = pa.schema([(name, kind) for name, (_, kind, _) in columns.items()])
        place.query("DROP TABLE IF EXISTS {t}")
        place.query(f"CREATE TABLE {{t}} ({', '.join(f'{name} {kind}' for name, (kind, _, _) in columns.items())})")
        Driver(place, schema=schema, sink_id=min(columns)).run(
            0, batch(tuple(v for *_, v in columns.values()), schema=schema)
        )
        told = [name for record in caplog.records for name in columns if f"{name!r} (" in record.getMessage()]
        assert told == (list(kinds) if columns is kinds else [])
        stored = postgres.psql(f'SELECT concat_ws(chr(124), {", ".join(columns)}) FROM "{place.table}"')
        expected = (
            "1.24|3|2|0.1|2026-02-01 00:00:00|2026-01-31|abc|1.24|9.007199254740992e+15|a|23:59:59|00:00:02|1 day"
            "|$1.24|23:59:59.6|4294967295|1.24|{1.24}"
        )
        assert columns is exact or expected in stored


def test_values_that_a_column_of_sqlite_changes_are_told(
    at: At, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A column's affinity changes values as the page says, checked by Python's sqlite3, and the start names the columns."""
    place = at(f"sqlite://{tmp_path}/x.db")
    day = dt.datetime(2026, 1, 31, 23, 59, 59, tzinfo=dt.timezone.utc)
    changed = {
        "a": ("INTEGER", pa.string(), "007", 7),
        "b": ("DECIMAL(10,2)", pa.string(), "1e3", 1000),
        "c": ("DOUBLE PRECISION", pa.string(), "1", 1.0),
        "d": ("STRING", pa.string(), "007", 7),
        "e": ("REAL", pa.int64(), 2**53 + 1, 2.0**53),
        "f": ("VARCHAR(9)", pa.int32(), 7, "7"),
        "g": ("TEXT", pa.float64(), 0.5, "0.5"),
    }
    same = {
        "p": ("VARCHAR(2)", pa.string(), "007", "007"),
        "q": ("", pa.string(), "007", "007"),
        "r": ("DATE", pa.date32(), day.date(), "2026-01-31"),
        "s": ("DATETIME", pa.timestamp("us", tz="UTC"), day, "2026-01-31 23:59:59.000000Z"),
        "t": ("REAL", pa.int32(), 7, 7.0),
        "u": ("INTEGER", pa.float64(), 2.5, 2.5),
        "v": ("TEXT", pa.binary(), b"a", b"a"),
        "w": ("BIGINT", pa.int64(), 2**53 + 1, 2**53 + 1),
    }
    for columns in (changed, same):
        caplog.clear()
        schema = pa.schema([(name, kind) for name, (_, kind, _, _) in columns.items()])
        place.query("DROP TABLE IF EXISTS {t}")
        place.query(f"CREATE TABLE {{t}} ({', '.join(f'{name} {kind}' for name, (kind, *_) in columns.items())})")
        Driver(place, schema=schema, sink_id=min(columns)).run(
            0, batch(tuple(value for _, _, value, _ in columns.values()), schema=schema)
        )
        told = [name for record in caplog.records for name in columns if f"{name!r} (" in record.getMessage()]
        assert told == (list(changed) if columns is changed else [])
        with closing(sqlite3.connect(tmp_path / "x.db")) as connection:
            (stored,) = connection.execute(f'SELECT {", ".join(columns)} FROM "{place.table}"')
        assert [(type(value), value) for value in stored] == [(type(value), value) for *_, value in columns.values()]


def test_what_a_state_means(at: At, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL's error code tells whether an error is temporary, is caused by rows, or is of another kind."""
    monkeypatch.setattr(database, "_DELAYS", ())
    place = at(postgres.url)
    place.query("CREATE TABLE {t} (k bigint, v text, n bigint)")
    body = "BEGIN RAISE EXCEPTION USING ERRCODE = NEW.v; END"
    place.query(f"CREATE FUNCTION {place.table}() RETURNS trigger LANGUAGE plpgsql AS '{body}'")
    place.query(f"CREATE TRIGGER x BEFORE INSERT ON {{t}} FOR EACH ROW EXECUTE FUNCTION {place.table}()")
    driver = Driver(place, options={"badRows": "quarantine"})
    driver.begin(0)
    passing = ("08006", "57P01", "53300", "40001", "40P01", "55P03", "25P03")
    for kind, states in ((DatabaseAway, passing), (DatabaseError, ("57014", "53100", "42501"))):
        for state in states:
            with pytest.raises(kind) as error:
                driver.commit(0, lambda state=state: [batch((1, state, 1))])  # type: ignore[misc]  # - a lambda of no arguments
            assert type(error.value) is kind
    refused = ("22012", "23514", "44000", "P0001", "21000", "54000")
    own = ("45000", "UE001", "ZZ999")  # the SQL standard leaves these to users, and PostgreSQL has none of them
    rows = batch(*((1, state, 1) for state in (*refused, *own)))
    assert driver.commit(0, lambda: [rows]).rejected == 9


def test_values_that_sqlite_does_not_take(at: At, tmp_path: Path) -> None:
    """Text as a row number, or in a strict integer column, is a bad row."""
    for number, kind in enumerate(("INTEGER PRIMARY KEY", "INTEGER")):
        place = at(f"sqlite://{tmp_path}/x.db")
        place.query(f"CREATE TABLE {{t}} (k INTEGER, v {kind}, n INTEGER) {'STRICT' if number else ''}")
        driver = Driver(place, options={"badRows": "quarantine"}, sink_id=str(number))
        driver.run(0, batch((1, "7", 1), (2, "x", 1)))
        assert (place.rows(), [row for _, row in place.rejected()]) == ([(1, 7, 1)], ['{"k":2,"v":"x","n":1}'])


@pytest.mark.slow
def test_locked_out(place: Place) -> None:
    """A lock that another session keeps is `DatabaseAway` after some tries; nothing is applied, and the next try works."""
    driver, other = Driver(place), place.database()
    driver.run(0, ten(0))

    def hold(db: database.Database) -> None:
        db.execute(f'UPDATE "{place.table}_batches" SET driver = driver')
        with pytest.raises(DatabaseAway, match="tried 8 times"):
            driver.run(1, ten(1))

    other.run(hold)
    driver.run(1, ten(1))
    assert len(place.rows()) == 20


def test_serialization_failure_is_run_again(at: At, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """D13: another session changes the row under a stricter isolation: the whole batch runs again, and is there once."""
    monkeypatch.setattr(database.Database, "_lock_millis", 30_000)
    begun: list[str] = []
    monkeypatch.setattr(failpoints, "hit", begun.append)
    strict = at(postgres.url + "&options=-c%20default_transaction_isolation%3Dserializable")
    driver, other = Driver(strict), strict.database()
    driver.run(0, ten(0))
    driver.begin(1)
    begun.clear()
    committing = threading.Thread(target=lambda: driver.commit(1, lambda: [ten(1)]))

    def hold(db: database.Database) -> None:
        db.execute(f'UPDATE "{strict.table}_batches" SET fingerprint = fingerprint')
        committing.start()
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        wait_for(lambda: "1 row" in postgres.psql(waiting), "a session that waits")

    other.run(hold)
    committing.join()
    assert begun.count("db.commit.begun") == 2
    assert len(strict.rows()) == 20


@pytest.mark.parametrize("is_new", [True, False])
def test_two_that_enter_a_sink_at_one_time(
    at: At, postgres: Postgres, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """Another driver has created the tables, or the sink's row, without a commit yet: ours waits, and takes the sink over."""
    monkeypatch.setattr(database.Database, "_lock_millis", 30_000)
    place = at(postgres.url)
    if not is_new:
        Driver(place, sink_id="other").begin(0)
    driver, other = Driver(place), Driver(place, "d2")
    entering = threading.Thread(target=lambda: driver.begin(0))

    def enter(db: database.Database) -> None:
        other.sink._begin(db, "d2", None)
        entering.start()
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        wait_for(lambda: "1 row" in postgres.psql(waiting), "a session that waits")

    other.db.run(enter)
    entering.join()
    driver.run(0, ten(0))
    assert len(place.rows()) == 10


def test_rows_are_those_of_the_schema(place: Place) -> None:
    """The stored values are those that were given, whatever the order of the table's columns; other columns are left alone."""
    place.query("CREATE TABLE {t} (n bigint, extra text DEFAULT 'e', v text, k bigint)")
    Driver(place).run(0, batch((1, "a", 2)))
    assert place.rows() == [(2, "e", "a", 1)]


def test_table_that_changes_while_a_query_runs(place: Place) -> None:
    """A column, then the table, is dropped between two batches: `TableMismatch`, nothing is applied; restored, the query goes on.

    A dropped table is not created anew, not even by the next driver: it would lack the rows of the earlier batches.
    """
    driver = Driver(place)
    driver.run(0, ten(0))
    for change, back in (("DROP COLUMN v", "ADD v text"), ("RENAME TO {o}", "")):
        other = f'"{place.table}_away"'
        place.query(f"ALTER TABLE {{t}} {change.replace('{o}', other)}")
        with pytest.raises(TableMismatch, match="has no column"):
            driver.run(1, ten(1))
        with pytest.raises(TableMismatch, match="has no column 'v'|sink 's' has written up to batch 0: restore it"):
            Driver(place, "d2").begin(1)
        assert place.last() == 0
        place.query(f"ALTER TABLE {{t}} {back}" if back else f"ALTER TABLE {other} RENAME TO {{t}}")
    driver.run(1, ten(1))
    assert len(place.rows()) == 20


def test_column_that_needs_a_value(place: Place) -> None:
    """A column that is not nullable, has no default and is not in the rows is refused at the start, not at every row."""
    place.query("CREATE TABLE {t} (id integer PRIMARY KEY, k bigint, v text, n bigint, x bigint NOT NULL)")
    options = {"badRows": "quarantine"}
    if not place.is_sqlite:  # there such a key numbers itself
        place.query("ALTER TABLE {t} ALTER id ADD GENERATED ALWAYS AS IDENTITY")
        place.query(f"CREATE DOMAIN {place.table}_d AS bigint DEFAULT 9")
        place.query(f"ALTER TABLE {{t}} ADD y {place.table}_d NOT NULL")
    with pytest.raises(TableMismatch, match="needs a value for 'x' in every row"):
        Driver(place, options=options).begin(0)
    place.query("ALTER TABLE {t} DROP COLUMN x")
    place.query("ALTER TABLE {t} ADD COLUMN x bigint NOT NULL DEFAULT 7")
    Driver(place, "d2", options=options).run(0, batch((5, "a", 2)))
    assert place.query("SELECT id, k, v, n, x FROM {t}") == [(1, 5, "a", 2, 7)]


def test_domain_that_needs_a_value(at: At, postgres: Postgres) -> None:
    """A domain that refuses null makes its column need a value; `COPY` would not check it for a column that the rows lack."""
    place = at(postgres.url)
    for sql in (
        "CREATE DOMAIN {t}_d AS bigint NOT NULL",
        "CREATE DOMAIN {t}_e AS {t}_d CHECK (value > 0)",
        "CREATE DOMAIN {t}_f AS bigint CHECK (value IS NOT NULL)",
        "CREATE TABLE {t} (k bigint, v text, n bigint, x {t}_e)",
    ):
        place.query(sql.replace("{t}", place.table))
    options = {"badRows": "quarantine"}
    with pytest.raises(TableMismatch, match="needs a value for 'x' in every row"):
        Driver(place, options=options).begin(0)
    place.query("ALTER TABLE {t} ALTER x SET DEFAULT 7, ADD y bigint")
    Driver(place, "d2", options=options).run(0, batch((5, "a", 2)))
    place.query(
        f"ALTER TABLE {{t}} ALTER y TYPE {place.table}_f USING 1"
    )  # the database checks it only when there is a row
    done = Driver(place, "d3", options=options).run(1, batch((6, "a", 2)))
    assert (done.rows, done.rejected, place.rows()) == (0, 1, [(5, "a", 2, 7, 1)])


@pytest.mark.parametrize(
    "table",
    [
        "(id TEXT PRIMARY KEY NOT NULL, k, v, n)",
        "(id INTEGER PRIMARY KEY, k, v, n) WITHOUT ROWID",
        "(id INTEGER NOT NULL, k, v, n, PRIMARY KEY (id, k))",
        "(id INT PRIMARY KEY NOT NULL, k, v, n)",
    ],
)
def test_key_that_does_not_number_itself(at: At, tmp_path: Path, table: str) -> None:
    """SQLite numbers an INTEGER PRIMARY KEY of one column in a table with row ids; any other key column needs a value."""
    place = at(f"sqlite://{tmp_path}/x.db")
    place.query(f"CREATE TABLE {{t}} {table}")
    with pytest.raises(TableMismatch, match="needs a value for 'id' in every row"):
        Driver(place, options={"badRows": "quarantine"}).begin(0)


def test_column_that_a_trigger_fills(at: At, postgres: Postgres) -> None:
    """PostgreSQL checks for values after a table's triggers: a table with triggers is not refused at the start."""
    place = at(postgres.url)
    place.query("CREATE TABLE {t} (k bigint, v text, n bigint, x bigint NOT NULL)")
    body = "BEGIN NEW.x := NEW.k + 1; RETURN NEW; END"
    place.query(f"CREATE FUNCTION {place.table}() RETURNS trigger LANGUAGE plpgsql AS '{body}'")
    place.query(f"CREATE TRIGGER x BEFORE INSERT ON {{t}} FOR EACH ROW EXECUTE FUNCTION {place.table}()")
    Driver(place).run(0, batch((5, "a", 2)))
    assert place.rows() == [(5, "a", 2, 6)]


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (["UNLOGGED TABLE {t} ({c})"], "table '{t}'"),
        (["TEMPORARY TABLE {t} ({c})"], "table '{t}'"),
        (
            ["TABLE {t} ({c}) PARTITION BY LIST (k)", "UNLOGGED TABLE {t}_p PARTITION OF {t} DEFAULT"],
            "partition '{t}_p'",
        ),
        (
            ["FOREIGN DATA WRAPPER {t}", "SERVER {t} FOREIGN DATA WRAPPER {t}", "FOREIGN TABLE {t} ({c}) SERVER {t}"],
            "table '{t}'",
        ),
    ],
)
def test_table_with_another_fate_is_refused(at: At, postgres: Postgres, kinds: list[str], message: str) -> None:
    """D10: a table that a crash empties, or on another server, cannot hold rows whose id stays; the same holds for a partition."""
    place = at(postgres.url)
    driver = Driver(place)
    for kind in kinds:
        sql = f"CREATE {kind}".format(t=place.table, c="k bigint, v text, n bigint")
        driver.db.run(lambda db, sql=sql: db.execute(sql))  # type: ignore[misc]  # - a lambda of one argument
    with pytest.raises(TableMismatch, match=f"{message.format(t=place.table)}.* is UNLOGGED, TEMPORARY or FOREIGN"):
        driver.begin(0)


@pytest.mark.parametrize("suffix", ["batches", "rejected"])
def test_table_of_ours_with_another_fate_is_refused(at: At, postgres: Postgres, suffix: str) -> None:
    """D10: nor may the table of the ids, or of the rows set aside, be one that a crash empties alone."""
    place = at(postgres.url)
    Driver(place, options={"badRows": "quarantine"}).begin(0)
    place.query(f'ALTER TABLE "{place.table}_{suffix}" SET UNLOGGED')
    with pytest.raises(TableMismatch, match=f"_{suffix}' is UNLOGGED"):
        Driver(place, "d2", options={"badRows": "quarantine"}).begin(0)


@pytest.mark.parametrize("which", ["table", "batches", "partition"])
def test_table_whose_fate_changes_between_batches_is_refused(at: At, postgres: Postgres, which: str) -> None:
    """D10: made UNLOGGED between two batches of one driver, the table is refused for the whole next batch; made LOGGED again, it works."""
    place = at(postgres.url)
    name = {"table": place.table, "batches": f"{place.table}_batches", "partition": f"{place.table}_p"}[which]
    if which == "partition":
        place.query("CREATE TABLE {t} (k bigint, v text, n bigint) PARTITION BY LIST (k)")
        place.query(f'CREATE TABLE "{name}" PARTITION OF {{t}} DEFAULT')
    driver = Driver(place)
    driver.run(0, ten(0))
    for number in (1, 2):
        place.query(f'ALTER TABLE "{name}" SET UNLOGGED')
        for _ in range(2):
            with pytest.raises(TableMismatch, match=f"{name}'.* is UNLOGGED, TEMPORARY or FOREIGN.*SET LOGGED"):
                driver.run(number, ten(number))
        assert (place.last(), len(place.rows())) == (number - 1, 10 * number)
        place.query(f'ALTER TABLE "{name}" SET LOGGED')
        driver.run(number, ten(number))
    assert (place.last(), len(place.rows())) == (2, 30)


def test_table_whose_fate_changes_within_a_batch_is_not(
    at: At, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the check to the commit nobody can make the table UNLOGGED: an attempt waits for the batch."""
    place = at(postgres.url)
    driver = Driver(place)
    driver.run(0, ten(0))
    tried: list[str] = []

    def hit(point: str) -> None:
        if point == "db.commit.before-commit":
            with pytest.raises(DatabaseAway, match="lock timeout"):
                place.query("ALTER TABLE {t} SET UNLOGGED")
            tried.append(point)

    monkeypatch.setattr(failpoints, "hit", hit)
    driver.run(1, ten(1))
    assert (len(tried), place.last(), len(place.rows())) == (1, 1, 20)


def test_view_and_policies(at: At, postgres: Postgres) -> None:
    """PostgreSQL has no COPY into a view or under row-level security: rows go in by INSERT, and each is checked."""
    place = at(postgres.url)
    place.query(f'CREATE TABLE "{place.table}_below" (k bigint, v text, n bigint)')
    place.query(f'CREATE VIEW {{t}} AS SELECT * FROM "{place.table}_below" WHERE n < 5 WITH CHECK OPTION')
    done = Driver(place, options={"badRows": "quarantine"}).run(0, batch((1, "a", 2), (2, "b", 5)))
    assert (done.rows, done.rejected, place.rows()) == (1, 1, [(1, "a", 2)])
    role = f"{place.table}_clerk"
    for sql in (
        "CREATE TABLE {t}_p (k bigint, v text, n bigint)",
        "ALTER TABLE {t}_p ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY p ON {t}_p WITH CHECK (n < 5)",
        "CREATE ROLE {t}_clerk LOGIN",
        "GRANT CREATE, USAGE ON SCHEMA public TO {t}_clerk",
        "GRANT INSERT ON {t}_p TO {t}_clerk",
    ):
        place.query(sql.replace("{t}", place.table))
    clerk = at(postgres.url.replace("postgres@", f"{role}@"))
    driver = Driver(clerk, options={"table": f"{place.table}_p"})
    driver.run(0, batch((1, "a", 2)))
    with pytest.raises(DatabaseError, match="row-level security"):
        driver.run(1, batch((1, "a", 5)))
    assert place.query(f"SELECT * FROM {place.table}_p") == [(1, "a", 2)]
    with pytest.raises(TableMismatch, match="permission denied"):
        Driver(clerk, options={"table": f"{place.table}_below"}, sink_id="s2").begin(0)


@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
@pytest.mark.parametrize("when", ["between", "within"])
@pytest.mark.parametrize("copied", [True, False], ids=["copy", "nothing"])
def test_file_that_is_exchanged_while_a_query_runs(
    at: At, tmp_path: Path, journal: str, when: str, *, copied: bool
) -> None:
    """Failure 9: an older copy is renamed over the file, or the file goes; no batch is committed to a file that has no name."""
    file = tmp_path / "x.db"
    place = at(f"sqlite://{file}")
    with closing(sqlite3.connect(file)) as other:
        other.execute(f"PRAGMA journal_mode = {journal}")
    driver = Driver(place)
    driver.run(0, ten(0))
    with closing(sqlite3.connect(file)) as other, closing(sqlite3.connect(tmp_path / "copy")) as copy:
        other.backup(copy)
    driver.run(1, ten(1))
    driver.begin(2)

    def exchange() -> None:
        (tmp_path / "copy").rename(file) if copied else file.rename(tmp_path / "gone")

    def rows() -> Iterator[pa.RecordBatch]:
        if when == "within" and not (tmp_path / "done").exists():
            exchange()
            (tmp_path / "done").touch()
        yield ten(2)

    if when == "between":
        exchange()
    with pytest.raises((CheckpointMismatch, DatabaseError)):
        driver.commit(2, rows)
    with pytest.raises(CheckpointMismatch, match="ends with batch 0" if copied else "has none of it"):
        driver.begin(2)


def test_row_of_the_last_batch_that_somebody_changed(at: At, tmp_path: Path) -> None:
    """SQLite can hold a text in a number column; comparing it once raised a Python error."""
    place = at(f"sqlite://{tmp_path}/x.db")
    Driver(place).run(0, ten(0))
    place.query("UPDATE {b} SET batch_id = 'x'")
    with pytest.raises(CheckpointMismatch, match="was changed meanwhile; restore the database"):
        Driver(place, "d2").begin(1)
    place.query("UPDATE {b} SET batch_id = 0")
    Driver(place, "d3").run(1, ten(1))
    assert len(place.rows()) == 20


def test_later_schema_of_the_search_path(at: At, postgres: Postgres) -> None:
    """A table without a schema is the one that PostgreSQL itself finds, not one of the first schema in the search path."""
    place = at(postgres.url)
    first, second = f"{place.table}_1", f"{place.table}_2"
    for schema in (first, second):
        place.query(f"CREATE SCHEMA {schema}")
    place.query(f"CREATE TABLE {second}.{{t}} (k bigint, v text, n bigint)")
    there = at(f"{postgres.url}&options=-c%20search_path%3D{first},{second}")
    Driver(there, options={"table": place.table}).run(0, ten(0))
    assert place.query(f"SELECT count(*) FROM {second}.{{t}}") == [(10,)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"password": "s3cr3t"}, "never what it is"),
        ({"mode": "upsert"}, "needs keyColumns that the rows have.*: found none"),
        ({"mode": "merge", "keyColumns": "k,K"}, r"needs keyColumns that the rows have \(k, v, n\): found K"),
        ({"mode": "merge", "keyColumns": "k,K"}, "compared with regard to case: 'k' is one"),
        ({"mode": "upsert", "keyColumns": "k,"}, 'each once, separated by commas.* "a,b" in double quotes'),
        ({"mode": "merge", "keyColumns": "k"}, "column 'v' is not a number"),
        ({"keyColumns": "k"}, "for mode=upsert or mode=merge"),
        ({"badRows": "ignore"}, "fail, quarantine"),
        ({"table": "x", "batchTable": '"x"'}, "is where rows of table='x' go"),
        ({"table": "x", "batchTable": "x_rejected", "badRows": "quarantine"}, "is where rows of table='x' go"),
        ({"table": "t\n"}, "table='t\\\\n' begins or ends with a blank or a line break"),
        ({"batchTable": " b"}, "batchTable=' b' begins or ends"),
        ({"url": "sqlite:///x/y.db\n"}, "url begins or ends with a blank or a line break"),
    ],
)
def test_options_that_cannot_work(place: Place, options: dict[str, str], message: str) -> None:
    """Options that would be ignored, or fail later, are refused before the database is asked; no secret is shown."""
    with pytest.raises(OptionError, match=message) as error:
        place.sink(**options)
    assert "s3cr3t" not in str(error.value)


@pytest.mark.parametrize("names", [[], ["a", "a"]])
def test_columns_have_names_of_their_own(place: Place, names: list[str]) -> None:
    """Rows without columns, or with two columns of one name, are refused before the database is asked."""
    with pytest.raises(OptionError, match="each of another name"):
        place.sink(pa.schema([(name, pa.int64()) for name in names]))


def test_columns_that_differ_in_case(place: Place) -> None:
    """PostgreSQL sees two columns; SQLite sees one, so they are refused there at the start."""
    schema = pa.schema([("a", pa.int64()), ("A", pa.int64())])
    driver = Driver(place, schema=schema)
    if place.is_sqlite:
        with pytest.raises(DatabaseError, match="duplicate column name: A"):
            driver.begin(0)
    else:
        driver.run(0, batch((1, 2), schema=schema))
        assert place.rows() == [(1, 2)]


def test_key_that_is_nan(place: Place) -> None:
    """NaN is a normal key to PostgreSQL; SQLite would store null, so there it is a bad row."""
    schema = pa.schema([("x", pa.float64()), ("n", pa.int64())])
    driver = Driver(place, options={"mode": "merge", "keyColumns": "x", "badRows": "quarantine"}, schema=schema)
    odd = ((float("nan"), 1), (float("nan"), 2), (float("inf"), 1), (float("inf"), 2))
    driver.run(0, batch((0.0, 1), *odd, (-0.0, 2), schema=schema))
    assert place.query("SELECT n FROM {t} WHERE x = 0 OR x > 1e308 AND x < 'NaN'") == [(3,), (3,)]
    assert len(place.rejected()) == (2 if place.is_sqlite else 0)
    assert len(place.rows()) == (2 if place.is_sqlite else 3)


def test_keys_that_are_equal_in_the_table_alone(at: At, postgres: Postgres) -> None:
    """Keys that only the column's type makes equal, within one batch, are refused in its words; a quarantine applies them in turn."""
    place = at(postgres.url)
    place.query("CREATE TABLE {t} (x integer PRIMARY KEY, n bigint)")
    schema = pa.schema([("x", pa.float64()), ("n", pa.int64())])
    rows = batch((1.1, 1), (0.9, 2), (2.0, 5), schema=schema)
    options = {"mode": "merge", "keyColumns": "x"}
    with pytest.raises(RowRefused, match="a second time"):
        Driver(place, options=options, schema=schema).run(0, rows)
    Driver(place, "d2", options=options | {"badRows": "quarantine"}, schema=schema).run(0, rows)
    assert (place.rows(), place.rejected()) == ([(1, 3), (2, 5)], [])


def test_rows_that_are_too_large(at: At, postgres: Postgres) -> None:
    """A key that no index of PostgreSQL takes, or a row too large for a page, is a bad row and does not end the query."""
    place = at(postgres.url)
    long = "".join(chr(0x4E00 + 7919 * i % 20_000) for i in range(5_000))  # hardly compressible
    schema = pa.schema([("k", pa.string()), ("n", pa.int64())])
    options = {"mode": "merge", "keyColumns": "k", "badRows": "quarantine"}
    done = Driver(place, options=options, schema=schema).run(0, batch(("a", 1), (long, 1), schema=schema))
    assert (done.rows, done.rejected, place.rows()) == (1, 1, [("a", 1)])
    wide = pa.schema([(f"c{i}", pa.int64()) for i in range(1_599)])
    rows = batch(*((each,) + (None,) * 1_598 for each in range(3)), (1,) * 1_599, schema=wide)
    aside = {"table": f"{place.table}_wide", "badRows": "quarantine"}
    done = Driver(place, options=aside, schema=wide, sink_id="wide").run(0, rows)
    assert (done.rows, done.rejected) == (3, 1)
    place.query(f"DROP TABLE {place.table}_wide")  # a new PostgreSQL connection reads the whole catalogue


def test_sums_of_many_columns(place: Place) -> None:
    """A thousand sums are checked just as one."""
    schema = pa.schema([(f"c{i}", pa.int64()) for i in range(1_000)])
    driver = Driver(place, options={"mode": "merge", "keyColumns": "c0"}, schema=schema)
    driver.run(0, batch((0, *(2**62,) * 999), schema=schema))
    with pytest.raises(RowRefused):
        driver.run(1, batch((0, *(1,) * 998, 2**62), schema=schema))
    driver.run(1, batch((0, *(1,) * 999), schema=schema))
    assert place.rows() == [(0, *(2**62 + 1,) * 999)]
    place.query("DROP TABLE {t}")  # a new PostgreSQL connection reads the whole catalogue


@pytest.mark.parametrize("start", [2**62, -(2**63)])
def test_sums_in_a_column_of_floats(place: Place, start: int) -> None:
    """Whole numbers may be summed in a user's column of floats; a 64-bit column can be filled to its limit."""
    schema = pa.schema([("k", pa.int64()), ("x", pa.int64()), ("n", pa.int64())])
    place.query("CREATE TABLE {t} (k bigint PRIMARY KEY, x double precision, n bigint)")
    driver = Driver(place, options={"mode": "merge", "keyColumns": "k"}, schema=schema)
    driver.run(0, batch((1, 2, start), (1, 3, 0), schema=schema))
    assert place.rows() == [(1, 5.0, start)]


def test_foreign_keys_hold(place: Place) -> None:
    """A row that refers to a missing row is a bad row, also in SQLite, which checks foreign keys only on request."""
    place.query(f'CREATE TABLE "{place.table}_other" (id bigint PRIMARY KEY)')
    place.query(f'INSERT INTO "{place.table}_other" VALUES (3)')
    place.query(f'CREATE TABLE {{t}} (k bigint REFERENCES "{place.table}_other" (id), v text, n bigint)')
    done = Driver(place, options={"badRows": "quarantine"}).run(0, ten(0))
    assert (done.rows, done.rejected, place.rows()) == (1, 9, [(3, "a3", 1)])


@pytest.mark.parametrize("bad", ["fail", "quarantine"])
def test_constraint_that_is_checked_at_commit(place: Place, bad: str) -> None:
    """A check deferred to COMMIT fails the whole batch, because it does not say which row is bad."""
    place.query(f'CREATE TABLE "{place.table}_other" (id bigint PRIMARY KEY)')
    reference = f'REFERENCES "{place.table}_other" (id) DEFERRABLE INITIALLY DEFERRED'
    place.query(f"CREATE TABLE {{t}} (k bigint {reference}, v text, n bigint)")
    with pytest.raises(RowRefused, match=r"(?i)foreign key.*INITIALLY IMMEDIATE") as refused:
        Driver(place, options={"badRows": bad}).run(0, ten(0))
    assert "or use badRows=quarantine" not in refused.value.message  # this advice would not help
    assert (place.rows(), place.last()) == ([], -1)
    place.query("DROP TABLE {t}")
    place.query(f"CREATE TABLE {{t}} (k bigint {reference.replace('DEFERRED', 'IMMEDIATE')}, v text, n bigint)")
    place.query(f'INSERT INTO "{place.table}_other" VALUES (3)')
    done = Driver(place, "d2", options={"badRows": "quarantine"}).run(0, ten(0))
    assert (done.rows, done.rejected, place.last()) == (1, 9, 0)


@pytest.mark.parametrize("said", ["ABORT", "FAIL", "IGNORE"])
def test_rows_that_a_trigger_refuses(at: At, tmp_path: Path, said: str) -> None:
    """Rows that SQLite's triggers refuse, in any words, are bad rows like others, and the good rows next to them are stored."""
    place = at(f"sqlite://{tmp_path}/x.db")
    place.query("CREATE TABLE {t} (k bigint, v text, n bigint)")
    words = "" if said == "IGNORE" else ", 'fives are not taken'"
    place.query(f"CREATE TRIGGER x BEFORE INSERT ON {{t}} WHEN NEW.k = 5 BEGIN SELECT RAISE({said}{words}); END")
    if words:
        with pytest.raises(RowRefused, match=r"fives are not taken.*badRows=quarantine"):
            Driver(place).run(0, ten(0))
        assert place.rows() == []
    done = Driver(place, "d2", options={"badRows": "quarantine"}).run(0, ten(0))
    assert [row[0] for row in place.rows()] == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert [row for _, row in place.rejected()] == (['{"k":5,"v":"a5","n":1}'] if words else [])
    assert done.rejected == len(place.rejected())


@pytest.mark.parametrize("by", ["trigger", "constraint"])
def test_row_that_rolls_everything_back(at: At, tmp_path: Path, by: str) -> None:
    """SQLite's ROLLBACK ends the whole transaction: nothing of the batch is stored, and the error says what to write instead."""
    place = at(f"sqlite://{tmp_path}/x.db")
    place.query("CREATE TABLE {t} (k bigint, v text, n bigint)")
    made = {
        "trigger": "CREATE TRIGGER x BEFORE INSERT ON {t} WHEN NEW.k = 5 BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
        "constraint": "CREATE TABLE {t} (k bigint CHECK (k <> 5) UNIQUE ON CONFLICT ROLLBACK, v text, n bigint)",
    }
    if by == "constraint":
        place.query("DROP TABLE {t}")
    place.query(made[by])
    rows = batch((1, "a", 1), (5, "b", 1), (1, "c", 1))
    with pytest.raises(DatabaseError, match="cannot be set aside.*let it say ABORT"):
        Driver(place, options={"badRows": "quarantine"}).run(0, rows)
    assert (place.rows(), place.last()) == ([], -1)
    if by == "trigger":
        place.query("DROP TRIGGER x")
        place.query(made[by].replace("ROLLBACK", "ABORT"))
    else:
        place.query("DROP TABLE {t}")
        place.query(made[by].replace("ROLLBACK", "ABORT"))
    done = Driver(place, "d2", options={"badRows": "quarantine"}).run(0, rows)
    assert (done.rows + done.rejected, place.last()) == (3, 0)


def test_table_that_cannot_be_created(at: At, postgres: Postgres) -> None:
    """A missing schema, or a column that no table can have: the advice of the message works."""
    place = at(postgres.url)
    schema = f"{place.table}_s"
    driver = Driver(place, options={"table": f"{schema}.{place.table}"})
    with pytest.raises(
        DatabaseError, match="cannot be created: .*schema .* does not exist.*see that its schema is there"
    ):
        driver.begin(0)
    place.query(f"CREATE SCHEMA {schema}")
    driver.run(0, ten(0))
    assert place.query(f"SELECT count(*) FROM {schema}.{{t}}") == [(10,)]
    odd = pa.schema([("xmin", pa.int64())])
    with pytest.raises(DatabaseError, match="needs another name in the query"):
        Driver(place, schema=odd, sink_id="s2").begin(0)


def test_table_of_the_rejected_that_is_another(place: Place) -> None:
    """The table for rejected rows is checked when a batch begins, not at the first bad row; if it was dropped, it is created anew."""
    place.query(f'CREATE TABLE "{place.table}_rejected" (a bigint)')
    driver = Driver(place, options={"badRows": "quarantine", "mode": "merge", "keyColumns": "k,v"})
    with pytest.raises(TableMismatch, match="_rejected' has no column 'sink_id'"):
        driver.begin(0)
    for number in range(2):
        place.query(f'DROP TABLE "{place.table}_rejected"')
        driver.run(number, batch((number, None, 1)))
        assert [row for _, row in place.rejected()] == [f'{{"k":{number},"n":1}}']
        assert place.query(f'SELECT sink_id, batch_id FROM "{place.table}_rejected"') == [("s", number)]


def test_deadlock_is_run_again(at: At, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """D13: another session waits for our row, and ours for its row: our transaction is the victim, and the whole batch runs again."""
    monkeypatch.setattr(database.Database, "_lock_millis", 30_000)
    place = at(postgres.url + "&options=-c%20deadlock_timeout%3D100ms")
    driver = Driver(
        place, options={"mode": "merge", "keyColumns": "k"}, schema=pa.schema([("k", pa.int64()), ("n", pa.int64())])
    )
    rows = ten(0).drop_columns(["v"])
    driver.run(0, rows)
    driver.begin(1)
    other = at(postgres.url + "&options=-c%20deadlock_timeout%3D1min").database()
    hits: list[str] = []

    def cross(db: database.Database) -> None:
        db.execute(f'UPDATE "{place.table}" SET n = n')
        crossed.set()
        db.execute(f'UPDATE "{place.table}_batches" SET driver = driver')

    def hit(name: str) -> None:
        hits.append(name)
        if hits == ["db.commit.begun", "db.commit.some-rows"]:
            crossing.start()
            crossed.wait()
            waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            wait_for(lambda: "1 row" in postgres.psql(waiting), "a session that waits")

    crossed = threading.Event()
    crossing = threading.Thread(target=lambda: other.run(cross))
    monkeypatch.setattr(failpoints, "hit", hit)
    driver.commit(1, lambda: [rows])
    crossing.join()
    assert hits.count("db.commit.begun") == 2
    assert place.rows() == [(k, 2) for k in range(10)]
