"""What a caller asks of one ingest, before any of it is checked. Needs neither Spark nor Arrow to be imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.ingestion.stage import Transform


@dataclass(frozen=True)
class IngestCall:
    """One call of an ingest: the path that it reads, the path that it writes, and the options of either side.

    `source` and `sink` hold options by name, as the user spelled them. `transform` is what `penstock.ingest` takes, or a `Sql`.
    `checkpoint` is `None` where the user named none; it lies below `dst` then.
    """

    src: str
    dst: str
    source: dict[str, Any]
    sink: dict[str, Any]
    transform: Transform | str | None = None
    checkpoint: str | None = None
