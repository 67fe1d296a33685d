"""Encodings: what our table says about them is checked against all of Python's own codecs, byte by byte."""

from __future__ import annotations

import codecs
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadFile, OptionError
from penstock.formats.charsets import UTF_8_BOM, by_mark, charset, encodable, is_utf8, searchable, to_utf8
from penstock.options import SOURCE, parse
from tests.soak.texts import alphabet, encodings
from tests.support.effort import effort

ASCII = [chr(code) for code in range(128)]
SEVERAL_BYTES = [
    *(
        "shift_jis",
        "shift_jis_2004",
        "shift_jisx0213",
        "cp932",
        "big5",
        "big5hkscs",
        "cp950",
        "gbk",
        "gb18030",
        "gb2312",
    ),
    *("cp949", "johab", "euc_kr", "euc_jp", "euc_jis_2004", "euc_jisx0213"),
]
WIDE = ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
STATES = ["utf-7", "hz", *(name for name in encodings() if name.startswith("iso2022"))]
ONE_BYTE = sorted({*encodings()} - {*SEVERAL_BYTES, *WIDE, *STATES, "utf-8", "utf-8-sig", "charmap"})
SAMPLE = effort(150, 400)


def fed(codec: str, data: bytes) -> str | None:
    """Return the text a decoder makes of these first bytes, "" if it needs more, None if it refuses them."""
    try:
        return codecs.getincrementaldecoder(codec)().decode(data)
    except UnicodeError:
        return None


def begun_characters(codec: str) -> list[bytes]:
    """Return beginnings of characters, of one to three bytes: all of one and two, and some of three."""
    begun = [bytes([lead]) for lead in range(256) if fed(codec, bytes([lead])) == ""]
    more = [prefix + bytes([code]) for prefix in begun for code in range(256)]
    begun += (second := [data for data in more if fed(codec, data) == ""])
    more = [prefix + bytes([code]) for prefix in second[:: len(second) // SAMPLE + 1] for code in range(256)]
    third = [data for data in more if fed(codec, data) == ""]
    return begun + third[:: len(third) // SAMPLE + 1]


@pytest.mark.slow
@pytest.mark.parametrize("codec", SEVERAL_BYTES)
def test_ascii_that_is_a_later_byte_or_spelled_twice_is_not_searched(codec: str) -> None:
    """For every ASCII character the table agrees with the decoder: never a later byte, no second spelling, or unfit."""
    unfit = set()
    for data in (prefix + bytes([code]) for prefix in begun_characters(codec) for code in range(256)):
        text = fed(codec, data)
        if text:
            unfit |= {chr(code) for code in data[1:] if code < 128 and not text.endswith(chr(code))}
            unfit |= {text} & {*ASCII}
    unfit |= {c for c in ASCII if c.encode(codec, "replace") != c.encode() or fed(codec, c.encode()) != c}
    assert {c for c in ASCII if not searchable(codec, c, plain=True)} >= unfit
    assert {c for c in ASCII if searchable(codec, c)} == {c for c in ASCII if searchable(codec, c, plain=True)}
    assert not searchable(codec, "\N{IDEOGRAPHIC COMMA}")
    needless = {c for c in ASCII if not searchable(codec, c)} - unfit
    assert needless <= {*"~{|}`"}, "few are given up for nothing"


@pytest.mark.slow
@pytest.mark.parametrize("codec", SEVERAL_BYTES)
def test_what_is_searched_is_not_swallowed_by_a_character_that_was_cut(codec: str) -> None:
    """After any incomplete character the decoder still sees each searchable character, also as the last one of a block."""
    fit = [c for c in ASCII if searchable(codec, c)]
    assert {"\n", "\r", ",", '"'} <= {*fit}
    for prefix in begun_characters(codec):
        text = to_utf8(b"".join(prefix + c.encode() for c in fit), codec, "replace").decode()
        assert [c for c in text if c in fit] == fit or set(prefix) & set(range(128)), prefix
        for c in fit:
            assert to_utf8(prefix + c.encode(), codec, "replace").decode().endswith(c)


@pytest.mark.parametrize("codec", ONE_BYTE)
def test_one_byte_for_each_character_that_is_searched(codec: str) -> None:
    """In single-byte encodings exactly the characters that one byte alone encodes can be searched for."""
    table = [fed(codec, bytes([code])) for code in range(256)]
    for c in {*filter(None, table)} | {*ASCII, "\N{EURO SIGN}", "\ufffe"}:
        alone = table.count(c) == 1
        assert searchable(codec, c) == alone
        assert searchable(codec, c, plain=True) == (alone and ord(c) < 256 and table[ord(c)] == c)


@pytest.mark.parametrize("codec", STATES)
def test_encodings_with_states_are_not_searched(codec: str) -> None:
    """In a stateful encoding the meaning of a byte depends on all bytes before it."""
    assert not any(searchable(codec, c) for c in ASCII)


@pytest.mark.parametrize("codec", WIDE)
def test_wide_encodings_are_searched_unit_by_unit(codec: str) -> None:
    """Any character can be searched for in whole code units, and the bytes of a unit mean what the unit says."""
    how = charset(codec, "\ufeffa".encode(codec))
    assert len("a".encode(how.codec)) == int(how.unit[-1])
    assert ("\ufeff".encode(how.codec)) == how.bom
    assert searchable(codec, "\n\N{EURO SIGN}\N{GRINNING FACE}")


@pytest.mark.parametrize(("codec", "order"), [*itertools.product(["utf-16", "utf-32"], ["-le", "-be"])])
def test_a_mark_tells_the_byte_order(codec: str, order: str) -> None:
    """UTF-16 and UTF-32 have either byte order; the byte order mark says which, and without a mark nothing is guessed."""
    head = "\ufeffa".encode(codec + order)[:4]
    assert charset(codec, head).codec == codec + order
    assert by_mark(codec)
    assert not by_mark(codec + order)
    for unmarked in ("ab".encode(codec + order)[:4], b"a"):
        names = f"{codec.upper()}LE or {codec.upper()}BE"
        with pytest.raises(BadFile, match=f"expected a byte order mark.*set encoding to the file's, {names}"):
            charset(codec, unmarked)


def test_names_of_encodings() -> None:
    """Spelling variants are accepted; an encoding that no file has, or that cannot be read in pieces, is refused as an option."""
    assert charset("UTF8", b"") == charset("utf-8-sig", b"") == charset("U8", b"")
    assert charset("latin1", b"").codec == charset("ISO-8859-1", b"").codec
    for name in ("idna", "punycode", "unicode_escape", "raw_unicode_escape", "base64", "undefined", "x-none"):
        with pytest.raises(OptionError, match="encoding"):
            parse(SOURCE, {"path": "/in", "encoding": name}, what="source")
    for name in encodings():
        assert parse(SOURCE, {"path": "/in", "encoding": name}, what="source")["encoding"] == name


def test_marks_of_utf8_stand_where_ascii_is_ascii() -> None:
    """A UTF-8 mark at the start of a file is not text if the encoding extends ASCII; in other encodings its bytes may be text."""
    assert charset("cp1252", b"").bom == charset("shift_jis", b"").bom == UTF_8_BOM
    assert charset("cp037", b"").bom == charset("iso2022_jp", b"").bom == b""
    assert charset("gb18030", b"").bom == "\ufeff".encode("gb18030")


def test_characters_that_an_encoding_has() -> None:
    """A separator must exist in the encoding, and must decode to itself."""
    assert encodable("latin-1", "§")
    assert encodable("utf-16", "\N{GRINNING FACE}")
    assert not encodable("ascii", "§")
    assert not encodable("utf-8", "\ud800")


@given(st.binary(max_size=40))
def test_utf8_is_told_from_what_is_none(data: bytes) -> None:
    """Arrow's quick check for UTF-8 agrees with Python's, also for text made of fragments of characters."""
    data = (
        data.replace(b"1", "\N{GRINNING FACE}".encode()[:3]).replace(b"2", b"\xed\xa0\x80").replace(b"3", "é".encode())
    )
    try:
        data.decode()
    except UnicodeDecodeError:
        assert not is_utf8(data)
        assert to_utf8(data, "utf-8", "replace") == data.decode("utf-8", "replace").encode()
    else:
        assert is_utf8(data)
        assert to_utf8(data, "utf-8", "replace") is data


@pytest.mark.slow
@pytest.mark.parametrize("codec", encodings())
@given(
    places=st.lists(st.integers(0, 0x10FFFF), max_size=20),
    end=st.sampled_from([b"", b"\xff", b"\x81", b"~{"]),
    width=st.integers(1, 5),
)
def test_decoders_give_the_same_in_pieces(codec: str, places: list[int], end: bytes, width: int) -> None:
    """A file decoded as a stream gives the same text whatever the sizes of the pieces."""
    letters = alphabet(codec)
    packed = "".join(letters[place % len(letters)] for place in places).encode(codec, "ignore") + end
    whole = packed.decode(codec, "replace")
    decoder = codecs.getincrementaldecoder(codec)("replace")
    pieces = [decoder.decode(packed[at : at + width]) for at in range(0, len(packed), width)]
    assert "".join([*pieces, decoder.decode(b"", final=True)]) == whole
