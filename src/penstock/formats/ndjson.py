"""polars as a parser of JSON lines, and the one promise that it must keep.

Since 2.1 its reader refuses a value of another type than the schema says; older ones made it null, or another value,
without a word. Nothing may be read with those, so they are refused, also where one was installed in spite of the bound.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from penstock.errors import DependencyError

if TYPE_CHECKING:
    from types import ModuleType

    import polars as pl

VERSION_MIN = (2, 1)


def read(lines: bytes, columns: dict[str, str]) -> pl.DataFrame | None:
    """Return the objects of `lines` as `columns`, a polars type by name, or None if polars refuses any line.

    Blank lines are no rows, missing keys null, unknown keys skipped; of a repeated key the first value counts. Without
    columns polars does not look at the lines. Raises `DependencyError` when the polars that is installed is too old.
    """
    polars = load()
    schema = {name: getattr(polars, kind) for name, kind in columns.items()}
    try:
        frame: pl.DataFrame = polars.read_ndjson(lines, schema=schema)
    except (polars.exceptions.PolarsError, polars.exceptions.PanicException):
        return None
    return frame


@cache
def load() -> ModuleType:
    """Return polars; `DependencyError` when it is too old."""
    import polars as pl  # takes a tenth of a second, and only JSON needs it

    check_version(pl.__version__)
    return pl


def check_version(version: str) -> None:
    """Raise `DependencyError` if this version of polars is not strict."""
    if tuple(map(int, version.split(".")[:2])) < VERSION_MIN:
        wanted = ".".join(map(str, VERSION_MIN))
        msg = f"polars {version} makes values of a wrong type null; json needs {wanted} or newer: pip install 'polars>={wanted}'"
        raise DependencyError(msg)
