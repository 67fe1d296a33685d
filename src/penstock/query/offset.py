"""The offset of our source in Spark's offset log, as far as readers of checkpoints need it: whether it is ours, and intact.

Spark keeps that log as text and does not check it, and a changed digit would silently mean other rows, or fewer. So the offset has a
checksum of its canonical JSON: Spark may space and order the fields as it likes. The fields are described in `source.cursor`.
"""

from __future__ import annotations

from typing import Any

import xxhash

from penstock.errors import DamagedState
from penstock.query.records import canonical

VERSION = 1
# For a source that follows files; an older Penstock would otherwise take it for a source that has read nothing.
FOLLOW_VERSION = 2
_OF_SPARK = {"logOffset"}
_ALWAYS_THERE = {"v", "cursor", "recent", "read"}


def is_ours(form: object) -> bool:
    """Tell whether JSON of an offset log is an offset of our source, of any version."""
    return isinstance(form, dict) and form.keys() >= _ALWAYS_THERE


def summed(form: dict[str, Any]) -> dict[str, Any]:
    """Return the offset with its checksum."""
    return form | {"sum": _sum(form)}


def check(form: object) -> None:
    """Raise `DamagedState` unless `form` is an offset of a version that this code reads, and unchanged since it was given to Spark."""
    if isinstance(form, dict) and form.keys() == _OF_SPARK:
        msg = (
            "the offset in the checkpoint is one of Spark's own file source, which no other source can continue; use that one, or a new "
            "checkpoint with startingFrom=TIME or modifiedAfter=TIME, which leave out the files that were read"
        )
        raise DamagedState(msg)
    if not isinstance(form, dict) or form.get("v") not in {VERSION, FOLLOW_VERSION}:
        version = form.get("v") if isinstance(form, dict) else form
        msg = (
            f"the offset in the checkpoint has version {version!r}, expected {VERSION} or {FOLLOW_VERSION}: it was written by "
            "another source or a newer Penstock; use that one, or a new checkpoint"
        )
        raise DamagedState(msg)
    expected = _sum({name: value for name, value in form.items() if name != "sum"})
    if expected != form.get("sum"):
        msg = (
            f"the offset in the checkpoint is damaged: checksum {form.get('sum')!r}, expected {expected!r}; restore the "
            "checkpoint from a copy, nothing was changed"
        )
        raise DamagedState(msg)


def _sum(form: dict[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(canonical(form))
