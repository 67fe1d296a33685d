"""A real HTTP service in a thread: it answers slowly, refuses a request now and then, and remembers the requests it has seen."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Service:
    """`GET /double/<n>?...` answers `{"out": 2n}`; ids come in the header `Idempotency-Key`. Use it as a context manager.

    An answer takes `seconds`, and a random time of up to `spread` more.
    """

    def __init__(self, *, seconds: float = 0.0, spread: float = 0.0, refuse_first: int = 0) -> None:
        self.ids: Counter[str] = Counter()
        self.rows: dict[str, set[str]] = {}
        self._lock = threading.Lock()
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                call = self.headers["Idempotency-Key"]
                number = self.path.rsplit("/", 1)[-1]
                with service._lock:
                    service.ids[call] += 1
                    service.rows.setdefault(number, set()).add(call)
                    refuse = service.ids[call] <= refuse_first
                time.sleep(seconds + random.uniform(0, spread))  # noqa: S311 - a time is no secret
                body = json.dumps({"out": 2 * int(number)}).encode()
                self.send_response(503 if refuse else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port

    def __enter__(self) -> Service:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
