"""The values in the text of a file of pipelines, and the line of each key.

Python's own reader says where a text is not TOML, but not where its keys are. Still, only that reader is used to find
them: the text is cut into statements, the shortest runs of lines that the reader accepts as complete, and each
statement is read after the header of its table. The keys that are new then belong to the line where the statement
begins.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import DependencyError

if TYPE_CHECKING:
    from collections.abc import Iterator

if sys.version_info >= (3, 11):
    import tomllib
else:
    try:
        import tomli as tomllib
    except ImportError as missing:
        msg = "files of pipelines need tomli on Python 3.10: pip install 'penstock[run]'"
        raise DependencyError(msg) from missing

Key = tuple["str | int", ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_AT_LINE = re.compile(r"\s*\(at line (\d+), column \d+\)")


@dataclass(frozen=True)
class Flaw:
    """A mistake in a file of pipelines: where it is, and what to do. `line` 0: it is about the whole file.

    `outside`: it concerns what the file names, not the file itself; it may be well again later.
    """

    file: str
    line: int
    key: str
    message: str
    outside: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.key}: {self.message}" if self.key else f"{place}: {self.message}"


class NotTomlError(Exception):
    """The text is not TOML; `line` is the line where that shows."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def values(text: str) -> dict[str, Any]:
    """Return what the text says. Raises `NotTomlError`."""
    try:
        parsed: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _AT_LINE.search(str(error))
        line = int(place[1]) if place else text.count("\n") + 1
        raise NotTomlError(_AT_LINE.sub("", str(error)), line) from error
    except RecursionError as error:
        raise _too_deep() from error
    return parsed


def _too_deep() -> NotTomlError:
    return NotTomlError("tables or lists lie in each other too deep; a file of pipelines needs four", 1)


def lines(text: str) -> dict[Key, int]:
    """Return the line of each key of a TOML text; the items of a list have the line where the list begins. Raises `NotTomlError`."""
    try:
        return _lines(text)
    except RecursionError as error:
        raise _too_deep() from error


def _lines(text: str) -> dict[Key, int]:
    at: dict[Key, int] = {}
    header = statement = ""
    begin = 1
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        statement += line
        try:
            parsed = tomllib.loads(header + statement)
        except tomllib.TOMLDecodeError:
            continue
        for key in _keys(parsed, ()):
            at.setdefault(key, begin)
        if statement.lstrip().startswith("["):
            header = statement
        statement, begin = "", number + 1
    return at


def _keys(value: Any, at: Key) -> Iterator[Key]:  # noqa: ANN401 - whatever TOML has
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in entries:
        yield (*at, name)
        yield from _keys(inner, (*at, name))


def line_of(at: dict[Key, int], key: Key) -> int:
    """Return the line of a key, or of the nearest key around it; 1 if there is none. The last part may have been dotted."""
    key = key if key in at else (*key[:-1], *str(key[-1]).split(".")) if key else key
    return next((at[key[:length]] for length in range(len(key), 0, -1) if key[:length] in at), 1)


def dotted(key: Key) -> str:
    """Return a key as people write it, on one line."""
    return ".".join(
        str(part) if _BARE.fullmatch(str(part)) else json.dumps(str(part), ensure_ascii=False) for part in key
    )
