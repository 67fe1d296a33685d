"""Byte ranges and the records that begin in them, compared with a reader that goes byte by byte."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadRecord, FileChanged
from penstock.formats import lines
from penstock.formats.lines import BOM, blocks, not_blank, record_at, record_starts, stream_blocks, value_ends
from penstock.formats.separators import places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

SEPARATORS = [None, b"\n", b"\r\n", b"\r", b"\n\n", b"||", b"aba", "\N{EURO SIGN}".encode()]


@pytest.fixture(autouse=True)
def small_peeks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the search for the first record go through many windows also in short files."""
    monkeypatch.setattr(lines, "_PEEK_BYTES", 2)


def walked(data: bytes, sep: bytes | None) -> list[tuple[int, bytes]]:
    """Return (offset, bytes with their separator) of each record, found byte by byte from the start."""
    begin = at = len(BOM) if data.startswith(BOM) else 0
    found = []
    while at < len(data):
        if sep is None:
            width = 2 if data.startswith(b"\r\n", at) else int(data[at : at + 1] in {b"\r", b"\n"})
        else:
            width = len(sep) if data.startswith(sep, at) else 0
        at += width or 1
        if width:
            found.append((begin, data[begin:at]))
            begin = at
    return [*found, (begin, data[begin:])] if begin < len(data) else found


def reader(data: bytes) -> Callable[[int, int], bytes]:
    """Return `data` as a file to read from; no read may go past its end."""

    def read(offset: int, length: int) -> bytes:
        assert offset >= 0
        assert offset + length <= len(data)
        return data[offset : offset + length]

    return read


def check(data: bytes, sep: bytes | None, cuts: Iterable[int], block_bytes: int) -> None:
    """Read `data` in the ranges between `cuts`: each record is read once, whole, in the range where it begins."""
    expected = walked(data, sep)
    found = []
    bounds = [0, *sorted(cuts), len(data)]
    for start, end in itertools.pairwise(bounds):
        at = None
        for offset, block in blocks(reader(data), len(data), start, end, sep=sep, block_bytes=block_bytes):
            assert block
            assert at in {None, offset}
            at = offset + len(block)
            own = [offset + int(begin) for begin in record_starts(block, sep=sep)]
            first = len(BOM) if data.startswith(BOM) else 0
            assert all(start <= (begin if begin != first else 0) < end for begin in own)
            found += [(a, data[a:b]) for a, b in itertools.pairwise([*own, at])]
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alphabet", "separators", "length_max"),
    [(b"a\r\n", [None, b"\n", b"\r\n", b"\r", b"\n\n"], 5), (b"ab", [b"a", b"aa", b"ab", b"aba"], 7)],
)
def test_every_cut_of_every_short_file(alphabet: bytes, separators: list[bytes | None], length_max: int) -> None:
    """No single cut, and no cut at every byte, loses, doubles or splits a record of any short file."""
    for length in range(length_max + 1):
        for codes in itertools.product(alphabet, repeat=length):
            for sep, block_bytes in itertools.product(separators, (1, 3)):
                for cut in range(length + 1):
                    check(bytes(codes), sep, [cut], block_bytes)
                check(bytes(codes), sep, range(1, length), block_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("sep", SEPARATORS)
@given(data=st.data())
def test_any_cuts_of_any_file(sep: bytes | None, data: st.DataObject) -> None:
    """Any number of cuts at any bytes of any mix of separators, parts of separators, text, NUL and a BOM loses nothing."""
    parts = [b"a", b"b|", b"\0", b"\xc3\xa4\xe2\x82\xac", b"\r", b"\n", b"\r\n", b"|", b"\xff", sep or b"\n"]
    middle = b"".join(data.draw(st.lists(st.sampled_from(parts), max_size=30)))
    content = data.draw(st.sampled_from([b"", BOM])) + middle
    cuts = data.draw(st.lists(st.integers(0, len(content)), max_size=6))
    check(content, sep, cuts, data.draw(st.integers(1, 12)))


CASES = {
    "empty": b"",
    "only separators": b"\n\n\r\n\r\r\n",
    "no final newline": b"one\ntwo",
    "bom": BOM + b"one\ntwo\n",
    "only a bom": BOM,
    "bom and a newline": BOM + b"\n",
    "utf-8": "\N{EURO SIGN}\n\N{GRINNING FACE}\r\n\xe4".encode(),
    "nul": b"a\0b\n\0\n",
    "lone cr at the end": b"a\rb\r",
    "a record longer than ranges": b"a\n" + b"x" * 50 + b"\nb\n",
}


@pytest.mark.parametrize("content", CASES.values(), ids=CASES)
@pytest.mark.parametrize("sep", [None, b"\n", b"\r\n"])
def test_every_cut_of_odd_files(content: bytes, sep: bytes | None) -> None:
    """Files that range readers typically get wrong are read right with every cut and every width of ranges."""
    for cut in range(len(content) + 1):
        check(content, sep, [cut], 4)
    for width in range(1, 8):
        check(content, sep, range(width, len(content), width), 3)


@pytest.mark.slow
@pytest.mark.parametrize("sep", SEPARATORS)
@given(data=st.data())
def test_streams_give_the_same_blocks(sep: bytes | None, data: st.DataObject) -> None:
    """A stream in pieces of any size gives the records of the file, whole, at the same offsets."""
    middle = data.draw(st.binary(max_size=40)).replace(b"\1", sep or b"\r").replace(b"\0", b"\n")
    content = data.draw(st.sampled_from([b"", BOM])) + middle
    width = data.draw(st.integers(1, 9))
    pieces = [content[at : at + width] for at in range(0, len(content), width)]
    starts = {offset for offset, _ in walked(content, sep)}
    found = list(stream_blocks(pieces, sep=sep, block_bytes=data.draw(st.integers(1, 9))))
    assert b"".join(block for _, block in found) == content.removeprefix(BOM)
    assert {offset for offset, _ in found} <= starts


def test_blocks_have_about_the_size_asked_for() -> None:
    """A block is longer than asked for by at most one record, and only the last block is shorter."""
    content = b"x" * 99 + b"\n"
    sizes = [len(block) for _, block in blocks(reader(content * 100), 10_000, 0, 10_000, sep=None, block_bytes=1_000)]
    assert sizes == [1_000] * 10


def test_a_record_longer_than_a_block_makes_a_longer_block() -> None:
    """A block grows until it holds its first record."""
    content = b"a\n" + b"x" * 5_000 + b"\nb\n"
    found = list(blocks(reader(content), len(content), 0, len(content), sep=None, block_bytes=10))
    assert [offset for offset, block in found if b"x" * 5_000 + b"\n" in block] == [2]


@pytest.mark.parametrize("sep", [None, b"\n"])
@pytest.mark.parametrize("end", [b"\nb\n", b""])
def test_a_record_above_the_limit_is_refused(sep: bytes | None, end: bytes) -> None:
    """A record longer than the limit is an error that names its offset, in a range and in a stream."""
    content = b"a\n" + b"x" * 5_000 + end
    size = len(content)
    with pytest.raises(BadRecord, match="more than 1000 B") as caught:
        list(blocks(reader(content), size, 0, size, sep=sep, block_bytes=10, record_bytes_max=1_000))
    assert caught.value.offset == 2
    pieces = [content[at : at + 100] for at in range(0, len(content), 100)]
    with pytest.raises(BadRecord, match="1000 B") as caught:
        list(stream_blocks(pieces, sep=sep, block_bytes=10, record_bytes_max=1_000))
    assert caught.value.offset == 2


def test_a_range_within_a_record_reads_no_further() -> None:
    """A range in which no record begins reads its own bytes, not on to the end of the record."""
    content, read_to = b"x" * 10_000, []

    def read(offset: int, length: int) -> bytes:
        read_to.append(offset + length)
        return content[offset : offset + length]

    assert not list(blocks(read, len(content), 1_000, 2_000, sep=None))
    assert max(read_to) < 2_100 + lines.BLOCK_BYTES // 1_000


@pytest.mark.parametrize(("start", "end"), [(0, 100), (50, 100), (3, 60)])
def test_a_file_that_shrank_is_an_error(start: int, end: int) -> None:
    """A file that ends before its planned size is an error, whichever range meets the end, and never a short result."""
    content = b"a\nb\n" * 10
    with pytest.raises(FileChanged, match="the file has shrunk"):
        list(blocks(lambda offset, length: content[offset : offset + length], 100, start, end, sep=None))


def test_nothing_after_the_planned_size_is_read() -> None:
    """A file that grew after it was planned is read only up to its planned size."""
    content = b"a\nb\nc\nd"
    found = list(blocks(reader(content[:5]), 5, 0, 5, sep=None))
    assert found == [(0, b"a\nb\nc")]


def test_record_at_end_and_limit() -> None:
    """No record begins at the end of a file, at the limit, or after a separator that ends the file."""
    content = b"a\nbc\n"
    assert record_at(reader(content), 5, 1, 5, sep=None) == 2
    assert record_at(reader(content), 5, 1, 2, sep=None) is None
    assert record_at(reader(content), 5, 3, 5, sep=None) is None
    assert record_at(reader(content), 5, 5, 5, sep=None) is None


@pytest.mark.slow
def test_real_logs_in_many_ranges(loghub: Path) -> None:
    """Every line of real log files is read once and in order, for ranges of odd widths and with any newline rule."""
    for path in sorted(loghub.glob("*.log")):
        content = path.read_bytes()[:60_000]
        for sep, width in itertools.product([None, b"\n", b"\r\n"], [997, 7_919]):
            check(content, sep, range(width, len(content), width), 4_096)


UNITS = {"utf-16-le": "<u2", "utf-16-be": ">u2", "utf-32-le": "<u4", "utf-32-be": ">u4"}
# Characters that contain a separator's bytes across their boundary, in one byte order or the other.
MISLEADING = "a\r\n|\u0a0d\u0d0a\u0a00\u0d00\u7c00\u007c\u0100\u0a31\u010a"


def wide_records(text: str, sep: str | None, codec: str) -> list[tuple[int, bytes, bytes]]:
    """Return (offset, bytes with their separator, bytes without) of each record of a text after its byte order mark."""
    ends = "\r\n|\r|\n" if sep is None else re.escape(sep)
    found, at, begin = [], 0, len("\ufeff".encode(codec))
    bounds = [(match.start(), match.end()) for match in re.finditer(ends, text)]
    for end, behind in [
        *bounds,
        *([(len(text), len(text))] if text and (not bounds or bounds[-1][1] < len(text)) else []),
    ]:
        whole = text[at:behind].encode(codec)
        found.append((begin, whole, text[at:end].encode(codec)))
        at, begin = behind, begin + len(whole)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("codec", UNITS)
@pytest.mark.parametrize("sep", [None, "\n", "|", "\r\n", "||", "|\n|", "\u0a00", "\N{GRINNING FACE}"])
@given(data=st.data())
def test_any_cuts_of_text_in_wide_code_units(codec: str, sep: str | None, data: st.DataObject) -> None:
    """UTF-16 and UTF-32 in ranges cut at any byte: each record once, even if its separator's bytes also occur across characters."""
    text = "".join(data.draw(st.lists(st.sampled_from([*MISLEADING, sep or "\n"]), max_size=20)))
    mark, wide = "\ufeff".encode(codec), sep.encode(codec) if sep else None
    content = mark + text.encode(codec)
    expected = wide_records(text, sep, codec)
    cuts = data.draw(st.lists(st.integers(0, len(content)), max_size=5))
    block_bytes, found = data.draw(st.integers(1, 9)), []
    how: dict[str, Any] = {"sep": wide, "unit": UNITS[codec]}
    for start, end in itertools.pairwise([0, *sorted(cuts), len(content)]):
        for offset, block in blocks(
            reader(content), len(content), start, end, bom=mark, block_bytes=block_bytes, **how
        ):
            starts = record_starts(block, **how)
            for begin, behind, stop in zip(
                starts, [*starts[1:], len(block)], value_ends(block, starts, **how), strict=True
            ):
                found.append((offset + int(begin), block[begin:behind], block[begin:stop]))
                assert start <= (offset + begin if offset + begin != len(mark) else 0) < end
    assert found == expected
    pieces = [content[at : at + block_bytes] for at in range(0, len(content), block_bytes)]
    streamed = list(stream_blocks(pieces, bom=mark, block_bytes=block_bytes, **how))
    assert b"".join(block for _, block in streamed) == content.removeprefix(mark)
    assert {offset for offset, _ in streamed} <= {begin for begin, _, _ in expected}


@pytest.mark.parametrize("sep", [None, b"\n\0"])
def test_a_file_that_ends_within_a_code_unit(sep: bytes | None) -> None:
    """An incomplete code unit at the end of a file is passed on for the decoder to refuse, in any ranges."""
    for content in (b"a", b"a\0\n\0b", b"\n\0a", b"a\0\n", b"a\0b\0c", b"\r\0\n"):
        for cut in range(len(content) + 1):
            ranges = [(0, cut), (cut, len(content))]
            found = [
                list(blocks(reader(content), len(content), *each, sep=sep, unit="<u2", bom=b"")) for each in ranges
            ]
            assert b"".join(block for some in found for _, block in some) == content
            for _, block in (block for some in found for block in some):
                starts = record_starts(block, sep=sep, unit="<u2")
                assert value_ends(block, starts, sep=sep, unit="<u2")[-1] == len(block) or block.endswith(
                    (b"\n\0", b"\r\0")
                )


@given(
    records=st.lists(
        st.one_of(
            st.text("a{ \t\r", max_size=4),
            st.builds(lambda white, more: " " * white + more, st.integers(14, 40), st.sampled_from(["", "a", "\r"])),
        ),
        max_size=30,
    ),
    ended=st.booleans(),
)
def test_records_with_nothing_but_white_space_are_left_out(records: list[str], *, ended: bool) -> None:
    """With or without known ends, a record stays if it contains anything else, however much white space comes first."""
    block = "\n".join(records).encode() + b"\n" * ended
    starts = record_starts(block, sep=b"\n")
    expected = [int(start) for start in starts if block[start:].partition(b"\n")[0].strip()]
    ends = value_ends(block, starts, sep=b"\n")
    assert not_blank(block, starts, b" \t\r\n").tolist() == expected
    assert not_blank(block, starts, b" \t\r", ends).tolist() == expected


@given(
    data=st.binary(max_size=200).map(lambda data: data.translate(bytes(b"\n|a\0" * 64))), sep=st.sampled_from(b"\n|\0")
)
def test_places_of_a_byte(data: bytes, sep: int) -> None:
    """A byte is found wherever it is, however near the next one is."""
    found = [place for place, code in enumerate(data) if code == sep]
    assert places(data, bytes([sep])).tolist() == found
    sparse = b"x" * 9 + b"".join(bytes([code]) + b"x" * 9 for code in data)
    assert places(sparse, bytes([sep])).tolist() == [10 * place + 9 for place in found]


def test_to_look_for_filled_records_takes_no_step_for_each_byte_of_white_space() -> None:
    """A megabyte of white space before a record costs no more steps than a little: the whole block is scanned at once."""
    block = b"a\n" + b" " * (1 << 20) + b"b\n" + b" " * (1 << 20) + b"\n"
    starts = record_starts(block, sep=b"\n")
    assert not_blank(block, starts, b" \t\r\n").tolist() == starts[:2].tolist()
    assert not_blank(block, starts[:0], b" ", np.zeros(0, np.int64)).tolist() == []
