"""From new files to the splits of one batch, and from an offset back to the work of its tasks.

A batch *is* its plan, and the plan is in the offset. The failures that this prevents:

1. The driver plans files A, B; writes the offset; dies. A file C lands. The replay lists the directory and reads A, B, C: other rows
   under the same batch id. Rule: `partitions` reads the plan from the end offset and never looks at the directory.
2. A file is planned, then rewritten; the replay reads other bytes. Rule: the plan holds size, time and identity of the version that was
   planned, and a task checks them before its first and after its last byte.
3. A listing fails half way; the cursor moves past files that were not seen. Rule: `Scan.refresh` returns everything or raises.
4. The byte limit cuts a group of files of one modification time; the next scan takes the rest of the group as read. Rule: the cursor is
   (time, path), not time alone, and names the last file that was planned to its end.
5. A file appears before the cursor (renamed in, `cp -p`), or was away and is back. Rule: files that were read within `lateness` of the
   cursor are remembered exactly (`recent`), and one that was not read is planned. A file that is older than `lateness` allows is
   reported. If nobody can tell whether a file was read, it is reported, and neither read nor forgotten.
6. A driver dies in the batch that holds all there is, and no batch of its run said that it was the last. An AvailableNow run replays
   it, finds nothing else and ends; its parts stay open. Rule: such a run ends with an offset that says so, with an empty plan if
   necessary.
7. A query starts from `latest`, finds nothing and ends. Spark keeps no offset without a batch, so the next run starts from a `latest`
   of its own, and files that came in between are silently not read. The same happens if the first batch has a plan that is planned anew
   (failure 9). Rule: the first batch has an empty plan, and keeps where the query starts.
8. A query continues from its checkpoint with another directory. Files there that lie before the cursor were never read, but count as
   read. A directory may be renamed, so this cannot be refused. Rule: the offset says to which path it belongs, and a change of path is
   reported.
9. A planned file has a bad record, or is gone. Once it is mended, it is another version than the planned one; each start replays the
   plan, and fails for ever. Rule: a batch that was never committed may be removed from Spark's offset log by a program that can tell
   this (`ingestion.replan`); then the planner is asked for another plan after the same start.
10. The same happens to a file that was cut over several batches, in its last piece. The next plan is the rest of a version that is not
    there any more. Rule: if the present version begins with the same bytes, as far as records were read, its rest is read: the offset
    has a digest of the first and the last `SEEN_BYTES` of these bytes. Otherwise the planner refuses, and says what to do.
11. A file is restored from a backup, with its time, and has another inode. Rule: a version is path, size and time; the inode, which no
    backup can restore, is not part of it. (So a file that is rewritten in place, with the same size and with its time set back, cannot
    be told from the planned version. With the inode it could not be told either.)
12. An AvailableNow run takes an hour, and files appear before the cursor meanwhile. They are left to the next run, which would take
    them for seen because of their arrival times. Rule: the offset says up to which time every arrival is decided (`sure`): for such a
    run, the time at which it drew its line; and this time never moves while files before the cursor wait for their batch.
13. A file comes too late, or lies in the future, while there is nothing else to read. There is no batch, so no offset mentions the
    file, and nobody can learn from the checkpoint what became of it. Rule: such news gets a batch of its own, with an empty plan.
14. A file was cut over several batches, and the query continues with another separator, encoding or block size. The rest consists of
    the records that begin after the cut. Under the new options these are other records, so the records in between are silently left
    out, or read twice. Rule: the digest of rule 10 also depends on where the first record of the rest begins; a driver that resumes a
    cut file compares the digest, and refuses another place.

Files that changed less than `settle` ago, or lie in the future by the storage's clock, are held back and looked at again; the cursor
never passes them because it only ever moves to files that are planned. A file that stays in the future is reported once.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import xxhash

from penstock import failpoints, unique
from penstock.errors import DamagedState, FileChanged, NotThere
from penstock.formats.zones import UTC
from penstock.processes import no_collection
from penstock.query.offset import VERSION, check, summed
from penstock.source.arrivals import Arrivals
from penstock.source.begun import BegunFiles
from penstock.source.cleaned import Reached, check_not_cleaned_since, reader_of
from penstock.source.cursor import Cursor, FileVersion, Split, is_version
from penstock.source.dividing import Dividing, task_weight
from penstock.source.late import LateFile, LateFiles
from penstock.source.pace import ScanPace
from penstock.source.sides import LATE, SideRecords
from penstock.source.where import where

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.options import Options
    from penstock.source.clean import Cleaner
    from penstock.source.scan import Scan
    from penstock.storage import ReadHandle, Storage

_log = logging.getLogger("penstock.source")


@dataclass(frozen=True)
class BatchLimits:
    """How much one batch may hold, in files and in bytes; `None`: everything that is there."""

    files: int | None
    size: int | None

    def allow(self, files: int, room: int | None) -> bool:
        """Tell whether a batch that has `files` files already, and room for `room` more bytes, may have another split."""
        return (self.files is None or files < self.files) and (room is None or room > 0)


_NO_LIMITS = BatchLimits(None, None)


def mark(options: Options) -> str:
    """Return the hash of the source's paths in an offset, for comparison."""
    return xxhash.xxh3_64_hexdigest(where(options).mark)


def marks(options: Options) -> dict[str, str]:
    """Return the fields of an offset for the source's paths: `mark`, and for several paths also that of their common directory, `base`."""
    place = where(options)
    base = {"base": xxhash.xxh3_64_hexdigest(os.fsencode(place.root))} if place.is_several else {}
    return {"root": mark(options)} | base


def is_set_back(before: Mapping[str, Any], end: Mapping[str, Any]) -> bool:
    """Tell whether the batch between two offsets makes its query read from the beginning again, so that reads are counted anew."""
    return "read" in before and "read" in end and end["read"][0] < before["read"][0]


@dataclass(frozen=True)
class NotReadYet:
    """The files of a source that are not read, at one moment: too late, held back until they settle, or until their time comes.

    `waiting` are the files for the next plans; `scan` is the listing.
    """

    late: tuple[LateFile, ...]
    held: tuple[FileVersion, ...]
    future: tuple[FileVersion, ...]
    waiting: tuple[FileVersion, ...]
    scan: Scan


class Planner:
    """Plans the batches of one source. Lives in the driver, as long as the query; not shared between threads.

    `boundary(file, anchor, target)` returns the first record start at or after `target`, for formats that can be cut only there (csv);
    `None` means that a file may be cut at any byte. `reach(open file, size, at)` returns how far the records reach that begin before a
    cut. `divisible(path)` tells whether a file may be cut at all. `state` is the place beside the checkpoint for plans that are too
    long for an offset. `admit(path)` raises an error for a file that can never be read, before it is planned, so that the query
    continues once somebody has moved the file away. `zone` is the zone for times without one, `None` if nobody has set it; a plan keeps
    the zone with which it was made. A planner that is `dry` writes nothing, and logs nothing about files: its plans are only for
    inspection.
    """

    def __init__(  # noqa: PLR0913 - these differ from source to source
        self,
        storage: Storage,
        root: str,
        options: Options,
        *,
        divisible: Callable[[str], bool],
        boundary: Callable[[FileVersion, int, int], int] | None = None,
        reach: Callable[[ReadHandle, int, int], int | None] = lambda _, __, at: at,
        state: tuple[Storage, str] | None = None,
        admit: Callable[[str], None] | None = None,
        zone: str | None = None,
        dry: bool = False,
    ) -> None:
        self._storage = storage
        self._root = root
        self._options = options
        self._dividing = Dividing(divisible, boundary)
        self._begun = BegunFiles(storage, root, reach)
        self._side = SideRecords(state, writes=not dry)
        self._dry = dry
        self._admit = admit
        self._zone = zone
        self._cleaner: Cleaner | None = None
        self._reader = unique.token()
        self._resets = 0
        self._is_compared = False
        self._limits = BatchLimits(options["maxFilesPerTrigger"], options["maxBytesPerTrigger"])
        self._pace = ScanPace(storage, root, options)
        self._bounded = False
        self._frozen = False
        self._marks = marks(options)
        self._looked: Arrivals | None = None  # has only listed the directory so far
        self._reset(Cursor())
        self._at: dict[str, Any] | None = None
        self._looked_after: dict[str, Any] | None = None

    def cleaned_by(self, cleaner: Cleaner | None) -> Planner:
        """Have `cleaner` remove files that were read; return this planner."""
        self._cleaner = cleaner
        return self

    # -- offsets -------------------------------------------------------------------------------------------------

    def initial(self) -> dict[str, Any]:
        """Return the offset before the first batch, by `startingFrom`. Called twice at the very start."""
        starting = self._options["startingFrom"]
        if starting == "earliest":
            return self._offset(Cursor(), [], last=False)
        missing = self._pace.is_missing()
        if not missing:
            self._storage.stat(self._root)
        if starting != "latest":
            return self._offset(Cursor(floor=starting), [], last=False)
        self._reset(Cursor(order=(self._storage.now_ns(), b"")))
        if not missing:
            self._arrivals.begin_now(self._cursor)
        return self._offset(self._cursor, [], last=False, unkept=True)

    def prepare_available_now(self) -> None:
        """Limit the run to the files that the next `latest` finds."""
        if self._frozen:
            self._at = None  # files that came after the line of the last run are found by looking at everything
        self._bounded, self._frozen, self._looked_after = True, False, None

    def latest(self, start: dict[str, Any], *, limited: bool = True) -> dict[str, Any]:
        """Return the end offset of the next batch after `start`; `start` itself if there is nothing to read.

        A batch may have nothing to read, too: the last batch of an AvailableNow run, if no batch with a plan could say that it is the
        last (failure 6), and the first batch of a query that starts from `latest` (failure 7). `limited=False` (Trigger.Once) plans
        everything in one batch. Raises `StorageError` if the listing fails, `FileTooLate` by option and `FileChanged` if the rest of a
        file that was cut cannot be read any more; then nothing has moved, and the next call begins from the offset alone.
        """
        if not self.look(start, limited=limited):
            return start
        self._looked_after = None
        failpoints.hit("source.planned")
        with no_collection():
            splits = [] if start.get("unkept") else self._take(self._limits if limited else _NO_LIMITS)
            if splits or self._is_owed(start):
                last = not limited or (self._frozen and self._arrivals.backlog.empty and self._cursor.cut is None)
                self._at = self._offset(self._cursor, splits, last=last)
            else:
                self._at = start
        return self._at

    def look(self, start: dict[str, Any], *, limited: bool = True) -> bool:
        """Take in which files are there after `start`; return whether there is a directory to look at now.

        This is the first half of `latest`, which calls it unless it was just called. Raises what `latest` does.
        """
        if self._looked_after is start:
            return True
        at, self._at = self._at, None
        self._looked_after = None
        self._reader, self._resets = reader_of(start), start.get("resets", 0)
        self._side.resume(start)
        self._compare_with_cleaned(start)
        self.clean(start)
        if not self._look(start, at, bounded=self._bounded or not limited):
            return False
        self._looked_after = start
        return True

    def waiting(self) -> tuple[int, int]:
        """Return how many files wait for a batch, and their bytes, as of the last `look`."""
        return self._arrivals.backlog.waiting()

    def _look(self, start: dict[str, Any], at: dict[str, Any] | None, *, bounded: bool) -> bool:
        """Look for files after `start`, from what is known if `start` is `at`; return whether there is a directory to look at now."""
        if self._pace.is_closed(bounded=bounded):
            self._at = at
            return False
        try:
            if start != at:
                self._resume(start)
            self._refresh()
        except NotThere:
            if not self._pace.is_missing():
                raise
            return False  # it disappeared just now; its files are found again later
        return True

    def _is_owed(self, start: dict[str, Any]) -> bool:
        """Tell whether a batch after `start` has something to say although it has nothing to read (failures 6, 7 and 13)."""
        if start.get("unkept") or self._arrivals.has_news(start, final=self._frozen):
            return True
        return self._bounded and bool(start.get("plan")) and not start.get("last")

    def splits(self, end: dict[str, Any]) -> list[Split]:
        """Return the plan of the batch that ends at `end`; reads the offset (and its side record), nothing else."""
        check(end)
        plan = end.get("plan", [])
        return [Split.from_json(entry) for entry in self._side.load(plan)]

    @staticmethod
    def zone(end: dict[str, Any]) -> str | None:
        """Return the zone for times without one in the batch that ends at `end`; `None` if nobody had set it.

        Plans made by versions that kept no zone were read in UTC.
        """
        check(end)
        zone: str | None = end.get("zone", UTC)
        return zone

    def tasks(self, end: dict[str, Any]) -> list[list[Split]]:
        """Return the plan packed into tasks, see `dividing.task_weight`."""
        self._compare_with_cleaned(end)
        if self._cleaner is not None and "reader" in end:
            self._cleaner.register(end["reader"])  # by now Spark has the offset, and the reader's name in it
        splits = self.splits(end)
        return list(self._dividing.tasks(splits, task_weight(splits, self._options)))

    def committed(self, end: dict[str, Any]) -> None:
        """Delete side records that no replay can ask for; called when the batch that ends at `end` is done."""
        check(end)
        forms = (end, self._at or {})
        lists = [form.get("plan") for form in forms] + [form.get("late", {}).get("files") for form in forms]
        self._side.resume(end).forget_all_but({items["file"] for items in lists if isinstance(items, dict)})

    def clean(self, done: dict[str, Any], following: dict[str, Any] | None = None) -> None:
        """Remove the files that the batch that ends at `done` has read to their ends, if the source cleans.

        Called when the batch is committed wherever it is written to: before another batch is planned after it, and when the next batch,
        which ends at `following`, is replayed. If that batch sets the query back (`is_set_back`), files that were read stay, to be read
        again. Raises `StorageError` if files that could not be removed cannot be noted either.
        """
        if following is not None:
            self._compare_with_cleaned(following)
        if self._cleaner is None:
            return
        check(done)
        # By this name `look` will go on: `done` may be of a time when the source did not clean.
        reader = reader_of(following or done)
        if following is not None and is_set_back(done, following):
            self._cleaner.forget(reader)
            return
        read: list[FileVersion] = []
        with suppress(DamagedState):  # its plan lay beside the offset, and is deleted: its files were cleaned before
            read = [split.file for split in self.splits(done) if split.end == split.file.size]
        self._cleaner.clean(reader, read, done["sum"], Reached.of(done))

    def _compare_with_cleaned(self, newest: dict[str, Any]) -> None:
        """Raise `FilesCleaned` if the newest plan of the checkpoint is older than what was cleaned; once, at the start."""
        if self._is_compared:
            return
        check(newest)
        if self._cleaner is not None or "reader" in newest:
            check_not_cleaned_since(self._storage, self._root, newest)
        if self._cleaner is not None:
            self._cleaner.drop_undone(reader_of(newest), Reached.of(newest))
        self._is_compared = True

    def _offset(self, cursor: Cursor, splits: list[Split], *, last: bool, unkept: bool = False) -> dict[str, Any]:
        form = {"v": VERSION} | cursor.to_json()
        form |= self._marks
        form["zone"] = self._zone
        form |= self._arrivals.to_json(cursor, partial(self._side.store, kind=LATE))
        form |= self._side.to_json()
        form["plan"] = self._side.store([split.to_json() for split in splits])
        if last:
            form["last"] = True
        if unkept:
            form["unkept"] = True
        if self._cleaner is not None:
            form |= {"reader": self._reader} | ({"resets": self._resets} if self._resets else {})
        return summed(form)

    def beginning(self, split: Split, room: int) -> Split:
        """Return the beginning of a split, of at most `room` bytes unless it cannot be cut smaller."""
        return split._replace(end=min(self._dividing.end(split.file, split.start, room), split.end))

    def is_ahead(self, start: dict[str, Any]) -> bool:
        """Tell whether there is something to read after the offset `start`. After this call only `latest` may be called.

        True at once if a newer file is there; then it is left to a planner of the whole batch to find out what else there is to read.
        """
        cursor, looked = Cursor.from_json(start), self._new_arrivals()
        if cursor.order is not None and looked.is_ahead(cursor):
            return True
        self._looked = looked
        return self.latest(start) != start

    def standing(self, start: dict[str, Any] | None = None) -> NotReadYet:
        """Return what is not read after the offset `start`, by a new listing; `None`: as of the last `latest`. Plans nothing."""
        if start is not None:
            self._at = None
            self._resume(start)
        late, held, future, waiting = self._arrivals.standing()
        return NotReadYet(late, held, future, waiting, self._arrivals.scan)

    # -- what is new ---------------------------------------------------------------------------------------------

    def _reset(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._arrivals, self._looked = self._looked or self._new_arrivals(), None
        self._cut_waits = False
        self._cut_by_others = cursor.cut is not None

    def _new_arrivals(self) -> Arrivals:
        return Arrivals(self._storage, self._root, self._options, quiet=self._dry)

    def _resume(self, start: dict[str, Any]) -> None:
        """Resume from an offset, of this process or of one that died."""
        self._reset(Cursor.from_json(start))
        if start.get("root", self._marks["root"]) != self._marks["root"]:
            _log.warning(
                "the checkpoint was written for another path than %r: if that is another directory, and not the same one under "
                "a new name, give it a checkpoint of its own; its files that lie before the cursor count as read",
                self._root,
            )
        if self._bounded:
            self._frozen = False
        self._arrivals.look_back(start, self._cursor, LateFiles.recalled(start, self._side.load))

    def _refresh(self) -> None:
        """Take in new files. An AvailableNow run draws its line here: it reads what is there now, and what settles soon."""
        if self._frozen:
            self._arrivals.refresh_after_line(self._cursor)
        elif self._bounded:
            self._arrivals.refresh(self._cursor)
            self._arrivals.wait_for_held(self._cursor)
            self._frozen = True
        elif self._pace.is_due():
            self._arrivals.refresh(self._cursor, hints=True)
        self._go_on_with_cut()

    def _go_on_with_cut(self) -> None:
        """Continue a file that was cut with the version that is there now (failure 10), once that version stands still."""
        self._cut_waits = False
        cut = self._cursor.cut
        if cut is None:
            return
        # The last listing may not have checked this file again: it checks old files in turn, as time allows.
        now = self._begun.now(cut)
        if now is not None and is_version(self._storage, now, cut):
            if self._cut_by_others:
                self._begun.check_options(cut, self._cursor)
                self._cut_by_others = False
            return
        if now is not None and now.modified_ns > self._storage.now_ns() - self._options["settle"]:
            self._cut_waits = True
            return
        try:
            begun = self._begun.check_rest(cut, self._cursor, now)
        except FileChanged:
            if self._options["changedFiles"] == "fail":
                raise
            # The rest of the old version is planned: the task that reads it notices the change, and sets it aside.
            return
        _log.warning("%s; it has changed after them, and reading continues from there", begun)
        self._arrivals.replaced(cut)
        self._cursor = replace(self._cursor, cut=now)

    # -- the batch -----------------------------------------------------------------------------------------------

    def _take(self, limits: BatchLimits) -> list[Split]:
        """Move files from the backlog into the plan of one batch, in order, and the cursor with them."""
        splits = self._taken(BatchLimits(1, None) if self._options["batchBoundary"] == "file" else limits)
        self._arrivals.expire(self._cursor)
        self._arrivals.done(split.file for split in splits if split.end == split.file.size)
        if splits and self._cursor.cut is not None:
            self._cursor = replace(self._cursor, digest=self._begun.digest(self._cursor.cut, self._cursor.at))
        return splits

    def _taken(self, limits: BatchLimits) -> list[Split]:
        """Return the splits of one batch, and move the cursor past them."""
        splits: list[Split] = []
        room = limits.size
        while limits.allow(len(splits), room):
            more = self._whole(None if limits.files is None else limits.files - len(splits), room)
            more = more or self._next(room, first=not splits)
            if not more:
                break
            before, self._cursor = self._cursor, self._cursor.advance(more)
            splits += more
            room = None if room is None else room - (self._cursor.bytes - before.bytes)
        return splits

    def _whole(self, count: int | None, room: int | None) -> list[Split]:
        """Return splits of the next files that fit into a batch whole, at most `count`."""
        if self._cursor.cut is not None:
            return []
        files = self._arrivals.backlog.next(count, room)
        if self._admit is not None:
            for file in files:
                self._admit(file.path)
        self._arrivals.planned(files)
        return [Split(file, 0, file.size) for file in files]

    def _next(self, room: int | None, *, first: bool) -> list[Split]:
        """Return the next split, of at most `room` bytes unless it is the `first` and cannot be cut smaller; empty if there is none."""
        file = self._next_file()
        if file is None:
            return []
        if self._admit:
            self._admit(file.path)
        start = self._cursor.at
        end = self._dividing.end(file, start, room)
        if not first and room is not None and end - start > room:
            return []
        if self._cursor.cut is None:
            self._arrivals.planned([file])
        return [Split(file, start, end)]

    def _next_file(self) -> FileVersion | None:
        """Return the file that is read next: a cut file comes before all others, even if it has to be waited for."""
        if self._cursor.cut is None:
            return self._arrivals.backlog.first()
        return None if self._cut_waits else self._cursor.cut
