"""Which libraries of our extras are installed: for Python 3.10 there is none for Avro."""

from __future__ import annotations

import io
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

HAS_AVRO = find_spec("polars_avro") is not None and find_spec("fastavro") is not None
WITH_AVRO = ("avro",) if HAS_AVRO else ()


def avro_rows(data: bytes) -> Iterator[dict[str, Any]]:
    """Return the rows of an Avro file as an independent reader reads them."""
    import fastavro  # noqa: PLC0415 - not on every Python

    return cast("Iterator[dict[str, Any]]", fastavro.reader(io.BytesIO(data)))
