"""Options through which our own parts talk to each other, because Spark passes nothing else to the processes of a query.

Users do not set these, and no message names them. The sink has one more, `ingestion.stage.LIVE_SINK`, whose parser knows stages.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.options.kafka import KAFKA
from penstock.options.option import Option
from penstock.options.parsers import any_text, choice, count, text
from penstock.options.published import PUBLISHED
from penstock.options.source import SOURCE

SPLITS = "splits"  # a value of `emit`: the rows are the splits of the plan, to be read by the stage of an ingest

# For sources that emit names: `ingestion.looks.LookWhereRead`, which looks at the named files. The rows are then their splits.
LOOK = "look"
_LOOKS = Option(LOOK, None, any_text, "how what is named is looked at")

LIVE_SOURCE = (
    *(
        replace(option, parse=choice("records", "files", "published", SPLITS)) if option.name == "emit" else option
        for option in SOURCE
    ),
    _LOOKS,
)
LIVE_PUBLISHED = (*PUBLISHED, _LOOKS)

# For topics: what is emitted, in how many tasks, and the zone of the session, which the plan notes.
LIVE_TOPICS = (
    *KAFKA,
    Option("emit", "records", choice("records", SPLITS), "what the rows are"),
    Option("tasks", None, count, "tasks of a batch at most, and at least"),
    Option("sessionTimeZone", None, text, "the zone of the session"),
)
