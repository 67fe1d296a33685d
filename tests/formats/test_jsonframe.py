"""Lines of one form are cut at their quotes, with the result of the exact reader, whatever they contain."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.formats import ReadFormat, decoder
from penstock.formats.account import Account
from penstock.formats.json import exact as jsonexact
from penstock.formats.json.doubt import Doubt
from penstock.formats.json.frame import FrameReader
from penstock.formats.lines import record_starts
from penstock.formats.malformed import MalformedError
from penstock.formats.patterns import TimeForms
from tests.support.effort import effort

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.formats.json.doubt import Most

UTC = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int8()),
        ("name", pa.string()),
        ("at", UTC),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("score", pa.float64()),
        ("is", pa.bool_()),
        ("none", pa.string()),
        ("wide", pa.int32()),
    ]
)
LITERALS = [
    "0", "-0", "00", "01", "-01", "-", "--", "1-", "1-1", "+1", ".5", "5.", "-.5", "0.", "0.0", "-0.0", "-0.5", "1.2.3", "1..2", "1e3",
    "1E-3", "1e400", "0x1", "NaN", "-NaN", "Inf", "Infinity", "-INF", "true", "false", "True", "null", "nul", "127", "128", "-128",
    "-129", "99", "100", "2147483647", "2147483648", "-2147483648", "1999999999", "9223372036854775807", "9223372036854775808",
    "8999999999999999999", "-9223372036854775808", "99999999999999999999", "1.10", "123456789012345678901234567890.5", "[1]", "{}",
    "[]", "1,2", "1\t2", "é",
]  # fmt: skip
TEXTS = [
    "", "x", "é", "日本", "{", "}", "a: b, c", "\\", "2026-01-02", "2026-02-30", "2026-01-02T03:04:05Z", "2026-01-02T03:04:80Z",
    "2026-1-2 3:04", "2026-01-02T03:04:05+01:00", "20x6-01-01", "1767225600", "0", "null",
]  # fmt: skip
DAMAGE: list[Callable[[random.Random, bytes], bytes]] = [
    lambda r, line: line[: r.randrange(len(line))],
    lambda r, line: line[r.randrange(len(line)) :],
    lambda r, line: _spoilt(line, r.randrange(len(line)), bytes([r.randrange(256)])),
    lambda r, line: _spoilt(line, r.randrange(len(line)), b""),
    lambda r, line: _spoilt(line, r.randrange(len(line)), r.choice([b'"', b"\\", b",", b":", b"\t", b" ", b"\xff", b"\0", b"\r", b"{"])),
    lambda r, line: _spoilt(line, r.randrange(len(line) - 8), b"#@!xx%$", 7),
    lambda _, line: line.replace(b'"id"', b'"wide"'),
    lambda _, line: line.replace(b'"id"', b'"ID"'),
    lambda _, line: line.replace(b'"id"', b'"\\u0069d"'),
    lambda _, line: line + line,
    lambda _, line: b"\xef\xbb\xbf" + line,
    lambda _, line: b"  " + line,
    lambda _, line: line[:-1] + b', "extra": 1}',
    lambda _, line: line.replace(b'"score"', b'"score":2,"score"'),
]  # fmt: skip


def _spoilt(line: bytes, at: int, by: bytes, length: int = 1) -> bytes:
    return line[:at] + by + line[at + length :]


def values(chance: random.Random, place: int, share: float) -> dict[str, str]:
    """Return the JSON text of a value for most columns; a share of the values is damaged."""
    usual = {
        "id": str(place),
        "small": str(place % 100),
        "name": json.dumps(f"name {place}"),
        "at": f'"2026-01-01T00:00:{place % 60:02}Z"',
        "local": f'"2026-01-01 00:00:{place % 60:02}"',
        "day": '"2026-01-01"',
        "score": str(place / 4),
        "is": json.dumps(place % 2 == 0),
        "wide": chance.choice(["-5", "2147483", "null"]),
    }
    for name, text in usual.items():
        if chance.random() < share:
            others = [chance.choice(LITERALS), json.dumps(chance.choice(TEXTS), ensure_ascii=chance.random() < 0.3)]
            usual[name] = others[(chance.random() < 0.8) == text.startswith('"')]
    return usual


def block(chance: random.Random, count: int, share: float) -> bytes:
    """Return lines of one form; a share of them is damaged in some way."""
    comma, colon = chance.choice([(", ", ": "), (",", ":"), (" , ", " :\t"), (",\t", " : ")])
    end = chance.choice([b"\n", b"\n", b"\r\n"])
    order = chance.sample([*SCHEMA.names[:8], "wide"], chance.randrange(1, 10))
    lines = []
    for place in range(count):
        texts = values(chance, place, share / 4)
        line = ("{" + comma.join(f'"{name}"{colon}{texts[name]}' for name in order) + "}").encode()
        lines.append(chance.choice(DAMAGE)(chance, line) if len(line) > 8 and chance.random() < share else line)
        if chance.random() < share / 10:
            lines.append(chance.choice([b"", b"  ", b"\xff", b"null", b"{}", b'"', b"\t"]))
    return end.join(lines) + chance.choice([end, b""])


def told(read: Callable[[], Any]) -> Any:
    """Return everything a sifted block reports except the wording: if a line is wrong twice, either fault may be named."""
    sifted = read()
    return repr(sifted.rows.to_pylist()), sifted.starts.tolist(), sifted.ends.tolist(), len(sifted.reasons)


@pytest.mark.parametrize("seed", range(effort(3, 300)))
@pytest.mark.parametrize("unknown", [None, "rescue", "fail"])
def test_lines_of_one_form_are_read_as_the_exact_reader_reads_them(seed: int, unknown: str | None) -> None:
    """Rows, positions of bad records and counts of names without a column equal the other readers', block after block, damaged or not."""
    chance = random.Random(seed)  # noqa: S311 - repeatable
    accounts = Account(), Account()
    fmt = ReadFormat("json", SCHEMA, zone="Europe/Berlin")
    if unknown:
        fmt = replace(fmt, schema=pa.schema([*SCHEMA, ("rest", pa.string())]), rescued="rest", unknown=unknown)
    framed, others = (decoder(fmt, account) for account in accounts)
    for _ in range(6):
        data = block(chance, chance.choice([1, 12, 100]), chance.choice([0, 0.01, 0.05, 0.1]))
        sifted = told(lambda: framed.sift(data))  # noqa: B023 - called at once
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(FrameReader, "most", lambda *_: None)
            patched.setattr(Doubt, "most", lambda *_, **__: None)
            assert sifted == told(lambda: others.sift(data))  # noqa: B023 - called at once
        if not any(account.partial for account in accounts):
            assert accounts[0].unknown == accounts[1].unknown


def most_of(lines: list[bytes], schema: pa.Schema = SCHEMA) -> Most | None:
    """Return what the quick reader makes of these lines."""
    data = b"".join(line + b"\n" for line in lines)
    return FrameReader(schema, TimeForms()).most(data, lambda: record_starts(data, sep=b"\n"))


NUMBERS = pa.schema(
    [(str(kind), kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float64(), pa.bool_())]
)


@pytest.mark.parametrize("name", NUMBERS.names)
def test_a_literal_that_is_no_value_is_in_doubt(name: str) -> None:
    """A number or word that is read has the exact reader's value; a few of them are left in doubt, and none gets a wrong value."""
    schema = pa.schema([NUMBERS.field(name)])
    usual = b"true" if name == "bool" else b"7"
    lines = [b'{"%s": %s}' % (name.encode(), usual)] * 8 * len(LITERALS)
    for place, literal in enumerate(LITERALS):
        lines[8 * place + 7] = b'{"%s": %s}' % (name.encode(), literal.encode())
    most = most_of(lines, schema)
    assert most is not None
    doubtful = set(most.doubtful.tolist())
    read = [line for place, line in enumerate(lines) if place not in doubtful]
    assert {usual, b"null"} <= {line[len(name) + 5 : -1] for line in read}
    assert repr(most.rows.to_pylist()) == repr(jsonexact.exact(b"\n".join(read), schema).to_pylist())


def test_lines_of_many_forms_are_left_alone() -> None:
    """If lines differ in more than their values the reader gives no answer; nor if a key has no column or is repeated."""
    usual = [b'{"id": 1, "name": "x"}'] * 10
    assert most_of(usual) is not None
    for others in (
        [b'{"name": "x", "id": 1}'] * 10,
        [b'{"id": 1, "name": "a\\nb"}'] * 10,
        [b'{"id": 1, "name": null}'] * 10,
    ):
        assert most_of([line for pair in zip(usual, others, strict=True) for line in pair]) is None
    for line in (
        b'{"id": 1, "other": 2}',
        b'{"id": 1, "id": 2}',
        b'{"id": "1"}',
        b'{"name": 1}',
        b'{"id": 1, "name": {"id": 1}}',
        b'{"id": [1]}',
        b"{}",
        b"[]",
        b'{"id": 1,}',
        b'{"id" 1}',
        b'"id": 1',
    ):
        assert most_of([line] * 10) is None


def test_a_few_broken_lines_are_all_that_is_in_doubt() -> None:
    """With one line in a hundred broken (an odd count of quotes, another key, not a number), all other lines are read at once."""
    broken = [
        b'{"id": 1, "na',
        b'{"id": 1,, "name": "x", "at": ""}',
        b'\xff"',
        b'{"id": 0\r, "name": "x", "at": ""}',
        b'"',
        b"[]",
    ]
    lines = [b'{"id": %d, "name": "x%d", "at": "2026-01-01T00:00:00Z"}' % (place, place) for place in range(1000)]
    for place in range(0, 1000, 100):
        lines[place] = broken[place // 100 % len(broken)]
    lines[50] = lines[50].replace(b"00Z", b"80Z")
    most = most_of(lines)
    assert most is not None
    assert most.doubtful.tolist() == sorted({50, *range(0, 1000, 100)})
    assert most.rows.column("id").to_pylist() == [place for place in range(1000) if place not in most.doubtful]


def test_what_must_be_there_is_not_null() -> None:
    """A column that may not be null gets no null, neither from a missing key nor from the word `null`."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string(), nullable=False)])
    for lines in ([b'{"id": 1}'] * 5, [b'{"id": 1, "name": "x"}'] * 9 + [b'{"id": null, "name": "x"}']):
        assert most_of(lines, schema) is None
        with pytest.raises(MalformedError):
            jsonexact.exact(b"\n".join(lines), schema)


def test_no_pandas_is_imported_to_read_plain_lines() -> None:
    """Some Arrow calls import pandas wherever it is installed: a third of a second for each process, and more memory than all the rest."""
    pytest.importorskip("pandas")
    program = """
import sys
import pyarrow as pa
from penstock.formats import ReadFormat, decoder
import penstock.source.read
schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.bool_()), ("d", pa.float64())])
lines = b"".join(b'{"a":%d,"b":"\\xc3\\xa4","c":true,"d":null}\\n' % n for n in range(1000))
print(decoder(ReadFormat("json", schema)).decode(lines).num_rows, "pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1000", "False"]
