"""The sinks that run through the suite, each with what the suite must be able to do to it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.db import batches as tables
from penstock.db import database, staging
from penstock.db.batches import TableBatches
from penstock.db.databases import database as open_database
from penstock.errors import DatabaseAway, StorageError
from penstock.formats.account import Account
from penstock.formats.aside import Aside
from penstock.formats.conforming import conform
from penstock.options import DATABASE, SINK, parse
from penstock.query.writing import BatchSink
from penstock.sink import keeper
from penstock.sink.batches import FileBatches
from penstock.sink.sink import Sink
from penstock.storage import LocalStorage
from penstock.testing import CrashDisk, visible
from tests.query.suite import TEXT, Kit
from tests.query.toy import ToySink

if TYPE_CHECKING:
    import pytest

    from penstock.db.database import Database

_PATH = "/out"


def conformed(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return rows in the form that the file sink takes."""
    return (conform(batch, TEXT) for batch in rows)


def _unwatched(rows: Iterator[pa.RecordBatch], _account: Account, _aside: Aside) -> Iterator[pa.RecordBatch]:
    """Return the rows as text, and report nothing about them."""
    return conformed(rows)


class FileKit(Kit):
    """Text files, one per task and batch, on a disk in memory."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(root, patch)
        self._disk = CrashDisk()
        self.reply_is_lost = False
        # No part stays open, so there is nothing to keep. The talk between drivers and keepers would cost more than everything
        # else here.
        patch.setattr(keeper, "batch_begins", lambda *_: None)
        patch.setattr(keeper, "batch_ends", lambda *_, **__: None)

    @property
    def _storage(self) -> LocalStorage:
        return LostReplies(self._disk, self)

    def opens(self) -> Callable[[str], BatchSink[Any, Any]]:
        """Return a function that opens the sink."""
        return partial(self._open, self._storage)

    @staticmethod
    def _open(storage: LocalStorage, sink_id: str) -> FileBatches:
        storage.make_directory(_PATH)
        given = {"path": _PATH, "format": "text", "rollBatches": "1", "fileName": "{batch}-{writer}-{seq}"}
        options = parse(SINK, given, what="sink")
        return FileBatches(Sink(storage, _PATH, options, sink_id), TEXT, _unwatched)

    def rows(self) -> list[str]:
        """Return the lines of the visible files."""
        files = visible(self._storage, _PATH).values()
        return sorted(line for data in files for line in data.decode().splitlines())

    def copy(self) -> Any:
        """Return an image of the disk."""
        return self._disk.image()

    def put_back(self, copied: Any) -> None:
        """Restore the disk."""
        self._disk = CrashDisk(copied)

    def staged(self) -> list[str]:
        """Return the staged files."""
        return sorted(self._storage.names(f"{_PATH}/_penstock/s/staging"))

    def lose_a_reply(self) -> None:
        """Let the next put of a record succeed but raise an error."""
        self.reply_is_lost = True


class LostReplies(LocalStorage):
    """A disk that puts a record and, once on request, reports a failure."""

    def __init__(self, disk: CrashDisk, kit: FileKit) -> None:
        super().__init__(disk)
        self._kit = kit

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Put a file; lose the reply if it is a record's."""
        super().put_if_absent(path, data)
        if self._kit.reply_is_lost and "/ledger/" in path:
            self._kit.reply_is_lost = False
            msg = "the reply was lost"
            raise StorageError(msg)


class TableKit(Kit):
    """A table of SQLite, through the database sink; each process has its own connection, and none waits for a lock."""

    locked = (DatabaseAway,)

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(root, patch)
        self._path = root / "x.db"
        self._clients: dict[str, Database] = {}
        self._reply_is_lost = False
        patch.setattr(database, "_DELAYS", (0.0, 0.0))
        patch.setattr(database.Database, "_lock_millis", 0)
        patch.setattr(staging, "locate", lambda location, **_: (self.spark.storage, location))
        patch.setattr(tables, "_database", lambda *_: self._client())
        patch.setattr(database.Database, "execute", self._losing(database.Database.execute))

    def _client(self) -> Database:
        if self.process not in self._clients:
            self._clients[self.process] = open_database(f"sqlite://{self._path}", lambda: None)
        return self._clients[self.process]

    def opens(self) -> Callable[[str], BatchSink[Any, Any]]:
        """Return a function that opens the sink."""
        return partial(self._open, f"sqlite://{self._path}")

    @staticmethod
    def _open(url: str, sink_id: str) -> TableBatches:
        given = {"url": url, "table": "t", "stagingLocation": "/staging"}
        return TableBatches(parse(DATABASE, given, what="database sink"), sink_id, TEXT)

    def rows(self) -> list[str]:
        """Return the table."""
        return _values(self._path, "SELECT value FROM t")

    def copy(self) -> Any:
        """Return the bytes of the database file."""
        self.close()
        return self._path.read_bytes()

    def put_back(self, copied: Any) -> None:
        """Restore the file."""
        self.close()
        self._path.write_bytes(copied)

    def staged(self) -> list[str]:
        """Return the staged rows that wait for a transaction."""
        return sorted(self.spark.storage.names("/staging/penstock-db-q"))

    def lose_a_reply(self) -> None:
        """Let the next COMMIT succeed and then break the connection."""
        self._reply_is_lost = True

    def _losing(self, execute: Callable[..., Any]) -> Callable[..., Any]:
        def run(client: Database, sql: str, *values: object) -> Any:
            rows = execute(client, sql, *values)
            if self._reply_is_lost and sql == "COMMIT":
                self._reply_is_lost = False
                msg = "the reply was lost"
                raise database._Again(msg)
            return rows

        return run

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.close()


class ServerKit(TableKit):
    """A table of a real PostgreSQL server, in a schema that each kit creates anew."""

    url = ""  # of the server, set by the test
    _schema = "kit"

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(root, patch)
        patch.setattr(database.Database, "_lock_millis", 1)  # 0 would mean to wait forever
        self._own = open_database(self.url, lambda: None)
        self._copies = count()
        for (schema,) in self._run(f"SELECT nspname FROM pg_namespace WHERE nspname LIKE '{self._schema}%'"):
            self._run(f"DROP SCHEMA {schema} CASCADE")
        self._run(f"CREATE SCHEMA {self._schema}")
        self._of_schema = f"{self.url}&options=-c%20search_path%3D{self._schema}"

    def _run(self, sql: str) -> list[tuple[Any, ...]]:
        return self._own.run(lambda db: db.execute(sql))

    def _client(self) -> Database:
        if self.process not in self._clients:
            self._clients[self.process] = open_database(self._of_schema, lambda: None)
        return self._clients[self.process]

    def opens(self) -> Callable[[str], BatchSink[Any, Any]]:
        """Return a function that opens the sink."""
        return partial(self._open, self._of_schema)

    def _tables(self, schema: str) -> list[str]:
        return [name for (name,) in self._run(f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'")]

    def rows(self) -> list[str]:
        """Return the table."""
        there = "t" in self._tables(self._schema)
        return sorted(value for (value,) in self._run(f"SELECT value FROM {self._schema}.t")) if there else []

    def copy(self) -> Any:
        """Copy all tables to a new schema, and return its name."""
        copied = f"{self._schema}_{next(self._copies)}"
        self._run(f"CREATE SCHEMA {copied}")
        for table in self._tables(self._schema):
            self._run(f"CREATE TABLE {copied}.{table} AS TABLE {self._schema}.{table}")
        return copied

    def put_back(self, copied: Any) -> None:
        """Restore the rows of all tables, and drop the tables that the copy lacks."""
        self.close()
        kept = self._tables(copied)
        for table in self._tables(self._schema):
            if table in kept:
                self._run(f"TRUNCATE {self._schema}.{table}")
                self._run(f"INSERT INTO {self._schema}.{table} SELECT * FROM {copied}.{table}")
            else:
                self._run(f"DROP TABLE {self._schema}.{table}")

    def close(self) -> None:
        """Close all connections."""
        super().close()
        self._own.close()


class ToyKit(Kit):
    """A table of SQLite, by hand."""

    locked = (DatabaseAway,)

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(root, patch)
        self._path = root / "toy.db"
        self._reply_is_lost = False
        patch.setattr(ToySink, "transaction", self._losing(ToySink.transaction))

    def opens(self) -> Callable[[str], BatchSink[Any, Any]]:
        """Return a function that opens the sink."""
        return partial(ToySink, str(self._path))

    def rows(self) -> list[str]:
        """Return the table."""
        return _values(self._path, "SELECT value FROM toy")

    def copy(self) -> Any:
        """Return the bytes of the database file."""
        return self._path.read_bytes()

    def put_back(self, copied: Any) -> None:
        """Restore the file."""
        self._path.write_bytes(copied)

    def staged(self) -> list[str]:
        """Return nothing: rows that are not committed are in no file."""
        return []

    def lose_a_reply(self) -> None:
        """Let the next transaction succeed but raise an error."""
        self._reply_is_lost = True

    def _losing(self, transaction: Callable[[ToySink], Any]) -> Callable[[ToySink], Any]:
        @contextmanager
        def run(sink: ToySink) -> Iterator[sqlite3.Connection]:
            with transaction(sink) as db:
                yield db
            if self._reply_is_lost:
                self._reply_is_lost = False
                msg = "the reply was lost"
                raise DatabaseAway(msg)

        return run


def _values(path: Path, query: str) -> list[str]:
    if not path.exists():
        return []
    db = sqlite3.connect(path)
    try:
        return sorted(str(value) for (value,) in db.execute(query))
    except sqlite3.OperationalError:  # there is no table yet
        return []
    finally:
        db.close()
