"""Makes visible what the ledger has decided.

A record names each finished file and the staged file with its complete contents. Publishing moves the staged file to the final
name. It never replaces a file, and the new name is durable before the old name goes. Any process that finds a record that is not
noted as published repeats it: the same driver, its successor, `finish`. The staged file and the target show what to do:

| staged | target | meaning |
|---|---|---|
| there | missing | not published yet: do it |
| there | the same file | a crash between the two names: complete it |
| there | another file | somebody put a file there since the name was chosen: `PublishConflict`, nothing is replaced |
| there | a file of another sink | that was faster to take the name: this one has another name from now on, see `renamed` |
| missing | there, with the record's length | published before |
| missing | there, of another length | not what was decided: `PublishConflict` |
| missing | missing | lost, or published and taken away before that was noted: `PublishConflict`, never silence |

This module also extends a growing file, from the earlier to the later length in the record. The file is never cut:

1. A puts its record, looks at the file, and is stopped before the write.
2. B publishes that record, and puts and publishes the next one.
3. A continues. If it cut the file to the length that it knows, B's rows would be lost, because their segments are swept. So A
   writes the same bytes in the same place, or finds that their segments are gone, and the file stays as it was.

Bytes after the earlier length are normally bytes that one of our drivers began to write: the same bytes, or zeros after a power
cut. Any other bytes belong to somebody else and must not be overwritten: `PublishConflict`. Two sinks may begin one file at the
same moment, because both find none. The sink that publishes second gets another name, as for a finished file, and from its next
batch on the name is refused before anything is decided.

A consumer may move finished files away as soon as they are visible, because the files of a noted record are never looked at
again.
"""

from __future__ import annotations

import base64
import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from penstock import failpoints, unique
from penstock.errors import AlreadyThere, NotThere, PublishConflict
from penstock.sink.ledger import FinishedFile
from penstock.sink.quarantine import check_claimed
from penstock.sink.ready import READY, REOPENED, SUCCESS, paths_to
from penstock.sink.rivals import taker
from penstock.sink.segments import check_segment, segment_bytes
from penstock.storage import entry_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from penstock.sink.ledger import Growth, Ledger, State
    from penstock.sink.ready import Mark
    from penstock.storage import Storage

# Growing files that are open at the same time: each waits for a disk, or on HDFS for three disks and half a second.
_GROWN_AT_ONCE = 32
_COPIED_AT_ONCE = 8
_Decided = TypeVar("_Decided", "FinishedFile", "Growth")
_log = logging.getLogger("penstock.sink")


def publish(storage: Storage, root: str, staging: str, ledger: Ledger, state: State) -> State:
    """Make all files of `state` visible and note it; return the record with the names that its files really have. Idempotent.

    Called only for a record that is not noted as published; consumers may have taken files of a noted record away.
    """
    return _Publication(storage, root, staging, ledger, state).carried_out()


@dataclass(frozen=True)
class _Publication:
    """The publishing of one record, `state`, of a ledger, in the output `root` with its `staging` files."""

    storage: Storage
    root: str
    staging: str
    ledger: Ledger
    state: State

    def carried_out(self) -> State:
        """Do what `publish` promises."""
        state = self.state
        paths = [file.path for file in state.finished if not file.place] + [growth.path for growth in state.grown]
        self._make_directories(paths)
        for mark in state.ready.reopened:
            self._say(mark)
        for place in {file.place for file in state.finished} - {""}:
            check_claimed(self.storage, place, self.root)
        finished = self._publish_all()
        grown = self._grow_all()
        for mark in state.ready.ready:
            failpoints.hit("sink.publish.ready")
            self._say(mark)
        self._undo()
        failpoints.hit("sink.publish.before-note")
        self.ledger.note_published(state.n)
        return replace(state, finished=finished, grown=grown)

    # -- files -----------------------------------------------------------------------------------------------------

    def _publish_all(self) -> tuple[FinishedFile, ...]:
        """Publish the files one after the other, or side by side if the storage copies each file instead of moving it."""
        publish_it = partial(self._with_a_name, self._publish_one)
        if self.storage.moves:
            return tuple(map(publish_it, self.state.finished))
        with self.storage.workers(_COPIED_AT_ONCE) as workers:
            return tuple(done.result() for done in [workers.submit(publish_it, file) for file in self.state.finished])

    def _publish_one(self, file: FinishedFile) -> None:
        failpoints.hit("sink.publish.one")
        _publish(self.storage, f"{self.staging}/{file.staged}", file.at(self.root), file)

    def _grow_all(self) -> tuple[Growth, ...]:
        """Bring the record's growing files to their lengths, several at a time. Raises the error of the first file that fails."""
        grow_it = partial(self._with_a_name, self._grow_one)
        if len(self.state.grown) < 2:  # noqa: PLR2004 - one needs no thread
            return tuple(map(grow_it, self.state.grown))
        with self.storage.workers(_GROWN_AT_ONCE) as pool:
            return tuple(pool.map(grow_it, self.state.grown))

    def _grow_one(self, growth: Growth) -> None:
        failpoints.hit("sink.publish.grow")
        target = f"{self.root}/{growth.path}"
        _grow(self.storage, target, self.staging, growth, newest=lambda: self.ledger.head().n == self.state.n)

    def _with_a_name(self, show: Callable[[_Decided], None], decided: _Decided) -> _Decided:
        """Make a file visible under its decided name, or under another one if a file of another sink has the name (see `renamed`)."""
        try:
            show(decided)
        except PublishConflict:
            renamed = self.ledger.other_names.of(self.state, decided.path) or self._another_name(decided)
            if renamed is None:
                raise
            decided = replace(decided, path=renamed)
            show(decided)
        return decided

    def _another_name(self, decided: FinishedFile | Growth) -> str | None:
        """Return another name for a file, noted and logged, if another sink has taken its name; `None` if no sink has."""
        sink = self.state.sink
        other = taker(self.storage, self.root, sink, decided.path) if _may_be_renamed(self.state, decided) else None
        if other is None:
            return None
        renamed = self.ledger.other_names.give(self.state, decided.path)
        message = (
            "sink %r of %r names its files as sink %r does, which took the name %r first: this one's file is %r instead; put {sink} "
            "into fileName of both"
        )
        _log.warning(message, sink, self.root, other, decided.path, renamed)
        return renamed

    def _make_directories(self, paths: list[str]) -> None:
        """Make the directories below `root` that the paths need; `PublishConflict` if a link leads out of `root`."""
        inside = self.storage.resolve(self.root).rstrip("/")
        for directory in sorted({path.rpartition("/")[0] for path in paths}):
            if directory:
                self._check_inside(inside, directory)
            self.storage.make_directory(f"{self.root}/{directory}" if directory else self.root)

    def _check_inside(self, inside: str, directory: str) -> None:
        """Raise `PublishConflict` if `directory` leads out of the output through a symbolic link; `inside` is `root` resolved."""
        target = self.storage.resolve(f"{self.root}/{directory}")
        if target != f"{inside}/{directory}":
            msg = f"{self.root}/{directory} leads to {target!r}, expected a directory of the output; remove the symbolic link"
            raise PublishConflict(msg)

    # -- marks of buckets of time ----------------------------------------------------------------------------------

    def _say(self, mark: Mark) -> None:
        """Make `_SUCCESS` durable in a bucket that is complete, or remove it from one that was reopened. Idempotent."""
        if not mark.file:
            return
        if mark.kind == REOPENED:
            self._take_back(mark.bucket)
            return
        self._make_directories([f"{mark.bucket}/{SUCCESS}"])
        # Swept like other staged files, because no record names it.
        staged = f"{self.staging}/{self.state.n:012d}-ready-{unique.token()}.part"
        with self.storage.create(staged) as file:
            file.sync()
        with suppress(AlreadyThere, NotThere):  # it is there; or a successor has swept the staged file, and decides now
            self.storage.publish(staged, f"{self.root}/{mark.bucket}/{SUCCESS}")
        self.storage.delete(staged)

    def _take_back(self, reopened: str) -> None:
        """Remove `_SUCCESS` durably from a bucket and from the directories above it."""
        self._check_inside(self.storage.resolve(self.root).rstrip("/"), reopened)
        for bucket in paths_to(reopened):
            self.storage.delete(f"{self.root}/{bucket}/{SUCCESS}")
            with suppress(NotThere):  # the directory was taken away
                self.storage.persist(f"{self.root}/{bucket}", [])

    def _undo(self) -> None:
        """Undo the marks of this record that later records contradict, in case this driver stalled (failure 5 of `ready`)."""
        marks = [mark for mark in self.state.ready.marks if mark.file]
        head = self.ledger.head() if marks else self.state
        if head.n == self.state.n:
            return
        for mark in marks:
            kind = REOPENED if any(mark.bucket in paths_to(bucket) for bucket in head.ready.waiting) else READY
            if kind != mark.kind:
                self._say(mark._replace(kind=kind))


def _may_be_renamed(state: State, decided: FinishedFile | Growth) -> bool:
    """Tell whether a note may rename the file, because this record alone says where it is.

    Not so for a file in the user's directory (see `quarantine`), for a growing file that had a length before, and for one whose
    length is in a table.
    """
    if isinstance(decided, FinishedFile):
        return not decided.place
    return not decided.before and decided.path in state.lengths


def _publish(storage: Storage, staged: str, target: str, file: FinishedFile) -> None:
    try:
        storage.publish(staged, target)
    except AlreadyThere as error:
        msg = f"{target!r} was put there by somebody else, not by a sink of this directory; move it away and run the same command again"
        raise PublishConflict(msg) from error
    except NotThere as error:
        _confirm(storage, target, file, error)


def _grow(storage: Storage, target: str, staging: str, growth: Growth, *, newest: Callable[[], bool]) -> None:
    """Bring a growing file to its decided length. Writes again what a crash left after the old length.

    Every try writes the same bytes, so a reader that follows the file sees a prefix of its final contents. Segments are deleted
    only after the file is synced. So if a segment is gone, and a crash has lost the note that the record is published, the file
    is complete. If the file is longer, later records have extended it, unless this record is still the `newest`.
    """
    size = _size(storage, target)
    if not growth.before and size > growth.after and newest():
        raise PublishConflict(_not_ours(target, growth))
    if size > growth.after and newest():
        msg = (
            f"{target!r} has {size} bytes, the ledger says {growth.after}: somebody else wrote to it; cut it to "
            f"{growth.before} bytes and run the same command again"
        )
        raise PublishConflict(msg)
    if size >= growth.after and any(_size(storage, f"{staging}/{s.file}") == 0 for s in growth.segments):
        return
    if size < growth.before:
        _check_uncut(storage, target, growth, "")
    if size > growth.before:
        _check_begun(storage, target, _gained(storage, staging, growth), growth)
    _write_on(storage, target, staging, growth)


def check_growths(storage: Storage, root: str, growths: Iterable[Growth], lengths: Mapping[str, int]) -> None:
    """Raise `PublishConflict` for files that cannot gain what a decision gives them: others may have removed or cut them.

    Called before the decision is put: afterwards only the same file could take the rows, and whoever has removed it for good would
    be stuck. `lengths` are those of all growing files; a file that is not among them must not be there.
    """
    for growth in growths:
        target = f"{root}/{growth.path}"
        if growth.path in lengths:
            _check_uncut(storage, target, growth, ", or set another fileName: nothing was committed")
        elif entry_at(storage, target):
            msg = (
                f"{growth.path!r} in {root!r} is not of this sink and cannot grow; set another fileName, or, where it is no "
                "file of another sink, move it away"
            )
            raise PublishConflict(msg)


def _check_uncut(storage: Storage, target: str, growth: Growth, otherwise: str) -> None:
    """Raise `PublishConflict` unless the file has its earlier length at least; `otherwise` is what else the user may do."""
    entry = entry_at(storage, target)
    if entry is None and growth.before:
        msg = (
            f"{target!r} is not there, and the ledger says that it has {growth.before} bytes: it was moved away or removed by "
            f"somebody else; put it back and run the same command again{otherwise}"
        )
        raise PublishConflict(msg)
    if entry is not None and entry.size < growth.before:
        msg = (
            f"{target!r} has {entry.size} bytes, the ledger says {growth.before}: it was cut by somebody else; restore it and run the "
            f"same command again{otherwise}"
        )
        raise PublishConflict(msg)


def _gained(storage: Storage, staging: str, growth: Growth) -> Iterator[bytes]:
    """Yield the bytes that the file gains; `DamagedState`, at the latest after the last bytes, if the staged bytes were altered."""
    if growth.header:
        yield base64.b64decode(growth.header)
    for segment in growth.segments:
        yield from segment_bytes(storage, staging, segment)


def _check_begun(storage: Storage, target: str, gained: Iterable[bytes], growth: Growth) -> None:
    """Raise `PublishConflict` unless the bytes after the earlier length are those that the file gains, or zeros from a power cut."""
    at = growth.before
    with storage.open(target) as file:
        for data in gained:
            begun = file.read(at, len(data))
            if not _is_begun(begun, data):
                raise PublishConflict(_not_ours(target, growth))
            at += len(data)


def is_ours(storage: Storage, target: str, staging: str, growth: Growth) -> bool:
    """Tell whether the bytes that a growing file already has after the earlier length are ours.

    Raises `NotThere` or `DamagedState` for the staged files.
    """
    try:
        _check_begun(storage, target, _gained(storage, staging, growth), growth)
    except PublishConflict:
        return False
    return True


def _not_ours(target: str, growth: Growth) -> str:
    """Return the message that somebody else has written where a growing file continues, and what to do."""
    more = growth.after - growth.before
    if not growth.before:
        return (
            f"{target!r} was begun by somebody else, and {more} committed bytes belong there: nothing was overwritten; move it away "
            "and run the same command again"
        )
    return (
        f"{target!r} has bytes of somebody else after byte {growth.before}, where {more} committed bytes belong: nothing was "
        f"overwritten; keep a copy of them, cut it to {growth.before} bytes and run the same command again"
    )


def _is_begun(begun: bytes, data: bytes) -> bool:
    """Tell whether `begun` is a beginning of `data`, except for bytes that are zero."""
    if data.startswith(begun):
        return True
    there, expected = np.frombuffer(begun, np.uint8), np.frombuffer(data, np.uint8, len(begun))
    return bool(np.all((there == expected) | (there == 0)))


def _write_on(storage: Storage, target: str, staging: str, growth: Growth) -> None:
    """Write the bytes that the file gains in their place, and sync. All segments are checked before a reader can see a byte."""
    for segment in growth.segments:
        check_segment(storage, staging, segment)
    try:
        output = storage.extend(target, growth.before)
    except NotThere as error:  # its directory exists, so the path is a link and not a file
        msg = f"{error.message}; expected the file itself, and no link to it: put it back as it was and run the same command again"
        raise PublishConflict(msg) from error
    with output as file:
        for data in _gained(storage, staging, growth):
            file.write(data)
        file.sync()


def _size(storage: Storage, path: str) -> int:
    """Return the size of the file, 0 if there is none."""
    entry = entry_at(storage, path)
    return 0 if entry is None else entry.size


def _confirm(storage: Storage, target: str, file: FinishedFile, error: NotThere) -> None:
    """Check by its size that the target is the staged file, which is gone; else raise `PublishConflict`."""
    entry = entry_at(storage, target)
    if entry is None:
        msg = (
            f"{target!r} ({file.rows} rows) was committed, but neither it nor its staged file is there; if it was moved "
            f"away after it was published, put it back for this start, else restore {file.staged!r} from a copy"
        )
        raise PublishConflict(msg) from error
    if entry.size != file.bytes:
        msg = (
            f"{target!r} has {entry.size} bytes, the ledger says {file.bytes}: it was changed or replaced; put back the file that was "
            f"published, or move this one away and restore {file.staged!r} from a copy"
        )
        raise PublishConflict(msg) from error
