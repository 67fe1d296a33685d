"""A file that is one JSON document, or one array of them, as JSON lines: in place, so that offsets stay those of the file.

An object on many lines becomes one on one line by blanks for line breaks, which are white space in JSON outside of strings,
and inside of them nothing at all. An array loses its brackets, and the commas between its elements become line feeds. Each
byte stays where it was. What is found out here is where the elements are; whether they are objects, and of which values, is for
the reader of lines to say, which refuses all that the text is not: two documents one behind the other are two objects on one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import BadRecord
from penstock.formats.json.arrow import unescaped_quotes
from penstock.formats.lines import BOM
from penstock.formats.malformed import excerpt

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    Codes = npt.NDArray[np.uint8]

DOCUMENT_BYTES_MAX = 256 << 20  # it is held as a whole, with some bytes for each of its own
_LF, _CR = 10, 13
_COMMA, _ARRAY, _SPACE = b",[ "
_STRUCTURE = np.isin(np.arange(256), np.frombuffer(b"{}[],", np.uint8))
_STEPS = np.zeros(256, np.int8)
_STEPS[np.frombuffer(b"{[", np.uint8)] = 1
_STEPS[np.frombuffer(b"}]", np.uint8)] = -1
_WHITE = np.isin(np.arange(256), np.frombuffer(b" \t\r\n", np.uint8))


def whole(chunks: Iterable[bytes]) -> bytes:
    """Return all of a file; `BadRecord` if it is too long to be held as a whole."""
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > DOCUMENT_BYTES_MAX:
            msg = (
                f"found a document of more than {DOCUMENT_BYTES_MAX >> 20} MiB, which would have to be held in memory; write it as one "
                "object a line, and leave multiLine out"
            )
            raise BadRecord(msg, offset=0)
    return bytes(data)


def as_lines(data: bytes) -> bytes:
    """Return the document, or the elements of the array, one a line, each at its place. Nothing if there is nothing in the file.

    Raises `BadRecord` for an array that is not closed, has an element of nothing or something behind it, and for a line break in a
    string.
    """
    codes = np.frombuffer(bytearray(data), np.uint8)
    if data.startswith(BOM):
        codes[: len(BOM)] = _SPACE
    filled = np.flatnonzero(~_WHITE[codes])
    if not len(filled):
        return b""
    quotes = unescaped_quotes(codes)
    breaks = np.flatnonzero((codes == _LF) | (codes == _CR))
    in_string = breaks[np.searchsorted(quotes, breaks) % 2 == 1]
    if len(in_string):
        raise _malformed(data, int(in_string[0]), "no line break in a string")
    codes[breaks] = _SPACE
    first, last = int(filled[0]), int(filled[-1])
    if codes[first] == _ARRAY:
        _open(codes, quotes, data, first, last)
    return codes.tobytes()


def _open(codes: Codes, quotes: npt.NDArray[np.int64], data: bytes, first: int, last: int) -> None:
    """Make lines of the elements of the array at `first`, whose bracket must be closed at `last`."""
    marks = np.zeros(len(codes), np.uint8)
    marks[quotes] = 1
    outside = np.cumsum(marks, dtype=np.uint8) % 2 == 0
    places = np.flatnonzero(_STRUCTURE[codes] & outside)
    depth = np.cumsum(_STEPS[codes[places]], dtype=np.int64)
    closed = places[depth == 0]
    if not len(closed):
        raise _malformed(data, first, "a bracket that closes the array")
    if closed[0] != last:
        raise _malformed(data, int(closed[0]) + 1, "the end of the file behind the array")
    commas = places[(depth == 1) & (codes[places] == _COMMA)]
    codes[first] = codes[last] = _SPACE
    codes[commas] = _SPACE
    begins = np.concatenate(([first], commas))
    has_value = np.logical_or.reduceat(~_WHITE[codes], begins)
    if len(commas) and not has_value.all():
        raise _malformed(data, int(begins[~has_value][0]), "a value between commas")
    codes[commas] = _LF


def _malformed(data: bytes, at: int, expected: str) -> BadRecord:
    msg = (
        f"found '{excerpt(data[at : at + 80])}', expected {expected} in a file that is one JSON document, or one array"
    )
    return BadRecord(msg, offset=at)
