"""The form of an entry of Spark's offset log, of which there are two.

The first line is the version, the second has Spark's own metadata, and each further line is the end offset of one source.

- In version 1 sources are known by the places of their lines, and `-` stands for a source that had nothing yet.
- In version 2 (`spark.sql.streaming.offsetLog.formatVersion`, which `readStream.name(...)` needs) a line begins with the name of its
  source, or with its place if it has none, and a colon. The lines are in any order, and a source that is added later is in no entry before.

The failure that this is made for: who took a line of version 2 for the offset of a foreign source did not see that a query reads its
own output, whose rows then came round for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

NOTHING = b"-"
_NAMED = b"v2"


@dataclass(frozen=True)
class LogEntry:
    """An entry: Spark's own lines, and by source its offset as it is written, `-` if it had nothing yet."""

    head: tuple[bytes, ...] = ()
    sources: dict[str, bytes] = field(default_factory=dict)

    @staticmethod
    def of(text: bytes) -> LogEntry:
        """Return the entry in a file; one without sources if the file is empty."""
        version, *rest = text.splitlines() or [b""]
        head, lines = (version, *rest[:1]), rest[1:]
        if version != _NAMED:
            return LogEntry(head, {str(place): line for place, line in enumerate(lines)})
        named = (line.partition(b":") for line in lines)
        return LogEntry(head, {name.decode(errors="replace"): line for name, _, line in named})

    def written(self, sources: Mapping[str, bytes]) -> bytes:
        """Return the text of an entry of the same form and with the same lines of Spark's, for these sources."""
        named = self.head[:1] == (_NAMED,)
        lines = (name.encode() + b":" + line if named else line for name, line in sources.items())
        return b"\n".join((*self.head, *lines))
