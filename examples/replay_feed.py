"""Poll an HTTP feed that repeats each item until it is acknowledged, kill the query twice, and show that each item arrives once.

Run it with `python examples/replay_feed.py`. The feed is a web server in this process: `GET /items` returns the oldest items that are
not acknowledged, and `POST /acknowledge` forgets them. The query is killed with SIGKILL once after it has read a batch, before anyone
else knows of it, and once after it has written a batch, before the feed is told. Each start continues where the last one stopped.
"""
# ruff: noqa: INP001, S310, S603, T201
# An example is a standalone script, it polls only its own server, it starts itself again, and it prints what it did.

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import penstock

if TYPE_CHECKING:
    import pyarrow as pa

ITEMS, AT_ONCE = 60, 8
KILLED_AT = ("windows.saved=kill-jvm@3", "sink.ledger.after-put=kill-jvm@2")


class Feed(BaseHTTPRequestHandler):
    """The upstream: items in order, each repeated until it is acknowledged."""

    acknowledged = 0

    def do_GET(self) -> None:
        """Return the oldest items that are not acknowledged."""
        items = range(Feed.acknowledged, min(Feed.acknowledged + AT_ONCE, ITEMS))
        self._answer([{"id": item, "text": f"item {item}"} for item in items])

    def do_POST(self) -> None:
        """Forget the items up to the one in the request; a second request for the same item changes nothing."""
        upto = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Feed.acknowledged = max(Feed.acknowledged, upto + 1)
        self._answer("forgotten")

    def _answer(self, body: Any) -> None:  # noqa: ANN401 - JSON
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: Any) -> None:  # noqa: ANN401 - its parent takes anything
        """Say nothing."""


def run_query(address: str, root: str) -> None:
    """Write the feed's items to JSON files, until the feed has no more."""

    def read(_last: pa.Table | None) -> list[dict[str, Any]]:
        with urlopen(f"{address}/items") as answer:
            items: list[dict[str, Any]] = json.load(answer)
        return items

    def acknowledge(items: pa.Table) -> None:
        last = items["id"][-1].as_py()
        urlopen(Request(f"{address}/acknowledge", json.dumps(last).encode())).close()

    spark = penstock.local_session("local[2]")
    items = penstock.replayable(read, f"{root}/store", schema="id bigint, text string", acknowledge=acknowledge)
    writer = items.writeStream.format("penstock").option("format", "json").option("rollBatches", "1")
    writer = writer.option("checkpointLocation", f"{root}/checkpoint").trigger(availableNow=True)
    writer.start(f"{root}/out").awaitTermination()
    spark.stop()


def start(address: str, root: str, failpoint: str) -> bool:
    """Start the query in a separate process with a kill point; tell whether it came to its end."""
    environment = os.environ | {"PENSTOCK_FAILPOINTS": failpoint}
    command = [sys.executable, __file__, address, root]
    return subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, check=False).returncode == 0


def arrived(root: str) -> list[int]:
    """Return the items that a reader sees, in order."""
    files = Path(root, "out").glob("*.json")
    return sorted(json.loads(line)["id"] for path in files for line in path.read_text().splitlines())


def main() -> None:
    """Serve, start, kill, start again, compare."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Feed)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    with tempfile.TemporaryDirectory() as root:
        for failpoint in KILLED_AT:
            if start(address, root, failpoint):
                sys.exit(f"the query ended before it could be killed at {failpoint}")
            print(
                f"killed with SIGKILL at {failpoint.partition('=')[0]}; the feed was told of {Feed.acknowledged} items"
            )
        run_query(address, root)
        items = arrived(root)
        print(
            f"{len(items)} items arrived, {len(set(items))} of them different; the feed was told of {Feed.acknowledged}"
        )
        if items != list(range(ITEMS)):
            sys.exit(f"expected each of {ITEMS} items once, found {items}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_query(*sys.argv[1:])
    else:
        main()
