"""A client of `tests.support.service`, as a user would write one with asyncio alone."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import penstock


class Lookup(penstock.AsyncFunction):
    """Asks the service to double the row's `value`, over connections that it keeps."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def invoke(self, row: Any, call: Any) -> Any:
        """Send the request, and return the connection to the pool."""
        reader, writer = self.free.pop() if self.free else await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"GET /double/{row['value']} HTTP/1.1\r\nHost: s\r\nIdempotency-Key: {call.id}\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = next(int(line.split(":")[1]) for line in head.lower().splitlines() if line.startswith("content-length"))
        body = await reader.readexactly(size)
        self.free.append((reader, writer))
        if " 200 " not in head.splitlines()[0]:
            raise ConnectionError(head.splitlines()[0])
        return {"out": json.loads(body)["out"], "call": call.id}

    async def close(self) -> None:
        """Close the connections."""
        for _, writer in self.free:
            writer.close()
