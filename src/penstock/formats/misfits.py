r"""Separating values that do not fit their column from those that do, so that they can be rescued.

The code that reads the column decides whether a value fits. For many values it reports only that one of them does not;
trying groups finds which. Text that cannot be of the type, judging by its form, is separated before, all at once:
otherwise a column of strings where numbers are expected would be tried value by value.
"""

from __future__ import annotations

from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.formats.malformed import MalformedError, misfitting
from penstock.formats.patterns import USUAL_DAY, USUAL_TIME, compiled
from penstock.formats.scalars import TIME_FORM, joined, misfit

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from penstock.formats.patterns import TimeForms

_SECONDS = "^-?[0-9]+$"  # seconds since 1970, which JSON may have as times
_CLOCK = r"(?:[01]?[0-9]|2[0-3])(?:[^0-9:].*|:[0-5]?[0-9](?:[^0-9:].*|:[0-5]?[0-9](?:[^0-9].*)?)?)?"
_DAY = r"[0-9]{4}(?:-(?:0?[1-9]|1[0-2])(?:-(?:0?[1-9]|[12][0-9]|3[01])(?:[ T]REST)?)?)?"
_DATE, _TIME = _DAY.replace("REST", ".*"), _DAY.replace("REST", f"(?:{_CLOCK})")
_DIGITS = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
# The forms that a value of a type may have, in quotes or not; a value with an escape may have any form.
_LOOKS = (
    (types.is_integer, r"^[-+0-9]+$|\\"),
    (types.is_floating, rf'^"?\s*(?:{_DIGITS}|[-+]?[INFaifnty]+)\s*"?$|\\'),
    (types.is_decimal, rf'^"?\s*{_DIGITS}\s*"?$|\\'),
    (types.is_boolean, r"(?i)^(?:true|false)$"),
    (types.is_date, rf'(?s)^"?\s*{_DATE}\s*"?$|\\'),
    (types.is_temporal, rf'(?s)^"?\s*{_TIME}\s*"?$|{_SECONDS}|\\'),
)
# A second condition for times: the form of everything readable. `_TIME` checks ranges, but not the end of a value.
_FORM = rf'^"?{TIME_FORM[1:-1]}"?$|{_SECONDS}|\\'
_FEW = 5  # one value in this many
PROBE_ROWS = 500  # if one value in a hundred is a misfit, this many nearly always include one


# The usual forms of values of a type: matching values are right except for rare cases, such as a year 0, or too many
# digits for a decimal.
_NUMBER = "-?[0-9]{1,15}"
_FRACTION = r"(?:\.[0-9]{0,15})?"
_SURE = (
    (types.is_int64, r"\A-?[0-9]{1,18}\z"),
    (types.is_int32, r"\A-?[0-9]{1,9}\z"),
    (types.is_int16, r"\A-?[0-9]{1,4}\z"),
    (types.is_integer, r"\A-?[0-9]{1,2}\z"),
    (types.is_floating, rf"\A{_NUMBER}{_FRACTION}(?:[eE][+-]?[0-9])?\z"),
    (types.is_decimal, rf"\A{_NUMBER}{_FRACTION}\z"),
    (types.is_date, rf'\A"?{USUAL_DAY}"?\z'),
    (types.is_timestamp, rf'\A"?{USUAL_TIME}"?\z'),
)


def fitting(
    values: pa.Array,
    kind: pa.DataType,
    times: TimeForms,
    read: Callable[[pa.Array], pa.Array],
    *,
    likely: bool = False,
) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Return the column that `read` makes of the values that it accepts, null for the others, and which these others are.

    `likely`: there are some, as there were before. It only changes the speed.
    """
    strange = strange_of(values, kind, times) if likely else np.zeros(0, np.int64)
    if not len(strange):
        try:
            return read(values), np.zeros(len(values), np.bool_)
        except MalformedError:
            strange = strange_of(values, kind, times)
    if len(strange):
        alone = fitting(values.take(pa.array(strange)), kind, times, read)[1] if len(strange) < len(values) else None
        bad = np.zeros(len(values), np.bool_)
        bad[strange if alone is None else strange[alone]] = alone is not None
        try:
            return read(_without(values, bad)), bad
        except MalformedError:
            pass
    bad = _by_looks(values, kind, times)
    left = _without(values, bad)
    bad[[place for place, _ in misfitting(left, read)]] = True
    return read(_without(values, bad)), bad


def misfits_of(
    values: pa.Array,
    field: pa.Field,
    times: TimeForms,
    read: Callable[[pa.Array], object],
    shown: Callable[[pa.Array], pa.Array],
) -> list[tuple[int, MalformedError]]:
    """Return which values `read` refuses for a field, in order, each with its error; see `malformed.misfitting`.

    `shown` returns values in the form for messages. If many values cannot be of the type, judging by their form, trying
    each of them would take longer than reading all the others.
    """
    strange = strange_of(values, field.type, times)
    if 0 < len(strange) < len(values) and not _is_refused(values, strange, read):
        few = misfits_of(values.take(pa.array(strange)), field, times, read, shown)
        return [(int(strange[place]), error) for place, error in few]
    bad = _by_looks(values, field.type, times)
    places = np.flatnonzero(bad)
    texts = shown(values.take(pa.array(places)))
    unlike = [(int(place), misfit(texts.slice(at, 1), field.type, field.name)) for at, place in enumerate(places)]
    left = np.flatnonzero(~bad)
    others = misfitting(values if not len(places) else values.take(pa.array(left)), read)
    return sorted([*unlike, *((int(left[place]), error) for place, error in others)], key=itemgetter(0))


def without_refused(
    values: pa.Array, field: pa.Field, times: TimeForms, read: Callable[[pa.Array, pa.Field], pa.Array]
) -> tuple[pa.Array, list[tuple[int, MalformedError]]]:
    """Return the column with null for the values that `read` refuses for a field, and these as `misfits_of` does.

    Few values look unusual. The usual ones are read once, without them; then the unusual ones that are right are put in
    their places. Because the meaning of a value depends on it alone, this is the column that reading all right values
    at once would give.
    """
    loose = field.with_nullable(nullable=True)
    strange = (
        np.zeros(0, np.int64) if values.null_count and not field.nullable else strange_of(values, field.type, times)
    )
    column = None
    if 0 < len(strange) < len(values):
        with suppress(MalformedError):
            column = read(nulled(values, strange), loose)
    few = values if column is None else values.take(pa.array(strange))
    bad = misfits_of(few, field, times, lambda texts: read(texts, field), lambda texts: texts)
    refused = [place for place, _ in bad]
    if column is None:
        return read(nulled(values, refused), loose), bad
    right = np.delete(strange, refused)
    if len(right):
        mask = np.zeros(len(values), np.bool_)
        mask[right] = True
        column = pc.replace_with_mask(column, pa.array(mask), read(values.take(pa.array(right)), loose))
    return column, [(int(strange[place]), error) for place, error in bad]


def nulled(values: pa.Array, places: npt.NDArray[np.int64] | list[int]) -> pa.Array:
    """Return the values with null in these places; unlike with `if_else`, nothing of the old values stays below the nulls."""
    mask = np.zeros(len(values), np.bool_)
    mask[places] = True
    return _without(values, mask)


def _is_refused(values: pa.Array, others: npt.NDArray[np.int64], read: Callable[[pa.Array], object]) -> bool:
    """Tell whether one of the values, except some others, is refused."""
    left = np.ones(len(values), np.bool_)
    left[others] = False
    try:
        read(values.filter(pa.array(left)))
    except MalformedError:
        return True
    return False


def strange_of(values: pa.Array, kind: pa.DataType, times: TimeForms) -> npt.NDArray[np.int64]:
    """Return which values do not have the usual form of the type: refused values are likely to be among them.

    None if they are many, or if this is not known. This check costs a small part of reading the values.
    """
    sure = next((sure for check, sure in _SURE if check(kind)), None)
    if sure is None or times.pattern_of(kind):
        return np.zeros(0, np.int64)
    alike = pc.match_substring_regex(values, sure).fill_null(fill_value=True)
    places = np.flatnonzero(~alike.to_numpy(zero_copy_only=False))
    return places if len(places) * _FEW <= len(values) else np.zeros(0, np.int64)


def _without(values: pa.Array, bad: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the values with null for the bad ones; nothing of these is left, not even below a null."""
    return values.take(pa.array(np.arange(len(values)), mask=bad))


def _by_looks(values: pa.Array, kind: pa.DataType, times: TimeForms) -> npt.NDArray[np.bool_]:
    pattern = times.pattern_of(kind)
    looks = (
        f"{compiled(pattern).looks}|{_SECONDS}"
        if pattern
        else next((pattern for check, pattern in _LOOKS if check(kind)), None)
    )
    if looks is None:
        return np.zeros(len(values), np.bool_)
    like = pc.match_substring_regex(values, looks).fill_null(fill_value=True)
    if pattern is None and types.is_timestamp(kind):
        like = pc.and_(like, pc.match_substring_regex(values, _FORM).fill_null(fill_value=True))
    unlike: npt.NDArray[np.bool_] = ~like.to_numpy(zero_copy_only=False)
    return unlike


def fragments(pieces: list[pa.Array]) -> pa.Array | None:
    """Return by row the members of JSON objects in the pieces; null for a row without one, `None` if no row has one."""
    if not pieces:
        return None
    led = [joined(",", piece.cast(pa.binary())) for piece in pieces]
    empty, nothing = pa.scalar(b"", pa.binary()), pa.scalar(None, pa.binary())
    # Arrow's other way to join nullable pieces drops rows in which all of them are null.
    text = pc.binary_join_element_wise(*led, empty, null_handling="replace", null_replacement=b"")
    return pc.utf8_slice_codeunits(pc.if_else(pc.equal(text, empty), nothing, text).cast(pa.string()), 1).cast(
        pa.binary()
    )
