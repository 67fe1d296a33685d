"""`format("penstock-db")`: Spark's Python data source over the database sink."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource

from penstock.errors import OptionError
from penstock.options import DATABASE, Options, parse
from penstock.spark.border import border

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from penstock.db.batches import TableBatches
    from penstock.spark.writer import StreamWriter


@border
class DatabaseDataSource(DataSource):
    """Tables as exactly-once sinks; the options are `penstock.options.DATABASE`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "penstock-db"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802 - Spark's signature
        """Return the sink."""
        if overwrite:
            msg = 'penstock-db cannot replace the table at every batch: use outputMode("append"), and mode=upsert or mode=merge'
            raise OptionError(msg)
        from penstock.spark.writer import StreamWriter

        options = parse(DATABASE, dict(self.options), what="database sink")
        opens = partial(open_table, options, schema.json())
        return StreamWriter(opens, checkpoint=options["checkpointLocation"], sink_id=options["sinkId"])

    def schema(self) -> NoReturn:
        """Raise `OptionError`: other formats read tables. A reader is asked for the columns first."""
        msg = "format penstock-db does not read: expected df.writeStream; Spark's own format jdbc reads tables"
        raise OptionError(msg)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002, FBT001 - Spark's signature
        """Raise `OptionError`: a batch has no id by which its repetition could be recognised."""
        msg = (
            "format penstock-db is a stream: expected df.writeStream, whose batches have ids, so that one that is repeated "
            "changes nothing; for what is there now, and no more, .trigger(availableNow=True)"
        )
        raise OptionError(msg)


def open_table(options: Options, schema: str, sink_id: str) -> TableBatches:
    """Return the sink of this name for rows of this schema, given as Spark's JSON."""
    from penstock.db.batches import TableBatches
    from penstock.formats.schema import to_arrow

    return TableBatches(options, sink_id, to_arrow(schema))
