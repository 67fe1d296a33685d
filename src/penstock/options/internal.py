"""What our own parts tell each other through options, since Spark hands nothing else to the processes of a query.

No user sets these, and no message names them. The sink has one more, `ingestion.stage.LIVE_SINK`, whose parser knows stages.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.options.kafka import KAFKA
from penstock.options.option import Option
from penstock.options.parsers import any_text, choice, count, text
from penstock.options.published import PUBLISHED
from penstock.options.source import SOURCE

SPLITS = "splits"  # of `emit`: the rows are the splits of the plan, for the stage of an ingest to read

# Of what reads names: the look at the files that they name, `ingestion.looks.LookWhereRead`. The rows are the splits of these.
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

# Of topics: what is emitted, in how many tasks, and the zone of the session, which the plan notes.
LIVE_TOPICS = (
    *KAFKA,
    Option("emit", "records", choice("records", SPLITS), "what the rows are"),
    Option("tasks", None, count, "tasks of a batch at most, and at least"),
    Option("sessionTimeZone", None, text, "the zone of the session"),
)
