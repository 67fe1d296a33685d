"""`Sql`: a select as a function of record batches, like every other transform."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import OptionError
from penstock.formats.zones import UTC

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Sql:
    """A transform that is written in SQL. `zone` is that of the session, in which times have days and hours."""

    text: str
    zone: str = UTC

    def __post_init__(self) -> None:
        """Raise `OptionError` for what is no text."""
        given: object = self.text
        if not isinstance(given, str):
            msg = f"sql is a {type(given).__name__}; expected text, one select over the table input"
            raise OptionError(msg)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch that the select gives. Raises `SqlError` for columns it cannot be asked of."""
        from penstock.ingestion.sql.select import compiled  # what it needs no other ingest does

        return compiled(self.text, self.zone, batch.schema).answer(batch)

    def __repr__(self) -> str:
        """Show it as it is written."""
        return f"sql={self.text!r}"
