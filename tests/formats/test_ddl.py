"""Schemas as DDL, read without Spark; `tests/spark/test_ddl.py` compares with Spark."""

from __future__ import annotations

import json

import pytest

from penstock.errors import OptionError
from penstock.formats.ddl import parsed


def test_columns_of_all_kinds() -> None:
    """Plain and quoted names, types under all their names, nested types, NOT NULL and comments give Spark's JSON."""
    known = parsed(
        "id BIGINT not null comment 'the key', `a ``b`: map<string, array<decimal(5,2)>>, s struct<x: int, y dec>"
    )
    assert known is not None
    assert [(field["name"], field["nullable"], field["metadata"]) for field in json.loads(known)["fields"]] == [
        ("id", False, {"comment": "the key"}),
        ("a `b", True, {}),
        ("s", True, {}),
    ]
    kinds = [field["type"] for field in json.loads(known)["fields"]]
    array = {"type": "array", "elementType": "decimal(5,2)", "containsNull": True}
    assert kinds[:2] == ["long", {"type": "map", "keyType": "string", "valueType": array, "valueContainsNull": True}]
    assert [field["type"] for field in kinds[2]["fields"]] == ["integer", "decimal(10,0)"]
    assert parsed("struct<a: int>") == parsed("a int")
    assert parsed(" ") == '{"fields":[],"type":"struct"}'


WRONG = {
    "id bigin, name string": (4, "column 'id': 'bigin' is not a type; did you mean 'bigint'? a schema is columns"),
    "a int, b text": (10, "column 'b': 'text' is not a type"),
    "a list<int>": (3, "'list' is not a type"),
    "id bigint name string": (11, "found 'name' after the type of column 'id', expected a comma before it"),
    "id": (3, "column 'id' has no type: it ends there"),
    "a, b int": (2, "column 'a' has no type: found ',' there"),
    "a-b int": (2, "found '-' there; a name with '-' in it stands in backquotes"),
    "a.b int": (2, "a name with '.' in it stands in backquotes"),
    "a int,": (7, "found 'the end', expected the name of a column"),
    "a array": (3, "'array' needs a type; expected array<string>, for example"),
    "a map<int>": (10, "found '>' in 'map', expected a comma"),
    "a array<int": (12, "found 'the end' in 'array', expected '>'"),
    "a struct<b>": (11, "column 'b' has no type: found '>' there"),
    "a int(3)": (6, "'int' has no size"),
    "a decimal(39,0)": (3, "decimal(39,0): expected at most 38 digits"),
    "a decimal(5,7)": (3, "and no more of them after the point"),
    "a decimal(x)": (11, "expected a number"),
    "a int not": (10, "found 'the end' after NOT, expected NULL"),
    "a int> ": (6, "found '>' after the last column"),
}


@pytest.mark.slow
@pytest.mark.parametrize("text", WRONG)
def test_a_word_that_is_wrong_is_named(text: str) -> None:
    """A schema that cannot be parsed is refused with the place, the wrong word, and what was expected there."""
    at, says = WRONG[text]
    with pytest.raises(OptionError) as caught:
        parsed(text)
    assert f"schema {text!r}, character {at}: " in caught.value.message
    assert says in caught.value.message


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "a varchar(3)",
        "a interval day to second",
        "a string collate UNICODE",
        "a int -- a comment\n, b int",
        "a int /* one */",
        'a int comment "double"',
        "a int comment 'it\\'s'",
        "a int comment 'a' 'b'",
        "ä int",
        "1a int",
        "a timestamp without time zone",
        "`` int",
        "a map<timestamp without time zone, int>",
        "a array<string collate UNICODE>",
    ],
)
def test_what_only_spark_can_say_is_left_to_it(text: str) -> None:
    """Rare forms are left undecided: the parser neither refuses them nor says what they mean."""
    assert parsed(text) is None
