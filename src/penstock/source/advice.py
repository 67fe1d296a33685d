"""What messages tell to do about an input that is not as it was planned; each is followed by a test.

A plan names the version of each file: path, size and modification time. What was planned and never committed may be
planned anew by whoever can know that: an ingest does it by itself when it is started again, and for any other query
there is the command `penstock replan`.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from penstock.clock import SECOND_NS

if TYPE_CHECKING:
    from penstock.source.cursor import FileVersion

# Behind "mend the record" and the like.
AGAIN = (
    "and start again: an ingest then plans the file anew by itself, any other query after `penstock replan CHECKPOINT DST`; "
    "nothing of this batch is visible"
)

# The same of a file that a row names.
AGAIN_NAMED = (
    "and start again, nothing of this batch is visible; where its row, or a note in stateLocation, has the version that it was, "
    "badFiles=quarantine and changedFiles=quarantine let the query go on without it"
)


def put_back(file: FileVersion) -> str:
    """Say how there is the planned version again: any copy of it will do."""
    seconds, nanoseconds = divmod(file.modified_ns, SECOND_NS)
    try:
        time = f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09}Z"
    except (ValueError, OverflowError, OSError):  # a time that no calendar has
        time = f"@{seconds}.{nanoseconds:09}"
    return f"put the planned version back, of {file.size} bytes and with its time (`touch -d {time}`)"


# Of a finished file of an output that is read as a batch.
AGAIN_FINISHED = "and load again; penstock verify compares every file with the ledger"
