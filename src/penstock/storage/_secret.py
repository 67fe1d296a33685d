"""Reads a secret that options name but never hold, from `env:NAME` or `file:PATH`."""

from __future__ import annotations

import codecs
import os
from contextlib import suppress

from penstock.errors import NotThere, OptionError
from penstock.storage._locate import locate


def secret(reference: str, name: str) -> str:
    """Return the text at `reference`, without the line break at its end or the byte order mark that some editors put first.

    `name` is the option, for messages.

    The process that needs the secret reads it again at each call. Raises `OptionError`, also if there is no such file, and what
    reading it raises.
    """
    kind, _, place = reference.partition(":")
    if kind == "env":
        if place not in os.environ:
            msg = (
                f"{name}={reference!r}: the environment of this process has no variable {place!r}; set it where Spark is "
                "started, for the executors too if tasks need it (spark.executorEnv)"
            )
            raise OptionError(msg)
        word = os.fsencode(os.environ[place])
    else:
        storage, path = locate(place, name=name)
        try:
            if not storage.stat(path).is_file:
                msg = (
                    f"{name}={reference!r}: there is a directory, a pipe or a device, and each process that needs it reads it anew; "
                    "expected a file, or env:NAME of a variable"
                )
                raise OptionError(msg)
            word = storage.read(path).rstrip(b"\r\n")
        except NotThere as error:
            msg = (
                f"{name}={reference!r}: this process finds no such file; put it there, where Spark is started, and on the executors too "
                "if tasks need it"
            )
            raise OptionError(msg) from error
    with suppress(UnicodeDecodeError):
        if b"\0" not in word:
            return word.removeprefix(codecs.BOM_UTF8).decode()
    msg = f"{name}={reference!r}: what is there is not text in UTF-8; see that it is the right one"
    raise OptionError(msg)
