"""A quick first look whether an ingest certainly has work, so that a caller can early begin what only an ingest with work needs.

The look is only a hint. It sees the names of a directory on this host, and looks at some files, those with the greatest names,
until one is newer than everything that was planned. A directory that has not changed is not listed. The look needs neither Arrow
nor Spark, so its answer comes before either is imported. "No" means "unknown": then `ingest.idle` looks, and this look has cost
next to nothing. After a "yes" Spark still looks for itself: if the file is gone by then, that run finds nothing, and ends.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from penstock import errors
from penstock.clock import SECOND_NS
from penstock.options import SOURCE, parse
from penstock.query.checkpoint import Checkpoint
from penstock.source.cursor import Cursor
from penstock.source.scan import Scan
from penstock.source.where import where
from penstock.storage import locate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.options import Options
    from penstock.source.cursor import FileVersion
    from penstock.storage import Entry


_ASKED = 500  # how many likely files are looked at
_COARSE_NS = 2 * SECOND_NS  # how coarse the time stamps of file systems may be


class _EnoughError(Exception):
    """None of the files that are likely to be newer is newer."""


def has_newer(
    src: Sequence[str], dst: str, *, source: Mapping[str, str], checkpoint: str | None, watch: bool = False
) -> bool:
    """Tell whether an ingest that has planned before will certainly have work; with `watch` it always has. Raises no error of ours."""
    if src[1:] or {"files", "follow", "paths", "basepath"} & {name.lower() for name in source}:
        return False
    with suppress(errors.PenstockError, OSError, _EnoughError):
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
    return _shows_newer(parse(SOURCE, {**given, "path": locate(src)[1]}, what="source"), offsets[0])


def _shows_newer(options: Options, offset: Mapping[str, Any]) -> bool:
    """Tell whether one of the likely files is newer than everything that was planned up to an offset."""
    at = where(options)
    if _rests(at.storage.stat(at.root), offset["listed"]):
        return False
    is_newer = Cursor.from_json(dict(offset)).newer(at.storage.now_ns() - options["settle"])
    left = count(_ASKED, -1)

    def sought(file: FileVersion) -> bool:
        if not next(left):
            raise _EnoughError
        return is_newer(file)

    return Scan.of(at.storage, at.root, options).refresh_unless(sought) is None


def _rests(directory: Entry, listed_ns: int) -> bool:
    """Tell whether no name has come to a directory since that time, by the directory's own times."""
    changed_ns = max(directory.modified_ns, directory.arrived_ns or directory.modified_ns)
    return directory.is_directory and changed_ns < listed_ns - _COARSE_NS
