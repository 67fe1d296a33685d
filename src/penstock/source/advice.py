"""What error messages advise when an input is not as it was planned; a test follows each piece of advice.

A plan names the version of each file: path, size and modification time. Files that were planned and never committed may be planned anew
by a program that can tell that nothing was committed: an ingest does so by itself when it is started again, and for any other query
there is the command `penstock replan`.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from penstock.clock import SECOND_NS
from penstock.formats.codecs import codec_of

if TYPE_CHECKING:
    from penstock.source.cursor import FileVersion

_BEGINNINGS = {
    b"\xff\xfe": "has the byte order mark of UTF-16: set encoding=UTF-16",
    b"\xfe\xff": "has the byte order mark of UTF-16: set encoding=UTF-16",
    b"\x1f\x8b": "is packed by gzip, and its name does not end in .gz: rename it",
    b"\x28\xb5\x2f\xfd": "is packed by zstd, and its name does not end in .zst: rename it",
    b"BZh": "is packed by bzip2, and its name does not end in .bz2: rename it",
    b"\xfd7zXZ\0": "is packed by xz, and its name does not end in .xz: rename it",
    b"PK\x03\x04": "is a ZIP archive: unpack it",
    b"PAR1": "is a Parquet file: set format=parquet",
    b"Obj\x01": "is an Avro file: set format=avro",
    b"ORC": "is an ORC file: set format=orc",
}

# Comes after "mend the record" and the like.
AGAIN = (
    "and start again: an ingest then plans the file anew by itself, any other query after `penstock replan CHECKPOINT DST`; "
    "nothing of this batch is visible"
)

# The same for a file that is named by a row.
AGAIN_NAMED = (
    "and start again, nothing of this batch is visible; where its row, or a note in stateLocation, has the version that it was, "
    "badFiles=quarantine and changedFiles=quarantine let the query go on without it"
)


def not_text(beginning: bytes, name: str) -> str:
    """Say what to do about a file called `name` whose content is not text in the encoding that is set; its first bytes decide."""
    for magic, words in _BEGINNINGS.items():
        if beginning.startswith(magic):
            is_twice = codec_of(name) is not None and words.startswith("is packed")
            return f"; the file {'is packed twice: unpack it once' if is_twice else words}"
    return "; set encoding to what the file has, or encodingErrors=replace"


def put_back(file: FileVersion) -> str:
    """Say how to restore the planned version: any copy of it will do."""
    seconds, nanoseconds = divmod(file.modified_ns, SECOND_NS)
    try:
        time = f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09}Z"
    except (ValueError, OverflowError, OSError):  # a time outside of the calendar
        time = f"@{seconds}.{nanoseconds:09}"
    return f"put the planned version back, of {file.size} bytes and with its time (`touch -d {time}`)"


# For a file that a schema is inferred from: nothing is planned yet, and no checkpoint is needed.
AGAIN_INFERRED = "or give the schema, and start again; no schema was inferred"

# For a finished file of an output that is read as a batch.
AGAIN_FINISHED = "and load again; penstock verify compares every file with the ledger"
