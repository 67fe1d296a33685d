"""Finds the columns that templates name in a schema, and writes their values as text: one code for each row, and one text for each code.

`{column}` and `{column:time format}` are fields; `{a.b}` is a member of a struct. A name in backticks is always a column. Times
are in the sink's `timeZone`, never the machine's. `values` defines how a value is written.

The work is done for each distinct value of a batch, not for each row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.clock import SECOND_NS
from penstock.errors import TemplateError
from penstock.formats.schema import UTC_MICROS
from penstock.formats.zones import local_times, rules
from penstock.sink.names import check_tells, directives, written
from penstock.sink.values import texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_DAYS = frozenset("aAbBCdDeFgGhjmnutUVwWxyY%")  # strftime directives that show no more than the day
_HOURS = _DAYS | frozenset("HIklpP")
_MINUTES = _HOURS | frozenset("MR")
_PART = re.compile(r"(`(?:[^`]|``)+`)|([^.`]+)")
_NUMBERS = 1 << 62
_SHORT = 1 << 16

Coded = tuple["np.ndarray[Any, Any]", list[str | None]]


@dataclass(frozen=True)
class Field:
    """A field of a template.

    `path` holds the names that lead to a value: a column, then members of structs; it is empty for the batch's time. `spec` is
    the format of a time, empty if there is none.
    """

    path: tuple[str, ...]
    spec: str


@dataclass(frozen=True)
class Fields:
    """The fields of one template, in its order; `where` is how messages name it. Times are in `zone`."""

    where: str
    zone: str
    fields: tuple[Field, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the template needs, without repetitions."""
        return tuple(dict.fromkeys(field.path[0] for field in self.fields if field.path))

    @property
    def follows_from_rows(self) -> bool:
        """Tell whether the row alone determines all fields; it does not if one of them is the batch's time."""
        return all(field.path for field in self.fields)

    @property
    def droppable(self) -> tuple[str, ...]:
        """The columns whose whole value is in the path; `TemplateError` if the path has only a member of a column."""
        member = next((field for field in self.fields if len(field.path) > 1), None)
        if member is not None:
            msg = (
                f"{self.where} names a member of the column {member.path[0]!r}, which cannot be left out of the "
                "data by itself; leave dropBucketColumns out, or select it as a column of its own"
            )
            raise TemplateError(msg)
        return self.columns

    def coded(self, batch: pa.RecordBatch, time_ns: int) -> list[Coded]:
        """Return for each field a code for each row, and the text of each code."""
        return [self._coded(batch, field, time_ns) for field in self.fields]

    def _coded(self, batch: pa.RecordBatch, field: Field, time_ns: int) -> Coded:
        """Return a code for each row, and the text of each code."""
        if not field.path:
            moment = datetime.fromtimestamp(time_ns / SECOND_NS, rules(self.zone))
            return np.zeros(batch.num_rows, np.int64), [written(moment, field.spec or "%Y-%m-%d")]
        column, *members = field.path
        values = batch.column(column)
        if members:
            values = pc.struct_field(values, members)
        if pa.types.is_timestamp(values.type):
            values = self._floored(values, field.spec)
        coded = values.dictionary_encode(null_encoding="encode")
        named = [text or None for text in self._texts(coded.dictionary, field.spec)]
        return _merged(coded.indices.to_numpy(zero_copy_only=False), named)

    def _floored(self, column: pa.Array, spec: str) -> pa.Array:
        """Round down to what the time format can show, so that distinct values are few. Rounds in local time, which has no gaps."""
        if column.type.tz is not None:
            if directives(spec) & {"z", "Z"}:
                return column.cast(pa.timestamp("us", tz=self.zone))
            column = local_times(column.cast(UTC_MICROS), self.zone)
        return _floor(column, spec)

    def _texts(self, values: pa.Array, spec: str) -> list[str | None]:
        try:
            if not spec:
                return texts(values)
            # Python's own strftime: the values are few, and Arrow's prints fractions of seconds for %S
            return [None if value is None else written(value, spec) for value in values.to_pylist()]
        except (OverflowError, ValueError) as error:
            msg = f"{self.where}: a time is not in the years 1 to 9999 ({error}); mend it, or name another column"
            raise TemplateError(msg) from error


def grouped(batch: pa.RecordBatch, coded: Sequence[Coded]) -> Iterator[tuple[list[str | None], pa.RecordBatch]]:
    """Yield the texts of all fields and the rows that have them, in order. The order of the groups is not defined."""
    if batch.num_rows == 0:
        return
    wide = [(codes, values) for codes, values in coded if len(values) > 1]
    if not wide:
        yield [values[0] for _, values in coded], batch
        return
    order, bounds = _sorted(*_mixed(wide, batch.num_rows))
    rows = batch.take(pa.array(order))
    for begin, end in pairwise(bounds):
        first = order[begin]
        yield [values[codes[first]] for codes, values in coded], rows.slice(begin, end - begin)


def _sorted(numbers: np.ndarray[Any, Any], span: int) -> tuple[np.ndarray[Any, Any], list[int]]:
    """Return the places of numbers below `span` in the order of the numbers, equal ones as they come, and where each number begins."""
    # Numbers of 16 bits are sorted by their digits, and not by comparing them.
    numbers = np.unique(numbers, return_inverse=True)[1] if span > _SHORT else numbers.astype(np.uint16)
    counts = np.bincount(numbers)
    return np.argsort(numbers, kind="stable"), [0, *np.cumsum(counts[counts > 0]).tolist()]


def column_fields(where: str, fields: Iterable[tuple[str, str]], schema: pa.Schema) -> tuple[Field, ...]:
    """Return the checked fields of a template that are columns, or members of one; `TemplateError`."""
    return tuple(_field(where, name, spec, schema) for name, spec in fields)


def _field(where: str, name: str, spec: str, schema: pa.Schema) -> Field:
    check_tells(where, spec)
    path, kind = _found(where, name, schema)
    if spec and not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        msg = (
            f"{where}: {{{name}:{spec}}} needs a timestamp or a date, {name!r} is {kind}; read the column as one, by its type in the "
            "schema, or make one of it in the query: to_timestamp of a text, timestamp_millis or timestamp_seconds of a number"
        )
        raise TemplateError(msg)
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        msg = f"{where}: a column of type {kind} cannot name a directory or a file; choose another than {name!r}"
        raise TemplateError(msg)
    return Field(path, spec)


def _mixed(coded: list[Coded], count: int) -> tuple[np.ndarray[Any, Any], int]:
    """Return one number for each of `count` rows, and a bound above all; two rows have the same number if all their codes are equal."""
    mixed, span = np.zeros(count, np.int64), 1
    for codes, values in coded:
        if span * len(values) > _NUMBERS:  # the number would overflow, and rows of two buckets could get the same one
            mixed = np.unique(mixed, return_inverse=True)[1]
            span = count
        mixed, span = mixed * len(values) + codes, span * len(values)
    return mixed, span


def _merged(codes: np.ndarray[Any, Any], texts: list[str | None]) -> Coded:
    """Give values with the same text one code, such as 03 o'clock of two days."""
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    if len(places) == len(texts):
        return codes, texts
    return np.array([places[text] for text in texts])[codes], list(places)


def _floor(column: pa.Array, spec: str) -> pa.Array:
    shown = directives(spec)
    units = {"day": _DAYS, "hour": _HOURS, "minute": _MINUTES}
    unit = next((unit for unit, letters in units.items() if spec and shown <= letters), None)
    return column if unit is None else pc.floor_temporal(column, unit=unit)


def _found(where: str, name: str, schema: pa.Schema) -> tuple[tuple[str, ...], pa.DataType]:
    """Return the names that lead to the value of a template's field, and the value's type.

    Follows Spark's defaults: `a.b` is member `b` of column `a`, unless there is a column `a.b`. Names in backticks may hold dots.
    Case matters only if two names differ in nothing else.
    """
    column = _named(where, name, list(schema))
    if column is not None:
        return (column.name,), column.type
    path: list[str] = []
    kind: pa.DataType = pa.struct(list(schema))
    for part in _parts(name):
        member = _named(where, part, list(kind)) if pa.types.is_struct(kind) else None
        if member is None:
            msg = f"{where}: there is no column {name!r}; the data has {', '.join(schema.names)}"
            raise TemplateError(msg)
        path.append(member.name)
        kind = member.type
    return tuple(path), kind


def _named(where: str, name: str, fields: list[pa.Field]) -> pa.Field | None:
    """Return the field with exactly this name, or else one that differs only in case; `None` if there is none."""
    alike = [field for field in fields if field.name == name]
    alike = alike or [field for field in fields if field.name.lower() == name.lower()]
    if len(alike) > 1:
        names = ", ".join(field.name for field in alike)
        msg = f"{where}: the data has several columns {name!r} ({names}); give them names of their own"
        raise TemplateError(msg)
    return alike[0] if alike else None


def _parts(name: str) -> list[str]:
    """Return the parts of a name that dots separate; a part in backticks may hold dots, and a doubled backtick stands for one."""
    parts = _PART.findall(name)
    whole = ".".join(quoted or plain for quoted, plain in parts)
    if whole != name:
        return [name]
    return [quoted[1:-1].replace("``", "`") if quoted else plain for quoted, plain in parts]
