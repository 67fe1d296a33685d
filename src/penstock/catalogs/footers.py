"""Reads what a table needs to know about a finished file: length, columns, statistics, and the columns in the names of its directories."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.catalogs.statistics import column_statistics
from penstock.errors import BadFile, CatalogError
from penstock.formats.parquet import parquet_footer
from penstock.sink.buckets import DEFAULT_PARTITION, unescape
from penstock.storage import SeekableFile

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.sink.events import Event
    from penstock.sink.ledger import FinishedFile
    from penstock.storage import Storage

_NO_TEXT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True)
class TableFile:
    """A finished file that goes into a table. `footer` is pyarrow's `FileMetaData`.

    `partition` has the values (text or null) of directories `name=value` whose name is not a column of the file.
    """

    place: str  # the whole path of the file
    path: str  # the path below the output
    size: int
    modified_ns: int
    schema: pa.Schema
    partition: dict[str, str | None]
    footer: Any

    @cached_property
    def nulls(self) -> dict[str, int]:
        """The number of nulls in each column for which the footer has it."""
        nulls: dict[str, int] = column_statistics(self.footer, self.schema)["nullCount"]
        return nulls

    @property
    def rows(self) -> int:
        """Return how many rows the file has."""
        return int(self.footer.num_rows)


def table_file(storage: Storage, root: str, event: Event) -> TableFile:
    """Return what a table needs to know about the file of an event. Raises `NotThere`; `CatalogError` if it cannot be in a table."""
    import pyarrow as pa

    finished: FinishedFile = event.entry  # type: ignore[assignment]  # a mark has no file
    place = f"{root}/{finished.path}"
    _check_name(finished.path)
    with storage.open(place) as handle:
        entry = handle.info()
        if entry.size != finished.bytes:
            msg = (
                f"{place!r} has {entry.size} bytes, and had {finished.bytes} when it was published: it was altered; restore it from a "
                "copy (penstock verify names all such files), and run this again"
            )
            raise CatalogError(msg)
        schema, footer = _footer(SeekableFile(handle, entry.size), place)
    columns = pa.schema([pa.field(field.name, field.type) for field in schema])
    partition = {name: value for name, value in directories(finished.bucket) if name not in columns.names}
    return TableFile(place, finished.path, finished.bytes, entry.modified_ns, columns, partition, footer)


def _footer(file: SeekableFile, place: str) -> tuple[pa.Schema, Any]:
    try:
        return parquet_footer(file)
    except BadFile as error:
        msg = (
            f"{place!r} is no Parquet file that readers of a table can read ({error.message}); have the output "
            "written with format=parquet and without encryptTo, or follow another one (--sink)"
        )
        raise CatalogError(msg) from error


def directories(bucket: str) -> list[tuple[str, str | None]]:
    """Return names and values of the directories `name=value` of a bucket; `None` for null."""
    pairs = [component.partition("=") for component in bucket.split("/") if "=" in component]
    return [(unescape(name), None if value == DEFAULT_PARTITION else unescape(value)) for name, _, value in pairs]


def _check_name(path: str) -> None:
    """Raise `CatalogError` for a name that no table can hold, because its lists of files are text."""
    if _NO_TEXT.search(path):
        msg = (
            f"{path!r} has a name that a table cannot hold, with bytes that are not UTF-8 or with control characters: have it named "
            "otherwise (fileName, bucketBy), or pass over it (--skip)"
        )
        raise CatalogError(msg)
