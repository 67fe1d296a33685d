"""JSON of shapes for which nothing was tuned: each differs from the plain records of `data` in one property that matters to a reader.

A shape is its columns and a seeded generator of records. A column is the name of Spark's type, a dictionary for a struct,
or a list of one for an array.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    Record = dict[str, Any]

_WORDS = "fix typo merge branch into main update deps revert bump version of the parser when a block is cut".split()  # noqa: SIM905 - words read as such
_FOREIGN = "München Zürich naïve 東京 Санкт-Петербург Ελλάδα हिन्दी 👍 ✓ ﷽ Łódź".split()  # noqa: SIM905 - words read as such
_WIDE = 200
_KINDS = ("long", "string", "double", "boolean")
_HUGE_EVERY, _HUGE_BYTES = 200, 100_000
_LONG_BYTES = 20_000


@dataclass(frozen=True)
class Shape:
    """Records of one shape; `about` names the difference."""

    about: str
    columns: dict[str, Any]
    records: Callable[[random.Random], Iterator[bytes]]


def spark_type(column: Any) -> Any:  # noqa: ANN401 - a name, a dictionary or a list
    """Return a column's type in Spark's JSON."""
    if isinstance(column, dict):
        return {"type": "struct", "fields": fields(column)}
    if isinstance(column, list):
        return {"type": "array", "elementType": spark_type(column[0]), "containsNull": True}
    return column


def fields(columns: dict[str, Any]) -> list[dict[str, Any]]:
    """Return columns as the fields of a struct in Spark's JSON."""
    return [
        {"name": name, "type": spark_type(column), "nullable": True, "metadata": {}} for name, column in columns.items()
    ]


def _lines(
    record: Callable[[int, random.Random], Record], *, end: str = "\n", escaped: bool = False
) -> Callable[[random.Random], Iterator[bytes]]:
    """Return a generator of lines from a function that makes the record of a number."""

    def records(chance: random.Random) -> Iterator[bytes]:
        for number in count():
            yield (json.dumps(record(number, chance), ensure_ascii=escaped) + end).encode()

    return records


def _text(chance: random.Random, words: int = 6) -> str:
    return " ".join(chance.choices(_WORDS, k=words))


def _plain(number: int, chance: random.Random) -> Record:
    return {"id": number, "user": f"user{chance.randrange(10_000)}", "score": chance.random(), "msg": _text(chance)}


_PLAIN = {"id": "long", "user": "string", "score": "double", "msg": "string"}
_USER = {"id": "long", "login": "string", "url": "string", "avatar_url": "string", "site_admin": "boolean"}
_EVENT = {
    "id": "string",
    "type": "string",
    "actor": _USER,
    "repo": {"id": "long", "name": "string", "url": "string"},
    "payload": {
        "push_id": "long",
        "action": "string",
        "commits": [{"sha": "string", "author": {"name": "string", "email": "string"}, "message": "string"}],
        "issue": {
            "number": "long",
            "title": "string",
            "user": _USER,
            "labels": [{"name": "string", "color": "string"}],
            "body": "string",
        },
    },
    "public": "boolean",
    "created_at": "string",
}


def _user(chance: random.Random) -> Record:
    number = chance.randrange(1_000_000)
    url = f"https://api.example.org/users/user{number}"
    avatar = f"https://avatars.example.org/u/{number}?"
    return {"id": number, "login": f"user{number}", "url": url, "avatar_url": avatar, "site_admin": False}


def _event(number: int, chance: random.Random) -> Record:
    kind = chance.choice(("PushEvent", "PushEvent", "IssuesEvent", "WatchEvent"))
    repo = chance.randrange(1_000_000)
    payload: Record = {}
    if kind == "PushEvent":
        payload = {"push_id": number * 7, "commits": [_commit(chance) for _ in range(chance.randrange(1, 5))]}
    elif kind == "IssuesEvent":
        labels = [{"name": "bug", "color": "d73a4a"}] * chance.randrange(3)
        body = None if chance.random() < 1 / 3 else _text(chance, 40)
        payload = {
            "action": "opened",
            "issue": {"number": number % 9999, "title": _text(chance), "user": _user(chance)},
        }
        payload["issue"] |= {"labels": labels, "body": body}
    return {
        "id": str(10_000_000_000 + number),
        "type": kind,
        "actor": _user(chance),
        "repo": {"id": repo, "name": f"org/repo{repo}", "url": f"https://api.example.org/repos/org/repo{repo}"},
        "payload": payload,
        "public": True,
        "created_at": f"2026-01-{1 + number % 28:02d}T{number % 24:02d}:{number % 60:02d}:00Z",
    }


def _commit(chance: random.Random) -> Record:
    author = {"name": _text(chance, 2), "email": f"u{chance.randrange(9999)}@example.org"}
    return {"sha": f"{chance.getrandbits(160):040x}", "author": author, "message": _text(chance, 8)}


def _wide(number: int, chance: random.Random) -> Record:
    made = (number + 1, f"v{chance.randrange(1000)}", chance.random(), number % 3 == 0)
    return {f"c{i}": made[i % len(_KINDS)] for i in range(_WIDE)}


def _digits(number: int, chance: random.Random) -> Record:
    number_of = chance.randrange(1_000_000_000)
    return {
        "path": f"/var/log/app/{number_of}.log",
        "flag": f"-{number_of}x",
        "phone": f"{number_of:010d}",
        "zip": f"{number_of % 100_000:05d}",
        "date": f"2026-01-{1 + number % 28:02d}",
        "version": f"{number % 9}.{number % 17}.{number % 5}",
    }


def _numbers(number: int, chance: random.Random) -> Record:
    return {
        "id": str(number),
        "amount": f"{chance.random() * 1000:.2f}",
        "count": str(chance.randrange(99)),
        "n": number,
    }


def _nulls(number: int, chance: random.Random) -> Record:
    record: Record = {"id": number}
    for i in range(20):
        if chance.random() < 0.2:  # noqa: PLR2004 - as many are there
            record[f"c{i}"] = number + i if i % 2 else _text(chance, 3)
        elif i % 3 == 0:
            record[f"c{i}"] = None
    return record


def _long(number: int, chance: random.Random) -> Record:
    return {"id": number, "page": _text(chance, 40) * (_LONG_BYTES // 200)}


def _unicode(number: int, chance: random.Random) -> Record:
    return {"id": number, "city": chance.choice(_FOREIGN), "note": " ".join(chance.choices(_FOREIGN, k=8))}


def _tiny(number: int, _: random.Random) -> Record:
    return {"a": number % 10, "b": number % 2 == 0}


def _skewed(number: int, chance: random.Random) -> Record:
    size = _HUGE_BYTES if number % _HUGE_EVERY == 0 else chance.randrange(20)
    return {"id": number, "body": "x" * size}


def _shuffled(number: int, chance: random.Random) -> Record:
    items = list(_plain(number, chance).items())
    chance.shuffle(items)
    return dict(items)


_NULL_COLUMNS = {f"c{i}": "long" if i % 2 else "string" for i in range(20)}
_NUMBERS = {"id": "string", "amount": "string", "count": "string", "n": "long"}
_CITIES = {"id": "long", "city": "string", "note": "string"}

SHAPES = {
    "json-nested": Shape("nested events: structs, and arrays of structs", _EVENT, _lines(_event)),
    "json-wide": Shape("200 columns", {f"c{i}": _KINDS[i % len(_KINDS)] for i in range(_WIDE)}, _lines(_wide)),
    "json-digits": Shape(
        "strings that begin with digits, `/` and `-`",
        dict.fromkeys(("path", "flag", "phone", "zip", "date", "version"), "string"),
        _lines(_digits),
    ),
    "json-numbers": Shape("numbers as strings", _NUMBERS, _lines(_numbers)),
    "json-nulls": Shape("four of five values missing or null", {"id": "long"} | _NULL_COLUMNS, _lines(_nulls)),
    "json-long": Shape("lines of 20 KB", {"id": "long", "page": "string"}, _lines(_long)),
    "json-crlf": Shape("lines that end in CRLF", _PLAIN, _lines(_plain, end="\r\n")),
    "json-unicode": Shape("little ASCII", _CITIES, _lines(_unicode)),
    "json-escaped": Shape("the same, every character escaped", _CITIES, _lines(_unicode, escaped=True)),
    "json-tiny": Shape("records of 20 bytes", {"a": "long", "b": "boolean"}, _lines(_tiny)),
    "json-skewed": Shape("few huge values and many tiny ones", {"id": "long", "body": "string"}, _lines(_skewed)),
    "json-shuffled": Shape("keys in another order in each record", _PLAIN, _lines(_shuffled)),
}
