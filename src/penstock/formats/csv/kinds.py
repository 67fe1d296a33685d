r"""The kinds of values in CSV and in the names of directories, as Spark infers them (`inferSchema`, `preferDate`).

A value is the first of these that it fits: a whole number (`int`, `bigint`, a decimal without digits after the point),
a double, a date, a time, a boolean; otherwise it is text. Each kind is tested with the code that reads it later
(`scalars.parse`), so that everything inferred can be read. Forms that Spark takes for a number or a time and our reader
does not (`1d`; `12:30`, a time of the current day) are text. If patterns say how times are written, times are the
values that fit the patterns.
"""

from __future__ import annotations

import re
from collections import Counter
from decimal import Decimal
from functools import cache, partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.account import Account
from penstock.formats.csv.cut import record_starts
from penstock.formats.csv.decoder import CsvDecoder, header_names
from penstock.formats.format import ReadFormat
from penstock.formats.malformed import MalformedError, misfitting
from penstock.formats.scalars import ISO_8601, parse
from penstock.formats.schema import UTC_MICROS
from penstock.formats.seen import ValueExample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from penstock.formats.patterns import TimeForms
    from penstock.formats.seen import Room, Seen

    Where = Callable[[int], str]  # from a byte of a block to the path of its file

_DIGITS_MAX = 38
_SHOWN = 200


class _Form(NamedTuple):
    """How values of a kind look, and the type that they are read as; a value that only looks like it is text.

    `None`: whatever can be read as the type looks like it.
    """

    kind: str
    pattern: str | None
    type: pa.DataType


_DAY = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIME = r"^\s*[0-9]{4}-[0-9]{1,2}(?:-[0-9]{1,2}(?:[ T].*)?)?\s*$"
_CLOCK_IN_NAMES = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9])?")
_TEXT_IN_NAMES = re.compile(r"(?i:true|false)|[+-]?Inf")
_NUMBER_IN_NAMES = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.?[0-9]+)(?:[eE][+-]?[0-9]{1,9})?")
_WHOLE = r"^[+-]?[0-9]+$"
_FORMS = (
    _Form("int", _WHOLE, pa.int32()),
    _Form("bigint", _WHOLE, pa.int64()),
    _Form(
        "double",
        r"^\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*$|^(?:NaN|[+-]?Inf(?:inity)?)$",
        pa.float64(),
    ),
    _Form("date", _DAY, pa.date32()),
    _Form("timestamp", _TIME, UTC_MICROS),
    _Form("boolean", r"(?i)^(?:true|false)$", pa.bool_()),
)


class CsvKinds:
    """Examines blocks of CSV records, and enters the kinds in `seen`, by the names of a header or as `_c0`, `_c1`, ..."""

    sorts: ClassVar[bool] = False
    tells_times: ClassVar[bool] = True

    def __init__(self, fmt: ReadFormat, seen: Seen, room: Room) -> None:
        self._fmt = fmt
        self._seen = seen
        self._room = room
        self._names: tuple[str, ...] | None = None
        self._decoder: CsvDecoder | None = None
        self._several: set[str] = set()  # names that a header has several times; no column is found by them
        self._settled: set[str] = set()  # columns that are text, whatever follows

    def take(self, block: bytes, where: Where, columns: tuple[str, ...] | None = None) -> int:
        """Enter the kinds in the records of a block; see `Kinds`."""
        names = columns if columns is not None else self._names or self._numbered(block)
        if not names:
            return 0
        if names != self._names or self._decoder is None:
            self._names, self._several = names, several(names)
            schema = pa.schema([(name, pa.string()) for name in names])
            self._decoder = CsvDecoder(ReadFormat(self._fmt.name, schema, csv=self._fmt.csv), Account())
        batch = self._decoder.decode(block)
        starts = cache(partial(self._decoder.starts, block))  # only examples need it
        for name, column in zip(names, batch.columns, strict=True):
            if name in self._several:
                continue
            member = self._seen.member(name, self._room)
            if name not in self._settled and batch.num_rows:
                self._enter(name, member, column, lambda column, at: _example(column, at, where, starts()))
        return int(batch.num_rows)

    def _enter(
        self, name: str, member: Seen, column: pa.Array, example: Callable[[pa.Array, int], ValueExample]
    ) -> None:
        """Enter the kinds in a column."""
        for kind, at in kinds(column, self._fmt.times):
            member.add(kind, partial(example, column, at))
            if kind == "string":
                self._settled.add(name)

    def starts(self, block: bytes) -> npt.NDArray[np.int64]:
        """Return where each record begins; see `Kinds`."""
        return record_starts(block, self._fmt.csv)

    def _numbered(self, block: bytes) -> tuple[str, ...]:
        starts = record_starts(block, self._fmt.csv)
        first = block[starts[0] : starts[1] if len(starts) > 1 else len(block)] if len(starts) else b""
        count = len(header_names(first, self._fmt.csv)) if first.strip() else 0
        return tuple(f"_c{place}" for place in range(count))


def several(names: Sequence[str]) -> set[str]:
    """Return the names that occur more than once."""
    return {name for name, count in Counter(names).items() if count > 1}


def _example(column: pa.Array, at: int, where: Where, starts: npt.NDArray[np.int64]) -> ValueExample:
    return ValueExample(where(int(starts[at])), column[at].as_py()[:_SHOWN])


def kinds(text: pa.Array, times: TimeForms = ISO_8601) -> list[tuple[str, int]]:
    """Return the kinds among strings, each with the place of a value of it; null and the empty string have no kind.

    If there is text, other kinds may be left out.
    """
    filled = pc.greater(pc.binary_length(text), 0).fill_null(fill_value=False)
    places = np.flatnonzero(filled.to_numpy(zero_copy_only=False))
    if not len(places):
        return []
    values = text if len(places) == len(text) else text.filter(filled)
    first = _kind_of(values.slice(0, 1), times)
    if first == "string":
        return [(first, int(places[0]))]
    known = next((form for form in _forms(times) if form.kind == first), None)
    if known is not None and first != "int" and _are(values, known, times):
        return [(first, int(places[0]))]
    return [(kind, int(places[at])) for kind, at in _each(values, times)]


def _forms(times: TimeForms) -> list[_Form]:
    """Return the forms; those of times follow the patterns."""
    return [form if times.pattern_of(form.type) is None else form._replace(pattern=None) for form in _FORMS]


def _kind_of(value: pa.Array, times: TimeForms) -> str:
    return _each(value, times)[0][0]


def _like(values: pa.Array, form: _Form, times: TimeForms) -> npt.NDArray[np.bool_]:
    """Tell which values look like the form."""
    if form.pattern is not None:
        like: npt.NDArray[np.bool_] = pc.match_substring_regex(values, form.pattern).to_numpy(zero_copy_only=False)
        return like
    like = np.ones(len(values), np.bool_)
    like[[place for place, _ in misfitting(values, partial(parse, kind=form.type, name="", times=times))]] = False
    return like


def _each(values: pa.Array, times: TimeForms) -> list[tuple[str, int]]:
    """Return the kinds of values, none of which may be null or empty."""
    if _are(values, _FORMS[1], times):
        return _whole(values, np.arange(len(values)))
    kinds_there: list[tuple[str, int]] = []
    left = np.arange(len(values))
    for form in _forms(times)[1:]:
        if not len(left):
            return kinds_there
        like = _like(values, form, times)
        chosen, rest = left[like], left[~like]
        if not len(chosen):
            continue
        fitting = values.filter(pa.array(like))
        if form.kind == "bigint":
            kinds_there += _whole(fitting, chosen)
        elif _is(fitting, form.type, times):
            kinds_there.append((form.kind, int(chosen[0])))
        else:
            kinds_there.append(("string", int(chosen[0])))
        left, values = rest, values.filter(pa.array(~like))
    return [*kinds_there, ("string", int(left[0]))] if len(left) else kinds_there


def _whole(values: pa.Array, places: npt.NDArray[np.int64]) -> list[tuple[str, int]]:
    """Return the kinds of whole numbers, by their size; `places` is where they are."""
    digits = pc.ascii_ltrim(pc.utf8_ltrim(values, "+-"), "0")
    count = pc.binary_length(digits).to_numpy()
    sizes = []
    limits = (("int", 1 << 31), ("bigint", 1 << 63))
    left = np.ones(len(values), np.bool_)
    negative = pc.starts_with(values, "-").to_numpy(zero_copy_only=False)
    for kind, limit in limits:
        most = str(limit - 1)
        bound = pc.if_else(pa.array(negative), str(limit), most)
        same = count == len(most)
        fits = (count < len(most)) | (same & pc.less_equal(digits, bound).to_numpy(zero_copy_only=False))
        chosen = np.flatnonzero(left & fits)
        if len(chosen):
            sizes.append((kind, int(places[chosen[0]])))
        left &= ~fits
    for length in np.unique(count[left]).tolist():
        first = np.flatnonzero(left & (count == length))[0]
        sizes.append((_decimal(length), int(places[first])))
    return sizes


def _decimal(digits: int) -> str:
    """Return the kind of a whole number that has too many digits for others."""
    return f"decimal({digits},0)" if digits <= _DIGITS_MAX else "double"


def _are(values: pa.Array, form: _Form, times: TimeForms) -> bool:
    """Tell whether all values look like the form and are of its type."""
    if not _is(values, form.type, times):
        return False
    return form.pattern is None or bool(pc.all(pc.match_substring_regex(values, form.pattern)).as_py())


def _is(values: pa.Array, kind: pa.DataType, times: TimeForms) -> bool:
    """Tell whether the reader accepts all values for this type."""
    try:
        parse(values, kind, "", times)
    except MalformedError:
        return False
    return True


def partition_kinds(written: list[str], meant: list[str]) -> list[tuple[str, int]]:
    """Return the kinds of the values that directories have for one column, like `kinds`.

    `written` is how the values stand in the names of directories, `meant` is what they are without escapes.
    """
    special: list[tuple[str, int]] = []
    places: list[int] = []
    for at, (raw, text) in enumerate(zip(written, meant, strict=True)):
        kind = _kind_in_name(raw, text)
        if kind is None:
            places.append(at)
        else:
            special.append((kind, at))
    try:
        column = pa.array([meant[at] for at in places], pa.string())
    except UnicodeEncodeError:
        return [*special, ("string", places[0])]
    return [*special, *((kind, places[at]) for kind, at in kinds(column))]


def _kind_in_name(written: str, meant: str) -> str | None:
    """Return the kind of a value that Spark's partition discovery takes for something else than its reader of CSV does.

    There `true`, `Inf`, `2024-1` and a time with more than one digit after its seconds are text, a number such as `1e3` or `5.` is a
    decimal, and a value with escapes is a time or text, since all but times are looked for in the name as it is written. Whole numbers
    are told from doubles, with which `kinds` takes them together.
    """
    if _TEXT_IN_NAMES.fullmatch(meant):
        return "string"
    clock = _CLOCK_IN_NAMES.fullmatch(meant) is not None
    if not clock and (written != meant or (re.match(_TIME, meant) and not re.match(_DAY, meant))):
        return "string"
    return _kind_of_number(written) if _NUMBER_IN_NAMES.fullmatch(written) else None


def _kind_of_number(written: str) -> str:
    """Return the kind of a number: one with digits after its point, as it is written without an exponent, is a double."""
    _, digits, exponent = Decimal(written).as_tuple()
    if int(exponent) < 0:
        return "double"
    if written.lstrip("+-").isdigit():
        for kind, limit in (("int", 1 << 31), ("bigint", 1 << 63)):
            if -limit <= int(written) < limit:
                return kind
    return _decimal(len(digits) + int(exponent))
