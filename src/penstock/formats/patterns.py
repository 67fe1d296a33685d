r"""Times and dates in a form that the user chooses, with Spark's patterns: `dd/MMM/yyyy:HH:mm:ss Z`.

Spark passes such a pattern to Java, whose pattern language is large. This module supports the part that logs and
exports use; every other letter is refused by name when the query starts. A pattern is a sequence of fields and text,
with optional parts in brackets (`patternfields`). The meaning of a value depends on it alone:

*By columns.* A pattern has a few layouts: the byte positions of its fields, with each optional part present or not, and
each number with one digit or two. Values with the length of a layout are a table of bytes, and a field is a few columns
of it. Every other value is matched by a regular expression made from the pattern, at a twentieth of the speed. Both
ways yield numbers by field, and `Moments` turns these into times, so both read the same.

*Like Java's strict resolver.* There is no 31st of February, and 24 o'clock only with `k`. A fraction has at least one
digit, and at most as many as the pattern has `S`. Names of months are English. Case does not matter in these names, or
in literal text of the pattern. Fields that the pattern leaves out are taken from 1970-01-01 00:00:00, in the zone of
times that name none.

*Adjacent numbers* (`yyyyMMdd`): all but the first must have a fixed length; otherwise it would be ambiguous where one
ends. Java accepts such patterns and then refuses every value. Here the pattern is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice, product
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.formats.malformed import MalformedError
from penstock.formats.moments import ABSENT, NO_OFFSET, Moments
from penstock.formats.patternfields import Element, PatternBracket, PatternField, PatternText, elements_of
from penstock.formats.spans import extents
from penstock.formats.zones import UTC, instants

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

_LOCAL_MICROS = pa.timestamp("us")
_MICROS, _DAY_MICROS = 1_000_000, 86_400_000_000
_NO_SUCH_OFFSET = 1 << 30
_OFFSET_LENGTH = len("+01:00")
_DIGITS_32 = 9
# Expressions for days and times in the most common form: whatever matches is valid. 29 February does not match, because
# not every year has it.
USUAL_DAY = "[0-9]{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
USUAL_TIME = rf"{USUAL_DAY}(?:[T ](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,6}})?(?:Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])?)?"
_LAYOUTS_MAX = 64  # layouts that are tried; others are left to the regular expression


@dataclass(frozen=True)
class TimeForms:
    """How times are written: the zone of times that name none, and the pattern for each type, `None` for ISO 8601."""

    zone: str = UTC
    timestamp: str | None = None
    timestamp_ntz: str | None = None
    date: str | None = None

    def pattern_of(self, kind: pa.DataType) -> str | None:
        """Return the pattern of values of this type."""
        if types.is_timestamp(kind):
            return self.timestamp if kind.tz else self.timestamp_ntz
        return self.date if types.is_date32(kind) else None


class TimePattern:
    """A compiled pattern, which can read columns. Made by `compiled`."""

    def __init__(self, elements: tuple[Element, ...]) -> None:
        self._fields = [element for element in elements if isinstance(element, PatternField)]
        form = "".join(_expressions(elements))
        self._form = f"(?is)^{form}$"
        # Text that may be such a time, in quotes or not, or that has an escape.
        self.looks = rf'(?is)^"?(?:{form})"?$|\\'
        self._layouts = list(islice(_layouts(elements), _LAYOUTS_MAX))

    def parse(self, text: pa.Array, kind: pa.DataType, zone: str) -> pa.Array:
        """Return the values of the strings (or nulls) of `text`; `zone` applies to times without one. `MalformedError`."""
        present = text.drop_null() if text.null_count else text
        days, micros, offsets = self._read(present)
        if types.is_date32(kind):
            return _placed(days, text, np.int32).view(kind)
        local = days * _DAY_MICROS + micros
        here = offsets == NO_OFFSET
        if kind.tz is None:
            if not here.all():
                raise MalformedError
            return _placed(local, text, np.int64).view(kind)
        if not here.any():
            return _placed(local - offsets * _MICROS, text, np.int64).view(kind)
        shown = pa.array(local, mask=None if here.all() else ~here).view(_LOCAL_MICROS)
        times = instants(shown, zone).view(pa.int64()).fill_null(0).to_numpy()
        return _placed(np.where(here, times, local - offsets * _MICROS), text, np.int64).view(kind)

    def _read(self, text: pa.Array) -> tuple[Numbers, Numbers, Numbers]:
        """Return for each value the days since 1970, the microseconds of the day, and the offset in seconds."""
        days, micros = np.zeros(len(text), np.int64), np.zeros(len(text), np.int64)
        offsets = np.full(len(text), NO_OFFSET)
        left = np.ones(len(text), np.bool_)
        starts, lengths, data = extents(text)
        for layout in self._layouts:
            rows = np.flatnonzero(left & (lengths == layout.width))
            if not len(rows):
                continue
            fits, numbers = layout.read(starts[rows], data)
            if not fits.all():
                rows = rows[fits]
                numbers = {of: column[fits] for of, column in numbers.items()}
            left[rows] = False
            Moments(numbers, len(rows)).enter(rows, days, micros, offsets)
            if not left.any():
                return days, micros, offsets
        rows = np.flatnonzero(left)
        if len(rows):
            numbers = self._matched(text.take(pa.array(rows)))
            Moments(numbers, len(rows)).enter(rows, days, micros, offsets)
        return days, micros, offsets

    def _matched(self, text: pa.Array) -> dict[str, Numbers]:
        """Return the numbers that the regular expression finds, `ABSENT` for a field that a value lacks."""
        groups = pc.extract_regex(text, self._form)
        if groups.null_count:
            raise MalformedError
        numbers: dict[str, Numbers] = {}
        for field, column in zip(self._fields, groups.flatten(), strict=True):
            value = _numbers_of(field, column)
            if field.of == "fraction":
                digits = pc.binary_length(column).to_numpy().astype(np.int64)
                value = np.where(value == ABSENT, value, _in_micros(value, digits))
            _enter(numbers, field.of, value)
        return numbers


@dataclass(frozen=True)
class _Layout:
    """One layout of a pattern's values in bytes: fields with these sizes, and literal text."""

    parts: tuple[tuple[PatternField | PatternText, int], ...]

    @property
    def width(self) -> int:
        return sum(size for _, size in self.parts)

    def read(self, starts: Numbers, data: npt.NDArray[np.uint8]) -> tuple[Flags, dict[str, Numbers]]:
        """Return which of the values have this layout, and the numbers of all; those of other values have no meaning."""
        count, width = len(starts), self.width
        if starts[-1] - starts[0] == width * (count - 1):
            table = data[starts[0] : starts[0] + width * count].reshape(count, width)
        else:
            table = data[starts[:, None] + np.arange(width)]
        table = np.ascontiguousarray(table.T)
        fits = np.ones(count, np.bool_)
        numbers: dict[str, Numbers] = {}
        at = 0
        for part, size in self.parts:
            columns = table[at : at + size]
            at += size
            if isinstance(part, PatternText):
                for column, code in zip(columns, part.text.encode(), strict=True):
                    fold = np.uint8(32 * bytes([code]).isalpha())  # in either case, like the regular expression
                    fits &= column | fold == code | fold
            else:
                value = _READERS.get(part.of, _digits)(columns, fits, part)
                # A second field of this kind says the same, or the value has another layout.
                fits &= numbers.setdefault(part.of, value) == value
        return fits, numbers


def _digits(columns: npt.NDArray[np.uint8], fits: Flags, field: PatternField) -> Numbers:
    """Return the number that digits stand for, microseconds for a fraction; clear `fits` for values with other characters."""
    value = np.zeros(columns.shape[1], np.int32 if len(columns) <= _DIGITS_32 else np.int64)
    for column in columns:
        digit = column - ord("0")  # smaller codes wrap around
        fits &= digit <= 9  # noqa: PLR2004 - a digit
        value *= 10
        value += digit
    wide: Numbers = value.astype(np.int64)
    return _in_micros(wide, np.int64(len(columns))) if field.of == "fraction" else wide


def _word(columns: npt.NDArray[np.uint8], fits: Flags, field: PatternField) -> Numbers:
    """Return the number of a name; all names have the same length."""
    names = field.form.split("|")
    folded = _coded(columns | np.uint8(32))
    known = np.array([_coded(np.frombuffer(name.encode(), np.uint8)[:, None])[0] for name in names])
    order = np.argsort(known)
    places = order[np.searchsorted(known[order], folded).clip(max=len(names) - 1)]
    fits &= known[places] == folded
    number: Numbers = places + (field.of != "half")
    return number


def _coded(columns: npt.NDArray[np.uint8]) -> Numbers:
    code = np.zeros(columns.shape[1], np.int64)
    for column in columns:
        code = code * 256 + column
    return code


def _shifts(columns: npt.NDArray[np.uint8], fits: Flags, field: PatternField) -> Numbers:
    """Return the seconds of offsets: hours and minutes, with or without a colon, or Z."""
    if len(columns) == 1:
        fits &= columns[0] | 32 == ord("z")
        return np.zeros(columns.shape[1], np.int64)
    colon = len(columns) == _OFFSET_LENGTH
    if colon:
        fits &= columns[3] == ord(":")
    fits &= (columns[0] == ord("+")) | (columns[0] == ord("-"))
    hours, minutes = _digits(columns[1:3], fits, field), _digits(columns[3 + colon :], fits, field)
    seconds = hours * 3600 + minutes * 60
    seconds = np.where(minutes > 59, _NO_SUCH_OFFSET, seconds)  # noqa: PLR2004 - minutes of an hour
    return np.where(columns[0] == ord("-"), -seconds, seconds)


_READERS = {"short month": _word, "half": _word, "offset": _shifts}


def _layouts(elements: tuple[Element, ...]) -> Iterator[_Layout]:
    """Yield the layouts of a pattern, in the order in which the regular expression would try them.

    Values with other layouts, such as long names of months, are left to the regular expression.
    """
    for parts in product(*(_ways(group) for group in _groups(elements))):
        yield _Layout(tuple(chain(*parts)))


_Parts = tuple[tuple["PatternField | PatternText", int], ...]


def _groups(elements: tuple[Element, ...]) -> Iterator[tuple[Element, ...]]:
    """Yield each element outside of brackets alone, and the elements inside a pair of brackets together with that pair."""
    depth, begin = 0, 0
    for place, element in enumerate(elements):
        if isinstance(element, PatternBracket):
            begin = place if depth == 0 else begin
            depth += 1 if element.sign == "[" else -1
            if depth == 0:
                yield elements[begin : place + 1]
        elif depth == 0:
            yield (element,)


def _ways(group: tuple[Element, ...]) -> Iterator[_Parts]:
    """Yield the layouts of one group."""
    first = group[0]
    if isinstance(first, PatternBracket):
        yield from (layout.parts for layout in _layouts(group[1:-1]))
        yield ()
    elif isinstance(first, PatternText):
        yield ((first, len(first.text.encode())),)
    else:
        yield from (((first, size),) for size in first.sizes)


def _expressions(elements: tuple[Element, ...]) -> Iterator[str]:
    """Yield the regular expression of each element; each field is a named group."""
    count = 0
    for element in elements:
        if isinstance(element, PatternText):
            yield re.escape(element.text)
        elif isinstance(element, PatternField):
            yield f"(?P<f{count}>{element.form})"
            count += 1
        else:
            yield {"[": "(?:", "]": ")?"}[element.sign]


def _enter(numbers: dict[str, Numbers], of: str, value: Numbers) -> None:
    """Enter the column of a field; if there is one already, both must agree. Raises `MalformedError`."""
    before = numbers.get(of)
    if before is not None:
        none = NO_OFFSET if of == "offset" else ABSENT
        if ((before != value) & (before != none) & (value != none)).any():
            raise MalformedError
        value = np.where(before == none, value, before)
    numbers[of] = value


def _in_micros(value: Numbers, digits: Numbers | np.int64) -> Numbers:
    scaled: Numbers = value * 10 ** np.maximum(6 - digits, 0) // 10 ** np.maximum(digits - 6, 0)
    return scaled


def _numbers_of(field: PatternField, column: pa.Array) -> Numbers:
    """Return the numbers that matched text stands for; empty text belongs to an absent part."""
    if field.number:
        numbers: Numbers = pc.if_else(pc.equal(column, ""), str(ABSENT), column).cast(pa.int64()).to_numpy()
        return numbers
    # There are few distinct texts, and each is converted once.
    encoded = pc.ascii_lower(column).dictionary_encode()
    values = np.array([_number_of(field, text) for text in encoded.dictionary.to_pylist()], np.int64)
    taken: Numbers = values[encoded.indices.to_numpy()] if len(values) else np.zeros(0, np.int64)
    return taken


def _number_of(field: PatternField, text: str) -> int:
    if field.of == "offset":
        return _offset_seconds(text)
    return field.form.split("|").index(text) + (field.of != "half") if text else ABSENT


def _offset_seconds(text: str) -> int:
    """Return the seconds of an offset."""
    if text in {"", "z"}:
        return 0 if text else NO_OFFSET
    digits = text[1:].replace(":", "").ljust(6, "0")
    hours, minutes, seconds = (int(digits[place : place + 2]) for place in (0, 2, 4))
    total = hours * 3600 + minutes * 60 + seconds
    if max(minutes, seconds) >= 60:  # noqa: PLR2004 - minutes of an hour, seconds of a minute
        return _NO_SUCH_OFFSET
    return -total if text[0] == "-" else total


def _placed(values: Numbers, text: pa.Array, kind: type[np.int32 | np.int64]) -> pa.Array:
    """Return the values for the rows of `text` that are not null, in their places."""
    if not text.null_count:
        return pa.array(values.astype(kind))
    known = text.is_valid().to_numpy(zero_copy_only=False)
    placed = np.zeros(len(text), kind)
    placed[known] = values
    return pa.array(placed, mask=~known)


@lru_cache(maxsize=64)
def compiled(pattern: str, name: str = "the pattern") -> TimePattern:
    """Return a reader for a Spark pattern; `name` is the option that gave it. `OptionError` for a pattern that is not supported."""
    return TimePattern(elements_of(pattern, name))
