"""The log as programs that can be crashed anywhere: writers, operators, streams, purges and repairs, and what a restart finds."""

from __future__ import annotations

import json
from contextlib import closing, suppress
from itertools import cycle
from typing import TYPE_CHECKING, Any

from penstock import failpoints
from penstock.errors import DamagedState, StorageError
from penstock.testing import Crashable, Program
from penstock.wal import Log, Manager, Position, Reader, Writer, runs
from penstock.wal.segment import path_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage import Storage

ROOT = "/log"


def record(number: int) -> bytes:
    """Return the record with this number; some are empty, some are long."""
    return b"" if number % 5 == 3 else b"%d." % number * (1 + number % 4 * 60)


def read(storage: Storage, mode: str = "tail") -> tuple[int, list[bytes]]:
    """Return the number of the first kept record, and all records; a restart closes the segment that a dead writer left open."""
    storage.make_directory(ROOT)  # nothing may be there yet, which is not the same as an empty log
    if not storage.reads_open:
        Writer(ROOT, storage=storage).close()
    with Reader(ROOT, mode=mode, storage=storage) as reader:
        records, end = list(reader), reader.sequence
    return end - len(records), records


class WalProgram(Program):
    """Appends records in groups to short segments, and purges. Its memory is the acknowledged records, and the end of the purge.

    A restart goes on after the last record that it finds; this record may have been appended without an acknowledgement.
    `killed`: a process that dies before its sync first writes each group, while the machine stays up.
    """

    memory: tuple[int, int]

    def __init__(
        self,
        groups: list[int],
        *,
        segment_size: int = 700,
        purge: bool = False,
        killed: bool = False,
        whole: bool = False,
    ) -> None:
        self.memory = (0, 0)
        self._groups = groups
        self._segment_size = segment_size
        self._purge = purge
        self._killed = killed
        self._whole = whole

    def run(self, disk: Crashable, rest: Callable[[], None]) -> None:
        """Write until all records are acknowledged."""
        storage = disk.storage()
        total = sum(self._groups)
        if self._killed:
            self._run_killed(storage, total, rest)
            return
        with Writer(ROOT, segment_size=self._segment_size, whole=self._whole, storage=storage) as writer:
            while writer.sequence < total:
                self._group(writer)
                if self._purge:
                    self._forget(storage, writer.position)
                rest()

    def _group(self, writer: Writer) -> None:
        end = next(end for end in self._ends() if end > writer.sequence)
        writer.append_many([record(n) for n in range(writer.sequence, end - 1)])
        writer.append(record(end - 1))
        writer.flush()
        self.memory = (writer.sequence, self.memory[1])

    def _run_killed(self, storage: Storage, total: int, rest: Callable[[], None]) -> None:
        for dies in cycle(("error@1", "error@2", "")):
            with suppress(StorageError), Writer(ROOT, segment_size=self._segment_size, storage=storage) as writer:
                if writer.sequence >= total:
                    return
                failpoints.arm(f"storage.sync={dies}" if dies else "")
                try:
                    self._group(writer)
                finally:
                    failpoints.arm("")
            rest()

    def _ends(self) -> list[int]:
        return [sum(self._groups[: number + 1]) for number in range(len(self._groups))]

    def _forget(self, storage: Storage, before: Position) -> None:
        with Reader(ROOT, storage=storage) as reader:
            kept = [batch.sequence for batch in reader.batches() if batch.segment == before.segment]
        if kept:
            self.memory = (self.memory[0], kept[0])
            Log(ROOT, storage=storage).purge(before)

    def check(self, disk: Crashable, *, final: bool) -> list[str]:
        """Read the log: a run of appended records, from a permitted begin to at least the last acknowledged one."""
        acknowledged, purged = self.memory
        first, records = read(disk.storage())
        found = []
        if records != [record(n) for n in range(first, first + len(records))]:
            found.append(f"not what was appended: {records}")
        if first > purged:
            found.append(f"begins with record {first}, purged up to {purged}")
        if first + len(records) < (sum(self._groups) if final else acknowledged):
            found.append(f"ends with record {first + len(records)}, acknowledged {acknowledged}")
        return found


class OperatorProgram(Program):
    """An operator whose state is the list of what it applied; from time to time it is checkpointed and committed.

    Its memory is the last window that it knows to be flushed, and its last saved state with the window of that state.
    """

    memory: tuple[int, int, tuple[bytes, ...]]

    def __init__(self, windows: int) -> None:
        self.memory = (-1, -1, ())
        self._windows = windows

    def run(self, disk: Crashable, rest: Callable[[], None]) -> None:
        """Restore the operator, and go on with the window after the last flushed one."""
        _, checkpointed, saved = self.memory
        state = list(saved)
        with Manager(ROOT, lambda _, more: state.extend(more), segment_size=300, storage=disk.storage()) as manager:
            for window in range(manager.restore(checkpointed) + 1, self._windows):
                if state != self.applied(window):
                    message = f"window {window} begins with {state}"
                    raise AssertionError(message)
                for made in self._records(window):
                    manager.append(made)
                    state.append(made)
                manager.end_window(window)
                self.memory = (window, *self.memory[1:])
                if window % 2:
                    self.memory = (window, window, tuple(state))
                    manager.committed(window - 1)
                rest()

    def applied(self, windows: int) -> list[bytes]:
        """Return what is applied after the given number of windows."""
        return [made for window in range(windows) for made in self._records(window)]

    @staticmethod
    def _records(window: int) -> list[bytes]:
        return [record(10 * window + n) for n in range(window % 3)]

    def check(self, disk: Crashable, *, final: bool) -> list[str]:
        """Restore from the last checkpoint, read-only: the flushed windows are there."""
        flushed, checkpointed, saved = self.memory
        state = list(saved)
        with Manager(ROOT, lambda _, more: state.extend(more), storage=disk.storage()) as manager:
            last = manager.restore(checkpointed)
        found = [] if state == self.applied(last + 1) else [f"restored to window {last}: {state}"]
        if last < (self._windows - 1 if final else flushed):
            found.append(f"restored to window {last}, flushed {flushed}")
        return found


class CheckpointProgram(Program):
    """An operator that its engine resets to its checkpoint: the log returns what the state lacks up to there, and drops the rest.

    Its memory survives a crash elsewhere: the engine's checkpoint, the position at which the state was saved, and the state.
    """

    memory: tuple[int, str, tuple[bytes, ...]]

    def __init__(self, windows: int) -> None:
        self.memory = (-1, "", ())
        self._windows = windows

    def run(self, disk: Crashable, rest: Callable[[], None]) -> None:
        """Reset the operator, and go on after the checkpoint."""
        with self._restored(disk, state := list[bytes]()) as manager:
            for window in range(self.memory[0] + 1, self._windows):
                manager.append(b"%d" % window)
                state.append(b"%d" % window)
                position = manager.end_window(window)
                rest()
                if window % 2:
                    self.memory = (window, str(position), tuple(state))
                else:
                    self.memory = (window, *self.memory[1:])
                rest()

    def _restored(self, disk: Crashable, state: list[bytes]) -> Manager:
        checkpointed, start, saved = self.memory
        state.extend(saved)
        manager = Manager(ROOT, state.append, segment_size=200, storage=disk.storage())
        if start:
            manager.set_start(Position.parse(start))
        manager.restore(checkpointed, to="checkpoint")
        return manager

    def check(self, disk: Crashable, *, final: bool) -> list[str]:
        """Reset the operator, read-only: it has what was applied up to the checkpoint, each once."""
        with self._restored(disk, state := list[bytes]()):
            checkpointed = self.memory[0]
        expected = [b"%d" % window for window in range(checkpointed + 1)]
        found = [] if state == expected else [f"taken back to window {checkpointed}: {state}"]
        if final and checkpointed != self._windows - 1:
            found.append(f"ended at window {checkpointed}")
        return found


class StreamProgram(Program):
    """A log whose writers die after a write and before its sync; meanwhile a stream reads it.

    Its memory survives a crash elsewhere: the engine's offsets, and the records of each batch. A restart reads the
    last batch again.
    """

    memory: tuple[tuple[str, ...], tuple[tuple[bytes, ...], ...]]

    def __init__(self, groups: int) -> None:
        self.memory = ((), ())
        self._groups = groups

    def run(self, disk: Crashable, rest: Callable[[], None]) -> None:
        """Append a group, read the available records, and so on; every other writer dies."""
        storage = disk.storage()
        if not storage.reads_open:
            Writer(ROOT, storage=storage).close()  # a segment that a dead writer left open is not read before this
        if self.memory[0]:
            self._batch(storage, len(self.memory[0]) - 1)
        for dies in cycle(("error@1", "error@2", "")):
            with suppress(StorageError), Writer(ROOT, segment_size=400, storage=storage) as writer:
                failpoints.arm(f"storage.sync={dies}" if dies else "")
                try:
                    if writer.sequence < self._groups:
                        writer.append(record(writer.sequence))
                        writer.flush()
                finally:
                    failpoints.arm("")
            rest()
            offsets, sunk = self.memory
            start = self._start(len(offsets))
            with closing(runs.LogPlanner(ROOT, storage)) as planner:
                end = planner.plan(start, size=1, split=1)
            if end != start:
                self.memory = (*offsets, json.dumps(end)), sunk
                self._batch(storage, len(offsets))
            elif len(sunk) == self._groups:
                return

    def _start(self, number: int) -> dict[str, Any]:
        begun = {"v": runs.VERSION, "log": "", "position": str(runs.NO_LOG), "cuts": []}
        return json.loads(self.memory[0][number - 1]) if number else begun

    def _batch(self, storage: Storage, number: int) -> None:
        offsets, sunk = self.memory
        parts = runs.runs(self._start(number), json.loads(offsets[number]))
        batches = [batch for part in parts for batch in runs.read(ROOT, part, storage)]
        found = tuple(row for batch in batches for row in batch.column(2).to_pylist())
        if number < len(sunk):
            assert found == sunk[number], f"batch {number} was {sunk[number]}, and is {found} when it is replayed"
        else:
            self.memory = offsets, (*sunk, found)

    def check(self, disk: Crashable, *, final: bool) -> list[str]:
        """Compare the received records with the appended ones, in order, and with the log, which must hold them."""
        seen = [row for rows in self.memory[1] for row in rows]
        found = [] if seen == [record(n) for n in range(len(seen))] else [f"not what was appended: {seen}"]
        if len(seen) < self._groups and final:
            found.append(f"only {len(seen)} records came")
        if (there := len(read(disk.storage())[1])) < len(seen):
            found.append(f"{len(seen)} records came, {there} are left")
        return found


class RepairProgram(Program):
    """A log that is damaged in the middle, repaired and written on. Its memory is its progress, and the records to expect and to keep.

    `damaged` is the record whose group gets a changed byte; with `header` the byte is in the header of its segment.
    """

    memory: tuple[int, int, int]

    def __init__(self, damaged: int, *, header: bool = False) -> None:
        self.memory = (WRITING, 0, 0)
        self._damaged = damaged
        self._header = header

    def run(self, disk: Any, rest: Callable[[], None]) -> None:
        """Write and damage the log, repair it, write one more record."""
        storage = disk.storage()
        if self.memory[0] == WRITING:
            watch, disk.watch = disk.watch, None  # only the repair is crashed
            self.prepare(storage)
            disk.watch = watch
        Log(ROOT, storage=storage).repair()
        self.memory = (max(self.memory[0], REPAIRED), *self.memory[1:])
        rest()
        with Writer(ROOT, segment_size=400, storage=storage) as writer:
            if self.memory[0] == REPAIRED and writer.sequence == self.memory[1]:
                writer.append(b"more")
            writer.flush()
            self.memory = (WRITTEN, *self.memory[1:])

    def prepare(self, storage: Storage) -> None:
        """Write and damage the log."""
        with Writer(ROOT, segment_size=400, storage=storage) as writer:
            for number in range(8):
                writer.append(record(number))
                writer.flush()
        self.memory = (DAMAGED, *self._damage(storage))

    def _damage(self, storage: Storage) -> tuple[int, int]:
        """Change a byte; return the number of records before it, and the number of bytes from its segment on."""
        with Reader(ROOT, storage=storage) as reader:
            batches = list(reader.batches())
        hit = batches[self._damaged]
        path, at = path_of(ROOT, hit.segment), 50 if self._header else hit.at + 33
        with storage.extend(path, at) as file:
            file.write(b"\xff")
            file.sync()
        cut = sum(storage.stat(path_of(ROOT, n)).size for n in {b.segment for b in batches} if n >= hit.segment)
        left = min(b.sequence for b in batches if b.segment == hit.segment) if self._header else hit.sequence
        return left, cut

    def check(self, disk: Crashable, *, final: bool) -> list[str]:
        """Read the log: its intact records, or an error until it is repaired; never a gap, and no record after the damage."""
        stage, left, cut = self.memory
        try:
            first, records = read(disk.storage())
        except DamagedState as error:
            return [str(error)] if stage > DAMAGED or final else []
        kept = [r for r in records if r != b"more"]
        found = []
        if kept != [record(n) for n in range(len(kept))] or first:
            found.append(f"not what was appended: {records}")
        if stage > DAMAGED and len(kept) != left:
            found.append(f"{len(kept)} records are left, expected {left}")
        if stage == DAMAGED and len(kept) < left:
            found.append(f"{len(kept)} records are read in the middle of a repair, expected {left}, or an error")
        copied = sum(entry.size for entry in disk.storage().list(ROOT) if entry.name.endswith(".broken"))
        if stage > DAMAGED and copied < cut:
            found.append(f"{copied} bytes are kept of what was cut, expected {cut} or more, with torn ends")
        if stage == WRITTEN and records[-1:] != [b"more"]:
            found.append("what was written behind the repair is gone")
        return found


WRITING, DAMAGED, REPAIRED, WRITTEN = range(4)
