r"""Encodings of text: what can be looked for in the bytes of a file, and what becomes of bytes that are no text.

A separator is a piece of text, and a range of a file is bytes. To cut a file in its bytes, the separator's bytes must
stand there exactly where the text has the separator. That depends on both:

- *UTF-8*: always. No character's bytes begin within another's.
- *UTF-16 and UTF-32*: at whole code units, counted from the start of the file. Elsewhere they can stand by chance: `\n` is
  0A 00 in UTF-16LE, and so are the middle bytes of U+0A31 U+0100. The byte order is that of the name or, without one, of
  the mark in front; without either nothing is guessed.
- *One byte a character*: if one byte only stands for each character of it. MacArabic has two for `|`.
- *Several bytes a character* (EUC, Shift_JIS, Big5, GBK and their like): ASCII that is no later byte of any character. In
  Shift_JIS the second byte of some characters is 7C, a `|`; none is 0A, a line feed.
- *Encodings with states* (ISO-2022, HZ, UTF-7), and those that Python was taught by others: never.

Where it cannot be done the file is decoded from its start and the separator looked for in what comes out: always right,
but such a file is one split. `_UNFIT` says which ASCII is a later byte; `tests/formats/test_charsets.py` finds the same by
trying Python's decoders byte by byte. Their answers to bytes that are no text rely on the same: what is looked for is never
swallowed by an incomplete character in front of it (as long as something follows, see `_BEHIND`), so that a file with errors
has the same records for every cut, too.

What is no text becomes U+FFFD with `errors="replace"`: one for each piece that could have begun a character, as Unicode
recommends and all but Java do it (Java has one for a surrogate of three bytes, where others have three).
"""

from __future__ import annotations

import codecs
import re
import sys
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from penstock.errors import BadFile

UTF_8 = "utf-8"
UTF_8_BOM = codecs.BOM_UTF8
_WIDE = {
    "utf-16-le": ("<u2", codecs.BOM_UTF16_LE),
    "utf-16-be": (">u2", codecs.BOM_UTF16_BE),
    "utf-32-le": ("<u4", codecs.BOM_UTF32_LE),
    "utf-32-be": (">u4", codecs.BOM_UTF32_BE),
}
_MARKED = {"utf-16": ("utf-16-le", "utf-16-be"), "utf-32": ("utf-32-le", "utf-32-be")}
# Decoders of long characters, at the end of what they are given, take a separator for the rest of one that was begun before
# it; where something follows they know better. The longest (of EUC-KR) has eight bytes.
_BEHIND = b"\n" * 7

_HALVES = re.compile("[\ud800-\udfff]")
_NONE = "\ufffe"  # in Python's tables
# Codecs without a table: so many bytes stand for the character of their number.
_PLAIN = {"ascii": 128, "iso8859-1": 256}

# Of encodings with several bytes a character: the ASCII characters, as ranges of a regular expression, whose byte may also be
# a later one of a character, or that can be spelled otherwise.
_UNFIT = {
    "gb2312": "",
    "euc_kr": "",
    "euc_jp": "~",
    "euc_jis_2004": "~",
    "euc_jisx0213": "~",
    "cp949": "A-Za-z",
    "johab": "1-~",
    "shift_jis": "@-~",
    "shift_jis_2004": "@-~",
    "shift_jisx0213": "@-~",
    "cp932": "@-~",
    "big5": "@-~",
    "big5hkscs": "@-~",
    "cp950": "@-~",
    "gbk": "@-~",
    "gb18030": "0-9@-~",
}


@dataclass(frozen=True)
class Charset:
    """How the text of one file lies in its bytes: Python's `codec` of it, NumPy's type of its code units, and its byte order mark."""

    codec: str
    unit: str
    bom: bytes


UTF_8_CHARSET = Charset(UTF_8, "u1", UTF_8_BOM)


@lru_cache(maxsize=32)
def by_mark(encoding: str) -> bool:
    """Tell whether the encoding leaves the byte order to a mark in front of each file."""
    return _name(encoding) in _MARKED


@lru_cache(maxsize=32)
def charset(encoding: str, head: bytes) -> Charset:
    """Return how a file is written whose encoding is said to be `encoding` and whose first bytes (4, if it has them) are `head`.

    Raises `BadFile` if the encoding leaves the byte order to a mark, and there is none.
    """
    codec = _name(encoding)
    orders = _MARKED.get(codec)
    if orders:
        marked = [order for order in orders if head.startswith(_WIDE[order][1])]
        if not marked and head:
            names = " or ".join(order.upper().replace("-LE", "LE").replace("-BE", "BE") for order in orders)
            msg = (
                f"found {head!r} at its start, expected a byte order mark, since {codec.upper()} has two byte orders; set "
                f"encoding to the file's, {names}"
            )
            raise BadFile(msg)
        codec = marked[0] if marked else orders[0]
    unit, bom = _WIDE.get(codec, ("u1", _mark(codec)))
    return Charset(codec, unit, bom)


@lru_cache(maxsize=32)
def searchable(encoding: str, text: str, *, plain: bool = False) -> bool:
    """Tell whether the characters of `text` can be looked for in the bytes (the code units) of files of this encoding.

    `plain`: and whether each is there as the number that ASCII has for it.
    """
    codec = _name(encoding)
    codec = _MARKED.get(codec, (codec,))[0]
    if codec == UTF_8 or codec in _WIDE:
        return not plain or text.isascii()
    if codec in _UNFIT:
        unfit = _UNFIT[codec]
        return text.isascii() and not (unfit and re.search(f"[{unfit}]", text))
    return _is_in_table(codec, text, plain=plain)


def _is_in_table(codec: str, text: str, *, plain: bool) -> bool:
    """Tell whether each of the characters is one byte of an encoding that has one byte a character, and no other is it."""
    table = _table(codec)
    if table is None or _NONE in text or any(table.count(character) != 1 for character in text):
        return False
    return not plain or all(table[ord(character) :][:1] == character for character in text)


def encodable(encoding: str, text: str) -> bool:
    """Tell whether the encoding has the characters of `text`, and reads them as they were written."""
    try:
        return text.encode(encoding).decode(encoding) == text
    except UnicodeError:
        return False


def is_utf8(data: bytes | pa.Buffer) -> bool:
    """Tell whether the bytes are UTF-8; several gigabytes a second."""
    bounds = pa.py_buffer(np.array([0, len(data)], np.int64))
    whole = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    try:
        pa.Array.from_buffers(pa.large_string(), 1, [None, bounds, whole]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def to_utf8(data: bytes, codec: str, errors: str) -> bytes:
    """Return text as UTF-8. `errors` is strict or replace; UTF-8 is not checked with strict, as its decoders do that.

    Raises `UnicodeDecodeError`.
    """
    if codec == UTF_8:
        return data if errors == "strict" or is_utf8(data) else data.decode(codec, errors).encode()
    if codec in _UNFIT:
        return (data + _BEHIND).decode(codec, errors)[: -len(_BEHIND)].encode()
    return data.decode(codec, errors).encode()


def encoded(text: str, errors: str) -> bytes:
    """Return text as UTF-8, with U+FFFD for each half of a character if `errors` is replace.

    UTF-7 can spell such halves, and Python reads them without a word. Raises `UnicodeEncodeError` if `errors` is strict.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        if errors == "strict":
            raise
        return _HALVES.sub("\ufffd", text).encode()


def _name(encoding: str) -> str:
    codec = codecs.lookup(encoding).name
    return UTF_8 if codec == "utf-8-sig" else codec


def _mark(codec: str) -> bytes:
    """Return U+FEFF in this encoding; where it has none but extends ASCII, that of UTF-8, which Hadoop drops there, too."""
    if codec == "gb18030":
        return "\ufeff".encode(codec)
    return UTF_8_BOM if searchable(codec, "\n", plain=True) else b""


def _table(codec: str) -> str | None:
    """Return the character of each byte in an encoding of one byte a character, `_NONE` where it has none."""
    if codec in _PLAIN:
        return bytes(range(_PLAIN[codec])).decode(codec)
    module = sys.modules[codecs.lookup(codec).incrementaldecoder.__module__]
    table: str | None = getattr(module, "decoding_table", None) if module.__name__.startswith("encodings.") else None
    return table
