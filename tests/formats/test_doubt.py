"""A block with a few bad lines is read mostly by the quick reader, with the result of the exact reader, whatever the block contains."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.errors import BadRecord
from penstock.formats import ReadFormat, decoder
from penstock.formats.account import Account
from penstock.formats.format import Dialect
from penstock.formats.json.doubt import Doubt
from tests.support.effort import effort

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.formats.format import Decoder
    from penstock.formats.malformed import Sifted

UTC = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("at", UTC),
        ("day", pa.date32()),
        ("score", pa.float64()),
        ("cost", pa.decimal128(10, 2)),
        ("is", pa.bool_()),
        ("user", pa.struct([("zip", pa.int32()), ("seen", UTC), ("tags", pa.list_(pa.string()))])),
        ("times", pa.list_(UTC)),
    ]
)
VALUES: list[Any] = [
    None, True, 0, -0.0, 7, 1.5, 1e400, 1 << 70, "", "x", "12", "1.5", "NaN", "2026-01-02", "20x6-01-02", "2026-01-02T03:04:05Z",
    "2026-13-01T00:00:00Z", "true", [], ["a"], ["2026-01-02T03:04:05Z", "no"], {}, {"zip": "D"},
    {"zip": 4, "other": 1}, {"seen": "x"}, {"tags": [1]},
]  # fmt: skip
DAMAGE: list[Callable[[random.Random, str], str]] = [
    lambda r, line: line[: r.randrange(len(line))],
    lambda r, line: line[r.randrange(len(line)) :],
    lambda _, line: line + line,
    lambda _, line: line.replace(", ", ",, ", 1),
    lambda _, line: "{" + line + "}",
    lambda _, line: line.replace('"id": ', '"id": 1, "id": ', 1),
    lambda r, line: line.replace(line[r.randrange(len(line))], "\x00", 1),
    lambda _, line: f"  {line}\t",
    lambda _, line: "﻿" + line,
    lambda _, line: line.replace('"name"', '"\\u006eame"'),
    lambda _, line: line.replace('"name"', '"näme"'),
    lambda _, line: line[:-1] + ', "extra": 1}',
    lambda _, line: line[:-1] + ', "\\u0065xtra": null}',
    lambda _, line: line.replace('"score": ', '"score": -NaN, "other": '),
    lambda _, line: line.replace('"id": ', '"id": 1.5, "other": '),
]


def record(chance: random.Random, place: int) -> dict[str, Any]:
    """Return a record that has the columns, each of its type."""
    user = {"zip": place, "seen": "2026-01-01 10:00:00", "tags": ["a", "b"]} if chance.random() < 0.9 else None
    return {
        "id": place, "name": f"name {place}", "at": f"2026-01-01T00:00:{place % 60:02}Z", "day": "2026-01-01", "score": place / 2,
        "cost": place / 4, "is": place % 2 == 0, "user": user, "times": ["2026-01-01T00:00:00Z"] * (place % 3),
    }  # fmt: skip


def block(chance: random.Random, count: int, share: float) -> bytes:
    """Return lines of which a share is damaged, in a few ways."""
    ways = chance.sample(DAMAGE, 3)
    odd = [(chance.choice(SCHEMA.names), chance.choice(VALUES)) for _ in range(2)]
    lines = []
    for place in range(count):
        fields = record(chance, place)
        spoilt = chance.random() < share
        if spoilt and chance.random() < 0.6:
            name, value = chance.choice(odd)
            fields[name] = value
            line = json.dumps(fields)
        else:
            line = json.dumps(fields)
            line = chance.choice(ways)(chance, line) if spoilt else line
        lines.append(line.encode("utf-8", "replace"))
        if chance.random() < share / 10:
            lines.append(chance.choice([b"", b"  ", b"\xff", b"null", b"{}"]))
    return b"\n".join(lines) + chance.choice([b"\n", b""])


def told(sifted: Sifted) -> tuple[Any, ...]:
    """Return all that is reported about a block except the wording: if a line is wrong twice, either fault may be named."""
    return repr(sifted.rows.to_pylist()), sifted.starts.tolist(), sifted.ends.tolist(), len(sifted.reasons)


def sift_alike(quick: Decoder, exact: Decoder, chance: random.Random) -> None:
    """Have both decoders sift one block, the second without the quick way, and compare the results."""
    data = block(chance, chance.choice([40, 200]), chance.choice([0, 0.01, 0.05, 0.3]))
    sifted = quick.sift(data)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Doubt, "most", lambda *_, **__: None)
        expected = exact.sift(data)
    assert told(sifted) == told(expected)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(effort(2, 60)))
def test_most_of_a_block_is_read_as_the_exact_reader_reads_it(seed: int) -> None:
    """Rows, positions of bad records and counts of names without a column are the same as without the quick way, block after block."""
    chance = random.Random(seed)  # noqa: S311 - repeatable
    quick_account, exact_account = Account(), Account()
    fmt = ReadFormat("json", SCHEMA)
    quick, exact = decoder(fmt, quick_account), decoder(fmt, exact_account)
    for _ in range(6):
        sift_alike(quick, exact, chance)
        if not (quick_account.partial or exact_account.partial):
            assert quick_account.unknown == exact_account.unknown


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(effort(1, 30)))
@pytest.mark.parametrize("unknown", ["rescue", "ignore", "fail"])
def test_most_of_a_block_is_rescued_as_all_of_it(seed: int, unknown: str) -> None:
    """The rescued values and their rows are the same as when each line is parsed by itself; so are the refused lines."""
    chance = random.Random(seed)  # noqa: S311 - repeatable
    schema = pa.schema([*SCHEMA, ("rest", pa.string())])
    fmt = ReadFormat("json", schema, rescued="rest", unknown=unknown)
    quick, exact = decoder(fmt, Account()), decoder(fmt, Account())
    for _ in range(5):
        sift_alike(quick, exact, chance)


def test_the_quick_way_is_taken_for_a_few_bad_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one bad line in a hundred (text where a number is expected, or an invalid time) the exact reader gets only these lines."""
    seen: list[int] = []
    original = Doubt.most

    def most(self: Doubt, data: bytes, starts: Any, **options: Any) -> Any:
        answer = original(self, data, starts, **options)
        seen.append(-1 if answer is None else len(answer.doubtful))
        return answer

    monkeypatch.setattr(Doubt, "most", most)
    read = decoder(ReadFormat("json", SCHEMA), Account())
    for spoilt in ({"id": "x"}, {"at": "20x6-01-01"}, {"user": {"zip": "D"}}, {"cost": True}, {"id": 1.5}):
        fields = [record(random.Random(place), place) for place in range(500)]  # noqa: S311 - repeatable
        for place in (100, 200, 300, 400):
            fields[place] |= spoilt
        sifted = read.sift("".join(json.dumps(each) + "\n" for each in fields).encode())
        assert (sifted.rows.num_rows, len(sifted.starts)) == (496, 4)
    assert all(4 <= count <= 5 for count in seen[:4])  # minus zero may also be in doubt


@pytest.mark.parametrize("text", [r"\\", r"a\nb", r"\"", r"\u00e9", r"\ud83d\ude00", r"\ud83d", r"\/"])
@pytest.mark.parametrize(
    "broken", ['{"id": Inf}', "null", '{"id": 1,, "name": ""}', '{"name": "\\q"}', '{"name": "', "[]"]
)
def test_a_string_with_escapes_is_a_row_beside_a_line_that_is_no_json(text: str, broken: str) -> None:
    """A valid line with an escape in it is not set aside because another line is broken: each line is a record of its own."""
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    good = f'{{"name": "{text}", "id": 1}}\n'
    for lines in ([good, f"{broken}\n"], [f"{broken}\n", good, good], [good] * 20 + [f"{broken}\n"]):
        sifted = decoder(ReadFormat("json", schema), Account()).sift("".join(lines).encode())
        assert sifted.rows.column("id").to_pylist() == [1] * (len(lines) - 1)
        assert len(sifted.starts) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(effort(2, 30)))
def test_misfits_are_those_that_the_reader_refuses(seed: int) -> None:
    """Which CSV fields do not fit their column's type depends neither on how they are searched for, nor on earlier blocks."""
    chance = random.Random(seed)  # noqa: S311 - repeatable
    texts = [
        "1",
        "-2",
        "1.5",
        "x",
        "",
        "2026-01-01",
        "2026-01-01T00:00:00Z",
        "2026-02-30",
        "0x1",
        "1e3",
        "12é",
        " 3",
        "2026-01-01 10:00 UTC",
    ]
    kinds = [pa.int64(), pa.float64(), pa.decimal128(8, 2), pa.date32(), UTC]
    schema = pa.schema([(str(place), kind) for place, kind in enumerate(kinds)])
    several, usual = (
        decoder(ReadFormat("csv", schema), Account()),
        ["5", "2.5", "3.25", "2026-03-01", "2026-03-01T00:00:00Z"],
    )
    for _ in range(4):
        rows = [
            [chance.choice(texts) if chance.random() < 0.02 else text for text in usual]
            for _ in range(chance.choice([30, 300]))
        ]
        data = "".join(",".join(row) + "\n" for row in rows).encode()
        sifted = several.sift(data)
        expected, bad, at = [], [], 0
        for line in data.splitlines(keepends=True):
            try:
                expected += decoder(ReadFormat("csv", schema), Account()).decode(line).to_pylist()
            except BadRecord:
                bad.append(at)
            at += len(line)
        assert sifted.rows.to_pylist() == expected
        assert sifted.starts.tolist() == bad


def test_bytes_in_a_column_that_is_not_read_are_judged_alike_beside_any_other_record() -> None:
    """A CSV record with invalid UTF-8 in a column that is not read is a row, even next to one with invalid UTF-8 in a column that is."""
    fmt = ReadFormat(
        "csv", pa.schema([("a", pa.int64()), ("b", pa.string())]), columns=("a", "b", "other"), unknown="ignore"
    )
    alone, beside = b"1,x,\xff\n", b"2,\xff,y\n3,z,w\n4,q\n"
    assert decoder(fmt, Account()).sift(alone).rows.to_pylist() == [{"a": 1, "b": "x"}]
    sifted = decoder(fmt, Account()).sift(alone + beside)
    assert sifted.rows.to_pylist() == [{"a": 1, "b": "x"}, {"a": 3, "b": "z"}]
    assert sifted.starts.tolist() == [len(alone), len(alone + beside) - 4]


@pytest.mark.parametrize("rescued", [None, "rest"])
def test_null_in_quotes_is_null_also_beside_a_value_that_is_none_of_the_type(rescued: str | None) -> None:
    """In a column of numbers, quoted text that stands for null is null and not a misfit, whatever the other lines contain."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), *([(rescued, pa.string())] if rescued else [])])
    fmt = ReadFormat("csv", schema, csv=Dialect(null_value="none"), rescued=rescued)
    data = b'1,x\n"none",y\n"",w\nbad,z\n'
    read = decoder(fmt, Account())
    for _ in range(2):
        sifted = read.sift(data)
        assert sifted.rows.column("a").to_pylist() == [1, None, None] + [None] * bool(rescued)
        assert len(sifted.starts) == (0 if rescued else 1)
        if rescued:
            assert sifted.rows.column("rest").to_pylist() == [None, None, None, '"a":"bad"']
