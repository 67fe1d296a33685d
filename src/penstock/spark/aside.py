"""Separates what a plain query has set aside from its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from penstock.arguments import named
from penstock.errors import OptionError
from penstock.source.schemas import BAD

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MEMBERS = [member.split(":")[0] for member in BAD.removeprefix("struct<").removesuffix(">").split(", ")]


@named
def split_bad(df: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return (good, bad) of a stream that is read with `badRecordColumn`: the rows, and path, offset, record and reason of the rest.

    If both frames are written, that is two queries: each has a checkpoint of its own, and reads the input by itself.
    """
    columns = [field.name for field in df.schema if _holds_bad(field.dataType)]
    if len(columns) != 1:
        names = " and ".join(map(repr, columns)) or "none"
        msg = f"split_bad: expected one column of what is set aside, found {names}; it is read with badRecordColumn=_bad and `_bad` {BAD}"
        raise OptionError(msg)
    bad = df[f"`{columns[0].replace('`', '``')}`"]
    return df.where(bad.isNull()).drop(bad), df.where(bad.isNotNull()).select(
        *(bad[name].alias(name) for name in _MEMBERS)
    )


def _holds_bad(kind: object) -> bool:
    return isinstance(kind, StructType) and kind.names == _MEMBERS
