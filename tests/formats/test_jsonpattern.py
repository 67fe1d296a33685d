"""The pattern for lines of JSON: a line that it rejects is never JSON, however it was damaged; and it finds most damage."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.formats.json.exact import check_json
from penstock.formats.json.pattern import Looks, ungrammatical, unlike
from penstock.formats.malformed import MalformedError

WORDS = [
    "NaN",
    "-NaN",
    "Infinity",
    "+Infinity",
    "-INF",
    "Inf",
    "1e400",
    "-0",
    "01",
    "1.",
    ".5",
    "+1",
    "0x1",
    "nul",
    "tru",
    "'a'",
]
BYTES = b'{}[]:,"\\ \t\r0123456789-+.eE\x00\x1f\x7f\xff#truefalsn\xef\xbb\xbf'
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.string()),
        ("ö.|", pa.float64()),
        ("user", pa.struct([("tags", pa.list_(pa.string())), ("ok", pa.bool_())])),
        ("costs", pa.list_(pa.struct([("c", pa.decimal128(38, 2))]))),
    ]
)
MEANT = SCHEMA.set(1, pa.field("at", pa.timestamp("us", "UTC")))


def value(chance: random.Random, depth: int) -> Any:
    """Return a value of JSON, nested up to a depth."""
    kind = chance.randrange(8 if depth else 5)
    if kind < 5:
        return chance.choice([None, True, chance.randrange(-99, 99), chance.random(), 'a"b\\c{[,:]}\né'])
    if kind == 5:
        return [value(chance, depth - 1) for _ in range(chance.randrange(4))]
    return {f"k{place}": value(chance, depth - 1) for place in range(chance.randrange(4))}


def line(chance: random.Random) -> bytes:
    """Return a line that is an object, or an object that was damaged."""
    fields = {f"k{place}": value(chance, chance.randrange(7)) for place in range(3)}
    text = bytearray(json.dumps(fields, ensure_ascii=chance.random() < 0.5, indent=None).encode())
    if chance.random() < 0.2:
        text[:] = bytes(text).replace(b"null", chance.choice(WORDS).encode(), 1)
    for _ in range(chance.choice([0, 0, 1, 1, 2])):
        at = chance.randrange(len(text))
        text[at : at + chance.choice([0, 1, 1, 3])] = bytes(chance.choices(BYTES, k=chance.choice([0, 1, 1, 2])))
    return (chance.choice([b"", b" ", b"\xef\xbb\xbf"]) + bytes(text)).replace(b"\n", b" ")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_what_is_named_is_no_json(seed: int) -> None:
    """The parser refuses each line that the pattern rejects; and the pattern rejects most lines that the parser refuses."""
    chance = random.Random(seed)  # noqa: S311 - repeatable
    lines = [line(chance) + b"\n" for _ in range(700)]
    starts = np.cumsum([0, *map(len, lines)])[:-1]
    named = set(ungrammatical(b"".join(lines), starts).tolist())
    refused = {place for place, text in enumerate(lines) if is_refused(text)}
    assert named <= refused, [lines[place] for place in sorted(named - refused)]
    assert len(named) > len(refused) / 2


def is_refused(text: bytes) -> bool:
    """Tell whether the parser, which decides, refuses the line as a JSON object."""
    try:
        check_json(text)
    except MalformedError:
        return True
    return False


def test_lines_that_look_like_the_schema() -> None:
    """The order of keys, white space and missing keys do not matter; values of another kind, other keys and truncated lines are found."""
    alike = [
        {
            "id": -7,
            "at": "2026-01-01T00:00:00.123+01:00",
            "ö.|": 1e-7,
            "user": {"tags": ["a", None], "ok": None},
            "costs": [{"c": 1.5}, {}],
        },
        {"costs": [], "user": None, "id": None, "at": "2026-12-31"},
        {},
    ]
    other = [
        {"id": "7"}, {"id": 1.5}, {"ID": 1}, {"at": "2026-13-01"}, {"at": 5}, {"ö.|": "x"}, {"user": []}, {"user": {"tags": [1]}}, [],
        {"user": {"no": 1}}, {"costs": [{"c": "1"}]}, {"costs": {}},
    ]  # fmt: skip
    broken = [b'{"id":1', b'{"id":1,}', b'{"id" 1}', b'{"id":1 "at":null}', b'"id":1}', b"{}}", b'{"id":01}']
    lines = [*(json.dumps(each, ensure_ascii=False).encode() for each in [*alike, *other]), *broken]
    lines[1] = b'  { "id" : null , "at":"2026-12-31" ,\t"costs" : [ ] } \r'
    data = b"\n".join(lines) + b"\n"
    starts = np.cumsum([0, *(len(text) + 1 for text in lines)])[:-1]
    assert unlike(data, starts, Looks(SCHEMA, MEANT)) is not None
    found = unlike(data, starts, Looks(SCHEMA, MEANT))
    assert found is not None
    assert found.tolist() == list(range(len(alike), len(lines)))
    plain = unlike(data, starts, Looks(SCHEMA, MEANT, plain_times=True))
    assert plain is not None
    assert set(found) - set(plain) == {lines.index(b'{"at": "2026-13-01"}')}


def test_a_schema_that_is_too_long_says_nothing() -> None:
    """A schema of thousands of columns is too large for a regular expression, so the pattern gives no answer."""
    schema = pa.schema([(f"column {place}", pa.string()) for place in range(2000)])
    assert unlike(b"{}\n", np.zeros(1, np.int64), Looks(schema, schema)) is None
