"""The elements of a pattern of times: its fields, the text between them, and the optional parts in brackets.

The tables follow Spark's patterns, as far as they are supported here; `patterns` reads columns by them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MONTHS = (
    "january february march april may june july august september october november december".split()  # noqa: SIM905 - it is shorter
)
_HALVES = ("am", "pm")
_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|(.)", re.DOTALL)


@dataclass(frozen=True)
class PatternField:
    """A field of a pattern: `of` says which, `form` is the form of its text, `width` its length if that is fixed.

    `number`: its text is digits.
    """

    of: str
    form: str
    width: int | None = None
    number: bool = True

    @property
    def varies(self) -> bool:
        """Whether its text may have more than one length."""
        return self.width is None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The lengths that it may have in a layout; the first is tried first."""
        if self.of == "offset":
            return tuple(size for size in (1, 5, 6) if re.fullmatch(self.form, {1: "Z", 5: "+0100", 6: "+01:00"}[size]))
        if not self.number:
            return () if self.width is None else (self.width,)
        longest = self.width or next(size for size in range(9, 0, -1) if re.fullmatch(self.form, "1" * size))
        return tuple(size for size in range(longest, 0, -1) if re.fullmatch(self.form, "1" * size))


@dataclass(frozen=True)
class PatternText:
    """Literal text of the pattern."""

    text: str


@dataclass(frozen=True)
class PatternBracket:
    """The beginning or the end of an optional part."""

    sign: str


Element = PatternField | PatternText | PatternBracket


def _one_or_two(of: str) -> dict[int, PatternField]:
    return {1: PatternField(of, r"\d{1,2}"), 2: PatternField(of, r"\d{2}", 2)}


def _name(of: str, names: tuple[str, ...]) -> PatternField:
    width = len(names[0]) if len({len(name) for name in names}) == 1 else None
    return PatternField(of, "|".join(names), width, number=False)


def _offset(form: str) -> PatternField:
    return PatternField("offset", form, number=False)


_MONTH = _one_or_two("month") | {
    3: _name("short month", tuple(name[:3] for name in _MONTHS)),
    4: _name("long month", tuple(_MONTHS)),
}
_SIGNED = {1: r"[+-]\d{2}(?:\d{2})?", 2: r"[+-]\d{4}", 3: r"[+-]\d{2}:\d{2}", 5: r"[+-]\d{2}:\d{2}(?::\d{2})?"}
_BASIC = _offset(_SIGNED[2])
_FIELDS: dict[str, dict[int, PatternField]] = {
    "y": {
        1: PatternField("year", r"\d{1,4}"),
        2: PatternField("short year", r"\d{2}", 2),
        4: PatternField("year", r"\d{4}", 4),
    },
    "M": _MONTH,
    "L": _MONTH,
    "d": _one_or_two("day"),
    "D": {1: PatternField("day of year", r"\d{1,3}"), 3: PatternField("day of year", r"\d{3}", 3)},
    "H": _one_or_two("hour"),
    "k": _one_or_two("hour from 1"),
    "h": _one_or_two("half hour from 1"),
    "K": _one_or_two("half hour"),
    "m": _one_or_two("minute"),
    "s": _one_or_two("second"),
    "S": {digits: PatternField("fraction", rf"\d{{1,{digits}}}", digits) for digits in range(1, 10)},
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
# Fields that say the same thing in different ways, and would have to be compared.
_EXCLUSIVE = (
    ("year", "short year"),
    ("month", "short month", "long month", "day of year"),
    ("day", "day of year"),
    ("hour", "hour from 1", "half hour", "half hour from 1"),
)


def elements_of(pattern: str, name: str) -> tuple[Element, ...]:
    """Return the elements of a pattern; `name` is the option that gave it. `OptionError` for a pattern that is not supported."""
    elements = tuple(_elements(pattern, name))
    depth = 0
    touching: PatternField | None = None
    for element in elements:
        if isinstance(element, PatternBracket):
            depth += 1 if element.sign == "[" else -1
            if depth < 0:
                break
        elif isinstance(element, PatternText):
            touching = None
        else:
            _check_touching(touching, element, pattern, name)
            touching = element if element.number else None
    if depth:
        msg = f"{name}={pattern!r} has a bracket without the other one; expected pairs, such as yyyy-MM-dd[ HH:mm]"
        raise OptionError(msg)
    _check_said_once([element.of for element in elements if isinstance(element, PatternField)], pattern, name)
    return elements


def _check_touching(before: PatternField | None, field: PatternField, pattern: str, name: str) -> None:
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
            msg = f"{name}={pattern!r} says {fields_given[0]} and {fields_given[1]}, which say one thing twice; expected one of them"
            raise OptionError(msg)


def _elements(pattern: str, name: str) -> Iterator[Element]:
    """Yield the elements of a pattern. Raises `OptionError` for what is not supported."""
    at = 0
    while at < len(pattern):
        match = _TOKEN.match(pattern, at)
        if match is None:
            msg = f"{name}={pattern!r} has a quote without the other one; text stands between two, and '' is a quote"
            raise OptionError(msg)
        at = match.end()
        quoted, letter, other = match.groups()
        if quoted is not None:
            yield PatternText(quoted.replace("''", "'") or "'")
        elif letter:
            yield _field(letter, len(match[0]), pattern, name)
        elif other in "[]":
            yield PatternBracket(other)
        elif other in "{}#'":
            msg = f"{name}={pattern!r}: {other!r} has no meaning yet in Spark's patterns; put text between quotes, such as 'T'"
            raise OptionError(msg)
        else:
            yield PatternText(other)


def _field(letter: str, count: int, pattern: str, name: str) -> PatternField:
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
