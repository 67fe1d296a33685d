"""From what a user writes (`/data`, `file:///data`, `data/in`) to a back end and its absolute path."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from penstock.errors import OptionError, without_credentials
from penstock.storage._local import LocalStorage

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def locate(location: str, *, name: str = "path") -> tuple[LocalStorage, str]:
    """Return the storage that `location` is on, and its absolute, normalised path there.

    A plain path is taken literally (`%20` stays `%20`); `file:` URLs are unquoted, as Hadoop does. `name` is the
    option, for the message. Raises `OptionError` for an empty location or a scheme that this version does not know.
    """
    if not location:
        msg = f"{name} is empty: expected a directory or a file, such as /data/in or file:///data/in"
        raise OptionError(msg)
    scheme = _SCHEME.match(location)
    if scheme is None or os.path.exists(location):
        return LocalStorage(), os.path.abspath(location)
    if scheme[0].lower() == "file:":
        return LocalStorage(), os.path.abspath(unquote(urlsplit(location).path))
    msg = f"{name}={without_credentials(location)!r}: {scheme[0]} is not a file system this version knows; expected a plain path or file:"
    raise OptionError(msg)
