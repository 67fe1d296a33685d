r"""Which lines are no JSON object of a schema, many at a time: what `malformed.sifted` asks before it tries groups.

1. *Broken lines*, by their bytes alone: one that does not begin with `{` and end with `}`, whose quotes are not in pairs, or
   whose brackets do not close; one that is no UTF-8. That is what a line is that was cut, or into which something else was
   written, and costs less than reading it.
2. *Lines that are no JSON* otherwise are found by asking Arrow about groups of them.
3. *Values that do not fit* are looked for column by column, in groups of values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.formats.jsonexact import check_json, fields_of
from penstock.formats.jsonlines import no_object, unescaped_quotes
from penstock.formats.lines import BOM
from penstock.formats.malformed import MalformedError, misfitting, unreadable
from penstock.formats.trials import refused

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from penstock.formats.malformed import Found
    from penstock.formats.patterns import TimeForms

    Positions = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

_WHITE = np.isin(np.arange(256), np.frombuffer(b" \t\r\n", np.uint8))
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"{[")] = 1
_STEPS[list(b"}]")] = -1


def _unlike_objects(data: bytes, starts: Positions) -> Found:
    """Find the lines that cannot be an object, whatever is between their first and their last byte."""
    if not len(starts):
        return starts, []
    codes, bounds = np.frombuffer(data, np.uint8), np.append(starts, len(data))
    ends = bounds[1:]
    while (white := _WHITE[codes[ends - 1]] & (ends - 1 > starts)).any():
        ends = ends - white
    first = codes[starts]
    begins = _WHITE[first] | (first == BOM[0]) | (first == ord("{"))
    quotes = unescaped_quotes(codes)
    before = np.searchsorted(quotes, bounds)
    paired = np.diff(before) % 2 == 0
    bad = np.flatnonzero(~(begins & (codes[ends - 1] == ord("}")) & paired & _closed(codes, bounds, quotes, before)))
    return bad, [str(no_object())] * len(bad)


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
    bounds = [*starts.tolist(), len(data)]
    bad = refused(len(starts), lambda low, high: _refusal(data[bounds[low] : bounds[high]]))
    return np.array([place for place, _ in bad], np.int64), [str(error) for _, error in bad]


def _refusal(lines: bytes) -> MalformedError | None:
    try:
        check_json(lines)
    except MalformedError as error:
        return error
    return None


def misfits(data: bytes, starts: Positions, *, schema: pa.Schema, times: TimeForms) -> Found:
    """Find the lines that have a value which is none of its column; each is a JSON object."""
    expected: dict[int, str] = {}
    for values, read in fields_of(data, schema, times):
        if len(values) != len(starts):  # a line that is blank to one and not to the other: trying tells
            return np.zeros(0, np.int64), []
        for place, error in misfitting(values, read):
            expected.setdefault(place, str(error))
    places = sorted(expected)
    return np.array(places, np.int64), [expected[place] for place in places]


BROKEN = (_unlike_objects, unreadable, _no_json)
