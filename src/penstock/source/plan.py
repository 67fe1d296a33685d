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
5. A file appears behind the cursor (renamed in, `cp -p`). Rule: what was read within `lateness` of the cursor is
   remembered exactly (`recent`), what is there and was not read is planned; what lies further behind is reported.
6. A driver dies in the batch that holds all there is, and no batch of its run said that it was the last. An AvailableNow
   run replays it, finds nothing else and ends; its parts stay open. Rule: such a run ends with an offset that says so, if
   need be with an empty plan.
7. A query starts from `latest`, finds nothing and ends. Spark keeps no offset without a batch, so the next run starts from
   a `latest` of its own; what came in between is not read, without a word. Rule: where it starts is kept by its first
   batch, if need be with an empty plan.
8. A query goes on from its checkpoint with another directory. Files there that lie behind the cursor have never been read,
   and pass for read. A directory may be renamed, so that cannot be refused. Rule: the offset says which path it is of, and
   another one is reported.

Files that changed less than `settle` ago, or lie in the future by the storage's clock, are held back and looked at
again; the cursor never passes them because it only ever moves to files that are planned. What stands still longer in
the future than it takes to notice is reported once.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import xxhash

from penstock import clock, failpoints
from penstock.clock import SECOND_NS
from penstock.errors import AlreadyThere, DamagedState, FileTooLate, NotThere
from penstock.source import recent
from penstock.source.cursor import VERSION, Cursor, FileVersion, Split, check, signed
from penstock.source.scan import Scan, name_filter
from penstock.storage import TEMPORARY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.options import Options
    from penstock.storage import Entry, Storage

_log = logging.getLogger("penstock.source")
INLINE_BYTES = 64 << 10  # a plan longer than this goes to a side record, where there is a place for one
_TICK_NS = 10_000_000  # a kernel stamps files with the time of its last tick
_WAIT_NS = 5 * SECOND_NS  # AvailableNow waits for files to settle if `settle` is not longer than this
_OPEN_COST = 64 << 10  # what opening a file counts for when splits are packed into tasks
_NAMES_SHOWN = 5


@dataclass(frozen=True)
class Limits:
    """How much one batch may hold; `None`: everything that is there."""

    files: int | None
    size: int | None


class Planner:
    """Plans the batches of one source. Lives in the driver, as long as the query; not shared between threads.

    `boundary(file, anchor, target)` returns the first record start at or behind `target`, for formats that can only be
    cut there (csv); `None` means that any byte will do. `divisible(path)` tells whether a file may be cut at all. `state` is
    where plans go that are too long for an offset, beside the checkpoint. `admit(path)` raises for a file that can never be
    read, before it is planned: whoever moves it away can go on.
    """

    def __init__(
        self,
        storage: Storage,
        root: str,
        options: Options,
        *,
        divisible: Callable[[str], bool],
        boundary: Callable[[FileVersion, int, int], int] | None = None,
        state: tuple[Storage, str] | None = None,
        admit: Callable[[str], None] | None = None,
    ) -> None:
        self._storage = storage
        self._root = root
        self._options = options
        self._divisible = divisible
        self._boundary = boundary
        self._admit = admit
        self._state = state
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
        self._recent.add([file for file, _ in self._scan.refresh()])
        self._recent.expire(self._horizon())
        return self._offset(self._cursor, [], last=False, unkept=True)

    def prepare_available_now(self) -> None:
        """Take what is there at the next `latest` as all there is."""
        self._bounded, self._frozen = True, False

    def latest(self, start: dict[str, Any], *, limited: bool = True) -> dict[str, Any]:
        """Return the end offset of the next batch after `start`; `start` itself if there is nothing to read.

        A batch may have nothing to read either: the one of an AvailableNow run that says that it is the last, where no
        batch with a plan could (failure 6), and the first one of a query that starts from `latest` (failure 7).
        `limited=False` (Trigger.Once) plans everything in one batch. Raises `StorageError` if the listing fails and
        `FileTooLate` by option; then nothing has moved, and the next call begins from the offset alone.
        """
        at, self._at = self._at, None
        if at is None or start != at:
            self._resume(start)
        self._refresh()
        failpoints.hit("source.planned")
        splits = self._take(Limits(None, None) if not limited else self._limits)
        ends = self._bounded and start.get("plan") and not start.get("last")
        if not splits and not ends and not start.get("unkept"):
            self._at = start
            return start
        last = not limited or (self._frozen and not self._pending and self._cursor.cut is None)
        self._at = self._offset(self._cursor, splits, last=last)
        return self._at

    def splits(self, end: dict[str, Any]) -> list[Split]:
        """Return the plan of the batch that ends at `end`; reads the offset (and its side record), nothing else."""
        check(end)
        plan = end.get("plan", [])
        entries = self._load(plan) if isinstance(plan, dict) else plan
        return [Split.from_json(entry) for entry in entries]

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
        form["listed"] = self._scan.listed_ns
        form["recent"] = self._recent.to_json()
        files, size = len(self._pending), sum(file.size for _, file in self._pending)
        if cursor.cut is not None:
            files, size = files + 1, size + cursor.cut.size - cursor.at
        form["left"] = [files, size]
        form["plan"] = self._store([split.to_json() for split in splits])
        if last:
            form["last"] = True
        if unkept:
            form["unkept"] = True
        return signed(form)

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
        options = self._options
        accept = name_filter(options["pathGlobFilter"], options["pattern"])
        recursive, follow = options["recursiveFileLookup"], options["followSymlinks"]
        self._scan = Scan(self._storage, self._root, recursive=recursive, follow=follow, accept=accept)
        self._pending: list[tuple[tuple[int, bytes], FileVersion]] = []  # new and settled, the next one last
        self._held: dict[str, FileVersion] = {}
        self._recent = recent.Recent()
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
        files = self._scan.refresh()
        self._tell_outside()
        if self._cursor.order is None:
            self._arrive(f for f, _ in files)
        else:
            passed = [(f, e) for f, e in files if self._cursor.passed(f)]
            self._arrive(f for f, _ in files if not self._cursor.passed(f))
            self._look_back(passed, start)
        self._settle()

    def _look_back(self, files: list[tuple[FileVersion, Entry]], start: dict[str, Any]) -> None:
        """Decide for each file behind the cursor whether it was read, from the offset alone."""
        since, listed = start["recent"]["from"], start.get("listed", 0) - _TICK_NS
        inside = {recent.key_of(f): (f, e) for f, e in files if f.modified_ns >= since}
        answer = recent.difference(start["recent"], inside)
        if answer is None:
            new, unsure = set(), {k for k, (_, e) in inside.items() if e.arrived_ns is None or e.arrived_ns >= listed}
            self._report(
                [inside[k][0] for k in unsure],
                "appeared behind the cursor while no query ran, or were read: which, cannot be told",
            )
        else:
            new = answer[0]
        self._recent.add([file for key, (file, _) in inside.items() if key not in new])
        self._recent.expire(since)
        self._arrive(inside[key][0] for key in new)
        old = [f for f, e in files if f.modified_ns < since and e.arrived_ns is not None and e.arrived_ns >= listed]
        self._report(old, "appeared (or were touched) behind the cursor further than lateness while no query ran")

    def _refresh(self) -> None:
        found = [file for file, _ in self._scan.refresh(self._held)]
        self._tell_outside()
        if self._frozen:  # what came or changed since is for the next run
            changed = {file.path for file in found}
            self._pending = [p for p in self._pending if p[1].path not in changed]
            return
        self._held = {path: file for path, file in self._held.items() if self._scan.has(path)}
        self._arrive(found)
        self._settle()
        if self._bounded:
            self._freeze()

    def _freeze(self) -> None:
        """Draw the line: what is there now counts; what has not settled yet is waited for, unless that takes long."""
        now, settle = self._storage.now_ns(), self._options["settle"]
        changed = [f.modified_ns for f in self._held.values() if f.modified_ns <= now]
        if changed and settle <= _WAIT_NS:
            clock.sleep(max(max(changed) + settle - now, 0) / SECOND_NS + 0.005)
            for file, _ in self._scan.refresh(self._held):
                if file.path in self._held:
                    self._held[file.path] = file
            self._settle()
        self._frozen = True

    def _arrive(self, files: Iterable[FileVersion]) -> None:
        """Take in files that were not there before, or other versions of some that were."""
        late, horizon = [], self._horizon()
        for file in files:
            if self._cursor.floor is not None and file.modified_ns < self._cursor.floor:
                continue
            if self._cursor.cut is not None and file.path == self._cursor.cut.path:
                continue  # its reader will say if it changed
            passed = self._cursor.passed(file)
            if passed and file.modified_ns < horizon:
                late.append(file)
            elif not (passed and file in self._recent):  # else it was away for a while, or its mode was changed
                self._held[file.path] = file
        self._report(late, "appeared further behind the cursor than lateness")

    def _settle(self) -> None:
        """Move what stands still long enough from held to pending."""
        now = self._storage.now_ns()
        settled = [f for f in self._held.values() if f.modified_ns <= now - self._options["settle"]]
        for file in settled:
            del self._held[file.path]
        if settled:
            fresh = {f.path for f in settled}
            self._pending = [p for p in self._pending if p[1].path not in fresh] + [(f.order, f) for f in settled]
            self._pending.sort(key=lambda p: p[0], reverse=True)
        self._tell_future(now)

    def _tell_outside(self) -> None:
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
        names = _some([f.path or self._root for f in files])
        msg = (
            f"not read: {names} ({len(files)} file{'s' * (len(files) > 1)}): {why}; touch to have them read as new, or raise lateness "
            f"(now {self._options['lateness'] / SECOND_NS:.0f} s)"
        )
        if self._options["tooLate"] == "fail":
            raise FileTooLate(msg)
        _log.warning(msg)

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
        self._recent.add([s.file for s in splits if s.end == s.file.size])
        self._recent.expire(self._horizon())
        return splits

    def _next(self, room: int | None, *, first: bool) -> Split | None:
        """Return the next split, of at most `room` bytes unless it is the `first` and cannot be cut smaller."""
        file = self._cursor.cut or self._peek()
        if file is None:
            return None
        if self._admit:
            self._admit(file.path)
        start = self._cursor.at
        end = file.size if room is None else self._end(file, start, room)
        if not first and room is not None and end - start > room:
            return None
        if self._cursor.cut is None:
            self._pending.pop()
        return Split(file, start, end)

    def _end(self, file: FileVersion, start: int, room: int) -> int:
        if file.size - start <= room or not self._divisible(file.path):
            return file.size
        return self._boundary(file, start, start + room) if self._boundary else start + room

    def _peek(self) -> FileVersion | None:
        """Return the next pending file that is still there."""
        while self._pending:
            if self._scan.has(self._pending[-1][1].path):
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
