"""Who may look at the page.

Without a token: this machine may look, if it is asked for by its own name. A site that a browser visits can let its
name lead to this machine, and then counts as the page's own origin (DNS rebinding). But the browser cannot hide the
name that it asked for, and that is the site's.

With a token: whoever has it may look. A program sends it as `Authorization: Bearer`. A person types it once, and the
browser keeps a value derived from it as a cookie that no script can read. The token is never part of an address, which
would be in histories and logs. The derived value is the same after a restart, so a page that stays open goes on.
Guesses are answered one at a time, half a second each.
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
    """Tell whether an address is a loopback address, which no other machine can reach."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host in _OURS


def token_at(reference: str | None, host: str, flag: str = "--page") -> str | None:
    """Return the token that the reference names. `OptionError` if the host needs a token and there is none."""
    if reference is None:
        if is_loopback(host):
            return None
        msg = (
            f"{flag} at {host!r}: anybody who reaches that address could read names and records; say where a token is, with "
            f"--page-token file:PATH or env:NAME, or answer only this machine, with {flag} :8080"
        )
        raise OptionError(msg)
    if not reference.startswith(("env:", "file:")):  # the message does not show it: it may be the token itself
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
    """Decides for each request whether it may be answered."""

    def __init__(self, token: str | None) -> None:
        self._token = token
        self._guesses = threading.Lock()

    @property
    def has_lock(self) -> bool:
        """Whether there is a token."""
        return self._token is not None

    def is_ours(self, environ: Mapping[str, Any]) -> bool:
        """Tell whether a request asks for this machine by its own name; with a token any name is right."""
        if self._token is not None:
            return True
        host = str(environ.get("HTTP_HOST", ""))
        name = host[: host.rfind("]") + 1].strip("[]") if host.startswith("[") else host.partition(":")[0]
        return is_loopback(name)

    def is_open(self, environ: Mapping[str, Any]) -> bool:
        """Tell whether a request has the token, or the cookie derived from it; always true without a token."""
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
        """Tell whether it is the token; the answer to a wrong one is delayed."""
        right = hmac.compare_digest(given.encode("utf-8", "surrogateescape"), (self._token or "").encode())
        if not right or self._token is None:
            with self._guesses:
                clock.sleep(_GUESS_SECONDS)
            return False
        return True

    @property
    def cookie(self) -> str:
        """Return the header that gives a browser the value derived from the token."""
        return f"{_COOKIE}={self._mark}; HttpOnly; SameSite=Strict; Path=/; Max-Age=2592000"

    @property
    def _mark(self) -> str:
        return hmac.new((self._token or "").encode(), b"penstock page", hashlib.sha256).hexdigest()
