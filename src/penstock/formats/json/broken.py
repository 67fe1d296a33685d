r"""Finding lines that are not JSON objects of a schema, many at a time: `malformed.sifted` uses these passes before it tries groups.

1. *Broken lines* are found by their bytes alone: a line that does not begin with `{` and end with `}`, whose quotes are
   not in pairs, whose brackets do not close, that has a control character in a string (often from a flipped bit), or
   that is not UTF-8. Lines that were cut or overwritten look like this, and finding them costs less than reading them.
2. *Other lines that are not JSON* are found by asking Arrow about groups of them. Only their grammar is checked: the
   contents of strings are removed, and numbers replaced. Of such reduced lines there are few, and each is checked once.
3. *Values that do not fit* are searched for column by column, in groups of values.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.json.arrow import no_object, unescaped_quotes
from penstock.formats.json.exact import check_json, fields_of, shown
from penstock.formats.json.pattern import ungrammatical
from penstock.formats.lines import BOM
from penstock.formats.malformed import MalformedError, unreadable
from penstock.formats.misfits import misfits_of
from penstock.formats.trials import refused

if TYPE_CHECKING:
    import numpy.typing as npt

    from penstock.formats.malformed import Found
    from penstock.formats.patterns import TimeForms

    Positions = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

_WHITE = np.isin(np.arange(256), np.frombuffer(b" \t\r\n", np.uint8))
# Replacements that turn no JSON into something else, and nothing else into JSON: the contents of strings, and the
# digits of numbers after the first one that is not zero. A string with invalid contents is not replaced. If the search
# skipped it, the next match would begin at its closing quote.
_GRAMMAR = ((r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*"', '""'), ("[1-9][0-9]*", "1"))
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"{[")] = 1
_STEPS[list(b"}]")] = -1


def unlike_at_ends(data: bytes, starts: Positions) -> Found:
    """Find the lines that cannot be an object, because of their first or last byte: those that were cut."""
    if not len(starts):
        return starts, []
    codes, ends = np.frombuffer(data, np.uint8), np.append(starts[1:], len(data))
    while (white := _WHITE[codes[ends - 1]] & (ends - 1 > starts)).any():
        ends = ends - white
    first = codes[starts]
    begins = _WHITE[first] | (first == BOM[0]) | (first == ord("{"))
    bad = np.flatnonzero(~(begins & (codes[ends - 1] == ord("}"))))
    return bad, [str(no_object())] * len(bad)


def _unlike_grammar(data: bytes, starts: Positions) -> Found:
    """Find most of the lines that are not JSON: with an extra comma, or with something else instead of a value."""
    bad = ungrammatical(data, starts)
    return bad, [str(no_object())] * len(bad)


def _unlike_inside(data: bytes, starts: Positions) -> Found:
    """Find the lines whose quotes are not in pairs, whose brackets do not close, or that have a raw control character in a string."""
    if not len(starts):
        return starts, []
    codes, bounds = np.frombuffer(data, np.uint8), np.append(starts, len(data))
    quotes = unescaped_quotes(codes)
    before = np.searchsorted(quotes, bounds)
    right = np.diff(before) % 2 == 0
    right &= _closed(codes, bounds, quotes, before)
    right[_controlled(codes, bounds, quotes, before)] = False
    bad = np.flatnonzero(~right)
    return bad, [str(no_object())] * len(bad)


def _controlled(codes: npt.NDArray[np.uint8], bounds: Positions, quotes: Positions, before: Positions) -> Positions:
    """Return which lines have a forbidden control character: only tabs and carriage returns are allowed, outside of strings."""
    at = np.flatnonzero((codes < ord(" ")) & (codes != ord("\n")))
    lines = np.searchsorted(bounds, at, side="right") - 1
    at, lines = at[lines >= 0], lines[lines >= 0]
    inside = (np.searchsorted(quotes, at) - before[lines]) % 2 == 1
    controlled: Positions = lines[inside | ~_WHITE[codes[at]]]
    return controlled


def _closed(codes: npt.NDArray[np.uint8], bounds: Positions, quotes: Positions, before: Positions) -> Flags:
    """Tell for each line whether as many brackets close as open, outside of strings; `before`: quotes before each line."""
    at = np.flatnonzero(_STEPS[codes])
    lines = np.searchsorted(bounds, at, side="right") - 1
    inside = lines >= 0  # only blank lines may come before the first record
    at, lines = at[inside], lines[inside]
    outside = (np.searchsorted(quotes, at) - before[lines]) % 2 == 0
    depth = np.bincount(lines[outside], weights=_STEPS[codes[at[outside]]], minlength=len(bounds) - 1)
    closed: Flags = depth == 0
    return closed


def _no_json(data: bytes, starts: Positions) -> Found:
    """Find the lines that are no JSON object."""
    if not len(starts) or _refusal(data) is None:
        return np.zeros(0, np.int64), []
    offsets = np.append(starts, len(data)).astype(np.int32)
    lines = pa.Array.from_buffers(pa.binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    for expression, plain in _GRAMMAR:
        lines = pc.replace_substring_regex(lines, expression, plain)
    encoded = lines.dictionary_encode()
    forms = encoded.dictionary.to_pylist()
    bad = refused(len(forms), lambda low, high: _refusal(b"".join(forms[low:high])))
    reasons = {form: str(error) for form, error in bad}
    of_lines = encoded.indices.to_numpy()
    places = np.flatnonzero(np.isin(of_lines, list(reasons)))
    return places.astype(np.int64), [reasons[form] for form in of_lines[places].tolist()]


def _refusal(lines: bytes) -> MalformedError | None:
    try:
        check_json(lines)
    except MalformedError as error:
        return error
    return None


def misfits(data: bytes, starts: Positions, *, schema: pa.Schema, times: TimeForms) -> Found:
    """Find the lines that have a value which does not fit its column; each line must be a JSON object."""
    expected: dict[int, str] = {}
    for field, (values, read) in zip(schema, fields_of(data, schema, times), strict=True):
        if len(values) != len(starts):  # the two disagree on which lines are blank: trying groups decides
            return np.zeros(0, np.int64), []
        present = pc.if_else(pc.equal(values, b"null"), None, values)
        for place, error in misfits_of(present, field, times, read, partial(shown, kind=field.type)):
            expected.setdefault(place, str(error))
    places = sorted(expected)
    return np.array(places, np.int64), [expected[place] for place in places]


BROKEN = (unlike_at_ends, _unlike_grammar, _unlike_inside, unreadable, _no_json)
