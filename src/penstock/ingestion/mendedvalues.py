"""Reads values of topics again that were set aside: as they are on their lines in the quarantine, perhaps mended there.

A line has the value of a record, but not its key, headers or time. If rows have these in a metadata column, no row can be made of
it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.errors import OptionError
from penstock.formats.account import Account
from penstock.formats.aside import Aside, Policy
from penstock.ingestion.mended import Key, Mended
from penstock.ingestion.topics import TopicRows
from penstock.kafka.values import ValueReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.formats import ReadFormat
    from penstock.ingestion.mended import Header, Version
    from penstock.ingestion.stage import Stage


def mended_records(stage: Stage, records: Mapping[Key, bytes], headers: Mapping[Version, Header]) -> Mended:
    """Return records of files or topics by their keys, as an ingest reads them. `OptionError` if they cannot be read by themselves."""
    if isinstance(stage.carrier, TopicRows):
        return MendedValues(stage, stage.carrier, records)
    return Mended(stage, records, headers)


class MendedValues(Mended):
    """Values of records of topics, by their keys."""

    def __init__(self, stage: Stage, topics: TopicRows, records: Mapping[Key, bytes]) -> None:
        if topics.metadata is not None:
            msg = (
                f"rows have a column {topics.metadata!r} with key and time of their record, which are not on the line of one that was set "
                "aside; produce the mended record to the topic again, which the next run takes in"
            )
            raise OptionError(msg)
        self._stage, self._records, self._headers = stage, records, {}
        self._held = _HeldValues(topics.reading.format, stage.read_schema, list(records.values()))

    def bad(self) -> dict[Key, str]:
        """Return which records still cannot be read, and why."""
        aside, keys = Aside(), list(self._records)
        for _ in self._held.rows([], Account(), aside):
            pass
        lines = [line for batch in aside.handed_on() for line in batch.select(["offset", "reason"]).to_pylist()]
        return {keys[line["offset"]]: str(line["reason"]) for line in lines}

    def rows(self, account: Account | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the ingest makes of the records."""
        rows = replace(self._stage, carrier=self._held).read([], account, text=False, errors="fail")
        yield from (batch for batch in rows if isinstance(batch, pa.RecordBatch))


@dataclass(frozen=True)
class _HeldValues:
    """Values in memory, which are read instead of ranges of a topic."""

    format: ReadFormat
    schema: pa.Schema
    values: list[bytes]
    passes_lines: bool = False

    def text(self, batches: Iterable[pa.RecordBatch], aside: Aside | None) -> Iterator[bytes]:
        """Not called: a value may hold line breaks."""
        raise NotImplementedError

    def rows(
        self,
        batches: Iterable[pa.RecordBatch],  # noqa: ARG002 - nothing is carried
        account: Account,
        aside: Aside | None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the values; bad values go to `aside`, with their number as offset."""
        reader = ValueReader(replace(self.format, errors="fail"), Policy(records=True, text=True), account, aside)
        numbers = pa.array(np.arange(len(self.values)))
        records = pa.RecordBatch.from_arrays([pa.array(self.values, pa.binary()), numbers], names=["value", "offset"])
        yield reader.rows(records, "").rows
