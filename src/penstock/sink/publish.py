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
from dataclasses import replace
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
    from collections.abc import Callable, Iterable, Iterator

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
    paths = [file.path for file in state.finished if not file.place] + [growth.path for growth in state.grown]
    _make_directories(storage, root, paths)
    for mark in state.ready.reopened:
        _say(storage, root, staging, state.n, mark)
    for place in {file.place for file in state.finished} - {""}:
        check_claimed(storage, place, root)
    finished = _publish_all(storage, root, staging, ledger, state)
    grown = _grow_all(storage, root, staging, ledger, state)
    for mark in state.ready.ready:
        failpoints.hit("sink.publish.ready")
        _say(storage, root, staging, state.n, mark)
    _undo(storage, root, staging, ledger, state)
    failpoints.hit("sink.publish.before-note")
    ledger.note_published(state.n)
    return replace(state, finished=finished, grown=grown)


def _publish_all(storage: Storage, root: str, staging: str, ledger: Ledger, state: State) -> tuple[FinishedFile, ...]:
    """Publish the files one after the other, or side by side if the storage copies each file instead of moving it."""

    def publish_one(file: FinishedFile) -> None:
        failpoints.hit("sink.publish.one")
        _publish(storage, f"{staging}/{file.staged}", file.at(root), file)

    publish_it = partial(_with_a_name, publish_one, storage, root, ledger, state)
    if storage.moves:
        return tuple(map(publish_it, state.finished))
    with storage.workers(_COPIED_AT_ONCE) as workers:
        return tuple(done.result() for done in [workers.submit(publish_it, file) for file in state.finished])


def _grow_all(storage: Storage, root: str, staging: str, ledger: Ledger, state: State) -> tuple[Growth, ...]:
    """Bring the record's growing files to their lengths, several at a time. Raises the error of the first file that fails."""

    def grow(growth: Growth) -> None:
        failpoints.hit("sink.publish.grow")
        _grow(storage, f"{root}/{growth.path}", staging, growth, newest=lambda: ledger.head().n == state.n)

    grow_it = partial(_with_a_name, grow, storage, root, ledger, state)
    if len(state.grown) < 2:  # noqa: PLR2004 - one needs no thread
        return tuple(map(grow_it, state.grown))
    with storage.workers(_GROWN_AT_ONCE) as pool:
        return tuple(pool.map(grow_it, state.grown))


def _with_a_name(
    show: Callable[[_Decided], None], storage: Storage, root: str, ledger: Ledger, state: State, decided: _Decided
) -> _Decided:
    """Make a file visible under its decided name, or under another one if a file of another sink has the name (see `renamed`)."""
    try:
        show(decided)
    except PublishConflict:
        renamed = ledger.other_names.of(state, decided.path) or _another_name(storage, root, ledger, state, decided)
        if renamed is None:
            raise
        decided = replace(decided, path=renamed)
        show(decided)
    return decided


def _another_name(
    storage: Storage, root: str, ledger: Ledger, state: State, decided: FinishedFile | Growth
) -> str | None:
    """Return another name for a file, noted and logged, if another sink has taken its name; `None` if no sink has."""
    if not _may_be_renamed(state, decided):
        return None
    other = taker(storage, root, state.sink, decided.path)
    if other is None:
        return None
    renamed = ledger.other_names.give(state, decided.path)
    message = (
        "sink %r of %r names its files as sink %r does, which took the name %r first: this one's file is %r instead; put {sink} "
        "into fileName of both"
    )
    _log.warning(message, state.sink, root, other, decided.path, renamed)
    return renamed


def _may_be_renamed(state: State, decided: FinishedFile | Growth) -> bool:
    """Tell whether a note may rename the file, because this record alone says where it is.

    Not so for a file in the user's directory (see `quarantine`), for a growing file that had a length before, and for one whose
    length is in a table.
    """
    if isinstance(decided, FinishedFile):
        return not decided.place
    return not decided.before and decided.path in state.lengths


def _say(storage: Storage, root: str, staging: str, number: int, mark: Mark) -> None:
    """Make `_SUCCESS` durable in a bucket that is complete, or remove it from one that was reopened. Idempotent."""
    if not mark.file:
        return
    path = f"{root}/{mark.bucket}/{SUCCESS}"
    if mark.kind == REOPENED:
        _check_inside(storage, root, storage.resolve(root).rstrip("/"), mark.bucket)
        for bucket in paths_to(mark.bucket):
            storage.delete(f"{root}/{bucket}/{SUCCESS}")
            with suppress(NotThere):  # the directory was taken away
                storage.persist(f"{root}/{bucket}", [])
        return
    _make_directories(storage, root, [f"{mark.bucket}/{SUCCESS}"])
    staged = f"{staging}/{number:012d}-ready-{unique.token()}.part"  # swept like other staged files, because no record names it
    with storage.create(staged) as file:
        file.sync()
    with suppress(AlreadyThere, NotThere):  # it is there; or a successor has swept the staged file, and decides now
        storage.publish(staged, path)
    storage.delete(staged)


def _undo(storage: Storage, root: str, staging: str, ledger: Ledger, state: State) -> None:
    """Undo the marks of this record that later records contradict, in case this driver stalled (failure 5 of `ready`)."""
    marks = [mark for mark in state.ready.marks if mark.file]
    head = ledger.head() if marks else state
    if head.n == state.n:
        return
    for mark in marks:
        kind = REOPENED if any(mark.bucket in paths_to(bucket) for bucket in head.ready.waiting) else READY
        if kind != mark.kind:
            _say(storage, root, staging, state.n, mark._replace(kind=kind))


def _make_directories(storage: Storage, root: str, paths: list[str]) -> None:
    """Make the directories below `root` that the paths need; `PublishConflict` if a link leads out of `root`."""
    inside = storage.resolve(root).rstrip("/")
    for directory in sorted({path.rpartition("/")[0] for path in paths}):
        if directory:
            _check_inside(storage, root, inside, directory)
        storage.make_directory(f"{root}/{directory}" if directory else root)


def _check_inside(storage: Storage, root: str, inside: str, directory: str) -> None:
    """Raise `PublishConflict` if `directory` leads out of the output through a symbolic link; `inside` is `root` resolved."""
    target = storage.resolve(f"{root}/{directory}")
    if target != f"{inside}/{directory}":
        msg = f"{root}/{directory} leads to {target!r}, expected a directory of the output; remove the symbolic link"
        raise PublishConflict(msg)


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
        msg = f"{target!r} has {size} bytes, the ledger says {growth.before}: it was cut by somebody else; restore it"
        raise PublishConflict(msg)
    if size > growth.before:
        _check_begun(storage, target, _gained(storage, staging, growth), growth)
    _write_on(storage, target, staging, growth)


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
