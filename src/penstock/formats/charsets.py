r"""Encodings of text: what can be searched for in the bytes of a file, and what becomes of bytes that are not text.

A separator is a piece of text, and a range of a file is bytes. To cut a file by its bytes, the separator's bytes must
occur exactly where the text has the separator. That depends on both:

- *UTF-8*: always. No character's bytes begin within another's.
- *UTF-16 and UTF-32*: at whole code units, counted from the start of the file. Elsewhere they can occur by chance: `\n`
  is 0A 00 in UTF-16LE, and so are the middle bytes of U+0A31 U+0100. The byte order is given by the name or, without
  one, by the byte order mark; without either nothing is guessed.
- *One byte per character*: if only one byte stands for each character of the separator. MacArabic has two for `|`.
- *Several bytes per character* (EUC, Shift_JIS, Big5, GBK and similar): ASCII characters whose byte is not a later byte
  of any character. In Shift_JIS the second byte of some characters is 7C, a `|`; none is 0A, a line feed.
- *Encodings with states* (ISO-2022, HZ, UTF-7), and encodings that others have added to Python: never.

Otherwise the file is decoded from its start and the separator is searched for in the decoded text. That is always
right, but such a file is one split. `_UNFIT` lists the ASCII characters that can be a later byte;
`tests/formats/test_charsets.py` finds the same by trying Python's decoders byte by byte. How the decoders treat bytes
that are not text relies on the same: an incomplete character never swallows a separator after it (as long as something
follows, see `_BEHIND`), so a file with errors has the same records however it is cut.

With `errors="replace"`, bytes that are not text become U+FFFD: one for each piece that could have begun a character, as
Unicode recommends and everything but Java does (Java has one for a surrogate of three bytes, where others have three).
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
# At the end of their input, decoders of long characters take a separator for the rest of a character that began before
# it; if something follows, they recognise it. The longest character (in EUC-KR) has eight bytes.
_BEHIND = b"\n" * 7

_HALVES = re.compile("[\ud800-\udfff]")
_NONE = "\ufffe"  # in Python's tables
# Codecs without a table: the first so many bytes stand for the character of their number.
_PLAIN = {"ascii": 128, "iso8859-1": 256}

# For encodings with several bytes per character: the ASCII characters, as ranges of a regular expression, that can be
# encoded in another way, or whose byte can also be a later byte of a character.
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
    """How a file's text is stored in its bytes: Python's `codec`, NumPy's type of its code units, and its byte order mark."""

    codec: str
    unit: str
    bom: bytes


UTF_8_CHARSET = Charset(UTF_8, "u1", UTF_8_BOM)


@lru_cache(maxsize=32)
def by_mark(encoding: str) -> bool:
    """Tell whether the encoding leaves the byte order to a mark at the beginning of each file."""
    return _name(encoding) in _MARKED


@lru_cache(maxsize=32)
def may_be_marked(encoding: str) -> bool:
    """Tell whether a mark at the beginning of each file says its byte order, or could say another one than the encoding."""
    return by_mark(encoding) or _name(encoding) in _WIDE


@lru_cache(maxsize=32)
def charset(encoding: str, head: bytes) -> Charset:
    """Return the charset of a file whose encoding is given as `encoding` and whose first bytes (4, if it has them) are `head`.

    Raises `BadFile` if the encoding leaves the byte order to a mark, and there is none, or if the mark is that of the other byte order.
    """
    codec = _name(encoding)
    orders = _MARKED.get(codec)
    if orders:
        marked = [order for order in orders if head.startswith(_WIDE[order][1])]
        if not marked and head:
            names = " or ".join(map(_shown, orders))
            msg = (
                f"found {head!r} at its start, expected a byte order mark, since {codec.upper()} has two byte orders; set "
                f"encoding to the file's, {names}"
            )
            raise BadFile(msg)
        codec = marked[0] if marked else orders[0]
    elif codec in _WIDE:
        family = codec[: len("utf-16")]
        others = [order for order in _MARKED[family] if order != codec and head.startswith(_WIDE[order][1])]
        if others:
            msg = (
                f"found {head!r} at its start, the byte order mark of {_shown(others[0])}, expected {_shown(codec)}; set "
                f"encoding={family.upper()}, which goes by the mark of each file"
            )
            raise BadFile(msg)
    unit, bom = _WIDE.get(codec, ("u1", _mark(codec)))
    return Charset(codec, unit, bom)


@lru_cache(maxsize=32)
def searchable(encoding: str, text: str, *, plain: bool = False) -> bool:
    """Tell whether the characters of `text` can be searched for in the bytes (the code units) of files of this encoding.

    `plain`: also require that each is stored as its ASCII number.
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
    """Tell whether each character is one byte of an encoding with one byte per character, and no other byte stands for it."""
    table = _table(codec)
    if table is None or _NONE in text or any(table.count(character) != 1 for character in text):
        return False
    return not plain or all(table[ord(character) :][:1] == character for character in text)


def encodable(encoding: str, text: str) -> bool:
    """Tell whether the encoding has the characters of `text`, and decodes them to the same text."""
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
    """Return text as UTF-8. `errors` is strict or replace; with strict, UTF-8 is not checked, because its decoders do that.

    Raises `UnicodeDecodeError`.
    """
    if codec == UTF_8:
        return data if errors == "strict" or is_utf8(data) else data.decode(codec, errors).encode()
    if codec in _UNFIT:
        return (data + _BEHIND).decode(codec, errors)[: -len(_BEHIND)].encode()
    return data.decode(codec, errors).encode()


def encoded(text: str, errors: str) -> bytes:
    """Return text as UTF-8, with U+FFFD for each half of a character if `errors` is replace.

    UTF-7 can encode such halves, and Python silently accepts them. Raises `UnicodeEncodeError` if `errors` is strict.
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


def _shown(codec: str) -> str:
    """Return the usual name of an encoding with a byte order."""
    return codec.upper().replace("-LE", "LE").replace("-BE", "BE")


def _mark(codec: str) -> bytes:
    """Return U+FEFF in this encoding; for an encoding that lacks it but extends ASCII, that of UTF-8, which Hadoop drops there, too."""
    if codec == "gb18030":
        return "\ufeff".encode(codec)
    return UTF_8_BOM if searchable(codec, "\n", plain=True) else b""


def _table(codec: str) -> str | None:
    """Return the character of each byte in an encoding with one byte per character, `_NONE` for a byte without a character."""
    if codec in _PLAIN:
        return bytes(range(_PLAIN[codec])).decode(codec)
    module = sys.modules[codecs.lookup(codec).incrementaldecoder.__module__]
    table: str | None = getattr(module, "decoding_table", None) if module.__name__.startswith("encodings.") else None
    return table
