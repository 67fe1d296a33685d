"""Making visible what the ledger has decided.

A record names each finished file and the staged file that is all of it. Publishing moves one to the other, never
replacing, durable under the new name before the old name goes. It is repeated by whoever finds a record that is not
noted as published: the same driver, its successor, `finish`. What the staged file and the target tell:

| staged | target | meaning |
|---|---|---|
| there | missing | not published yet: do it |
| there | the same file | a crash between the two names: complete it |
| there | another file | somebody put a file there since the name was chosen: `PublishConflict`, nothing is replaced |
| there | a file of another sink | that was faster to take the name: this one has another name from now on, see `renamed` |
| missing | there, with the record's length | published before |
| missing | there, of another length | not what was decided: `PublishConflict` |
| missing | missing | lost, or published and taken away before that was noted: `PublishConflict`, never silence |

A growing file is extended here, from the one length that the ledger gives to the other. Nothing is ever cut:

1. A puts its record, looks at the file, and is stopped in front of the write.
2. B publishes that record, and puts and publishes the next one.
3. A goes on. If it cut the file to the length it knows, B's rows would be gone: their segments are swept. So it writes the
   same bytes in the same place, or finds that their segments are gone, and the file is what it was.

Bytes after the first length are those that one of us began to write: the same bytes, or zeros where a power cut took them. Any others
are somebody else's, and must not be written over: `PublishConflict`. Two sinks may begin one file at one moment, as both find none: to
the second to publish it is as with a finished file, and from its next batch on the name is refused before anything is decided.

A consumer may move finished files away as soon as they are visible: a noted record is never looked at again.
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

# Growing files that are open at a time: each waits for a disk, or on HDFS for three and half a second.
_GROWN_AT_ONCE = 32
_COPIED_AT_ONCE = 8
_Decided = TypeVar("_Decided", "FinishedFile", "Growth")
_log = logging.getLogger("penstock.sink")


def publish(storage: Storage, root: str, staging: str, ledger: Ledger, state: State) -> State:
    """Make all that `state` finished visible, and note it; return the record with the names that its files have. Idempotent.

    Called for a record that is not noted as published; consumers may have taken away files of one that is.
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
    """Publish the files one after the other; side by side where each is copied, by a store that others wait for too."""

    def publish_one(file: FinishedFile) -> None:
        failpoints.hit("sink.publish.one")
        _publish(storage, f"{staging}/{file.staged}", file.at(root), file)

    publish_it = partial(_with_a_name, publish_one, storage, root, ledger, state)
    if storage.moves:
        return tuple(map(publish_it, state.finished))
    with storage.workers(_COPIED_AT_ONCE) as workers:
        return tuple(done.result() for done in [workers.submit(publish_it, file) for file in state.finished])


def _grow_all(storage: Storage, root: str, staging: str, ledger: Ledger, state: State) -> tuple[Growth, ...]:
    """Bring the growing files that the record names to their lengths, some at a time; an error is that of the first that has one."""

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
    """Have a file made visible under the name that was decided, or under another one if a file of another sink has that; see `renamed`."""
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
    """Note another name for a file, and tell it, if another sink has the file in its place; `None` if it is a stranger's."""
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
    """Tell whether the record alone says where the file is: one in a directory of the user's is not of the output, see `quarantine`."""
    if isinstance(decided, FinishedFile):
        return not decided.place
    return not decided.before and decided.path in state.lengths


def _say(storage: Storage, root: str, staging: str, number: int, mark: Mark) -> None:
    """Make `_SUCCESS` in a bucket that is complete, durable; take it away from one that was reopened. Idempotent."""
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
    staged = f"{staging}/{number:012d}-ready-{unique.token()}.part"  # swept as others are: no record names it
    with storage.create(staged) as file:
        file.sync()
    with suppress(AlreadyThere, NotThere):  # it is there; or a successor has swept, and says what holds
        storage.publish(staged, path)
    storage.delete(staged)


def _undo(storage: Storage, root: str, staging: str, ledger: Ledger, state: State) -> None:
    """Undo what later records have said otherwise since, for a driver that stood still (failure 5 of `ready`)."""
    marks = [mark for mark in state.ready.marks if mark.file]
    head = ledger.head() if marks else state
    if head.n == state.n:
        return
    for mark in marks:
        kind = REOPENED if any(mark.bucket in paths_to(bucket) for bucket in head.ready.waiting) else READY
        if kind != mark.kind:
            _say(storage, root, staging, state.n, mark._replace(kind=kind))


def _make_directories(storage: Storage, root: str, paths: list[str]) -> None:
    """Make the directories below `root` that the paths need; `PublishConflict` where a link leads out of it."""
    inside = storage.resolve(root).rstrip("/")
    for directory in sorted({path.rpartition("/")[0] for path in paths}):
        if directory:
            _check_inside(storage, root, inside, directory)
        storage.make_directory(f"{root}/{directory}" if directory else root)


def _check_inside(storage: Storage, root: str, inside: str, directory: str) -> None:
    """Raise `PublishConflict` where a symbolic link leads out of `inside`, which `root` is: nothing is published through one."""
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
    """Bring a growing file to its decided length. What a crash left beyond the old length is written again.

    The bytes are the same at every try, so a reader that follows the file sees a prefix of its final contents. Segments
    go only when the file is synced: where one is gone, and the note that it may go was lost in a crash, the file is whole.
    A file that is longer is what later records made of it, unless this record is still the `newest`.
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
    """Yield what the file gains; `DamagedState`, at the latest behind the last of it, if it is not what was staged."""
    if growth.header:
        yield base64.b64decode(growth.header)
    for segment in growth.segments:
        yield from segment_bytes(storage, staging, segment)


def _check_begun(storage: Storage, target: str, gained: Iterable[bytes], growth: Growth) -> None:
    """Raise `PublishConflict` unless what is there of what the file gains are its bytes, or zeros that a power cut left."""
    at = growth.before
    with storage.open(target) as file:
        for data in gained:
            begun = file.read(at, len(data))
            if not _is_begun(begun, data):
                raise PublishConflict(_not_ours(target, growth))
            at += len(data)


def is_ours(storage: Storage, target: str, staging: str, growth: Growth) -> bool:
    """Tell whether a growing file goes on as it is to, as far as it goes. `NotThere`, `DamagedState` of what is staged for it."""
    try:
        _check_begun(storage, target, _gained(storage, staging, growth), growth)
    except PublishConflict:
        return False
    return True


def _not_ours(target: str, growth: Growth) -> str:
    """Return in words that somebody else has written where a growing file is gone on with, and what to do."""
    more = growth.after - growth.before
    if not growth.before:
        return (
            f"{target!r} was begun by somebody else, and {more} bytes that were committed belong there: nothing was written over; move it "
            "away and run the same command again"
        )
    return (
        f"{target!r} has bytes of somebody else behind byte {growth.before}, where {more} bytes belong that were committed: nothing was "
        f"written over; keep a copy of them, cut it to {growth.before} bytes and run the same command again"
    )


def _is_begun(begun: bytes, data: bytes) -> bool:
    """Tell whether bytes are the first of `data`, but for zeros."""
    if data.startswith(begun):
        return True
    there, expected = np.frombuffer(begun, np.uint8), np.frombuffer(data, np.uint8, len(begun))
    return bool(np.all((there == expected) | (there == 0)))


def _write_on(storage: Storage, target: str, staging: str, growth: Growth) -> None:
    """Write what the file gains, where it is gained, and sync it; all segments are checked before a reader can see a byte."""
    for segment in growth.segments:
        check_segment(storage, staging, segment)
    try:
        output = storage.extend(target, growth.before)
    except NotThere as error:  # its directory is: so it is no file but a link
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
    """Make sure that the target is what the staged file was, which is gone."""
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
