"""The page over HTTP, as one WSGI application: the page itself, its style and script, and the stream of changes.

It is served like the metrics (`metrics.server`), by Python's own server, with a thread for each connection.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import xxhash

from penstock.cli.page.markup import html, tag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.cli.page.board import Board
    from penstock.cli.page.door import Door

    Start = Callable[..., Any]

_BEAT_SECONDS = 5.0  # the page takes a stream for lost that is silent for longer
_FORM_MAX = 4096  # bytes
_ASSETS = {"/page.css": "text/css; charset=utf-8", "/page.js": "text/javascript; charset=utf-8"}
_OTHERS = {"/metrics", "/health", "/ready"}
_HTML = "text/html; charset=utf-8"
_STREAM = "text/event-stream; charset=utf-8"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
]


class PageApplication:
    """Answers a browser. `title` says what the page is about; `others` answers requests that are not for the page."""

    def __init__(
        self, board: Board, door: Door, title: str, others: Callable[..., Iterable[bytes]] | None = None
    ) -> None:
        self._board = board
        self._door = door
        self._title = title
        self._others = others
        self._assets = {path: files(__package__).joinpath(path[1:]).read_bytes() for path in _ASSETS}
        # A page that stays open over a restart is reloaded if the command's version has changed.
        self._version = xxhash.xxh3_64_hexdigest(b"".join(self._assets.values()) + title.encode("utf-8", "replace"))

    def __call__(self, environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        """Answer a request."""
        path, method = environ.get("PATH_INFO", "/"), environ.get("REQUEST_METHOD", "GET")
        if path in _OTHERS and self._others is not None:
            return self._others(environ, start_response)
        if method == "HEAD" and path != "/events":
            self._answered(path, "GET", environ, start_response)
            return []
        return self._answered(path, method, environ, start_response)

    def _answered(self, path: str, method: str, environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        if not self._door.is_ours(environ):
            return _text(start_response, "403 Forbidden", "ask for this machine by its own name, such as localhost")
        if path == "/login":
            return self._login(environ, start_response) if method == "POST" else self._form(start_response)
        if method != "GET":
            return _text(start_response, "405 Method Not Allowed", "this page is read only")
        if path in _ASSETS:
            return _answer(start_response, "200 OK", _ASSETS[path], self._assets[path])
        if not self._door.is_open(environ):
            return self._refused(path, start_response)
        return self._page(path, start_response)

    def _page(self, path: str, start_response: Start) -> Iterable[bytes]:
        if path == "/":
            return _answer(start_response, "200 OK", _HTML, self._whole())
        if path == "/events":
            return self._events(start_response)
        return _text(start_response, "404 Not Found", "expected / or /events")

    def _refused(self, path: str, start_response: Start) -> Iterable[bytes]:
        if path == "/":
            return _text(start_response, "303 See Other", "", ("Location", "/login"))
        return _text(start_response, "401 Unauthorized", "the token is needed", ("WWW-Authenticate", "Bearer"))

    def _login(self, environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
        size = environ.get("CONTENT_LENGTH") or "0"
        if not size.isascii() or not size.isdigit() or int(size) > _FORM_MAX:
            return _text(start_response, "400 Bad Request", "expected a form with a token")
        form = parse_qs(environ["wsgi.input"].read(int(size)).decode("utf-8", "replace"))
        if self._door.has_lock and self._door.fits(form.get("token", [""])[0].strip()):
            return _text(start_response, "303 See Other", "", ("Location", "/"), ("Set-Cookie", self._door.cookie))
        return self._form(start_response, wrong=True)

    # -- what is sent ----------------------------------------------------------------------------------------------

    def _whole(self) -> bytes:
        """Return the page. It is complete without its script, which only keeps it up to date."""
        main = "".join(self._board.now().values())
        head, tail = _document(self._title, self._version, scripted=True).split("@@main@@")
        return f"{head}{main}{tail}".encode()

    def _form(self, start_response: Start, *, wrong: bool = False) -> Iterable[bytes]:
        refusal = tag("p", "That is not the token.", role="alert", class_="bad") if wrong else None
        field = tag(
            "input", type="password", name="token", id="token", autocomplete="current-password", required="required"
        )
        ask = tag("label", "Token of this page (--page-token)", for_="token")
        form = tag(
            "form", refusal, ask, field, tag("button", "Show the page", type="submit"), method="post", action="/login"
        )
        head, tail = _document("Penstock", self._version, scripted=False).split("@@main@@")
        status = "403 Forbidden" if wrong else "200 OK"
        return _answer(start_response, status, _HTML, f"{head}{html(form)}{tail}".encode())

    def _events(self, start_response: Start) -> Iterator[bytes]:
        with self._board.viewer() as admitted:
            if not admitted:
                yield from _text(start_response, "503 Service Unavailable", "this page has too many viewers")
                return
            start_response("200 OK", [("Content-Type", _STREAM), *_HEADERS])
            yield _event("hello", {"version": self._version})
            sent: dict[str, str] = {}
            version = -1
            while (newer := self._board.after(version, _BEAT_SECONDS)) is not None:
                if newer[0] == version:
                    yield _event("beat", {})
                    continue
                version, shown = newer
                changed = {name: text for name, text in shown.items() if sent.get(name) != text}
                sent = shown
                yield _event("change", {"order": list(shown), "html": changed})


def _event(kind: str, form: dict[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(form)}\n\n".encode()


def _text(start_response: Start, status: str, text: str, *headers: tuple[str, str]) -> list[bytes]:
    return _answer(start_response, status, "text/plain; charset=utf-8", f"{text}\n".encode(), *headers)


def _answer(start_response: Start, status: str, kind: str, body: bytes, *headers: tuple[str, str]) -> list[bytes]:
    start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body))), *_HEADERS, *headers])
    return [body]


def _document(title: str, version: str, *, scripted: bool) -> str:
    """Return the document around the sections, which replace `@@main@@`."""
    name = f"{title} · Penstock" if title != "Penstock" else title
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", name),
        tag("link", rel="icon", href="data:,"),
        tag("link", rel="stylesheet", href="page.css"),
        tag("script", src="page.js", defer="defer") if scripted else None,
    )
    connection = tag("p", "as of this moment", id="connection", role="status", class_="muted") if scripted else None
    banner = tag("header", tag("h1", "Penstock"), tag("p", title, class_="muted") if scripted else None, connection)
    skip = tag("a", "To the pipelines", href="#main", class_="unseen")
    body = tag("body", skip, banner, tag("main", "@@main@@", id="main", tabindex="-1"), data_version=version)
    return f"<!DOCTYPE html>{html(tag('html', head, body, lang='en'))}"
