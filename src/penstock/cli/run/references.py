"""References in a file of pipelines: `${NAME}` stands for a variable of the environment, `${file:PATH}` for the content of a file.

`${NAME:-text}` gives the value for a variable that is not set or, as in a shell, empty. `$${` stands for `${` itself.
The content of a file is a secret: no message and no log contains it. Options that take a reference themselves
(`env:NAME`, `file:PATH`) are left unchanged: the secret then never becomes part of Spark's plan, so prefer these where
they exist.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from penstock.cli.answer import printable
from penstock.errors import PenstockError
from penstock.storage import locate

if TYPE_CHECKING:
    from penstock.cli.run.toml import Key

_REFERENCE = re.compile(r"\$(\$\{)|\$\{([^{}]*)\}|\$\{")
_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_FILE = "file:"
_SHORTEST_SECRET = 4  # characters: a shorter one would mask half of a message
_SHORTEST_LINE = 8  # of a secret of several lines, such as a key


class NotResolvedError(Exception):
    """A reference leads nowhere; the text says why."""


@dataclass
class Secrets:
    """The contents of files that were referred to; they must not appear in any output."""

    texts: set[str] = field(default_factory=set)
    _forms: set[str] = field(default_factory=set, repr=False)

    def __post_init__(self) -> None:
        for text in set(self.texts):
            self.add(text)

    def masked(self, text: str) -> str:
        """Return text with `***` for each secret in it."""
        for secret in sorted(self._forms, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text

    def add(self, text: str) -> None:
        """Mask a text, and each of its lines, in every form that messages and logs may show."""
        lines = (line.strip() for line in text.splitlines())
        self.texts.add(text)
        for part in (text, " ".join(text.split()), *(line for line in lines if len(line) >= _SHORTEST_LINE)):
            # For example in a message that contains a repr, as JSON.
            escaped = {form for once in _escaped(part) for form in _escaped(once)}
            self._forms.update(form for form in escaped if len(form) >= _SHORTEST_SECRET)


def _escaped(text: str) -> tuple[str, ...]:
    """Return a text in the forms in which it may be shown."""
    in_json = (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    return text, *in_json, repr(text)[1:-1], quote(text, safe=""), printable(text)


def resolved(value: Any, secrets: Secrets, key: Key = ()) -> tuple[Any, list[tuple[Key, str]]]:  # noqa: ANN401 - whatever TOML has
    """Return a value with all its references resolved, and the keys of those that cannot be resolved, with the reason."""
    if isinstance(value, str):
        try:
            return _REFERENCE.sub(lambda match: _of(match, secrets), value), []
        except NotResolvedError as error:
            return value, [(key, str(error))]
    if not isinstance(value, (dict, list)):
        return value, []
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    pairs = [(name, *resolved(inner, secrets, (*key, name))) for name, inner in entries]
    failures = [failure for _, _, inner in pairs for failure in inner]
    if isinstance(value, dict):
        return {name: inner for name, inner, _ in pairs}, failures
    return [inner for _, inner, _ in pairs], failures


def _of(match: re.Match[str], secrets: Secrets) -> str:
    if match[1]:
        return "${"
    reference = match[2]
    if reference is None:
        msg = "${ has no } after it, or another ${ before that: expected ${NAME}, ${NAME:-text} or ${file:PATH}; ${ itself is written $${"
        raise NotResolvedError(msg)
    if reference.startswith(_FILE):
        return _of_file(reference.removeprefix(_FILE), secrets)
    named = _NAME.fullmatch(reference)
    if named is None:
        msg = f"${{{reference}}} is not a reference: expected ${{NAME}}, ${{NAME:-text}} or ${{file:PATH}}; ${{ itself is written $${{"
        raise NotResolvedError(msg)
    text = os.environ.get(named[1])
    if not text and named[2] is not None:  # without `:-` the group is None
        return str(named[2])
    if text is None:
        msg = f"${{{reference}}}: the environment has no {named[1]}; set it, or give a default: ${{{named[1]}:-text}}"
        raise NotResolvedError(msg)
    return text


def _of_file(path: str, secrets: Secrets) -> str:
    try:
        storage, location = locate(path, name="${file:PATH}")
        text = storage.read(location).decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        msg = f"${{file:{path}}}: the file is not UTF-8 text"
        raise NotResolvedError(msg) from error
    except PenstockError as error:
        msg = f"${{file:{path}}}: {error.message}"
        raise NotResolvedError(msg) from error
    if not text:
        msg = f"${{file:{path}}}: the file is empty; write the value there, or write an empty text as ''"
        raise NotResolvedError(msg)
    if len(text) >= _SHORTEST_SECRET:
        secrets.add(text)
    return text
