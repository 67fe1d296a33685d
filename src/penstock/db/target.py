"""How users name a database: its URL, a reference to a password, names of tables. Nothing of these is pasted into SQL unquoted."""

from __future__ import annotations

import os
import re
from urllib.parse import parse_qsl, quote, unquote

from penstock.errors import OptionError

SQLITE = "sqlite://"
_POSTGRESQL = re.compile(r"postgres(?:ql)?://")
_USER = r"(?:[^:/?#@]*:?@)?"
_HOST = r"(?:\[[^\[\]/?@]*\]|[^:/?#@,\[\]]*)(?::[0-9]*)?"
_QUERY = r"[^=&@]+=[^&]*"
_URL = re.compile(rf"{_USER}{_HOST}(?:,{_HOST})*(?:/[^?#@]*)?(?:\?(?:{_QUERY}(?:&{_QUERY})*)?)?")
_PART = r'(?:"((?:[^"\0]|"")+)"|([^".\0]+))'
_TABLE = re.compile(rf"(?:{_PART}\.)?{_PART}")
_PORT = re.compile(r":([0-9]+)$")
_NAME_BYTES_MAX = 63  # PostgreSQL cuts longer names off without an error
_SECRETS = {"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
# Settings of a connection that the URL does not set.
_DEFAULTS = {"connect_timeout": "10", "application_name": "penstock"}


def quoted(name: str) -> str:
    """Return a name as an identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'


def table_name(text: str, *, option: str) -> tuple[str, ...]:
    """Return (table,) or (schema, table) of `name`, `schema.name`, or either in double quotes, which allow blanks at the ends."""
    if text != text.strip():
        msg = f"{option}={text!r} begins or ends with a blank or a line break; expected none there, or the name in double quotes"
        raise OptionError(msg)
    match = _TABLE.fullmatch(text)
    if match is None:
        msg = (
            f'{option}={text!r} is not the name of a table: expected name, schema.name, or "a name.with dots" in quotes'
        )
        raise OptionError(msg)
    parts = [match[1] or match[2], match[3] or match[4]]
    return tuple(part.replace('""', '"') for part in parts if part)


def ports_of(url: str) -> frozenset[str]:
    """Return the ports of the servers in a PostgreSQL URL, by libpq's rules."""
    authority, _, query = url.partition("://")[2].partition("?")
    hosts = authority.partition("/")[0].rpartition("@")[2].split(",")
    ports = [port for name, value in parse_qsl(query) if name == "port" for port in value.split(",")]
    ports += [match[1] for match in map(_PORT.search, hosts) if match]
    return frozenset(ports) or frozenset({os.environ.get("PGPORT", "5432")})


def check_length(name: str) -> None:
    """Raise `OptionError` for an identifier that PostgreSQL would truncate, and take for another one."""
    size = len(name.encode())
    if size > _NAME_BYTES_MAX or "\0" in name:
        msg = (
            f"{name!r} is not a name for PostgreSQL: expected at most {_NAME_BYTES_MAX} bytes without NUL, found {size}"
        )
        raise OptionError(msg)


def check_url(url: str) -> None:
    """Raise `OptionError`, which shows no secret, unless the URL can be used."""
    if url != url.strip():
        msg = "url begins or ends with a blank or a line break, as one that was read from a file; expected none there"
        raise OptionError(msg)
    if url.startswith(SQLITE):
        _check_sqlite(url)
    elif scheme := _POSTGRESQL.match(url):
        _check_postgresql(url[scheme.end() :])
    else:
        msg = (
            "url names no database that this version knows: expected sqlite:///path or postgresql://user@host/database, without jdbc: "
            "before it, and without a +driver"
        )
        raise OptionError(msg)


def _check_sqlite(url: str) -> None:
    path = url.removeprefix(SQLITE)
    if not path.startswith("/") or path.endswith(("/", ":memory:")) or {"\0", "?"} & set(path):
        msg = (
            f"url={url!r}: expected the absolute path of a file, such as sqlite:///data/counts.db, and nothing after it"
        )
        raise OptionError(msg)


def _check_postgresql(rest: str) -> None:
    """Check the URL after its scheme. A password is looked for first, so that no other message can show it."""
    if _has_secret(rest):
        msg = (
            "url has a password in it, and urls end in logs and plans; say where it is instead: "
            '.option("password", "env:NAME") or "file:/path/of/the/file"'
        )
        raise OptionError(msg)
    if not _URL.fullmatch(rest):
        # The message does not show the URL: what does not fit may be a password in a wrong place.
        msg = (
            "url cannot be read: expected postgresql://user@host:port/database?name=value&name=value, with other characters "
            "written as %XX, and no password"
        )
        raise OptionError(msg)


def _has_secret(rest: str) -> bool:
    """Tell whether there is a password after a user, as libpq reads it: up to the first "@", if no "/" comes before it; or a value."""
    user, at, _ = rest.partition("@")
    password = unquote(user).partition(":")[2] if at and "/" not in user else ""
    names = {name.lower() for name, value in parse_qsl(rest.partition("?")[2]) if value}
    return bool(password or names & _SECRETS)


def connection_url(url: str, password: str | None) -> str:
    """Return the URL for libpq, with the settings that our connections need."""
    _, mark, query = url.partition("?")
    named = {name.lower() for name, _ in parse_qsl(query, keep_blank_values=True)}
    added = {name: value for name, value in _DEFAULTS.items() if name not in named}
    if password is not None:
        added["password"] = password
    if not mark:
        url += "?"
    elif query:
        url += "&"
    return url + "&".join(f"{name}={quote(value, safe='')}" for name, value in added.items())
