"""Nested columns: their parts, the leaves at any depth, and a column made from changed parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from penstock.formats.conforming import map_entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def parts_of(column: pa.Array) -> list[pa.Array]:
    """Return the members of structs, the elements of lists, or the keys and items of maps, of all values that are not null."""
    if types.is_struct(column.type):
        return list(column.flatten())
    elements = map_entries(column).flatten() if types.is_map(column.type) else column.flatten()
    return list(elements.flatten()) if types.is_map(column.type) else [elements]


def with_parts(column: pa.Array, parts: Sequence[pa.Array]) -> pa.Array:
    """Return a column with the type, nulls and lengths of this one, and other parts: the same number and lengths as from `parts_of`."""
    kind, mask = column.type, column.is_null()
    if types.is_struct(kind):
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    lists = map_entries(column) if types.is_map(kind) else column
    ends = np.cumsum(pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False))
    offsets = pa.array(np.concatenate((np.zeros(1, np.int64), ends)), pa.int32())
    make = pa.MapArray.from_arrays if types.is_map(kind) else pa.ListArray.from_arrays
    return make(offsets, *parts, type=kind, mask=mask)


def leaves(column: pa.Array) -> Iterator[pa.Array]:
    """Yield the columns inside, at any depth, that are not nested; the column itself if it is not nested."""
    if not types.is_nested(column.type):
        yield column
        return
    for part in parts_of(column):
        yield from leaves(part)


def with_leaves(column: pa.Array, changed: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Return a column with each leaf replaced by `changed(leaf)`, which must keep its type and its length."""
    if not types.is_nested(column.type):
        return changed(column)
    return with_parts(column, [with_leaves(part, changed) for part in parts_of(column)])
