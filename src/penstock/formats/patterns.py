r"""Times and dates in a form that the user says, by Spark's patterns: `dd/MMM/yyyy:HH:mm:ss Z`.

Spark hands such a pattern to Java, whose language is large; what is here is the part of it that logs and exports have, and
each other letter is refused by name when the query starts. A pattern is a row of fields and of text, with parts in
brackets that need not be there. What a value means depends on that value alone, as everywhere:

*By columns.* A pattern has a few layouts: where its fields lie in bytes, with each part that may be missing and each number of
one digit or two there or not. Values of the length of one are a table of bytes, a field a few columns of it. Every other
value is matched by a regular expression made of the pattern, at a twentieth of the speed. Both give numbers by field, and
`_Moments` makes times of these, so that the quick way reads what the slow one would.

*As Java's strict resolver has it.* There is no 31st of February, and no 24 o'clock but with `k`; a fraction has as many digits as
the pattern has `S`, or fewer, one at least. Names of months are English, of either case, and so is other text of
the pattern. What the pattern leaves out is that of 1970-01-01 00:00:00, in the zone that is that of times without one.

*Where numbers touch* (`yyyyMMdd`), all but the first must be of a fixed length, or where one ends could not be told: Java
accepts such patterns and then refuses every value. They are refused with the pattern here.
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

from penstock.errors import OptionError
from penstock.formats.malformed import MalformedError
from penstock.formats.spans import extents
from penstock.formats.zones import UTC, instants

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

_LOCAL_MICROS = pa.timestamp("us")
_MICROS, _DAY_MICROS = 1_000_000, 86_400_000_000
_ABSENT = -1  # of fields, none of which is negative
_NO_OFFSET = 1 << 40  # seconds
_OFFSET_SECONDS_MAX = 18 * 3600  # Java's
_NO_SUCH_OFFSET = 1 << 30
_MONTHS = (
    "january february march april may june july august september october november december".split()  # noqa: SIM905 - shorter so
)
_HALVES = ("am", "pm")
_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|(.)", re.DOTALL)
_CENTURY, _EPOCH_YEAR = 2000, 1970  # the one of a year of two digits
_OFFSET_LENGTH = len("+01:00")
_DIGITS_32 = 9
# Days and times as nearly everybody writes them, as expressions: what looks so is one. 29 February, which not every year has, does not.
USUAL_DAY = "[0-9]{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
USUAL_TIME = rf"{USUAL_DAY}(?:[T ](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,6}})?(?:Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])?)?"
_LAYOUTS_MAX = 64  # ways to lie in bytes that are looked at; others are left to the regular expression


@dataclass(frozen=True)
class TimeForms:
    """How times are written: the zone of those that say none, and the patterns of each type, `None` for ISO 8601."""

    zone: str = UTC
    timestamp: str | None = None
    timestamp_ntz: str | None = None
    date: str | None = None

    def pattern_of(self, kind: pa.DataType) -> str | None:
        """Return the pattern of values of this type."""
        if types.is_timestamp(kind):
            return self.timestamp if kind.tz else self.timestamp_ntz
        return self.date if types.is_date32(kind) else None


@dataclass(frozen=True)
class _Field:
    """A field of a pattern: `of` is what it says, `form` what its text looks like, `width` its length if that is fixed.

    `number`: it is digits, `varies`: of more than one length.
    """

    of: str
    form: str
    width: int | None = None
    number: bool = True

    @property
    def varies(self) -> bool:
        return self.width is None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The lengths that a layout can have for it, the one that is tried first first."""
        if self.of == "offset":
            return tuple(size for size in (1, 5, 6) if re.fullmatch(self.form, {1: "Z", 5: "+0100", 6: "+01:00"}[size]))
        if not self.number:
            return () if self.width is None else (self.width,)
        longest = self.width or next(size for size in range(9, 0, -1) if re.fullmatch(self.form, "1" * size))
        return tuple(size for size in range(longest, 0, -1) if re.fullmatch(self.form, "1" * size))


@dataclass(frozen=True)
class _Words:
    """Text of the pattern itself."""

    text: str


@dataclass(frozen=True)
class _Bracket:
    """The beginning or the end of a part that need not be there."""

    sign: str


_Element = _Field | _Words | _Bracket


def _one_or_two(of: str) -> dict[int, _Field]:
    return {1: _Field(of, r"\d{1,2}"), 2: _Field(of, r"\d{2}", 2)}


def _name(of: str, names: tuple[str, ...]) -> _Field:
    width = len(names[0]) if len({len(name) for name in names}) == 1 else None
    return _Field(of, "|".join(names), width, number=False)


def _offset(form: str) -> _Field:
    return _Field("offset", form, number=False)


_MONTH = _one_or_two("month") | {
    3: _name("short month", tuple(name[:3] for name in _MONTHS)),
    4: _name("long month", tuple(_MONTHS)),
}
_SIGNED = {1: r"[+-]\d{2}(?:\d{2})?", 2: r"[+-]\d{4}", 3: r"[+-]\d{2}:\d{2}", 5: r"[+-]\d{2}:\d{2}(?::\d{2})?"}
_BASIC = _offset(_SIGNED[2])
_FIELDS: dict[str, dict[int, _Field]] = {
    "y": {1: _Field("year", r"\d{1,4}"), 2: _Field("short year", r"\d{2}", 2), 4: _Field("year", r"\d{4}", 4)},
    "M": _MONTH,
    "L": _MONTH,
    "d": _one_or_two("day"),
    "D": {1: _Field("day of year", r"\d{1,3}"), 3: _Field("day of year", r"\d{3}", 3)},
    "H": _one_or_two("hour"),
    "k": _one_or_two("hour from 1"),
    "h": _one_or_two("half hour from 1"),
    "K": _one_or_two("half hour"),
    "m": _one_or_two("minute"),
    "s": _one_or_two("second"),
    "S": {digits: _Field("fraction", rf"\d{{1,{digits}}}", digits) for digits in range(1, 10)},
    "a": {1: _name("half", _HALVES)},
    "X": {digits: _offset(f"Z|{form}") for digits, form in _SIGNED.items()},
    "x": {digits: _offset(form) for digits, form in _SIGNED.items()},
    "Z": {1: _BASIC, 2: _BASIC, 3: _BASIC, 5: _offset(f"Z|{_SIGNED[5]}")},
}
_NOT_READ = {
    "E": "names of days are written, and not read, by Spark either; cut them off in the query",
    "Y": "years of weeks are none of the calendar; y is the year",
    "u": "Spark has no u; y is the year",
    "G": "there is one era here",
    "V": "a zone by its name cannot be told from another text; timeZone is that of all values",
    "z": "a short name of a zone means several zones; timeZone is that of all values",
    "O": "offsets are read by X, x and Z",
}
_PARSED = ", ".join(letter * count for letter, counts in _FIELDS.items() for count in (min(counts), max(counts)))
# What says the same thing twice, in ways that would have to be compared.
_EXCLUSIVE = (
    ("year", "short year"),
    ("month", "short month", "long month", "day of year"),
    ("day", "day of year"),
    ("hour", "hour from 1", "half hour", "half hour from 1"),
)
_BOUNDS = {
    "year": (0, 9999),
    "month": (1, 12),
    "day": (1, 31),
    "day of year": (1, 366),
    "hour": (0, 23),
    "hour from 1": (1, 24),
    "half hour from 1": (1, 12),
    "half hour": (0, 11),
    "minute": (0, 59),
    "second": (0, 59),
}


class TimePattern:
    """A pattern, ready to read columns by. Made by `compiled`."""

    def __init__(self, elements: tuple[_Element, ...]) -> None:
        self._fields = [element for element in elements if isinstance(element, _Field)]
        form = "".join(_expressions(elements))
        self._form = f"(?is)^{form}$"
        self.looks = rf'(?is)^"?(?:{form})"?$|\\'  # what may be such a time, in quotes or not, or has an escape
        self._layouts = list(islice(_layouts(elements), _LAYOUTS_MAX))

    def parse(self, text: pa.Array, kind: pa.DataType, zone: str) -> pa.Array:
        """Return what the strings (or nulls) of `text` stand for; `zone` is that of times without one. `MalformedError`."""
        present = text.drop_null() if text.null_count else text
        days, micros, offsets = self._read(present)
        if types.is_date32(kind):
            return _placed(days, text, np.int32).view(kind)
        local = days * _DAY_MICROS + micros
        here = offsets == _NO_OFFSET
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
        """Return of each value the days since 1970, the microseconds of the day, and the offset in seconds."""
        days, micros = np.zeros(len(text), np.int64), np.zeros(len(text), np.int64)
        offsets = np.full(len(text), _NO_OFFSET)
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
            _Moments(numbers, len(rows)).enter(rows, days, micros, offsets)
            if not left.any():
                return days, micros, offsets
        rows = np.flatnonzero(left)
        if len(rows):
            numbers = self._matched(text.take(pa.array(rows)))
            _Moments(numbers, len(rows)).enter(rows, days, micros, offsets)
        return days, micros, offsets

    def _matched(self, text: pa.Array) -> dict[str, Numbers]:
        """Return the numbers by the regular expression, `_ABSENT` where a value does not have the field."""
        groups = pc.extract_regex(text, self._form)
        if groups.null_count:
            raise MalformedError
        numbers: dict[str, Numbers] = {}
        for field, column in zip(self._fields, groups.flatten(), strict=True):
            value = _numbers_of(field, column)
            if field.of == "fraction":
                digits = pc.binary_length(column).to_numpy().astype(np.int64)
                value = np.where(value == _ABSENT, value, _in_micros(value, digits))
            _enter(numbers, field.of, value)
        return numbers


@dataclass(frozen=True)
class _Layout:
    """One way that values of a pattern lie in bytes: fields of these sizes, and text of the pattern."""

    parts: tuple[tuple[_Field | _Words, int], ...]

    @property
    def width(self) -> int:
        return sum(size for _, size in self.parts)

    def read(self, starts: Numbers, data: npt.NDArray[np.uint8]) -> tuple[Flags, dict[str, Numbers]]:
        """Return which of the values lie so, and the numbers of all; those of the others are of no meaning."""
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
            if isinstance(part, _Words):
                for column, code in zip(columns, part.text.encode(), strict=True):
                    fold = np.uint8(32 * bytes([code]).isalpha())  # of either case, as the regular expression has it
                    fits &= column | fold == code | fold
            else:
                value = _READERS.get(part.of, _digits)(columns, fits, part)
                fits &= (
                    numbers.setdefault(part.of, value) == value
                )  # a second one says the same, or it is another layout
        return fits, numbers


def _digits(columns: npt.NDArray[np.uint8], fits: Flags, field: _Field) -> Numbers:
    """Return the number that digits are, microseconds for a fraction; take out of `fits` what has others."""
    value = np.zeros(columns.shape[1], np.int32 if len(columns) <= _DIGITS_32 else np.int64)
    for column in columns:
        digit = column - ord("0")  # what is less wraps around
        fits &= digit <= 9  # noqa: PLR2004 - a digit
        value *= 10
        value += digit
    wide: Numbers = value.astype(np.int64)
    return _in_micros(wide, np.int64(len(columns))) if field.of == "fraction" else wide


def _word(columns: npt.NDArray[np.uint8], fits: Flags, field: _Field) -> Numbers:
    """Return the number of a name, all of which are of one length."""
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


def _shifts(columns: npt.NDArray[np.uint8], fits: Flags, field: _Field) -> Numbers:
    """Return the seconds of offsets: hours and minutes, with a colon or without one, or Z."""
    if len(columns) == 1:
        fits &= columns[0] | 32 == ord("z")
        return np.zeros(columns.shape[1], np.int64)
    colon = len(columns) == _OFFSET_LENGTH
    if colon:
        fits &= columns[3] == ord(":")
    fits &= (columns[0] == ord("+")) | (columns[0] == ord("-"))
    hours, minutes = _digits(columns[1:3], fits, field), _digits(columns[3 + colon :], fits, field)
    seconds = hours * 3600 + minutes * 60
    seconds = np.where(minutes > 59, _NO_SUCH_OFFSET, seconds)  # noqa: PLR2004 - of an hour
    return np.where(columns[0] == ord("-"), -seconds, seconds)


_READERS = {"short month": _word, "half": _word, "offset": _shifts}


def _layouts(elements: tuple[_Element, ...]) -> Iterator[_Layout]:
    """Yield how values of a pattern may lie, in the order in which the regular expression would try them.

    What lies otherwise, such as long names of months, is left to that.
    """
    for parts in product(*(_ways(group) for group in _groups(elements))):
        yield _Layout(tuple(chain(*parts)))


_Parts = tuple[tuple["_Field | _Words", int], ...]


def _groups(elements: tuple[_Element, ...]) -> Iterator[tuple[_Element, ...]]:
    """Yield the elements that are outside of brackets, each by itself, and what is inside of a pair with that pair."""
    depth, begin = 0, 0
    for place, element in enumerate(elements):
        if isinstance(element, _Bracket):
            begin = place if depth == 0 else begin
            depth += 1 if element.sign == "[" else -1
            if depth == 0:
                yield elements[begin : place + 1]
        elif depth == 0:
            yield (element,)


def _ways(group: tuple[_Element, ...]) -> Iterator[_Parts]:
    """Yield the ways in which one group may lie."""
    first = group[0]
    if isinstance(first, _Bracket):
        yield from (layout.parts for layout in _layouts(group[1:-1]))
        yield ()
    elif isinstance(first, _Words):
        yield ((first, len(first.text.encode())),)
    else:
        yield from (((first, size),) for size in first.sizes)


def _expressions(elements: tuple[_Element, ...]) -> Iterator[str]:
    """Yield the regular expression of each element, the fields as groups of their own."""
    count = 0
    for element in elements:
        if isinstance(element, _Words):
            yield re.escape(element.text)
        elif isinstance(element, _Field):
            yield f"(?P<f{count}>{element.form})"
            count += 1
        else:
            yield {"[": "(?:", "]": ")?"}[element.sign]


def _enter(numbers: dict[str, Numbers], of: str, value: Numbers) -> None:
    """Enter the column of a field; a second one of the same field must say the same. Raises `MalformedError`."""
    before = numbers.get(of)
    if before is not None:
        none = _NO_OFFSET if of == "offset" else _ABSENT
        if ((before != value) & (before != none) & (value != none)).any():
            raise MalformedError
        value = np.where(before == none, value, before)
    numbers[of] = value


def _in_micros(value: Numbers, digits: Numbers | np.int64) -> Numbers:
    scaled: Numbers = value * 10 ** np.maximum(6 - digits, 0) // 10 ** np.maximum(digits - 6, 0)
    return scaled


def _numbers_of(field: _Field, column: pa.Array) -> Numbers:
    """Return the numbers that matched text stands for: an empty one is of a part that is not there."""
    if field.number:
        numbers: Numbers = pc.if_else(pc.equal(column, ""), str(_ABSENT), column).cast(pa.int64()).to_numpy()
        return numbers
    # Few different ones: each is looked at once.
    encoded = pc.ascii_lower(column).dictionary_encode()
    values = np.array([_number_of(field, text) for text in encoded.dictionary.to_pylist()], np.int64)
    taken: Numbers = values[encoded.indices.to_numpy()] if len(values) else np.zeros(0, np.int64)
    return taken


def _number_of(field: _Field, text: str) -> int:
    if field.of == "offset":
        return _offset_seconds(text)
    return field.form.split("|").index(text) + (field.of != "half") if text else _ABSENT


def _offset_seconds(text: str) -> int:
    """Return the seconds that an offset means."""
    if text in {"", "z"}:
        return 0 if text else _NO_OFFSET
    digits = text[1:].replace(":", "").ljust(6, "0")
    hours, minutes, seconds = (int(digits[place : place + 2]) for place in (0, 2, 4))
    total = hours * 3600 + minutes * 60 + seconds
    if max(minutes, seconds) >= 60:  # noqa: PLR2004 - of an hour, of a minute
        return _NO_SUCH_OFFSET
    return -total if text[0] == "-" else total


class _Moments:
    """Numbers by field, and what they mean together. Raises `MalformedError` for what is none, such as a 31st of February."""

    def __init__(self, numbers: Mapping[str, Numbers], count: int) -> None:
        self._numbers = numbers
        self._count = count
        for of, (low, high) in _BOUNDS.items():
            column = numbers.get(of)
            if (
                column is not None
                and count
                and (column.max() > high or (column.min() < low and self._odd(column, low)))
            ):
                raise MalformedError

    def enter(self, rows: Numbers, days: Numbers, micros: Numbers, offsets: Numbers) -> None:
        """Put what the numbers mean into the columns, at these rows."""
        days[rows], micros[rows] = self._days(), self._micros()
        shifts = self._numbers.get("offset")
        if shifts is not None:
            if ((np.abs(shifts) > _OFFSET_SECONDS_MAX) & (shifts != _NO_OFFSET)).any():
                raise MalformedError
            offsets[rows] = shifts

    @staticmethod
    def _odd(column: Numbers, low: int) -> bool:
        return bool(((column < low) & (column != _ABSENT)).any())

    def _days(self) -> Numbers:
        """Return the days since 1970."""
        year = (
            self._of("short year", _EPOCH_YEAR - _CENTURY) + _CENTURY
            if "short year" in self._numbers
            else self._of("year", _EPOCH_YEAR)
        )
        months = (year - _EPOCH_YEAR) * 12 + self._month() - 1
        low, high = (int(months.min()), int(months.max())) if self._count else (0, 0)
        firsts = np.arange(low, high + 2).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
        first: Numbers = firsts[months - low]
        if "day of year" in self._numbers:
            days: Numbers = first + self._of("day of year", 1) - 1
            if (days.astype("datetime64[D]").astype("datetime64[Y]").astype(np.int64) + _EPOCH_YEAR != year).any():
                raise MalformedError
            return days
        if "day" not in self._numbers:
            return first
        days = first + self._of("day", 1) - 1
        if (days >= firsts[months - low + 1]).any():
            raise MalformedError
        return days

    def _micros(self) -> Numbers:
        """Return the microseconds since midnight."""
        micros = self._hour() * 3_600_000_000
        for of, size in (("minute", 60_000_000), ("second", _MICROS), ("fraction", 1)):
            if of in self._numbers:
                micros = micros + self._of(of, 0) * size
        return micros

    def _month(self) -> Numbers:
        of = next((of for of in ("month", "short month", "long month") if of in self._numbers), "month")
        return self._of(of, 1)

    def _hour(self) -> Numbers:
        half = self._of("half", 0)
        for of in ("half hour", "half hour from 1"):
            if of in self._numbers:
                return self._of(of, 0) % 12 + 12 * half
        hour = self._of("hour from 1", 0) % 24 if "hour from 1" in self._numbers else self._of("hour", 0)
        if "half" in self._numbers and (hour // 12 != half).any():
            raise MalformedError
        return hour

    def _of(self, of: str, default: int) -> Numbers:
        """Return a field, the default where a value does not have it."""
        column = self._numbers.get(of)
        if column is None:
            return np.full(self._count, default, np.int64)
        return np.where(column == _ABSENT, default, column) if self._count and column.min() == _ABSENT else column


def _placed(values: Numbers, text: pa.Array, kind: type[np.int32 | np.int64]) -> pa.Array:
    """Return the values of what is not null in `text`, in their places."""
    if not text.null_count:
        return pa.array(values.astype(kind))
    known = text.is_valid().to_numpy(zero_copy_only=False)
    placed = np.zeros(len(text), kind)
    placed[known] = values
    return pa.array(placed, mask=~known)


@lru_cache(maxsize=64)
def compiled(pattern: str, name: str = "the pattern") -> TimePattern:
    """Return what reads by a pattern of Spark's; `name` is the option it was given by. `OptionError` for one not read here."""
    elements = tuple(_elements(pattern, name))
    depth = 0
    touching: _Field | None = None
    for element in elements:
        if isinstance(element, _Bracket):
            depth += 1 if element.sign == "[" else -1
            if depth < 0:
                break
        elif isinstance(element, _Words):
            touching = None
        else:
            _check_touching(touching, element, pattern, name)
            touching = element if element.number else None
    if depth:
        msg = f"{name}={pattern!r} has a bracket without the other one; expected pairs, such as yyyy-MM-dd[ HH:mm]"
        raise OptionError(msg)
    _check_said_once([element.of for element in elements if isinstance(element, _Field)], pattern, name)
    return TimePattern(elements)


def _check_touching(before: _Field | None, field: _Field, pattern: str, name: str) -> None:
    if before is None or not field.number or not (field.varies and field.of != "fraction"):
        return
    msg = (
        f"{name}={pattern!r}: where a number ends cannot be told, {before.of} and {field.of} touch; expected letters twice, such as "
        "yyyyMMddHHmmss, or something between them"
    )
    raise OptionError(msg)


def _check_said_once(fields: list[str], pattern: str, name: str) -> None:
    if not fields:
        msg = f"{name}={pattern!r} has no field of a date or time; expected a pattern such as yyyy-MM-dd HH:mm:ss"
        raise OptionError(msg)
    for group in _EXCLUSIVE:
        fields_given = [of for of in group if of in fields]
        if len(fields_given) > 1:
            msg = f"{name}={pattern!r} says {fields_given[0]} and {fields_given[1]}, which are one thing in two ways; expected one of them"
            raise OptionError(msg)


def _elements(pattern: str, name: str) -> Iterator[_Element]:
    """Yield what a pattern consists of. Raises `OptionError` for what is not read here."""
    at = 0
    while at < len(pattern):
        match = _TOKEN.match(pattern, at)
        if match is None:
            msg = f"{name}={pattern!r} has a quote without the other one; text stands between two, and '' is a quote"
            raise OptionError(msg)
        at = match.end()
        quoted, letter, other = match.groups()
        if quoted is not None:
            yield _Words(quoted.replace("''", "'") or "'")
        elif letter:
            yield _field(letter, len(match[0]), pattern, name)
        elif other in "[]":
            yield _Bracket(other)
        elif other in "{}#'":
            msg = f"{name}={pattern!r}: {other!r} has no meaning yet in Spark's patterns; put text between quotes, such as 'T'"
            raise OptionError(msg)
        else:
            yield _Words(other)


def _field(letter: str, count: int, pattern: str, name: str) -> _Field:
    counts = _FIELDS.get(letter, {})
    if count in counts:
        return counts[count]
    if counts:
        expected = f"expected {' or '.join(letter * known for known in counts)}"
    else:
        expected = _NOT_READ.get(
            letter, f"what is read is {_PARSED}, text between quotes, and [parts that may be missing]"
        )
    msg = f"{name}={pattern!r}: {letter * count} is not read here; {expected}"
    raise OptionError(msg)
