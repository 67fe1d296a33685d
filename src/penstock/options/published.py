"""The options of the events of an output, `spark.readStream.format("penstock")` with `emit=published`."""

from __future__ import annotations

from penstock.options.option import Option
from penstock.options.parsers import any_text, choice, count, event_starting, identifier, text

EMIT = "published"

PUBLISHED = (
    Option("path", None, text, "the output, whose finished files are the rows"),
    Option("emit", EMIT, choice(EMIT), "published: a row a finished file"),
    Option("sinkId", None, identifier, "of this sink only; unset: of all that write there"),
    Option("maxFilesPerTrigger", "1000", count, "at most that many files a batch"),
    Option("startingFrom", "earliest", event_starting, "earliest, latest, a record, or the offset after an event"),
    Option("sessionTimeZone", None, any_text, "zone of Spark's session, set by penstock.register; of no meaning here"),
    Option(
        "sessionCores",
        None,
        any_text,
        "tasks that a local session runs at a time, set by penstock.register; of no meaning here",
    ),
)
