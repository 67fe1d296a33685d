"""Object stores as real server processes: moto, which is in every development environment, and others where they are installed.

    moto        from PyPI: the everyday one; it keeps everything in memory
    versitygw   `go install github.com/versity/versitygw/cmd/versitygw@v1.8.0`: S3 over a directory
    minio       `go install github.com/minio/minio@latest`: S3 as Amazon has it
    azurite     `npm install -g azurite`: Azure; when killed, it loses writes that it has acknowledged

The last three are looked up on the path and in PENSTOCK_STORES. If a requested server is not there, that is `NoStore`.

Two more accept conditional puts without keeping their promise; `penstock doctor` has to find that. They are jars
(`tests.support.jars`):

    s3mock      Adobe's, for unit tests
    s3proxy     S3 over a directory, by jclouds
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from penstock.storage import _objects_native
from tests.support.jars import SHORT_LIVED, NoJars, fetched, java
from tests.support.wait import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

KINDS = ("moto", "versitygw", "minio", "azurite")
UNFIT = {
    "s3mock": ("com.adobe.testing", "s3mock", "4.11.0"),
    "s3proxy": ("org.gaul", "s3proxy", "2.9.0"),
}
KEY, SECRET = "test", "testtestsecret"
_AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # public
_START_SECONDS = PATIENCE_SECONDS


# One request after another: without this, moto first checks whether a key is free and then stores. In 25 rounds of 32 requests
# that raced, one round answered two of them with success. `penstock doctor` finds that.
_MOTO = """
import sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
store, one = DomainDispatcherApplication(create_backend_app), threading.Lock()
def in_turn(environment, answer):
    with one:
        return store(environment, answer)
run_simple("127.0.0.1", int(sys.argv[1]), in_turn, threaded=True)
"""


class NoStore(Exception):
    """The program of a store is not installed here."""


@dataclass
class StoreServer:
    """A running server; `environment` is what a process needs to find it, `scheme` is that of its addresses."""

    kind: str
    port: int
    directory: Path
    scheme: str = "s3"
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def page(self) -> int:
        """Return how many objects it lists per request."""
        return 100 if self.kind == "moto" else 1000

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server, on the port that it had before, and wait until it answers."""
        command, environment = _command(self)
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=log, stderr=log)
        until = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > until:
                msg = f"{self.kind} did not start: {(self.directory / 'log').read_text()[-2000:]}"
                raise RuntimeError(msg)
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the server, and wait until it is gone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def make(self, bucket: str) -> str:
        """Make a bucket; return its address."""
        if self.kind == "azurite":
            _make_container(self, bucket)
        else:
            with closing(self.client()) as client:
                client.create_bucket(Bucket=bucket)
        return f"{self.scheme}://{bucket}"

    def client(self) -> Any:
        """Return a boto3 client, for an outsider's requests to the store."""
        import boto3  # noqa: PLC0415 - of the extra

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self.endpoint, timeout=5).close()  # noqa: S310 - our own server
        except urllib.error.HTTPError as refused:
            refused.close()
        except OSError:
            return False
        return True


def _program(kind: str) -> str:
    name = {"azurite": "azurite-blob"}.get(kind, kind)
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PENSTOCK_STORES", ""), os.environ["PATH"]]))
    if found is None:
        msg = f"{name} is not installed; see tests/support/stores.py"
        raise NoStore(msg)
    return found


def _command(server: StoreServer) -> tuple[list[str], dict[str, str]]:
    data = server.directory / "data"
    data.mkdir(exist_ok=True)
    place = f"127.0.0.1:{server.port}"
    if server.kind == "moto":
        return [sys.executable, "-c", _MOTO, str(server.port)], {"MOTO_S3_DEFAULT_MAX_KEYS": str(server.page)}
    if server.kind in UNFIT:
        return _unfit(server, data), {}
    program = _program(server.kind)
    if server.kind == "versitygw":
        keys = {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
        return [program, "--port", place, "posix", str(data)], keys
    if server.kind == "minio":
        keys = {"MINIO_ROOT_USER": KEY, "MINIO_ROOT_PASSWORD": SECRET, "MINIO_BROWSER": "off"}
        return [program, "server", "--quiet", "--address", place, str(data)], keys
    options = ["--location", str(data), "--silent", "--skipApiVersionCheck"]
    return [program, "--blobHost", "127.0.0.1", "--blobPort", str(server.port), *options], {}


def _unfit(server: StoreServer, data: Path) -> list[str]:
    try:
        classes = fetched(*UNFIT[server.kind])
        command = [java(), "-Xmx400m", *SHORT_LIVED, f"-Djava.io.tmpdir={server.directory}", "-cp", f"{classes}/*"]
    except NoJars as error:
        raise NoStore(str(error)) from error
    if server.kind == "s3mock":
        arguments = {
            "server.port": _free_port(),
            "http.port": server.port,
            "com.adobe.testing.s3mock.httpPort": server.port,
        }
        roots = dict.fromkeys((f"com.adobe.testing.s3mock.{part}.root" for part in ("domain", "store")), data)
        options = [f"--{name}={value}" for name, value in {**arguments, **roots}.items()]
        return [*command, "com.adobe.testing.s3mock.S3MockApplication", *options]
    settings = {
        "s3proxy.endpoint": server.endpoint,
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": KEY,
        "s3proxy.credential": SECRET,
        "s3proxy.ignore-unknown-headers": "true",  # otherwise obstore's deletes fail
        "jclouds.provider": "filesystem",
        "jclouds.identity": KEY,
        "jclouds.credential": SECRET,
        "jclouds.filesystem.basedir": data,
    }
    file = server.directory / "s3proxy.conf"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    quiet = server.directory / "logback.xml"
    quiet.write_text(
        '<configuration><root level="OFF"/></configuration>'
    )  # by default it logs each step of each request
    return [
        command[0],
        f"-Dlogback.configurationFile={quiet}",
        *command[1:],
        "org.gaul.s3proxy.Main",
        "--properties",
        str(file),
    ]


def _make_container(server: StoreServer, name: str) -> None:
    """Make a container by a signed address, as obstore signs them: obstore itself has no call for that."""
    from base64 import b64decode, b64encode  # noqa: PLC0415 - here alone
    from email.utils import formatdate  # noqa: PLC0415 - here alone
    from hashlib import sha256  # noqa: PLC0415 - here alone
    from hmac import digest  # noqa: PLC0415 - here alone

    date, version = formatdate(usegmt=True), "2021-08-06"
    account = "devstoreaccount1"
    resource = f"/{account}/{account}/{name}\nrestype:container"
    text = "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{version}\n{resource}"
    signature = b64encode(digest(b64decode(_AZURITE_KEY), text.encode(), sha256)).decode()
    headers = {
        "x-ms-date": date,
        "x-ms-version": version,
        "Authorization": f"SharedKey {account}:{signature}",
        "Content-Length": "0",
    }
    url = f"{server.endpoint}/{account}/{name}?restype=container"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers), timeout=10).close()  # noqa: S310 - our own server


def _free_port() -> int:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def running(kind: str, directory: Path) -> Iterator[StoreServer]:
    """Yield a server of that kind, and kill it at the end. `NoStore` if its program is not installed."""
    server = StoreServer(kind, _free_port(), directory)
    if kind == "azurite":
        server.scheme = "az"
        server.environment = {
            "AZURE_STORAGE_ACCOUNT_NAME": "devstoreaccount1",
            "AZURE_STORAGE_ACCOUNT_KEY": _AZURITE_KEY,
            "AZURE_STORAGE_ENDPOINT": f"{server.endpoint}/devstoreaccount1",
        }
    else:
        server.environment = {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": server.endpoint,
        }
    if kind != "moto" and kind not in UNFIT:
        _program(kind)
    server.start()
    try:
        yield server
    finally:
        with suppress(ProcessLookupError):
            server.kill()


def use(server: StoreServer, patch: pytest.MonkeyPatch) -> None:
    """Have this process and the processes it starts find only that server, through new clients."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_"))]:
        patch.delenv(name)
    patch.setenv("AWS_CONFIG_FILE", os.devnull)
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    for name, value in server.environment.items():
        patch.setenv(name, value)
    patch.setattr(_objects_native, "_clients", {})


@dataclass
class Relay:
    """A server in front of a store, which refuses unknown keys and can misbehave.

    `careless`: it passes conditional puts on without their condition. `busy`: it refuses this many requests as too many (503).
    `storms`: it refuses every n-th request in this way. `loses`: it loses the reply to every n-th request, though the store has
    executed the request. `away`: it hangs up on every client, and the store receives nothing. `refuses`: status, code and text
    of its answers to a kind of request: list, get, put, delete. `waits_seconds`: how long it delays each request. `at_a_time`:
    how many requests it had at once at most.
    """

    server: StoreServer
    careless: bool = False
    busy: int = 0
    storms: int = 0
    loses: int = 0
    away: bool = False
    refuses: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    requests: int = 0
    waits_seconds: float = 0.0
    at_a_time: int = 0
    under_way: list[str] = field(default_factory=list)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listener.server_address[1]}"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Pass a request on after the delay, and pass its answer back."""
        self.under_way.append(handler.path)
        self.at_a_time = max(self.at_a_time, len(self.under_way))
        time.sleep(self.waits_seconds)
        try:
            self._answer(handler)
        finally:
            self.under_way.remove(handler.path)

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        self.requests += 1
        if self.away:
            handler.close_connection = True
            return None
        refusal = self._refusal(handler)
        if refusal is not None and "?delete" in handler.path and refusal[0] != 503:
            return _reply(handler, 200, _not_deleted(body, *refusal[1:]))
        if refusal is not None:
            status, code, words = refusal
            return _reply(handler, status, _error(code, words))
        dropped = {"if-none-match"} if self.careless else set()
        headers = {name: value for name, value in handler.headers.items() if name.lower() not in dropped}
        try:
            with closing(HTTPConnection("127.0.0.1", self.server.port, timeout=30)) as connection:
                connection.request(handler.command, handler.path, body, headers)
                answer = connection.getresponse()
                data = answer.read()
        except (OSError, HTTPException):  # the store was killed
            handler.close_connection = True
            return None
        if self.loses and self.requests % self.loses == 0:
            handler.close_connection = True
            return None
        kept = {
            n: v
            for n, v in answer.getheaders()
            if n.lower() not in {"transfer-encoding", "connection", "date", "server"}
        }
        return _reply(handler, answer.status, data, kept)

    def _refusal(self, handler: BaseHTTPRequestHandler) -> tuple[int, str, str] | None:
        """Return status, code and text for a request that is refused."""
        authorization = handler.headers.get("Authorization")
        if authorization is None:  # the request for the time is not signed
            return None
        if f"Credential={KEY}/" not in authorization:
            return 403, "InvalidAccessKeyId", "The key id is not known."
        if self.busy or (self.storms and self.requests % self.storms == 0):
            self.busy = max(self.busy - 1, 0)
            return 503, "SlowDown", "Please reduce your request rate."
        return self.refuses.get(_kind(handler))

    def __enter__(self) -> Relay:
        """Serve."""
        relay = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # sends head and body in one piece, which saves the 40 ms that a kernel waits for more

            def _pass_on(self) -> None:
                relay.answer(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass_on  # noqa: N815 - as `http.server` names them

            def log_message(self, *arguments: object) -> None: ...

        self._listener = _Listener(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._listener.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop."""
        self._listener.shutdown()
        self._listener.server_close()
        self._thread.join()


class _Listener(ThreadingHTTPServer):
    """Logs nothing about clients that are killed or hang up."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def _kind(handler: BaseHTTPRequestHandler) -> str:
    """Return the right that a request needs."""
    if handler.command == "GET" and ("list-type=" in handler.path or "prefix=" in handler.path):
        return "list"
    if "?delete" in handler.path:
        return "delete"
    return {"GET": "get", "HEAD": "get", "DELETE": "delete"}.get(handler.command, "put")


def _error(code: str, message: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()


def _not_deleted(asked: bytes, code: str, message: str) -> bytes:
    """Return the answer of S3 to a client that deletes a list of keys without the right: success, but with an error for each key."""
    keys = re.findall("<Key>(.*?)</Key>", asked.decode())
    errors = "".join(f"<Error><Key>{key}</Key><Code>{code}</Code><Message>{message}</Message></Error>" for key in keys)
    return f"<DeleteResult>{errors}</DeleteResult>".encode()


def _reply(handler: BaseHTTPRequestHandler, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
    handler.send_response(status)
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    if not any(name.lower() == "content-length" for name in headers or ()):
        handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(data)
