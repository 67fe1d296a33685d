r"""Escapes in flat records: a scan of the bytes tells whether polars, which turns half a surrogate pair into NUL, reads them right."""

from __future__ import annotations

import json
import random
import re
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.formats import ReadFormat, decoder
from penstock.formats.account import Account
from penstock.formats.charsets import is_utf8
from penstock.formats.json import dense
from penstock.formats.json import exact as jsonexact
from penstock.formats.json.dense import DenseReader, has_half, is_text
from penstock.formats.json.frame import FrameReader
from penstock.formats.lines import record_starts
from penstock.formats.patterns import TimeForms
from tests.formats.batches import same_rows
from tests.support.effort import effort

if TYPE_CHECKING:
    from pathlib import Path

TEXT = pa.schema([("s", pa.string())])
WORDS = [
    "München", "東京", "Санкт-Петербург", "हिन्दी", "👍", "𝄞", "\ud7ff", "\ue000", "한",
    "\x01", "tab\t", '"', "\\", "\\ud83d", "/", "\x7f",
]  # fmt: skip
HALF = re.compile("[\ud800-\udfff]")
# Pieces of JSON strings whose meaning depends on the piece next to them.
PIECES = [
    r"\ud83d", r"\uDE00", r"\udE00", r"\uD83D", r"\ud83d\ude00", r"\uDBFF\uDFFF", r"\uD55C", r"\ud7ff", r"\\", r"\\\\", r"\"", r"\n",
    r"\u005c", r"\u0041", "ud83d", "ude00", "u", "d83d", "x", "é", "👍",
]  # fmt: skip


def lines_of(texts: list[str]) -> bytes:
    """Return records whose strings contain these texts."""
    return "".join(f'{{"s":"x{text}"}}\n' for text in texts).encode()


@settings(max_examples=effort(200, 20_000))
@given(texts=st.lists(st.lists(st.sampled_from(PIECES), max_size=6).map("".join), min_size=1, max_size=4))
@example(texts=[r"\\ud83d\ude00"])
@example(texts=[r"\ud83d\\ude00"])
@example(texts=[r"\ud83d\ude00\ude00\ud83d"])
@example(texts=[r"\\\ud83d\ude00"])
@example(texts=[r"\ude00\ud83d", r"\ud83d\ude00"])
def test_escapes_are_read_as_what_they_stand_for_or_by_others(texts: list[str]) -> None:
    """A block with an unpaired surrogate is left to another reader; any other block is read as Python's parser reads it."""
    block = lines_of(texts)
    expected = [json.loads(line)["s"] for line in block.splitlines()]
    found = DenseReader(TEXT, TimeForms()).read(block)
    assert has_half(block) == any(map(HALF.search, expected))
    if any(map(HALF.search, expected)):
        assert found is None
    else:
        assert found is not None
        assert found.column("s").to_pylist() == expected
        assert same_rows(found, jsonexact.exact(block, TEXT))


@pytest.mark.parametrize("shift", range(14))
def test_halves_on_both_sides_of_where_a_look_begins_anew(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes are scanned in chunks: a surrogate pair with a chunk border in it is still a pair, and an unpaired half is still unpaired."""
    monkeypatch.setattr(dense, "_SCAN_BYTES", 64)
    before = "x" * (64 - len('{"s":"x') - shift)
    assert DenseReader(TEXT, TimeForms()).read(lines_of([before + r"\ud83d\ude00"])) is not None
    for half in (r"\ud83d", r"\ude00"):
        assert DenseReader(TEXT, TimeForms()).read(lines_of([before + half + "x" * 100])) is None


def test_whole_characters_in_escapes_are_known_by_a_look_at_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """If everything is escaped, the escapes are not examined one by one, which took longer than parsing the block."""
    monkeypatch.setattr(dense, "unpaired", lambda _: pytest.fail("each escape was looked at"))
    chance = random.Random(7)  # noqa: S311 - repeatable
    words = [word for word in WORDS if word != "\\ud83d"]
    texts = [" ".join(chance.choices(words, k=8)) for _ in range(500)]
    block = "".join(json.dumps({"s": f"x{text}"}) + "\n" for text in texts).encode()
    found = DenseReader(TEXT, TimeForms()).read(block)
    assert found is not None
    assert found.column("s").to_pylist() == [f"x{text}" for text in texts]


def test_records_that_duckdb_has_written_are_what_it_reads(tmp_path: Path) -> None:
    """Controls, quotes, backslashes and characters of any size read the same from DuckDB's writer and from Python's, all escaped."""
    chance = random.Random(8)  # noqa: S311 - repeatable
    rows = [(place, " ".join(chance.choices(WORDS, k=chance.randrange(1, 9)))) for place in range(3000)]
    schema = pa.schema([("id", pa.int64()), ("note", pa.string())])
    table = pa.table([*map(list, zip(*rows, strict=True))], schema=schema)
    path = tmp_path / "notes.json"
    with duckdb.connect() as connection:
        connection.register("notes", table)
        connection.execute(f"COPY notes TO '{path}' (FORMAT json)")
        escaped = tmp_path / "escaped.json"
        escaped.write_text("".join(json.dumps({"id": place, "note": note}) + "\n" for place, note in rows))
        for made in (path, escaped):
            account = Account()
            found = decoder(ReadFormat("json", schema), account).decode(made.read_bytes())
            seen = connection.execute(
                f"SELECT id, note FROM read_json('{made}', columns={{id: 'BIGINT', note: 'VARCHAR'}})"
            )
            assert [*zip(*(column.to_pylist() for column in found.columns), strict=True)] == seen.fetchall() == rows
            assert not account.unknown


@settings(max_examples=effort(200, 20_000))
@given(data=st.lists(st.one_of(st.binary(max_size=4), st.text(max_size=4).map(str.encode)), max_size=8).map(b"".join))
@example(data=b"\xed\xa0\x80")
@example(data=b"\xc0\x80")
@example(data=b"\xf4\x90\x80\x80")
@example(data=b"x" * 200 + b"\xe2\x82")
def test_text_is_what_python_can_decode(data: bytes) -> None:
    """polars finds invalid UTF-8 anywhere as Arrow and Python do: overlong, unpaired, too large, truncated."""
    try:
        right = bool(data.decode() is not None)
    except UnicodeDecodeError:
        right = False
    assert is_text(data) == is_utf8(data) == right


@settings(max_examples=effort(100, 10_000))
@given(
    odd=st.lists(
        st.tuples(st.integers(0, 39), st.sampled_from([*map(chr, range(32)), "\x7f", "\x85", "\u2028", "\\n"])),
        max_size=3,
    ),
    blank=st.lists(st.integers(0, 39), max_size=3),
    end=st.sampled_from(["\n", "\r\n"]),
    is_ended=st.booleans(),
)
@example(odd=[(39, "\t")], blank=[], end="\n", is_ended=False)
@example(odd=[(3, "\t")], blank=[5], end="\n", is_ended=False)
def test_a_control_character_is_found_among_line_feeds(
    odd: list[tuple[int, str]], blank: list[int], end: str, *, is_ended: bool
) -> None:
    """Comparing the counts of control characters and lines misses none: with blank lines, other or missing line ends, and any cuts."""
    lines = [f'{{"s": "x{place}"}}' for place in range(40)]
    for place, text in odd:
        lines[place] = lines[place].replace("x", f"x{text}")
    for place in blank:
        lines[place] = ""
    data = (end.join(lines) + end * is_ended).replace("\r\n", "\n\n").encode()
    starts = record_starts(data, sep=b"\n")
    starts = starts[[data[start : start + 1] not in {b"\n", b""} for start in starts.tolist()]]
    most = FrameReader(TEXT, TimeForms()).most(data, lambda: starts)
    assert most is not None
    ends = [*starts[1:].tolist(), len(data)]
    doubtful = set(most.doubtful.tolist())
    read = [
        data[start:stop]
        for place, (start, stop) in enumerate(zip(starts.tolist(), ends, strict=True))
        if place not in doubtful
    ]
    assert not re.search(rb"[\x00-\x09\x0b-\x1f\\]", b"".join(read))
    assert most.rows.column("s").to_pylist() == [json.loads(line)["s"] for line in read]


@pytest.mark.parametrize("columns", [1, 49, 256])
def test_a_record_may_have_many_columns(columns: int) -> None:
    """Each column is what the exact reader gives, in one piece, however many there are, and in how many pieces polars has them."""
    kinds = {"s": pa.string(), "n": pa.int64(), "f": pa.float64(), "b": pa.bool_()}
    schema = pa.schema([(f"c{i}", list(kinds.values())[i % len(kinds)]) for i in range(columns)])
    made = ("a text of more than twelve bytes é", 7, 0.5, True)
    line = json.dumps({f"c{i}": made[i % len(kinds)] for i in range(columns)}, ensure_ascii=False).encode() + b"\n"
    block = line * max(100, (1 << 20) // len(line))
    found = DenseReader(schema, TimeForms()).read(block)
    assert DenseReader.takes(schema)
    assert found is not None
    assert found.equals(jsonexact.exact(block, schema))
