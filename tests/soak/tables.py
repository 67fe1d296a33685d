"""Random batches for the database sink: types, modes, keys and bad rows by chance, on either database, by drivers that fail on the way.

A seed here is a table and some batches. Each batch is repeated, by the driver that applied it or by another one; a driver fails at some
step, or its session is ended by the server. In the end other clients, `sqlite3` of Python and `psql`, find in the table what a dictionary
of Python has, and every bad row is in the table of those, once.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections import Counter
from contextlib import closing, suppress
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock import failpoints
from tests.support.database import Driver, Place, batch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.postgres import Postgres

Row = tuple[Any, ...]
_POINTS = ("db.commit.begun", "db.commit.some-rows", "db.commit.before-id", "db.commit.before-commit", "db.commit.done")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NAMES = ("k", "Select", 'q"uote', "ü" * 31, "a b", "$1", "order", "x'y")
_TEXTS = ("", " ", "a", "A", "\\N", "\\.", "NULL", "{}", '"', "'", "a\tb", "a\nb", "é", "\U0001f600", "007")


def _moment(chance: random.Random) -> datetime:
    return _EPOCH + timedelta(microseconds=chance.randint(-(10**16), 10**16))


# What SQLite has as well; numbers that can be added up are exact in any order.
_VALUES: tuple[tuple[pa.DataType, Callable[[random.Random], Any]], ...] = (
    (pa.int64(), lambda chance: chance.choice((chance.randint(-5, 5), -(2**50), 2**50))),
    (pa.int16(), lambda chance: chance.randint(-9, 9)),
    (pa.float64(), lambda chance: chance.randint(-(2**20), 2**20) / 8),
    (pa.string(), lambda chance: "".join(chance.choices(_TEXTS, k=chance.randint(0, 2)))),
    (pa.binary(), lambda chance: chance.randbytes(chance.randint(0, 4))),
    (pa.bool_(), lambda chance: chance.random() < 0.5),
    (pa.date32(), lambda chance: date.fromordinal(chance.randint(1, date.max.toordinal()))),
    (pa.timestamp("us", tz="UTC"), _moment),
    (pa.timestamp("us"), lambda chance: _moment(chance).replace(tzinfo=None)),
)
_NUMBERS = _VALUES[:3]
_OF_POSTGRESQL = (
    (pa.decimal128(38, 10), lambda chance: Decimal(chance.randint(-(10**20), 10**20)).scaleb(-10)),
    (pa.list_(pa.int32()), lambda chance: [chance.choice((None, chance.randint(-9, 9))) for _ in range(chance.randint(0, 3))]),
    (pa.list_(pa.string()), lambda chance: chance.choices((None, *_TEXTS), k=chance.randint(0, 3))),
)  # fmt: skip


class Case:
    """All random choices, drawn from the seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._chance = chance = random.Random(f"{seed} tables")  # noqa: S311 - repeatable
        self.format = chance.choice(("sqlite", "postgresql"))
        self.mode = chance.choice(("append", "upsert", "merge"))
        values = _NUMBERS if self.mode == "merge" else _VALUES + _OF_POSTGRESQL * (self.format == "postgresql")
        names = chance.sample(_NAMES, chance.randint(3, len(_NAMES)))
        self._keys = [] if self.mode == "append" else sorted(names[: chance.randint(1, 2)])
        self._columns = {
            name: _VALUES[chance.choice((1, 3))] if name in self._keys else chance.choice(values) for name in names
        }
        self.schema = pa.schema([(name, kind) for name, (kind, _) in self._columns.items()])
        self.quarantines = bool(self._keys) and chance.random() < 0.5
        self.batches = [[self._rows() for _ in range(chance.randint(1, 3))] for _ in range(chance.randint(1, 5))]

    def __str__(self) -> str:
        return f"case {self.seed}: {self.mode} into {self.format}, {self.schema}, keys {self._keys}"

    def run(self, directory: Path, postgres: Postgres | None) -> None:
        """Run the case; `AssertionError` says what is wrong. Cases of PostgreSQL need a server."""
        url = f"sqlite://{directory}/x.db" if postgres is None else f"{postgres.url}&application_name=case{self.seed}"
        place = Place(url, f"t{self.seed}")
        try:
            for number, rows in enumerate(self.batches):
                for _ in range(self._chance.randint(1, 3)):
                    self._apply(place, number, [batch(*part, schema=self.schema) for part in rows])
            self._compare(_found(place, place.table, directory, postgres), place, directory, postgres)
        finally:
            failpoints.arm("")
            place.close()

    def _rows(self) -> list[Row]:
        chance, least = self._chance, 0.2 if self.quarantines else 0
        nulls = {name: least if name in self._keys else 0.2 for name in self._columns}
        make = {name: make for name, (_, make) in self._columns.items()}
        count = chance.choice((0, 1, 5, 40))
        return [
            tuple(None if chance.random() < nulls[name] else make[name](chance) for name in make) for _ in range(count)
        ]

    def _apply(self, place: Place, number: int, rows: list[pa.RecordBatch]) -> None:
        """Have a driver apply the batch; others may fail at it before."""
        chance, options = self._chance, {"mode": self.mode, "badRows": "quarantine" if self.quarantines else "fail"}
        if self._keys:
            options["keyColumns"] = ",".join(f'"{name.replace(chr(34), 2 * chr(34))}"' for name in self._keys)
        for attempt in range(chance.randint(0, 2)):
            failpoints.arm(f"{chance.choice(_POINTS)}=error@{chance.randint(1, 3)}")
            with suppress(OSError):
                Driver(place, f"{number} {attempt}", options=options, schema=self.schema).run(number, *rows)
        failpoints.arm("")
        driver = Driver(place, f"{number} last", options=options, schema=self.schema)
        driver.begin(number)
        if self.format == "postgresql" and chance.random() < 0.3:
            place.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'case"
                        f"{self.seed}' AND pid <> pg_backend_pid()")  # fmt: skip
        driver.commit(number, lambda: rows)

    # -- the proof ---------------------------------------------------------------------------------------------------

    def _compare(self, found: list[dict[str, Any]], place: Place, directory: Path, postgres: Postgres | None) -> None:
        rows = [row for rows in self.batches for part in rows for row in part]
        places = [list(self._columns).index(name) for name in self._keys]
        bad = sum(any(row[at] is None for at in places) for row in rows)
        expected = Counter(
            map(self._shown, self._kept([row for row in rows if all(row[at] is not None for at in places)], places))
        )
        there = Counter(tuple(_plain(self._value(name, row[name])) for name in self._columns) for row in found)
        assert there == expected, f"{self}\nmissing {expected - there}, too many {there - expected}"
        aside = _found(place, f"{place.table}_rejected", directory, postgres) if self.quarantines else []
        assert len(aside) == bad, f"{self}\n{len(aside)} rows set aside, expected {bad}"

    def _kept(self, rows: list[Row], places: list[int]) -> list[Row]:
        """Return what the table has of good rows."""
        if self.mode == "append":
            return rows
        kept: dict[Row, Row] = {}
        for row in rows:
            key = tuple(row[at] for at in places)
            before = kept.get(key)
            kept[key] = row if before is None or self.mode == "upsert" else self._sum(before, row, places)
        return list(kept.values())

    @staticmethod
    def _sum(before: Row, row: Row, places: list[int]) -> Row:
        pairs = enumerate(zip(before, row, strict=True))
        return tuple(a if at in places or b is None else b if a is None else a + b for at, (a, b) in pairs)

    def _shown(self, row: Row) -> Row:
        return tuple(map(_plain, row))

    def _value(self, name: str, value: Any) -> Any:
        """Return a value as Python has it, of one that another client shows."""
        kind = self._columns[name][0]
        if value is None:
            return None
        if pa.types.is_temporal(kind):
            return date.fromisoformat(value) if pa.types.is_date(kind) else datetime.fromisoformat(value)
        if pa.types.is_binary(kind) and isinstance(value, str):
            return bytes.fromhex(value.removeprefix("\\x"))
        return bool(value) if pa.types.is_boolean(kind) else value


def _plain(value: Any) -> Any:
    """Return a value that can be compared and counted."""
    return tuple(value) if isinstance(value, list) else value


def _found(place: Place, table: str, directory: Path, postgres: Postgres | None) -> list[dict[str, Any]]:
    """Return the rows of a table, as another client shows them."""
    if postgres is None:
        with closing(sqlite3.connect(directory / "x.db")) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(f'SELECT * FROM "{table}"')]
    lines = postgres.psql(
        f'\\pset tuples_only\n\\pset format unaligned\nSELECT row_to_json(t) FROM "{table}" t;'
    ).splitlines()
    return [json.loads(line, parse_float=Decimal) for line in lines if line.startswith("{")]
