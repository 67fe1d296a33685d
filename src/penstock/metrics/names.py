"""The table of all metrics: name, whether it only grows, meaning, and the label in addition to `pipeline` and `query`.

The same names hold for ingests, for pipelines and for queries of Spark with our source or sink, in Prometheus and in
OpenTelemetry. A metric that a query does not have (because its sink is of another kind) is not exported at all, because 0 would
be a statement.
"""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "penstock_"


@dataclass(frozen=True)
class Measure:
    """A metric: `grows` for a counter; `label` is its own label in addition to pipeline and query. Times are seconds since the epoch."""

    name: str
    meaning: str
    grows: bool = False
    label: str | None = None


MEASURES = (
    Measure("input_files", "Files planned since the checkpoint began.", grows=True),
    Measure("input_bytes", "Bytes planned since the checkpoint began.", grows=True),
    Measure("left_files", "Files that are known and not planned yet, at the last plan."),
    Measure("left_bytes", "Bytes of these."),
    Measure("oldest_left_timestamp_seconds", "Modification time of the oldest of these; absent if there are none."),
    Measure("input_offsets", "Offsets of topics planned since the checkpoint began.", grows=True),
    Measure("left_offsets", "Offsets of topics that are decided and not planned yet, at the last plan."),
    Measure("left_partition_offsets", "These of a partition, of the hundred that have most.", label="partition"),
    Measure("late_files", "Files that came too late and were not read."),
    Measure("accepted_files", "Late files that a person has accepted and that wait for their batch."),
    Measure("held_files", "Files held back: they changed too recently."),
    Measure("future_files", "Files whose modification time is in the future."),
    Measure("rows", "Rows committed since the sink began.", grows=True),
    Measure("output_files", "Files finished since the sink began.", grows=True),
    Measure("output_bytes", "Bytes of these.", grows=True),
    Measure("aside", "Set aside since the sink began: bad records, bad files, changed files.", grows=True, label="kind"),
    Measure("open_parts", "Parts that are committed in part and not finished."),
    Measure("open_rows", "Rows of these, which no reader sees yet."),
    Measure("open_since_timestamp_seconds", "When the oldest of them was opened; absent if there are none."),
    Measure("batch", "Number of the last batch that was committed; -1 for none."),
    Measure("batch_timestamp_seconds", "When a batch was last seen to be committed."),
    Measure("batches", "Batches that ended while this was watching.", grows=True),
    Measure("phase_seconds", "Time of these batches, by Spark's phases; triggerExecution is all of them.", grows=True, label="phase"),
    Measure("heartbeat_timestamp_seconds", "When the query was last seen to get on: a batch, a task, or a look that found nothing."),
    Measure("phase", "1 for what the pipeline does, 0 for what it does not.", label="phase"),
    Measure("failures", "Failures in a row, up to now."),
    Measure("errors", "Failures since this command started, by the code of the error.", grows=True, label="code"),
    Measure("retries", "Tries after a failure since this command started.", grows=True),
    Measure("fenced", "Times that another driver took the sink over.", grows=True),
    Measure("calls", "Asynchronous calls, by what became of them.", grows=True, label="outcome"),
    Measure("syncs", "Waits until something was durable, by where; see the page on monitoring.", grows=True, label="phase"),
    Measure("sync_seconds", "Time of these waits; tasks side by side count each.", grows=True, label="phase"),
    Measure("database_rows", "Rows that transactions of the database sink have stored while this was watching.", grows=True),
    Measure("database_rejected", "Rows that these have set aside.", grows=True),
    Measure("database_skipped", "Batches that the database had already.", grows=True),
    Measure("database_seconds", "Time of these transactions.", grows=True),
    Measure("log_records", "Records that logs of this process have made durable.", grows=True),
    Measure("log_bytes", "Bytes of these records.", grows=True),
    Measure("log_flushes", "Groups of flushes in which they were made durable.", grows=True),
    Measure("log_segment", "Segment of the log up to which a query has read it."),
    Measure("log_offset", "Offset in this segment."),
)  # fmt: skip
BY_NAME = {measure.name: measure for measure in MEASURES}
