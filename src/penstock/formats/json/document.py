"""A file that is one JSON document, or one array of them, turned into JSON lines in place, so that offsets stay those of the file.

An object on many lines becomes an object on one line: line breaks become blanks. Outside of strings both are white
space in JSON, and inside of strings line breaks are not allowed. An array loses its brackets, and the commas between
its elements become line feeds. Each byte keeps its place. This module only finds where the elements are. The reader of
lines checks that they are objects, and which values they have. It refuses everything that the text must not be: two
consecutive documents are two objects on one line.
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

DOCUMENT_BYTES_MAX = 256 << 20  # it is held in memory as a whole, with several bytes for each of its own
_LF, _CR = 10, 13
_COMMA, _ARRAY, _SPACE = b",[ "
_STRUCTURE = np.isin(np.arange(256), np.frombuffer(b"{}[],", np.uint8))
_STEPS = np.zeros(256, np.int8)
_STEPS[np.frombuffer(b"{[", np.uint8)] = 1
_STEPS[np.frombuffer(b"}]", np.uint8)] = -1
_WHITE = np.isin(np.arange(256), np.frombuffer(b" \t\r\n", np.uint8))


def whole(chunks: Iterable[bytes]) -> bytes:
    """Return all of a file; `BadRecord` if it is too long to be held in memory."""
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
    """Return the document, or the elements of the array, one per line, each at its place. Empty for an empty file.

    Raises `BadRecord` for an array that is not closed, has an empty element, or is followed by something, and for a
    line break in a string.
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
    """Turn the elements of the array at `first` into lines; its bracket must be closed at `last`."""
    marks = np.zeros(len(codes), np.uint8)
    marks[quotes] = 1
    outside = np.cumsum(marks, dtype=np.uint8) % 2 == 0
    places = np.flatnonzero(_STRUCTURE[codes] & outside)
    depth = np.cumsum(_STEPS[codes[places]], dtype=np.int64)
    closed = places[depth == 0]
    if not len(closed):
        raise _malformed(data, first, "a bracket that closes the array")
    if closed[0] != last:
        raise _malformed(data, int(closed[0]) + 1, "the end of the file after the array")
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
