"""Whether an ingest surely has something to do, by a first look: for whoever can begin what only an ingest with work needs.

The look is a hint and nothing else. It sees the names of a directory on this host, and asks only until one file is newer than all
that was planned; it needs no Arrow and no Spark, so its answer comes before either is imported. "No" stands for "nobody knows": then
`ingest.idle` looks. After a "yes" Spark looks for itself, as ever: where the file went meanwhile, that run finds nothing, and ends.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from penstock import errors
from penstock.options import SOURCE, parse
from penstock.query.checkpoint import Checkpoint
from penstock.source.cursor import Cursor
from penstock.source.scan import Scan
from penstock.source.where import where
from penstock.storage import locate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def has_newer(
    src: Sequence[str], dst: str, *, source: Mapping[str, str], checkpoint: str | None, watch: bool = False
) -> bool:
    """Tell whether an ingest that has planned before will certainly have work; a `watch` always has. Raises nothing of its own."""
    if src[1:] or {"files", "follow", "paths", "basepath"} & {name.lower() for name in source}:
        return False
    with suppress(errors.PenstockError, OSError):
        return _has_newer(src[0], dst, source, checkpoint, watch=watch)
    return False


def _has_newer(src: str, dst: str, source: Mapping[str, str], checkpoint: str | None, *, watch: bool) -> bool:
    place = f"{dst.rstrip('/')}/_penstock/checkpoint" if checkpoint is None else checkpoint
    if not all(locate(each)[0].of_this_host for each in (src, dst, place)):
        return False
    before = Checkpoint(locate(place)[1])
    planned, committed = before.numbers("offsets"), before.numbers("commits")
    if not planned:
        return False
    if watch or committed[-1:] != planned[-1:]:
        return True
    offsets = before.offsets(planned[-1])
    if len(offsets) != 1 or offsets[0] is None or "cursor" not in offsets[0]:
        return False
    given = {name: text for name, text in source.items() if name.lower() != "schema"}
    options = parse(SOURCE, {**given, "path": locate(src)[1]}, what="source")
    at = where(options)
    cursor, settled_ns = Cursor.from_json(offsets[0]), at.storage.now_ns() - options["settle"]
    scan = Scan.of(at.storage, at.root, options)
    return scan.refresh_unless(cursor.newer(settled_ns)) is None
