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
    """A transform that is written in SQL. `zone` is the session's time zone, which gives times their days and hours."""

    text: str
    zone: str = UTC

    def __post_init__(self) -> None:
        """Raise `OptionError` unless the SQL is text."""
        given: object = self.text
        if not isinstance(given, str):
            msg = f"sql is a {type(given).__name__}; expected text, one select over the table input"
            raise OptionError(msg)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the result of the select for a batch. Raises `SqlError` if it does not fit the batch's columns."""
        from penstock.ingestion.sql.select import compiled  # imported here, because only an ingest with SQL needs it

        return compiled(self.text, self.zone, batch.schema).answer(batch)

    def __repr__(self) -> str:
        """Show the SQL as it was given."""
        return f"sql={self.text!r}"
