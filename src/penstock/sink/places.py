"""Where a row goes: a directory, by `bucketBy`, and in it the files of a name, by the columns of `fileName`.

So each row says which file it goes to, as in IBM Streams by an attribute; but rows of A, B and A again are in one file A, which
stays open meanwhile, and whose next file has the next number. What a value is written as, and how it is escaped, is as in
`buckets`. Beyond that a name must be seen by readers, so its own first character is guarded also where it is that of null:
`%5F%5FHIVE_DEFAULT_PARTITION__`, which no text is spelled as.

A place is a value, and the name in it a template of `names` with its columns filled in: what is fixed when a part is opened is kept
with the part, and a sink that goes on with another `fileName` closes its parts under the names they were opened for.
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
        """Check the columns against the data's schema; `TemplateError` if a row could not be placed by them."""
        where = names.where
        try:
            fields = column_fields(where, names.columns, schema)
        except TemplateError as error:
            msg = f"{error.message}; fields that are no columns are {known_fields()}"
            raise TemplateError(msg) from error
        return FileColumns(where, names.zone, fields, names)

    def place(self, values: Sequence[str | None]) -> str:
        """Return the template of a part's names for one combination of values; `""` without columns."""
        if not values:
            return ""
        texts = [spelled(value) if value else DEFAULT_PARTITION for value in values]
        if self.names.begins_with_column:
            texts[0] = guarded(texts[0]) if values[0] else _NULL_FIRST
        return self.names.filled(texts)


@dataclass(frozen=True)
class Places:
    """What `bucketBy` and the columns of `fileName` say of rows of one schema."""

    buckets: BucketTemplate | None
    files: FileColumns

    @property
    def is_one(self) -> bool:
        """Whether all rows go to one place, which `split` need not be asked for."""
        return self.buckets is None and not self.files.fields

    @property
    def follows_from_rows(self) -> bool:
        """Tell whether a row's place can be told from the row: not if `bucketBy` has the time of the batch."""
        return self.buckets is None or self.buckets.follows_from_rows

    @property
    def droppable(self) -> tuple[str, ...]:
        """The columns that places hold the whole of; `TemplateError` if one holds but a member of a column."""
        buckets = () if self.buckets is None else self.buckets.droppable
        return tuple(dict.fromkeys([*buckets, *self.files.droppable]))

    def split(self, batch: pa.RecordBatch, time_ns: int) -> Iterator[tuple[Destination, pa.RecordBatch]]:
        """Yield (place, its rows in order); `batch` has the columns of the templates, places come in no set order."""
        coded = [] if self.buckets is None else self.buckets.coded(batch, time_ns)
        of_bucket = len(coded)
        for values, rows in grouped(batch, [*coded, *self.files.coded(batch, time_ns)]):
            bucket = "" if self.buckets is None else self.buckets.place(values[:of_bucket])
            yield Destination(bucket, self.files.place(values[of_bucket:])), rows
