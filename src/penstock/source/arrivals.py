"""What is known of a source's files, from listing to listing: the files still to be read, and those that are done.

For each file that a listing shows, it decides whether the file is read. A file after the cursor is read. For a file before the cursor,
`recent`, `lateness` and the arrival times decide. The failures that this prevents are in `plan` (5, 8, 12) and in `recent`. It never
moves the cursor: the planner passes the current cursor in each call.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import xxhash

from penstock import clock
from penstock.clock import SECOND_NS
from penstock.processes import no_collection
from penstock.source import late
from penstock.source.backlog import Backlog
from penstock.source.hints import HINT_NS
from penstock.source.late import LateFile, LateFiles
from penstock.source.notices import FUTURE_NS, LATE, UNSURE, Notices
from penstock.source.recent import NEVER_NS, Recent, recall
from penstock.source.scan import Scan

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from penstock.options import Options
    from penstock.source.cursor import Cursor, FileVersion
    from penstock.source.scan import Arrival, Changes
    from penstock.storage import Storage

_TICK_NS = 10_000_000  # a kernel stamps files with the time of its last tick
_WAIT_NS = 5 * SECOND_NS  # AvailableNow waits for files to settle if `settle` is not longer than this


class Arrivals:
    """The files of one source as one planner has come to know them; not shared between threads.

    It begins with `look_back`, for a query that has an offset, or with `begin_now`. `backlog` has the files to be read. With `quiet`,
    nothing is logged.
    """

    def __init__(self, storage: Storage, root: str, options: Options, *, quiet: bool = False) -> None:
        self.backlog = Backlog()
        self._storage = storage
        self._options = options
        self.scan = Scan.of(storage, root, options)
        self._notices = Notices(root, options, quiet=quiet)
        self._recent = Recent()
        self._late = LateFiles()
        self._sure_ns = NEVER_NS
        self._listed_first: list[Arrival] | None = None

    # -- the beginning -------------------------------------------------------------------------------------------

    def begin_now(self, cursor: Cursor) -> None:
        """Count the present files before the cursor as done."""
        self.done(arrival.file for arrival in self.scan.refresh().came if cursor.passed(arrival.file))
        self.expire(cursor)
        self._sure_ns = self.scan.listed_ns

    def is_ahead(self, cursor: Cursor) -> bool:
        """Tell whether a file is there that is newer than all planned files, and may be read now; if so, nothing else is looked at.

        Called before `look_back`, which continues with the same listing, because to decide about the files before the cursor takes as
        long again.
        """
        changes = self.scan.refresh_unless(cursor.newer(self._storage.now_ns() - self._options["settle"]))
        self._listed_first = None if changes is None else changes.came
        return changes is None

    def look_back(self, start: dict[str, Any], cursor: Cursor, late_files: LateFiles) -> None:
        """Resume from the offset `start`, of this process or of one that died; `cursor` and `late_files` are those in the offset.

        For the files before the cursor, the offset alone says whether they were decided before.
        """
        came = self.scan.refresh().came if self._listed_first is None else self._listed_first
        self._listed_first = None
        self._late = late_files
        self._sure_ns = self.scan.listed_ns
        self._notices.left_out(self.scan)
        with no_collection():
            before, after = _divided(came, lambda item: cursor.passed(item.file))
            self._decide_before_cursor([item for item in before if cursor.concerns(item.file)], start, cursor)
            self._arrive(after, cursor)
            self._settle()

    def _decide_before_cursor(self, files: list[Arrival], start: dict[str, Any], cursor: Cursor) -> None:
        """Decide for each file before the cursor whether it was decided in an earlier batch."""
        since_ns: int = start["recent"]["from"]
        before = _BeforeCursor(files, since_ns)
        recalled = recall(start["recent"], before.near, before.older, cursor.latest_ns)
        new = recalled.new
        self._recent = Recent(since_ns, recalled.away, recalled.away_from_ns)
        near = {key: before.near[key] for key in before.near.keys() - new} if new else before.near
        self._recent.know(near, before.older - new)
        for item in before.items(self._late.awaited() - new):
            self.backlog.hold(item.file)
        sure_ns = self._sure_until(start)
        if recalled.near is None:
            doubtful = [item for item in before.items(before.near) if self._is_doubtful(item, sure_ns)]
            self._not_read(doubtful, late.UNSURE)
        if recalled.older is None:
            self._doubt_older(before.items(before.older), sure_ns)
        self._arrive(before.items(new), cursor)

    def _doubt_older(self, files: list[Arrival], sure_ns: int) -> None:
        """Report files older than `lateness` that may have arrived since, if the offset cannot tell which files were there."""
        unknown, dated = _divided(files, lambda item: item.since_ns is None)
        self._notices.undated([item.file for item in unknown if item.file not in self._late])
        self._not_read([item for item in dated if self._is_doubtful(item, sure_ns)], late.UNSURE)

    def _is_doubtful(self, item: Arrival, sure_ns: int) -> bool:
        """Tell whether a file may have arrived after the last moment at which all was decided, and was not reported before."""
        return not item.was_there(sure_ns) and item.file not in self._late

    def _sure_until(self, start: dict[str, Any]) -> int:
        """Return the time up to which all arrivals were decided by the batches up to `start`, as far as that is known."""
        listed_ns: int = start.get("listed", NEVER_NS)
        sure_ns: int
        sure_ns, circumstances = start.get("sure", (listed_ns, self._circumstances()))
        if circumstances != self._circumstances() or sure_ns > self._storage.now_ns():
            return NEVER_NS
        return max(sure_ns - _TICK_NS, NEVER_NS)

    # -- from listing to listing ---------------------------------------------------------------------------------

    def refresh(self, cursor: Cursor, *, hints: bool = False) -> None:
        """Take in what has come and gone since the last listing; `StorageError` if the listing fails.

        With `hints`, some changes may be taken in a while later, as long as no file becomes too late by that.
        """
        changes = self._listed(self.backlog.held, hints=hints and self._options["lateness"] >= 2 * HINT_NS)
        self._sure_ns = self.scan.listed_ns
        self._arrive(changes.came, cursor)
        self._settle()

    def refresh_after_line(self, cursor: Cursor) -> None:
        """Take in what has gone, and what has come back, after the line of an AvailableNow run is drawn (`wait_for_held`)."""
        changes = self._listed(self.backlog.held)
        self._arrive((item for item in changes.came if item.file in self._recent), cursor)

    def wait_for_held(self, cursor: Cursor) -> None:
        """Wait for files that have not settled yet, unless that takes long; other files that arrive meanwhile are left for the next run."""
        now_ns, settle_ns = self._storage.now_ns(), self._options["settle"]
        changed = [file.modified_ns for file in self.backlog.held.values() if file.modified_ns <= now_ns]
        if not changed or settle_ns > _WAIT_NS:
            return
        clock.sleep(max(max(changed) + settle_ns - now_ns, 0) / SECOND_NS + 0.005)
        awaited = set(self.backlog.held)
        changes = self.scan.refresh(awaited)
        self._leave(changes.gone)
        self._arrive((item for item in changes.came if item.file.path in awaited or item.file in self._recent), cursor)
        self._settle()

    def _listed(self, look_at: Iterable[str], *, hints: bool = False) -> Changes:
        changes = self.scan.refresh(look_at, hints=hints)
        self._notices.left_out(self.scan)
        self._leave(changes.gone)
        return changes

    def _leave(self, files: list[FileVersion]) -> None:
        """Remove these versions, which are not there any more."""
        for file in files:
            self.backlog.drop(file)
        self._recent.leave(files)

    def _arrive(self, arrivals: Iterable[Arrival], cursor: Cursor) -> None:
        """Take in new files, and new versions of known files."""
        too_late: list[Arrival] = []
        unsure: list[Arrival] = []
        back: list[FileVersion] = []  # they were away for a while
        horizon_ns = self._horizon_ns(cursor)
        for item in arrivals:
            file, since_ns = item
            if not cursor.concerns(file):
                continue
            if not cursor.passed(file) or self._late.awaits(file):
                self.backlog.hold(file)
            elif file in self._recent or file in self._late:
                back.append(file)
            elif file.modified_ns < horizon_ns:
                too_late.append(item)
            elif self._recent.is_new(file):
                self.backlog.hold_before_cursor(file, NEVER_NS if since_ns is None else since_ns)
            else:
                unsure.append(item)
        self._not_read(too_late, late.LATE)
        self._not_read(unsure, late.UNSURE)
        self.done([*back, *(item.file for item in (*too_late, *unsure))])

    def _not_read(self, items: list[Arrival], why: str) -> None:
        """Report files that are not read, and keep entries of them; `FileTooLate` if the option says so."""
        self._notices.not_read([item.file for item in items], LATE if why == late.LATE else UNSURE)
        noticed_ns = self.scan.listed_ns or self._storage.now_ns()
        self._late.note(
            LateFile(file, noticed_ns if since_ns is None or since_ns == NEVER_NS else since_ns, why)
            for file, since_ns in items
        )

    def _settle(self) -> None:
        """Move files that have stood still for long enough from held to waiting."""
        now_ns = self._storage.now_ns()
        self.backlog.settle(now_ns - self._options["settle"])
        self._notices.in_the_future(self.backlog.held, now_ns)

    # -- what is done --------------------------------------------------------------------------------------------

    def planned(self, files: Sequence[FileVersion]) -> None:
        """Remove from the backlog what `backlog` has returned: it is planned; of the last file perhaps only the beginning."""
        self.backlog.take(files)
        self._late.planned(files)

    def standing(
        self,
    ) -> tuple[tuple[LateFile, ...], tuple[FileVersion, ...], tuple[FileVersion, ...], tuple[FileVersion, ...]]:
        """Return four groups, each in order: late files, held files that must settle, files of the future, files that wait for a batch."""
        ahead_ns = self._storage.now_ns() + FUTURE_NS
        held = sorted(self.backlog.held.values(), key=lambda file: file.order)
        return (
            tuple(self._late.entries(self._is_there)),
            tuple(file for file in held if file.modified_ns <= ahead_ns),
            tuple(file for file in held if file.modified_ns > ahead_ns),
            tuple(self.backlog.files()),
        )

    def has_news(self, start: dict[str, Any], *, final: bool) -> bool:
        """Tell whether there are files that were not read and that the offset `start` does not mention; `final`: no batch will follow soon.

        While other batches follow, not each file of the future is news: only the first one is, and the moment when none is left.
        """
        before, now = start.get("held", [0, 0]), self._held()
        return self._late.unkept or bool(before[1]) != bool(now[1]) or (final and before != now)

    def _is_there(self, file: FileVersion) -> bool:
        now = self.scan.version(file.path)
        return now is not None and now.key == file.key

    def _held(self) -> list[int]:
        """Return how many files are held back, and how many of these lie in the future."""
        ahead_ns = self._storage.now_ns() + FUTURE_NS
        return [len(self.backlog.held), sum(file.modified_ns > ahead_ns for file in self.backlog.held.values())]

    def done(self, files: Iterable[FileVersion]) -> None:
        """Remember that these files are planned to their ends, or reported."""
        self._recent.add(files)

    def replaced(self, file: FileVersion) -> None:
        """Remember that this version was read in part, is done, and is gone."""
        self._recent.add([file])
        self._recent.leave([file])

    def expire(self, cursor: Cursor) -> None:
        """Forget files that are older than the cursor by more than `lateness`."""
        self._recent.expire(self._horizon_ns(cursor))

    def _horizon_ns(self, cursor: Cursor) -> int:
        lateness_ns: int = self._options["lateness"]
        return cursor.order[0] - lateness_ns if cursor.order else NEVER_NS

    # -- the offset ----------------------------------------------------------------------------------------------

    def to_json(self, cursor: Cursor, store: Callable[[list[Any]], Any]) -> dict[str, Any]:
        """Return the fields of the offset that concern files, see `cursor`; `store` puts a long list beside the offset."""
        files, size = self.backlog.waiting()
        if cursor.cut is not None:
            files, size = files + 1, size + cursor.cut.size - cursor.at
        times = [self.backlog.oldest_ns(), cursor.cut.modified_ns if cursor.cut else None]
        oldest_ns = min((time for time in times if time is not None), default=None)
        since_ns = self.backlog.before_cursor_since(cursor)
        decided_ns = self._sure_ns if since_ns is None else min(self._sure_ns, since_ns)
        recent = self._recent.to_json()
        form: dict[str, Any] = {
            "listed": self.scan.listed_ns,
            "sure": [decided_ns, self._circumstances()],  # see failure 12 of `plan`
            "recent": recent,
            "left": [files, size],
        }
        form |= {} if oldest_ns is None else {"oldest": oldest_ns}
        form |= self._late.to_json(self._is_there, recent["from"], store)
        self._late.unkept = False
        held = self._held()
        return form | {"held": held} if any(held) else form

    def _circumstances(self) -> str:
        """Return what must be unchanged for an arrival time to tell what was decided: the directory, and what is read of it."""
        names = ("pathGlobFilter", "pattern", "recursiveFileLookup", "followSymlinks", "partitionColumns")
        text = json.dumps([self.scan.identity, *(self._options[name] for name in names), *self.scan.selected])
        return xxhash.xxh3_64_hexdigest(text.encode())


def _divided(items: Iterable[Arrival], test: Callable[[Arrival], bool]) -> tuple[list[Arrival], list[Arrival]]:
    """Return the items that pass the test, and the others."""
    passing: list[Arrival] = []
    others: list[Arrival] = []
    for item in items:
        (passing if test(item) else others).append(item)
    return passing, others


class _BeforeCursor:
    """Files before a cursor, possibly very many: the key of each is computed once.

    `near` maps the keys of the files since the time from which an offset remembers all files to their times; `older` has the keys of
    the others.
    """

    def __init__(self, files: list[Arrival], since_ns: int) -> None:
        self._by_key = {item.file.key: item for item in files}
        times = ((key, item.file.modified_ns) for key, item in self._by_key.items())
        self.near = {key: time_ns for key, time_ns in times if time_ns >= since_ns}
        self.older = self._by_key.keys() - self.near.keys()

    def items(self, keys: Collection[bytes]) -> list[Arrival]:
        """Return the files of these keys, in the order in which they came."""
        return [item for key, item in self._by_key.items() if key in keys] if keys else []
