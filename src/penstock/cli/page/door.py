"""Who may look at the page.

Without a token: this machine, and asked for by its own name. A site that a browser visits may have its name lead to this machine, and then
counts as this page's own origin; the name that the browser asked for, which it cannot hide, is the site's (DNS rebinding).

With a token: whoever has it. A program sends it as `Authorization: Bearer`; a person types it once, and the browser keeps what follows from
it as a cookie that no script can read. It is never a part of an address, which would be in histories and logs, and it is the same after a
restart, so that a page that is left open goes on. Guesses are answered one at a time, half a second each.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from penstock import clock
from penstock.errors import OptionError
from penstock.storage import secret

if TYPE_CHECKING:
    from collections.abc import Mapping

_COOKIE = "penstock_page"
_SHORTEST = 16
_GUESS_SECONDS = 0.5
_OURS = {"localhost", "localhost.localdomain"}


def is_loopback(host: str) -> bool:
    """Tell whether an address is this machine's own, which no other one reaches."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host in _OURS


def token_at(reference: str | None, host: str, flag: str = "--page") -> str | None:
    """Return the token that is where the reference says. `OptionError` for a host that needs one and has none."""
    if reference is None:
        if is_loopback(host):
            return None
        msg = (
            f"{flag} at {host!r}: whoever reaches that address could read names and records; say where a token is, with "
            f"--page-token file:PATH or env:NAME, or answer this machine alone, with {flag} :8080"
        )
        raise OptionError(msg)
    if not reference.startswith(("env:", "file:")):  # it is not shown: it may be the token itself
        msg = "--page-token must say where the token is, never what it is: expected env:NAME or file:/path/of/the/file"
        raise OptionError(msg)
    token = secret(reference, "--page-token").strip()
    if len(token) < _SHORTEST:
        msg = (
            f"--page-token {reference}: the token has {len(token)} characters, expected {_SHORTEST} at least; such as that of: "
            "python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
        raise OptionError(msg)
    return token


class Door:
    """Decides of each request whether it may be answered."""

    def __init__(self, token: str | None) -> None:
        self._token = token
        self._guesses = threading.Lock()

    @property
    def has_lock(self) -> bool:
        """Whether there is a token."""
        return self._token is not None

    def is_ours(self, environ: Mapping[str, Any]) -> bool:
        """Tell whether a request asks for this machine by its own name; with a token any name will do."""
        if self._token is not None:
            return True
        host = str(environ.get("HTTP_HOST", ""))
        name = host[: host.rfind("]") + 1].strip("[]") if host.startswith("[") else host.partition(":")[0]
        return is_loopback(name)

    def is_open(self, environ: Mapping[str, Any]) -> bool:
        """Tell whether a request has the token, or what follows from it; without a token each one has."""
        if self._token is None:
            return True
        kind, _, given = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
        if kind.lower() == "bearer":
            return self.fits(given.strip())
        try:
            cookie = SimpleCookie(str(environ.get("HTTP_COOKIE", ""))).get(_COOKIE)
        except CookieError:
            return False
        return cookie is not None and hmac.compare_digest(cookie.value.encode(), self._mark.encode())

    def fits(self, given: str) -> bool:
        """Tell whether it is the token; a wrong one is told late."""
        right = hmac.compare_digest(given.encode("utf-8", "surrogateescape"), (self._token or "").encode())
        if not right or self._token is None:
            with self._guesses:
                clock.sleep(_GUESS_SECONDS)
            return False
        return True

    @property
    def cookie(self) -> str:
        """Return the header that gives a browser what follows from the token."""
        return f"{_COOKIE}={self._mark}; HttpOnly; SameSite=Strict; Path=/; Max-Age=2592000"

    @property
    def _mark(self) -> str:
        return hmac.new((self._token or "").encode(), b"penstock page", hashlib.sha256).hexdigest()
