"""Batches of flat columns of every type that text formats can hold, for round-trip tests."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

UTC = dt.timezone.utc
TEXT = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("\",\n\r\t\\'\0 \ufeff\u2028")))
TIMES = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999))

VALUES: dict[pa.DataType, st.SearchStrategy[object]] = {
    pa.string(): TEXT,
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(1 << 7), (1 << 7) - 1),
    pa.int16(): st.integers(-(1 << 15), (1 << 15) - 1),
    pa.int32(): st.integers(-(1 << 31), (1 << 31) - 1),
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.date32(): st.dates(),
    pa.timestamp("us", tz="UTC"): st.one_of(TIMES, TIMES.map(lambda t: t.replace(microsecond=0))).map(
        lambda t: t.replace(tzinfo=UTC)
    ),
    pa.timestamp("us"): TIMES,
    pa.decimal128(10, 2): st.decimals(-99_999_999, 99_999_999, places=2),
    pa.decimal128(38, 18): st.decimals(-(10**20) + 1, 10**20 - 1, places=18),
    pa.decimal128(38, 0): st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal),
}


def flat_batches(
    *, others: dict[pa.DataType, st.SearchStrategy[object]] | None = None
) -> st.SearchStrategy[pa.RecordBatch]:
    """Return batches of up to five columns of any of these types, with arbitrary names and with nulls."""
    values = VALUES | (others or {})
    names = st.one_of(st.sampled_from(["a", "b", "id", "a_longer_name"]), TEXT.filter(bool))
    columns = st.dictionaries(names, st.sampled_from(list(values)), min_size=1, max_size=5)
    return st.tuples(columns, st.integers(0, 6)).flatmap(lambda drawn: _batch(drawn[0], drawn[1], values))


def _batch(
    columns: dict[str, pa.DataType], count: int, values: dict[pa.DataType, st.SearchStrategy[object]]
) -> st.SearchStrategy[pa.RecordBatch]:
    schema = pa.schema(list(columns.items()))
    arrays = [_array(kind, count, values[kind]) for kind in columns.values()]
    return st.tuples(*arrays).map(lambda drawn: pa.RecordBatch.from_arrays(list(drawn), schema=schema))


def _array(kind: pa.DataType, count: int, values: st.SearchStrategy[object]) -> st.SearchStrategy[pa.Array]:
    rows = st.lists(st.one_of(values, st.none()), min_size=count, max_size=count)
    return rows.map(lambda drawn: pa.array(drawn, kind))


def same_rows(found: pa.RecordBatch, expected: pa.RecordBatch) -> bool:
    """Tell whether two batches are equal: NaN equals NaN, and zero does not equal minus zero."""
    pairs = zip(found.columns, expected.columns, strict=True)
    return found.schema.equals(expected.schema) and all(_bits(left).equals(_bits(right)) for left, right in pairs)


def _bits(column: pa.Array) -> pa.Array:
    """Return floats as the integers of their bits, with every NaN the same, and other columns unchanged."""
    if not pa.types.is_floating(column.type):
        return column
    nan = pa.scalar(float("nan"), column.type)
    return pc.if_else(pc.is_nan(column), nan, column).view(pa.int64() if column.type == pa.float64() else pa.int32())
