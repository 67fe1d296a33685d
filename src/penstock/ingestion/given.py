"""Checks the options that an ingest was given against the connectors' tables, and turns them into text."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from penstock.errors import OptionError
from penstock.options import Option, parse

if TYPE_CHECKING:
    from collections.abc import Mapping

# Options of the connectors that an ingest would ignore, and the parameter to use instead.
_NO_OPTIONS = {
    "path": "src and dst",
    "checkpointlocation": "checkpoint",
    "ingest": "transform",
    "statelocation": "checkpoint",
    "tasks": "the session's cores",
}


def given_options(table: tuple[Option, ...], options: Mapping[str, Any], path: str, side: str) -> dict[str, str]:
    """Return the user's options, by the names of the table, and the path."""
    check_ours(options, side)
    return dict(parse(table, texts(options) | {"path": path}, what=side).given)


def check_ours(options: Mapping[str, Any], side: str) -> None:
    """Raise `OptionError` for options that an ingest sets itself."""
    for name in options:
        if name.lower() in _NO_OPTIONS:
            msg = f"{side} option {name!r}: an ingest takes that from {_NO_OPTIONS[name.lower()]}; leave it out"
            raise OptionError(msg)


def texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the options as text, in Spark's spelling. Raises `OptionError` for a value that has no text form, such as a list."""
    return {name: text(name, value) for name, value in options.items()}


def text(name: str, value: object) -> str:
    """Return the value of an option as text, in Spark's spelling; see `texts`."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, (str, int, float, os.PathLike)):
        msg = f"option {name!r} is a {type(value).__name__}; expected a text, a number, True or False"
        raise OptionError(msg)
    return str(value)
