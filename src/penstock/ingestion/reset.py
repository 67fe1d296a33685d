"""A query that reads its source from the beginning again, as if it had read nothing: `penstock reset`.

The initial state is an offset, so a query is set back by an entry in Spark's offset log, as late files are accepted (`ingestion.late`,
whose rules hold here, too): the next batch of the query, without rows, that ends where a query begins which has read nothing. Nothing
that was committed is touched, and no number of a batch comes again: the output, its ledger and the checkpoint stay as they are, and
what is read again is there twice. The failures, and the rules:

1. The user does not know what that means for what is there. Rule: what would be read again is told first, and nothing is done
   without a word of his.
2. The command dies. Rule: it is one put, under a number that is free: the query is set back, or it is not.
3. It is run twice, and all is read three times. Rule: behind an entry that sets a query back, and of which it has read nothing, there is
   nothing to be done.
4. What was read and is not cleaned yet (`cleanSource`) is cleaned before it is read again: the start that replays the entry would do
   that. Rule: behind an entry that sets it back the source cleans nothing, and says no more that it has read it; it says so under the
   name that it had, or it would wait for itself as for another reader.
5. The query runs, or a batch of it is planned and not committed. Rule: refused, as in `ingestion.late`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.arguments import flag, named
from penstock.ingestion.late import ReadingQuery
from penstock.source import configured
from penstock.source.clean import Cleaner
from penstock.source.followed import FollowPlanner
from penstock.source.plan import Planner
from penstock.source.scan import Scan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.source.cursor import FileVersion

_EARLIEST = -(1 << 63)


@dataclass(frozen=True)
class Reset:
    """What a reset does: the files (paths below `src`) that would be read again, and their bytes; `rows` that the output has, and keeps.

    `batch` is the one that sets the query back, None where nothing was done: it was only asked for, or the query is at its beginning
    (`at_beginning`). `late` are files that came too late, and would be read for the first time; `passed_over` those that are not read
    yet, and never would be, since the query would begin behind them (`startingFrom`).
    """

    files: tuple[str, ...]
    bytes: int
    rows: int
    batch: int | None = None
    late: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()
    at_beginning: bool = False


@named
def reset(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    confirmed: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    source: Mapping[str, Any] | None = None,
    query_ended: bool = False,
) -> Reset:
    """Return what the query that writes `dst` would read again of `src` if it were set back; with `confirmed` set it back.

    The next start of the query then begins where a new one would, by `startingFrom`. What it has written stays, so what is read again is
    there twice, unless the output is taken away or is a table with keys. `checkpoint`, `source` and `query_ended` are as in
    `penstock.late`. Needs neither Spark nor Java.

    Raises `OptionError` if no query of `dst` has read `src`; `Locked` if it runs; `UsageError` while a batch is planned and not
    committed.
    """
    really = flag(confirmed, name="confirmed")
    reading = ReadingQuery.find(os.fspath(src), os.fspath(dst), checkpoint, source)
    rows = sum(head.total_rows for _, head in reading.sinks)
    if not _has_read(reading.last_offset()):
        return Reset((), 0, rows, at_beginning=True)
    files, late, passed_over = _by_fate(reading)
    batch = None
    if really:
        batch = reading.put_next(_initial(reading), query_ended=query_ended)
        cleaner, reader = _cleaning(reading)
        if cleaner is not None:
            cleaner.forget(reader)  # for others who clean; the next start does it, too
    return Reset(_paths(files), sum(file.size for file in files), rows, batch, _paths(late), _paths(passed_over))


def _has_read(offset: Mapping[str, Any]) -> bool:
    """Tell whether the query that is at this offset has read, or passed over, anything."""
    return any(offset["read"]) or bool(offset.get("plan")) or offset["cursor"] is not None or bool(offset.get("late"))


def _cleaning(reading: ReadingQuery) -> tuple[Cleaner | None, str]:
    """Return what cleans the source, `None` if nothing does, and by which name."""
    reader: str | None = reading.last_offset().get("reader")
    return (Cleaner.of(reading.storage, reading.root, reading.options) if reader else None), reader or ""


def _initial(reading: ReadingQuery) -> dict[str, Any]:
    """Return where a query begins that has read nothing."""
    options = reading.options
    planner: Planner | FollowPlanner
    if options["follow"]:
        planner = FollowPlanner(configured.unread(options), options)
    else:
        planner = Planner(reading.storage, reading.root, options, divisible=lambda _: False, dry=True)
    reader = {name: value for name, value in reading.last_offset().items() if name == "reader"}
    return {name: value for name, value in planner.initial().items() if name not in {"unkept", "last", "sum"}} | reader


def _by_fate(reading: ReadingQuery) -> tuple[list[FileVersion], list[FileVersion], list[FileVersion]]:
    """Return the files that were read, wholly or in part, and would be read again; late ones that would be read; and those passed over."""
    scan, late, waiting, future = _unread(reading)
    floor = _floor(reading)
    never_read = {file.path for file in (*late, *waiting, *future)}
    cleaner, reader = _cleaning(reading)
    files = [*scan.files(), *(cleaner.taken(reader) if cleaner is not None else ())]
    again = [file for file in files if file.path not in never_read and file.modified_ns >= floor]
    return (
        again,
        [file for file in late if file.modified_ns >= floor],
        [file for file in (*late, *waiting) if file.modified_ns < floor],
    )


def _unread(reading: ReadingQuery) -> tuple[Scan, list[FileVersion], list[FileVersion], list[FileVersion]]:
    """Return the look at what is there; and of that what was not read: late files, those that wait, and those of the future."""
    if reading.options["follow"]:
        scan = Scan.of(reading.storage, reading.root, reading.options)
        scan.refresh()
        return scan, [], [], []
    standing = reading.standing()
    late = [entry.file for entry in standing.late]
    return standing.scan, late, [*standing.held, *standing.waiting], list(standing.future)


def _floor(reading: ReadingQuery) -> int:
    """Return the time from which on a query that begins now would read files."""
    begins = reading.options["startingFrom"]
    floor: int = {"earliest": _EARLIEST, "latest": reading.storage.now_ns()}.get(begins, begins)
    return floor


def _paths(files: Iterable[FileVersion]) -> tuple[str, ...]:
    return tuple(file.path for file in sorted(files, key=lambda file: file.order))
