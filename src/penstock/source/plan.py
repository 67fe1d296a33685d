"""From new files to the splits of one batch, and from an offset back to the work of its tasks.

A batch *is* its plan, and the plan is in the offset. The failures this answers:

1. The driver plans files A, B; writes the offset; dies. A file C lands. The replay lists the directory and reads
   A, B, C: other rows under the same batch id. Rule: `partitions` reads the plan out of the end offset and never looks
   at the directory.
2. A file is planned, then rewritten; the replay reads other bytes. Rule: the plan holds size, time and identity of the
   version that was planned, and a task checks them before its first and after its last byte.
3. A listing fails half way; the cursor moves over what was not seen. Rule: `Scan.refresh` returns everything or raises.
4. The byte limit cuts a group of files of one modification time; the next scan takes them for read. Rule: the cursor is
   (time, path), not time alone, and names the last file planned to its end.
5. A file appears behind the cursor (renamed in, `cp -p`), or was away and is back. Rule: what was read within `lateness`
   of the cursor is remembered exactly (`recent`), what is there and was not read is planned; what lies further behind is
   reported. What cannot be told is reported, and neither read nor forgotten.
6. A driver dies in the batch that holds all there is, and no batch of its run said that it was the last. An AvailableNow
   run replays it, finds nothing else and ends; its parts stay open. Rule: such a run ends with an offset that says so, if
   need be with an empty plan.
7. A query starts from `latest`, finds nothing and ends. Spark keeps no offset without a batch, so the next run starts from
   a `latest` of its own; what came in between is not read, without a word. The same if its first batch has a plan that is
   planned anew (failure 9). Rule: where it starts is kept by its first batch, whose plan is empty.
8. A query goes on from its checkpoint with another directory. Files there that lie behind the cursor have never been read,
   and pass for read. A directory may be renamed, so that cannot be refused. Rule: the offset says which path it is of, and
   another one is reported.
9. A planned file has a bad record, or is gone. Mended, it is another version than the planned one; each start replays the
   plan, and fails for ever. Rule: a batch that was never committed may be taken out of Spark's offset log by whoever can
   know that (`spark.replan`); then this is asked for another plan behind the same start.
10. So is a file that was cut over several batches, in its last piece. The plan behind the start is the rest of a version
   that is not there any more. Rule: the rest is that of the version that is there if it begins with the same bytes, as far as
   records were read: the offset has a digest of the first and the last `_SEEN_BYTES` of these. Else the planner refuses, and
   says what to do.
11. A file is put back from a backup, with its time: it has another inode. Rule: a version is path, size and time; an inode,
   which no backup can give back, is none of it. (What is rewritten in place, of the same size and with its time set back,
   could not be told from what was planned before either.)
12. An AvailableNow run takes an hour, and files appear behind the cursor meanwhile. They are for the next run, which by
   their arrival would take them for seen. Rule: the offset says up to when all that had arrived is decided (`sure`): for
   such a run since it drew its line, and never while files behind the cursor wait for their batch.

Files that changed less than `settle` ago, or lie in the future by the storage's clock, are held back and looked at
again; the cursor never passes them because it only ever moves to files that are planned. What stands still longer in
the future than it takes to notice is reported once.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import xxhash

from penstock import clock, failpoints
from penstock.clock import SECOND_NS
from penstock.errors import AlreadyThere, DamagedState, FileChanged, FileTooLate, NotThere, StorageError
from penstock.formats.zones import UTC
from penstock.query.offset import VERSION, check, summed
from penstock.source import advice, recent
from penstock.source.cursor import Cursor, FileVersion, Split, is_version
from penstock.source.scan import Scan
from penstock.storage import TEMPORARY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.options import Options
    from penstock.storage import ReadHandle, Storage

_log = logging.getLogger("penstock.source")
INLINE_BYTES = 64 << 10  # a plan longer than this goes to a side record, where there is a place for one
_TICK_NS = 10_000_000  # a kernel stamps files with the time of its last tick
_WAIT_NS = 5 * SECOND_NS  # AvailableNow waits for files to settle if `settle` is not longer than this
_OPEN_COST = 64 << 10  # what opening a file counts for when splits are packed into tasks
_NAMES_SHOWN = 5
_SEEN_BYTES = 64 << 10


_LATE = (
    "appeared further behind the cursor than lateness; touch them to have them read as new, unless they were read before and "
    "were only away"
)
_UNSURE = (
    "appeared behind the cursor, or were read and were away or touched: which, cannot be told; look for them in the output "
    "(`penstock verify DST --source SRC` for an ingest), touch those that are missing to have them read as new, and run once "
    "with tooLate=report"
)


@dataclass(frozen=True)
class Limits:
    """How much one batch may hold; `None`: everything that is there."""

    files: int | None
    size: int | None


class Planner:
    """Plans the batches of one source. Lives in the driver, as long as the query; not shared between threads.

    `boundary(file, anchor, target)` returns the first record start at or behind `target`, for formats that can only be
    cut there (csv); `None` means that any byte will do. `reach(open file, size, at)` returns how far the records reach
    that begin before a cut. `divisible(path)` tells whether a file may be cut at all. `state` is where plans go that are
    too long for an offset, beside the checkpoint. `admit(path)` raises for a file that can never be read, before it is
    planned: whoever moves it away can go on. `zone` is that of times that say none, `None` if nobody has said it; a plan keeps
    the one that it was made with.
    """

    def __init__(
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
    ) -> None:
        self._storage = storage
        self._root = root
        self._options = options
        self._divisible = divisible
        self._boundary = boundary
        self._admit = admit
        self._reach = reach
        self._state = state
        self._zone = zone
        self._limits = Limits(options["maxFilesPerTrigger"], options["maxBytesPerTrigger"])
        self._bounded = False
        self._frozen = False
        self._mark = xxhash.xxh3_64_hexdigest(os.fsencode(root))
        self._reset(Cursor())
        self._at: dict[str, Any] | None = None

    # -- offsets -------------------------------------------------------------------------------------------------

    def initial(self) -> dict[str, Any]:
        """Return the offset before the first batch, by `startingFrom`. Called twice at the very start."""
        starting = self._options["startingFrom"]
        if starting == "earliest":
            return self._offset(Cursor(), [], last=False)
        self._storage.stat(self._root)
        if starting != "latest":
            return self._offset(Cursor(floor=starting), [], last=False)
        now = self._storage.now_ns()
        self._reset(Cursor(order=(now, b"")))
        self._recent.add(file for file, _ in self._scan.refresh().came if self._cursor.passed(file))
        self._recent.expire(self._horizon())
        self._sure_ns = self._scan.listed_ns
        return self._offset(self._cursor, [], last=False, unkept=True)

    def prepare_available_now(self) -> None:
        """Take what is there at the next `latest` as all there is."""
        if self._frozen:
            self._at = None  # what came behind the line of the run before is found by looking at everything
        self._bounded, self._frozen = True, False

    def latest(self, start: dict[str, Any], *, limited: bool = True) -> dict[str, Any]:
        """Return the end offset of the next batch after `start`; `start` itself if there is nothing to read.

        A batch may have nothing to read either: the one of an AvailableNow run that says that it is the last, where no
        batch with a plan could (failure 6), and the first one of a query that starts from `latest` (failure 7).
        `limited=False` (Trigger.Once) plans everything in one batch. Raises `StorageError` if the listing fails,
        `FileTooLate` by option and `FileChanged` if the rest of a file that was cut is not to be had; then nothing has
        moved, and the next call begins from the offset alone.
        """
        at, self._at = self._at, None
        if at is None or start != at:
            self._resume(start)
        self._refresh()
        failpoints.hit("source.planned")
        splits = [] if start.get("unkept") else self._take(Limits(None, None) if not limited else self._limits)
        ends = self._bounded and start.get("plan") and not start.get("last")
        if not splits and not ends and not start.get("unkept"):
            self._at = start
            return start
        last = not limited or (self._frozen and not self._waiting and self._cursor.cut is None)
        self._at = self._offset(self._cursor, splits, last=last)
        return self._at

    def splits(self, end: dict[str, Any]) -> list[Split]:
        """Return the plan of the batch that ends at `end`; reads the offset (and its side record), nothing else."""
        check(end)
        plan = end.get("plan", [])
        entries = self._load(plan) if isinstance(plan, dict) else plan
        return [Split.from_json(entry) for entry in entries]

    @staticmethod
    def zone(end: dict[str, Any]) -> str | None:
        """Return the zone of times that say none in the batch that ends at `end`; `None` if nobody had said it.

        What was planned before plans had a zone was read in UTC.
        """
        check(end)
        zone: str | None = end.get("zone", UTC)
        return zone

    def tasks(self, end: dict[str, Any]) -> list[list[Split]]:
        """Return the plan packed into tasks: by `tasks` if that is set, else so that each reads about `splitSize`."""
        splits = self.splits(end)
        total = sum(_weight(s) for s in splits)
        count = self._options["tasks"]
        target = max(-(-total // count), 1) if count else self._options["splitSize"]
        return list(self._pack(splits, target))

    def committed(self, end: dict[str, Any]) -> None:
        """Forget side records that no replay can ask for; called when the batch that ends at `end` is done."""
        check(end)
        if self._state is None:
            return
        keep = {form["plan"]["file"] for form in (end, self._at or {}) if isinstance(form.get("plan"), dict)}
        storage, directory = self._state
        try:
            names = list(storage.names(directory))
        except NotThere:
            return
        for name in names:
            if name.startswith(("plan-", TEMPORARY)) and name not in keep:
                storage.delete(f"{directory}/{name}")

    def _offset(self, cursor: Cursor, splits: list[Split], *, last: bool, unkept: bool = False) -> dict[str, Any]:
        form = {"v": VERSION} | cursor.to_json()
        form["root"] = self._mark
        form["zone"] = self._zone
        form["listed"] = self._scan.listed_ns
        form["sure"] = [self._decided_until(), self._circumstances()]
        form["recent"] = self._recent.to_json()
        files, size = len(self._waiting), sum(file.size for file in self._waiting.values())
        if cursor.cut is not None:
            files, size = files + 1, size + cursor.cut.size - cursor.at
        form["left"] = [files, size]
        form["plan"] = self._store([split.to_json() for split in splits])
        if last:
            form["last"] = True
        if unkept:
            form["unkept"] = True
        return summed(form)

    def _store(self, plan: list[Any]) -> Any:  # noqa: ANN401 - a list, or the reference to one
        text = json.dumps(plan, separators=(",", ":")).encode()
        if self._state is None or len(text) <= INLINE_BYTES:
            return plan
        digest = xxhash.xxh3_128_hexdigest(text)
        name = f"plan-{digest}.json"
        storage, directory = self._state
        storage.make_directory(directory)
        with suppress(AlreadyThere):  # the same bytes, put by a driver that died before Spark wrote its offset
            storage.put_if_absent(f"{directory}/{name}", text)
        return {"file": name, "digest": digest, "splits": len(plan)}

    def _load(self, reference: dict[str, Any]) -> list[Any]:
        if self._state is None:
            msg = f"the plan {reference['file']!r} lies beside the offset, and stateLocation does not say where; set it as it was"
            raise DamagedState(msg)
        storage, directory = self._state
        path = f"{directory}/{reference['file']}"
        try:
            text = storage.read(path)
        except NotThere as error:
            msg = f"the plan {path!r} that the checkpoint points at is missing; restore it with the checkpoint"
            raise DamagedState(msg) from error
        found = xxhash.xxh3_128_hexdigest(text)
        if found != reference["digest"]:
            msg = f"the plan {path!r} is damaged: checksum {found}, expected {reference['digest']}; restore it from a copy"
            raise DamagedState(msg)
        plan: list[Any] = json.loads(text)
        return plan

    # -- what is new ---------------------------------------------------------------------------------------------

    def _reset(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._scan = Scan.of(self._storage, self._root, self._options)
        self._held: dict[str, FileVersion] = {}
        self._waiting: dict[str, FileVersion] = {}  # new and settled
        self._pending: list[
            tuple[tuple[int, bytes], FileVersion]
        ] = []  # the same, the next one last; and some of before
        self._recent = recent.Recent()
        self._sure_ns = recent.NEVER_NS
        self._late_ns: int | None = None  # when the first of the files arrived that wait behind the cursor
        self._cut_waits = False
        self._told: set[str] = set()

    def _resume(self, start: dict[str, Any]) -> None:
        """Take up from an offset, of this process or of one that died."""
        self._reset(Cursor.from_json(start))
        if start.get("root", self._mark) != self._mark:
            _log.warning(
                "the checkpoint was written for another path than %r: if that is another directory, and not the same one under "
                "a new name, give it a checkpoint of its own; its files that lie behind the cursor count as read",
                self._root,
            )
        if self._bounded:
            self._frozen = False
        came = self._scan.refresh().came
        self._sure_ns = self._scan.listed_ns
        self._tell_left_out()
        self._look_back([item for item in came if self._is_behind(item[0])], start)
        self._arrive(item for item in came if not self._cursor.passed(item[0]))
        self._settle()

    def _is_behind(self, file: FileVersion) -> bool:
        """Tell whether the file is one of ours that must have been decided when the cursor passed it."""
        cut, floor = self._cursor.cut, self._cursor.floor
        ours = floor is None or file.modified_ns >= floor
        return ours and self._cursor.passed(file) and (cut is None or file.path != cut.path)

    def _look_back(self, files: list[tuple[FileVersion, int | None]], start: dict[str, Any]) -> None:
        """Decide for each file behind the cursor whether it was decided before, from the offset alone."""
        since: int = start["recent"]["from"]
        near = {f.key: f.modified_ns for f, _ in files if f.modified_ns >= since}
        older = {f.key for f, _ in files if f.modified_ns < since}
        answer = recent.recall(start["recent"], near, older, self._cursor.latest_ns)
        new = (answer.near or set()) | (answer.older or set())
        self._recent = recent.Recent(since, answer.away, answer.away_from_ns)
        self._recent.add(file for file, _ in files if file.key not in new)
        sure_ns = self._sure_until(start)
        if answer.near is None:
            self._report([f for f, at_ns in files if f.key in near and (at_ns is None or at_ns >= sure_ns)], _UNSURE)
        if answer.older is None:
            self._look_further_back([item for item in files if item[0].key in older], sure_ns)
        self._arrive(item for item in files if item[0].key in new)

    def _look_further_back(self, files: list[tuple[FileVersion, int | None]], sure_ns: int) -> None:
        """Report what may have come further behind than `lateness`, where the offset cannot tell what did."""
        unknown = sum(arrived_ns is None for _, arrived_ns in files)
        if unknown:
            _log.warning(
                "%d files lie further behind the cursor than lateness, and whether any of them came while no query ran cannot "
                "be told: more came or went than the offset can tell apart, and the storage does not say when; all count as read",
                unknown,
            )
        self._report([f for f, arrived_ns in files if arrived_ns is not None and arrived_ns >= sure_ns], _UNSURE)

    def _sure_until(self, start: dict[str, Any]) -> int:
        """Return up to when all that had arrived was decided by the batches up to `start`, as far as that is known."""
        listed_ns: int = start.get("listed", recent.NEVER_NS)
        sure_ns: int
        sure_ns, circumstances = start.get("sure", (listed_ns, self._circumstances()))
        if circumstances != self._circumstances() or sure_ns > self._storage.now_ns():
            return recent.NEVER_NS
        return max(sure_ns - _TICK_NS, recent.NEVER_NS)

    def _decided_until(self) -> int:
        """Return up to when all that had arrived behind the cursor is decided (failure 12)."""
        waiting = [file for _, file in self._pending[-1:]] + list(self._held.values())
        if not any(self._cursor.passed(file) for file in waiting):
            self._late_ns = None
        return self._sure_ns if self._late_ns is None else min(self._sure_ns, self._late_ns)

    def _circumstances(self) -> str:
        """Return what must be the same for an arrival time to tell what was decided: the directory, and what is read of it."""
        names = ("pathGlobFilter", "pattern", "recursiveFileLookup", "followSymlinks", "partitionColumns")
        text = json.dumps([self._scan.identity, *(self._options[name] for name in names)])
        return xxhash.xxh3_64_hexdigest(text.encode())

    def _refresh(self) -> None:
        changes = self._scan.refresh(self._held)
        self._tell_left_out()
        self._leave(changes.gone)
        if self._frozen:
            self._arrive(item for item in changes.came if item[0] in self._recent)
        else:
            self._sure_ns = self._scan.listed_ns
            self._arrive(changes.came)
            self._settle()
            if self._bounded:
                self._freeze()
        self._go_on_with_cut()

    def _freeze(self) -> None:
        """Draw the line: what is there now counts; what has not settled yet is waited for, unless that takes long."""
        now, settle = self._storage.now_ns(), self._options["settle"]
        changed = [f.modified_ns for f in self._held.values() if f.modified_ns <= now]
        if changed and settle <= _WAIT_NS:
            clock.sleep(max(max(changed) + settle - now, 0) / SECOND_NS + 0.005)
            waited_for = set(self._held)
            changes = self._scan.refresh(waited_for)
            self._leave(changes.gone)
            self._arrive(item for item in changes.came if item[0].path in waited_for or item[0] in self._recent)
            self._settle()
        self._frozen = True

    def _leave(self, files: list[FileVersion]) -> None:
        """Take in that these versions are not there any more."""
        for file in files:
            for expected in (self._held, self._waiting):
                if expected.get(file.path) == file:
                    del expected[file.path]
        self._recent.leave(files)

    def _arrive(self, files: Iterable[tuple[FileVersion, int | None]]) -> None:
        """Take in files that were not there before, or other versions of some that were."""
        late, unsure, back, horizon = [], [], [], self._horizon()
        for file, arrived_ns in files:
            if self._cursor.floor is not None and file.modified_ns < self._cursor.floor:
                continue
            if self._cursor.cut is not None and file.path == self._cursor.cut.path:
                continue  # see `_go_on_with_cut`
            if not self._cursor.passed(file):
                self._held[file.path] = file
            elif file in self._recent:
                back.append(file)  # it was away for a while
            elif file.modified_ns < horizon:
                late.append(file)
            elif self._recent.is_new(file):
                self._held[file.path] = file
                since_ns = recent.NEVER_NS if arrived_ns is None else arrived_ns
                self._late_ns = since_ns if self._late_ns is None else min(self._late_ns, since_ns)
            else:
                unsure.append(file)
        self._report(late, _LATE)
        self._report(unsure, _UNSURE)
        self._recent.add([*back, *late, *unsure])

    def _settle(self) -> None:
        """Move what stands still long enough from held to pending."""
        now = self._storage.now_ns()
        settled = [f for f in self._held.values() if f.modified_ns <= now - self._options["settle"]]
        for file in settled:
            del self._held[file.path]
            self._waiting[file.path] = file
        if settled:
            self._pending = [p for p in self._pending if self._waits(p[1])] + [(f.order, f) for f in settled]
            self._pending.sort(key=lambda p: p[0], reverse=True)
        self._tell_future(now)

    def _waits(self, file: FileVersion) -> bool:
        return self._waiting.get(file.path) == file

    def _tell_left_out(self) -> None:
        inside = sorted(self._scan.passed_over - self._told)
        if inside:
            self._told.update(inside)
            _log.log(
                logging.INFO if self._scan.has_files() else logging.WARNING,
                "not read: what is in directories of %r (%d): %s; set recursiveFileLookup=true to have them descended into",
                self._root,
                len(inside),
                _some(inside),
            )
        outside = sorted(self._scan.outside - self._told)
        if outside:
            self._told.update(outside)
            _log.warning(
                "not read: symbolic links that lead out of %r (%d): %s; set followSymlinks=true to have them followed",
                self._root,
                len(outside),
                _some(outside),
            )

    def _tell_future(self, now: int) -> None:
        future = [p for p, f in self._held.items() if f.modified_ns > now + 60 * SECOND_NS and p not in self._told]
        if future:
            self._told.update(future)
            _log.warning("%d files lie in the future and wait for their time: %s", len(future), _some(future))

    def _horizon(self) -> int:
        lateness: int = self._options["lateness"]
        return self._cursor.order[0] - lateness if self._cursor.order else recent.NEVER_NS

    def _report(self, files: list[FileVersion], why: str) -> None:
        if not files:
            return
        paths = [f.path or self._root for f in files]
        msg = (
            f"not read: {_some(paths)} ({len(files)} file{'s' * (len(files) > 1)}): {why}; a larger lateness "
            f"(now {self._options['lateness'] / SECOND_NS:.0f} s) has such files read that come later"
        )
        if len(paths) > _NAMES_SHOWN:
            _log.info("all that were not read: %s", paths)
        if self._options["tooLate"] == "fail":
            raise FileTooLate(msg)
        _log.warning(msg)

    # -- a file that was cut -------------------------------------------------------------------------------------

    def _go_on_with_cut(self) -> None:
        """Let the rest of a file that was cut be that of the version that is there (failure 10), once it stands still."""
        cut, at, self._cut_waits = self._cursor.cut, self._cursor.at, False
        now = None if cut is None else self._scan.version(cut.path) or self._now(cut)
        if cut is None or (now is not None and is_version(self._storage, now, cut)):
            return
        if now is not None and now.modified_ns > self._storage.now_ns() - self._options["settle"]:
            self._cut_waits = True
            return
        begun = f"{self._full_path(cut)!r}: its first {at} bytes were read in earlier batches"
        choice = (
            f"{advice.put_back(cut)}, or give the rest up (`penstock replan CHECKPOINT DST --give-up-rest`): then what is there "
            "under this name is read as a new file, whole"
        )
        if now is None:
            msg = f"{begun}; it is gone, and with it the rest of {cut.size - at} bytes; {choice}"
            raise FileChanged(msg)
        if self._cursor.digest is None or now.size < at or self._seen(now, at) != self._cursor.digest:
            msg = f"{begun}; what is there now does not begin with the same bytes, so where the rest is cannot be told; {choice}"
            raise FileChanged(msg)
        _log.warning("%s; it has changed behind them, and is read on from there", begun)
        self._recent.add([cut])
        self._recent.leave([cut])
        self._cursor = replace(self._cursor, cut=now)

    def _now(self, file: FileVersion) -> FileVersion | None:
        """Return what is there of a file that is not, or not any more, among those that are read."""
        try:
            entry = self._storage.stat(self._full_path(file))
        except NotThere:
            return None
        return FileVersion(file.path, entry.size, entry.modified_ns, entry.identity) if entry.is_file else None

    def _full_path(self, file: FileVersion) -> str:
        return f"{self._root}/{file.path}" if file.path else self._root

    def _seen(self, file: FileVersion, at: int) -> str | None:
        """Return a digest of how far a cut at `at` has read, and of the first and the last bytes of that.

        `None` if the file is not that version, cannot be read, or what was read cannot be told by that.
        """
        try:
            with self._storage.open(self._full_path(file)) as handle:
                end = self._reach(handle, file.size, at)
                if end is None or not is_version(self._storage, handle.info(), file):
                    return None
                head = handle.read(0, min(end, _SEEN_BYTES))
                tail = handle.read(max(end - _SEEN_BYTES, 0), min(end, _SEEN_BYTES))
        except (StorageError, FileChanged):
            return None
        return xxhash.xxh3_128_hexdigest(b"%d\0" % end + head + tail)

    # -- the batch -----------------------------------------------------------------------------------------------

    def _take(self, limits: Limits) -> list[Split]:
        """Move files from pending into the plan of one batch, in order, and the cursor with them."""
        splits: list[Split] = []
        room = limits.size
        by_file = self._options["batchBoundary"] == "file"
        while limits.files is None or len(splits) < limits.files:
            split = self._next(None if by_file else room, first=not splits)
            if split is None:
                break
            splits.append(split)
            self._cursor = self._cursor.advance(split)
            room = None if room is None else room - (split.end - split.start)
            if by_file or (room is not None and room <= 0):
                break
        self._recent.add(s.file for s in splits if s.end == s.file.size)
        self._recent.expire(self._horizon())
        if splits and self._cursor.cut is not None:
            self._cursor = replace(self._cursor, digest=self._seen(self._cursor.cut, self._cursor.at))
        return splits

    def _next(self, room: int | None, *, first: bool) -> Split | None:
        """Return the next split, of at most `room` bytes unless it is the `first` and cannot be cut smaller."""
        file = self._cursor.cut or self._peek()
        if file is None or (self._cut_waits and file is self._cursor.cut):
            return None
        if self._admit:
            self._admit(file.path)
        start = self._cursor.at
        end = file.size if room is None else self._end(file, start, room)
        if not first and room is not None and end - start > room:
            return None
        if self._cursor.cut is None:
            self._pending.pop()
            del self._waiting[file.path]
        return Split(file, start, end)

    def _end(self, file: FileVersion, start: int, room: int) -> int:
        if file.size - start <= room or not self._divisible(file.path):
            return file.size
        return self._boundary(file, start, start + room) if self._boundary else start + room

    def _peek(self) -> FileVersion | None:
        """Return the next pending file that is still there, as it was."""
        while self._pending:
            if self._waits(self._pending[-1][1]):
                return self._pending[-1][1]
            self._pending.pop()
        return None

    def _pack(self, splits: list[Split], target: int) -> Iterator[list[Split]]:
        """Yield tasks of about `target` weight: neighbours together, big files cut where a task is full."""
        task: list[Split] = []
        room = target
        for split in splits:
            rest: Split | None = split
            while rest is not None:
                if task and room < min(_weight(rest), _OPEN_COST * 2):
                    yield task
                    task, room = [], target
                head, rest = self._divide(rest, room)
                task.append(head)
                room -= _weight(head)
        if task:
            yield task

    def _divide(self, split: Split, room: int) -> tuple[Split, Split | None]:
        """Return what of the split goes into a task with `room` left, and the rest."""
        if split.end - split.start <= max(room, 1) or not self._divisible(split.file.path):
            return split, None
        at = split.start + max(room, 1)
        at = self._boundary(split.file, split.start, at) if self._boundary else at
        if at >= split.end:
            return split, None
        return Split(split.file, split.start, at), Split(split.file, at, split.end)


def _weight(split: Split) -> int:
    return split.end - split.start + _OPEN_COST


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"
