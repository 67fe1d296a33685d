"""Enrich a stream from an HTTP service that is slow, busy (429) and down (503) now and then; each row once.

Run it with `python examples/enrich.py`. It starts its own service, makes its own input in a temporary directory, and
removes it at the end.
"""
# ruff: noqa: INP001, T201
# An example is a standalone script, and it prints what it did.

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import penstock

if TYPE_CHECKING:
    from penstock.aio.function import Call, Context
    from penstock.aio.rows import Row

USERS = 200
SECONDS_MAX = 0.05


class Service(BaseHTTPRequestHandler):
    """Scores a user after a while, and answers one request in five with 429 or 503. It counts the keys that it receives."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[Counter[str]] = Counter()
    chance = random.Random(7)  # noqa: S311 - bad luck, repeatable

    def do_GET(self) -> None:
        """Answer `GET /users/<n>/score`."""
        self.seen[self.headers["Idempotency-Key"]] += 1
        time.sleep(self.chance.uniform(0, SECONDS_MAX))
        status = self.chance.choice([200] * 8 + [429, 503])
        body = json.dumps({"score": int(self.path.split("/")[2]) / 10}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Busy(Exception):
    """The service asks the caller to try again later."""


class Score(penstock.AsyncFunction):
    """Asks the service for a user's score. With aiohttp or httpx `open` would make the client, and `close` close it."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def open(self, ctx: Context) -> None:  # noqa: ARG002 - who needs to know the query finds it there
        """Make the pool of connections: once in each worker process, for all batches."""
        self.free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def invoke(self, row: Row, call: Call) -> dict[str, float]:
        """Make one call; a repeated call has the same `call.id`, so the service could recognise it."""
        reader, writer = self.free.pop() if self.free else await asyncio.open_connection("127.0.0.1", self.port)
        ask = f"GET /users/{row.value}/score HTTP/1.1\r\nHost: scores\r\nIdempotency-Key: {call.id}\r\n\r\n"
        writer.write(ask.encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        body = await reader.readexactly(int(head.partition("content-length:")[2].split()[0]))
        self.free.append((reader, writer))
        if head.split()[1] in {"429", "503"}:
            raise Busy(head.splitlines()[0])
        return {"score": json.loads(body)["score"]}

    async def close(self) -> None:
        """Close the connections."""
        for _, writer in self.free:
            writer.close()


def main() -> None:
    """Read users from files, add their scores, write files."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    spark = penstock.local_session("local[2]")
    with tempfile.TemporaryDirectory() as work:
        source, target = Path(work, "users"), Path(work, "scored")
        source.mkdir()
        for number in range(2):
            (source / f"users-{number}.txt").write_text("".join(f"{n}\n" for n in range(number, USERS, 2)))
        users = spark.readStream.format("penstock").option("settle", "0s").load(str(source))
        scored = penstock.async_map(
            users,
            Score(server.server_port),
            schema="score double",
            capacity=20,
            ordered=False,
            timeout=30.0,
            retry=penstock.Retry(max_attempts=10, delay=0.01, jitter=0.5, on=(Busy, OSError)),
        )
        writer = scored.writeStream.format("penstock").option("format", "json").trigger(availableNow=True)
        query = writer.option("checkpointLocation", f"{work}/checkpoint").start(str(target))
        query.awaitTermination()
        files = [path for path in target.rglob("*.json") if "_penstock" not in path.parts]
        rows = [json.loads(line) for path in files for line in path.read_text().splitlines()]
        right = all(row["score"] == int(row["value"]) / 10 for row in rows)
        print(f"{len(rows)} users scored, {len({row['value'] for row in rows})} of them different, all right: {right}")
        print(f"{len(Service.seen)} idempotency keys, {sum(Service.seen.values())} calls")
        print(penstock.call_counts(spark)[str(query.id)])
    spark.stop()
    server.shutdown()


if __name__ == "__main__":
    main()
