"""Where a row goes: to a directory, by `bucketBy`, and there to the files of one name, by the columns of `fileName`.

So each row says which file it goes to, as with an attribute in IBM Streams. But rows of A, B and A again are in one file A, which
stays open meanwhile; the next file of A has the next number. Values are written and escaped as in `buckets`. In addition, readers
must see the file, so the first character of its name is escaped even in the name for null: `%5F%5FHIVE_DEFAULT_PARTITION__`,
which no text is written as.

A place is a value. The name in it is a template of `names` with its columns filled in. It is fixed when a part is opened and kept
with the part, so a sink that continues with another `fileName` closes its parts under the names that they were opened for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import TemplateError
from penstock.sink.buckets import DEFAULT_PARTITION, BucketTemplate, guarded, spelled
from penstock.sink.fields import Fields, column_fields, grouped
from penstock.sink.ledger import Destination
from penstock.sink.names import known_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from penstock.sink.names import NameTemplate

_NULL_FIRST = f"%5F%5F{DEFAULT_PARTITION[2:]}"


@dataclass(frozen=True)
class FileColumns(Fields):
    """The columns of a `fileName` template, checked for data of one schema; `names` is the template."""

    names: NameTemplate

    @staticmethod
    def of(names: NameTemplate, schema: pa.Schema) -> FileColumns:
        """Check the columns against the data's schema; `TemplateError` if they could not place a row."""
        where = names.where
        try:
            fields = column_fields(where, names.columns, schema)
        except TemplateError as error:
            msg = f"{error.message}; fields that are no columns are {known_fields()}"
            raise TemplateError(msg) from error
        return FileColumns(where, names.zone, fields, names)

    def place(self, values: Sequence[str | None]) -> str:
        """Return a part's name template for one combination of values; `""` without columns."""
        if not values:
            return ""
        texts = [spelled(value) if value else DEFAULT_PARTITION for value in values]
        if self.names.begins_with_column:
            texts[0] = guarded(texts[0]) if values[0] else _NULL_FIRST
        return self.names.filled(texts)


@dataclass(frozen=True)
class Places:
    """The checked `bucketBy` and columns of `fileName` for rows of one schema."""

    buckets: BucketTemplate | None
    files: FileColumns

    @property
    def is_one(self) -> bool:
        """Whether all rows go to one place, so that `split` need not be called."""
        return self.buckets is None and not self.files.fields

    @property
    def follows_from_rows(self) -> bool:
        """Tell whether the row alone determines its place; it does not if `bucketBy` has the batch's time."""
        return self.buckets is None or self.buckets.follows_from_rows

    @property
    def droppable(self) -> tuple[str, ...]:
        """The columns whose whole value is in a place; `TemplateError` if a place has only a member of a column."""
        buckets = () if self.buckets is None else self.buckets.droppable
        return tuple(dict.fromkeys([*buckets, *self.files.droppable]))

    def split(self, batch: pa.RecordBatch, time_ns: int) -> Iterator[tuple[Destination, pa.RecordBatch]]:
        """Yield (place, its rows in order); `batch` has the columns of the templates. The order of the places is not defined."""
        coded = [] if self.buckets is None else self.buckets.coded(batch, time_ns)
        of_bucket = len(coded)
        for values, rows in grouped(batch, [*coded, *self.files.coded(batch, time_ns)]):
            bucket = "" if self.buckets is None else self.buckets.place(values[:of_bucket])
            yield Destination(bucket, self.files.place(values[of_bucket:])), rows
