"""Schemas as DDL, such as `id bigint, name string`, read without Spark: before it starts, and where it is not installed.

Spark's parser is the authority. What people write is read here: plain and quoted names, all types that files can hold,
`NOT NULL`, `COMMENT`. Anything else (comments between the words, collations, names in other scripts without quotes) is
left to Spark. What is refused here, Spark refuses, too; a test compares many thousands of texts with Spark.
"""

from __future__ import annotations

import difflib
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from penstock.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOKEN = re.compile(
    r"""[ \t\r\n]*(?:
      (?P<word>[A-Za-z_][A-Za-z0-9_]*)(?!['"A-Za-z0-9_])
    | `(?P<quoted>(?:[^`]|``)+)`
    | (?P<number>[0-9]+)(?![A-Za-z0-9_])
    | '(?P<text>[^'"\\\n]*)'(?![ \t\r\n]*['"])
    | (?P<mark>[<>(),:])
    | (?P<stray>(?!--|/\*)[-.;@+*/=!&|%^~\[\]])
    | (?P<end>$)
    )""",
    re.VERBOSE,
)
_TYPES = {
    "boolean": "boolean",
    **dict.fromkeys(("tinyint", "byte"), "byte"),
    **dict.fromkeys(("smallint", "short"), "short"),
    **dict.fromkeys(("int", "integer"), "integer"),
    **dict.fromkeys(("bigint", "long"), "long"),
    **dict.fromkeys(("float", "real"), "float"),
    "double": "double",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ltz": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    "string": "string",
    "binary": "binary",
    "void": "void",
}
_DECIMALS = ("decimal", "dec", "numeric")
_NESTED = ("array", "map", "struct")
# Types that Spark has, but that files cannot hold, or hold in another form: Spark decides about them.
_SPARKS = (
    "char",
    "character",
    "varchar",
    "interval",
    "time",
    "variant",
    "geometry",
    "geography",
    "nchar",
    "json",
    "object",
)
_SUGGESTED = ("bigint", "int", "double", "string", "boolean", "date", "timestamp", "binary", "decimal", *_NESTED)
# Words that Spark may allow after a type, now or in a later version.
_FOLLOWING = (
    "collate",
    "default",
    "generated",
    "with",
    "without",
    "as",
    "primary",
    "unique",
    "check",
    "references",
    "mask",
)
_DDL_WORDS = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
_PLAIN_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_DIGITS_MAX = 38
_EXAMPLE = "such as 'id bigint, name string'"


class _Unsure(Exception):
    """Only Spark can decide."""


class _Token(NamedTuple):
    kind: str
    value: str
    at: int


def parsed(text: str) -> str | None:
    """Return Spark's JSON of a schema, as `StructType.json()` writes it, with `timestamp` meaning Spark's default.

    None if only Spark can decide. Raises `OptionError`, which names the wrong word, for text that no Spark accepts.
    """
    try:
        fields = _Parser(text).schema()
    except _Unsure:
        return None
    return json.dumps({"fields": fields, "type": "struct"}, separators=(",", ":"), sort_keys=True)


def written(fields: list[dict[str, Any]]) -> str:
    """Return the DDL of fields in Spark's JSON, which `parsed` and Spark read as the same fields, except comments."""
    return ", ".join(
        f"{_name(field['name'])} {type_written(field['type'])}{'' if field['nullable'] else ' NOT NULL'}"
        for field in fields
    )


def type_written(kind: Any) -> str:  # noqa: ANN401 - Spark's JSON of a type
    """Return the DDL of a type in Spark's JSON."""
    if isinstance(kind, str):
        return _DDL_WORDS.get(kind, kind)
    if kind["type"] == "array":
        return f"array<{type_written(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{type_written(kind['keyType'])}, {type_written(kind['valueType'])}>"
    members = (
        f"{_name(field['name'])}: {type_written(field['type'])}{'' if field['nullable'] else ' NOT NULL'}"
        for field in kind["fields"]
    )
    return f"struct<{', '.join(members)}>"


def _name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name.replace('`', '``')}`"


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while True:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise _Unsure
        value = match[match.lastgroup]
        yield _Token(match.lastgroup, value.replace("``", "`"), match.start(match.lastgroup))
        if match.lastgroup == "end":
            return
        at = match.end()


class _Parser:
    """Reads one text from beginning to end; `_next` is the current token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._place = 0

    @property
    def _next(self) -> _Token:
        return self._tokens[self._place]

    def schema(self) -> list[dict[str, Any]]:
        """Read the columns of a table; `struct<...>` around them is dropped, as PySpark does."""
        if self._next.kind == "end":
            return []
        if self._next.value.lower() == "struct" and self._tokens[self._place + 1].value == "<":
            self._take()
            fields = self._members()
        else:
            fields = self._fields()
        if self._next.kind != "end":
            self._refuse(f"found {self._next.value!r} after the last column, expected a comma or the end")
        return fields

    def _fields(self) -> list[dict[str, Any]]:
        fields = [self._field()]
        while self._next.value == "," and self._next.kind == "mark":
            self._take()
            fields.append(self._field())
        return fields

    def _field(self) -> dict[str, Any]:
        name = self._take()
        if name.kind not in {"word", "quoted"}:
            self._refuse(f"found {name.value or 'the end'!r}, expected the name of a column", name)
        if self._is_mark(":"):
            self._take()
        kind = self._type(name.value)
        nullable, metadata = True, {}
        if self._is_word("not"):
            self._take()
            if not self._is_word("null"):
                self._refuse(f"found {self._next.value or 'the end'!r} after NOT, expected NULL")
            self._take()
            nullable = False
        if self._is_word("comment"):
            self._take()
            if self._next.kind != "text":
                raise _Unsure
            metadata = {"comment": self._take().value}
        self._check_end(name.value)
        return {"metadata": metadata, "name": name.value, "nullable": nullable, "type": kind}

    def _check_end(self, name: str) -> None:
        """Refuse a word after the end of a column: most often a comma is missing before it."""
        token = self._next
        if token.kind == "end" or (token.kind == "mark" and token.value in {",", ">"}):
            return
        self._check_unknown()
        self._refuse(f"found {token.value!r} after the type of column {name!r}, expected a comma before it")

    def _check_unknown(self) -> None:
        """Leave it to Spark if the type may continue."""
        if self._next.kind == "word" and self._next.value.lower() in _FOLLOWING:
            raise _Unsure

    def _type(self, name: str) -> str | dict[str, Any]:
        token = self._take()
        word = token.value.lower()
        if token.kind != "word":
            fact = f"found {token.value!r} there" if token.value else "it ends there"
            hint = f"; a name with {token.value!r} in it stands in backquotes" if token.kind == "stray" else ""
            self._refuse(f"column {name!r} has no type: {fact}{hint}", token)
        if word in _SPARKS:
            raise _Unsure
        if word == "array":
            (element,) = self._inner(token, 1)
            return {"containsNull": True, "elementType": element, "type": "array"}
        if word == "map":
            key, value = self._inner(token, 2)
            return {"keyType": key, "type": "map", "valueContainsNull": True, "valueType": value}
        if word == "struct":
            return {"fields": self._members(), "type": "struct"}
        if word in _DECIMALS:
            return self._decimal(token)
        if word not in _TYPES:
            near = difflib.get_close_matches(word, _SUGGESTED, n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            self._refuse(f"column {name!r}: {token.value!r} is not a type{hint}", token)
        if self._is_mark("("):
            self._refuse(f"column {name!r}: {token.value!r} has no size, found '('")
        return _TYPES[word]

    def _decimal(self, token: _Token) -> str:
        if not self._is_mark("("):
            return "decimal(10,0)"
        self._take()
        digits = [self._number(token)]
        if self._is_mark(","):
            self._take()
            digits.append(self._number(token))
        self._close(")", token)
        precision, scale = (*digits, 0)[:2]
        if precision > _DIGITS_MAX or scale > precision:
            self._refuse(
                f"decimal({precision},{scale}): expected at most {_DIGITS_MAX} digits, and no more of them after the point",
                token,
            )
        return f"decimal({precision},{scale})"

    def _number(self, token: _Token) -> int:
        number = self._take()
        if number.kind != "number":
            self._refuse(
                f"found {number.value or 'the end'!r} in the size of {token.value!r}, expected a number", number
            )
        if len(number.value) > len(str(_DIGITS_MAX)):
            raise _Unsure
        return int(number.value)

    def _inner(self, token: _Token, count: int) -> list[str | dict[str, Any]]:
        self._open(token)
        kinds = [self._type(token.value)]
        while len(kinds) < count:
            if not self._is_mark(","):
                self._check_unknown()
                self._refuse(
                    f"found {self._next.value or 'the end'!r} in {token.value!r}, expected a comma and the type of its values"
                )
            self._take()
            kinds.append(self._type(token.value))
        self._close(">", token)
        return kinds

    def _members(self) -> list[dict[str, Any]]:
        token = self._tokens[self._place - 1]
        self._open(token)
        if self._is_mark(">"):
            self._take()
            return []
        fields = self._fields()
        self._close(">", token)
        return fields

    def _open(self, token: _Token) -> None:
        if not self._is_mark("<"):
            of = {"array": "array<string>", "map": "map<string, bigint>"}.get(
                token.value.lower(), "struct<a: bigint, b: string>"
            )
            self._refuse(f"{token.value!r} needs a type; expected {of}, for example", token)
        self._take()

    def _close(self, mark: str, token: _Token) -> None:
        if not self._is_mark(mark):
            found = self._next
            self._check_unknown()
            self._refuse(f"found {found.value or 'the end'!r} in {token.value!r}, expected {mark!r}", found)
        self._take()

    def _is_mark(self, mark: str) -> bool:
        return self._next.kind == "mark" and self._next.value == mark

    def _is_word(self, word: str) -> bool:
        return self._next.kind == "word" and self._next.value.lower() == word

    def _take(self) -> _Token:
        token = self._next
        if token.kind != "end":
            self._place += 1
        return token

    def _refuse(self, why: str, token: _Token | None = None) -> NoReturn:
        at = (token or self._next).at + 1
        told = f"schema {self._text!r}, character {at}: {why}"
        msg = f"{told}{'' if told.endswith('?') else ';'} a schema is columns with types, {_EXAMPLE}"
        raise OptionError(msg)
