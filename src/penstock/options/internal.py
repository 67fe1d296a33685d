"""What our own parts tell each other through options, since Spark hands nothing else to the processes of a query.

No user sets these, and no message names them. The sink has one more, `ingestion.stage.LIVE_SINK`, whose parser knows stages.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.options.kafka import KAFKA
from penstock.options.option import Option
from penstock.options.parsers import choice, count, text
from penstock.options.source import SOURCE

SPLITS = "splits"  # of `emit`: the rows are the splits of the plan, for the stage of an ingest to read

LIVE_SOURCE = tuple(
    replace(option, parse=choice("records", "files", "published", SPLITS)) if option.name == "emit" else option
    for option in SOURCE
)

# Of topics: what is emitted, in how many tasks, and the zone of the session, which the plan notes.
LIVE_TOPICS = (
    *KAFKA,
    Option("emit", "records", choice("records", SPLITS), "what the rows are"),
    Option("tasks", None, count, "tasks of a batch at most, and at least"),
    Option("sessionTimeZone", None, text, "the zone of the session"),
)
