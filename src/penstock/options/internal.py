"""What our own parts tell each other through options, since Spark hands nothing else to the processes of a query.

No user sets these, and no message names them. The sink has one more, `ingestion.stage.LIVE_SINK`, whose parser knows stages.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.options.parsers import choice
from penstock.options.source import SOURCE

SPLITS = "splits"  # of `emit`: the rows are the splits of the plan, for the stage of an ingest to read

LIVE_SOURCE = tuple(
    replace(option, parse=choice("records", "files", "published", SPLITS)) if option.name == "emit" else option
    for option in SOURCE
)
