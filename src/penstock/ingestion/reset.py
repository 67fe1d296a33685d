"""`penstock reset`: sets a query back, so that it reads its source from the beginning again.

The initial state is an offset. So a query is set back by an entry in Spark's offset log, in the same way as late files are
accepted (`ingestion.late`, whose rules hold here, too): the next batch of the query has no rows, and ends where a new query
begins. Nothing that was committed is touched, and no batch number is used again: the output, its ledger and the checkpoint stay
as they are, and what is read again is in the output twice. The failures, and the rules:

1. The user does not know what that means for the present output. Rule: the command first reports what would be read again, and
   does nothing without a confirmation.
2. The command dies. Rule: it makes one put, under a free number, so the query is either set back or not.
3. The command is run twice, and everything is read three times. Rule: after an entry that sets a query back, there is nothing to
   do until the query has read something.
4. A file was read and is not cleaned yet (`cleanSource`); the start that replays the entry would clean it before it is read
   again. Rule: after an entry that sets it back, the source cleans nothing, and no longer reports files as read. It keeps the
   reader's name that it had; otherwise it would wait for itself as for another reader. The entry counts how often the query was set
   back, since the marks of what was cleaned would stop it (`source.cleaned`).
5. The query runs, or a batch is planned and not committed. Rule: the command is refused, as in `ingestion.late`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.arguments import flag, named
from penstock.ingestion.late import ReadingQuery
from penstock.source import configured
from penstock.source.clean import Cleaner
from penstock.source.cleaned import Reached
from penstock.source.followed import FollowPlanner
from penstock.source.plan import Planner
from penstock.source.scan import Scan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.source.cursor import FileVersion

_EARLIEST = -(1 << 63)


@dataclass(frozen=True)
class Reset:
    """What a reset does: the files (paths below `src`) that would be read again, and their bytes.

    `rows` counts what the output has and keeps.

    `batch` sets the query back; None if nothing was done, because the call only asked, or because the query is at its beginning
    (`at_beginning`). `late` are files that came too late, and would be read for the first time. `passed_over` are files that are
    not read yet, and never would be, because the query would begin after them (`startingFrom`).
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
    """Return what the query that writes `dst` would read again from `src` if it were set back; with `confirmed` set it back.

    The next start of the query then begins where a new query would, by `startingFrom`. What it has written stays, so rows that
    are read again are there twice, unless the output is moved away or is a table with keys. `checkpoint`, `source` and
    `query_ended` are as in `penstock.late`. Needs neither Spark nor Java.

    Raises `OptionError` if no query of `dst` has read `src`; `Locked` if the query runs; `UsageError` while a batch is planned
    and not committed.
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
            cleaner.forget(reader)  # for other readers that clean; the next start does it, too
    return Reset(_paths(files), sum(file.size for file in files), rows, batch, _paths(late), _paths(passed_over))


def _has_read(offset: Mapping[str, Any]) -> bool:
    """Tell whether a query at this offset has read, or passed over, anything."""
    return any(offset["read"]) or bool(offset.get("plan")) or offset["cursor"] is not None or bool(offset.get("late"))


def _cleaning(reading: ReadingQuery) -> tuple[Cleaner | None, str]:
    """Return the cleaner of the source, `None` if there is none, and the reader's name."""
    reader: str | None = reading.last_offset().get("reader")
    return (Cleaner.of(reading.storage, reading.root, reading.options) if reader else None), reader or ""


def _initial(reading: ReadingQuery) -> dict[str, Any]:
    """Return the offset at which a new query would begin."""
    options = reading.options
    planner: Planner | FollowPlanner
    if options["follow"]:
        planner = FollowPlanner(configured.unread(options), options)
    else:
        planner = Planner(reading.storage, reading.root, options, divisible=lambda _: False, dry=True)
    last = reading.last_offset()
    kept = {"reader": last["reader"], "resets": Reached.of(last).resets + 1} if "reader" in last else {}
    return {name: value for name, value in planner.initial().items() if name not in {"unkept", "last", "sum"}} | kept


def _by_fate(reading: ReadingQuery) -> tuple[list[FileVersion], list[FileVersion], list[FileVersion]]:
    """Return the files that were at least partly read and would be read again; late files that would be read; and files passed over."""
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
    """Return the scan of the source, and the files that were not read: late files, files that wait, and files of the future."""
    if reading.options["follow"]:
        scan = Scan.of(reading.storage, reading.root, reading.options)
        scan.refresh()
        return scan, [], [], []
    standing = reading.standing()
    late = [entry.file for entry in standing.late]
    return standing.scan, late, [*standing.held, *standing.waiting], list(standing.future)


def _floor(reading: ReadingQuery) -> int:
    """Return the modification time from which on a new query would read files."""
    begins = reading.options["startingFrom"]
    floor: int = {"earliest": _EARLIEST, "latest": reading.storage.now_ns()}.get(begins, begins)
    return floor


def _paths(files: Iterable[FileVersion]) -> tuple[str, ...]:
    return tuple(file.path for file in sorted(files, key=lambda file: file.order))
