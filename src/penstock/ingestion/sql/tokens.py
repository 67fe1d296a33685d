"""The tokens of a text of SQL, and a reading position among them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from penstock.ingestion.sql.tree import refuse

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOKEN = re.compile(
    r"""(?:[ \t\r\n]+|--[^\n]*(?:\n|$)|/\*(?!\+)(?:[^*]|\*(?!/))*\*/)*(?:
      (?P<raw>[rR](?:'[^']*'|"[^"]*"))
    | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?P<suffix>BD|bd|[LlSsYyFfDd])?)(?![A-Za-z0-9_])
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | `(?P<quoted>(?:[^`]|``)+)`
    | (?P<string>'(?:[^'\\]|\\[\s\S]|'')*'|"(?:[^"\\]|\\[\s\S]|"")*")
    | (?P<mark>(?!/\*)(?:<=>|<>|!=|<=|>=|==|\|\||::|<<|>>|[-+*/%=<>!~&|^(),.\[\];]))
    | (?P<end>$)
    )""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|([0-3][0-7]{2})|([\s\S]))|''|\"\"")
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


class SqlToken(NamedTuple):
    """One token: a word, a value or a mark."""

    kind: str
    value: str
    at: int

    def is_mark(self, *marks: str) -> bool:
        """Tell whether it is one of these marks."""
        return self.kind == "mark" and self.value in marks

    def is_word(self, *words: str) -> bool:
        """Tell whether it is one of these words, in any case."""
        return self.kind == "word" and self.value.lower() in words

    @property
    def shown(self) -> str:
        """Return the token for a message."""
        return repr(self.value) if self.kind != "end" else "the end"


def _tokens(text: str) -> Iterator[SqlToken]:
    at = 0
    while True:
        match = _TOKEN.match(text, at)
        if match is None:
            at = len(text) - len(text[at:].lstrip())
            if text.startswith("/*+", at):
                refuse(at, "hints are for joins and partitions, which an ingest does not have; leave it out")
            refuse(
                at,
                f"found {text[at : at + 1]!r}, which begins nothing; write a name with other than letters, digits and _ in `backquotes`",
            )
        kind = "number" if match.lastgroup == "suffix" else str(match.lastgroup)
        yield SqlToken(kind, _value(kind, match[kind]), match.start(kind))
        if kind == "end":
            return
        at = match.end()


def _value(kind: str, text: str) -> str:
    if kind == "quoted":
        return text.replace("``", "`")
    if kind == "raw":
        return text[2:-1]
    if kind != "string":
        return text
    return _ESCAPE.sub(_unescaped, text[1:-1])


def _unescaped(match: re.Match[str]) -> str:
    if match[1] or match[2]:
        return chr(int(match[1], 16) if match[1] else int(match[2], 8))
    return _ESCAPED.get(match[3], match[3]) if match[3] else match[0][0]


class Tokens:
    """A reading position among the tokens of one text."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._place = 0

    @property
    def next(self) -> SqlToken:
        """Return the token at the position."""
        return self._tokens[self._place]

    @property
    def after_next(self) -> SqlToken:
        """Return the token after it."""
        return self._tokens[min(self._place + 1, len(self._tokens) - 1)]

    def take(self) -> SqlToken:
        """Pass the token at the position, and return it."""
        token = self.next
        self._place += token.kind != "end"
        return token

    def skip_word(self, *words: str) -> bool:
        """Pass one of these words, and tell whether it was there."""
        is_there = self.next.is_word(*words)
        self._place += is_there
        return is_there

    def skip_mark(self, *marks: str) -> bool:
        """Pass one of these marks, and tell whether it was there."""
        is_there = self.next.is_mark(*marks)
        self._place += is_there
        return is_there

    def expect(self, mark: str) -> None:
        """Pass a mark. `SqlError` if another token is there."""
        if not self.skip_mark(mark):
            refuse(self.next.at, f"found {self.next.shown}, expected {mark!r}")

    def name(self) -> str:
        """Pass a name, and return it. `SqlError` if there is none."""
        token = self.take()
        if token.kind not in {"word", "quoted"}:
            refuse(token.at, f"found {token.shown}, expected a name")
        return token.value
