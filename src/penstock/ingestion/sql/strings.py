"""Kernels on text, with Spark's answers; positions count code points."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from penstock.ingestion.sql.expression import Values


def cased(values: Values, *, upper: bool) -> Values:
    """Return texts in upper or lower case by Unicode's rules for whole words; Arrow's kernels only know single letters."""
    import polars as pl  # imported here, because only this function needs it

    column = pa.array([values.as_py()], pa.string()) if isinstance(values, pa.Scalar) else values
    letters = pl.Series(values=column).cast(pl.String).str
    changed = (letters.to_uppercase() if upper else letters.to_lowercase()).to_arrow().cast(pa.string())
    return changed[0] if isinstance(values, pa.Scalar) else changed


def part(values: Values, position: int, length: int | None) -> Values:
    """Return the parts of texts with a length from a position on, which counts from 1, or from the end if it is negative."""
    start = position - 1 if position > 0 else position
    if length is None:
        return pc.utf8_slice_codeunits(values, start)
    stop = start + max(length, 0)
    if start < 0 <= stop:  # to the end, or past it
        return pc.utf8_slice_codeunits(values, start)
    return pc.utf8_slice_codeunits(values, start, stop)


def right(values: Values, length: int) -> Values:
    """Return the last `length` characters."""
    return pc.utf8_slice_codeunits(values, -length) if length > 0 else pc.utf8_slice_codeunits(values, 0, 0)


def padded(values: Values, width: int, padding: str, *, left: bool) -> Values:
    """Return texts of exactly this width: cut, or padded on one side."""
    fill = pc.utf8_lpad if left else pc.utf8_rpad
    cut = pc.utf8_slice_codeunits(values, 0, max(width, 0))
    return fill(cut, max(width, 0), padding)
