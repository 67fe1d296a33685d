"""Which directory a row belongs to: the `bucketBy` template, over columns and the batch's time.

`dt={ts:%Y-%m-%d}/country={country}` has the fields `{column}` and `{column:time format}`; `{a.b}` is a member of a struct;
`{time:%Y-%m-%d}` is the time of the batch, unless the data has a column `time`. Times are in the sink's `timeZone`, never
the machine's, and the batch's time comes from its beginning, the same for all tasks: a replay elsewhere names the same
bucket. What a value is written as is in `values`.

Values are escaped as Hive does (`%` and two hex digits for `/`, `=`, `%`, `:`, control characters and the like), and also
where they could leave the path or hide a directory: `.` and `_` at the beginning of a name. `unescape` gives them back.
Null, and the empty string as in Spark, go to `__HIVE_DEFAULT_PARTITION__`. No value can therefore contain a separator,
and a bucket is always below the output directory.

Rows are told apart by the distinct values of a batch, not one by one.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.clock import SECOND_NS
from penstock.errors import TemplateError
from penstock.sink.names import check_time, directives, template_fields, written
from penstock.sink.values import texts

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile(r"[\x00-\x1f\"#%'*/:=?\\\x7f{\[\]^]")
_NAME_BYTES_MAX = 255
_DAYS = frozenset("aAbBCdDeFgGhjmnutUVwWxyY%")  # strftime directives that show no more than the day
_HOURS = _DAYS | frozenset("HIklpP")
_MINUTES = _HOURS | frozenset("MR")
_BUCKET_BYTES_MAX = 2048  # half of what Linux takes as a path: the rest is for where the output is
_BATCH_TIME = "time"
_PART = re.compile(r"(`(?:[^`]|``)+`)|([^.`]+)")
_NUMBERS = 1 << 62


def escape(value: str) -> str:
    """Return `value` as part of a directory's name."""
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", value)


def unescape(name: str) -> str:
    """Return the value that `escape` (and the guard of a name's first character) was given."""
    return unquote(name, errors="strict")


def _guard(component: str) -> str:
    """Keep a directory's name from being hidden, or from being `.` or `..`."""
    if component[0] in "._" and component != DEFAULT_PARTITION:
        return f"%{ord(component[0]):02X}{component[1:]}"
    return component


@dataclass(frozen=True)
class BucketField:
    """A field of a template: the names that lead to a value, of a column and of members of structs; none: the batch's time.

    `spec` is the format of a time, empty if there is none.
    """

    path: tuple[str, ...]
    spec: str


@dataclass(frozen=True)
class BucketTemplate:
    """A checked `bucketBy` template for data of one schema; `columns` are those that it needs, each once."""

    template: str
    zone: str
    fields: tuple[BucketField, ...]
    columns: tuple[str, ...]

    @staticmethod
    def of(template: str, schema: pa.Schema, *, zone: str) -> BucketTemplate:
        """Check the template against the data's schema; `TemplateError` if a row could not be placed by it."""
        if template.startswith("/") or "\0" in template or any(part in {"", ".", ".."} for part in template.split("/")):
            msg = f"bucketBy={template!r} must be a relative path without empty, '.' or '..' parts, such as dt={{ts:%Y-%m-%d}}"
            raise TemplateError(msg)
        if template.startswith("_penstock"):
            msg = f"bucketBy={template!r}: _penstock is where the sink keeps its state; choose another name"
            raise TemplateError(msg)
        fields = tuple(_field(template, name, spec, schema) for name, spec in template_fields(template))
        columns = tuple(dict.fromkeys(field.path[0] for field in fields if field.path))
        return BucketTemplate(template, zone, fields, columns)

    @property
    def follows_from_rows(self) -> bool:
        """Tell whether a row's bucket can be told from the row: not if the template has the time of the batch."""
        return all(field.path for field in self.fields)

    @property
    def droppable(self) -> tuple[str, ...]:
        """The columns that a directory holds the whole of; `TemplateError` if it holds but a member of one."""
        member = next((field for field in self.fields if len(field.path) > 1), None)
        if member is not None:
            msg = (
                f"bucketBy={self.template!r} names a member of the column {member.path[0]!r}, which cannot be left out of the "
                "data by itself; leave dropBucketColumns out, or select it as a column of its own"
            )
            raise TemplateError(msg)
        return self.columns

    def split(self, batch: pa.RecordBatch, time_ns: int) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield (bucket, its rows in order); `batch` has the template's columns, buckets come in no set order."""
        if batch.num_rows == 0:
            return
        coded = [self._coded(batch, field, time_ns) for field in self.fields]
        wide = [(codes, values) for codes, values in coded if len(values) > 1]
        if not wide:
            yield self._bucket([values[0] for _, values in coded]), batch
            return
        _, first, group = np.unique(_mixed(wide, batch.num_rows), return_index=True, return_inverse=True)
        order = np.argsort(group, kind="stable")
        bounds = np.searchsorted(group[order], np.arange(len(first) + 1))
        rows = batch.take(pa.array(order))
        for i, row in enumerate(first):
            bucket = self._bucket([values[codes[row]] for codes, values in coded])
            yield bucket, rows.slice(bounds[i], bounds[i + 1] - bounds[i])

    def _coded(
        self, batch: pa.RecordBatch, field: BucketField, time_ns: int
    ) -> tuple[np.ndarray[Any, Any], list[str | None]]:
        """Return a code a row and the text each code stands for."""
        if not field.path:
            moment = datetime.fromtimestamp(time_ns / SECOND_NS, ZoneInfo(self.zone))
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
        """Round down to what the time format can show, so that distinct values are few; in local time, which has no gaps."""
        if column.type.tz is not None:
            column = column.cast(pa.timestamp("us", tz=self.zone))
            if directives(spec) & {"z", "Z"}:
                return column
            column = pc.local_timestamp(column)
        return _floor(column, spec)

    def _texts(self, values: pa.Array, spec: str) -> list[str | None]:
        try:
            if not spec:
                return texts(values)
            # Python's own strftime: the values are few, and Arrow's prints fractions of seconds for %S
            return [None if value is None else written(value, spec) for value in values.to_pylist()]
        except (OverflowError, ValueError) as error:
            msg = f"bucketBy={self.template!r}: a time is not in the years 1 to 9999 ({error}); mend it, or bucket by another column"
            raise TemplateError(msg) from error

    def _bucket(self, values: list[str | None]) -> str:
        """Return the escaped relative directory for one combination of values."""
        fields = iter(values)
        path = ""
        for literal, name, _, _ in string.Formatter().parse(self.template):
            path += literal
            if name is not None:
                value = next(fields)
                path += _escaped(value) if value else DEFAULT_PARTITION
        components = [_guard(component) for component in path.split("/")]
        self._check_lengths(path, components)
        return "/".join(components)

    def _check_lengths(self, path: str, components: list[str]) -> None:
        """Raise `TemplateError` for names that no file system takes."""
        for component in components:
            if len(component.encode()) > _NAME_BYTES_MAX:
                msg = (
                    f"bucketBy={self.template!r}: a value makes a directory name of {len(component.encode())} bytes "
                    f"({component[:40]!r}...), at most {_NAME_BYTES_MAX} are possible; bucket by something shorter"
                )
                raise TemplateError(msg)
        if len(path.encode()) > _BUCKET_BYTES_MAX:
            msg = (
                f"bucketBy={self.template!r}: values make a path of {len(path.encode())} bytes, at most {_BUCKET_BYTES_MAX} "
                "are possible; bucket by something shorter"
            )
            raise TemplateError(msg)


def _mixed(coded: list[tuple[np.ndarray[Any, Any], list[str | None]]], count: int) -> np.ndarray[Any, Any]:
    """Return one number for each of `count` rows, equal where all its codes are."""
    mixed, span = np.zeros(count, np.int64), 1
    for codes, values in coded:
        if span * len(values) > _NUMBERS:  # it would wrap, and rows of two buckets could meet in one
            mixed = np.unique(mixed, return_inverse=True)[1]
            span = count
        mixed, span = mixed * len(values) + codes, span * len(values)
    return mixed


def _escaped(value: str) -> str:
    """Return a value that is there: one that is spelled as null is not null."""
    return f"%5F{value[1:]}" if value == DEFAULT_PARTITION else escape(value)


def _merged(codes: np.ndarray[Any, Any], texts: list[str | None]) -> tuple[np.ndarray[Any, Any], list[str | None]]:
    """Give values that are written alike (03 o'clock of two days) one code."""
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    if len(places) == len(texts):
        return codes, texts
    return np.array([places[text] for text in texts])[codes], list(places)


def _floor(column: pa.Array, spec: str) -> pa.Array:
    shown = directives(spec)
    units = {"day": _DAYS, "hour": _HOURS, "minute": _MINUTES}
    unit = next((unit for unit, letters in units.items() if spec and shown <= letters), None)
    return column if unit is None else pc.floor_temporal(column, unit=unit)


def _field(template: str, name: str, spec: str, schema: pa.Schema) -> BucketField:
    """Return the checked field of a template: a column, a member of one, or the time of the batch."""
    where = f"bucketBy={template!r}"
    check_time(where, spec)
    if name == _BATCH_TIME and name not in schema.names:
        return BucketField((), spec)
    path, kind = _found(where, name, schema)
    if spec and not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        msg = f"{where}: {{{name}:{spec}}} needs a timestamp or a date, {name!r} is {kind}"
        raise TemplateError(msg)
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        msg = f"{where}: a column of type {kind} cannot name a directory; choose another than {name!r}"
        raise TemplateError(msg)
    return BucketField(path, spec)


def _found(where: str, name: str, schema: pa.Schema) -> tuple[tuple[str, ...], pa.DataType]:
    """Return the names that lead to what a template names, and its type.

    As Spark does by default: `a.b` is member `b` of column `a`, unless there is a column `a.b`; names in backticks may hold
    dots; case counts only where it tells two names apart.
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
    """Return the field of this name, exactly or else but for its case; `None` if there is none."""
    alike = [field for field in fields if field.name == name]
    alike = alike or [field for field in fields if field.name.lower() == name.lower()]
    if len(alike) > 1:
        names = ", ".join(field.name for field in alike)
        msg = f"{where}: the data has several columns {name!r} ({names}); give them names of their own"
        raise TemplateError(msg)
    return alike[0] if alike else None


def _parts(name: str) -> list[str]:
    """Return the parts of a name with dots between them; a part in backticks may hold dots, and a backtick as two."""
    parts = _PART.findall(name)
    whole = ".".join(quoted or plain for quoted, plain in parts)
    if whole != name:
        return [name]
    return [quoted[1:-1].replace("``", "`") if quoted else plain for quoted, plain in parts]
