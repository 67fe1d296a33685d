"""The order of a log's segments: which there are, and which follows which. The rules are those of `form`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from penstock.errors import DamagedState, Locked, NotThere, StorageError
from penstock.wal import form
from penstock.wal.segment import LogSegment, copies_in, names_in, numbers_in, path_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.storage import Storage
    from penstock.wal.form import Header


def numbers(storage: Storage, directory: str) -> list[int]:
    """Return the numbers of the existing segments, in order. `DamagedState` if a repair stopped half way."""
    names = names_in(storage, directory)
    if waiting := _interrupted(storage, directory, names):
        msg = f"{path_of(directory, waiting[0])!r} is missing: its repair was interrupted after the copy; repair the log again"
        raise DamagedState(msg)
    return numbers_in(names)


def interrupted(storage: Storage, directory: str) -> tuple[int, bytes] | None:
    """Return the segment that a repair has deleted and not yet put back, and its copy."""
    return _interrupted(storage, directory, names_in(storage, directory))


def _interrupted(storage: Storage, directory: str, names: list[str]) -> tuple[int, bytes] | None:
    """Return the first copy after the last segment if it was written after what is there now: see `log`."""
    listed = numbers_in(names)
    last = max(listed, default=0)
    number, name = next(((number, name) for number, name in copies_in(names).items() if number > last), (0, ""))
    if not number:
        return None
    path = f"{directory}/{name}"
    data = storage.read(path)
    with suppress(DamagedState):
        header = form.decode_header(data, path)
        if header is not None and _is_next(storage, directory, header, listed):
            return number, data
    return None


def _is_next(storage: Storage, directory: str, header: Header, listed: list[int]) -> bool:
    """Tell whether a segment with this header was written after what is there now, which may be nothing."""
    if header.previous not in listed:
        return not listed
    with LogSegment(storage, directory, header.previous) as segment:
        return segment.ends_at(header)


def first(storage: Storage, directory: str, *, hold: bool = False) -> LogSegment | None:
    """Return the first segment that has a header; `None` if there is none yet. `DamagedState` if there was one before it.

    A segment that is no longer there was purged.
    """
    listed = numbers(storage, directory)
    for number in listed:
        with suppress(NotThere, Locked):
            segment = LogSegment(storage, directory, number, hold=hold)
            if segment.header is None:
                segment.close()
                continue
            if segment.header.previous in listed:
                segment.close()
                path = path_of(directory, segment.header.previous)
                msg = (
                    f"{path!r} is damaged at byte 0: found no header, expected {form.HEADER_BYTES} bytes of one, because "
                    f"{segment.path!r} was written after it; restore it from a copy, or repair the log"
                )
                raise DamagedState(msg)
            return segment
    return None


def follower(storage: Storage, directory: str, number: int, *, hold: bool = False) -> LogSegment | None:
    """Return the segment that counts as the one after `number`; `None` if there is none yet.

    `DamagedState` if there are later ones and none of them was written after it.
    """
    chosen: LogSegment | None = None
    try:
        for segment, header in _later(storage, directory, number, hold=hold):
            if header.previous != number:
                segment.close()
                if chosen is None:
                    _refuse(segment.path, path_of(directory, header.previous), path_of(directory, number))
                break
            before, chosen = chosen, segment
            if before is not None:
                before.close()
    except DamagedState:
        if chosen is None:
            raise  # otherwise the code that reaches it reports it
    except StorageError:
        if chosen is not None:
            chosen.close()
        raise
    return chosen


def _later(storage: Storage, directory: str, number: int, *, hold: bool) -> Iterator[tuple[LogSegment, Header]]:
    """Yield the later segments that have a header.

    The next ones are opened by name, so that a long log is not listed for each of its segments. After a segment without
    a header, a listing is used that is older than the look at that segment: of the segments in such a listing only the
    last may still get a header.
    """
    later = number + 1
    with suppress(NotThere):
        while (segment := LogSegment(storage, directory, later, hold=hold)).header is not None:
            yield segment, segment.header
            later += 1
        segment.close()
    for listed in numbers(storage, directory):
        if listed >= later:
            segment = LogSegment(storage, directory, listed, hold=hold)
            if segment.header is None:
                segment.close()
            else:
                yield segment, segment.header


def _refuse(path: str, expected: str, before: str) -> NoReturn:
    msg = (
        f"{path!r} was written after {expected!r}, found {before!r} before it: a segment is missing, or was put back; "
        "restore the log from a copy"
    )
    raise DamagedState(msg)
