"""The unchecked parameters of one call of an ingest. The import needs neither Spark nor Arrow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.ingestion.stage import Transform


@dataclass(frozen=True)
class IngestCall:
    """One call of an ingest: the input path, the output path, and the options of source and sink.

    `source` and `sink` hold options by name, as the user spelled them. `transform` is what `penstock.ingest` takes, or a `Sql`.
    `checkpoint` is `None` if the user named none; the checkpoint is then below `dst`.
    """

    src: str
    dst: str
    source: dict[str, Any]
    sink: dict[str, Any]
    transform: Transform | str | None = None
    checkpoint: str | None = None
