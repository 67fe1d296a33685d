r"""Which lines are no JSON object of a schema, many at a time: what `malformed.sifted` asks before it tries groups.

1. *Broken lines*, by their bytes alone: one that does not begin with `{` and end with `}`, whose quotes are not in pairs, or
   whose brackets do not close; one with a control character in a string (of one flipped bit, often), or that is no UTF-8. That is
   what a line is that was cut, or into which something else was written, and costs less than reading it.
2. *Lines that are no JSON* otherwise are found by asking Arrow about groups of them. What is asked is their grammar alone: a line
   without what is in its strings and with other numbers. Of these there are few, and each is asked about once.
3. *Values that do not fit* are looked for column by column, in groups of values.
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
# What can be exchanged without making JSON of what is none, or the other way round: strings, and the digits of numbers behind the first
# that is not zero. A string that has something else in it is none; one that was passed over would have the next begin at its end.
_GRAMMAR = ((r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*"', '""'), ("[1-9][0-9]*", "1"))
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"{[")] = 1
_STEPS[list(b"}]")] = -1


def unlike_at_ends(data: bytes, starts: Positions) -> Found:
    """Find the lines that cannot be an object, whatever is between their first and their last byte: those that were cut."""
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
    """Find most of the lines that are no JSON: with a comma too many, or something else in the place of a value."""
    bad = ungrammatical(data, starts)
    return bad, [str(no_object())] * len(bad)


def _unlike_inside(data: bytes, starts: Positions) -> Found:
    """Find the lines whose quotes are not in pairs, whose brackets do not close, or that have a control character bare in a string."""
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
    """Return which lines have a control character where none may be: only tabs and carriage returns may, outside of strings."""
    at = np.flatnonzero((codes < ord(" ")) & (codes != ord("\n")))
    lines = np.searchsorted(bounds, at, side="right") - 1
    at, lines = at[lines >= 0], lines[lines >= 0]
    inside = (np.searchsorted(quotes, at) - before[lines]) % 2 == 1
    controlled: Positions = lines[inside | ~_WHITE[codes[at]]]
    return controlled


def _closed(codes: npt.NDArray[np.uint8], bounds: Positions, quotes: Positions, before: Positions) -> Flags:
    """Tell of each line whether as many brackets close as open, outside of strings; `before`: quotes in front of each line."""
    at = np.flatnonzero(_STEPS[codes])
    lines = np.searchsorted(bounds, at, side="right") - 1
    inside = lines >= 0  # in front of the first record there may be blank lines alone
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
    """Find the lines that have a value which is none of its column; each is a JSON object."""
    expected: dict[int, str] = {}
    for field, (values, read) in zip(schema, fields_of(data, schema, times), strict=True):
        if len(values) != len(starts):  # a line that is blank to one and not to the other: trying tells
            return np.zeros(0, np.int64), []
        present = pc.if_else(pc.equal(values, b"null"), None, values)
        for place, error in misfits_of(present, field, times, read, partial(shown, kind=field.type)):
            expected.setdefault(place, str(error))
    places = sorted(expected)
    return np.array(places, np.int64), [expected[place] for place in places]


BROKEN = (unlike_at_ends, _unlike_grammar, _unlike_inside, unreadable, _no_json)
