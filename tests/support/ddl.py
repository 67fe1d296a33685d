"""Random schemas as DDL, valid and invalid, as people and attackers write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

SIMPLE = [
    *(
        "boolean",
        "tinyint",
        "byte",
        "smallint",
        "short",
        "int",
        "integer",
        "bigint",
        "long",
        "float",
        "real",
        "double",
        "date",
    ),
    *("timestamp", "timestamp_ltz", "timestamp_ntz", "string", "binary", "void", "decimal", "dec", "numeric"),
]
DECIMALS = ["decimal(10)", "decimal(10,2)", "decimal( 38 , 0 )", "dec(5,5)", "NUMERIC(1,0)", "decimal (3, 1)"]
DEEPEST = 3
# Types that are exotic, belong to other databases, or do not exist; and words of SQL.
ODD = [
    *(
        "char(3)",
        "varchar(10)",
        "character(2)",
        "interval day to second",
        "interval year",
        "time",
        "time(3)",
        "variant",
        "char",
    ),
    *(
        "string collate UTF8_BINARY",
        "text",
        "number",
        "datetime",
        "bigin",
        "uint8",
        "int8",
        "list<int>",
        "null",
        "object",
        "json",
    ),
    *(
        "decimal(10,2",
        "decimal()",
        "decimal(a)",
        "decimal(39,0)",
        "decimal(5,7)",
        "decimal(-1)",
        "int(3)",
        "string(5)",
        "map<int>",
    ),
    *(
        "array",
        "array<>",
        "map",
        "struct",
        "array<int,int>",
        "timestamp without time zone",
        "double precision",
        "int unsigned",
    ),
    *(
        "geometry(4326)",
        "float(2)",
        "decimal(38,38)",
        "decimal(0,0)",
        "decimal(10,0,0)",
        "decimal(999999999999)",
        "int not",
        "nchar",
    ),
]
NAMES = [
    *(
        "id",
        "name",
        "a",
        "b1",
        "_x",
        "A_B",
        "`a b`",
        "`a``b`",
        "`select`",
        "ts",
        "`é`",
        "`-`",
        "`a.b`",
        "`1`",
        "`it's`",
        "`,`",
    ),
    *(
        "select",
        "from",
        "not",
        "null",
        "comment",
        "struct",
        "array",
        "map",
        "int",
        "string",
        "table",
        "timestamp",
        "interval",
        "end",
    ),
    *(
        "order",
        "group",
        "join",
        "left",
        "where",
        "default",
        "and",
        "or",
        "case",
        "user",
        "date",
        "time",
        "values",
        "key",
        "value",
    ),
]
ODD_NAMES = [
    "1a",
    "1e5",
    "12",
    "a.b",
    "a-b",
    "é",
    "``",
    "`a",
    "$x",
    '"q"',
    "'s'",
    "1d",
    "2L",
    "a:b",
    "",
    "@",
    "ä_1",
    "a b",
]
COMMENTS = [
    "'x'",
    "''",
    "'it is'",
    "'a, b'",
    "'ü'",
    '"dq"',
    "'it\\\\'s'",
    "'a' 'b'",
    "x",
    "r'raw'",
    "'a`b'",
    "'line\nbreak'",
]
NOISE = [
    ",",
    "<",
    ">",
    "(",
    ")",
    ":",
    " ",
    "`",
    "'",
    "--x\n",
    "/* c */",
    "not null",
    "comment 'c'",
    ";",
    ".",
    "collate",
    "x",
    "1",
]


def schema(random: Random) -> str:
    """Return a schema: most are valid, some of them in an odd way, some are invalid, some are valid ones with an extra letter or word."""
    text = _columns(random, depth=0, odd=random.choice((0, 0, 0, 0.15)))
    if random.random() < 0.05:
        text = f"struct<{text}>"
    for _ in range(random.choice((0, 0, 0, 1, 1, 2))):
        text = _hurt(random, text)
    return text


def _columns(random: Random, *, depth: int, odd: float) -> str:
    return _pick(random, (", ", ",", " ,\n ")).join(
        _column(random, depth=depth, odd=odd) for _ in range(random.choice((1, 1, 2, 3)))
    )


def _column(random: Random, *, depth: int, odd: float) -> str:
    name = random.choice(ODD_NAMES if random.random() < odd else NAMES)
    between = _pick(random, (" ", " ", "  ", "\t", ": ", ":"))
    text = f"{name}{between}{_type(random, depth=depth, odd=odd)}"
    if random.random() < 0.15:
        text += _pick(random, (" NOT NULL", " not  null"))
    if random.random() < 0.15:
        text += f" COMMENT {random.choice(COMMENTS if random.random() < max(odd, 0.2) else COMMENTS[:4])}"
    return text


def _type(random: Random, *, depth: int, odd: float) -> str:
    if random.random() < odd:
        return random.choice(ODD)
    if depth < DEEPEST and random.random() < 1 / 3:
        return _nested(random, depth=depth + 1, odd=odd)
    word = random.choice((*SIMPLE, *DECIMALS))
    return word.upper() if random.random() < 1 / 4 else word


def _nested(random: Random, *, depth: int, odd: float) -> str:
    def inner() -> str:
        return _type(random, depth=depth, odd=odd)

    kind = random.choice(("array", "ARRAY ", "map", "struct", "struct", "nothing"))
    if kind == "map":
        return f"map<{inner()},{inner()}>"
    if kind == "struct":
        return f"struct<{_columns(random, depth=depth, odd=odd)}>"
    if kind == "nothing":
        return random.choice(("struct<>", "struct< >"))
    return f"{kind}<{inner()}>"


def _hurt(random: Random, text: str) -> str:
    """Return the text with something removed, inserted or exchanged."""
    at = random.randrange(len(text) + 1)
    how = random.randrange(4)
    if how == 0:
        return text[:at] + text[at + 1 :]
    if how == 1:
        return text[:at] + random.choice(NOISE) + text[at:]
    if how == 2:
        return text[:at]
    words = text.split(" ")
    words[random.randrange(len(words))] = random.choice((*NOISE, *ODD, *SIMPLE))
    return " ".join(words)


def _pick(random: Random, choices: tuple[str, ...]) -> str:
    return random.choice(choices)
