"""The `bucketBy` template, which says by columns and the batch's time which directory a row belongs to.

`dt={ts:%Y-%m-%d}/country={country}` has the fields `{column}` and `{column:time format}`; `{a.b}` is a member of a struct;
`{time:%Y-%m-%d}` is the time of the batch, unless the data has a column `time`. Times are in the sink's `timeZone`, never the
machine's. The batch's time is that of its beginning, the same for all tasks, so a replay on another machine names the same
bucket. `values` defines how a value is written.

Values are escaped as Hive does it (`%` and two hex digits for `/`, `=`, `%`, `:`, control characters and the like). Characters
that could lead out of the path or hide a directory are escaped too: `.` and `_` at the beginning of a name, and the dot of an
ending such as `.tmp`, because sources take such directories for unfinished ones. `unescape` returns the value. Null, and the
empty string as in Spark, become `__HIVE_DEFAULT_PARTITION__`. So no value contains a separator, and a bucket is always below the
output directory.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from penstock.errors import TemplateError
from penstock.sink.fields import Field, Fields, column_fields, grouped
from penstock.sink.names import UNFINISHED, check_literals, check_tells, template_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile(r"[\x00-\x1f\"#%'*/:=?\\\x7f{\[\]^]")
_NAME_BYTES_MAX = 255
_BUCKET_BYTES_MAX = 2048  # half of the longest path on Linux; the other half is for the path of the output
_BATCH_TIME = "time"
_ANY = "\0"  # no template contains it
_FIRST = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")  # the first of the names that lead to a value


def escape(value: str) -> str:
    """Return `value` as part of a directory's name."""
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", value)


def unescape(name: str) -> str:
    """Return the value that `escape` (and the guard of a name's first character) was given."""
    return unquote(name, errors="strict")


def guarded(name: str) -> str:
    """Keep a name from being hidden, or from being `.` or `..`."""
    return f"%{ord(name[0]):02X}{name[1:]}" if name[0] in "._" else name


def _guard(component: str) -> str:
    """Keep a directory's name from being hidden or taken for unfinished. The name for null stays: all readers know it."""
    if component == DEFAULT_PARTITION:
        return component
    for ending in UNFINISHED:
        if component.endswith(ending):
            component = f"{component.removesuffix(ending)}%2E{ending[1:]}"
    return guarded(component)


@dataclass(frozen=True)
class BucketTemplate(Fields):
    """A checked `bucketBy` template for data of one schema."""

    template: str = ""

    @staticmethod
    def of(template: str, schema: pa.Schema, *, zone: str) -> BucketTemplate:
        """Check the template against the data's schema; `TemplateError` if it could not place a row."""
        if template.startswith("/") or "\0" in template or any(part in {"", ".", ".."} for part in template.split("/")):
            msg = f"bucketBy={template!r} must be a relative path without empty, '.' or '..' parts, such as dt={{ts:%Y-%m-%d}}"
            raise TemplateError(msg)
        if template.startswith("_penstock"):
            msg = f"bucketBy={template!r}: _penstock is where the sink keeps its state; choose another name"
            raise TemplateError(msg)
        where = f"bucketBy={template!r}"
        _check_text(where, template, schema)
        fields = (_bucket_field(where, name, spec, schema) for name, spec in template_fields(template))
        return BucketTemplate(where, zone, tuple(fields), template)

    def split(self, batch: pa.RecordBatch, time_ns: int) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield (bucket, its rows in order); `batch` has the template's columns. The order of the buckets is not defined."""
        for values, rows in grouped(batch, self.coded(batch, time_ns)):
            yield self.place(values), rows

    def place(self, values: Iterable[str | None]) -> str:
        """Return the escaped relative directory for one combination of values."""
        fields = iter(values)
        path = ""
        for literal, name, _, _ in string.Formatter().parse(self.template):
            path += literal
            if name is not None:
                value = next(fields)
                path += spelled(value) if value else DEFAULT_PARTITION
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


def columns_in(template: str) -> frozenset[str]:
    """Return the columns that a template names, in lower case, without a look at the data; `time` is the batch's time, not a column."""
    firsts = (_FIRST.match(name) for name, _ in template_fields(template) if name != _BATCH_TIME)
    return frozenset((first[1] or first[2]).replace("``", "`").lower() for first in firsts if first)


def spelled(value: str) -> str:
    """Return a value that is not null as part of a name; text that looks like the name for null is escaped."""
    return f"%5F{value[1:]}" if value == DEFAULT_PARTITION else escape(value)


def _check_text(where: str, template: str, schema: pa.Schema) -> None:
    """Raise `TemplateError` for text that is probably a mistake, such as a column's name in a template without any field."""
    fields = template_fields(template)
    check_literals(where, template, template.split("/"))
    if fields:
        return
    columns = {name.lower(): name for name in schema.names}
    for component in template.split("/"):
        column = columns.get(component.rpartition("=")[2].strip("${}`").lower())
        if column is not None:
            msg = (
                f"{where} is one directory for all rows, though it names the column {column!r}; expected the column in braces, "
                f"such as bucketBy={column}={{{column}}}"
            )
            raise TemplateError(msg)


def _bucket_field(where: str, name: str, spec: str, schema: pa.Schema) -> Field:
    """Return the checked field of a template: a column, a member of one, or the time of the batch."""
    if not name:
        msg = (
            f"{where} has a field without a name; expected a column, such as country={{country}}, or {{time:%Y-%m-%d}}"
        )
        raise TemplateError(msg)
    if name == _BATCH_TIME and name not in schema.names:
        check_tells(where, spec)
        return Field((), spec)
    return column_fields(where, [(name, spec)], schema)[0]


def shape(template: str | None) -> re.Pattern[str]:
    """Return a pattern that every bucket of a `bucketBy` template matches, and that most buckets of other templates do not match.

    No template: the pattern matches the output itself.
    """
    parts = string.Formatter().parse(template or "")
    text = "".join(literal + (_ANY if name is not None else "") for literal, name, _, _ in parts)
    guarded_text = "/".join(_guard(component) for component in text.split("/")) if text else ""
    return re.compile(re.escape(guarded_text).replace(re.escape(_ANY), "[^/]+"))
