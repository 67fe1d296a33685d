"""The HTTP server for monitors: `/metrics` for Prometheus, `/health` and `/ready` for the supervisor that starts and restarts us.

`/health` is 503 if something hangs: it has made no progress for longer than it may take. A pipeline that fails and is tried again
is healthy, because restarting the process would not help it. `/ready` is 503 until each pipeline has looked at its input once,
and again while all pipelines end.
"""

from __future__ import annotations

import json
import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from penstock.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.metrics.meter import Meter

_LOOPBACK = "127.0.0.1"
_PORT_MAX = 65535


@dataclass(frozen=True)
class Condition:
    """The answer to a health check: whether all is well, and `facts` about it, which hold no secrets because anybody may ask."""

    ok: bool = True
    facts: dict[str, Any] = field(default_factory=dict)


def _well() -> Condition:
    return Condition()


def address(text: str, *, name: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`; the default host is the loopback. `OptionError` for anything else."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > _PORT_MAX:
        msg = f"{name}={text!r}: expected HOST:PORT, or :PORT for this machine alone, such as :9108 or 0.0.0.0:9108"
        raise OptionError(msg)
    return host.strip("[]") or _LOOPBACK, int(port)


class _MonitorServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _MonitorServer6(_MonitorServer):
    address_family = socket.AF_INET6


class _SilentHandler(WSGIRequestHandler):
    timeout = 10  # seconds for which a silent client may keep a thread

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 - as the base has it
        """Log nothing."""


@contextmanager
def serving(text: str, meter: Meter, *, name: str = "metrics") -> Iterator[str]:
    """Answer monitors at an address during the block; yields the URL. `OptionError` if the address cannot be opened."""
    with answering(text, monitors(meter), name=name) as url:
        yield url


@contextmanager
def answering(text: str, application: Callable[..., Iterable[bytes]], *, name: str) -> Iterator[str]:
    """Serve a WSGI application at an address during the block; yields the URL. `OptionError` if the address cannot be opened.

    Each request has its own thread. Threads that still run at the end of the block are not waited for.
    """
    host, port = address(text, name=name)
    kind = _MonitorServer6 if ":" in host else _MonitorServer
    try:
        server = make_server(host, port, application, kind, _SilentHandler)
    except OSError as error:
        msg = f"{name}={text!r}: {host}:{port} cannot be opened: {error.strerror or error}; end what uses it, or choose another port"
        raise OptionError(msg) from error
    thread = threading.Thread(target=server.serve_forever, name=f"penstock-{name.lstrip('-')}", daemon=True)
    thread.start()
    try:
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def monitors(
    meter: Meter, health: Callable[[], Condition] = _well, ready: Callable[[], Condition] = _well
) -> Callable[..., Iterable[bytes]]:
    """Return the WSGI application for `/metrics`, `/health` and `/ready`. `DependencyError` without prometheus-client."""
    from penstock.metrics import prometheus  # imported here, because it needs prometheus-client

    metrics = prometheus.application(meter)
    verdicts = {"/health": health, "/ready": ready}

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/metrics":
            return metrics(environ, start_response)
        if path in verdicts and environ.get("REQUEST_METHOD") in {"GET", "HEAD"}:
            verdict = verdicts[path]()
            start_response(
                "200 OK" if verdict.ok else "503 Service Unavailable", [("Content-Type", "application/json")]
            )
            return [json.dumps({"ok": verdict.ok, **verdict.facts}).encode()]
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"expected /metrics, /health or /ready\n"]

    return answer
