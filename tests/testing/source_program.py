"""The source as a program that can be crashed anywhere: Spark's calls to it, and what a restart repeats."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock import clock
from penstock.formats import ReadFormat
from penstock.options import SOURCE, parse
from penstock.source.archive import archived_files
from penstock.source.clean import Cleaner
from penstock.source.cleaned import Reached, home_of, reader_of
from penstock.source.plan import Planner
from penstock.source.read import Reading
from penstock.storage import entry_at, names_at
from penstock.testing import CrashDisk, FakeClock, Image, Program, compare

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage import Storage
    from penstock.testing import Crashable

COMMITS = "/checkpoint/commits"
IN, AWAY, STATE = "/in", "/away", "/checkpoint/penstock"
TEXT = pa.schema([("value", pa.string())])
_BEFORE = 999_000.0  # seconds; the clock of an exploration stands at 1,000,000


@dataclass(frozen=True)
class Log:
    """State that survives a crash elsewhere: Spark's offset log, and the rows of each batch in the sink."""

    offsets: tuple[str, ...] = ()
    sunk: tuple[tuple[str, ...], ...] = ()


class SourceProgram(Program):
    """A query that reads `files` batch by batch; some are there at first, and some land while it runs.

    Files that `wander` are moved away when one file has landed, back when another has landed, and so on.

    A restart reads the last batch again, also a finished one, as when Spark's commit log lost its entry: the rows
    must be the same.
    """

    memory: Log

    def __init__(
        self, files: dict[str, bytes], landing: dict[str, bytes], options: dict[str, str], wander: tuple[str, ...] = ()
    ) -> None:
        self.memory = Log()
        self._files = files
        self._landing = landing
        self._wander = wander
        self._archive = options.get("sourceArchiveDir")
        self._cleans = "cleanSource" in options
        self._options = parse(SOURCE, {"path": IN, "settle": "0s"} | options, what="source")

    def disk(self, image: Image | None = None, **more: Any) -> CrashDisk:
        """Return the disk of an image, or a new disk with the first files on it."""
        if image is None:
            first = CrashDisk()
            with clock.use(FakeClock(_BEFORE)):
                first.storage().make_directory(IN)
                first.storage().make_directory(AWAY)
                for name, data in self._files.items():
                    _land(first.storage(), name, data)
            image = first.image()
        return CrashDisk(image, **more)

    def run(self, disk: Crashable, rest: Callable[[], None]) -> None:
        """Act as Spark: plan, log the offset, read, commit one batch late."""
        storage = disk.storage()
        reading = Reading(storage, IN, ReadFormat("text", TEXT), None, ("value",), archive=self._archive)
        planner = self._planner(storage, reading)
        log = self.memory
        if log.offsets:
            if len(log.offsets) > 1:
                planner.clean(json.loads(log.offsets[-2]))
            self._batch(planner, reading, len(log.offsets) - 1)
        landing = dict(self._landing)
        while True:
            rest()
            log = self.memory
            start = json.loads(log.offsets[-1]) if log.offsets else planner.initial()
            end = planner.latest(start)
            if end != start:
                self.memory = Log((*log.offsets, json.dumps(end)), log.sunk)
                if log.offsets:
                    planner.committed(start)
                self._batch(planner, reading, len(log.offsets))
            elif not self._move_one(storage) and not self._land_one(storage, landing):
                if self._cleans:
                    clock.sleep(1.0)  # so that files whose time has not come yet are cleaned
                    planner.latest(end)
                return

    def _planner(self, storage: Storage, reading: Reading) -> Planner:
        planner = Planner(storage, IN, self._options, divisible=reading.divisible, state=(storage, STATE))
        return planner.cleaned_by(Cleaner.of(storage, IN, self._options) if self._cleans else None)

    def _move_one(self, storage: Storage) -> bool:
        """Move one more wandering file to its place for this moment; after a crash the move may be half done."""
        landed = sum(name in storage.names(IN) for name in self._landing)
        here, there = (IN, AWAY) if landed % 2 else (AWAY, IN)
        for name in self._wander:
            if name in storage.names(here):
                storage.publish(f"{here}/{name}", f"{there}/{name}")
                return True
        return False

    def _gone_from(self, storage: Storage) -> list[str]:
        """Return the files that have landed and were cleaned."""
        return [file.path for file in archived_files(storage, self._archive)] if self._archive else []

    def _land_one(self, storage: Storage, landing: dict[str, bytes]) -> bool:
        """Let one more file land, as its producer does: write it elsewhere, sync it, move it in. After a crash the producer tries again."""
        there = {*storage.names(IN), *self._gone_from(storage)}
        for name, data in landing.items():
            if name not in there:
                _land(storage, name, data)
                return True
        return False

    def _batch(self, planner: Planner, reading: Reading, number: int) -> None:
        end = json.loads(self.memory.offsets[number])
        batches = [batch for task in planner.tasks(end) for batch in reading.batches(task)]
        rows = tuple(str(row) for batch in batches for row in batch.column(0).to_pylist())
        sunk = self.memory.sunk
        if number < len(sunk):
            assert rows == sunk[number], f"batch {number} was {sunk[number]}, and is {rows} when it is replayed"
        else:
            self.memory = Log(self.memory.offsets, (*sunk, rows))

    def check(self, disk: Crashable, *, final: bool) -> list[str]:
        """Compare the sink's rows with those of the files: none is there twice or in part; at the end all are there."""
        lines = [line.decode() for data in (self._files | self._landing).values() for line in data.splitlines()]
        seen = [row for rows in self.memory.sunk for row in rows]
        complaints = compare(seen, acknowledged=lines, offered=lines).complaints(final=final)
        complaints += self._unmarked(disk.storage()) if self._cleans else []
        if final and self._archive:
            storage = disk.storage()
            left = [name for name in storage.names(IN) if not name.startswith(("_", "."))]
            archived = {
                file.path: storage.read(f"{self._archive}/{file.path}")
                for file in archived_files(storage, self._archive)
            }
            if left or archived != self._files | self._landing:
                complaints.append(f"there is {left}, and archived is {archived}")
        return complaints

    def _unmarked(self, storage: Storage) -> list[str]:
        """Return complaints of files that are gone without a mark: older copies of this checkpoint would go on without them."""
        complaints = []
        for offset in map(json.loads, self.memory.offsets):
            marks = [
                int(name.rpartition("-")[2])
                for name in names_at(storage, home_of(IN, reader_of(offset)))
                if name.startswith("cleaned-")
            ]
            plan = offset["plan"] if isinstance(offset["plan"], list) else []  # others lie beside the offset
            ended = [path for path, _, end, size, *_ in plan if end == size]
            gone = [path for path in ended if entry_at(storage, f"{IN}/{path}") is None]
            if gone and Reached.of(offset).files > max(marks, default=0):
                complaints.append(f"{gone} are gone, and the marks are {marks}")
        return complaints


class DeletingProgram(SourceProgram):
    """The same with `cleanSource=delete` and Spark's commit log, which is not synced: a batch without an entry is replayed."""

    def run(self, disk: Crashable, rest: Callable[[], None]) -> None:
        """Act as Spark, with a commit log on the disk."""
        self._commits = disk.storage()
        self._commits.make_directory(COMMITS)
        super().run(disk, rest)

    def _batch(self, planner: Planner, reading: Reading, number: int) -> None:
        if str(number) in self._commits.names(COMMITS):
            return
        super()._batch(planner, reading, number)
        self._commits.create(f"{COMMITS}/{number}").close()

    def _gone_from(self, storage: Storage) -> list[str]:
        rows = {row for rows in self.memory.sunk for row in rows}
        return [name for name, data in self._landing.items() if data.decode().splitlines()[0] in rows]


def _land(storage: Storage, name: str, data: bytes) -> None:
    aside = f"{IN}/.{name}.tmp"
    storage.delete(aside)
    with storage.create(aside) as file:
        file.write(data)
        file.sync()
    storage.publish(aside, f"{IN}/{name}")
