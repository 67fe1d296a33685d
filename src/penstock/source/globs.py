r"""Globs as Hadoop has them: `*`, `?`, `[a-c]`, `[^a]`, `{json,csv}`, nested, and a backslash before a character that is meant literally.

A glob matches one name, and `*` never matches a `/`. Braces may hold several names, as in `{a/b,c}`: such a glob stands for several
paths, see `expanded`. Every error in a glob is an `OptionError` that shows it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from penstock.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOKEN = re.compile(r"\\(.)|\[([!^]?)(\]?[^\]]*)\]|.", re.DOTALL)
_NESTED = re.compile(r"[\\\[&~|]")  # has a meaning in Python's sets of characters
_ALTERNATIVES = {"{": "(?:", ",": "|", "}": ")"}
_SIGNS = re.compile(r"[*?\[\]{}\\]")
_SETS = re.compile(r"\[[^\]]*\]")
_PATHS_MAX = 1000


def is_glob(text: str) -> bool:
    """Tell whether a text has a character with a meaning in globs."""
    return _SIGNS.search(text) is not None


def quoted(name: str) -> str:
    """Return the glob that matches this name alone."""
    return _SIGNS.sub(r"\\\g<0>", name)


def check_names(glob: str) -> None:
    """Raise `OptionError` for a `pathGlobFilter` with a `/`, which no file name has."""
    if "/" in _SETS.sub("", glob):
        msg = (
            f"pathGlobFilter={glob!r} has a '/', and no name of a file does; expected a glob of names such as *.json, and directories in "
            "path, such as path=/data/2026-*"
        )
        raise OptionError(msg)


def expression(glob: str, name: str = "pathGlobFilter") -> str:
    """Return the regular expression of a glob; `name` is its option. Raises `OptionError` for text that is not a glob."""
    parts, depth = "", 0
    for match in _TOKEN.finditer(glob):
        sign, escaped, negated, characters = match.group(0, 1, 2, 3)
        if escaped:
            parts += re.escape(escaped)
        elif characters:
            parts += "[" + "^" * bool(negated) + _NESTED.sub(r"\\\g<0>", characters) + "]"
        elif sign in _ALTERNATIVES and (depth or sign == "{"):
            parts += _ALTERNATIVES[sign]
            depth += (sign == "{") - (sign == "}")
        elif sign == "[":
            parts += sign  # of a set without an end, which is not a valid regular expression either
        else:
            parts += {"*": ".*", "?": "."}.get(sign) or re.escape(sign)
    try:
        re.compile(parts)
    except re.error as error:
        wrong = "a { without its }" if depth else str(error).partition(" at position")[0]
        msg = f"{name}={glob!r} is not a glob: {wrong}; expected one such as *.json or *.{{json,csv}}"
        raise OptionError(msg) from error
    return parts


@dataclass(frozen=True)
class NameGlob:
    """The glob for one name in a path."""

    text: str

    @cached_property
    def literal(self) -> str | None:
        """The only name that matches, `None` if there may be others."""
        tokens = list(_TOKEN.finditer(self.text))
        if any(not token[1] and token[0] in "*?{}[" for token in tokens) or any(token[3] for token in tokens):
            return None
        return "".join(token[1] or token[0] for token in tokens)

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        return re.compile(expression(self.text, "path"), re.DOTALL)

    def matches(self, name: str) -> bool:
        """Tell whether the glob matches this name."""
        return self._expression.fullmatch(name) is not None


def expanded(glob: str) -> list[str]:
    """Return the globs that one glob stands for, so that no brace holds a `/`. Raises `OptionError` for more than a thousand."""
    globs: list[str] = []
    waiting = [glob]
    while waiting:
        text = waiting.pop()
        span = next((span for span in _braces(text) if "/" in text[slice(*span)]), None)
        if span is None:
            globs.append(text)
        else:
            begin, end = span
            waiting += [text[:begin] + part + text[end:] for part in reversed(_parts(text[begin + 1 : end - 1]))]
        if len(globs) + len(waiting) > _PATHS_MAX:
            msg = f"path={glob!r} stands for more than {_PATHS_MAX} paths; expected fewer, or wildcards"
            raise OptionError(msg)
    return globs


def _braces(text: str) -> Iterator[tuple[int, int]]:
    """Yield where the outermost pairs of braces begin and end."""
    depth, begin = 0, 0
    for token in _TOKEN.finditer(text):
        if token[0] == "{":
            begin = token.start() if depth == 0 else begin
            depth += 1
        elif token[0] == "}" and depth:
            depth -= 1
            if depth == 0:
                yield begin, token.end()


def _parts(text: str) -> list[str]:
    """Return the parts between commas that are outside of braces."""
    parts, depth = [""], 0
    for token in _TOKEN.finditer(text):
        depth += (token[0] == "{") - (token[0] == "}")
        if token[0] == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += token[0]
    return parts


def names_of(glob: str) -> list[str]:
    """Return the globs of the names in a path, without empty ones."""
    names = [""]
    for token in _TOKEN.finditer(glob):
        if token[0] == "/":
            names.append("")
        else:
            names[-1] += token[0]
    return [name for name in names if name not in {"", "."}]
