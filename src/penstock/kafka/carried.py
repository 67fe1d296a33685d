"""What an ingest carries to a task that reads topics: ranges, and the zone for times without one, as text in a row of Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.kafka.offset import Positions, Range, ranges, shared_out

if TYPE_CHECKING:
    from collections.abc import Mapping


class Share(NamedTuple):
    """The ranges of one task; `zone` is that of the plan."""

    ranges: list[Range]
    zone: str | None

    @property
    def text(self) -> str:
        """The text that is carried."""
        return json.dumps({"ranges": [each.to_json() for each in self.ranges], "zone": self.zone})


def carried(start: Mapping[str, Any], end: Mapping[str, Any], tasks: int | None) -> list[str]:
    """Return the tasks of the batch between two offsets, from these alone, with about equal numbers of offsets."""
    zone = Positions.of(end).zone
    return [Share(share, zone).text for share in shared_out(ranges(start, end), tasks or 1)]


def share_of(text: str) -> Share:
    """Return the share in a text that was carried."""
    form = json.loads(text)
    return Share([Range.from_json(each) for each in form["ranges"]], form["zone"])
