"""Makes the statistics of a file for Delta's log from its footer. Readers of the table skip files by them.

A missing bound costs a reader time; a wrong bound costs rows. So only exact bounds of Parquet are used: those of whole numbers,
days, short texts and instants, which are rounded outwards to milliseconds. Floats are left out, because bounds do not cover NaN.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

_TEXT_CHARACTERS = 64  # longer bounds would make the log long
_MILLISECOND_US = 1000


def column_statistics(footer: Any, schema: pa.Schema) -> dict[str, Any]:  # noqa: ANN401 - pyarrow's FileMetaData
    """Return `numRecords`; and `minValues`, `maxValues` and `nullCount` of the columns for which they are known."""
    nulls: dict[str, int] = {}
    bounds: dict[str, tuple[Any, Any]] = {}
    for name, chunks in _counted_columns(footer, schema):
        nulls[name] = sum(chunk.null_count for chunk in chunks)
        if bound := _bounds(chunks):
            bounds[name] = bound
    return {
        "numRecords": footer.num_rows,
        "minValues": {name: least for name, (least, _) in bounds.items()},
        "maxValues": {name: greatest for name, (_, greatest) in bounds.items()},
        "nullCount": nulls,
    }


def _bounds(chunks: list[Any]) -> tuple[Any, Any] | None:
    """Return the least and the greatest value of a column's chunks in Delta's form; `None` if they are unknown."""
    filled = [chunk for chunk in chunks if chunk.num_values]
    if not filled or not all(chunk.has_min_max for chunk in filled):
        return None
    least = _bound(min(chunk.min for chunk in filled), up=False)
    greatest = _bound(max(chunk.max for chunk in filled), up=True)
    return None if least is None or greatest is None else (least, greatest)


def _counted_columns(footer: Any, schema: pa.Schema) -> Iterator[tuple[str, list[Any]]]:  # noqa: ANN401 - pyarrow's FileMetaData
    """Yield the columns that are not nested, with the statistics of their chunks, if these count nulls."""
    import pyarrow as pa

    flat = {field.name for field in schema if not pa.types.is_nested(field.type)}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for index in range(footer.num_columns):
        column = footer.schema.column(index)
        chunks = [group.column(index).statistics for group in groups]
        if column.path == column.name in flat and all(chunk and chunk.has_null_count for chunk in chunks):
            yield column.path, chunks


def _bound(value: object, *, up: bool) -> Any:  # noqa: ANN401 - what JSON takes
    """Return a bound in Delta's form; `None` if it is left out."""
    if isinstance(value, datetime):
        rest = timedelta(microseconds=value.microsecond % _MILLISECOND_US)
        try:
            whole = value - rest + (timedelta(milliseconds=1) if up and rest else timedelta())
        except OverflowError:
            return None
        text = whole.replace(tzinfo=None).isoformat(timespec="milliseconds")
        return text if value.tzinfo is None else f"{text}Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return value if isinstance(value, str) and len(value) <= _TEXT_CHARACTERS else None
