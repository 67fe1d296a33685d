"""Which directory a row belongs to: the `bucketBy` template, over columns and the batch's time.

`dt={ts:%Y-%m-%d}/country={country}` has the fields `{column}` and `{column:time format}`; `{time:%Y-%m-%d}` is the time of
the batch, unless the data has a column `time`. Times are in the sink's `timeZone`, never the machine's, and the batch's
time comes from its beginning, the same for all tasks: a replay elsewhere names the same bucket.

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

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile(r"[\x00-\x1f\"#%'*/:=?\\\x7f{}\[\]^]")
_NAME_BYTES_MAX = 255
_DAYS = frozenset("aAbBCdDeFgGhjmnutUVwWxyY%")  # strftime directives that show no more than the day
_HOURS = _DAYS | frozenset("HIklpP")
_MINUTES = _HOURS | frozenset("MR")
_BUCKET_BYTES_MAX = 2048  # half of what Linux takes as a path: the rest is for where the output is
_BATCH_TIME = "time"
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
class BucketTemplate:
    """A checked `bucketBy` template for data of one schema."""

    template: str
    zone: str
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
        columns = []
        for name, spec in template_fields(template):
            _check_field(template, name, spec, schema)
            if name in schema.names and name not in columns:
                columns.append(name)
        return BucketTemplate(template, zone, tuple(columns))

    def split(self, batch: pa.RecordBatch, time_ns: int) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield (bucket, its rows in order); `batch` has the template's columns, buckets come in no set order."""
        if batch.num_rows == 0:
            return
        coded = [self._coded(batch, name, spec, time_ns) for name, spec in template_fields(self.template)]
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
        self, batch: pa.RecordBatch, name: str, spec: str, time_ns: int
    ) -> tuple[np.ndarray[Any, Any], list[str | None]]:
        """Return a code a row and the text each code stands for."""
        if name not in self.columns:
            moment = datetime.fromtimestamp(time_ns / SECOND_NS, ZoneInfo(self.zone))
            return np.zeros(batch.num_rows, np.int64), [written(moment, spec or "%Y-%m-%d")]
        column = batch.column(name)
        if pa.types.is_timestamp(column.type):
            column = self._floored(column, spec)
        coded = column.dictionary_encode(null_encoding="encode")
        texts = [text or None for text in self._texts(coded.dictionary, spec)]
        return _merged(coded.indices.to_numpy(zero_copy_only=False), texts)

    def _floored(self, column: pa.Array, spec: str) -> pa.Array:
        """Round down to what the time format can show, so that distinct values are few; in local time, which has no gaps."""
        if column.type.tz is not None:
            column = column.cast(pa.timestamp("us", tz=self.zone))
            if not spec or directives(spec) & {"z", "Z"}:
                return column
            column = pc.local_timestamp(column)
        return _floor(column, spec)

    def _texts(self, values: pa.Array, spec: str) -> list[str | None]:
        if pa.types.is_temporal(values.type):
            # Python's own strftime: the values are few, and Arrow's prints fractions of seconds for %S
            try:
                return [None if v is None else written(v, spec) if spec else str(v) for v in values.to_pylist()]
            except (OverflowError, ValueError) as error:
                msg = f"bucketBy={self.template!r}: a time is not in the years 1 to 9999 ({error}); mend it, or bucket by another column"
                raise TemplateError(msg) from error
        if pa.types.is_boolean(values.type):
            return [None if v is None else str(v).lower() for v in values.to_pylist()]
        texts: list[str | None] = values.cast(pa.string()).to_pylist()
        return texts

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
        return "/".join(components)


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


def _check_field(template: str, name: str, spec: str, schema: pa.Schema) -> None:
    if name not in schema.names:
        if name == _BATCH_TIME:
            check_time(f"bucketBy={template!r}", spec)
            return
        msg = f"bucketBy={template!r}: there is no column {name!r}; the data has {', '.join(schema.names)}"
        raise TemplateError(msg)
    if schema.names.count(name) > 1:
        msg = f"bucketBy={template!r}: the data has several columns {name!r}; give them names of their own"
        raise TemplateError(msg)
    kind = schema.field(name).type
    if spec and not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        msg = f"bucketBy={template!r}: {{{name}:{spec}}} needs a timestamp or a date, {name!r} is {kind}"
        raise TemplateError(msg)
    check_time(f"bucketBy={template!r}", spec)
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        msg = f"bucketBy={template!r}: a column of type {kind} cannot name a directory; choose another than {name!r}"
        raise TemplateError(msg)
